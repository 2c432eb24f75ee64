"""Batch boundaries, decided from the clock's ticks and from record counts alone.

Why no record's contents can move a boundary: docs/explanation/batch-boundaries.md.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from streaming_pca.service.input.end_offsets import EndOffsets, OffsetFeed

Quotas = list[int]
"""Units that each partition gives to a batch, in the order of the partitions."""


class BatchCutter:
    """Search for the end offsets at which each batch is cut.

    A batch is cut at the first end offsets that cover the planned count, starting with those at
    which the last batch was cut. With a ``max_wait`` it is cut late once that time has passed
    since the last cut (for the first batch: since the feed was opened): at the newest end
    offsets of that moment, or at the first ones after it that have the fewest records of use.

    Parameters
    ----------
    max_wait : float or None
        Seconds of the clock that ticks.
    """

    def __init__(self, feed: OffsetFeed, max_wait: float | None) -> None:
        self._feed, self._max_wait = feed, max_wait
        self._last_cut = feed.started
        self._current: EndOffsets | None = None

    def schedule_wake(self) -> None:
        """Have the feed notify when ``max_wait`` is over."""
        if self._max_wait is not None:
            self._feed.wake_at(self._last_cut + self._max_wait)

    def next_quotas(self, quotas_at: Callable[[EndOffsets, bool], Quotas | None]) -> Quotas | None:
        """Advance through the waiting end offsets until one cuts the batch.

        Parameters
        ----------
        quotas_at : callable
            Takes end offsets and whether the cut is late. Returns each partition's quota, or None if
            the end offsets cover too little: of the planned count, or of the fewest records of use.

        Returns
        -------
        list of int or None
            The quotas of the batch; None if no end offsets that are here cut it.
        """
        while True:
            current = self._current
            if current is not None:
                cut_at = current.time
                quotas = quotas_at(current, False)
                # One look decides both whether this cut is late and whether newer end offsets exist: a tick
                # between two looks would make the batch depend on the reader's pace. `ticked` is read
                # first, or a tick in between would count as one without change.
                ticked = self._feed.ticked
                newer = self._feed.peek()
                late_at = self._late_cut_time(current, ticked if newer is None else newer)
                if quotas is None and late_at is not None:
                    cut_at, quotas = late_at, quotas_at(current, True)
                if quotas is not None:
                    self._last_cut = cut_at
                    return quotas
                if newer is None:
                    self._feed.check()
                    return None
            following = self._feed.next()
            if following is None:
                return None
            self._current = following

    def _late_cut_time(self, current: EndOffsets, unchanged_until: float) -> float | None:
        """Return the time of a late cut at ``current``; None if it is not due."""
        if self._max_wait is None:
            return None
        due = self._last_cut + self._max_wait
        if current.time >= due:
            return current.time
        return due if unchanged_until > due else None


def round_robin_quota(
    available: Sequence[int], complete: Sequence[bool], units: int
) -> tuple[int, Quotas | None]:
    """Deal ``units`` to partitions in turn, each up to its own supply.

    Parameters
    ----------
    available : sequence of int
        Units of each partition that are known so far.
    complete : sequence of bool
        Whether a partition has no more units than that below the end offsets.

    Returns
    -------
    level : int
        Units that every incomplete partition must show before the quotas are certain;
        -1 if all partitions together have fewer than ``units``.
    quotas : list of int or None
        None while they are not certain.
    """
    level = 0
    while True:
        reached = sum(min(a, level) if c else level for a, c in zip(available, complete, strict=True))
        if reached >= units:
            break
        growing = [i for i, c in enumerate(complete) if not c or available[i] > level]
        if not growing:
            return -1, None
        level += max(1, (units - reached) // len(growing))
    # The step can overshoot the least sufficient level, by what complete partitions lack.
    while level > 0:
        lower = sum(min(a, level - 1) if c else level - 1 for a, c in zip(available, complete, strict=True))
        if lower < units:
            break
        level -= 1
    if any(not c and a < level for a, c in zip(available, complete, strict=True)):
        return level, None
    quotas = [min(a, level - 1) if level else 0 for a in available]
    for i, a in enumerate(available):
        if sum(quotas) == units:
            break
        if a >= level:
            quotas[i] += 1
    return level, quotas
