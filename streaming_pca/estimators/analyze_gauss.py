"""Analyze Gauss: the noisy covariance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import Card, Estimator, Plan, State, Subspace
from streaming_pca.estimators.clipping import (
    ClippedBatches,
    PartCosts,
    clip_parameters,
    deal_parts,
    size_range,
)
from streaming_pca.estimators.contributions import covariance_sensitivity
from streaming_pca.estimators.covariance_release import covariance_subspace
from streaming_pca.estimators.covariance_route import (
    Choice,
    CovarianceMemory,
    CovarianceRoute,
    covariance_sigma,
)
from streaming_pca.records import Batch

__all__ = ["AnalyzeGauss", "AnalyzeGaussOptions", "AnalyzeGaussState"]


class AnalyzeGaussOptions(ClippedBatches):
    """Settings of :class:`AnalyzeGauss`."""


@dataclass(frozen=True)
class AnalyzeGaussState(State):
    """A :class:`~streaming_pca.estimators.covariance_route.CovarianceMemory`, and the last components."""

    moment: NDArray[np.float64]
    noise: float
    weight: float
    shape: NDArray[np.float64]
    shape_noise: float
    shape_weight: float
    radius: float
    kept: float
    components: NDArray[np.float64] | None

    @property
    def memory(self) -> CovarianceMemory:
        """What the route works on."""
        return CovarianceMemory(
            self.moment,
            self.noise,
            self.weight,
            self.shape,
            self.shape_noise,
            self.shape_weight,
            self.radius,
            self.kept,
        )


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
    - beta. Printed: from the unknown spectrum. Here chosen by what each radius
      would cost, from two small parts of the batch that enter nothing else:
      :mod:`~streaming_pca.estimators.covariance_route` (or a quantile of the sizes,
      or a public radius).
    - Streaming: disjoint batches, each charged (epsilon, delta), averaged by
      counts (drift hurts precision weights), or with a half-life.

    Privacy
    -------
    Replace-one; each record is in one batch and there in one of three parts, a
    histogram of sizes or one of two Gaussian sums:
    :class:`~streaming_pca.estimators.clipping.PartCosts`.
    What is released: the sizes' distribution and the noisy matrices; all else
    follows from them.
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
        memory = CovarianceMemory.nothing(self.preprocessing.output_dim)
        return AnalyzeGaussState(0, 0, **vars(memory), components=None)

    def _plan(self, state: AnalyzeGaussState) -> Plan:
        """Three disjoint parts."""
        granularity = self.preprocessing.granularity
        costs = self._costs()
        count = max(self.options.count(state.batch, state.records) // granularity * granularity, granularity)
        least = min(costs.least(granularity), count)
        charge = costs.charge(with_sizes=self.options.clip_radius is None)
        return Plan(count, least, granularity, charge, self._parameters(costs))

    def _parameters(self, costs: PartCosts) -> dict[str, Any]:
        sizes = size_range(self.preprocessing, self.options)
        return {
            "mechanism": "analyze-gauss",
            **clip_parameters(self.options, sizes),
            "sigma_over_sensitivity": costs.multiplier,
        }

    def _costs(self) -> PartCosts:
        sigma = covariance_sigma(self.privacy, self.preprocessing)
        return PartCosts(self.privacy, sigma / covariance_sensitivity(self.kind))

    def _update(self, state: AnalyzeGaussState, batch: Batch) -> tuple[AnalyzeGaussState, int]:
        """Add one batch's noisy sum; charged as :meth:`plan` says."""
        more = self.options.more_after(state.records + len(batch))
        memory, clipped = self._learn(state.memory, batch, more)
        new = AnalyzeGaussState(
            batch=state.batch + 1,
            records=state.records + len(batch),
            **vars(memory),
            components=self.release(state).components if state.weight else None,
        )
        return new, clipped

    def _learn(self, memory: CovarianceMemory, batch: Batch, more: bool) -> tuple[CovarianceMemory, int]:
        sizes = size_range(self.preprocessing, self.options)
        costs = self._costs()
        route = CovarianceRoute(
            self.k, self.privacy, self.preprocessing, costs.size_epsilon, sizes, costs.multiplier
        )
        options, granularity = self.options, self.preprocessing.granularity
        if options.clip_radius is not None:
            return route.learn(memory, batch, Choice(options.clip_radius), options.half_life)
        chosen = options.clip_quantile is None
        wanted = [route.size_records(len(batch)), route.shape_records(len(batch)) if chosen else 0]
        looked, shaped, rest = deal_parts(batch, wanted, granularity)
        found = route.sizes(looked)
        if options.clip_quantile is not None:
            return route.learn(
                memory, rest, route.at_quantile(found, options.clip_quantile), options.half_life
            )
        memory, pilot = route.pilot(memory, found, shaped, options.half_life)
        choice = route.choose(memory, pilot, len(rest) // self.preprocessing.units, more)
        return route.learn(memory, rest, choice, options.half_life)

    def _release(self, state: AnalyzeGaussState) -> Subspace:
        """Leading eigenvectors of the (centred) noisy covariance."""
        return covariance_subspace(state.memory, self.preprocessing, self.k, state.components)
