"""Distribution of the records' norms, from private counts.

The norm of a record is here the number that a clip limits: the trace |x|^2 of a vector's or
factor's matrix, the Frobenius norm of a symmetric matrix or a residual, or |x - c| of a mean.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import RecordValues
from streaming_pca.estimators.common.budget import Budget, noisy_count, noisy_counts

Vector = NDArray[np.float64]

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
STEPS = 8
"""Radii an octave: a radius is known to 9%. Trades resolution against the number of counts."""
_TAIL = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 5, 6, 8, 10, 12])
"""Edges of the tail's bins, in octaves above the median: trades few bins against noise in each."""
BINS = len(_TAIL)
_NEXT, _FAR, _SHOWN = 2.0, 5.0, 3.5
"""Standard deviations above which bins count as filled: the next bin in a row, and any neighbours together;
and above which neighbours cast doubt, by noise alone on one good fit in 250."""
BELOW_MEDIAN = 0.75
"""Mean of min(norm, median) over the median, of norms that are spread evenly below it."""
_LEAST_SLOPE, _MOST_SLOPE = 1.5, 30.0
"""Limits of the power law of shares above a norm, beyond the last filled bin."""
_INTERPOLATED = 0.1  # relative error of an excess: counts do not resolve norms within a bin
_UNSEEN = 0.5  # deviation of the share that an unfilled bin may hide, over the noise of its count
_BEYOND_BOUNDS = 6.0
"""The same beyond the norm of a row within the public bounds, which only records of several rows exceed."""
_COARSE = 0.02
"""Deviation of a bin's count, over the records, above which counts do not show the tail: n mu below some 250.
Skewed records then fill bins that all stay below their noise."""
_SURE = 2.0  # deviations below which a count shows no records: a few records count as none
_MOST_SURE = 0.5  # largest share of the records that ``_SURE`` may require
_FEW, _MOST_MEDIAN = 72.0, 0.2
"""Factor and limit of the median's share for few records: later bins begin at it, so it must not be noise."""
_LEAST_PRESENT = 0.02  # least share of non-null records, a later divisor, or less noise of their count
_UP = 1 + 2.0**-50  # factor that rounds sqrt(2) up


@dataclass(frozen=True)
class NormDistribution:
    """Distribution of norms from the median up, read off private counts."""

    radii: Vector  # (c,) increasing; the first is the median norm of the records that are not null
    above: Vector  # (c,) decreasing share of all records, null ones included, with a norm above each radius
    present: float  # share of the records that are not null (of norm 0)

    def quantile(self, q: float) -> float:
        """Return the least radius that holds a share q >= 0.5 of non-null records."""
        inside = np.flatnonzero(self.above <= (1 - q) * self.present)
        return float(self.radii[int(inside[0]) if inside.size else len(self.radii) - 1])

    def share_above(self, radius: float | Vector) -> Vector:
        """Return the share of all records with a norm above each radius."""
        return np.asarray(np.interp(radius, self.radii, self.above))

    def excess(self, radius: float | Vector) -> Vector:
        """Compute E (norm - radius)+, the mean norm that a clip cuts off."""
        steps = np.diff(self.radii) * (self.above[1:] + self.above[:-1]) / 2
        beyond = np.concatenate([np.cumsum(steps[::-1])[::-1], [0.0]])
        return np.asarray(np.interp(radius, self.radii, beyond))

    def squared_excess(self, radius: float) -> float:
        """Compute E ((norm - radius)+)^2."""
        values = 2 * np.maximum(self.radii - radius, 0.0) * self.above
        return float(np.sum(np.diff(self.radii) * (values[1:] + values[:-1]) / 2))

    def clip_bias(self, radius: float) -> float:
        """Compute E (1 - sqrt(radius/norm))+^2 over non-null records; norms are squares, such as traces.

        It bounds the bias of a mean of records x clipped to |x|^2 = ``radius``; 0 without a radius.
        """
        if not radius:
            return 0.0
        shares, ends = -np.diff(np.append(self.above, 0.0)), np.append(self.radii[1:], self.radii[-1:])
        return float(shares @ np.maximum(1 - np.sqrt(radius / ends), 0.0) ** 2) / self.present

    def mean_weight(self, radius: float) -> float:
        """Compute E min(1, radius/norm) over all records; it is 1 below the median."""
        shares = -np.diff(np.append(self.above, 0.0))
        return float(1 - self.above[0] + np.sum(shares * np.minimum(1.0, radius / self.radii)))


@dataclass(frozen=True)
class Tail:
    """Mean norm that clips cut off, with its error."""

    excess: Vector  # (l,) E (norm - R)+ of each radius, over records that are not null
    variance: Vector  # (l,) variance of its error, from the counts' noise and the width of the bins
    hidden: float  # deviation common to all radii: from norms beyond the last filled bin
    is_coarse: bool = False
    """True where counts are too noisy to show the tail: clips may then cut off far more."""


def norm_shares(count: int, multiplier: float, part: float = 1.0) -> tuple[float, float]:
    """Return shares of a batch's budget for the norms' median and tail.

    Within limits, a count is off by some 1/90 (median) or 1/1400 (tail) of the records; the median's, for
    few records without bounds, by a tenth. ``multiplier`` is the whole batch's; ``part``, a factor on the
    limits, is below 1 where norms were counted before.
    """
    precision = 2 * max(count, 1) / multiplier

    def share(wanted: float, low: float, high: float) -> float:
        return min(max((wanted / precision) ** 2, low * part), high * part)

    few = min((_FEW / precision) ** 2, _MOST_MEDIAN) * part
    return max(share(600.0, 0.002, 0.03), few), share(4000.0, 0.008, 0.16)


def private_quantile_radius(
    norms: RecordValues,
    low: float,
    high: float,
    quantile: float,
    budget: Budget,
    share: float,
    sure: float = _SURE,
) -> tuple[float, float]:
    """Find a quantile of the norms of non-null records, by bisection with noisy counts.

    Returns the radius, within 9%, and the share of records that are not null.

    Parameters
    ----------
    norms : one number a record, a function of that record alone; 0 for null records.
    low, high : public range of the quantile.
    share : share of the budget for all counts together.
    sure : deviations below which a count shows no records. Noise mistaken for records far out would put the
        radius at the end of its range.

    Notes
    -----
    Adjacency: replace-one. Released: the number of records above ``low``, and above one radius
    after another of a public grid, each with Gaussian noise. One record
    changes a count by 1 at most, its sensitivity. Each count has an equal part of the share. The
    next radius follows from the answers before, as :class:`Budget` allows.
    """
    radii = _grid(low, high)
    steps = len(radii) - 1
    queries = 1 + math.ceil(math.log2(steps + 1))
    count = max(len(norms), 1)
    counted = norms.above(radii)
    least = 0.0

    def above(place: int) -> float:
        nonlocal least
        noisy, deviation = noisy_count(counted(place), share / queries, budget)
        least = min(sure * deviation / count, _MOST_SURE)
        return noisy / count

    present = above(0)
    present = min(max(present, min(least, _LEAST_PRESENT)), 1.0)
    first, last = 0, steps
    while last - first > 1:
        middle = (first + last) // 2
        if above(middle) > max((1 - quantile) * present, least):
            first = middle
        else:
            last = middle
    return radii[last], present


@lru_cache(maxsize=16)
def _grid(low: float, high: float) -> tuple[float, ...]:
    """Return the public radii: ``low``, then eight an octave up to ``high``."""
    steps = max(math.ceil(math.log2(high / low) * STEPS), 1)
    return low, *(high * 2.0 ** ((i - steps) / STEPS) for i in range(1, steps + 1))


@dataclass(frozen=True)
class NormCounts:
    """Noisy counts of norms, of one batch or of several together."""

    median: float  # median norm of the first batch's records that are not null; 0 before any batch
    present: float  # share of the records that are not null
    counts: Vector  # (BINS,) noisy numbers of records in the bins from the median up
    variance: float  # variance of each count's noise
    records: float  # records of these batches, by their weights: the last batch's over its weight in the mean

    @classmethod
    def empty(cls) -> NormCounts:
        return cls(0.0, 0.0, np.zeros(BINS), 0.0, 0.0)

    def averaged(self, new: NormCounts, gain: float) -> NormCounts:
        """Average the shares of a batch's counts in, with its weight in the new mean."""
        if not (self.records and new.records):
            return self if self.records else new
        records = new.records / gain
        kept = (1 - gain) * records / self.records
        return replace(
            self,
            present=self.present + gain * (new.present - self.present),
            counts=kept * self.counts + new.counts,
            variance=kept**2 * self.variance + new.variance,
            records=records,
        )

    def distribution(self, high: float) -> NormDistribution:
        """Estimate the distribution of norms up to ``high``: post-processing.

        The tail ends with the last bin that is filled beyond its noise.
        """
        found = np.where(np.arange(BINS) <= self._last_filled(), np.maximum(self.counts, 0.0), 0.0)
        above = np.minimum(np.cumsum(found[::-1])[::-1] / max(self.records, 1.0), 0.5 * self.present)
        radii = self.median * 2.0 ** (np.arange(int(_TAIL[-1]) * STEPS + 1) / STEPS)
        radii = radii[: max(int(np.count_nonzero(radii <= high)), 1)]
        edges = np.log2(self.median * 2.0**_TAIL)
        # With half a record as the least share, the last filled bin reaches to its end.
        least = 0.5 / max(self.records, 1.0)
        shares = np.exp2(np.interp(np.log2(radii), edges, np.log2(np.maximum(above, least))))
        return NormDistribution(radii, np.where(shares > 1.01 * least, shares, 0.0), self.present)

    def most_between(self, low: Vector, high: float) -> Vector:
        """Compute the most of E (min(norm, high) - low)+ that counts allow: all at their bin's end."""
        ends = np.minimum(np.append(self.median * 2.0 ** _TAIL[1:], math.inf), high)
        parts = np.maximum(ends[None, :] - low[:, None], 0.0) @ np.maximum(self.counts, 0.0)
        return np.asarray(parts / max(self.records * self.present, 1e-300))

    def within(self, high: float) -> NormCounts:
        """Drop noise from bins above ``high``, a norm that records hardly exceed: post-processing.

        Counts that show records there beyond any doubt stay.
        """
        beyond = self.median * 2.0**_TAIL >= high
        counts, deviation = self.counts[beyond], _BEYOND_BOUNDS * math.sqrt(self.variance)
        together = np.cumsum(counts) / np.sqrt(np.arange(1, len(counts) + 1))
        if max(counts.max(initial=0.0), together.max(initial=0.0)) > deviation:
            return self
        return replace(self, counts=np.where(beyond, 0.0, self.counts))

    def _last_filled(self) -> int:
        """Return the last bin that is filled beyond noise: in a row from the first, or by itself."""
        deviation, last = math.sqrt(self.variance), 0
        while last + 1 < BINS and self.counts[last + 1] > _NEXT * deviation:
            last += 1
        inside, shown = _most_filled(self.counts, last + 1)
        return inside.stop - 1 if shown > _FAR * deviation else last

    def tail(self, radii: Vector, excess: Vector, present: float) -> Tail:
        """Estimate the excess at some radii, and its error, from the counts: post-processing.

        ``excess`` is :meth:`NormDistribution.excess` at the radii, ``present`` the non-null share.
        """
        excess = excess / present
        records = self.records * present
        if not records:
            return Tail(excess, np.zeros_like(excess), 0.0)
        shares, deviation = self.counts / records, math.sqrt(self.variance) / records
        edges = self.median * 2.0**_TAIL
        middles = np.append(np.sqrt(edges[1:] * edges[:-1]), 2 * edges[-1])
        last = self._last_filled()
        further = self._beyond(shares, deviation, edges, last)
        excess = excess + further / 2
        errors = np.maximum(middles[None, : last + 1] - radii[:, None], 0.0) * deviation
        variance = np.sum(errors * errors, axis=1) + (_INTERPOLATED * excess) ** 2
        unseen = _UNSEEN * deviation * middles[min(last + 1, BINS - 1)]
        wide = max(float(shares[last]), 0.0) * (middles[last] - edges[last]) / 2
        reaches = middles[last] > radii[-1]
        inside, shown = _most_filled(shares, last + 1)
        farther = float(np.maximum(shares[inside], 0.0) @ middles[inside]) * (shown > _SHOWN * deviation)
        # Where most records are zeros, noise of the others' number hides their median, too.
        is_coarse = deviation * max(present / self.present, 1.0) > _COARSE
        if is_coarse:
            # Each of the next two bins may hide two deviations.
            unseen = max(unseen, 2 * deviation * float(middles[last + 1 : last + 3].sum()))
        hidden = math.sqrt(unseen**2 + further**2 / 2 + wide**2 * bool(reaches)) + farther
        return Tail(excess, variance, hidden, is_coarse)

    def _beyond(self, shares: Vector, deviation: float, edges: Vector, last: int) -> float:
        """Extrapolate the mean norm beyond the last filled bin by a power law."""
        if last == BINS - 1:
            # Its reach is unknown: assume as many octaves again as from the median to its lower edge.
            return max(float(shares[last]), 0.0) * float(edges[last]) ** 2 / self.median
        if not last:
            return 0.0
        before, width = math.log2(edges[last] / edges[last - 1]), math.log2(edges[last + 1] / edges[last])
        slope, above = _LEAST_SLOPE, 0.0
        for _ in range(5):
            above = float(shares[last]) / (1 - 2 ** (-slope * width))
            grown = math.log2((float(shares[last - 1]) + above) / above) if shares[last - 1] > 0 else 0.0
            slope = min(max(grown / before, _LEAST_SLOPE), _MOST_SLOPE)
        over = min(above * 2 ** (-slope * width), max(float(shares[last + 1]), 0.0) + deviation)
        return over * float(edges[last + 1]) / (slope - 1)


def _most_filled(counts: Vector, first: int) -> tuple[slice, float]:
    """Return the neighbouring bins from ``first`` on with the largest count over their noise's deviation.

    The deviation is in units of a bin's; an empty slice at the end if no bin is left.
    """
    sums = np.append(0.0, np.cumsum(counts[first:]))
    start, stop = np.triu_indices(len(sums), 1)
    if not len(start):
        return slice(BINS, BINS), 0.0
    found = (sums[stop] - sums[start]) / np.sqrt(stop - start)
    best = int(np.argmax(found))
    return slice(first + int(start[best]), first + int(stop[best])), float(found[best])


def private_norm_counts(
    known: NormCounts,
    norms: RecordValues,
    low: float,
    high: float,
    budget: Budget,
    shares: tuple[float, float],
) -> NormCounts:
    """Count a batch's norms, in bins above the ``known`` counts' median.

    The first batch finds the median (:func:`private_quantile_radius`). ``shares`` of the budget are for the
    median and for the tail.

    Adjacency: replace-one. Released: the median's counts, and a histogram of the norms above it
    over twelve bins with Gaussian noise. One record leaves a bin and enters
    another, so the histogram's sensitivity is sqrt(2).

    Floating point: norms are only compared with the bins' edges.
    """
    if not known.median:
        median, present = private_quantile_radius(norms, low, high, 0.5, budget, shares[0])
        known = replace(known, median=median, present=present)
    exact = norms.histogram(np.append(known.median * 2.0**_TAIL, np.inf))
    multiplier = budget.take(shares[1])
    noisy, _ = noisy_counts(exact, multiplier, math.sqrt(2) * _UP, budget)
    return replace(known, counts=noisy, variance=2 * multiplier**2, records=float(len(norms)))


def private_norm_distribution(
    norms: RecordValues, low: float, high: float, budget: Budget, shares: tuple[float, float]
) -> NormDistribution:
    """Estimate the distribution of one batch's norms; as :func:`private_norm_counts`."""
    return private_norm_counts(NormCounts.empty(), norms, low, high, budget, shares).distribution(high)
