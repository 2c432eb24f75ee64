"""One session as leader of a stream: take over, then learn batches until the lead is lost.

This module itself neither calls Kafka nor computes: pools of threads do, so that a long kernel delays
neither heartbeats nor commits. Every exchange has a deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from streaming_pca.config.settings import Settings, TraceSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.records import Schemas
from streaming_pca.data.features.schemas import named_in_ledger
from streaming_pca.data.release import Release
from streaming_pca.estimators.base import Plan, State
from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.privacy.ledger.protocol import JobStatus
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.commit.admission import decode_admitted_state
from streaming_pca.service.commit.batch_result import compute_batch, parameters_of
from streaming_pca.service.commit.checkpoint import CheckpointWriter, TakenOver
from streaming_pca.service.commit.recovery import Action
from streaming_pca.service.commit.state_topic import Checkpoint
from streaming_pca.service.errors import DeadlineExceeded, RecordsLost, SessionLost, StreamRefused
from streaming_pca.service.executors import Executors, Pool, first_of
from streaming_pca.service.input.end_offsets import EndOffsetPoller, OffsetFeed, Offsets
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.reader import ReaderFactory
from streaming_pca.service.input.source import Input, OffsetBatch, build_codec
from streaming_pca.service.logs import StreamLog
from streaming_pca.service.metrics import StreamMetrics
from streaming_pca.service.schema_registry import SchemaRegistry
from streaming_pca.service.topics.find import Topics, input_topic_id
from streaming_pca.service.tracing import Span, Tracing

T = TypeVar("T")

_PAUSED_POLL_SECONDS = 2.0  # polling interval of a paused stream's status
_STATUS_POLL_SECONDS = 10.0  # polling interval of the status while a stream waits for records
_MANY_NULL = 0.5  # share of null records above which the log warns
_LONGEST_TAKE_OVER_SECONDS = 3600.0  # it reads the ledger, 4,000 entries a second; no progress ends it sooner


class _Interrupted(Exception):
    """End of a session that was interrupted before its take-over."""


class Session:
    """Session as leader of one stream.

    ``topics`` are of this session: a recreated topic holds different data.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        executors: Executors,
        poller: EndOffsetPoller,
        metrics: StreamMetrics,
        log: StreamLog,
        make_reader: ReaderFactory = PartitionReader,
        tracing: Tracing | None = None,
        on_taken_over: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings, self._stream, self._topics = settings, settings.stream, topics
        self._estimator = settings.stream.build_estimator()
        self._writer: CheckpointWriter
        self._executors, self._poller = executors, poller
        self._metrics, self._log = metrics, log
        self._tracing = tracing or Tracing(TraceSettings())
        self._on_taken_over = on_taken_over
        self._subject = settings.stream.registry_subject
        self._logged_faults: set[str] = set()  # faults of schemas that were already logged
        self._interrupted = False
        self._wakeup = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._input = Input(settings, executors, self._wakeup, make_reader)
        self._feed: OffsetFeed | None = None
        self._reserved_at: float | None = None
        self.paused = False  # True while the session waits for the stream to be resumed
        self.made_progress = False  # True once a release has been published

    def interrupt(self) -> None:
        """Finish a reserved batch, drop an unreserved one, and end, even if the lead returns."""
        self._interrupted = True
        self._wakeup.set()
        self._input.stop()

    async def run(self) -> bool:
        """Lead until interrupted; True when the stream is done.

        Raises SessionLost or BrokerUnreachable to recover with a new session; StreamRefused, RecordsLost or
        BudgetExceeded if it cannot continue as configured; DeadlineExceeded if the process must end.
        """
        self._writer = CheckpointWriter(self._settings.kafka, self._stream, self._topics.topic_id)
        hanging = False
        try:
            # Not bound to a local: that would keep the first state alive.
            return await self._learn(*await self._take_over())
        except _Interrupted:
            return False
        except RecordsLost:
            # A recreated topic has lost all its records: report that instead.
            await self._check_topic()
            raise
        except DeadlineExceeded as error:
            hanging = True
            raise DeadlineExceeded(f"{error} (step {self._writer.step})") from None
        finally:
            self._metrics.end_session()
            if self._feed is not None:
                self._poller.close_feed(self._feed)
            if not hanging:
                try:
                    await self._input.close()
                finally:
                    await self._executors.call(Pool.COMMITS, "closing", self._writer.close, deadline=30.0)

    async def _take_over(self) -> tuple[TakenOver, State]:
        """Fence the predecessor and finish its last batch; return the state to continue from."""
        with self._tracing.trace("lead", self._stream) as trace:
            # One at a time: it may wait for another job's transaction and must leave threads for others.
            async with self._executors.long_exchange:
                with trace.child("recover"):
                    takeover = await self._executors.call(
                        Pool.COMMITS, "take-over", self._fence, deadline=_LONGEST_TAKE_OVER_SECONDS
                    )
            if takeover is None:
                trace.drop()
                raise _Interrupted
            trace.show(action=takeover.recovery.action.name.lower(), leader_epoch=self._writer.epoch)
            self._on_taken_over()
            self._show_ledger()
            return takeover, await self._recover(takeover, trace)

    def _fence(self) -> TakenOver | None:
        """Take over, unless interrupted while waiting: that would fence the stream's next leader."""
        return None if self._interrupted else self._writer.take_over()

    async def _recover(self, takeover: TakenOver, trace: Span) -> State:
        checkpoint = takeover.checkpoint
        if takeover.recovery.action is Action.PUBLISH:
            await self._publish(trace)
        elif checkpoint is not None:
            self._show_release(Release.from_bytes(checkpoint.release))
        # Opened before resuming a batch: the duration of that must not affect the next cut.
        self._feed = self._poller.open_feed(
            self._stream.input, self._topics.partitions, self._notify, self._topics.topic_id, self._subject
        )
        state: State = (
            self._estimator.init(utility_generator(self._stream.seed))
            if checkpoint is None
            else decode_admitted_state(self._stream, self._estimator, checkpoint.state)
        )
        is_resumed = takeover.recovery.action is Action.RESUME
        if takeover.standing is JobStatus.PAUSED and not is_resumed:
            # A paused stream reads nothing.
            return state
        if self._subject is not None and not await self._wait_for_schemas(self._feed):
            # Leave a reserved batch to the next session.
            return state
        self._codec = await self._make_codec(self._feed.schemas)
        if not self._codec.arrow:
            self._log.info("pyarrow is not installed: Arrow payloads are null records")
        if is_resumed:
            with trace.child("batch") as span:
                state = await self._resume(state, takeover, span)
        return state

    async def _wait_for_schemas(self, feed: OffsetFeed) -> bool:
        """Wait for the first listing, or every record is null yet charged; False when interrupted."""
        self._metrics.set_source("listed", lambda: feed.listed_at)
        while feed.schemas is None and not self._interrupted:
            self._wakeup.clear()
            feed.check()
            if feed.unlisted is not None:
                raise feed.unlisted
            await first_of(self._wakeup, seconds=_STATUS_POLL_SECONDS)
        return feed.schemas is not None

    async def _make_codec(self, schemas: Schemas | None) -> PayloadCodec:
        """Build the decoder in a thread: many MiB of schemas take seconds to compile."""
        return await self._executors.call(Pool.RECORDS, "reading schemas", self._codec_of, schemas)

    def _codec_of(self, schemas: Schemas | None) -> PayloadCodec:
        """Return the decoder for a registry's schemas; log the unreadable ones."""
        users = self._writer.users
        codec = build_codec(self._stream, None if users is None else users.key, schemas)
        faults = [] if codec.fields is None else codec.fields.faults_of_schemas
        for fault in sorted(set(faults) - self._logged_faults):
            self._logged_faults.add(fault)
            self._log.warning("%s", fault)
        return codec

    async def _learn(self, takeover: TakenOver, state: State) -> bool:
        assert self._feed is not None
        if takeover.standing is JobStatus.PAUSED:
            self._poller.close_feed(self._feed)  # a paused stream does not read it
            await self._wait_while_paused()
            return False
        if not self._interrupted:
            positions = takeover.recovery.positions
            if self._stream.start == "latest" and not takeover.has_begun:
                positions = await self._start_at_ends()
            where = (positions, _epochs_at(positions, takeover.checkpoint), self._feed)
            codec_of = None if self._subject is None else self._codec_of
            await self._input.open(self._topics.partitions, self._codec, *where, codec_of=codec_of)
            self._metrics.set_source("lag", lambda: self._input.lag)
        while not self._interrupted:
            if self._is_done():
                self._log.info("the stream has learnt its %d records", state.records)
                return True
            with self._tracing.trace("batch", self._stream) as trace:
                state = await self._learn_batch(state, trace)
        return False

    async def _start_at_ends(self) -> Offsets:
        """Start the stream at the current end offsets, permanently; return them."""
        feed = self._feed
        assert feed is not None
        # The clock's end offsets are public and cover committed records only. Its first tick may not know
        # the newest partitions, and a partition missing here would start at its first record.
        while len(feed.last) < len(self._topics.partitions) and not self._interrupted:
            self._wakeup.clear()
            feed.check()
            await first_of(self._wakeup, seconds=_STATUS_POLL_SECONDS)
        positions = dict(feed.last)
        if not self._interrupted:
            await self._check_topic()
            await self._exchange("start", self._writer.start, positions)
            self._log.info('the stream begins at the latest records (stream.start = "latest")')
        return positions

    def _notify(self) -> None:
        """Wake the session, which then looks for changes; called from the poller's thread."""
        self._loop.call_soon_threadsafe(self._wakeup.set)

    async def _wait_while_paused(self) -> None:
        self._log.info("the stream is paused: waiting for `streaming-pca stream resume`")
        self.paused = True
        self._metrics.set("paused", True)
        try:
            while not self._interrupted:
                # Cleared first: an interruption while the ledger is read must end the following wait.
                self._wakeup.clear()
                standing = await self._read_status()
                if standing is not JobStatus.PAUSED:
                    self._log.info("the stream is %s", standing)
                    return
                await first_of(self._wakeup, seconds=_PAUSED_POLL_SECONDS)
        finally:
            self.paused = False
            self._metrics.set("paused", False)

    def _is_done(self) -> bool:
        n_records = getattr(self._estimator.options, "n_records", None)
        if not self._settings.worker.stop_when_done or n_records is None:
            return False
        learnt = self._writer.log.ledger.job(self._stream.name).records_committed
        # Pairs leave one record over if the number is odd.
        return bool(learnt > n_records - self._estimator.preprocessing.granularity)

    async def _learn_batch(self, state: State, trace: Span) -> State:
        """Cut, charge and complete one batch; return the same state when interrupted."""
        # A separate function, so that no local keeps this batch alive while the next one is read.
        plan = self._estimator.plan(state)
        trace.show(planned=plan.count, resumed=False)
        with trace.child("read"):
            cut = await self._wait_for_batch(plan)
        if cut is None:
            trace.drop()
            return state
        await self._check_topic()
        self._reserved_at = time.monotonic()
        with trace.child("reserve"):
            parameters, reserve = parameters_of(self._stream, plan, cut.schemas), self._writer.reserve
            reserved = await self._exchange("reserve", reserve, cut.ranges, parameters, plan.charge)
        trace.show_reserved(reserved)
        self._show_ledger()
        state = await self._complete_batch(state, reserved, cut, trace)
        await self._input.release_memory()
        return state

    async def _wait_for_batch(self, plan: Plan) -> OffsetBatch | None:
        """Wait for a batch; return None when interrupted, paused or retired."""
        await self._input.set_plan(plan)
        self._metrics.set("planned", plan.count)
        looked = time.monotonic()
        while not self._interrupted:
            self._wakeup.clear()
            cut = await self._input.poll()
            if cut is not None:
                return cut
            await first_of(self._wakeup, seconds=_STATUS_POLL_SECONDS)
            if not self._interrupted and time.monotonic() - looked >= _STATUS_POLL_SECONDS:
                looked = time.monotonic()
                # Otherwise a waiting stream would notice a pause only at its next reservation.
                if await self._read_status() is not JobStatus.ACTIVE:
                    self.interrupt()
        return None

    async def _check_topic(self) -> None:
        """Check that the records just read are of the topic to charge; a topic's id is never reused."""
        kafka = self._settings.kafka
        current = await self._exchange("looking at the topic", input_topic_id, kafka, self._stream)
        if current != self._topics.topic_id:
            raise SessionLost(f"topic {self._stream.input!r} was deleted and created again")

    async def _resume(self, state: State, takeover: TakenOver, trace: Span) -> State:
        """Finish or abandon a predecessor's reserved batch, whose charge is already spent."""
        reserved = takeover.reservation
        assert reserved is not None
        plan = self._estimator.plan(state)
        trace.show(planned=plan.count, resumed=True)
        trace.show_reserved(reserved)
        codec = await self._codec_of_batch(reserved)
        if codec is None:
            reason = "the schemas of its records are gone"
        elif (
            reserved.parameters != parameters_of(self._stream, plan, codec.schemas)
            or reserved.charge != plan.charge
        ):
            reason = "the mechanism's parameters changed"
        else:
            # Read only this batch's partitions, and tolerate records deleted by retention: missing records
            # of this batch abandon it; missing records of later batches concern the next source.
            assert self._feed is not None
            starts = {r.partition: r.start for r in reserved.ranges}
            await self._input.open(tuple(starts), codec, starts, {}, self._feed, skip_lost=True)
            cut = None
            if not self._interrupted:
                with trace.child("read"):
                    cut = await self._input.read_reserved(reserved.ranges, plan.granularity)
            await self._input.close()
            if cut is not None:
                await self._check_topic()
                self._log.info("finishing a batch that was reserved before", extra={"batch": reserved.batch})
                positions = takeover.recovery.positions
                epochs = _epochs_at(positions, takeover.checkpoint)
                cut = replace(cut, positions=positions | cut.positions, epochs=epochs | cut.epochs)
                return await self._complete_batch(state, reserved, cut, trace)
            if self._interrupted:
                return state
            reason = "records are gone"
        await self._abandon(reserved, reason, trace)
        line, batch = "batch %d abandoned: %s; its charge stays", reserved.batch
        self._log.warning(line, batch, reason, extra={"batch": batch})
        return state

    async def _codec_of_batch(self, reserved: Reserved) -> PayloadCodec | None:
        """Return the decoder of a reserved batch; None if the registry lacks one of its schemas."""
        named = reserved.parameters.get("schemas")
        if self._subject is None or named is None:
            return self._codec
        known, ids = self._codec.schemas or {}, named["ids"]
        found = {number: known[number] for number in ids if number in known}
        missing = [number for number in ids if number not in known]
        if missing:
            # The ledger names them, so the request reveals nothing about records.
            assert self._settings.registry is not None, "settings with a subject have a registry"
            read_ids = SchemaRegistry(self._settings.registry, *self._subject).read_ids
            found |= await self._executors.call(Pool.COMMITS, "asking the schema registry", read_ids, missing)
        return await self._make_codec(found) if named_in_ledger(found) == named else None

    async def _complete_batch(self, state: State, reserved: Reserved, cut: OffsetBatch, trace: Span) -> State:
        """Compute the batch's only result, commit it and publish it."""
        try:
            how = (self._stream, self._writer.users, state, cut, reserved.batch)
            with trace.child("update", secret_errors=True):
                result = await self._executors.call(Pool.RECORDS, "learning", compute_batch, *how)
        except (SessionLost, DeadlineExceeded):
            # Records stored elsewhere could not be read, or the process hangs, which reveals nothing about
            # them. Without a result, the next session finishes the batch under the same charge.
            raise
        except Exception:
            # The error may reveal records or unpublished noise, and a second attempt would draw new noise.
            # So the batch gets neither a result nor an explanation.
            await self._abandon(reserved, "the estimator failed", trace)
            raise StreamRefused(
                f"the estimator failed on batch {reserved.batch}, which is abandoned; its charge stays. "
                "Restart to continue after it"
            ) from None
        if not isinstance(cut.batch, ArrayBatch):
            # The records may have been read again since, from the same offsets of a recreated topic.
            await self._check_topic()
        with self._metrics.time_commit(), trace.child("commit"):
            await self._exchange("commit", self._writer.commit, reserved, cut.positions, cut.epochs, result)
        self._metrics.count_batch("committed", reserved.count)
        await self._publish(trace)
        return result.state

    async def _abandon(self, reserved: Reserved, reason: str, trace: Span) -> None:
        with trace.child("abandon"):
            await self._exchange("abandon", self._writer.abandon, reserved, reason)
        self._metrics.count_batch("abandoned")
        self._show_ledger()

    async def _publish(self, trace: Span) -> None:
        with trace.child("publish") as span:
            release = Release.from_bytes(await self._exchange("publish", self._writer.publish))
            span.show(batch=release.batch, outcome=release.outcome)
        started, self._reserved_at = self._reserved_at, None
        self._show_release(release)
        self._metrics.count_release(None if started is None else time.monotonic() - started, release.outcome)
        self._show_ledger()
        self.made_progress = True
        line = "batch %d released, %d records so far" + (f", {release.outcome}" if release.outcome else "")
        self._log.info(line, release.batch, release.records, extra={"batch": release.batch})
        if (share := release.least_null_share) > _MANY_NULL:
            by_design = "further messages of users are null by design; " * (release.privacy_unit == "user")
            line = f"batch %d: at least %.0f%% of its records are null: {by_design}"
            line += "`streaming-pca payload check` shows " + ("others" if by_design else "why")
            log = self._log.info if by_design else self._log.warning
            log(line, release.batch, 100 * share, extra={"batch": release.batch})

    def _show_release(self, release: Release) -> None:
        self._metrics.show_release(release)
        if release.counts and self._estimator.diagnostics is not None:
            self._metrics.set_noisy_counts(release, self._estimator.diagnostics.error)

    async def _read_status(self) -> JobStatus:
        """Read the stream's status, and show the charges by other jobs."""
        status = await self._exchange("reading the ledger", self._writer.read_status)
        self._show_ledger()
        return status

    def _show_ledger(self) -> None:
        self._metrics.show_ledger(self._writer.log.ledger, self._writer.log.entries)

    async def _exchange(self, task: str, function: Callable[..., T], *args: Any) -> T:
        return await self._executors.call(
            Pool.COMMITS, task, function, *args, deadline=self._settings.worker.step_deadline_seconds
        )


def _epochs_at(positions: Offsets, checkpoint: Checkpoint | None) -> dict[int, int]:
    """Return the checkpoint's leader epochs of positions; abandoned batches advance beyond it."""
    if checkpoint is None:
        return {}
    own = checkpoint.positions
    return {p: epoch for p, epoch in checkpoint.epochs.items() if positions.get(p) == own.get(p)}
