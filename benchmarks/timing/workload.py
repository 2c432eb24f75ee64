"""Records of a given shape, and calls to time: exact sums, updates, a floor, a rival."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.timing.timing import Call
from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.adaptive import AdaptiveOptions, AdaptivePCA
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.common.clipped_sums import block_residual_norms, block_sum
from streaming_pca.estimators.oja.private_oja import PrivateOja, PrivateOjaOptions
from streaming_pca.kernels.lattice import MAX_RECORDS, LatticeSum
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.parameters import PrivacyParameters

__all__ = ["DTYPES", "Shape", "Workload", "update"]

DTYPES = ("float32", "float64")

_PRIVACY = PrivacyParameters(epsilon=1.0, delta=1e-6)
_QUANTILE = 0.9
"""Quantile of the records' norms for the clip radius: one record in ten is clipped."""
_LOOKED_AT = 512


class Shape(NamedTuple):
    """Number of records m, number of features d, and rank k."""

    m: int
    d: int
    k: int

    def __str__(self) -> str:
        return "x".join(map(str, self))

    @classmethod
    def parse(cls, text: str) -> Shape:
        """Parse ``MxDxK``; raise ValueError that names the mistake."""
        numbers = text.split("x")
        if len(numbers) != 3 or not all(n.isdecimal() for n in numbers):
            raise ValueError(f"must be MxDxK, as in 4096x256x8, not {text}")
        shape = cls(*map(int, numbers))
        shape.check()
        return shape

    def check(self) -> None:
        """Raise ValueError unless m records of d features can have k components."""
        if not 1 <= self.k <= min(self.m, self.d):
            raise ValueError(f"{self}: K must lie between 1 and the smaller of M and D")
        if self.m > MAX_RECORDS:
            raise ValueError(f"{self}: a batch may hold {MAX_RECORDS} records at most")


class Workload:
    """Batch of spiked records, with a public basis, clip radii and a centre.

    Parameters
    ----------
    shape : Shape
    dtype : {"float32", "float64"}
        Type of the batch. The values are the same, so the sums must also be the same.
    """

    def __init__(self, shape: Shape, dtype: str) -> None:
        self.shape = shape
        m, d, k = shape
        rng = np.random.default_rng(0)
        self.rows = rng.standard_normal((m, d), dtype=np.float32)
        self.rows[:, :k] *= 3
        self.rows += np.float32(0.1)
        self.batch = ArrayBatch.of_vectors(self.rows.astype(dtype))
        self.basis = orthonormalise(rng.standard_normal((d, k)))
        self.plain = Preprocessing(dim=d, centering="none")
        self.radius = self._radius(np.zeros_like(self.basis))

    def _radius(self, centre: NDArray[Any]) -> float:
        part = next(self.batch.blocks(_LOOKED_AT))
        return float(
            np.quantile(value_array(block_residual_norms(part, self.plain, self.basis, centre)), _QUANTILE)
        )

    @cached_property
    def sums(self) -> dict[str, Callable[[], LatticeSum]]:
        """The exact sums of A Q, and of A Q - C.

        They are created once, because the centre comes from BLAS, whose bits depend on its threads.
        """
        x = self.rows.astype(np.float64)
        centre = x.T @ (x @ self.basis) / len(x)
        radius = self._radius(centre)
        return {
            "sum": lambda: block_sum(self.batch, self.plain, self.basis, self.radius),
            "centred": lambda: block_sum(self.batch, self.plain, self.basis, radius, centre),
        }

    def floor(self) -> Call:
        """Return the two products that every such sum needs, by BLAS in float32."""
        rows = self.rows
        # Fortran order, because OpenBLAS uses one thread with C order.
        basis = np.asfortranarray(self.basis, dtype=np.float32)

        def call() -> object:
            product = rows @ basis
            return product.T @ rows

        return call

    def oja(self) -> PrivateOja:
        """Return private Oja for these records."""
        _, d, k = self.shape
        return PrivateOja(d, k, _PRIVACY, self.plain, PrivateOjaOptions(clip_radius=self.radius))

    def default(self, route: Literal["block", "covariance"] = "block") -> AdaptivePCA:
        """Return the default estimator on one of its routes."""
        _, d, k = self.shape
        return AdaptivePCA(d, k, _PRIVACY, Preprocessing(dim=d), AdaptiveOptions(route=route))

    def orthonormalisation(self) -> Call:
        """Return the orthonormalisation of a (d, k) sum."""
        total = self._total()
        return lambda: orthonormalise(total)

    def step(self) -> Call:
        """Return sum and orthonormalisation without noise, for comparison with non-private rivals."""
        return lambda: orthonormalise(self._total())

    def _total(self) -> NDArray[np.float64]:
        exact = block_sum(self.batch, self.plain, self.basis, self.radius)
        return np.asarray(exact.total * exact.unit)

    def incremental_pca(self) -> Call:
        """Return scikit-learn's step on the same float32 records, after its special first step."""
        from sklearn.decomposition import IncrementalPCA

        rival = IncrementalPCA(n_components=self.shape.k).partial_fit(self.rows)
        return lambda: rival.partial_fit(self.rows)


def update(estimator: Estimator[Any, Any], batch: ArrayBatch) -> Call:
    """Return a whole update, with its noise, from the state after the same batch.

    A first batch differs: the default estimator cuts it into rounds.
    """
    state = estimator.update(estimator.init(np.random.default_rng(0)), batch)
    return lambda: estimator.update(state, batch)
