"""Arrivals and lag of one stream over time, in bounded memory.

The observer adds a sample of the broker's offsets every two seconds. Recent samples are kept in short
intervals, older ones in longer intervals: 1,786 points or fewer, about 0.4 MB for each stream. The numbers
start with the process: Prometheus keeps longer histories (:mod:`streaming_pca.service.metrics`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import NamedTuple

from streaming_pca.dashboard.models import Traffic

_HOUR = 3600
LEVELS = ((10, 360), (240, 360), (_HOUR // 2, 336), (12 * _HOUR, 730))
"""Length of an interval in seconds, and number of intervals: an hour, a day, a week, a year."""
_GAP = 3  # lengths of an interval without a sample that make a gap
_CLOCK_SECONDS = 60.0  # step of the clock into the past after which the samples start again


class _Interval(NamedTuple):
    """Samples of an interval."""

    at: float  # time of the last sample, in seconds since the epoch
    end: int  # offsets of the input, at the last sample
    low: int  # smallest lag
    high: int  # largest lag


class TrafficHistory:
    """Offsets and lag of a stream, of the last year at most."""

    def __init__(self) -> None:
        self._topic: str | None = None
        self._levels: list[deque[_Interval]] = [deque() for _ in LEVELS]

    def add(self, topic: str | None, at: float, end: int, lag: int) -> None:
        """Add a sample; a sample of another ``topic``, by its id, drops all earlier ones.

        ``at`` is in seconds since the epoch, ``end`` is the sum of the end offsets that a reader of committed
        records sees, and ``lag`` is the number of offsets still to be read.
        """
        last = self._levels[0][-1] if self._levels[0] else None
        if last is not None and (topic != self._topic or end < last.end or at < last.at - _CLOCK_SECONDS):
            # A new or shortened topic, or another clock: rates across that moment would be wrong.
            self._levels = [deque() for _ in LEVELS]
            last = None
        self._topic = topic
        if last is None or at > last.at:
            self._put(0, _Interval(at, end, lag, lag))

    def _put(self, number: int, new: _Interval) -> None:
        """Add the next samples to a level; a full level passes on its oldest interval."""
        (seconds, most), level = LEVELS[number], self._levels[number]
        if level and level[-1].at // seconds == new.at // seconds:
            last = level.pop()
            new = _Interval(new.at, new.end, min(last.low, new.low), max(last.high, new.high))
        level.append(new)
        if len(level) > most:
            oldest = level.popleft()
            if number + 1 < len(LEVELS):
                self._put(number + 1, oldest)

    def answer(self, stream: str) -> Traffic:
        """Return the columns, oldest first."""
        rows = list(self._rows())
        return Traffic(
            stream=stream,
            at=[datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds") for at, _ in rows],
            offsets=[None if found is None else found.end for _, found in rows],
            lag_low=[None if found is None else found.low for _, found in rows],
            lag_high=[None if found is None else found.high for _, found in rows],
        )

    def _rows(self) -> Iterator[tuple[float, _Interval | None]]:
        """Yield times and intervals; None in the middle of each gap."""
        before: float | None = None
        for (seconds, _), level in reversed(list(zip(LEVELS, self._levels, strict=True))):
            for each in level:
                if before is not None and each.at - before > _GAP * seconds:
                    yield (before + each.at) / 2, None
                yield each.at, each
                before = each.at
