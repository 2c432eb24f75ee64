"""Base of estimators whose mechanisms share one budget and all of a batch's records."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.base import Estimator, Plan, State, Subspace
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.centre import (
    LATER_SHARE,
    coarse_to_fine,
    last_share,
    mean_limits,
    mean_start,
    refine,
    resolves_radius,
)
from streaming_pca.estimators.common.clipped_batches import (
    GREATEST_RADIUS,
    LEAST_RADIUS,
    BatchCosts,
    ClippedBatches,
)
from streaming_pca.estimators.common.forgetting import batch_doubt, kept_share
from streaming_pca.estimators.common.present import ClampedShare, PresentShare, learn_clamped, learn_present

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ComposedState(State):
    """State with the shares of non-null records and of records that bounds change."""

    present: PresentShare = field(default_factory=PresentShare, kw_only=True)
    clamped: ClampedShare = field(default_factory=ClampedShare, kw_only=True)
    mean_doubt: float = field(default=0.0, kw_only=True)
    """Variance that weighs the next round of the mean, as for sums; 0 where only counts are known."""


@dataclass(frozen=True)
class _MeanRound:
    """A batch's measurement of the mean, not yet averaged with earlier ones."""

    mean: Vector
    seen: bool
    """True if it differs from the anchor by more than its noise."""
    noise: float
    records: float
    """Records that are not null."""
    doubt: float


S = TypeVar("S", bound=ComposedState)
O = TypeVar("O", bound=ClippedBatches)

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
RESTART_RATIO = 4.0
"""Least ratio of a batch's records to all earlier ones for a restart: few earlier records could only
spoil the estimate."""
_TRUSTED = 5.0
"""Bound on a round's gain, in ratios of the mean's noise deviation to the round's: a noisy round moves
the mean little."""
_MOVED = 0.1
"""Square of the way from anchor to mean, over the last variance, above which it could be a component."""


class ComposedEstimator(Estimator[S, O]):
    """Base of the default estimator and of its two routes.

    Privacy
    -------
    Adjacency: replace-one. Released: noisy answers of Gaussian mechanisms. A batch is charged
    for one Gaussian of multiplier z. One record changes each mechanism's sum by its sensitivity
    at most, and the mechanisms take shares of that Gaussian's budget that add up to 1 at most
    (:class:`~streaming_pca.estimators.common.budget.Budget`). The choice of mechanisms, shares
    and radii depends on earlier outputs alone. The first of them count the records that are not null, and
    those with values that bounds change (:mod:`~streaming_pca.estimators.common.present`).
    Proof: docs/explanation/budget.md.
    """

    centerings: ClassVar[tuple[str, ...]] = ("auto", "pairs", "none")

    @cached_property
    def costs(self) -> BatchCosts:
        """Costs of a batch."""
        return BatchCosts(self.privacy)

    @cached_property
    def norm_range(self) -> tuple[float, float]:
        """Public range of the records' norms (of |x|^2 for vectors)."""
        bound = self.preprocessing.largest_squared_norm
        if bound is None:
            return self.options.radius_range
        high = min(max(bound, LEAST_RADIUS * 2.0**30), GREATEST_RADIUS)
        return high * 2.0**-30, high

    def plan_mechanisms(self, state: S) -> Plan:
        """Plan a batch, whose mechanisms all share one budget."""
        options, granularity = self.options, self.preprocessing.granularity
        least = self.costs.least(granularity)
        wanted = options.count(state.batch, state.records)
        if options.n_records is None and not options.model_fields_set & {"first_batch", "max_batch"}:
            # By default a batch has at least the records that a radius needs.
            wanted = max(wanted, least)
        count = self.preprocessing.whole_count(wanted)
        parameters = {
            "mechanism": self.info.id,
            "clip_quantile": options.clip_quantile,
            "clip_radius": options.clip_radius,
            "radius_range": list(self.norm_range),
            "half_life": options.half_life,
            "n_records": options.n_records,
            **self._own_parameters(state),
            "sigma_over_sensitivity": self.costs.multiplier,
        }
        return Plan(count, min(least, count), granularity, self.costs.charge, parameters)

    def _own_parameters(self, state: S) -> dict[str, Any]:
        """Return further parameters for the reservation."""
        return {}

    def learn_batch(self, state: S, batch: Batch) -> tuple[S, int]:
        budget, preprocessing = self.costs.budget(), self.preprocessing
        present, clamped = state.present, state.clamped
        if self._restarts(state, batch):
            present, clamped = PresentShare(), ClampedShare()
        kept = kept_share(self.options.half_life, len(batch) / preprocessing.units)
        present = learn_present(present, batch, preprocessing.units > 1, budget, kept)
        clamped = learn_clamped(clamped, batch, preprocessing, budget, kept)
        state = replace(state, present=present, clamped=clamped, counts=None)
        measured = None
        if preprocessing.centering == "auto":
            state, measured = self._centred(state, batch, budget)
            preprocessing = preprocessing.about(self._anchor(state))
        new, clipped = self._learn(state, preprocessing, batch, budget)
        if measured is not None:
            new = self._with_mean(new, measured)
        return replace(new, batch=state.batch + 1, records=state.records + len(batch)), clipped

    def release(self, state: S) -> Subspace:
        """Return the current subspace, with a doubt where bounds change many records: post-processing."""
        subspace = super().release(state)
        if not state.clamped.is_large:
            return subspace
        return replace(subspace, known_warnings=(*subspace.known_warnings, "clamped"))

    def _restarts(self, state: S, batch: Batch) -> bool:
        """Return whether to forget earlier batches, which had too few records to find a radius."""
        is_short = 0 < RESTART_RATIO * state.records <= len(batch)
        return is_short and self.options.clip_radius is None

    @abstractmethod
    def _learn(self, state: S, preprocessing: Preprocessing, batch: Batch, budget: Budget) -> tuple[S, int]:
        """Learn from records about their centre, with the rest of the budget.

        Returns the state with new estimates, and the number of clipped records; the caller counts the batch.
        """

    def _anchor(self, state: S) -> Vector:
        """Return the centre of all sums: the first mean that was found, or the start of the search."""
        return mean_start(self.preprocessing) if state.anchor is None else state.anchor

    def _sum_doubt(self, state: S) -> float | None:
        """Return the variance that weighs the sums after a batch; None if they have other weights."""
        return None

    def _centred(self, state: S, batch: Batch, budget: Budget) -> tuple[S, _MeanRound | None]:
        """Measure the mean; set it and the anchor unless earlier batches found them.

        All batches take their sums about the anchor. With the weights of the sums, the covariance about the
        mean is their average less (mean - anchor)(mean - anchor)^T, however the mean has moved. So a later
        measurement is averaged once the sum's weight is known.
        """
        start = mean_start(self.preprocessing)
        low, high = self.norm_range
        radii = (math.sqrt(low), math.sqrt(high))
        lower, upper = mean_limits(self.preprocessing)
        count, multiplier, here = len(batch), self.costs.multiplier, state.present.latest_share
        if not resolves_radius(count, multiplier):
            return state, None
        # A mean over the non-null records, like the sums that it corrects.
        present = count * here
        own = batch_doubt(self.preprocessing.output_dim, max(present, 1.0), multiplier)
        if present >= RESTART_RATIO * state.mean_weight:
            last = last_share(self.dim, count, multiplier)
            found, known, noise = coarse_to_fine(batch, self.preprocessing, start, radii, budget, last, here)
            # A mean hidden by noise counts as the start, which need not be 0.
            mean = np.clip(found, lower, upper) if known or start.any() else None
            state = replace(state, mean=mean, mean_weight=present, mean_noise=noise)
            return replace(state, anchor=mean, mean_doubt=own), None
        # In every batch: measured less often than the sums, a mean that moves would not fit them.
        anchor = self._anchor(state)
        step, seen, fresh = refine(batch, self.preprocessing, anchor, radii, budget, LATER_SHARE, here)
        return state, _MeanRound(anchor + step, seen, fresh, present, own)

    def _doubt_moved(self, subspace: Subspace, state: S) -> Subspace:
        """Doubt a release whose sums contain the way of a mean that has moved: post-processing.

        For sums that are not corrected by (mean - anchor)(mean - anchor)^T.
        """
        if state.mean is None or not len(subspace.explained_variance):
            return subspace
        scale = self.preprocessing.scale
        way = (state.mean - self._anchor(state)) * (1.0 if scale is None else np.asarray(scale))
        noise = len(way) * (state.mean_noise or 0.0)
        if float(way @ way) - 2 * noise <= _MOVED * float(np.min(subspace.explained_variance)):
            return subspace
        found = dict.fromkeys((*subspace.known_warnings, "unsettled"))
        return replace(subspace, angle_bound=math.pi / 2, known_warnings=tuple(found))

    def _with_mean(self, state: S, measured: _MeanRound) -> S:
        """Average a measurement into the running mean, which is None while noise explains it."""
        lower, upper = mean_limits(self.preprocessing)
        before = self._anchor(state) if state.mean is None else state.mean
        present, own, seen, fresh = measured.records, measured.doubt, measured.seen, measured.noise
        weight, known_noise = state.mean_weight + present, state.mean_noise or 0.0
        earlier = state.mean_doubt / kept_share(self.options.half_life, present)
        share = earlier / (earlier + own) if earlier else present / weight
        if self.options.half_life == "auto" and (doubt := self._sum_doubt(state)) is not None:
            # Drift of the sums is known only after they are taken.
            share = min(doubt / own, 1.0)
        state = replace(state, mean_doubt=share * own)
        if not seen and state.mean is None:
            return replace(state, mean_weight=weight)
        # Rounds weigh like their sums, but a round with a far too large radius must move the mean little.
        gain = min(share, _TRUSTED * math.sqrt(known_noise / fresh) if fresh > 0 else 1.0)
        if seen and (state.mean is None or known_noise > _TRUSTED**2 * fresh):
            # Batches that hardly saw a mean count by their noise.
            gain = max(gain, known_noise / max(known_noise + fresh, 1e-300))
        with np.errstate(all="ignore"):
            moved = np.clip(before + gain * (measured.mean - before), lower, upper)
        noise = (1 - gain) ** 2 * known_noise + gain**2 * fresh
        return replace(state, mean=moved, mean_weight=weight, mean_noise=noise)
