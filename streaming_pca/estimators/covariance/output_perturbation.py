"""Output perturbation: a batch's projector, with noise calibrated to its tested eigengap."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import scipy
from numpy.typing import NDArray
from pydantic import Field, model_validator

from streaming_pca.data.batch import Batch
from streaming_pca.data.records import RecordKind
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
from streaming_pca.estimators.common.clipped_sums import (
    SQRT2_UP,
    covariance_sensitivity,
    covariance_sum,
    covariance_unit,
)
from streaming_pca.estimators.worst_cases import OUTPUT_PERTURBATION_CASES
from streaming_pca.kernels.lattice import MATRIX_RADIUS, MAX_RECORDS, RADIUS
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs
from streaming_pca.privacy.calibration.multipliers import lattice_sigma, require_room
from streaming_pca.privacy.mechanisms import gaussian_on_symmetric, gaussian_on_vector
from streaming_pca.privacy.noise import grid_exponent


class GapBounds:
    """Public bounds for the sum of ``count`` records, in lattice units, rounded up.

    ``count`` counts transformed records, null ones included. Float errors are bounded for ``at_most`` records
    if that is more, so that their bounds do not vary with the batch. Proof: docs/explanation/proofs/sums.md.
    """

    def __init__(self, kind: RecordKind, dim: int, count: int, at_most: int = 0) -> None:
        of_factors = kind is RecordKind.FACTOR
        radius = float(RADIUS) ** 2 if of_factors else float(MATRIX_RADIUS)
        self.relative = 256.0 * dim**2 * 2.0**-53
        """u_d: bound on the effect of float errors on a projector."""
        # The gap of an indefinite matrix lies between two eigenvalues that share one norm.
        self.reach = count * radius * (1.0 if of_factors else SQRT2_UP)
        """Largest possible eigengap of the sum."""
        self.eta = self.relative * max(count, at_most) * radius
        """Bound on the effect of float errors on the sum, in Frobenius norm."""
        self.exact = covariance_sensitivity(kind)
        self.sum = (self.exact + 2 * self.eta) * (1 + 1e-15)
        """G: sensitivity of the sum, float errors included."""
        # One eta for two differences of eigenvalues, one unit for rounding them.
        self.gap = (SQRT2_UP * self.sum + self.eta + 1) * (1 + 1e-15)
        """Sensitivity of the eigengap, rounded to an integer."""
        self.gap_slack = self.eta + 1
        """Largest excess of that integer over the eigengap of the sum as computed in floats."""

    def inner(self, k: int) -> float:
        """Return the sensitivity of V^T X V, rounded to integers, for k orthonormal float columns."""
        return (self.exact * (1 + 4 * self.relative) + 2 * self.eta + k) * (1 + 1e-15)

    def projector_distance(self, gap: int) -> float:
        """Return Delta, the largest distance of neighbours' projectors if one has such a gap.

        In Frobenius norm, float errors included; inf where no bound is known.
        """
        ratio = SQRT2_UP * self.sum / max(gap, 1) * (1 + 1e-15)
        if not ratio < 1:
            return math.inf
        return (-math.log1p(-ratio) / math.sqrt(2) + 2 * self.relative) * (1 + 1e-12)

    def gap_of_distance(self, distance: float) -> float:
        """Return the least gap whose Delta is at most ``distance``."""
        return -SQRT2_UP * self.sum / math.expm1(-math.sqrt(2) * distance)


def eigenpairs(total: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Compute eigenvalues (d,) of a symmetric sum, decreasing, and eigenvectors (d, d)."""
    try:
        values, vectors = np.linalg.eigh(total.astype(np.float64))
    except np.linalg.LinAlgError:
        # LAPACK is not known to fail on finite input, and an error would reveal private data.
        return np.zeros(len(total)), np.eye(len(total))
    return values[::-1], vectors[:, ::-1]


Matrix = NDArray[np.float64]

_PROJECTOR_UNITS = 2.0**30  # lattice units of a projector to one Delta

_FAILURE_SHARE = 0.1
"""Share of delta for the event that the noisy gap, less its quantile, exceeds the true one."""


class OutputPerturbationOptions(Options):
    """Settings of :class:`OutputPerturbation`."""

    clip_radius: float = Field(ge=1e-70, le=1e70)
    """R = beta^2: records are scaled down to a trace (matrices: a Frobenius norm) of at most
    this; in squared units of the records, public. No default fits all data."""
    batch_size: int = Field(default=65_536, ge=2, le=MAX_RECORDS)
    """Records of a batch, whose eigengap is tested and whose projector is released: the
    data set of the printed algorithm. Noise is proportional to 1 over its size."""
    gap_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the budget, as squares of the Gaussian-DP parameter, for the noisy eigengap."""
    variance_share: float = Field(default=0.05, ge=0, lt=1)
    """Share of the budget for the explained variances; with 0 they are 0, and the components
    are unordered."""

    @model_validator(mode="after")
    def _check(self) -> OutputPerturbationOptions:
        if self.gap_share + self.variance_share > 0.95 + 1e-9:
            raise ValueError("gap_share and variance_share must leave 0.05 for the projector")
        return self


@dataclass(frozen=True)
class OutputPerturbationState(State):
    """Averaged noisy projector, and the last batch's answers."""

    projector: Matrix
    """(d, d): noisy projectors of all batches, averaged by precision."""
    precision: float
    """Sum of the batches' 1/Delta^2."""
    basis: Matrix
    """(d, k), orthonormal columns: leading eigenvectors of ``projector``."""
    inner: Matrix
    """(k, k) symmetric, noisy: ``basis^T A basis`` for the last batch with a variance answer."""
    gap: float | None = None
    """Noisy eigengap of the last batch's mean."""
    sensitivity: float | None = None
    """Delta of the last batch, which sets the noise of its projector; None without a projector."""


@dataclass(frozen=True)
class _Multipliers:
    gap: float
    projector: float
    variances: float | None


class OutputPerturbation(Estimator[OutputPerturbationState, OutputPerturbationOptions]):
    """DP-Gauss-2 [DunglerSanyal2026, appendix F; DworkEtAl2014, Algorithm 2], in each batch.

    =============================================  ===============================================
    X = sum of A_i min(1, beta^2/Tr A_i)           ``covariance_sum``, exact on a lattice
    g_k = lambda_k - lambda_{k+1} + z              ``_noisy_gap``
    W = V_k V_k^T + E, E of scale Delta_2          ``_noisy_projector``
    eigendecomposition of W                        ``ritz_pairs``
    =============================================  ===============================================

    Deviations from the paper
    -------------------------
    - Propose, test, release. Printed: z is drawn again until g_k > 0, which is not private, and the noise is
      calibrated to |g_k - ...|, which may be above the true gap. Here z is drawn once. The noisy gap less the
      quantile of 1 - delta_1 of z is a lower bound of the gap except with probability delta_1, which is
      charged. Where the bound is too small the outcome is "no-gap", or "too-few-records" where no batch of
      that size could have passed; nothing is learnt, the charge stays. Too small: where the spectral norm of
      E, about Delta z sqrt(2 d), would reach the projector's own eigengap of 1.
    - Sensitivities: of replace-one, with a proof. Printed: beta^2 for
      records added or removed, and constants that the paper's proof does not give.
    - z is Gaussian, not Laplace, so that all mechanisms on a record compose exactly. Its quantile at
      a probability as small as delta is a third or a quarter as large.
    - E is isotropic, with off-diagonal variance half of the diagonal's, and on a lattice.
    - k = d: the projector is the identity for all records. No gap is tested,
      and the whole budget goes to the variances.
    - Explained variances: not in the paper. A share pays for a noisy V^T X V,
      V the released subspace, which also turns V to its Ritz vectors.
    - Streaming: each batch is a separate data set. Noisy projectors of batches
      are averaged by 1/Delta^2, a post-processing.

    Privacy
    -------
    Adjacency: replace-one. Released: the noisy gap, the noisy projector and the noisy
    V^T X V. Sensitivities in Frobenius norm: the sum X moves by F = sqrt(2) R (factors) or
    2 R (matrices), the gap by sqrt(2) F, the projector by Delta(l) for any lower bound l of the
    larger of the two gaps, V^T X V by F. Outside an event of probability delta_1, l is such a
    bound, and the three answers are Gaussian mechanisms that compose adaptively. z is the least
    multiplier for (epsilon, 0.9 delta), and c delta_1 = 0.1 delta for the c batches that a unit
    may enter. No rho is claimed, as the excluded event has no finite rho.
    Proof: docs/explanation/proofs/sums.md.
    """

    info = EstimatorInfo(
        id="output-perturbation",
        source="DunglerSanyal2026, appendix F, DP-Gauss-2 (DworkEtAl2014, Algorithm 2), corrected",
        private=True,
        needs="clip_radius; memory for a d x d matrix; large batches with a large eigengap",
        summary="noise on the projector, calibrated to a tested eigengap",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"clip_radius": 3.0, "batch_size": 4096, "gap_share": 0.5},
        clip={"clip_radius": 4.0},
        useful={"clip_radius": 64.0, "batch_size": 4000},
        mechanisms=3,
        has_rho=False,
        always_learns=False,
    )
    worst_cases = OUTPUT_PERTURBATION_CASES

    def init(self, rng: np.random.Generator) -> OutputPerturbationState:
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        if self.k == self.dim:
            basis = np.eye(self.dim)
        zeros = np.zeros((self.dim, self.dim))
        return OutputPerturbationState(0, 0, zeros, 0.0, basis, np.zeros((self.k, self.k)))

    def plan_mechanisms(self, state: OutputPerturbationState) -> Plan:
        granularity, options = self.preprocessing.granularity, self.options
        z = self._multipliers
        bounds = self._bounds(options.batch_size // self.preprocessing.units)
        # Refuse more noise than int64 holds before a batch is charged.
        greatest = max(z.gap * bounds.gap, (z.variances or 0.0) * bounds.inner(self.k))
        require_room(2 * greatest, self.privacy.epsilon)
        parameters: dict[str, Any] = {
            "mechanism": self.info.id,
            **options.model_dump(include={"clip_radius", "gap_share", "variance_share"}),
            "gap_noise": "gaussian",
            "gap_failure_delta": self._failure,
            "projector_sigma_over_sensitivity": z.projector,
            "variance_sigma_over_sensitivity": z.variances,
            "gap_sigma_over_sensitivity": z.gap,
            "sigma_over_sensitivity": min(z.gap, z.projector, z.variances or math.inf),
        }
        count = self.preprocessing.whole_count(options.batch_size)
        least = -(-self._needed * self.preprocessing.units // granularity) * granularity
        return Plan(count, min(least, count), granularity, self.privacy.charge(None), parameters)

    @cached_property
    def _failure(self) -> float:
        """delta_1."""
        return _FAILURE_SHARE * self.privacy.delta / self.privacy.contributions * (1 - 1e-12)

    @property
    def _projector_sensitivity(self) -> float:
        return _PROJECTOR_UNITS + 2.0 * self.dim

    @cached_property
    def _multipliers(self) -> _Multipliers:
        p, sensitivity = self.privacy, self._projector_sensitivity
        # What delta_1 leaves to the Gaussian mechanisms.
        delta = p.delta * (1 - _FAILURE_SHARE) * (1 - 1e-12)
        sigma = lattice_sigma(p.epsilon, delta, sensitivity, contributions=p.contributions)
        # Rounded up by more than the quotients and the roots of the shares lose.
        whole = sigma / sensitivity * (1 + 1e-14)
        options = self.options
        if self.k == self.dim:
            # Only the variances are measured; the plan names the projector's multiplier in any case.
            return _Multipliers(whole, whole, whole if options.variance_share else None)
        gap = whole / math.sqrt(options.gap_share)
        rest = 1 - options.gap_share - options.variance_share
        variances = whole / math.sqrt(options.variance_share) if options.variance_share else None
        return _Multipliers(gap, whole / math.sqrt(rest), variances)

    @property
    def _most(self) -> float:
        """Largest useful Delta: its noise does not exceed the projector's own gap."""
        return min(1.0, 1 / (self._multipliers.projector * math.sqrt(2 * self.dim)))

    @cached_property
    def _needed(self) -> int:
        """Least transformed records of a batch whose gap could pass the test.

        A record adds at most R (sqrt(2) R for matrices) to the gap.
        """
        if self.k == self.dim:
            return 1
        bounds = self._bounds(1)
        _, quantile = self._gap_noise(bounds)
        needed = bounds.gap_of_distance(self._most) + quantile + bounds.gap_slack
        return math.ceil(needed / bounds.reach)

    def _bounds(self, count: int) -> GapBounds:
        """Return the bounds of a batch; the scales differ only above the planned size."""
        planned = self.options.batch_size // self.preprocessing.units
        return GapBounds(self.kind, self.dim, count, planned)

    def _gap_noise(self, bounds: GapBounds) -> tuple[float, int]:
        """Return scale and 1 - delta_1 quantile of the gap's noise, in lattice units."""
        sigma = self._multipliers.gap * bounds.gap * (1 + 1e-15)
        # Rounding to the grid adds at most half a step.
        far = sigma * -float(scipy.special.ndtri(self._failure)) * (1 + 1e-9)
        return sigma, math.ceil(far + 2.0 ** (grid_exponent(sigma) - 1))

    def learn_batch(
        self, state: OutputPerturbationState, batch: Batch
    ) -> tuple[OutputPerturbationState, int]:
        """Test the gap, and learn the projector if it passes, at the charge of :meth:`plan`."""
        exact = covariance_sum(batch, self.preprocessing, self.options.clip_radius)
        count = len(batch) // self.preprocessing.units
        bounds = self._bounds(count)
        mean_unit = covariance_unit(self.kind, self.options.clip_radius) / max(count, 1)
        new = replace(state, outcome=Outcome.LEARNT.value, gap=None, sensitivity=None)
        if self.k < self.dim:
            values, vectors = eigenpairs(exact.total)
            projector = vectors[:, : self.k] @ vectors[:, : self.k].T
            noisy, lower = self._noisy_gap(float(values[self.k - 1] - values[self.k]), bounds)
            new = replace(new, gap=noisy * mean_unit)
            delta = bounds.projector_distance(lower)
            if not delta <= self._most:
                outcome = Outcome.TOO_FEW if count < self._needed else Outcome.NO_GAP
                return replace(new, outcome=outcome.value), exact.clipped
            released = self._noisy_projector(projector, delta)
            weight = delta**-2
            precision = state.precision + weight
            average = state.projector + (released - state.projector) * (weight / precision)
            _, basis = ritz_pairs(average, self.k)
            new = replace(new, projector=average, precision=precision, basis=basis, sensitivity=delta)
        inner = self._noisy_variances(exact.total, new.basis, bounds)
        if inner is not None:
            new = replace(new, inner=inner * mean_unit)
        return new, exact.clipped

    def _noisy_gap(self, gap: float, bounds: GapBounds) -> tuple[int, int]:
        """Return the noisy eigengap, and a lower bound of the true one, in lattice units.

        The bound fails with probability at most delta_1.
        """
        scale, quantile = self._gap_noise(bounds)
        noisy = int(gaussian_on_vector(np.array([round(gap)], dtype=np.int64), scale)[0])
        # No true gap exceeds the reach, so the bound need not either.
        return noisy, min(noisy - quantile - math.ceil(bounds.gap_slack), math.floor(bounds.reach))

    def _noisy_projector(self, projector: Matrix, delta: float) -> Matrix:
        unit = delta / _PROJECTOR_UNITS
        # Rounding of the product may differ above and below the diagonal.
        whole = np.rint((projector + projector.T) / 2 / unit).astype(np.int64)
        sigma = self._multipliers.projector * self._projector_sensitivity * (1 + 1e-15)
        return gaussian_on_symmetric(whole, sigma) * unit

    def _noisy_variances(
        self, total: NDArray[np.int64], basis: Matrix, bounds: GapBounds
    ) -> NDArray[np.float64] | None:
        """Measure V^T X V in lattice units; None without a share for it."""
        z = self._multipliers.variances
        if z is None:
            return None
        seen = basis.T @ total.astype(np.float64) @ basis
        whole = np.rint((seen + seen.T) / 2).astype(np.int64)
        return gaussian_on_symmetric(whole, z * bounds.inner(self.k) * (1 + 1e-15))

    def learnt_subspace(self, state: OutputPerturbationState) -> Subspace:
        """Return the averaged projector's leading eigenvectors, turned to the last Ritz vectors."""
        values, turn = ritz_pairs(state.inner, self.k)
        return Subspace((state.basis @ turn).T, np.maximum(values, 0.0), None)
