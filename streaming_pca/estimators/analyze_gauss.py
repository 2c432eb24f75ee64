"""Analyze Gauss: the noisy covariance."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np

from streaming_pca.estimators.base import Card, Estimator, Plan, State, Subspace
from streaming_pca.estimators.clipping import (
    ClippedBatches,
    PartCosts,
    clipped_plan,
    deal_parts,
    size_range,
)
from streaming_pca.estimators.covariance_memory import CovarianceMemory
from streaming_pca.estimators.covariance_release import covariance_subspace
from streaming_pca.estimators.covariance_route import Choice, CovarianceRoute
from streaming_pca.records import Batch

__all__ = ["AnalyzeGauss", "AnalyzeGaussOptions", "AnalyzeGaussState"]


class AnalyzeGaussOptions(ClippedBatches):
    """Settings of :class:`AnalyzeGauss`."""


@dataclass(frozen=True)
class AnalyzeGaussState(State):
    """What the route works on."""

    covariance: CovarianceMemory


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
    centerings: ClassVar[tuple[str, ...]] = ("augment", *Estimator.centerings)

    def init(self, rng: np.random.Generator) -> AnalyzeGaussState:
        """No records, zero matrix; needs no randomness."""
        memory = CovarianceMemory.nothing(self.preprocessing.output_dim)
        return AnalyzeGaussState(0, 0, memory)

    def _plan(self, state: AnalyzeGaussState) -> Plan:
        """Three disjoint parts."""
        return clipped_plan("analyze-gauss", state, self.preprocessing, self.options, self.costs, {})

    @cached_property
    def costs(self) -> PartCosts:
        """Of a batch's parts."""
        return PartCosts(self.privacy)

    def _update(self, state: AnalyzeGaussState, batch: Batch) -> tuple[AnalyzeGaussState, int]:
        """Add one batch's noisy sum; charged as :meth:`plan` says."""
        records = state.records + len(batch)
        memory, clipped = self._learn(state.covariance, batch, self.options.more_after(records))
        return AnalyzeGaussState(state.batch + 1, records, memory), clipped

    def _learn(self, memory: CovarianceMemory, batch: Batch, more: bool) -> tuple[CovarianceMemory, int]:
        sizes = size_range(self.preprocessing, self.options)
        route = CovarianceRoute(self.k, self.preprocessing, self.costs, sizes)
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
        return covariance_subspace(state.covariance, self.preprocessing, self.k)
