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

A batch that ``max_wait`` closes takes all that its snapshot has. A partition
that the topic has gained is read from the first snapshot that shows it.

Offsets only grow, unless the topic loses its tail: an unclean election, or a
replaced disk. Then new records come under offsets that were charged already, so
an end below a position stops the stream.
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

from streaming_pca.estimators.base import Plan
from streaming_pca.privacy.entries import OffsetRange
from streaming_pca.records import Batch
from streaming_pca.service.assembly import Buffer, share
from streaming_pca.service.clients import first_offsets, last_offsets, reading_consumer, seek
from streaming_pca.service.closing import Closing
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.gathering import Gathering
from streaming_pca.service.kafka.records import UnreadableBatch
from streaming_pca.service.snapshots import Ends, Feed, Snapshot
from streaming_pca.service.user_log import UserLog
from streaming_pca.settings import KafkaSettings, StreamSettings
from streaming_pca.wire import PayloadCodec

__all__ = ["Source", "Taken", "codec_of"]

_PATIENCE_SECONDS = 60.0
"""How long records that were there once may fail to come."""
_FETCH_BYTES = 4 * 2**20
"""Fetched ahead by all partitions together (1 MiB each at least). A client has up to six copies of it while
it is decoded: larger fetches are hardly faster."""
_LEAST_BYTES, _LEAST_MESSAGES = 2**24, 2**14
"""What may be read ahead, whichever is less, however small a batch is."""
_POLL_MS = 20
"""A poll that meets nothing but a transaction's marker goes on waiting: it must not for long."""


def codec_of(stream: StreamSettings, users: UserLog | None) -> PayloadCodec:
    """What reads a stream's messages; ``users`` where they are the unit of privacy."""
    return PayloadCodec(
        stream.dim,
        stream.record_kind,
        stream.dtype,
        stream.max_rows,
        stream.privacy_unit,
        None if users is None else users.key,
        stream.local_promise,
    )


@dataclass(frozen=True)
class Taken:
    """A batch and where it came from."""

    batch: Batch
    ranges: tuple[OffsetRange, ...]
    positions: Ends
    """Where the next batch starts."""
    epochs: Ends
    """Of the leaders that took the last record before each position, as far as they are known."""
    users: NDArray[np.uint64] | None = None
    """(m, 2) keyed hashes of the messages' keys, where the user is the unit of privacy."""


class Source:
    """Reads one input topic; not thread-safe but for :meth:`stop`.

    Parameters
    ----------
    kafka : KafkaSettings
    topic : str
    partitions : sequence of int
        Those known now.
    codec : PayloadCodec
    positions : dict of partition to offset
        Where to start; a partition without one, which the job never reserved, starts at its first record.
    epochs : dict of partition to leader epoch
        Of the last record before a position, as far as it is known: where the partition has lost that
        record, reading stops.
    feed : Feed
        Of the session; it outlives this source.
    skip_lost : bool
        Whether to start later where records are gone.
    max_wait : float or None
        Seconds.
    ahead : float
        Of a batch as large as the one that was aimed at last: what :meth:`read_ahead` gathers.

    Notes
    -----
    Memory: a partition is not polled once it shows its share of the batch that
    is gathered. Buffers hold one batch and at most a poll (2,000 records) a
    partition more; beside a batch that is in hand, ``ahead`` of it and as much,
    or 16 MiB and as much. A batch is not copied: it shares the buffers' rows.

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
        epochs: Ends,
        feed: Feed,
        skip_lost: bool = False,
        max_wait: float | None = None,
        ahead: float = 0.0,
    ) -> None:
        self._kafka, self._topic, self._codec = kafka, topic, codec
        self._skip_lost, self._share_ahead = skip_lost, ahead
        self._feed, self._closing = feed, Closing(feed, max_wait)
        self._stop = threading.Event()
        self._consumers: dict[int, KafkaConsumer] = {}
        self._gathering = Gathering(codec)
        self._buffers = self._gathering.buffers
        self._fetch_bytes = max(_FETCH_BYTES // len(partitions), 2**20)
        self._plan: Plan | None = None
        try:
            self._add(partitions, positions, epochs)
        except BaseException:
            self.close()
            raise

    def _add(self, partitions: Iterable[int], positions: Ends, epochs: Ends) -> None:
        """Start to read partitions."""
        new = sorted(partitions)
        if not new:
            return
        for p in new:
            self._consumers[p] = reading_consumer(self._kafka, fetch_bytes=self._fetch_bytes, io="records")
        first = self._firsts(new)
        for p in new:
            position = positions.get(p, first[p])
            if position < first[p]:
                if not self._skip_lost:
                    raise RecordsLost(_deleted(self._topic, p, position, first[p]))
                position = first[p]
            epoch = -1 if self._skip_lost else epochs.get(p, -1)
            self._consumers[p].assign([self._tp(p)])
            seek(self._consumers[p], self._tp(p), position, epoch)
            self._buffers[p] = Buffer(position, epoch)

    def _tp(self, partition: int) -> TopicPartition:
        return TopicPartition(self._topic, partition)

    def _firsts(self, partitions: Sequence[int]) -> Ends:
        try:
            found = first_offsets(
                self._consumers[partitions[0]],
                [self._tp(p) for p in partitions],
                self._kafka.request_timeout_ms,
            )
        except KafkaError as error:
            raise SessionLost(f"reading partition starts failed: {type(error).__name__}") from None
        return {tp.partition: offset for tp, offset in found.items()}

    def _ends(self, partitions: Sequence[int]) -> Ends:
        """Where partitions end, open transactions included."""
        consumer = reading_consumer(self._kafka, committed=False)
        try:
            found = last_offsets(consumer, [self._tp(p) for p in partitions], self._kafka.request_timeout_ms)
        except KafkaError as error:
            raise SessionLost(f"reading partition ends failed: {type(error).__name__}") from None
        finally:
            consumer.close(autocommit=False)
        return {tp.partition: offset for tp, offset in found.items()}

    @property
    def positions(self) -> Ends:
        """Where the next batch starts, by partition."""
        return {p: b.position for p, b in list(self._buffers.items())}

    @property
    def epochs(self) -> Ends:
        """Leader epochs of the last records before the positions, as far as they are known."""
        return {p: b.epoch for p, b in list(self._buffers.items()) if b.epoch >= 0}

    @property
    def lag(self) -> int:
        """Offsets between the positions and the newest ends; from any thread."""
        positions = self.positions
        return sum(max(end - positions.get(p, 0), 0) for p, end in self._feed.last.items())

    def stop(self) -> None:
        """Make :meth:`advance` and :meth:`retake` return None soon; from any thread."""
        self._stop.set()

    def close(self) -> None:
        """Release all consumers."""
        for consumer in self._consumers.values():
            consumer.close(autocommit=False)

    def aim(self, plan: Plan) -> None:
        """Say what the next batch shall be; before :meth:`advance`.

        ``plan.granularity`` consecutive messages of a partition stay together.
        """
        self._plan = plan
        self._closing.aim()

    def advance(self) -> Taken | None:
        """The batch that was aimed at, as soon as a snapshot closes it.

        None when that is not yet so, or when stopped. Call again when the
        feed notifies: it waits for nothing but records that are there.
        """
        assert self._plan is not None, "aim first"
        shares = self._closing.advance(self._shares_under)
        if shares is None or self._stop.is_set():
            return None
        granularity = self._plan.granularity
        return self._cut([s * granularity for s in shares], granularity)

    def read_ahead(self) -> bool:
        """Fetch and decode a little for the batch after the one that was taken; whether there is more to do.

        What it fetches changes no batch: that depends on snapshots alone, and
        :meth:`advance` would fetch the same. False when a share of a batch
        is here, round-robin over partitions as it will be taken, or
        everything that the newest ends cover.
        """
        assert self._plan is not None, "aim first"
        ends = self._feed.last
        partitions = self._partitions
        available = [self._buffers[p].count for p in partitions]
        closed = [self._position(p) >= ends.get(p, 0) for p in partitions]
        wanted = math.ceil(self._share_ahead * self._plan.count)
        if self._gathering.bytes < _LEAST_BYTES and sum(available) < _LEAST_MESSAGES:
            wanted = max(wanted, sum(available) + 1)
        level, enough = share(available, closed, wanted)
        if enough is not None or all(closed):
            return False
        for p, a, c in zip(partitions, available, closed, strict=True):
            if not c and a < level and not self._stop.is_set():
                self._fetch(p)
        return not self._stop.is_set()

    @property
    def buffered(self) -> int:
        """Records that were read and not taken yet."""
        return sum(b.count for b in list(self._buffers.values()))

    def _shares_under(self, snapshot: Snapshot, late: bool) -> list[int] | None:
        """What each partition gives under a snapshot, in units of the plan's granularity."""
        plan = self._plan
        assert plan is not None
        if self._stop.is_set():
            return None
        self._add([p for p in snapshot.ends if p not in self._buffers], {}, {})
        self._check_tails(snapshot)
        if not late:
            return self._cover(snapshot, plan.count // plan.granularity, plan.granularity)
        shares = [self._below(snapshot, p) // plan.granularity for p in self._partitions]
        return shares if sum(shares) * plan.granularity >= plan.least else None

    def _check_tails(self, snapshot: Snapshot) -> None:
        """Refuse partitions that end before what the job has taken of them."""
        short = [p for p, b in self._buffers.items() if snapshot.ends.get(p, b.position) < b.position]
        if not short or self._skip_lost:
            return
        # Not by the snapshot alone, which holds stable offsets: a broker may say less of them for a moment.
        ends = self._ends(short)
        for p in short:
            if ends[p] < self._buffers[p].position:
                raise RecordsLost(_tail_lost(self._topic, p, self._buffers[p].position, ends[p]))

    @property
    def _partitions(self) -> list[int]:
        return self._gathering.partitions

    def _below(self, snapshot: Snapshot, partition: int) -> int:
        """Records in the buffer that the snapshot covers."""
        return self._buffers[partition].below(snapshot.ends.get(partition, 0))

    def _cover(self, snapshot: Snapshot, units: int, granularity: int) -> list[int] | None:
        """Shares under a snapshot, fetching until they are certain; None if it is too small."""
        partitions = self._partitions
        while not self._stop.is_set():
            available = [self._below(snapshot, p) // granularity for p in partitions]
            closed = [self._position(p) >= snapshot.ends.get(p, 0) for p in partitions]
            level, shares = share(available, closed, units)
            if shares is not None or level < 0:
                return shares
            for p, a, c in zip(partitions, available, closed, strict=True):
                if not c and a < level:
                    self._fetch(p)
        return None

    def _position(self, partition: int) -> int:
        try:
            position = self._consumers[partition].position(
                self._tp(partition), timeout_ms=self._kafka.request_timeout_ms
            )
        except LogTruncationError as error:
            self._truncated(partition, error)
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
        self._feed.check()
        try:
            polled = self._consumers[partition].poll(timeout_ms=_POLL_MS)
        except OffsetOutOfRangeError:
            position, first = self._position(partition), self._firsts([partition])[partition]
            if position < first and self._skip_lost:
                raise SessionLost(f"records of {self._topic}-{partition} were deleted: skipping") from None
            if position < first:
                raise RecordsLost(_deleted(self._topic, partition, position, first)) from None
            raise SessionLost(f"position {position} of {self._topic}-{partition} is out of range") from None
        except LogTruncationError as error:
            self._truncated(partition, error)
        except UnreadableBatch as error:
            raise RecordsLost(
                f"topic {self._topic!r}, partition {partition}: {error}: they were written before the topic "
                "was kept as it is now, and are not read. Produce them again into a new topic, or delete "
                f"them (`kafka-delete-records`, partition {partition} up to offset {error.end}) and set "
                'stream.lost_records = "skip"'
            ) from None
        except KafkaError as error:
            # Not its text: that may hold bytes of a record.
            raise SessionLost(
                f"reading {self._topic}-{partition} at offset {self._position(partition)} failed: "
                f"{type(error).__name__}"
            ) from None
        for messages in polled.values():
            self._gathering.append(partition, messages)

    def _truncated(self, partition: int, error: LogTruncationError) -> NoReturn:
        """Stop where a new leader does not have what its predecessor had."""
        # Where the two part; None where the new one does not know the old one.
        parted = error.divergent_offsets.get(self._tp(partition))
        end, position = (0 if parted is None else parted.offset), self._buffers[partition].position
        if end < position and not self._skip_lost:
            raise RecordsLost(_tail_lost(self._topic, partition, position, end)) from None
        raise SessionLost(f"{self._topic}-{partition} has lost what followed offset {end}") from None

    def _cut(self, counts: Sequence[int], granularity: int) -> Taken:
        starts = self.positions
        batch, users = self._gathering.take(counts, granularity)
        ranges = tuple(
            OffsetRange(partition=p, start=starts[p], end=self._buffers[p].position, count=count)
            for p, count in zip(self._partitions, counts, strict=True)
            if count
        )
        return Taken(batch, ranges, self.positions, self.epochs, users)

    def give_back(self) -> None:
        """Nobody reads the batch that was taken last, or will: the next ones may use its memory."""
        self._gathering.give_back()

    def retake(self, ranges: Sequence[OffsetRange], granularity: int = 1) -> Taken | None:
        """Take the very records of a reservation; None if some are gone or :meth:`stop` was called.

        The source must have been started at the ranges' starts.
        """
        wanted = {r.partition: r for r in ranges}
        ends = self._ends(list(wanted))
        if any(ends[p] < r.end for p, r in wanted.items()):
            return None  # the topic has lost its tail
        for p, r in wanted.items():
            if p not in self._buffers or self._buffers[p].position != r.start:
                return None
            position, moved = self._position(p), time.monotonic()
            while position < r.end:
                if self._stop.is_set():
                    return None
                if time.monotonic() - moved > _PATIENCE_SECONDS:
                    raise SessionLost(f"{self._topic}-{p} cannot be read to {r.end}: it stops at {position}")
                try:
                    self._fetch(p)
                except (RecordsLost, SessionLost):
                    if self._firsts([p])[p] <= r.start:
                        raise
                    return None
                reached = self._position(p)
                if reached > position:
                    position, moved = reached, time.monotonic()
            if self._buffers[p].below(r.end) != r.count:
                return None
        taken = self._cut([wanted[p].count if p in wanted else 0 for p in self._partitions], granularity)
        return taken if taken.ranges == tuple(sorted(ranges, key=lambda r: r.partition)) else None


def _deleted(topic: str, partition: int, position: int, first: int) -> str:
    return (
        f"topic {topic!r}, partition {partition}: records {position} to {first - 1} were deleted by "
        "retention before they were read; nothing was charged. Raise the topic's retention, or set "
        'stream.lost_records = "skip" to go on without them'
    )


def _tail_lost(topic: str, partition: int, position: int, end: int) -> str:
    return (
        f"topic {topic!r}, partition {partition}: records {end} to {position - 1}, which were charged, are "
        "lost (an unclean election, or a replaced disk). Records that come in their places cannot be charged "
        'again. Read a new topic, or set stream.lost_records = "skip" to go on without those'
    )
