"""From an input topic to batches that are cut on public quantities only.

When a batch closes and what it holds depends on: the partitions, the order of
offsets, how many records each partition delivered, and the worker's clock. It
does not depend on sizes, contents, keys, producer timestamps, or on how fast
records arrived here: a fetch stops at a number of *bytes*, so arrival order is
contents.

So the ends of all partitions (their last stable offsets) are read on the ticks
of a clock, by a thread of their own, into a queue of snapshots. A batch closes
at the first snapshot that covers the planned count, starting from the one that
closed the last batch, however late this thread gets to it. Records are taken
round-robin over partitions in offset order.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, OffsetOutOfRangeError
from numpy.typing import NDArray

from streaming_pca.privacy.entries import OffsetRange
from streaming_pca.records import Batch, RecordKind
from streaming_pca.service.clients import reading_consumer
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.snapshots import Ends, SnapshotClock
from streaming_pca.settings import KafkaSettings
from streaming_pca.wire import PayloadCodec

__all__ = ["Source", "Taken", "share"]

_FETCH_BYTES = 16 * 2**20
"""Fetched ahead by all partitions together (1 MiB each at least)."""


def share(available: Sequence[int], closed: Sequence[bool], units: int) -> tuple[int, list[int] | None]:
    """Round-robin shares of ``units`` over partitions.

    Parameters
    ----------
    available : units known to be there, by partition
    closed : whether that is all that the snapshot covers
    units : how many to take

    Returns
    -------
    level : int
        Units that every partition that is not closed must show before the
        shares are certain; -1 if the snapshot cannot cover ``units``.
    shares : list of int, or None while they are not certain
    """
    level = 0
    while True:
        reached = sum(min(a, level) if c else level for a, c in zip(available, closed, strict=True))
        if reached >= units:
            break
        growing = [i for i, c in enumerate(closed) if not c or available[i] > level]
        if not growing:
            return -1, None
        level += max(1, (units - reached) // len(growing))
    # The step above can overshoot the smallest sufficient level only by what
    # closed partitions lack; walk back to it.
    while level > 0:
        lower = sum(min(a, level - 1) if c else level - 1 for a, c in zip(available, closed, strict=True))
        if lower < units:
            break
        level -= 1
    if any(not c and a < level for a, c in zip(available, closed, strict=True)):
        return level, None
    shares = [min(a, level - 1) if level else 0 for a in available]
    for i, a in enumerate(available):
        if sum(shares) == units:
            break
        if a >= level:
            shares[i] += 1
    return level, shares


@dataclass(frozen=True)
class Taken:
    """A batch and where it came from."""

    batch: Batch
    ranges: tuple[OffsetRange, ...]
    positions: Ends
    """Where the next batch starts."""


@dataclass
class _Chunk:
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.floating]


@dataclass
class _Buffer:
    """Decoded records of one partition, in offset order."""

    position: int
    """Offset of the first record not taken yet, or anything between it and the last taken."""
    chunks: deque[_Chunk] = field(default_factory=deque)
    count: int = 0

    def append(self, chunk: _Chunk) -> None:
        self.chunks.append(chunk)
        self.count += len(chunk.offsets)

    def below(self, end: int) -> int:
        """Records before an offset."""
        if not self.chunks:
            return 0
        if self.chunks[-1].offsets[-1] < end:
            return self.count
        return sum(int(np.searchsorted(c.offsets, end)) for c in self.chunks)

    def take(self, count: int) -> list[_Chunk]:
        """Remove the first ``count`` records."""
        taken: list[_Chunk] = []
        self.count -= count
        while count:
            chunk = self.chunks.popleft()
            if len(chunk.offsets) > count:
                rows = int(chunk.lengths[:count].sum())
                rest = _Chunk(chunk.offsets[count:], chunk.lengths[count:], chunk.rows[rows:].copy())
                chunk = _Chunk(chunk.offsets[:count], chunk.lengths[:count], chunk.rows[:rows])
                self.chunks.appendleft(rest)
            taken.append(chunk)
            count -= len(chunk.offsets)
        if taken:
            self.position = int(taken[-1].offsets[-1]) + 1
        return taken


class Source:
    """Reads one input topic; not thread-safe but for :meth:`stop`.

    Parameters
    ----------
    kafka : KafkaSettings
    topic : str
    codec : PayloadCodec
    positions : dict of partition to offset
        Where to start; a partition without one starts at its first record.
    clock : SnapshotClock
        Of the session; it outlives this source.
    skip_lost : bool
        Whether to start later where retention deleted records.

    Notes
    -----
    Memory: a partition is not polled once it shows its share of the planned
    batch. Buffers hold one batch and at most a poll (2,000 records) a partition
    more; assembling it copies it once: two batches in all.

    Each partition has a consumer of its own. One for all would have to pause
    partitions, and kafka-python 3.0.12 does not give back what two or more
    paused partitions had fetched: ``Fetcher.fetched_records`` restores parked
    records only while its current slot is None, but leaves a drained one there.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topic: str,
        partitions: Sequence[int],
        codec: PayloadCodec,
        positions: Ends,
        clock: SnapshotClock,
        skip_lost: bool = False,
    ) -> None:
        self._topic, self._codec, self._skip_lost = topic, codec, skip_lost
        self._partitions = sorted(partitions)
        self._timeout = kafka.request_timeout_ms
        self._stop = threading.Event()
        self._tps = {p: TopicPartition(topic, p) for p in self._partitions}
        self._consumers: dict[int, KafkaConsumer] = {}
        fetch_bytes = max(_FETCH_BYTES // len(self._partitions), 2**20)
        try:
            for p in self._partitions:
                self._consumers[p] = reading_consumer(kafka, fetch_bytes=fetch_bytes)
            self._buffers = self._start(positions)
        except BaseException:
            self._close_consumers()
            raise
        self._clock = clock
        self._snapshot: Ends = {}

    def _start(self, positions: Ends) -> dict[int, _Buffer]:
        first = self._firsts()
        buffers = {}
        for p, tp in self._tps.items():
            position = positions.get(p, first[p])
            if position < first[p]:
                if not self._skip_lost:
                    raise RecordsLost(_lost_message(self._topic, p, position, first[p]))
                position = first[p]
            self._consumers[p].assign([tp])
            self._consumers[p].seek(tp, position)
            buffers[p] = _Buffer(position)
        return buffers

    def _firsts(self) -> Ends:
        try:
            consumer = self._consumers[self._partitions[0]]
            found = consumer.beginning_offsets(list(self._tps.values()), timeout_ms=self._timeout)
        except KafkaError as error:
            raise SessionLost(f"reading partition starts failed: {type(error).__name__}") from None
        return {tp.partition: offset for tp, offset in found.items()}

    @property
    def positions(self) -> Ends:
        """Where the next batch starts, by partition."""
        return {p: b.position for p, b in self._buffers.items()}

    def stop(self) -> None:
        """Make :meth:`take` return None soon; from any thread."""
        self._stop.set()

    def close(self) -> None:
        """Release all consumers."""
        self._close_consumers()

    def _close_consumers(self) -> None:
        for consumer in self._consumers.values():
            consumer.close(autocommit=False)

    def take(self, count: int, granularity: int = 1) -> Taken | None:
        """Wait for ``count`` records and take them; None when stopped.

        ``granularity`` consecutive records of a partition stay together.
        """
        units = count // granularity
        while not self._stop.is_set():
            shares = self._cover(units, granularity) if self._snapshot else None
            if shares is not None:
                return self._cut([s * granularity for s in shares], granularity)
            if self._stop.is_set():
                return None
            newer = self._clock.next(timeout=0.2)
            if newer is not None:
                self._snapshot = newer
        return None

    def _cover(self, units: int, granularity: int) -> list[int] | None:
        """Shares under the current snapshot, fetching until they are certain; None if it is too small."""
        while not self._stop.is_set():
            available = [self._buffers[p].below(self._snapshot[p]) // granularity for p in self._partitions]
            closed = [self._position(p) >= self._snapshot[p] for p in self._partitions]
            level, shares = share(available, closed, units)
            if shares is not None or level < 0:
                return shares
            for p, a, c in zip(self._partitions, available, closed, strict=True):
                if not c and a < level:
                    self._fetch(p)
        return None

    def _position(self, partition: int) -> int:
        try:
            position = self._consumers[partition].position(self._tps[partition], timeout_ms=self._timeout)
        except KafkaError as error:
            raise SessionLost(
                f"the position in {self._topic}-{partition} is not known: {type(error).__name__}"
            ) from None
        if position is None:
            raise SessionLost(f"partition {partition} of {self._topic} has no position")
        return int(position)

    def _fetch(self, partition: int) -> None:
        """One poll of a partition, decoded into its buffer."""
        # poll() answers {} on a dead broker; the clock's thread notices.
        self._clock.check()
        try:
            polled = self._consumers[partition].poll(timeout_ms=200)
        except OffsetOutOfRangeError:
            position, first = self._position(partition), self._firsts()[partition]
            if position < first and self._skip_lost:
                raise SessionLost(f"records of {self._topic}-{partition} were deleted: skipping") from None
            if position < first:
                raise RecordsLost(_lost_message(self._topic, partition, position, first)) from None
            raise SessionLost(f"position {position} of {self._topic}-{partition} is out of range") from None
        except KafkaError as error:
            # Not its text: that may hold bytes of a record.
            raise SessionLost(f"reading {self._topic} failed: {type(error).__name__}") from None
        for messages in polled.values():
            rows, lengths = self._codec.decode_many(messages)
            offsets = np.fromiter((m.offset for m in messages), dtype=np.int64, count=len(messages))
            self._buffers[partition].append(_Chunk(offsets, lengths, rows))

    def _cut(self, counts: Sequence[int], granularity: int) -> Taken:
        ranges = []
        parts: list[list[_Chunk]] = []
        for p, count in zip(self._partitions, counts, strict=True):
            start = self._buffers[p].position
            parts.append(self._buffers[p].take(count))
            if count:
                end = self._buffers[p].position
                ranges.append(OffsetRange(partition=p, start=start, end=end, count=count))
        batch = _interleave(parts, granularity, self._codec.dim, self._codec.kind)
        return Taken(batch, tuple(ranges), self.positions)

    def retake(self, ranges: Sequence[OffsetRange], granularity: int = 1) -> Taken | None:
        """Take the very records of a reservation; None if some are gone or :meth:`stop` was called.

        The source must have been started at the ranges' starts.
        """
        wanted = {r.partition: r for r in ranges}
        for p, r in wanted.items():
            if p not in self._buffers or self._buffers[p].position != r.start:
                return None
            while self._position(p) < r.end:
                if self._stop.is_set():
                    return None
                try:
                    self._fetch(p)
                except (RecordsLost, SessionLost):
                    if self._firsts()[p] <= r.start:
                        raise
                    return None
            if self._buffers[p].below(r.end) != r.count:
                return None
        taken = self._cut([wanted[p].count if p in wanted else 0 for p in self._partitions], granularity)
        return taken if taken.ranges == tuple(sorted(ranges, key=lambda r: r.partition)) else None


def _lost_message(topic: str, partition: int, position: int, first: int) -> str:
    return (
        f"topic {topic!r}, partition {partition}: records {position} to {first - 1} were deleted by "
        "retention before they were read; nothing was charged. Raise the topic's retention, or set "
        'stream.lost_records = "skip" to go on without them'
    )


def _interleave(parts: list[list[_Chunk]], granularity: int, dim: int, kind: RecordKind) -> Batch:
    """Round-robin over partitions, ``granularity`` records at a time.

    Empties ``parts``: a chunk is freed once it is copied, so the peak is one
    batch and a chunk, as far as chunks are not slices of larger ones.
    """
    chunks = [c for part in parts for c in part]
    lengths = np.concatenate([c.lengths for c in chunks] or [np.zeros(0, np.int64)])
    dtype = np.result_type(np.float32, *(c.rows.dtype for c in chunks))
    del chunks
    counts = [sum(len(c.offsets) for c in part) for part in parts]
    turn = np.concatenate([np.arange(c) // granularity for c in counts])
    order = np.lexsort((np.repeat(np.arange(len(counts)), counts), turn))
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths[order], out=starts[1:])
    places = np.empty(len(lengths), dtype=np.int64)
    places[order] = starts[:-1]
    rows: NDArray[np.floating] = np.empty((int(starts[-1]), dim), dtype=dtype)
    done = 0
    for part in parts:
        while part:
            chunk = part.pop(0)
            own = np.cumsum(chunk.lengths) - chunk.lengths
            there = places[done : done + len(own)]
            rows[np.repeat(there - own, chunk.lengths) + np.arange(len(chunk.rows))] = chunk.rows
            done += len(own)
            del chunk
    return Batch(rows, starts, kind)
