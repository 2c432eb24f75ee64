"""One stream's turn as leader: take over, learn batch by batch, until the lead is lost.

Nothing here touches Kafka or numbers itself: the source and the kernels run in
one room of threads, the checkpoint's exchanges in another, so that a long
kernel stalls neither heartbeats nor commits. Every exchange has a deadline.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

from streaming_pca.estimators.base import Plan, State
from streaming_pca.estimators.fitting_state import decode_fitting_state
from streaming_pca.privacy.entries import Reserved
from streaming_pca.privacy.ledger import Standing
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.release import Release
from streaming_pca.service.answer import answer_batch, parameters_of
from streaming_pca.service.checkpoint import CheckpointWriter, TakenOver
from streaming_pca.service.errors import DeadlineExceeded, RecordsLost, SessionLost, StreamRefused
from streaming_pca.service.logs import StreamLog
from streaming_pca.service.metrics import StreamMetrics
from streaming_pca.service.publisher import Progress
from streaming_pca.service.reading import Input
from streaming_pca.service.recovery import Action
from streaming_pca.service.snapshots import Ends, Feed, SnapshotClock
from streaming_pca.service.source import Taken, codec_of
from streaming_pca.service.threads import Room, Threads, first_of
from streaming_pca.service.topics import Topics, input_topic_id
from streaming_pca.settings import Settings
from streaming_pca.wire import Checkpoint

__all__ = ["Session"]

T = TypeVar("T")

_PAUSED_POLL_SECONDS = 2.0
"""How often a paused stream is looked at."""
_STANDING_SECONDS = 10.0
"""How often one that waits for records is."""
_LONGEST_TAKE_OVER_SECONDS = 3600.0
"""Reading a long ledger takes as long as it takes (4,000 entries a second); a standstill ends it sooner."""


class Session:
    """A turn as leader of one stream.

    Parameters
    ----------
    settings : Settings
    topics : Topics
        Found anew for every session: a topic that was created again is other data.
    threads : Threads
    clock : SnapshotClock
    metrics : StreamMetrics
    log : StreamLog
    on_release : callable, optional
        Told of every release after it was published.
    """

    def __init__(
        self,
        settings: Settings,
        topics: Topics,
        threads: Threads,
        clock: SnapshotClock,
        metrics: StreamMetrics,
        log: StreamLog,
        on_release: Callable[[Progress], None] | None = None,
    ) -> None:
        self._settings, self._stream, self._topics = settings, settings.stream, topics
        self._threads, self._clock = threads, clock
        self._metrics, self._log, self._on_release = metrics, log, on_release
        self._interrupted = False
        self._news = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        ahead = settings.worker.read_ahead
        self._input = Input(settings.kafka, self._stream, threads, self._news, ahead)
        self._feed: Feed | None = None
        self._reserved_at: float | None = None
        self.paused = False
        """Whether it waits for the stream to be resumed."""
        self.made_progress = False
        """Whether a release was published."""

    def interrupt(self) -> None:
        """Finish the reserved batch, drop one that is not, and end; for good.

        One that has lost the lead does not go on, even if the lead comes back at once.
        """
        self._interrupted = True
        self._news.set()
        self._input.stop()

    async def run(self) -> bool:
        """Lead until interrupted; True when the stream is done.

        Raises
        ------
        SessionLost, BrokerUnreachable
            Recover by another session.
        StreamRefused, RecordsLost, BudgetExceeded
            The stream cannot go on as configured.
        DeadlineExceeded
            A thread hangs: the process must end.
        """
        writer = CheckpointWriter(self._settings.kafka, self._stream, self._topics.topic_id)
        hangs = False
        try:
            # One at a time: it may wait for another job's transaction, and must leave a thread to others.
            async with self._threads.long_exchange:
                found = await self._threads.call(
                    Room.COMMITS, "take-over", writer.take_over, deadline=_LONGEST_TAKE_OVER_SECONDS
                )
            self._show_ledger(writer)
            if found.recovery.action is Action.PUBLISH:
                await self._publish(writer)
            return await self._learn(writer, found)
        except RecordsLost:
            # A topic that was created again has lost them all: that must be said then.
            await self._check_topic()
            raise
        except DeadlineExceeded as error:
            hangs = True
            raise DeadlineExceeded(f"{error} (step {writer.step})") from None
        finally:
            # Nothing may hold the session's last batch.
            self._metrics.lag_from(lambda: 0.0)
            if self._feed is not None:
                self._clock.close_feed(self._feed)
            if not hangs:
                try:
                    await self._input.close()
                finally:
                    await self._threads.call(Room.COMMITS, "closing", writer.close, deadline=30.0)

    # -- learning ----------------------------------------------------------

    def _decoded(self, data: bytes) -> State:
        """The state that the stream stands at, or one line on why it cannot go on from there."""
        try:
            return decode_fitting_state(self._stream.made, data)
        except (TypeError, ValueError, KeyError) as error:
            raise StreamRefused(
                f"the state of stream {self._stream.name!r} is of another release or of other stream.options:"
                " go on with what wrote it, or give the stream a new name (its records stay charged)"
            ) from error

    async def _learn(self, writer: CheckpointWriter, found: TakenOver) -> bool:
        self._codec = codec_of(self._stream, writer.users)
        if not self._codec.arrow:
            self._log.info("pyarrow is not installed: Arrow payloads are null records")
        # It ticks from here on: how long a resumed batch takes must not decide the next cut.
        self._feed = self._clock.open(
            self._stream.input, self._topics.partitions, self._notify, self._topics.topic_id
        )
        estimator = self._stream.made
        checkpoint = found.checkpoint
        state: State = (
            estimator.init(utility_generator(self._stream.seed))
            if checkpoint is None
            else self._decoded(checkpoint.state)
        )
        if found.recovery.action is Action.RESUME:
            state = await self._resume(writer, state, found)
        if found.standing is Standing.PAUSED:
            self._clock.close_feed(self._feed)  # nobody reads it
            await self._wait_while_paused(writer)
            return False
        if not self._interrupted:
            positions = found.recovery.positions
            epochs = _epochs_at(positions, checkpoint)
            await self._input.open(self._topics.partitions, self._codec, positions, epochs, self._feed)
            self._metrics.lag_from(lambda: self._input.lag)
        while not self._interrupted:
            if self._done(writer):
                self._log.info("the stream has learnt its %d records", state.records)
                return True
            state = await self._next(writer, state)
        return False

    def _notify(self) -> None:
        """There may be news; from the clock's thread."""
        self._loop.call_soon_threadsafe(self._news.set)

    async def _wait_while_paused(self, writer: CheckpointWriter) -> None:
        self._log.info("the stream is paused: waiting for `streaming-pca stream resume`")
        self.paused = True
        self._metrics.paused(True)
        try:
            while not self._interrupted:
                # First: an interruption while the ledger is read must end the wait that follows.
                self._news.clear()
                standing = await self._exchange(writer, "reading the ledger", writer.standing)
                if standing is not Standing.PAUSED:
                    self._log.info("the stream is %s", standing)
                    return
                await first_of(self._news, seconds=_PAUSED_POLL_SECONDS)
        finally:
            self.paused = False
            self._metrics.paused(False)

    def _done(self, writer: CheckpointWriter) -> bool:
        n_records = getattr(self._stream.made.options, "n_records", None)
        if not self._settings.worker.stop_when_done or n_records is None:
            return False
        learnt = writer.log.ledger.job(self._stream.name).records_committed
        # Pairs leave the last record of an odd number over.
        return bool(learnt > n_records - self._stream.made.preprocessing.granularity)

    async def _next(self, writer: CheckpointWriter, state: State) -> State:
        """One batch: taken, charged, answered. The same state when interrupted."""
        # A frame of its own: nothing holds this batch while the next one is gathered.
        plan = self._stream.made.plan(state)
        taken = await self._take(writer, plan)
        if taken is None:
            return state
        await self._check_topic()
        self._reserved_at = time.monotonic()
        reserved = await self._exchange(
            writer, "reserve", writer.reserve, taken.ranges, parameters_of(self._stream, plan), plan.charge
        )
        self._show_ledger(writer)
        state = await self._answer(writer, state, reserved, taken)
        self._input.give_back()
        return state

    async def _take(self, writer: CheckpointWriter, plan: Plan) -> Taken | None:
        """Wait for a batch; None when interrupted, or when the stream is paused or retired meanwhile."""
        await self._input.aim(plan)
        looked = time.monotonic()
        while not self._interrupted:
            self._news.clear()
            taken = await self._input.advance()
            if taken is not None:
                return taken
            await first_of(self._news, seconds=_STANDING_SECONDS)
            if not self._interrupted and time.monotonic() - looked >= _STANDING_SECONDS:
                looked = time.monotonic()
                # A stream that waits would otherwise learn of it at its next reservation only.
                if await self._exchange(writer, "reading the ledger", writer.standing) is not Standing.ACTIVE:
                    self.interrupt()
        return None

    async def _check_topic(self) -> None:
        """Whether records that were just read are of the topic that will be charged.

        Checked after reading: an id never comes back.
        """
        current = await self._threads.call(
            Room.COMMITS,
            "looking at the topic",
            input_topic_id,
            self._settings.kafka,
            self._stream,
            deadline=self._settings.worker.step_deadline_seconds,
        )
        if current != self._topics.topic_id:
            raise SessionLost(f"topic {self._stream.input!r} was deleted and created again")

    async def _resume(self, writer: CheckpointWriter, state: State, found: TakenOver) -> State:
        """Finish a batch that a predecessor reserved, or abandon it: its charge is spent already."""
        reserved = found.reservation
        assert reserved is not None
        plan = self._stream.made.plan(state)
        if reserved.parameters != parameters_of(self._stream, plan) or reserved.charge != plan.charge:
            reason = "the mechanism's parameters changed"
        else:
            # Of its partitions only, and whatever retention did: lost records of this
            # batch abandon it, those of later batches are the next source's matter.
            assert self._feed is not None
            await self._input.open(
                tuple(r.partition for r in reserved.ranges),
                self._codec,
                {r.partition: r.start for r in reserved.ranges},
                {},
                self._feed,
                skip_lost=True,
            )
            taken = None
            if not self._interrupted:
                taken = await self._input.retake(reserved.ranges, plan.granularity)
            await self._input.close()
            if taken is not None:
                await self._check_topic()
                self._log.info("finishing a batch that was reserved before", extra={"batch": reserved.batch})
                positions = found.recovery.positions
                epochs = _epochs_at(positions, found.checkpoint)
                taken = replace(taken, positions=positions | taken.positions, epochs=epochs | taken.epochs)
                return await self._answer(writer, state, reserved, taken)
            if self._interrupted:
                return state
            reason = "records are gone"
        await self._abandon(writer, reserved, reason)
        self._log.warning(
            "batch %d abandoned: %s; its charge stays",
            reserved.batch,
            reason,
            extra={"batch": reserved.batch},
        )
        return state

    async def _answer(
        self, writer: CheckpointWriter, state: State, reserved: Reserved, taken: Taken
    ) -> State:
        """Compute the batch's one answer, commit it, publish it."""
        try:
            how = (self._stream, writer.users, state, taken, reserved.batch)
            answer = await self._threads.call(Room.RECORDS, "learning", answer_batch, *how)
        except Exception:
            # The error may tell of the records, or of noise that nobody has seen; and tried again,
            # the batch would draw new noise. It gets no answer and no explanation.
            await self._abandon(writer, reserved, "the estimator failed")
            raise StreamRefused(
                f"the estimator failed on batch {reserved.batch}, which is abandoned; its charge stays. "
                "Restart to go on behind it"
            ) from None
        with self._metrics.commit():
            await self._exchange(
                writer, "commit", writer.commit, reserved, taken.positions, taken.epochs, answer
            )
        self._metrics.committed(reserved.count)
        diagnostics, counts = self._stream.made.diagnostics, answer.state.counts
        if diagnostics is not None and counts is not None:
            self._metrics.counted(counts, diagnostics.error)
        await self._publish(writer)
        return answer.state

    async def _abandon(self, writer: CheckpointWriter, reserved: Reserved, reason: str) -> None:
        await self._exchange(writer, "abandon", writer.abandon, reserved, reason)
        self._metrics.abandoned()
        self._show_ledger(writer)

    async def _publish(self, writer: CheckpointWriter) -> None:
        data = await self._exchange(writer, "publish", writer.publish)
        started, self._reserved_at = self._reserved_at, None
        self._metrics.released(None if started is None else time.monotonic() - started)
        self._show_ledger(writer)
        self.made_progress = True
        release = Release.from_bytes(data)
        self._metrics.published(release)
        what = "batch %d released, %d records" + (f", {release.outcome}" if release.outcome else "")
        self._log.info(what, release.batch, release.records, extra={"batch": release.batch})
        if self._on_release is not None:
            self._on_release(Progress(release.batch, release.records, data))

    # -- helpers -----------------------------------------------------------

    def _show_ledger(self, writer: CheckpointWriter) -> None:
        self._metrics.ledger(writer.log.ledger, writer.log.entries)

    async def _exchange(
        self, writer: CheckpointWriter, what: str, function: Callable[..., T], *args: Any
    ) -> T:
        return await self._threads.call(
            Room.COMMITS, what, function, *args, deadline=self._settings.worker.step_deadline_seconds
        )


def _epochs_at(positions: Ends, checkpoint: Checkpoint | None) -> Ends:
    """Leader epochs of a checkpoint, for positions that are its own: abandoned batches go further."""
    if checkpoint is None:
        return {}
    own = checkpoint.positions
    return {p: epoch for p, epoch in checkpoint.epochs.items() if positions.get(p) == own.get(p)}
