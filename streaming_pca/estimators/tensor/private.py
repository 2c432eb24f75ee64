"""Private tensor power method on a stream: noisy power steps on disjoint batches."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.data.batch import Batch, BlockSum
from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.estimators.base import Estimator, EstimatorInfo, Plan, State, Subspace, SuiteOptions
from streaming_pca.estimators.common.clipped_sums import covariance_sum
from streaming_pca.estimators.tensor.search import TensorOptions, TensorSearch, tensor_subspace
from streaming_pca.estimators.worst_cases import TENSOR_CASES
from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import MAX_RECORDS, RADIUS, LatticeSum, lattice_unit, quantise_basis
from streaming_pca.kernels.rounding import clip_and_round, quantise_records
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.linalg.tensors import Whitening, spectral_whitening, unwhitened
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, lattice_sigma, least_multiplier
from streaming_pca.privacy.mechanisms import gaussian_on_symmetric, gaussian_on_vector

Matrix = NDArray[np.float64]

PRODUCT_SENSITIVITY = 2.0 * RADIUS**2
"""L2 sensitivity of :func:`product_sum` in lattice units, for any candidates and any whitening."""
_UNIT = float(RADIUS)  # lattice units of a clip radius


def joint_radius(candidates: Matrix) -> float:
    """Return rho of unit columns (n, L): between 1 and sqrt(L)."""
    gram = candidates.T @ candidates
    largest = float(np.linalg.eigvalsh(gram * gram)[-1])
    # Rounded up, so that rounding clips no record.
    return math.sqrt(max(largest, 1.0)) * (1 + 1e-9)


class Space:
    """Coordinates of the records: the data's space, or a whitened one.

    ``clip_radius`` is R, in units of the records; ``whitening`` is from an earlier output, and
    ``whitened_radius`` then clips W^T x.
    """

    def __init__(
        self,
        preprocessing: Preprocessing,
        clip_radius: float,
        whitening: Whitening | None = None,
        whitened_radius: float = 1.0,
    ) -> None:
        self.preprocessing = preprocessing
        self.per_unit = 1 / lattice_unit(clip_radius, RADIUS)
        self.radius = clip_radius if whitening is None else whitened_radius
        self.basis: Matrix | None = None
        if whitening is not None:
            self.basis = quantise_basis(whitening.basis)
            # Factors from z . (2**20 U) to W^T x in units of its radius over 2**20.
            self.factors = clip_radius / whitened_radius / _UNIT / whitening.roots

    def records(self, block: Block) -> tuple[Matrix, int]:
        """Return integer rows of norm at most RADIUS, and the count of clipped records.

        One row for each record that is not null; clipped are those of norm above R.
        """
        # A record of more rows has no third moment.
        starts, rows = transformed(self.preprocessing, block.single_rows())
        z = np.empty_like(rows)
        clipped = quantise_records(rows, starts, self.per_unit, _UNIT, z)
        if self.basis is None:
            return z, clipped
        seen = (z @ self.basis) * self.factors
        out = np.empty_like(seen)
        quantise_records(seen, starts, 1.0, _UNIT, out)
        return out, clipped


@njit(cache=True, nogil=True)
def quantise_squares(overlaps: Matrix, per_unit: float) -> None:
    """Square rows (n, L) in place; clip and round them to norms of at most RADIUS.

    ``overlaps`` are (n, L) exact integers, in units of 2**-40; on return integers. ``per_unit``: lattice
    units per unit of the squares.
    """
    squares = np.empty((1, overlaps.shape[1]))
    for i in range(overlaps.shape[0]):
        for j in range(overlaps.shape[1]):
            seen = overlaps[i, j] * 2.0**-40
            squares[0, j] = seen * seen
        clip_and_round(squares, per_unit, 2.0**20, overlaps[i : i + 1])


def _products(space: Space, candidates: Matrix, per_unit: float, block: Block) -> NDArray[np.int64]:
    z, clipped = space.records(block)
    squares = np.ascontiguousarray(z @ candidates)
    quantise_squares(squares, per_unit)
    return np.append((z.T @ squares).ravel().astype(np.int64), clipped)


def product_sum(batch: Batch, space: Space, candidates: Matrix) -> LatticeSum:
    """Return the exact lattice sum of x a^T over the one-row records of a batch.

    Records are clipped to |x| <= R; those of more rows count as null. ``candidates`` are (n, L), unit columns
    u_l, public or an earlier output; they are rounded to multiples of 2**-20. a_l = (x . u_l)^2. The total is
    (n, L).

    Adjacency: replace-one. |x a^T|_F = |x| |a| <= R^3 rho with rho^2 = lambda_max(G o G), G = U^T U
    (:func:`joint_radius`), so a sum moves by at most 2 R^3 rho. The guarantee does not depend on rho, which
    is public: z = x 2**20/R and a 2**20/rho are rounded to integers of norm at most 2**20 each by
    :func:`~streaming_pca.kernels.rounding.clip_and_round`. Any record, for every float input, adds integers
    z a^T of norm at most 2**40, and two sums differ by at most 2**41: :data:`PRODUCT_SENSITIVITY`. Sums are
    exact in any order. With a whitening the records are W^T z, clipped to their own radius; the bounds hold
    with k in place of d, for any W. Proof: docs/explanation/proofs/sums.md.
    """
    if len(batch) > MAX_RECORDS:
        raise ValueError(f"a batch may hold {MAX_RECORDS} records at most: lower batch_size")
    joint = joint_radius(candidates)
    products = partial(_products, space, quantise_basis(candidates), RADIUS / joint)
    vector = batch.sum(BlockSum(products, (candidates.size + 1,)))
    unit = space.radius**3 * joint / RADIUS**2
    return LatticeSum(vector[:-1].reshape(candidates.shape), unit, PRODUCT_SENSITIVITY, int(vector[-1]))


class PrivateTensorOptions(TensorOptions):
    """Settings of :class:`PrivateTensorPower`."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size", "whitening_records"})

    clip_radius: float = Field(ge=1e-70, le=1e70)
    """R: records are scaled down to a Euclidean norm of at most this; public, in units of the
    records. No default suits all data."""
    whitening: bool = True
    """Use the first batch for a whitening: for components that are independent but not
    orthogonal, and for a search in k dimensions instead of d. It needs memory for a d x d matrix."""
    whitening_records: int | None = Field(default=None, ge=2, le=MAX_RECORDS)
    """Records of that first batch; by default as many as of every other. The error of the whitening stays,
    while the search's averages out: a larger first batch is worth its wait."""
    whitened_radius: float | None = Field(default=None, ge=1e-3, le=1e6)
    """Clip of whitened records; by default 2 sqrt(k). Their mean squared norm is k."""

    @property
    def largest_batch(self) -> int:
        return max(self.batch_size, self.first_batch)

    @property
    def first_batch(self) -> int:
        first = self.whitening_records if self.whitening else None
        return self.batch_size if first is None else first

    def effective_whitened_radius(self, k: int) -> float:
        """Return the clip of whitened records at rank k."""
        return 2 * math.sqrt(k) if self.whitened_radius is None else self.whitened_radius


@dataclass(frozen=True)
class PrivateTensorState(State):
    """Whitening of the records, and the search after it."""

    whitening: Whitening
    """Meaningless with ``whitening = false``, and before the first batch."""
    search: TensorSearch


class PrivateTensorPower(Estimator[PrivateTensorState, PrivateTensorOptions]):
    """Private robust tensor power method [WangAnandkumar2016, Alg. 3], record by record.

    Components of E[x (x) x (x) x] = sum_i lambda_i v_i (x) v_i (x) v_i, lambda_i > 0.

    ===============  =============================================================
    step 4           ``init``, and :class:`~streaming_pca.estimators.tensor.search.TensorSearch`
    steps 6, 7       :func:`~streaming_pca.estimators.tensor.private.product_sum`, ``gaussian_on_vector``
    steps 8, 10, 11  :class:`~streaming_pca.estimators.tensor.search.TensorSearch`
    step 13          ``release``
    ===============  =============================================================

    Deviations from the paper
    -------------------------
    - The unit. The paper protects one entry of a given tensor
      (``experiments.papers.given_tensor`` does that). A stream has records, and one record
      moves every entry of its moment: here it is replaced. Records are clipped to
      |x| <= R, and every step reads a fresh batch, as in Algorithm 2.
    - Sensitivity: 2 R^3/m for one candidate and m records. All L candidates are
      one answer, of sensitivity 2 R^3 rho/m, rho at most sqrt(L) and about 1 for
      random candidates: proved in :func:`product_sum`.
    - Composition. Printed: noise for k L (R + 1) answers on the same data. Here a
      record is in one batch, and meets one Gaussian mechanism.
    - Step 10's weights come from the last power step's products, not from a separate answer.
    - Whitening (section 1.2): the first batch's noisy second moment gives U and S, W = U S^(-1/2);
      eigenvalues below its noise are set to that noise. Later batches clip W^T x to ``whitened_radius`` and
      search in k dimensions. W^T x may be near any vector of that ball, so the sensitivity is as above with
      that radius. Components are mapped back by B = U S^(1/2).
    - After the last component, and before one is found: see :mod:`streaming_pca.estimators.tensor.search`.
      With a whitening, the fill is orthonormal in the whitened space.
    - A record is one row x: a factor of more rows counts as null.
    - If the model is x = h + noise, E[x (x) x (x) x] has terms of the noise's
      second moment and of E[h]; a centre, or three views of h, are the remedy.
    - Centring: "none", or a public vector. "pairs" would make every third moment zero.

    Privacy
    -------
    Replace-one. Each record is in one batch, and there in one Gaussian mechanism: on
    the second moment (sensitivity sqrt(2) R^2 in Frobenius norm, as of
    :class:`~streaming_pca.estimators.covariance.analyze_gauss.AnalyzeGauss`), or on L (later k)
    products. Both have one noise multiplier, for (epsilon, delta). Candidates, rho and W are
    earlier outputs. A user may enter c batches: c such mechanisms compose to (epsilon, delta).
    Released: noisy sums; everything else follows from them.
    """

    info = EstimatorInfo(
        id="tensor-private",
        source="WangAnandkumar2016, Algorithm 3, for records",
        private=True,
        needs="clip_radius; many batches; memory for a d x d matrix for whitening",
        summary="components of the third moment by noisy power steps on fresh records",
        releases="tensor",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"clip_radius": 2.0, "batch_size": 64, "restarts": 3, "steps": 1},
        variants=({"whitening": False},),
        clip={"clip_radius": 2.0, "whitening": False},
    )
    worst_cases = TENSOR_CASES
    centerings: ClassVar[tuple[str, ...]] = ("none",)
    kinds: ClassVar[frozenset[RecordKind]] = frozenset({RecordKind.FACTOR})

    @property
    def _search_dim(self) -> int:
        return self.k if self.options.whitening else self.dim

    def init(self, rng: np.random.Generator) -> PrivateTensorState:
        search = TensorSearch.start(rng, self._search_dim, self.k, self.options.effective_restarts(self.k))
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        # Width 0 without a whitening: a state of the other option has another shape.
        width = self.k if self.options.whitening else 0
        return PrivateTensorState(0, 0, Whitening(basis[:, :width], np.ones(width)), search)

    def plan_mechanisms(self, state: PrivateTensorState) -> Plan:
        options = self.options
        parameters: dict[str, Any] = {
            "mechanism": self.info.id,
            # "images" is a stored name, which never changes: the products of the candidates.
            "answer": "second-moment" if self._whitens(state) else "images",
            "clip_radius": options.clip_radius,
            "sigma_over_sensitivity": self._multiplier,
        }
        if options.whitening:
            parameters["whitened_radius"] = options.effective_whitened_radius(self.k)
        # The noise of a sum does not shrink with its batch: fewer than n/4 records are not worth a step.
        count = options.batch_size if state.batch else options.first_batch
        least = max(count // 4, 1)
        charge = self.privacy.charge(self.privacy.contributions * gaussian_rho(self._multiplier))
        return Plan(count, least, 1, charge, parameters)

    def _whitens(self, state: PrivateTensorState) -> bool:
        return self.options.whitening and state.batch == 0

    @cached_property
    def _multiplier(self) -> float:
        """Noise multiplier of every answer: a user's batches may hold any mix of them."""
        # Refuse noise beyond int64 here, before a batch is charged.
        self._sigma(PRODUCT_SENSITIVITY)
        return least_multiplier(self.privacy.epsilon, self.privacy.delta, self.privacy.contributions)

    def _sigma(self, sensitivity: float) -> float:
        p = self.privacy
        return lattice_sigma(p.epsilon, p.delta, sensitivity, contributions=p.contributions)

    def learn_batch(self, state: PrivateTensorState, batch: Batch) -> tuple[PrivateTensorState, int]:
        """Compute the whitening, or make one power step; the charge is the plan's."""
        if self._whitens(state):
            whitening, clipped = self._whitening(batch)
            return replace(state, whitening=whitening), clipped
        options, queries = self.options, state.search.queries
        space = Space(
            self.preprocessing,
            options.clip_radius,
            state.whitening if options.whitening else None,
            options.effective_whitened_radius(self.k),
        )
        exact = product_sum(batch, space, queries)
        noisy = gaussian_on_vector(exact.total, self._sigma(exact.sensitivity))
        products = np.multiply(noisy, exact.unit / max(len(batch), 1), dtype=np.float64)
        search = state.search.learn(products, options.steps_in(self._search_dim), options.window)
        return replace(state, search=search), exact.clipped

    def _whitening(self, batch: Batch) -> tuple[Whitening, int]:
        exact = covariance_sum(batch.single_rows(), self.preprocessing, self.options.clip_radius**2)
        sigma = self._sigma(exact.sensitivity)
        per_record = exact.unit / max(len(batch), 1)
        moment = gaussian_on_symmetric(exact.total, sigma) * per_record
        # Norm of a symmetric noise matrix, with variances sigma^2 on and sigma^2/2 off the diagonal.
        floor = math.sqrt(2 * self.dim) * sigma * per_record
        return spectral_whitening(moment, self.k, floor), exact.clipped

    def learnt_subspace(self, state: PrivateTensorState) -> Subspace:
        """Return the components by decreasing weight, in the data's space."""
        weights, components = state.search.weights, state.search.components
        if self.options.whitening:
            weights, components = unwhitened(state.whitening, weights, components)
        return tensor_subspace(weights, components)
