"""Batches of an input topic, cut on public quantities only.

The boundaries and the order of a batch depend on the partitions, the order of offsets, the number of records
that each partition delivered, and the worker's clock, not on contents or the pace of records' arrival here
(docs/explanation/batch-boundaries.md). While a batch is in progress, the next one is fetched and decoded, up
to the share ``worker.read_ahead``: reading before a reservation is allowed.

Offsets only grow, unless the topic loses its tail in an unclean election or with a replaced disk. Then new
records would get offsets that were already charged, so an end below a position stops the stream.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.data.batch import Batch
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import Schemas
from streaming_pca.errors import LibraryMissing
from streaming_pca.estimators.base import Plan
from streaming_pca.privacy.ledger.entries import OffsetRange
from streaming_pca.service.errors import (
    BrokerUnreachable,
    DeadlineExceeded,
    RecordsLost,
    SessionLost,
    StreamRefused,
)
from streaming_pca.service.executors import Executors, Pool
from streaming_pca.service.input.cut import BatchCutter, round_robin_quota
from streaming_pca.service.input.end_offsets import EndOffsets, OffsetFeed, Offsets
from streaming_pca.service.input.reader import Reader, ReaderFactory, deleted, read_to, tail_lost

T = TypeVar("T")

log = logging.getLogger(__name__)

_READ_AHEAD_BYTES, _READ_AHEAD_MESSAGES = 2**24, 2**14
"""Amount to read ahead even for small batches, until the first of the two limits is reached."""


CodecMaker = Callable[["Schemas | None"], PayloadCodec]  # factory of the decoder for a registry's schemas


def build_codec(
    stream: StreamSettings, user_key: bytes | None, schemas: Schemas | None = None
) -> PayloadCodec:
    """Return the decoder of a stream's messages.

    ``user_key``: key of the users' hashes, if users are the unit of privacy. ``schemas``: a registry's, by
    id. Raises ConfigurationError if the format's library is missing, or no schema has some feature.
    """
    try:
        if schemas is None or stream.features is None:
            fields = stream.fields
        else:
            fields = FieldReader(stream.features, stream.user_field, None, schemas)
    except (LibraryMissing, ValueError) as error:
        raise ConfigurationError(str(error)) from None
    form = (stream.dim, stream.record_kind, stream.dtype, stream.max_rows, stream.privacy_unit)
    return PayloadCodec(*form, user_key, stream.local_guarantee, stream.content_type, fields)


@dataclass(frozen=True)
class OffsetBatch:
    batch: Batch
    ranges: tuple[OffsetRange, ...]
    positions: Offsets  # start of the next batch, by partition
    epochs: dict[int, int]
    """Epochs of the leaders that accepted the last record before each position, if known."""
    users: NDArray[np.uint64] | None = None
    """(m, 2) keyed hashes of the messages' keys, if the user is the unit of privacy."""
    schemas: Schemas | None = None  # a registry's schemas that decoded the records


class Source:
    """Source of one input topic's batches; only :meth:`stop` is thread-safe.

    - ``reader``: has no partitions yet; this source closes it.
    - ``positions``: starting offsets. A partition without one, never reserved, starts at its first record.
    - ``epochs``: epoch of the last record before a position, if known: reading stops if it is lost.
    - ``feed``: the session's feed, which outlives this source.
    - ``ahead``: share of a batch of the last plan's size that :meth:`read_ahead` reads.
    - ``codec_of``: called when end offsets arrive with schemas other than the initial ``schemas``.

    Memory: reading a partition stops when it has its quota of the next batch. With the service's reader,
    buffers hold one batch plus at most one poll (2,000 records) per partition. During a batch in progress
    they hold the share ``ahead`` of it, or 16 MiB, plus at most one such poll per partition.
    """

    def __init__(
        self,
        reader: Reader,
        topic: str,
        partitions: Sequence[int],
        positions: Offsets,
        epochs: dict[int, int],
        feed: OffsetFeed,
        skip_lost: bool = False,
        max_wait: float | None = None,
        ahead: float = 0.0,
        schemas: Schemas | None = None,
        codec_of: CodecMaker | None = None,
    ) -> None:
        self._reader, self._topic = reader, topic
        self._schemas, self._codec_of = schemas, codec_of
        self._skip_lost, self._read_ahead_share = skip_lost, ahead
        self._feed, self._cutter = feed, BatchCutter(feed, max_wait)
        self._stop = threading.Event()
        self._buffers, self.release_memory = reader.buffers, reader.release_memory
        # For partitions, too, that a broker with old metadata names later.
        self._starts = positions, {} if skip_lost else epochs
        self._plan: Plan | None = None
        self._always_waits, self._note_pairs = max_wait is None, False
        try:
            self._add_partitions(partitions)
        except BaseException:
            self.close()
            raise

    def _add_partitions(self, partitions: Iterable[int]) -> None:
        new = sorted(partitions)
        if not new:
            return
        first, (positions, epochs) = self._reader.first_offsets(new), self._starts
        starts = {p: positions.get(p, first[p]) for p in new}
        for p, start in starts.items():
            if start < first[p]:
                if not self._skip_lost:
                    raise deleted(self._topic, p, start, first[p])
                starts[p] = first[p]
        self._reader.add(starts, epochs)

    @property
    def positions(self) -> Offsets:
        return {p: b.position for p, b in list(self._buffers.items())}

    @property
    def epochs(self) -> dict[int, int]:
        return {p: b.epoch for p, b in list(self._buffers.items()) if b.epoch >= 0}

    @property
    def lag(self) -> float:
        """Offsets between the positions and the newest ends, NaN before any are known; thread-safe."""
        positions, ends = self.positions, self._feed.last
        return sum(max(end - positions.get(p, 0), 0) for p, end in ends.items()) if ends else math.nan

    def stop(self) -> None:
        """Make :meth:`poll` and :meth:`read_reserved` return None soon; thread-safe."""
        self._stop.set()
        self._reader.stop()

    def close(self) -> None:
        self._reader.close()

    def set_plan(self, plan: Plan) -> None:
        """Set the next batch's plan, before :meth:`poll`; ``granularity`` messages stay together."""
        self._plan, self._note_pairs = plan, self._always_waits
        self._cutter.schedule_wake()

    def poll(self) -> OffsetBatch | None:
        """Return the planned batch once end offsets cut it; None before that, or when stopped.

        Call again when the feed notifies: this method waits only for existing records.
        """
        assert self._plan is not None, "call set_plan first"
        quotas = self._cutter.next_quotas(self._quotas_at)
        if quotas is None or self._stop.is_set():
            return None
        granularity = self._plan.granularity
        return self._cut([quota * granularity for quota in quotas], granularity)

    def read_ahead(self) -> bool:
        """Fetch and decode a little of the next batch; return whether to continue.

        Batches do not change: only end offsets decide. False when the wanted share of a batch is buffered,
        round-robin over partitions as it will be taken, or all records that the newest ends cover.
        """
        assert self._plan is not None, "call set_plan first"
        if not self._reader.ahead:
            return False
        ends = self._feed.last
        partitions = self._partitions
        available = [self._buffers[p].count for p in partitions]
        complete = [self._reader.position(p) >= ends.get(p, 0) for p in partitions]
        wanted = math.ceil(self._read_ahead_share * self._plan.count)
        if self._reader.bytes < _READ_AHEAD_BYTES and sum(available) < _READ_AHEAD_MESSAGES:
            wanted = max(wanted, sum(available) + 1)
        level, enough = round_robin_quota(available, complete, wanted)
        if enough is not None or all(complete):
            return False
        shown = zip(partitions, available, complete, strict=True)
        self._reader.fetch({p: level for p, a, c in shown if not c and a < level}, ends)
        return not self._stop.is_set()

    def _quotas_at(self, end_offsets: EndOffsets, late: bool) -> list[int] | None:
        """Return partitions' quotas, by granularity; late, everything below the ends. None if too few."""
        plan = self._plan
        assert plan is not None
        if self._stop.is_set():
            return None
        if self._codec_of is not None and end_offsets.schemas is not self._schemas:
            # Reread buffered records, so that only the tick decides how a record is decoded.
            self._reader.restart(self._codec_of(end_offsets.schemas))
            self._schemas = end_offsets.schemas
        self._add_partitions([p for p in end_offsets.ends if p not in self._buffers])
        self._check_tails(end_offsets)
        if not late:
            return self._fetch_quotas(end_offsets, plan.count // plan.granularity, plan.granularity)
        # A reader that reads ahead has already reached the ends.
        if not read_to(self._reader, self._topic, end_offsets.ends, self._stop.is_set):
            return None
        quotas = [self._available(end_offsets, p) // plan.granularity for p in self._partitions]
        return quotas if sum(quotas) * plan.granularity >= plan.least else None

    def _check_tails(self, end_offsets: EndOffsets) -> None:
        """Refuse partitions that end before the job's positions."""
        short = [p for p, b in self._buffers.items() if end_offsets.ends.get(p, b.position) < b.position]
        if not short or self._skip_lost:
            return
        # A broker may briefly report last stable offsets that are too low, so check again.
        ends = self._reader.last_offsets(short)
        for p in short:
            if ends[p] < self._buffers[p].position:
                raise tail_lost(self._topic, p, self._buffers[p].position, ends[p])

    @property
    def _partitions(self) -> list[int]:
        return sorted(self._buffers)

    def _available(self, end_offsets: EndOffsets, partition: int) -> int:
        """Return the number of buffered records that the end offsets cover."""
        return self._buffers[partition].count_before(end_offsets.ends.get(partition, 0))

    def _fetch_quotas(self, end_offsets: EndOffsets, units: int, granularity: int) -> list[int] | None:
        """Fetch until the quotas are certain; None if the end offsets cover too few."""
        partitions = self._partitions
        while not self._stop.is_set():
            available = [self._available(end_offsets, p) // granularity for p in partitions]
            complete = [self._reader.position(p) >= end_offsets.ends.get(p, 0) for p in partitions]
            level, quotas = round_robin_quota(available, complete, units)
            if quotas is not None or level < 0:
                if quotas is None and self._note_pairs and all(complete):
                    self._note_unpaired(end_offsets, units * granularity)
                return quotas
            if not self._reader.ahead:
                # With the largest supplies that the offsets allow, the level is a lower bound.
                most = [self._most(end_offsets, p) // granularity for p in partitions]
                level, _ = round_robin_quota(most, [True] * len(most), units)
                if level < 0:
                    return None
            shown = zip(partitions, available, complete, strict=True)
            wanted = {p: level * granularity for p, a, c in shown if not c and a < level}
            self._reader.fetch(wanted, end_offsets.ends)
        return None

    def _note_unpaired(self, end_offsets: EndOffsets, count: int) -> None:
        """Log, once a plan, that a batch waits although enough records have arrived."""
        arrived = sum(self._available(end_offsets, p) for p in self._partitions)
        if arrived >= count:
            self._note_pairs = False
            line = (
                "%s: %d records wait for a batch of %d, which takes whole pairs of a partition's records "
                '(centering = "pairs"): if no others come, lower options.n_records, or set max_wait_seconds'
            )
            log.warning(line, self._topic, arrived, count)

    def _most(self, end_offsets: EndOffsets, partition: int) -> int:
        """Return the most records that end offsets can cover: one per unread offset."""
        unread = end_offsets.ends.get(partition, 0) - self._reader.position(partition)
        return self._available(end_offsets, partition) + max(unread, 0)

    def _cut(self, counts: Sequence[int], granularity: int) -> OffsetBatch:
        starts = self.positions
        batch, users = self._reader.take(counts, granularity)
        ranges = tuple(
            OffsetRange(partition=p, start=starts[p], end=self._buffers[p].position, count=count)
            for p, count in zip(self._partitions, counts, strict=True)
            if count
        )
        return OffsetBatch(batch, ranges, self.positions, self.epochs, users, self._schemas)

    def read_reserved(self, ranges: Sequence[OffsetRange], granularity: int = 1) -> OffsetBatch | None:
        """Return exactly the records of a reservation, at whose starts the source must start.

        None if some records no longer exist, or after :meth:`stop`.
        """
        wanted = {r.partition: r for r in ranges}
        ends = self._reader.last_offsets(list(wanted))
        if any(ends[p] < r.end for p, r in wanted.items()):
            return None  # the topic has lost its tail
        if any(p not in self._buffers or self._buffers[p].position != r.start for p, r in wanted.items()):
            return None
        reserved = {r.partition: r.end for r in ranges}
        try:
            reached = read_to(self._reader, self._topic, reserved, self._stop.is_set)
        except (RecordsLost, SessionLost):
            first = self._reader.first_offsets(list(wanted))
            if all(first[p] <= r.start for p, r in wanted.items()):
                raise
            return None
        if not reached or any(self._buffers[p].count_before(r.end) != r.count for p, r in wanted.items()):
            return None
        cut = self._cut([wanted[p].count if p in wanted else 0 for p in self._partitions], granularity)
        return cut if cut.ranges == tuple(sorted(ranges, key=lambda r: r.partition)) else None


class ReadAhead:
    """Task that calls ``step`` to read ahead until it returns False, then after a ``wakeup``.

    Steps never overlap, and none starts after :meth:`stop` has returned.
    """

    def __init__(self, step: Callable[[], Awaitable[bool]], wakeup: asyncio.Event) -> None:
        self._step, self._wakeup = step, wakeup
        self._task: asyncio.Task[None] | None = None
        self._wanted = False

    def start(self) -> None:
        assert self._task is None, "it runs"
        self._wanted = True
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Wait for the current step, if any; raise the error of a step."""
        task, self._task, self._wanted = self._task, None, False
        if task is not None:
            self._wakeup.set()
            try:
                await task
            finally:
                # As in `Executors.call`: an error must not keep records alive.
                del task

    async def _run(self) -> None:
        while self._wanted:
            # Cleared first, so that a wake-up during a step is not missed.
            self._wakeup.clear()
            while self._wanted and await self._step():
                pass
            if self._wanted:
                await self._wakeup.wait()


class Input:
    """Asynchronous input of a session, with one source at a time.

    ``wakeup`` is set when data may be available, or when the session should stop.
    """

    def __init__(
        self, settings: Settings, executors: Executors, wakeup: asyncio.Event, make_reader: ReaderFactory
    ) -> None:
        self._settings, self._executors, self._make_reader = settings, executors, make_reader
        self._source: Source | None = None
        self._stopped = False
        self._read_ahead_task = ReadAhead(self._read_step, wakeup)

    def stop(self) -> None:
        """End current and later reads early, permanently."""
        self._stopped = True
        if self._source is not None:
            self._source.stop()

    @property
    def lag(self) -> float:
        """Offsets between the next batch's start and the newest ends, NaN if unknown; thread-safe."""
        source = self._source
        return math.nan if source is None else source.lag

    async def open(
        self,
        partitions: tuple[int, ...],
        codec: PayloadCodec,
        positions: Offsets,
        epochs: dict[int, int],
        feed: OffsetFeed,
        skip_lost: bool | None = None,
        codec_of: CodecMaker | None = None,
    ) -> None:
        """Start reading; ``skip_lost`` defaults to the stream's, ``codec_of`` is for a registry's schemas."""
        kafka, stream = self._settings.kafka, self._settings.stream
        skip = stream.lost_records == "skip" if skip_lost is None else skip_lost

        def open_source() -> Source:
            reader = self._make_reader(kafka, stream, codec, len(partitions), skip, feed.check)
            wait, ahead = stream.max_wait_seconds, self._settings.worker.read_ahead
            how = (feed, skip, wait, ahead, codec.schemas, codec_of)
            return Source(reader, stream.input, partitions, positions, epochs, *how)

        self._source = await self._call("opening the input", open_source, deadline=60.0)
        if self._stopped:
            self._source.stop()

    async def close(self) -> None:
        source = self._source
        if source is None:
            return
        source.stop()
        # An error of reading ahead does not matter now, because the next batch is not needed.
        with contextlib.suppress(Exception):
            await self._read_ahead_task.stop()
        self._source = None
        await self._call("closing the input", source.close, deadline=30.0)

    async def set_plan(self, plan: Plan) -> None:
        """Set the next batch's plan and end reading ahead; raise an error from the latter."""
        await self._read_ahead_task.stop()
        self._opened.set_plan(plan)

    async def poll(self) -> OffsetBatch | None:
        """Return the planned batch once it is cut, and start reading its successor ahead."""
        cut = await self._call("reading records", self._opened.poll, pool=Pool.READING)
        if cut is not None:
            self._read_ahead_task.start()
        return cut

    async def release_memory(self) -> None:
        if self._source is not None:
            await self._call("releasing a batch", self._source.release_memory)

    async def read_reserved(self, ranges: Sequence[OffsetRange], granularity: int) -> OffsetBatch | None:
        """Return exactly the records of a reservation; None if some no longer exist, or when stopped."""
        return await self._call("reading the batch again", self._opened.read_reserved, ranges, granularity)

    async def _read_step(self) -> bool:
        return await self._call("reading ahead", self._opened.read_ahead, pool=Pool.READING)

    @property
    def _opened(self) -> Source:
        assert self._source is not None, "open first"
        return self._source

    async def _call(
        self,
        task: str,
        function: Callable[..., T],
        *args: Any,
        pool: Pool = Pool.RECORDS,
        deadline: float = 0.0,
    ) -> T:
        """Run a function that handles records before they are charged.

        An unknown error may reveal them: an allocation error's shape contains the number of non-null records.
        """
        try:
            return await self._executors.call(pool, task, function, *args, deadline=deadline)
        except (SessionLost, RecordsLost, StreamRefused, BrokerUnreachable, DeadlineExceeded):
            raise
        except Exception:
            raise StreamRefused(
                f"{task} failed; the reason is withheld because it could reveal records"
            ) from None
