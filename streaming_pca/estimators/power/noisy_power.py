"""Noisy power method on batches: a few noisy products with one batch's covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from streaming_pca.data.batch import Batch, BlockSum
from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.estimators.base import (
    Estimator,
    EstimatorInfo,
    Options,
    Outcome,
    Plan,
    State,
    Subspace,
    SuiteOptions,
)
from streaming_pca.estimators.common.clipped_sums import block_sensitivity, block_sum
from streaming_pca.estimators.worst_cases import NOISY_POWER_CASES
from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.kernels.rounding import COUNTED_AS_CLIPPED, NO_EXPONENT, exponent, scale_down
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, lattice_sigma
from streaming_pca.privacy.mechanisms import gaussian_on_symmetric_space

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True)
def scale_records(rows: Floats, starts: NDArray[np.int64], size: float, spread: float, out: Floats) -> int:
    """Scale each record within a Frobenius norm and a sum of column norms.

    ``size`` bounds the Frobenius norm of a record's rows ``rows[starts[i]:starts[i + 1]]``, ``spread`` the
    sum over columns of their Euclidean norms; it may be inf. In ``out`` a record within both bounds keeps its
    bits; a record with NaN or inf becomes 0. The order is fixed. Returns the number of records that were made
    smaller by more than rounding would.
    """
    d = rows.shape[1]
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        e = exponent(rows[a:b])
        if e == NO_EXPONENT:
            out[a:b] = 0.0
            continue
        # In powers of two of the largest entry: no square overflows.
        norm = math.sqrt(scale_down(rows[a:b], e, out[a:b]))
        if not norm < math.inf:
            out[a:b] = 0.0
            continue
        t = size / norm
        if spread < math.inf:
            total = 0.0
            for j in range(d):
                square = 0.0
                for r in range(a, b):
                    square += out[r, j] * out[r, j]
                total += math.sqrt(square)
            t = min(t, spread / total)
        whole = math.ldexp(1.0, e)
        if whole > t * COUNTED_AS_CLIPPED:
            clipped += 1
        for r in range(a, b):
            for j in range(d):
                out[r, j] = rows[r, j] if whole <= t else out[r, j] * t
    return clipped


class BoundedRecords(Preprocessing):
    """Preprocessing that scales records into two public balls, as its last step.

    [DunglerSanyal2026, appendix F] calls this clipping by "the square root of the trace and the trace of the
    square root of the diagonal". A record's matrix A = F^T F is scaled by s^2, its rows F by s,

        s = min(1, beta / sqrt(trace A), alpha / sum_j sqrt(A_jj)):

    for one row x the two numbers are |x|_2 and |x|_1. An indefinite matrix has no square root on its
    diagonal; its Frobenius norm is clipped to beta^2. The scale serves utility only: no sensitivity depends
    on the floats here, because the sum that the records enter clips them again, in integers.
    """

    clip_l2: float
    """beta, in units of the records (of the root of a matrix' norm)."""
    clip_l1: float | None = None
    """alpha, in the same units; None for no such bound."""

    def apply(self, batch: Block) -> Block:
        block = super().apply(batch)
        rows = np.ascontiguousarray(block.rows, dtype=np.float64)
        out = np.empty_like(rows)
        scale_records(rows, block.starts, *self._bounds, out)
        return Block(out, block.starts, block.kind)

    def public_map(self) -> None:
        """Return None: the scale of a record depends on its norms."""

    @property
    def _bounds(self) -> tuple[float, float]:
        size = self.clip_l2**2 if self.kind is RecordKind.MATRIX else self.clip_l2
        return size, math.inf if self.clip_l1 is None else self.clip_l1

    def clipped(self, batch: Batch, unbounded: Preprocessing) -> int:
        """Count the records of ``unbounded`` that are scaled down: exact, secret as a record."""
        return int(batch.sum(BlockSum(partial(_scaled_count, unbounded, *self._bounds), (1,)))[0])


def _scaled_count(unbounded: Preprocessing, size: float, spread: float, block: Block) -> NDArray[np.int64]:
    """Count the records that are scaled down, (1,)."""
    starts, rows = transformed(unbounded, block)
    rows = np.ascontiguousarray(rows)
    return np.array([scale_records(rows, starts, size, spread, np.empty_like(rows))], dtype=np.int64)


class NoisyPowerOptions(Options):
    """Settings of :class:`NoisyPowerMethod`."""

    sizing: ClassVar[frozenset[str]] = frozenset({"batch_size"})

    clip_l2: float = Field(ge=1e-70, le=1e70)
    """beta: records are scaled down to a Euclidean norm (the root of their matrix' trace) of
    at most this; public, in units of the records. No default suits all data."""
    clip_l1: float | None = Field(default=None, ge=1e-70, le=1e70)
    """alpha: records are also scaled down to a sum of absolute coordinates of at most this. A
    pass then needs less noise if its basis is spread over many coordinates; useful below
    ``clip_l2 * sqrt(dim/rank)`` or so. Not for records of kind matrix."""
    batch_size: int = Field(default=65_536, ge=2, le=MAX_RECORDS)
    """Records of a batch: the data set of one run of the method."""
    iterations: int = Field(default=4, ge=1, le=1000)
    """T: passes over each batch. Noise grows by sqrt(T); a pass lowers the error of a start by
    the factor sigma_{k+1}/sigma_k."""
    oversampling: int = Field(default=0, ge=0, le=1000)
    """p: columns beyond the rank; passes then converge by sigma_{k+p+1}/sigma_k."""

    @model_validator(mode="after")
    def _check(self) -> NoisyPowerOptions:
        if self.clip_l1 is not None and self.clip_l1 < self.clip_l2 * 1e-6:
            raise ValueError("clip_l1 must not be below a millionth of clip_l2: lower clip_l2")
        return self


@dataclass(frozen=True)
class NoisyPowerState(State):
    """Start of the next batch, result of the last pass, and average over batches."""

    start: Floats
    """(d, k + p), orthonormal columns: the last iterate of a batch that was learnt from."""
    basis: Floats
    """(d, k + p): Q of the last pass."""
    product: Floats
    """(d, k + p): its noisy A Q, of the mean matrix A."""
    average: Floats
    """(d, k): the batches' bases, aligned to each other and averaged by precision."""
    inner: Floats
    """(k, k) symmetric: their Ritz values, averaged alike, in the average's coordinates."""
    precision: float
    """Sum of the batches' precisions: squares of signal to noise."""


class NoisyPowerMethod(Estimator[NoisyPowerState, NoisyPowerOptions]):
    """DP-Power-Method [DunglerSanyal2026, appendix F] on each batch.

    Also in [DunglerSanyal2025, appendix G].

    ==========================================  ====================================================
    both clips                                  :class:`BoundedRecords`
    Y_t = X Q_{t-1} + noise of scale rho_t      ``block_sum`` and ``gaussian_on_symmetric_space``,
    [HardtPrice2014, Alg. 1]                    T times a batch
    Q_t = QR(Y_t)                               ``orthonormalise``
    noise times beta alpha                      ``_radius``
    ==========================================  ====================================================

    Deviations from the paper
    -------------------------
    - Sensitivity. Under replace-one two products are up to 2 rho_t apart. ``block_sum``
      clips products to rho_t in integers, so this holds for all floats. Records within both
      balls have products within rho_t, and the clip changes them by rounding only.
    - rho_t. For a record within both balls, a_j = sqrt(A_jj), A positive semidefinite gives |A_jl| <= a_j
      a_l, and row j of A Q has a norm of at most a_j sum_l a_l |Q_l| <= a_j alpha max_l |Q_l| (Q_l a row of
      Q). So |A Q|_F <= beta alpha max_l |Q_l|: never above beta alpha max|Q| sqrt(k), which [NicolasEtAl2024]
      has from single entries. It is at most beta^2 too, as |Q|_2 = 1.
    - T passes over the same records compose exactly, as Gaussian mechanisms do; zCDP
      would need more noise. (Both papers leave it to [NicolasEtAl2024].)
    - Noise: on all d k integers, then projected on S_Q, which contains A Q.
    - Streaming. Each batch is a separate data set, charged whole; its passes start from the last batch's
      iterate, an earlier output. The batches' results are averaged, a post-processing: bases are aligned to
      the average so far (the orthogonal Procrustes problem) and weighted by (records times the k-th Ritz
      value over the noise)^2, which puts bases from noise far below others.
    - Uninformative batches. Nothing is learnt from a batch whose records are too few for
      the largest possible k-th eigenvalue, beta^2/k a record, to exceed the noise of a pass
      ("too-few-records"), or whose k-th Ritz value is within the noise's norm
      ("no-gap"; it would be the noise's). The charge stays. At k = d nothing can be missed.

    Records of kind matrix: the method finds the directions of the largest absolute eigenvalues.

    Privacy
    -------
    Replace-one. A record is in one batch, and there in T Gaussian mechanisms of
    sensitivity 2 rho_t, rho_t a function of earlier outputs, at one noise
    multiplier z. Each is (1/z)-GDP; all T of them, in each of the c batches that a
    unit may enter, are sqrt(T c)/z-GDP
    (:func:`~streaming_pca.privacy.calibration.multipliers.lattice_sigma`): (epsilon, delta)-DP.
    Released: T noisy products; everything else follows from them.
    """

    info = EstimatorInfo(
        id="noisy-power",
        source="DunglerSanyal2026, appendix F, DP-Power-Method (HardtPrice2014; NicolasEtAl2024)",
        private=True,
        needs="clip_l2; memory for a few d x k matrices; large batches",
        summary="power iterations with noise, several passes over each batch",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"clip_l2": 1.5, "batch_size": 64, "iterations": 2, "oversampling": 1},
        variants=({"clip_l1": 1.0}, {"iterations": 1}, {"iterations": 7, "oversampling": 0}),
        clip={"clip_l2": 2.0},
        useful={"clip_l2": 8.0, "batch_size": 4000},
        mechanisms=2,
        always_learns=False,
    )
    worst_cases = NOISY_POWER_CASES

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if self.kind is RecordKind.MATRIX and self.options.clip_l1 is not None:
            raise ValueError("noisy-power cannot use clip_l1 with records of kind matrix: leave it out")

    @property
    def columns(self) -> int:
        """k + p, at most d."""
        return min(self.k + self.options.oversampling, self.dim)

    def init(self, rng: np.random.Generator) -> NoisyPowerState:
        start = orthonormalise(rng.standard_normal((self.dim, self.columns)))
        zeros = np.zeros((self.dim, self.columns))
        inner = np.zeros((self.k, self.k))
        return NoisyPowerState(0, 0, start, start, zeros, start[:, : self.k].copy(), inner, 0.0)

    def plan_mechanisms(self, state: NoisyPowerState) -> Plan:
        granularity, options = self.preprocessing.granularity, self.options
        parameters = {
            "mechanism": self.info.id,
            **options.model_dump(include={"clip_l2", "clip_l1", "iterations", "oversampling"}),
            "sigma_over_sensitivity": self._multiplier,
        }
        count = self.preprocessing.whole_count(options.batch_size)
        least = -(-self._needed * self.preprocessing.units // granularity) * granularity
        mechanisms = options.iterations * self.privacy.contributions
        charge = self.privacy.charge(mechanisms * gaussian_rho(self._multiplier))
        return Plan(count, min(least, count), granularity, charge, parameters)

    @cached_property
    def _sigma(self) -> float:
        """Noise of every pass, in lattice units: all T c of them compose to (epsilon, delta)."""
        p, passes = self.privacy, self.options.iterations * self.privacy.contributions
        return lattice_sigma(p.epsilon, p.delta, block_sensitivity(self.kind), contributions=passes)

    @property
    def _multiplier(self) -> float:
        return self._sigma / block_sensitivity(self.kind)

    def _radius(self, basis: Floats) -> float:
        """Return rho_t, the bound of |A Q|_F for records within both balls."""
        options = self.options
        radius = options.clip_l2**2
        if options.clip_l1 is not None:
            longest = math.sqrt(float(np.max(np.sum(basis * basis, axis=1))))
            radius = min(radius, options.clip_l2 * options.clip_l1 * longest)
        return radius

    def _noise(self, radius: float) -> float:
        """Return the approximate norm of a sum's noise, sigma (sqrt(d) + sqrt(k + p))."""
        return 2 * radius * self._multiplier * (math.sqrt(self.dim) + math.sqrt(self.columns))

    @cached_property
    def _needed(self) -> int:
        """Transformed records whose k-th eigenvalue, at most beta^2/k each, could exceed the noise.

        At the least radius: a basis that is spread evenly over all coordinates.
        """
        spread = np.full((self.dim, 1), math.sqrt(self.columns / self.dim))
        return math.ceil(self.k * self._noise(self._radius(spread)) / self.options.clip_l2**2)

    def learn_batch(self, state: NoisyPowerState, batch: Batch) -> tuple[NoisyPowerState, int]:
        """Make T passes and add the batch to the average; the charge is the plan's."""
        options = self.options
        own = dict(self.preprocessing)
        records = BoundedRecords(**own, clip_l2=options.clip_l2, clip_l1=options.clip_l1)
        count = len(batch) // self.preprocessing.units
        basis, product, following = state.basis, state.product, state.start
        noise = 0.0
        for _ in range(options.iterations):
            basis = following
            radius = self._radius(basis)
            exact = block_sum(batch, records, basis, radius)
            noisy = gaussian_on_symmetric_space(exact.total, basis, self._sigma)
            product = noisy * (exact.unit / max(count, 1))
            noise = self._noise(radius) / max(count, 1)
            following = orthonormalise(product)
        # The count takes another pass, so it is made for diagnostics only.
        clipped = records.clipped(batch, self.preprocessing) if self.diagnostics else 0
        new = replace(state, basis=basis, product=product)
        values, vectors = self._ritz(basis, product, following)
        if count < self._needed:
            return replace(new, outcome=Outcome.TOO_FEW.value), clipped
        if self.k < self.dim and not values[-1] > noise:
            return replace(new, outcome=Outcome.NO_GAP.value), clipped
        return self._averaged(new, following, values, vectors, noise), clipped

    def _ritz(self, basis: Floats, product: Floats, following: Floats) -> tuple[Floats, Floats]:
        """Return the k largest Ritz values (k,) by absolute value and their vectors (d, k).

        They are of Y Q^T + Q Y^T - Q Q^T Y Q^T in the new basis: the symmetric matrix that the product shows.
        """
        turn, cross = basis.T @ following, following.T @ product
        inner = cross @ turn
        inner = inner + inner.T - turn.T @ (basis.T @ product) @ turn
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        kept = np.argsort(-np.abs(values), kind="stable")[: self.k]
        return np.abs(values[kept]), following @ vectors[:, kept]

    def _averaged(
        self, state: NoisyPowerState, following: Floats, values: Floats, vectors: Floats, noise: float
    ) -> NoisyPowerState:
        """Align one more batch to the average and add it."""
        # At k = d the value may be 0, but the weight must not be.
        weight = max(float(values[-1]) / noise, 1e-3) ** 2
        gain = weight / (state.precision + weight)
        u, _, vt = np.linalg.svd(vectors.T @ state.average)
        turn = u @ vt
        average = (1 - gain) * state.average + gain * (vectors @ turn)
        inner = (1 - gain) * state.inner + gain * (turn.T @ (values[:, None] * turn))
        return replace(
            state,
            start=following,
            average=average,
            inner=(inner + inner.T) / 2,
            precision=state.precision + weight,
            outcome=Outcome.LEARNT.value,
        )

    def learnt_subspace(self, state: NoisyPowerState) -> Subspace:
        """Return the span of the average, rotated to its Ritz vectors."""
        basis = orthonormalise(state.average)
        # QR changes the basis of the average's span, so the inner matrix is rotated with it.
        turn = np.linalg.svd(basis.T @ state.average)
        rotation = turn[0] @ turn[2]
        values, vectors = ritz_pairs(rotation @ state.inner @ rotation.T, self.k)
        return Subspace((basis @ vectors).T, np.maximum(values, 0.0), None)
