"""Input topic to batches, cut on public quantities only.

The boundaries and the order of a batch depend on the partitions, the order of offsets, the number
of records that each partition delivered, and the worker's clock. They do not depend on sizes,
contents, keys, producer timestamps, or the pace at which records arrived here. Mechanism and
proof: docs/explanation/batch-boundaries.md.

Offsets only grow, unless the topic loses its tail by an unclean election or a replaced disk. New
records would then come under offsets that were charged already, so an end below a position stops
the stream.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn

import numpy as np
from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError, LogTruncationError, OffsetOutOfRangeError
from numpy.typing import NDArray

from streaming_pca.config.settings import KafkaSettings, StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.records import Batch
from streaming_pca.estimators.base import Plan
from streaming_pca.privacy.ledger.entries import OffsetRange
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.input.buffer import PartitionBuffer, RecordBuffer
from streaming_pca.service.input.cut import BatchCutter, round_robin_quota
from streaming_pca.service.input.end_offsets import EndOffsets, OffsetFeed, Offsets
from streaming_pca.service.kafka.clients import first_offsets, last_offsets, reading_consumer, seek
from streaming_pca.service.kafka.record_batches import UnreadableBatch

__all__ = ["CutBatch", "Source", "build_codec"]

_STALL_SECONDS = 60.0
"""Time limit for the arrival of records that existed once."""
_FETCH_BYTES = 4 * 2**20
"""Bytes fetched ahead by all partitions together, 1 MiB each at least.

A client has up to six copies of it while it is decoded; larger fetches are hardly faster.
"""
_READ_AHEAD_BYTES, _READ_AHEAD_MESSAGES = 2**24, 2**14
"""Read ahead however small a batch is, until the first of the two is reached."""
_POLL_MS = 20
"""Time limit of a poll, which goes on waiting when it meets only a transaction's marker."""


def build_codec(stream: StreamSettings, user_key: bytes | None) -> PayloadCodec:
    """Return the decoder of a stream's messages.

    ``user_key`` keys the hashes of users, where they are the unit of privacy.
    """
    return PayloadCodec(
        stream.dim,
        stream.record_kind,
        stream.dtype,
        stream.max_rows,
        stream.privacy_unit,
        user_key,
        stream.local_guarantee,
        stream.content_type,
    )


@dataclass(frozen=True)
class CutBatch:
    """Batch with the offsets that it came from."""

    batch: Batch
    ranges: tuple[OffsetRange, ...]
    positions: Offsets
    """Start of the next batch, by partition."""
    epochs: dict[int, int]
    """Epochs of the leaders that took the last record before each position, where known."""
    users: NDArray[np.uint64] | None = None
    """(m, 2) keyed hashes of the messages' keys, where the user is the unit of privacy."""


class Source:
    """Reader of one input topic; not thread-safe but for :meth:`stop`.

    Parameters
    ----------
    kafka : KafkaSettings
    topic : str
    partitions : sequence of int
        The partitions known now.
    codec : PayloadCodec
    positions : dict of partition to offset
        Where to start. A partition without a position, which the job never reserved, starts at its
        first record.
    epochs : dict of partition to leader epoch
        Epoch of the last record before a position, where known: reading stops where the partition
        has lost that record.
    feed : OffsetFeed
        The session's; it outlives this source.
    skip_lost : bool
        Whether to start later where records are gone.
    max_wait : float or None
        Seconds.
    ahead : float
        Part of a batch of the last plan's size that :meth:`read_ahead` gathers.

    Notes
    -----
    Memory: a partition is not polled once it shows its quota of the batch that is gathered. Buffers
    hold one batch and at most a poll (2,000 records) a partition more. Beside a batch in progress they
    hold ``ahead`` of it, or 16 MiB, and at most such a poll a partition more. A batch is not copied: it
    shares the buffers' rows.

    Each partition has a consumer of its own, because kafka-python loses records of paused partitions
    (docs/explanation/kafka-client.md).
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        topic: str,
        partitions: Sequence[int],
        codec: PayloadCodec,
        positions: Offsets,
        epochs: dict[int, int],
        feed: OffsetFeed,
        skip_lost: bool = False,
        max_wait: float | None = None,
        ahead: float = 0.0,
    ) -> None:
        self._kafka, self._topic, self._codec = kafka, topic, codec
        self._skip_lost, self._read_ahead_share = skip_lost, ahead
        self._feed, self._cutter = feed, BatchCutter(feed, max_wait)
        self._stop = threading.Event()
        self._consumers: dict[int, KafkaConsumer] = {}
        self._buffer = RecordBuffer(codec)
        self._buffers = self._buffer.buffers
        self._fetch_bytes = max(_FETCH_BYTES // len(partitions), 2**20)
        self._plan: Plan | None = None
        try:
            self._add_partitions(partitions, positions, epochs)
        except BaseException:
            self.close()
            raise

    def _add_partitions(self, partitions: Iterable[int], positions: Offsets, epochs: dict[int, int]) -> None:
        """Start to read partitions."""
        new = sorted(partitions)
        if not new:
            return
        for p in new:
            self._consumers[p] = reading_consumer(self._kafka, fetch_bytes=self._fetch_bytes, io="records")
        first = self._first_offsets(new)
        for p in new:
            position = positions.get(p, first[p])
            if position < first[p]:
                if not self._skip_lost:
                    raise RecordsLost(_deleted_message(self._topic, p, position, first[p]))
                position = first[p]
            epoch = -1 if self._skip_lost else epochs.get(p, -1)
            self._consumers[p].assign([self._tp(p)])
            seek(self._consumers[p], self._tp(p), position, epoch)
            self._buffers[p] = PartitionBuffer(position, epoch)

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def _first_offsets(self, partitions: Sequence[int]) -> Offsets:
        try:
            found = first_offsets(
                self._consumers[partitions[0]],
                [self._tp(p) for p in partitions],
                self._kafka.request_timeout_ms,
            )
        except KafkaError as error:
            raise SessionLost(f"reading partition starts failed: {type(error).__name__}") from None
        return {tp.partition: offset for tp, offset in found.items()}

    def _last_offsets(self, partitions: Sequence[int]) -> Offsets:
        """Return the ends of partitions, open transactions included."""
        consumer = reading_consumer(self._kafka, committed=False)
        try:
            found = last_offsets(consumer, [self._tp(p) for p in partitions], self._kafka.request_timeout_ms)
        except KafkaError as error:
            raise SessionLost(f"reading partition ends failed: {type(error).__name__}") from None
        finally:
            consumer.close(autocommit=False)
        return {tp.partition: offset for tp, offset in found.items()}

    @property
    def positions(self) -> Offsets:
        """Start of the next batch, by partition."""
        return {p: b.position for p, b in list(self._buffers.items())}

    @property
    def epochs(self) -> dict[int, int]:
        """Leader epochs of the last records before the positions, where known."""
        return {p: b.epoch for p, b in list(self._buffers.items()) if b.epoch >= 0}

    @property
    def lag(self) -> int:
        """Offsets between the positions and the newest ends; from any thread."""
        positions = self.positions
        return sum(max(end - positions.get(p, 0), 0) for p, end in self._feed.last.items())

    def stop(self) -> None:
        """Make :meth:`poll` and :meth:`read_reserved` return None soon; from any thread."""
        self._stop.set()

    def close(self) -> None:
        """Close all consumers."""
        for consumer in self._consumers.values():
            consumer.close(autocommit=False)

    def set_plan(self, plan: Plan) -> None:
        """Set the plan of the next batch; before :meth:`poll`.

        ``plan.granularity`` consecutive messages of a partition stay together.
        """
        self._plan = plan
        self._cutter.schedule_wake()

    def poll(self) -> CutBatch | None:
        """Return the planned batch once end offsets cut it.

        None before that, or when stopped. Call again when the feed notifies: it waits only for records
        that exist.
        """
        assert self._plan is not None, "call set_plan first"
        quotas = self._cutter.next_quotas(self._quotas_at)
        if quotas is None or self._stop.is_set():
            return None
        granularity = self._plan.granularity
        return self._cut([quota * granularity for quota in quotas], granularity)

    def read_ahead(self) -> bool:
        """Fetch and decode a little of the next batch; return whether more is to do.

        This changes no batch: end offsets alone decide, and :meth:`poll` would fetch the same. False
        when the wanted part of a batch is here, round-robin over partitions as it will be taken, or
        everything that the newest ends cover.
        """
        assert self._plan is not None, "call set_plan first"
        ends = self._feed.last
        partitions = self._partitions
        available = [self._buffers[p].count for p in partitions]
        complete = [self._position(p) >= ends.get(p, 0) for p in partitions]
        wanted = math.ceil(self._read_ahead_share * self._plan.count)
        if self._buffer.bytes < _READ_AHEAD_BYTES and sum(available) < _READ_AHEAD_MESSAGES:
            wanted = max(wanted, sum(available) + 1)
        level, enough = round_robin_quota(available, complete, wanted)
        if enough is not None or all(complete):
            return False
        for p, a, c in zip(partitions, available, complete, strict=True):
            if not c and a < level and not self._stop.is_set():
                self._fetch(p)
        return not self._stop.is_set()

    @property
    def buffered(self) -> int:
        """Records that were read and not cut yet."""
        return sum(b.count for b in list(self._buffers.values()))

    def _quotas_at(self, end_offsets: EndOffsets, late: bool) -> list[int] | None:
        """Return each partition's quota, in units of the plan's granularity.

        A late cut takes everything that the end offsets cover. None if that is too little.
        """
        plan = self._plan
        assert plan is not None
        if self._stop.is_set():
            return None
        self._add_partitions([p for p in end_offsets.ends if p not in self._buffers], {}, {})
        self._check_tails(end_offsets)
        if not late:
            return self._fetch_quotas(end_offsets, plan.count // plan.granularity, plan.granularity)
        quotas = [self._available(end_offsets, p) // plan.granularity for p in self._partitions]
        return quotas if sum(quotas) * plan.granularity >= plan.least else None

    def _check_tails(self, end_offsets: EndOffsets) -> None:
        """Refuse partitions that end before the job's positions."""
        short = [p for p, b in self._buffers.items() if end_offsets.ends.get(p, b.position) < b.position]
        if not short or self._skip_lost:
            return
        # These are last stable offsets, which a broker may report too low for a moment: look again.
        ends = self._last_offsets(short)
        for p in short:
            if ends[p] < self._buffers[p].position:
                raise RecordsLost(_tail_lost_message(self._topic, p, self._buffers[p].position, ends[p]))

    @property
    def _partitions(self) -> list[int]:
        return self._buffer.partitions

    def _available(self, end_offsets: EndOffsets, partition: int) -> int:
        """Return the number of buffered records that the end offsets cover."""
        return self._buffers[partition].count_before(end_offsets.ends.get(partition, 0))

    def _fetch_quotas(self, end_offsets: EndOffsets, units: int, granularity: int) -> list[int] | None:
        """Fetch until the quotas are certain; None if the end offsets cover too few."""
        partitions = self._partitions
        while not self._stop.is_set():
            available = [self._available(end_offsets, p) // granularity for p in partitions]
            complete = [self._position(p) >= end_offsets.ends.get(p, 0) for p in partitions]
            level, quotas = round_robin_quota(available, complete, units)
            if quotas is not None or level < 0:
                return quotas
            for p, a, c in zip(partitions, available, complete, strict=True):
                if not c and a < level:
                    self._fetch(p)
        return None

    def _position(self, partition: int) -> int:
        try:
            position = self._consumers[partition].position(
                self._tp(partition), timeout_ms=self._kafka.request_timeout_ms
            )
        except LogTruncationError as error:
            self._raise_truncated(partition, error)
        except KafkaError as error:
            raise SessionLost(
                f"the position in {self._topic}-{partition} is not known: {type(error).__name__}"
            ) from None
        if position is None:
            raise SessionLost(f"partition {partition} of {self._topic} has no position")
        return int(position)

    def _fetch(self, partition: int) -> None:
        """Poll a partition once and decode into its buffer."""
        # A poll returns {} on a dead broker too; the clock notices that.
        self._feed.check()
        try:
            polled = self._consumers[partition].poll(timeout_ms=_POLL_MS)
        except OffsetOutOfRangeError:
            position, first = self._position(partition), self._first_offsets([partition])[partition]
            if position < first and self._skip_lost:
                raise SessionLost(f"records of {self._topic}-{partition} were deleted: skipping") from None
            if position < first:
                raise RecordsLost(_deleted_message(self._topic, partition, position, first)) from None
            raise SessionLost(f"position {position} of {self._topic}-{partition} is out of range") from None
        except LogTruncationError as error:
            self._raise_truncated(partition, error)
        except UnreadableBatch as error:
            raise RecordsLost(
                f"topic {self._topic!r}, partition {partition}: {error}: they were written before the topic "
                "was kept as it is now, and are not read. Produce them again into a new topic, or delete "
                f"them (`kafka-delete-records`, partition {partition} up to offset {error.end}) and set "
                'stream.lost_records = "skip"'
            ) from None
        except KafkaError as error:
            # The error's text may hold bytes of a record.
            raise SessionLost(
                f"reading {self._topic}-{partition} at offset {self._position(partition)} failed: "
                f"{type(error).__name__}"
            ) from None
        for messages in polled.values():
            self._buffer.append(partition, messages)

    def _raise_truncated(self, partition: int, error: LogTruncationError) -> NoReturn:
        """Stop where a new leader lacks records that its predecessor had."""
        # The offset at which the two logs part; None where the new leader does not know the old one.
        parted = error.divergent_offsets.get(self._tp(partition))
        end, position = (0 if parted is None else parted.offset), self._buffers[partition].position
        if end < position and not self._skip_lost:
            raise RecordsLost(_tail_lost_message(self._topic, partition, position, end)) from None
        raise SessionLost(f"{self._topic}-{partition} has lost what followed offset {end}") from None

    def _cut(self, counts: Sequence[int], granularity: int) -> CutBatch:
        starts = self.positions
        batch, users = self._buffer.take(counts, granularity)
        ranges = tuple(
            OffsetRange(partition=p, start=starts[p], end=self._buffers[p].position, count=count)
            for p, count in zip(self._partitions, counts, strict=True)
            if count
        )
        return CutBatch(batch, ranges, self.positions, self.epochs, users)

    def release_memory(self) -> None:
        """Release the last batch's memory for reuse."""
        self._buffer.release_memory()

    def read_reserved(self, ranges: Sequence[OffsetRange], granularity: int = 1) -> CutBatch | None:
        """Return exactly the records of a reservation.

        The source must have been started at the ranges' starts. None if some records are gone, or
        after :meth:`stop`.
        """
        wanted = {r.partition: r for r in ranges}
        ends = self._last_offsets(list(wanted))
        if any(ends[p] < r.end for p, r in wanted.items()):
            return None  # the topic has lost its tail
        for p, r in wanted.items():
            if p not in self._buffers or self._buffers[p].position != r.start:
                return None
            position, moved = self._position(p), time.monotonic()
            while position < r.end:
                if self._stop.is_set():
                    return None
                if time.monotonic() - moved > _STALL_SECONDS:
                    raise SessionLost(f"{self._topic}-{p} cannot be read to {r.end}: it stops at {position}")
                try:
                    self._fetch(p)
                except (RecordsLost, SessionLost):
                    if self._first_offsets([p])[p] <= r.start:
                        raise
                    return None
                reached = self._position(p)
                if reached > position:
                    position, moved = reached, time.monotonic()
            if self._buffers[p].count_before(r.end) != r.count:
                return None
        cut = self._cut([wanted[p].count if p in wanted else 0 for p in self._partitions], granularity)
        return cut if cut.ranges == tuple(sorted(ranges, key=lambda r: r.partition)) else None


def _deleted_message(topic: str, partition: int, position: int, first: int) -> str:
    return (
        f"topic {topic!r}, partition {partition}: records {position} to {first - 1} were deleted by "
        "retention before they were read; nothing was charged. Raise the topic's retention, or set "
        'stream.lost_records = "skip" to go on without them'
    )


def _tail_lost_message(topic: str, partition: int, position: int, end: int) -> str:
    return (
        f"topic {topic!r}, partition {partition}: records {end} to {position - 1}, which the stream has "
        "passed, are lost (an unclean election, or a replaced disk). It learns from no records that come "
        'in their places. Read a new topic, or set stream.lost_records = "skip" to go on without those'
    )
