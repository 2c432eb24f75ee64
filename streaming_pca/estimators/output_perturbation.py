"""Output perturbation on windows: one batch's projector, with noise for its eigengap."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator
from scipy.special import ndtri

from streaming_pca.estimators.base import Card, Estimator, Options, Plan, State, Subspace
from streaming_pca.estimators.contributions import covariance_sum, covariance_unit
from streaming_pca.estimators.eigengap import GapBounds, eigenpairs
from streaming_pca.estimators.outcome import Outcome
from streaming_pca.linalg.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs
from streaming_pca.privacy.calibration import lattice_sigma, pure_epsilon, require_room
from streaming_pca.privacy.mechanisms import (
    gaussian_on_symmetric,
    gaussian_on_vector,
    laplace_on_vector,
    laplace_scale,
)
from streaming_pca.privacy.noise import grid_exponent
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.records import Batch

__all__ = ["OutputPerturbation", "OutputPerturbationOptions", "OutputPerturbationState"]

Matrix = NDArray[np.float64]

_PROJECTOR_UNITS = 2.0**30
"""Lattice units of a projector to one Delta."""

_FAILURE_SHARE = 0.1
"""Of delta: the probability that the noisy gap, less its quantile, is above the true one."""


class OutputPerturbationOptions(Options):
    """Settings of :class:`OutputPerturbation`."""

    clip_radius: float = Field(ge=1e-70, le=1e70)
    """R = beta^2: records are scaled down to a trace (matrices: a Frobenius norm) of at most
    this; in squared units of the records, public. No default can be right."""
    batch_size: int = Field(default=65_536, ge=2, le=MAX_RECORDS)
    """Records of a batch, whose eigengap is tested and whose projector is released: the
    data set of the printed algorithm. Noise falls as 1 over its size."""
    gap_share: float = Field(default=0.2, gt=0, lt=1)
    """Share of the promise, as squares of the Gaussian-DP parameter, for the noisy eigengap."""
    variance_share: float = Field(default=0.05, ge=0, lt=1)
    """The same for the explained variances; 0 for none: then they are 0, and the components
    are in no order."""
    gap_noise: Literal["gaussian", "laplace"] = "gaussian"
    """Law of the eigengap's noise. "laplace" is the printed one; a bound that it passes with
    so small a probability as delta is three or four times as far away."""

    @model_validator(mode="after")
    def _check(self) -> OutputPerturbationOptions:
        if self.gap_share + self.variance_share > 0.95 + 1e-9:
            raise ValueError("gap_share and variance_share must leave 0.05 for the projector")
        return self

    @property
    def largest_batch(self) -> int:
        """The most records that any plan asks for."""
        return self.batch_size


@dataclass(frozen=True)
class OutputPerturbationState(State):
    """The averaged noisy projector, and what the last batch said."""

    projector: Matrix
    """(d, d): noisy projectors of all batches, averaged by precision."""
    precision: float
    """Sum of the batches' 1/Delta^2."""
    basis: Matrix
    """(d, k), orthonormal columns: leading eigenvectors of ``projector``."""
    inner: Matrix
    """(k, k) symmetric, noisy: ``basis^T A basis`` as the last batch that was learnt from saw it."""
    gap: float | None = None
    """Noisy eigengap of the last batch's mean."""
    sensitivity: float | None = None
    """Delta of the last batch: what its projector's noise was calibrated to; None where it has none."""


@dataclass(frozen=True)
class _Multipliers:
    """Noise scales over sensitivities; of Laplace noise an epsilon."""

    gap: float
    gap_epsilon: float
    projector: float
    variances: float | None


class OutputPerturbation(Estimator[OutputPerturbationState, OutputPerturbationOptions]):
    """DP-Gauss-2 of 003 (appendix F, lines 2186-2197; Dwork et al. 2014, Algorithm 2), in each batch.

    =============================================  ===============================================
    X = sum of A_i min(1, beta^2/Tr A_i)           ``covariance_sum``, exact on a lattice
    g_k = lambda_k - lambda_{k+1} + z              ``_noisy_gap``
    W = V_k V_k^T + E, E of scale Delta_2          ``_noisy_projector``
    eigendecomposition of W (line 2195)            ``ritz_pairs``
    =============================================  ===============================================

    Mends
    -----
    - Propose, test, release. Printed: z is drawn again until g_k > 0, which is not
      private, and the noise is calibrated to |g_k - ...|, which may be above the
      true gap. Here z is drawn once; less its quantile of 1 - delta_1 it is a lower
      bound of the gap but for a probability of delta_1, which is charged. Where the
      bound is too small the outcome is "no-gap", or "too-few-records" where no
      batch of that size could have passed; nothing is learnt, the charge stays.
      Too small: where the spectral norm of E, about Delta z sqrt(2 d), would reach
      the projector's own eigengap of 1.
    - Sensitivities, of replace-one and from the proof below; printed: beta^2 for
      records added or removed, and constants that the proof there does not give.
    - z Gaussian (``gap_noise``), so that all that a record meets composes exactly.
    - E isotropic, off-diagonal variance half of the diagonal's; on a lattice.
    - k = d: the projector is the identity, whatever the records: no gap is tested,
      and all that is paid goes to the variances.
    - Explained variances: the paper has none. A share pays for a noisy V^T X V,
      V the released subspace, which turns it to its Ritz vectors too.
    - Streaming. Each batch is a data set of its own. Noisy projectors of batches
      are averaged by 1/Delta^2: a post-processing.

    Privacy
    -------
    Replace-one: X' = X + D, D symmetric. Records of kind factor have contributions
    positive semidefinite with trace at most R, so |D|_F <= sqrt(2) R =: F; those of
    kind matrix have |D|_F <= 2 R =: F.

    *Gap and projector.* How far they move, floats included, is in
    :mod:`~streaming_pca.estimators.eigengap`: the gap by sqrt(2) F, the projector by
    Delta(l) for any lower bound l of the larger of the two gaps, Delta falling.

    *Both orders of neighbours.* The noisy gap, less its quantile, is l. Let B be
    the values l > max(g, g'). On X, l is above g with probability at most delta_1,
    on X' above g': so B has a probability of at most delta_1 on either. Outside B
    the projector's noise, calibrated to Delta(l), is enough. Replace, for these
    two inputs, what follows l in B by a constant: that mechanism is a composition
    of Gaussian ones at their multipliers, adaptively, and is the true one but for
    B. So if it is (epsilon, delta_2)-DP, P(S) <= P(S outside B) + delta_1 <=
    e^epsilon P'(S) + delta_2 + delta_1, and the same with P and P' exchanged.

    *Lattice.* P is rounded to multiples of Delta 2^-30; its entries are below 2^52 of
    these, so two neighbours gain at most 2 d of them by the roundings. Errors of P
    and V in floats are in Delta: 2 u_d. The noisy V^T X V has sensitivity F but
    for floats. Both are Gaussian mechanisms on symmetric matrices.

    *Composition.* Gap, projector and variances have multipliers z/sqrt(share), so
    they are 1/z-GDP together, and sqrt(c)/z-GDP in the c batches that a unit may enter;
    Laplace noise has the epsilon of
    :func:`~streaming_pca.privacy.calibration.pure_epsilon`. z is the least for
    (epsilon, 0.9 delta), c delta_1 = 0.1 delta. No rho is claimed: B is outside of any.
    """

    card = Card(
        id="output-perturbation",
        name="OutputPerturbation",
        source="003 appendix F, DP-Gauss-2 (Dwork et al. 2014, Algorithm 2), mended",
        adjacency="replace-one",
        private=True,
        needs="clip_radius; memory for a d x d matrix; large batches with a large eigengap",
        summary="noise on the projector, calibrated to a tested eigengap",
    )
    options_type: ClassVar[type[OutputPerturbationOptions]] = OutputPerturbationOptions
    state_type: ClassVar[type[OutputPerturbationState]] = OutputPerturbationState

    @property
    def _privacy_of_mean(self) -> PrivacyParameters:
        """Without what a user's other batches may need for delta_1."""
        return self.privacy.model_copy(update={"delta": self._delta_of_gaussians})

    def init(self, rng: np.random.Generator) -> OutputPerturbationState:
        """No projector yet; a uniformly random basis."""
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        if self.k == self.dim:
            basis = np.eye(self.dim)
        zeros = np.zeros((self.dim, self.dim))
        return OutputPerturbationState(0, 0, zeros, 0.0, basis, np.zeros((self.k, self.k)))

    def _plan(self, state: OutputPerturbationState) -> Plan:
        """One window; its gap, projector and variances compose."""
        granularity, options = self.preprocessing.granularity, self.options
        z = self._multipliers
        bounds = self._bounds(options.batch_size // self.preprocessing.units)
        # More noise than int64 holds is refused here, before a batch is charged.
        greatest = max(z.gap * bounds.gap, (z.variances or 0.0) * bounds.inner(self.k))
        require_room(2 * greatest, self.privacy.epsilon)
        parameters: dict[str, Any] = {
            "mechanism": self.card.id,
            "clip_radius": options.clip_radius,
            "gap_share": options.gap_share,
            "variance_share": options.variance_share,
            "gap_noise": options.gap_noise,
            "gap_failure_delta": self._failure,
            "projector_sigma_over_sensitivity": z.projector,
            "variance_sigma_over_sensitivity": z.variances,
        }
        multipliers = [z.projector, z.projector if z.variances is None else z.variances]
        if options.gap_noise == "laplace":
            parameters["gap_epsilon"] = z.gap_epsilon
        else:
            parameters["gap_sigma_over_sensitivity"] = z.gap
            multipliers.append(z.gap)
        parameters["sigma_over_sensitivity"] = min(multipliers)
        count = max(options.batch_size // granularity * granularity, granularity)
        least = -(-self._needed * self.preprocessing.units // granularity) * granularity
        return Plan(count, min(least, count), granularity, self.privacy.charge(None), parameters)

    # Calibration: public numbers.

    @cached_property
    def _failure(self) -> float:
        """delta_1."""
        return _FAILURE_SHARE * self.privacy.delta / self.privacy.contributions * (1 - 1e-12)

    @property
    def _delta_of_gaussians(self) -> float:
        """What delta_1 leaves."""
        return self.privacy.delta * (1 - _FAILURE_SHARE) * (1 - 1e-12)

    @property
    def _projector_sensitivity(self) -> float:
        return _PROJECTOR_UNITS + 2.0 * self.dim

    @cached_property
    def _multipliers(self) -> _Multipliers:
        sigma = lattice_sigma(
            self.privacy.epsilon,
            self._delta_of_gaussians,
            self._projector_sensitivity,
            contributions=self.privacy.contributions,
        )
        # Up, by more than the quotients and the roots of the shares round down.
        whole = sigma / self._projector_sensitivity * (1 + 1e-14)
        options = self.options
        if self.k == self.dim:
            # Nothing else is asked; the projector's is what a plan names where nothing is.
            return _Multipliers(whole, pure_epsilon(whole), whole, whole if options.variance_share else None)
        gap = whole / math.sqrt(options.gap_share)
        rest = 1 - options.gap_share - options.variance_share
        variances = whole / math.sqrt(options.variance_share) if options.variance_share else None
        return _Multipliers(gap, pure_epsilon(gap), whole / math.sqrt(rest), variances)

    @property
    def _most(self) -> float:
        """The largest Delta that is of use: where the noise is not above the projector's own gap."""
        return min(1.0, 1 / (self._multipliers.projector * math.sqrt(2 * self.dim)))

    @cached_property
    def _needed(self) -> int:
        """Transformed records of a batch whose gap, at most R (sqrt(2) R) each, could pass the test."""
        if self.k == self.dim:
            return 1
        bounds = self._bounds(1)
        _, quantile = self._gap_noise(bounds)
        needed = bounds.gap_of_distance(self._most) + quantile + bounds.gap_slack
        return math.ceil(needed / bounds.reach)

    def _bounds(self, count: int) -> GapBounds:
        """Of a batch; the same scales for all but larger ones than were planned."""
        planned = self.options.batch_size // self.preprocessing.units
        return GapBounds(self.kind, self.dim, count, planned)

    def _gap_noise(self, bounds: GapBounds) -> tuple[float, int]:
        """Scale of the gap's noise, and its quantile of 1 - delta_1, in lattice units."""
        failure, z = self._failure, self._multipliers
        if self.options.gap_noise == "laplace":
            scale = laplace_scale(bounds.gap, z.gap_epsilon)
            # P(N > q) = exp(-(q + 1)/scale)/(1 + exp(-1/scale)).
            far = scale * (-math.log(failure) - math.log1p(math.exp(-1 / scale)))
            return scale, max(math.ceil(far * (1 + 1e-12)), 0)
        sigma = z.gap * bounds.gap * (1 + 1e-15)
        # Rounding to the grid adds at most half a step.
        far = sigma * -float(ndtri(failure)) * (1 + 1e-9)
        return sigma, math.ceil(far + 2.0 ** (grid_exponent(sigma) - 1))

    # One batch.

    def _update(self, state: OutputPerturbationState, batch: Batch) -> tuple[OutputPerturbationState, int]:
        """Test the gap, and learn the projector if it passes; charged as :meth:`plan` says."""
        exact = covariance_sum(batch, self.preprocessing, self.options.clip_radius)
        count = len(batch) // self.preprocessing.units
        bounds = self._bounds(count)
        mean_unit = covariance_unit(self.kind, self.options.clip_radius) / max(count, 1)
        new = replace(
            state,
            batch=state.batch + 1,
            records=state.records + len(batch),
            outcome=Outcome.LEARNT.value,
            gap=None,
            sensitivity=None,
        )
        if self.k < self.dim:
            values, vectors = eigenpairs(exact.total)
            projector = vectors[:, : self.k] @ vectors[:, : self.k].T
            noisy, lower = self._noisy_gap(float(values[self.k - 1] - values[self.k]), bounds)
            new = replace(new, gap=noisy * mean_unit)
            delta = bounds.projector_distance(lower)
            if not delta <= self._most:
                short = count < self._needed
                outcome = Outcome.TOO_FEW if short else Outcome.NO_GAP
                return replace(new, outcome=outcome.value), exact.clipped
            released = self._noisy_projector(projector, delta)
            weight = delta**-2
            precision = state.precision + weight
            average = state.projector + (released - state.projector) * (weight / precision)
            _, basis = ritz_pairs(average, self.k)
            new = replace(
                new,
                projector=average,
                precision=precision,
                basis=basis,
                sensitivity=delta,
            )
        inner = self._noisy_variances(exact.total, new.basis, bounds)
        if inner is not None:
            new = replace(new, inner=inner * mean_unit)
        return new, exact.clipped

    def _noisy_gap(self, gap: float, bounds: GapBounds) -> tuple[int, int]:
        """The noisy eigengap, and a lower bound of the true one but for delta_1; in lattice units."""
        scale, quantile = self._gap_noise(bounds)
        whole = np.array([round(gap)], dtype=np.int64)
        if self.options.gap_noise == "laplace":
            noisy = int(laplace_on_vector(whole, scale)[0])
        else:
            noisy = int(gaussian_on_vector(whole, scale)[0])
        # No gap of so many records is above their reach.
        return noisy, min(noisy - quantile - math.ceil(bounds.gap_slack), math.floor(bounds.reach))

    def _noisy_projector(self, projector: Matrix, delta: float) -> Matrix:
        unit = delta / _PROJECTOR_UNITS
        # The same bits above and below the diagonal.
        symmetric = (projector + projector.T) / 2
        whole = np.rint(symmetric / unit).astype(np.int64)
        sigma = self._multipliers.projector * self._projector_sensitivity * (1 + 1e-15)
        return gaussian_on_symmetric(whole, sigma) * unit

    def _noisy_variances(
        self, total: NDArray[np.int64], basis: Matrix, bounds: GapBounds
    ) -> NDArray[np.float64] | None:
        """V^T X V in lattice units; None where nothing pays for it."""
        z = self._multipliers.variances
        if z is None:
            return None
        seen = basis.T @ total.astype(np.float64) @ basis
        whole = np.rint((seen + seen.T) / 2).astype(np.int64)
        return gaussian_on_symmetric(whole, z * bounds.inner(self.k) * (1 + 1e-15))

    def _release(self, state: OutputPerturbationState) -> Subspace:
        """The leading eigenvectors of the averaged projector, turned to the last batch's Ritz vectors."""
        values, turn = ritz_pairs(state.inner, self.k)
        return Subspace((state.basis @ turn).T, np.maximum(values, 0.0), None)
