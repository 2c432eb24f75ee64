"""Default estimator: covariance route or block route, chosen by private quantities."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import numpy as np

from streaming_pca.estimators.base import EstimatorInfo, Matrix, Subspace, SuiteOptions
from streaming_pca.estimators.block.block import (
    OVERSAMPLING,
    QUANTILE,
    BlockEstimate,
    BlockUpdate,
    block_subspace,
    learn_block,
)
from streaming_pca.estimators.block.variances import TotalVariance
from streaming_pca.estimators.common.clipped_batches import ClippedBatches
from streaming_pca.estimators.common.composed import ComposedEstimator, ComposedState, Work
from streaming_pca.estimators.common.worst_sums import TrialOf, centred_sum_cases, sum_cases
from streaming_pca.estimators.covariance.radius_choice import Reading
from streaming_pca.estimators.covariance.release import covariance_subspace
from streaming_pca.estimators.covariance.state import MAX_COVARIANCE_DIM, CovarianceEstimate
from streaming_pca.estimators.covariance.update import CovarianceUpdate
from streaming_pca.estimators.worst_cases import BLOCK, COVARIANCE, RADIUS_CASES
from streaming_pca.linalg.subspace import orthonormalise

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
_TO_BLOCK, _TO_COVARIANCE = 0.16, 0.3
"""Ratios R_b/R_c: the block route starts below the first and ends above the second (a hysteresis)."""
_PROBE = 0.25  # price of counting residual norms, over the price of counting record norms
_LEAST_PROBE = 4000
"""Least records, at multiplier 1, for counts of residual norms that are precise enough to decide."""
_MOST_QUANTILE = 0.97
"""Largest quantile for the block route: records that need a larger one are too skewed for it."""

Route = Literal["covariance", "block"]


class AdaptiveOptions(ClippedBatches):
    """Settings of :class:`AdaptivePCA`; all are optional."""

    route: Literal["auto", "covariance", "block"] = "auto"
    """Route to take; "auto" decides from private quantities, again with each look at the radii. With
    a ``clip_radius`` "auto" takes the covariance route."""


@dataclass(frozen=True)
class AdaptiveState(ComposedState):
    """Estimates of both routes, and the route that releases."""

    route: str
    """"covariance" or "block": the route that learnt from the last batch."""
    covariance: CovarianceEstimate
    block: BlockEstimate
    total: TotalVariance


class AdaptivePCA(ComposedEstimator[AdaptiveState, AdaptiveOptions]):
    """Better of two routes, chosen while learning (docs/explanation/default-estimator.md).

    *The covariance route* (:mod:`~streaming_pca.estimators.covariance.update`) has
    noise in proportion to |x|^2. It suits moderate d, slow spectra and skewed
    records. *The block route* (:mod:`~streaming_pca.estimators.block.block`)
    has noise in proportion to |A Q - C|, which is far less where records agree or d is large.

    Each look at the covariance repeats the choice:

    - d > 512: the block route, a public rule (noise and cost of a covariance grow
      with d, of a block with the rank).
    - Else it compares the covariance's radius R_c, which already weighs noise against bias, with the
      residuals' radius R_b at the same quantile, about the leading eigenvectors so far. The noise of an entry
      is R_c against 2 R_b. The block route spends on its rounds and sees less of the spectrum, so the
      estimator takes it where R_b < 0.16 R_c, and leaves it where R_b > 0.3 R_c. Comparing at one quantile
      keeps skewed records off the block route, which does not see its bias.
    - The covariance route if the leading eigenvectors are not resolved, if a quantile
      above 0.97 is needed, or if directions are weighted.

    The block route starts from those eigenvectors, with rounds of growing shares.

    Privacy
    -------
    The argument of every :class:`~streaming_pca.estimators.common.composed.ComposedEstimator`
    (adjacency: replace-one). Released: the counts of records and norms, the noisy mean, the noisy sums of
    either route, the noisy totals, the noisy layers of squares along a basis.
    """

    info = EstimatorInfo(
        id="adaptive",
        source="this project, after DunglerSanyal2026, Algorithm 2, and DworkEtAl2014",
        private=True,
        needs="no tuning; bounds help",
        summary="the better of the covariance and the block route: the default",
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions(
        {"first_batch": 64, "max_batch": 256},
        variants=({"route": "block"}, {"route": "covariance"}, {"clip_quantile": 0.5}, {"half_life": "auto"}),
        clip={"clip_radius": 4.0, "route": "covariance"},
        useful={"first_batch": 4000, "max_batch": 40_000},
    )
    worst_cases: ClassVar[dict[str, TrialOf]] = {
        **centred_sum_cases(COVARIANCE.with_options(route="covariance")),
        "block": sum_cases(BLOCK.with_options(route="block"))["sum"],
        **RADIUS_CASES,
    }

    def init(self, rng: np.random.Generator) -> AdaptiveState:
        basis = orthonormalise(rng.standard_normal((self.dim, min(self.k + OVERSAMPLING, self.dim))))
        return AdaptiveState(0, 0, **self._start(basis))

    def _start(self, basis: Matrix) -> dict[str, Any]:
        """Return the fields of a state that knows nothing of any record."""
        covariance = CovarianceEstimate.empty(0 if self.fixed_route == "block" else self.dim)
        start = {"covariance": covariance, "block": BlockEstimate.start(basis), "total": TotalVariance()}
        return {"route": self.fixed_route or "covariance", **start}

    @property
    def fixed_route(self) -> Route | None:
        """Route fixed by settings or by the public dimension; None where it is chosen."""
        if self.options.route != "auto":
            return self.options.route
        if self.options.clip_radius is not None:
            return "covariance"
        return "block" if self.preprocessing.dim > MAX_COVARIANCE_DIM else None

    def _own_parameters(self, state: AdaptiveState) -> dict[str, Any]:
        return {"route": self.options.route}

    def _learn(self, state: AdaptiveState, work: Work) -> tuple[AdaptiveState, int]:
        if work.restarts:
            state = replace(state, **self._start(state.block.basis))
        learner, measured = _Learner(self, state, work), work.measured
        if self.fixed_route == "block":
            clipped = learner.by_block(None, QUANTILE)
        elif self.options.clip_radius is not None or self.options.clip_quantile is not None:
            clipped = learner.at_fixed_radius()
        else:
            clipped = learner.by_either(self.fixed_route is None)
        state = learner.state
        if learner.route == "covariance":
            weight = None if measured is None else learner.covariance.doubt / measured.doubt
            state, _ = self.average_mean(state, measured, weight)
        new = replace(state, route=learner.route, covariance=learner.covariance)
        return replace(new, block=learner.block, total=learner.total), clipped

    def learnt_subspace(self, state: AdaptiveState) -> Subspace:
        if state.route == "block":
            return block_subspace(state.block, state.total, self.k, state.present, self.mean_offset(state))
        estimate = state.covariance
        offset = self.mean_offset(state, estimate.centre)
        return covariance_subspace(estimate, self.preprocessing, self.k, state.present, offset)


class _Learner:
    """One batch's work on the estimates of a state."""

    def __init__(self, estimator: AdaptivePCA, state: AdaptiveState, work: Work) -> None:
        self.estimator, self.measured, preprocessing = estimator, work.measured, work.preprocessing
        self.before = self.state = state
        self.batch, self.budget, self.options = work.batch, work.budget, estimator.options
        shift, present = estimator.mean_shift(state, work), state.present.latest_share
        self.route, self.covariance = state.route, state.covariance
        self.block, self.total = state.block, state.total
        multiplier, norm_range = estimator.costs.multiplier, estimator.norm_range
        self.covariances = CovarianceUpdate(
            estimator.k, preprocessing, multiplier, norm_range, self.options.half_life, shift, present=present
        )
        self.blocks = BlockUpdate(preprocessing, multiplier, norm_range, present, estimator.k, shift)
        self.future = self.options.future_records(state.records + len(work.batch))
        if not len(self.covariance.weights) and estimator.fixed_route != "block":
            # Settings fixed the block route until now.
            self.covariance = CovarianceEstimate.empty(preprocessing.dim)

    def by_either(self, free: bool) -> int:
        """Learn by the covariance route, or by the block route where that is better.

        ``free``: True where the route is not fixed. Returns the number of clipped records.
        """
        update, batch, budget = self.covariances, self.batch, self.budget
        estimate, look = update.look(self.covariance, batch, budget, self.future)
        start = self._block_start(estimate, look.reading) if free and look is not None else None
        stays = look is None and self.route == "block"
        if stays or (start is not None and self._prefers_block(start, estimate)):
            self.covariance = estimate
            return self.by_block(None if self.route == "block" else start, self._quantile(estimate))
        if look is not None and not estimate.records:
            estimate, look = update.weigh(estimate, look, batch, budget, self.future)
        self.route = "covariance"
        self.covariance, clipped = update.sum(estimate, batch, budget, look)
        return clipped

    def at_fixed_radius(self) -> int:
        """Learn by the covariance route at a set radius or quantile; returns clipped records."""
        self.route = "covariance"
        self.covariance, clipped = self.covariances.at_fixed_radius(
            self.covariance, self.batch, self.budget, self.options
        )
        return clipped

    def by_block(self, start: BlockEstimate | None, quantile: float) -> int:
        """Run rounds of the block route, from ``start`` if given; returns clipped records."""
        self.route, before = "block", self.block if start is None else start
        of_batch = (self.batch, self.budget, self.options, quantile, self._average_mean)
        self.block, self.total, clipped = learn_block(self.blocks, before, self.total, *of_batch)
        return clipped

    def _average_mean(self, weight: float | None) -> tuple[float, float | None]:
        """Average the batch's mean; see :func:`learn_block`."""
        self.state, gain = self.estimator.average_mean(self.before, self.measured, weight)
        return self.estimator.mean_offset(self.state).square, gain

    def _quantile(self, estimate: CovarianceEstimate) -> float:
        """Return the residuals' quantile: the record norms' quantile, at most 0.97."""
        return min(self._inside(estimate), _MOST_QUANTILE)

    def _inside(self, estimate: CovarianceEstimate) -> float:
        """Return the share of records within the chosen radius, at least the median's 0.5.

        For records of nearly equal norms it is 0.5, as the median's radius holds nearly all of them.
        """
        if estimate.above[0] <= 1 - _MOST_QUANTILE:
            return QUANTILE
        return max(1 - float(estimate.above[estimate.chosen]), QUANTILE)

    def _prefers_block(self, start: BlockEstimate, estimate: CovarianceEstimate) -> bool:
        """Return whether the block route has far less noise, compared at one quantile."""
        if len(self.batch) < _LEAST_PROBE * self.blocks.multiplier * self.blocks.preprocessing.units:
            return False
        if self._inside(estimate) > _MOST_QUANTILE:
            return False
        block = self.block if self.route == "block" else start
        radius, *_ = self.blocks.radius(block, self.batch, self._quantile(estimate), self.budget, _PROBE)
        limit = _TO_COVARIANCE if self.route == "block" else _TO_BLOCK
        return radius < limit * float(estimate.radii[estimate.chosen])

    def _block_start(self, estimate: CovarianceEstimate, reading: Reading) -> BlockEstimate | None:
        """Return leading eigenvectors as a basis, with their products; None if not resolved."""
        columns, slot = self.block.basis.shape[1], estimate.chosen
        if estimate.weighted or not reading.resolved(self.estimator.k)[slot]:
            return None
        moment = estimate.moment(slot)
        basis = np.ascontiguousarray(reading.eigenvectors[slot][:, :columns])
        offset = self.covariances.shift.before
        block = replace(BlockEstimate.start(basis), product=moment @ basis, offset=offset)
        # The clip has changed these products, so they serve as a centre only.
        rest = float(np.trace(moment)) - float(np.trace(basis.T @ block.product))
        return replace(block, level=max(rest / max(len(moment) - columns, 1), 0.0))
