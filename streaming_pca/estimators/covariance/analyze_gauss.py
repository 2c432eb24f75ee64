"""Analyze Gauss: leading eigenvectors of a noisy covariance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np

from streaming_pca.estimators.base import EstimatorInfo, Subspace, SuiteOptions
from streaming_pca.estimators.common.clipped_batches import ClippedBatches
from streaming_pca.estimators.common.composed import ComposedEstimator, ComposedState, Work
from streaming_pca.estimators.covariance.release import covariance_subspace
from streaming_pca.estimators.covariance.state import CovarianceEstimate
from streaming_pca.estimators.covariance.update import CovarianceUpdate
from streaming_pca.estimators.worst_cases import ANALYZE_GAUSS_CASES


class AnalyzeGaussOptions(ClippedBatches):
    """Settings of :class:`AnalyzeGauss`."""


@dataclass(frozen=True)
class AnalyzeGaussState(ComposedState):
    covariance: CovarianceEstimate


class AnalyzeGauss(ComposedEstimator[AnalyzeGaussState, AnalyzeGaussOptions]):
    """DP-Gauss-1 [DunglerSanyal2026, appendix F; DworkEtAl2014, Algorithm 1], corrected.

    =============================================  ================================================
    rescale each A_i to trace at most beta^2       ``CovarianceUpdate.look``: choice of the radius
    add a symmetric Gaussian matrix of scale       ``CovarianceUpdate.sum``
    beta^2 sqrt(2 ln(1.25/delta))/epsilon
    leading eigenvectors                           ``covariance_subspace``
    =============================================  ================================================

    Deviations from the paper
    -------------------------
    - Sensitivity. Printed: beta^2. Under replace-one two PSD matrices of trace at most R are up to sqrt(2) R
      apart; indefinite records are clipped in Frobenius norm and are up to 2 R apart.
    - Isotropic noise: off-diagonal variance is half of the diagonal's. A Frobenius
      sensitivity requires only this.
    - The analytic Gaussian mechanism, on exact integer sums.
    - beta. Printed: from the unknown spectrum. Here: the radius with the least estimated error, from a look
      at all radii with a small share of the budget (:mod:`~streaming_pca.estimators.covariance.update`), or a
      quantile of the norms, or a public radius. Unlike the default it does not weight directions.
    - Streaming: disjoint batches, each charged (epsilon, delta), averaged by
      counts (weights by precision suffer from drift), or with a half-life.

    Privacy
    -------
    The argument of every :class:`~streaming_pca.estimators.common.composed.ComposedEstimator`
    (adjacency: replace-one). Released: the counts of records and norms, the noisy mean and the noisy
    matrices; everything else follows from them.
    """

    info = EstimatorInfo(
        id="analyze-gauss",
        source="DunglerSanyal2026, appendix F, DP-Gauss-1 (DworkEtAl2014, Algorithm 1), corrected",
        private=True,
        needs="memory for a d x d matrix; bounds help",
        summary="noisy covariance with a private clip radius",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"first_batch": 64, "max_batch": 256},
        variants=({"clip_radius": 3.0}, {"clip_quantile": 0.5}, {"clip_quantile": 0.8}),
        clip={"clip_radius": 4.0},
        useful={"first_batch": 4000, "clip_radius": 64.0, "max_batch": 40_000},
    )
    worst_cases = ANALYZE_GAUSS_CASES

    def init(self, rng: np.random.Generator) -> AnalyzeGaussState:
        return AnalyzeGaussState(0, 0, CovarianceEstimate.empty(self.dim))

    def _learn(self, state: AnalyzeGaussState, work: Work) -> tuple[AnalyzeGaussState, int]:
        options, estimate = self.options, state.covariance
        batch, budget, measured = work.batch, work.budget, work.measured
        if work.restarts:
            estimate = CovarianceEstimate.empty(self.dim)
        about = (self.costs.multiplier, self.norm_range, options.half_life, self.mean_shift(state, work))
        present = state.present.latest_share
        update = CovarianceUpdate(self.k, work.preprocessing, *about, weighted=False, present=present)
        if options.clip_radius is None and options.clip_quantile is None:
            future = options.future_records(state.records + len(batch))
            estimate, clipped = update.learn(estimate, batch, budget, future)
        else:
            estimate, clipped = update.at_fixed_radius(estimate, batch, budget, options)
        weight = None if measured is None else estimate.doubt / measured.doubt
        state, _ = self.average_mean(state, measured, weight)
        return replace(state, covariance=estimate), clipped

    def learnt_subspace(self, state: AnalyzeGaussState) -> Subspace:
        offset = self.mean_offset(state, state.covariance.centre)
        return covariance_subspace(state.covariance, self.preprocessing, self.k, state.present, offset)
