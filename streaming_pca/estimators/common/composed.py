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
    is_beyond_noise,
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
    least_batch,
)
from streaming_pca.estimators.common.forgetting import batch_doubt, kept_share
from streaming_pca.estimators.common.mean_offset import MeanOffset, MeanShift
from streaming_pca.estimators.common.present import ClampedShare, PresentShare, learn_clamped, learn_present

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class ComposedState(State):
    """State with the shares of non-null records and of records that bounds change."""

    present: PresentShare = field(default_factory=PresentShare, kw_only=True)
    clamped: ClampedShare = field(default_factory=ClampedShare, kw_only=True)
    mean_doubt: float = field(default=0.0, kw_only=True)
    """Variance that weighs the next round of the mean, as for sums; 0 where only counts are known."""
    latest_mean: Vector | None = field(default=None, kw_only=True)
    """(d,) mean of the last batch, the next one's centre; None where it is the anchor up to noise."""
    path: Vector | None = field(default=None, kw_only=True)
    """(d,) centres of the sums, from the anchor and in scaled units, each times its mean's noise variance and
    its squared weight, added up; None for zeros."""
    path_noise: float = field(default=0.0, kw_only=True)  # the same sum of their squared lengths
    mean_radius: float = field(default=0.0, kw_only=True)  # clip radius of the last mean, scaled; or 0
    dropped: float = field(default=0.0, kw_only=True)  # earlier records that a restart has forgotten
    mean_square: float = field(default=0.0, kw_only=True)
    """Mean of the batches' squared offsets from the anchor beyond noise, weighted like the mean; scaled."""


@dataclass(frozen=True)
class MeanRound:
    """A batch's measurement of the mean, not yet averaged with earlier ones."""

    centre: Vector  # (d,) centre of the batch's sums
    mean: Vector
    seen: bool  # True if it differs from the anchor by more than its noise
    noise: float
    records: float  # records that are not null
    doubt: float
    kept: float  # weight that the half-life leaves to earlier rounds


@dataclass(frozen=True)
class Work:
    """Batch to learn from, with the rest of its budget."""

    batch: Batch
    preprocessing: Preprocessing  # transformation of its records, about their centre
    budget: Budget
    measured: MeanRound | None
    restarts: bool  # True if earlier batches are forgotten


S = TypeVar("S", bound=ComposedState)
O = TypeVar("O", bound=ClippedBatches)

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
_MOST_ROWS = 2.0**16
"""Rows of a record, of norms at the bounds, that the search for a radius takes into account."""
_DROPPED = 0.02
"""Share of the records that a restart may drop unnoticed: but for outliers, it moves variances as little."""
_TRUSTED = 5.0
"""Bound on a round's gain, in ratios of the mean's noise deviation to the round's: a noisy round moves
the mean little."""


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
        return BatchCosts(self.privacy)

    @cached_property
    def norm_range(self) -> tuple[float, float]:
        """Public range of the records' norms (of |x|^2 for vectors)."""
        bound = self.preprocessing.largest_squared_norm
        if bound is None:
            return self.options.radius_range
        high = min(max(bound, LEAST_RADIUS * 2.0**30), GREATEST_RADIUS)
        # The bound is one row's, and a record may have several.
        most_rows = 1.0 if self.preprocessing.centering == "pairs" else _MOST_ROWS
        return high * 2.0**-30, min(high * most_rows, GREATEST_RADIUS)

    def plan_mechanisms(self, state: S) -> Plan:
        options, granularity = self.options, self.preprocessing.granularity
        least = least_batch(self.costs.multiplier, granularity)
        wanted = options.at_least(options.count(state.batch, state.records), least)
        count = self.preprocessing.whole_count(wanted)
        parameters = {
            "mechanism": self.info.id,
            **options.model_dump(include={"clip_quantile", "clip_radius", "half_life", "n_records"}),
            "radius_range": list(self.norm_range),
            **self._own_parameters(state),
            "sigma_over_sensitivity": self.costs.multiplier,
        }
        return Plan(count, min(least, count), granularity, self.costs.charge, parameters)

    def _own_parameters(self, state: S) -> dict[str, Any]:
        """Return further parameters for the reservation."""
        return {}

    def learn_batch(self, state: S, batch: Batch) -> tuple[S, int]:
        budget, preprocessing = self.costs.budget(), self.preprocessing
        before, restarts = state, self._restarts(state)
        is_first_mean = preprocessing.centering == "auto" and state.records > 0 and not state.mean_weight
        is_first_mean &= resolves_radius(len(batch), self.costs.multiplier)
        known, clamped = state.present, state.clamped
        if restarts or is_first_mean:
            known, clamped = PresentShare(), ClampedShare()
        kept = kept_share(self.options.half_life, len(batch))
        present = learn_present(known, batch, preprocessing.units > 1, budget, kept)
        if present is None:
            return replace(state, counts=None), 0
        clamped = learn_clamped(clamped, batch, preprocessing, budget, kept)
        rows = float(batch.rows_per_record)
        if state.records and not (restarts or is_first_mean):
            rows = (state.records * state.rows + len(batch) * rows) / (state.records + len(batch))
        state = replace(state, present=present, clamped=clamped, counts=None, rows=rows)
        measured = None
        if preprocessing.centering == "auto":
            state, measured = self._centred(state, batch, budget, restarts)
            if is_first_mean and not restarts:
                # Earlier sums are about the start: they fit no other mean.
                restarts = not np.array_equal(self._anchor(state), mean_start(preprocessing))
                if not restarts:
                    present = replace(before.present.joined(state.present, kept), latest=present.latest)
                    clamped = before.clamped.joined(state.clamped, kept)
                    rows = (before.records * before.rows + len(batch) * rows) / (before.records + len(batch))
                    state = replace(state, present=present, clamped=clamped, rows=rows)
            preprocessing = preprocessing.about(self._anchor(state) if measured is None else measured.centre)
        state = replace(state, dropped=float(state.records) if restarts else kept * state.dropped)
        return self._learn(state, Work(batch, preprocessing, budget, measured, restarts))

    def release(self, state: S) -> Subspace:
        """Return the current subspace, with doubts about bounds and dropped records: post-processing."""
        subspace = super().release(state)
        found = {"clamped": state.clamped.is_large, "restarted": state.dropped > _DROPPED * state.records}
        doubts = (name for name, is_true in found.items() if is_true)
        return replace(subspace, known_warnings=(*subspace.known_warnings, *doubts))

    def _restarts(self, state: S) -> bool:
        """Return whether to forget earlier batches: their median is far from the records."""
        if self.options.clip_radius is not None or self.options.clip_quantile is not None:
            return False
        covariance = getattr(state, "covariance", None)
        return covariance is not None and covariance.is_lost(self.norm_range[0])

    @abstractmethod
    def _learn(self, state: S, work: Work) -> tuple[S, int]:
        """Return the state, ``measured`` averaged in, and clipped records."""

    def _anchor(self, state: S) -> Vector:
        """Return the centre of all sums: the first mean that was found, or the start of the search."""
        return mean_start(self.preprocessing) if state.anchor is None else state.anchor

    def _scaled(self, vector: Vector) -> Vector:
        """Return a vector in units of the data in scaled units."""
        scale = self.preprocessing.scale
        with np.errstate(all="ignore"):
            return vector * (1.0 if scale is None else np.asarray(scale))

    def mean_offset(self, state: S, centre: Vector | None = None) -> MeanOffset:
        """Return the offset of a record's mean rows from a centre, by default the anchor; scaled."""
        return self._offset(state, centre).of_rows(state.rows)

    def _offset(self, state: S, centre: Vector | None = None) -> MeanOffset:
        """Return the mean's offset from the centre of the sums, in scaled units; by default the anchor."""
        centre = self._scaled(self._anchor(state)) if centre is None else centre
        noise = state.mean_noise or 0.0
        if state.mean is None:
            return MeanOffset(np.zeros(len(centre)), noise, radius=state.mean_radius)
        paths = (state.path_noise, state.path)
        offset = MeanOffset.between(self._scaled(state.mean), centre, noise, paths)
        return replace(offset, scatter=max(state.mean_square - offset.square, 0.0), radius=state.mean_radius)

    def mean_shift(self, state: S, work: Work) -> MeanShift:
        """Return the shift of a batch's sums to the anchor."""
        return self._shift(state, work.measured).of_rows(work.batch.rows_per_record)

    def _shift(self, state: S, measured: MeanRound | None) -> MeanShift:
        before = self._offset(state)
        if measured is None:
            same = (before.vector, before.vector, before.noise)
            return MeanShift(np.zeros(self.dim), *same, radius=state.mean_radius)
        moved = self._scaled(measured.centre - self._anchor(state))
        step = self._scaled(measured.mean - measured.centre)
        return MeanShift(moved, step, before.vector, measured.noise, radius=state.mean_radius)

    def _centred(self, state: S, batch: Batch, budget: Budget, restarts: bool) -> tuple[S, MeanRound | None]:
        """Measure the mean; set it and the anchor unless earlier batches found them.

        A batch takes its sums about the last batch's mean; a shift carries them to the anchor. The covariance
        about the mean is their average less the outer product of the mean's offset from the anchor, however
        the mean has moved, if it has their weights. So a later measurement is averaged once these are known.
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
        own = batch_doubt(self.preprocessing.dim, max(present, 1.0), multiplier)
        # Together with the sums: a new anchor would not fit earlier ones.
        if not state.mean_weight or restarts:
            last = last_share(self.dim, count, multiplier)
            found, known, noise, radius = coarse_to_fine(
                batch, self.preprocessing, start, radii, budget, last, here
            )
            # A mean hidden by noise counts as the start, which need not be 0.
            mean = np.clip(found, lower, upper) if known or start.any() else None
            state = replace(state, mean=mean, mean_weight=present, mean_noise=noise, mean_radius=radius)
            state = replace(state, latest_mean=None, path=None, path_noise=0.0, mean_square=0.0)
            return replace(state, anchor=mean, mean_doubt=own), None
        # In every batch: measured less often than the sums, a mean that moves would not fit them.
        anchor = self._anchor(state)
        centre, origin = (anchor, None) if state.latest_mean is None else (state.latest_mean, anchor)
        step, seen, fresh, radius = refine(
            batch, self.preprocessing, centre, radii, budget, LATER_SHARE, here, origin
        )
        mean = np.clip(anchor + step, lower, upper)
        away = float(np.sum(self._scaled(mean - anchor) ** 2))
        # The anchor has noise, too: a centre that moves by noise alone would add its own.
        moves = seen and is_beyond_noise(away, self.dim, 2 * fresh)
        state = replace(state, latest_mean=mean if moves else None, mean_radius=radius)
        return state, MeanRound(
            centre, mean, seen, fresh, present, own, kept_share(self.options.half_life, count)
        )

    def average_mean(
        self, state: S, measured: MeanRound | None, sums: float | None = None
    ) -> tuple[S, float | None]:
        """Average a measurement into the running mean, which is None while noise explains it.

        ``sums`` is the batch's weight in sums with weights of their own: also the mean's, where that has
        moved from the anchor beyond its noise. Returns the weight, None without a measurement or a mean.
        """
        if measured is None:
            return state, None
        lower, upper = mean_limits(self.preprocessing)
        before = self._anchor(state) if state.mean is None else state.mean
        present, own, seen, fresh = measured.records, measured.doubt, measured.seen, measured.noise
        weight, known_noise = state.mean_weight + present, state.mean_noise or 0.0
        earlier = state.mean_doubt / measured.kept
        share = earlier / (earlier + own) if earlier else present / weight
        away = self._offset(state).square
        if sums is not None and (seen or is_beyond_noise(away, self.dim, known_noise)):
            share = min(sums, 1.0)
        state = replace(state, mean_doubt=share * own)
        if not seen and state.mean is None:
            return replace(state, mean_weight=weight), None
        # Rounds weigh like their sums, but a round with a far too large radius must move the mean little.
        gain = min(share, _TRUSTED * math.sqrt(known_noise / fresh) if fresh > 0 else 1.0)
        far = float(np.sum(self._scaled((measured.mean - before) / 2) ** 2))
        if seen and is_beyond_noise(far, self.dim, max(known_noise, fresh)):
            # The noise of a large radius does not explain it: sums and mean keep one weight.
            gain = share
        elif seen and (state.mean is None or known_noise > _TRUSTED**2 * fresh):
            # Batches that hardly saw a mean count by their noise, unless it has moved since.
            gain = max(gain, known_noise / max(known_noise + fresh, 1e-300))
        with np.errstate(all="ignore"):
            mean = np.clip(before + gain * (measured.mean - before), lower, upper)
        shift, left, new = self._shift(state, measured), (1 - gain) ** 2, gain**2 * fresh
        moved, offset = shift.moved, shift.moved + shift.step
        noise, path_noise = left * known_noise + new, left * state.path_noise + new * float(moved @ moved)
        path = moved * new if state.path is None else left * state.path + new * moved
        # Without the square of the measurement's own noise, which would count as movement.
        square = max(float(offset @ offset) - len(offset) * fresh, 0.0)
        square = state.mean_square + gain * (square - state.mean_square)
        state = replace(state, path=path if path.any() else None, path_noise=path_noise, mean_square=square)
        return replace(state, mean=mean, mean_weight=weight, mean_noise=noise), gain
