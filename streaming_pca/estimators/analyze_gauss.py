"""Analyze Gauss: the noisy covariance."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from streaming_pca.estimators.base import Card, Estimator, Plan, State, Subspace
from streaming_pca.estimators.batching import GrowingBatches
from streaming_pca.estimators.contributions import covariance_sensitivity, covariance_sum, record_sizes
from streaming_pca.linalg.subspace import ritz_pairs, stable_signs
from streaming_pca.privacy.calibration import gaussian_rho, lattice_sigma, pure_epsilon
from streaming_pca.privacy.mechanisms import gaussian_on_symmetric, private_quantile
from streaming_pca.privacy.parameters import Charge
from streaming_pca.records import Batch

__all__ = ["AnalyzeGauss", "AnalyzeGaussOptions", "AnalyzeGaussState"]

_STEPS_PER_OCTAVE = 8
_LEAST_RADIUS, _GREATEST_RADIUS = 1e-200, 1e200


class AnalyzeGaussOptions(GrowingBatches):
    """Settings of :class:`AnalyzeGauss`, besides those of its batches."""

    clip_quantile: float = Field(default=0.99, gt=0, lt=1)
    """The private quantile of the records' traces that becomes the clip radius."""
    clip_radius: float | None = Field(default=None, ge=_LEAST_RADIUS, le=_GREATEST_RADIUS)
    """A public radius instead: no record is spent on finding one."""
    radius_range: tuple[float, float] = (2.0**-40, 2.0**60)
    """Low and high: where the radius is looked for when no ``bounds`` tell; public."""

    @model_validator(mode="after")
    def _check_radius(self) -> AnalyzeGaussOptions:
        low, high = self.radius_range
        if not _LEAST_RADIUS <= low < high <= _GREATEST_RADIUS:
            raise ValueError(f"radius_range must rise, between {_LEAST_RADIUS:g} and {_GREATEST_RADIUS:g}")
        return self


@dataclass(frozen=True)
class AnalyzeGaussState(State):
    """Sum of the noisy batches, and the last release's rows (for their signs)."""

    total: NDArray[np.float64]
    """(d', d') sum of the noisy sums, in data units; d' = d + 1 when augmented."""
    weight: int
    """Transformed records behind it."""
    components: NDArray[np.float64] | None


class AnalyzeGauss(Estimator[AnalyzeGaussState, AnalyzeGaussOptions]):
    """DP-Gauss-1 of 003 (appendix F, lines 2172-2184; Dwork et al. 2014, Algorithm 1), mended.

    Printed: rescale each A_i to trace at most beta^2, add a symmetric Gaussian
    matrix of scale beta^2 sqrt(2 ln(1.25/delta))/epsilon, take eigenvectors.

    Mends
    -----
    - Sensitivity. Printed: beta^2. Under replace-one two PSD matrices of trace
      at most R are up to sqrt(2) R apart; indefinite records are clipped in
      Frobenius norm and are up to 2 R apart.
    - Isotropic noise: off-diagonal variance half of the diagonal's, which costs
      the same and is what Frobenius sensitivity pays for.
    - The analytic Gaussian mechanism, on exact integer sums.
    - beta. Printed: from the unknown spectrum. Here a private quantile of the
      traces, on records of the batch that enter nothing else.
    - Streaming: disjoint batches, each charged (epsilon, delta), averaged by
      counts (drift hurts precision weights).

    Privacy
    -------
    Replace-one; each record is in one batch and there in one of two mechanisms:
    the quantile (epsilon-DP) or the sum ((epsilon, delta)-DP), so the batch's
    cost is the larger of the two and every record's is (epsilon, delta). A user
    may enter c batches: then both are mu-GDP for the mu of which c compose to
    (epsilon, delta), whichever part the user's records meet
    (:func:`~streaming_pca.privacy.calibration.pure_epsilon`).
    What is released: the radius and the noisy matrix; all else follows from them.
    """

    card = Card(
        id="analyze-gauss",
        name="AnalyzeGauss",
        source="003 appendix F, DP-Gauss-1 (Dwork et al. 2014, Algorithm 1), mended",
        adjacency="replace-one",
        private=True,
        needs="memory for a d x d matrix; bounds help",
        summary="noisy covariance with a private clip radius",
    )
    options_type: ClassVar[type[AnalyzeGaussOptions]] = AnalyzeGaussOptions
    state_type: ClassVar[type[AnalyzeGaussState]] = AnalyzeGaussState

    def init(self, rng: np.random.Generator) -> AnalyzeGaussState:
        """No records, zero matrix; needs no randomness."""
        d = self.preprocessing.output_dim
        return AnalyzeGaussState(batch=0, records=0, total=np.zeros((d, d)), weight=0, components=None)

    def _plan(self, state: AnalyzeGaussState) -> Plan:
        """Two disjoint parts, for the radius and for the sum."""
        granularity = self.preprocessing.granularity
        count = max(self.options.count(state.batch, state.records) // granularity * granularity, granularity)
        # Fewer could not resolve the radius, and every batch brings noise of its own.
        least = math.ceil(max(400, 1000 / self._radius_epsilon) / granularity) * granularity
        return Plan(count, min(least, count), granularity, self._charge(), self._parameters())

    def _parameters(self) -> dict[str, Any]:
        return {
            "mechanism": "analyze-gauss",
            "clip_quantile": self.options.clip_quantile,
            "clip_radius": self.options.clip_radius,
            "radius_range": list(self._radius_range()),
            "sigma_over_sensitivity": self._multiplier,
        }

    def _sigma(self) -> float:
        """Noise scale on the diagonal, in lattice units: the same in every batch."""
        d = self.preprocessing.output_dim
        return lattice_sigma(
            self.privacy.epsilon,
            self.privacy.delta,
            covariance_sensitivity(self.kind),
            float(d * d),
            contributions=self.privacy.contributions,
        )

    @property
    def _multiplier(self) -> float:
        """Of the sum's noise: its scale over the sensitivity."""
        return self._sigma() / covariance_sensitivity(self.kind)

    @property
    def _radius_epsilon(self) -> float:
        """Of one batch's quantile: what a record in its part may cost."""
        if self.privacy.contributions == 1:
            return self.privacy.epsilon
        # In any mix of batches the quantile must cost no more than the sum.
        return min(pure_epsilon(self._multiplier), self.privacy.epsilon)

    def _charge(self) -> Charge:
        batches = self.privacy.contributions
        total = self.privacy.charge(batches * gaussian_rho(self._multiplier))
        if self.options.clip_radius is not None:
            return total
        epsilon = Fraction(repr(self._radius_epsilon))
        return total | Charge(epsilon=0, delta=0, rho=batches * epsilon * epsilon / 2)

    def _radius_range(self) -> tuple[float, float]:
        bound = self.preprocessing.largest_squared_norm
        if bound is None:
            return self.options.radius_range
        high = min(max(bound, _LEAST_RADIUS * 2.0**30), _GREATEST_RADIUS)
        return high * 2.0**-30, high

    def _quantile_records(self, count: int) -> int:
        """Records spent on the radius: enough to resolve the quantile, at most a fifth."""
        if self.options.clip_radius is not None:
            return 0
        needed = 25 / (self._radius_epsilon * (1 - self.options.clip_quantile))
        least = 200 / self._radius_epsilon
        units = int(min(max(needed, least, 0.02 * count), 0.2 * count))
        granularity = self.preprocessing.granularity
        return max(units // granularity * granularity, granularity)

    def _radius(self, part: Batch) -> float:
        if self.options.clip_radius is not None:
            return self.options.clip_radius
        sizes = record_sizes(part, self.preprocessing)
        low, high = self._radius_range()
        steps = math.ceil(math.log2(high / low) * _STEPS_PER_OCTAVE)
        candidates = high * 2.0 ** (np.arange(-steps, 1) / _STEPS_PER_OCTAVE)
        # A rank closer to the top than this is lost in the mechanism's own noise,
        # which would then pick a cell far above every record.
        resolved = 1 - 25 / (self._radius_epsilon * max(len(sizes), 1))
        quantile = max(min(self.options.clip_quantile, resolved), 0.5)
        return private_quantile(sizes, candidates, quantile, self._radius_epsilon)

    def _update(self, state: AnalyzeGaussState, batch: Batch) -> tuple[AnalyzeGaussState, int]:
        """Add one batch's noisy sum; charged as :meth:`plan` says."""
        spent = min(self._quantile_records(len(batch)), len(batch))
        part, rest = batch.split([spent, len(batch) - spent])
        radius = self._radius(part)
        exact = covariance_sum(rest, self.preprocessing, radius)
        noisy = gaussian_on_symmetric(exact.total, self._sigma()) * exact.unit
        new = AnalyzeGaussState(
            batch=state.batch + 1,
            records=state.records + len(batch),
            total=state.total + noisy,
            weight=state.weight + len(rest) // self.preprocessing.units,
            components=self._subspace(state).components if state.weight else None,
        )
        return new, exact.clipped

    def release(self, state: AnalyzeGaussState) -> Subspace:
        """Leading eigenvectors of the (centred) noisy covariance."""
        return self._subspace(state)

    def _subspace(self, state: AnalyzeGaussState) -> Subspace:
        covariance, mean = self._covariance(state)
        values, vectors = ritz_pairs(covariance, self.k)
        components = stable_signs(np.ascontiguousarray(vectors.T), state.components)
        return Subspace(components, np.maximum(values, 0.0), mean)

    def _covariance(self, state: AnalyzeGaussState) -> tuple[NDArray[np.float64], NDArray[np.float64] | None]:
        moment = state.total / max(state.weight, 1)
        if self.preprocessing.centering != "augment":
            return moment, None
        d = self.dim
        # What is left of the constant 1 after clipping is the records' mean
        # weight; dividing by it makes mean and covariance those of the weighted
        # records. Below a half it is noise: better not to centre at all.
        kept = float(moment[d, d])
        if kept < 0.5:
            return moment[:d, :d], np.zeros(d)
        mean = moment[:d, d] / kept
        return moment[:d, :d] / kept - np.outer(mean, mean), mean
