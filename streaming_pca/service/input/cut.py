"""Batch boundaries, decided only from the clock's ticks and record counts.

Why a record's contents cannot move a boundary: docs/explanation/batch-boundaries.md.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence

from streaming_pca.service.input.end_offsets import EndOffsets, OffsetFeed

Quotas = list[int]  # units per partition in a batch, in the order of the partitions


class BatchCutter:
    """Search for the end offsets that cut each batch.

    A batch is cut at the first end offsets that cover the planned count; the search starts with the end
    offsets that cut the last batch. With a ``max_wait``, in seconds of the ticking clock, a batch is cut late
    once that time has passed since the last cut (for the first batch: since the feed was opened). The late
    cut is at the newest end offsets of that moment or, if they cover too little, at the first later end
    offsets that cover the minimum of useful records.
    """

    def __init__(self, feed: OffsetFeed, max_wait: float | None) -> None:
        self._feed, self._max_wait = feed, max_wait
        self._last_cut = feed.started
        self._current: EndOffsets | None = None

    def schedule_wake(self) -> None:
        """Make the feed notify when ``max_wait`` is over."""
        if self._max_wait is not None:
            self._feed.wake_at(self._last_cut + self._max_wait)

    def next_quotas(self, quotas_at: Callable[[EndOffsets, bool], Quotas | None]) -> Quotas | None:
        """Advance through the waiting end offsets until one cuts the batch; None if none does.

        ``quotas_at`` takes end offsets and whether the cut is late. It returns each partition's quota, or
        None if they cover less than the planned count (late: less than the minimum of useful records).
        """
        while True:
            current = self._current
            if current is not None:
                cut_at = current.time
                quotas = quotas_at(current, False)
                # A single `peek` decides both whether this cut is late and whether newer end offsets exist:
                # a tick between two peeks would make the batch depend on the reader's pace. `ticked` is
                # read first, or a tick in between would count as unchanged.
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
    """Deal ``units`` to partitions in turn, each up to its known supply, ``available``.

    ``complete``: whether these are all units of a partition below the end offsets. Returns the units that
    every incomplete partition must have before the quotas are certain (-1 if all partitions together have
    fewer than ``units``), and the quotas, None while they are not certain.
    """

    def reached(level: int) -> int:
        return sum(min(a, level) if c else level for a, c in zip(available, complete, strict=True))

    level = bisect_left(range(units + 1), units, key=reached)
    if level > units:
        return -1, None
    if any(not c and a < level for a, c in zip(available, complete, strict=True)):
        return level, None
    quotas = [min(a, level - 1) if level else 0 for a in available]
    for i, a in enumerate(available):
        if sum(quotas) == units:
            break
        if a >= level:
            quotas[i] += 1
    return level, quotas
