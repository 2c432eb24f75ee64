"""Offset ranges that tasks read, and the order of a batch's records over them.

A *segment* is a range of one partition that one task has read. The driver knows only its structure: which
offsets contain messages, which leader accepted them and, if each row is a record, the rows of each.
:class:`Layout` computes the order of :func:`streaming_pca.service.input.buffer.interleave`, without messages.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Range:
    """Offsets ``start`` to ``end`` (excluded) of one partition, for one task to read."""

    id: int  # unique within a session
    partition: int
    start: int
    end: int
    epoch: int = -1  # leader epoch of the message before ``start``; -1 if unknown


@dataclass(frozen=True)
class Segment:
    """Structure of a range that a task has read."""

    range: Range
    count: int  # number of messages
    run_index: Integers
    run_offset: Integers  # (r,): index and offset of the first message of each run of consecutive offsets
    epoch_index: Integers
    epochs: Integers  # (e,): index of the first message that each leader epoch accepted, and that epoch
    rows: Integers | None = None  # (count,): number of rows of each message, if each row is a record

    def offset(self, index: int) -> int:
        run = int(np.searchsorted(self.run_index, index, side="right")) - 1
        return int(self.run_offset[run] + index - self.run_index[run])

    def epoch(self, index: int) -> int:
        return int(self.epochs[int(np.searchsorted(self.epoch_index, index, side="right")) - 1])

    def count_before(self, offset: int) -> int:
        if offset >= self.range.end:
            return self.count
        run = int(np.searchsorted(self.run_offset, offset, side="right")) - 1
        if run < 0:
            return 0
        end = int(self.run_index[run + 1]) if run + 1 < len(self.run_index) else self.count
        return min(int(self.run_index[run] + offset - self.run_offset[run]), end)

    @cached_property
    def _row_ends(self) -> Integers:
        assert self.rows is not None
        return np.concatenate([[0], np.cumsum(self.rows)]).astype(np.int64)

    def message_of(self, record: int) -> int:
        if self.rows is None:
            return record
        return int(np.searchsorted(self._row_ends, record, side="right")) - 1

    def records_before(self, index: int) -> int:
        """Return the number of records in the messages before ``index``."""
        return index if self.rows is None else int(self._row_ends[index])


def packed_structure(offsets: Integers, epochs: Integers, rows: Integers) -> bytes:
    """Encode a segment's structure: its count and five arrays, each preceded by its length."""
    # The first message of each run of consecutive offsets, and of each leader epoch.
    runs = np.flatnonzero(np.diff(offsets, prepend=offsets[:1] - 2) != 1).astype(np.int64)
    changes = np.flatnonzero(np.diff(epochs, prepend=-2)).astype(np.int64)
    arrays = (np.array([len(offsets)]), runs, offsets[runs], changes, epochs[changes], rows)
    return b"".join(np.int64(len(a)).tobytes() + a.astype("<i8").tobytes() for a in arrays)


def segment_of(wanted: Range, structure: bytes, by_row: bool) -> Segment:
    """Decode the result of :func:`packed_structure`."""
    arrays, at = [], 0
    numbers = np.frombuffer(structure, dtype="<i8").astype(np.int64)
    while at < len(numbers):
        size = int(numbers[at])
        arrays.append(numbers[at + 1 : at + 1 + size])
        at += 1 + size
    (count,), index, begins, changes, epochs, rows = arrays
    return Segment(wanted, int(count), index, begins, changes, epochs, rows if by_row else None)


@dataclass(frozen=True)
class Strip:
    """Messages ``first`` to ``last`` (excluded) of a segment, which belong to a batch."""

    segment: Segment
    first: int
    last: int

    @property
    def records(self) -> int:
        return self.segment.records_before(self.last) - self.segment.records_before(self.first)


@dataclass(frozen=True)
class Order:
    """Order of a batch's messages: partitions take turns, with ``granularity`` messages each."""

    counts: Integers  # number of messages of each partition
    granularity: int = 1

    def __post_init__(self) -> None:
        if (self.counts % self.granularity).any():
            raise ValueError("a partition gives an incomplete group of messages")

    def places(self, partition: int, first: int, last: int) -> Integers:
        """Return the places of messages ``first`` to ``last`` of a partition in the batch."""
        g = self.granularity
        groups = self.counts // g
        index = np.arange(first, last, dtype=np.int64)
        turn = index // g
        ordered = np.sort(groups)
        sums = np.concatenate([[0], np.cumsum(ordered)])
        # Partitions with at most `turn` groups have no groups left in this turn.
        done = np.searchsorted(ordered, turn, side="right")
        before = sums[done] + (len(groups) - done) * turn
        # Partitions that come earlier in a turn and still have a group.
        before += partition - np.searchsorted(np.sort(groups[:partition]), turn, side="right")
        return np.asarray(before * g + index % g)

    def messages_before(self, partition: int, place: int) -> int:
        """Return the number of a partition's messages before a place of the batch."""
        indices = range(int(self.counts[partition]))
        return bisect_left(indices, place, key=lambda i: int(self.places(partition, i, i + 1)[0]))


class Layout:
    """Order of a batch's records over the strips of each partition."""

    def __init__(self, strips: Sequence[Sequence[Strip]], granularity: int) -> None:
        self.strips = tuple(tuple(each) for each in strips)
        counts = [sum(s.last - s.first for s in each) for each in self.strips]
        self.order = Order(np.array(counts, dtype=np.int64), granularity)
        self.records = sum(s.records for each in self.strips for s in each)
        self.by_row = any(s.segment.rows is not None for each in self.strips for s in each)
        """True if each row is a record."""

    @cached_property
    def _rows(self) -> tuple[Integers, ...]:
        """Number of rows of each message by partition, if each row is a record."""
        found: list[list[Integers]] = [[np.zeros(0, dtype=np.int64)] for _ in self.strips]
        for parts, strips in zip(found, self.strips, strict=True):
            parts += [s.segment.rows[s.first : s.last] for s in strips if s.segment.rows is not None]
        return tuple(map(np.concatenate, found))

    @cached_property
    def _row_places(self) -> tuple[Integers, ...]:
        """Place of each message's first row by partition, if each row is a record."""
        places = [self.order.places(p, 0, int(n)) for p, n in enumerate(self.order.counts)]
        ordered = np.zeros(int(self.order.counts.sum()), dtype=np.int64)
        for place, rows in zip(places, self._rows, strict=True):
            ordered[place] = rows
        starts = np.cumsum(ordered) - ordered
        return tuple(starts[place] for place in places)

    def records_before(self, partition: int, place: int) -> int:
        """Return the number of a partition's records before a place of the batch."""
        if not self.by_row:
            return self.order.messages_before(partition, place)
        starts, rows = self._row_places[partition], self._rows[partition]
        begun = int(np.searchsorted(starts, place, side="left"))
        # The last of these messages may extend beyond the place.
        over = int(starts[begun - 1] + rows[begun - 1]) - place if begun else 0
        return int(rows[:begun].sum()) - max(over, 0)

    def places(self, partition: int, first: int, last: int) -> Integers:
        """Return the places in the batch of records ``first`` to ``last`` of a partition."""
        if not self.by_row:
            return self.order.places(partition, first, last)
        rows, index = self._rows[partition], np.arange(first, last)
        ends = np.cumsum(rows)
        message = np.searchsorted(ends, index, side="right")
        return np.asarray(self._row_places[partition][message] + index - (ends[message] - rows[message]))
