"""The run loop: stand by, lead, learn, and step down cleanly.

The loop is asyncio on uvloop and touches neither Kafka nor numbers itself. The
election's consumer, the source and the checkpoint live in a thread each, the
kernels (which release the GIL) run in the source's: so a long kernel stalls
no heartbeat. Every exchange has a deadline; a thread that misses it cannot be
stopped, so then the process ends and its successor recovers.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import uvloop
from kafka.errors import KafkaError

from streaming_pca.estimators.base import Plan, State, decode_state, encode_state
from streaming_pca.privacy.entries import Reserved
from streaming_pca.privacy.ledger import BudgetExceeded
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.service.checkpoint import BudgetExceededByAnother, CheckpointWriter, TakenOver
from streaming_pca.service.clients import BrokerUnreachable
from streaming_pca.service.election import Election
from streaming_pca.service.errors import DeadlineExceeded, RecordsLost, SessionLost, StreamRefused
from streaming_pca.service.publisher import make_release
from streaming_pca.service.recovery import Action
from streaming_pca.service.snapshots import SnapshotClock
from streaming_pca.service.source import Source, Taken
from streaming_pca.service.topics import TopicError, Topics, find_topics, input_topic_id
from streaming_pca.settings import Settings
from streaming_pca.wire import PayloadCodec, Release

__all__ = ["Progress", "Worker", "run_worker"]

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Progress:
    """Public facts of a published release, for whoever watches the worker."""

    batch: int
    records: int
    release: bytes


class Worker:
    """One stream's worker: leader or standby.

    Parameters
    ----------
    settings : Settings
    on_release : callable, optional
        Told of every release after it was published.
    """

    def __init__(self, settings: Settings, on_release: Callable[[Progress], None] | None = None) -> None:
        self._settings = settings
        self._stream = settings.stream
        self._on_release = on_release
        self._stopping = asyncio.Event()
        self._leading = asyncio.Event()
        self._interrupted = False
        self._in_session = False
        self._trouble_since: float | None = None
        self._source: Source | None = None
        self._clock: SnapshotClock | None = None
        self._records = ThreadPoolExecutor(1, thread_name_prefix="records")
        self._commits = ThreadPoolExecutor(1, thread_name_prefix="commits")
        self._group = ThreadPoolExecutor(1, thread_name_prefix="election")

    def stop(self) -> None:
        """Finish the reserved batch, drop one that is not, and step down."""
        log.info("stopping: a reserved batch is finished first")
        self._stopping.set()
        self._interrupt()

    def _interrupt(self) -> None:
        # For the rest of the session: one that has lost the lead does not go on, even
        # if the lead comes back at once.
        self._interrupted = True
        if self._source is not None:
            self._source.stop()

    async def _call(
        self,
        pool: ThreadPoolExecutor,
        what: str,
        function: Callable[..., T],
        *args: Any,
        deadline: float = 0.0,
    ) -> T:
        """Run in a thread; :class:`DeadlineExceeded` if it takes too long (0: may take for ever)."""
        future = asyncio.get_running_loop().run_in_executor(pool, function, *args)
        if not deadline:
            return await future
        done, _ = await asyncio.wait([future], timeout=deadline)
        if not done:
            raise DeadlineExceeded(f"{what} did not finish within {deadline:g} s")
        return future.result()

    async def run(self) -> None:
        """Lead whenever elected, until stopped or refused."""
        topics: Topics | None = await self._find_topics()
        election = asyncio.create_task(self._elect())
        try:
            while not self._stopping.is_set():
                await self._until_leading(election)
                if self._stopping.is_set():
                    break
                started = time.monotonic()
                try:
                    # Anew for every session: a topic that was created again is other data.
                    finished = await self._lead(topics or await self._find_topics())
                except (SessionLost, BrokerUnreachable) as error:
                    if self._stopping.is_set():
                        raise
                    self._bear(started)
                    log.warning("session lost, recovering from the topics: %s", error)
                    await self._pause(1.0)
                    continue
                finally:
                    topics = None
                self._trouble_since = None
                if finished:
                    break
        finally:
            self._stopping.set()
            await asyncio.wait([election], timeout=self._settings.kafka.request_timeout_ms / 1000)
        if election.done():
            election.result()

    async def _find_topics(self) -> Topics:
        return await self._call(
            self._commits,
            "finding topics",
            find_topics,
            self._settings.kafka,
            self._stream,
            deadline=self._settings.worker.step_deadline_seconds,
        )

    def _bear(self, started: float) -> None:
        """Raise the current error again if trouble has lasted too long without progress."""
        now, patience = time.monotonic(), self._settings.worker.give_up_seconds
        if self._trouble_since is None or now - started > patience:
            self._trouble_since = now
        if now - self._trouble_since > patience:
            raise

    async def _pause(self, seconds: float) -> None:
        await asyncio.wait([asyncio.create_task(self._stopping.wait())], timeout=seconds)

    async def _until_leading(self, election: asyncio.Task[None]) -> None:
        if not self._leading.is_set():
            log.info("standing by for stream %s", self._stream.name)
        waits = [asyncio.create_task(e.wait()) for e in (self._leading, self._stopping)]
        await asyncio.wait([*waits, election], return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        if election.done():
            election.result()

    async def _elect(self) -> None:
        """Serve the election until stopping; a failed consumer is made anew."""
        kafka = self._settings.kafka
        while not self._stopping.is_set():
            election = None
            try:
                election = await self._call(
                    self._group,
                    "joining",
                    Election,
                    kafka,
                    self._stream.name,
                    self._stream.state_topic,
                    deadline=60.0,
                )
                while not self._stopping.is_set():
                    leads = await self._call(self._group, "the election", election.poll, deadline=60.0)
                    self._set_leading(leads)
                while self._in_session:  # a batch is being finished
                    await self._call(self._group, "the election", election.poll, deadline=60.0)
            except (KafkaError, BrokerUnreachable) as error:
                log.warning("election: %s", error)
                self._set_leading(False)
                await self._pause(1.0)
            finally:
                if election is not None:
                    await self._call(self._group, "leaving", election.close, deadline=10.0)
        self._set_leading(False)

    def _set_leading(self, leads: bool) -> None:
        if leads and not self._leading.is_set():
            log.info("leading stream %s", self._stream.name)
            self._leading.set()
        elif not leads and self._leading.is_set():
            log.info("no longer leading stream %s", self._stream.name)
            self._leading.clear()
            self._interrupt()

    async def _lead(self, topics: Topics) -> bool:
        """One session as leader; True when the stream is done."""
        deadline = self._settings.worker.step_deadline_seconds
        writer = CheckpointWriter(self._settings.kafka, self._stream, topics.topic_id)
        self._in_session, self._interrupted = True, not self._leading.is_set()
        hangs = False
        try:
            # Reading a long ledger and a large state takes as long as it takes.
            taken_over = await self._call(
                self._commits, "take-over", writer.take_over, deadline=max(deadline, 120.0) * 5
            )
            if taken_over.recovery.action is Action.PUBLISH:
                await self._publish(writer)
            return await self._learn(writer, taken_over, topics)
        except DeadlineExceeded as error:
            hangs = True
            raise DeadlineExceeded(f"{error} (step {writer.step})") from None
        finally:
            if not hangs:
                await self._close_source()
                clock, self._clock = self._clock, None
                if clock is not None:
                    await self._call(self._records, "closing", clock.close, deadline=30.0)
                await self._call(self._commits, "closing", writer.close, deadline=30.0)
            self._in_session = False

    async def _learn(self, writer: CheckpointWriter, found: TakenOver, topics: Topics) -> bool:
        # It ticks from here on: how long a resumed batch takes must not decide the next cut.
        self._clock = await self._call(
            self._records,
            "starting the clock",
            SnapshotClock,
            self._settings.kafka,
            self._stream.input,
            topics.partitions,
            self._settings.worker.tick_seconds,
            deadline=60.0,
        )
        estimator = self._stream.made
        checkpoint = found.checkpoint
        state: State = (
            estimator.init(utility_generator(self._stream.seed))
            if checkpoint is None
            else decode_state(estimator.state_type, checkpoint.state)
        )
        if found.recovery.action is Action.RESUME:
            state = await self._resume(writer, state, found, topics)
        if self._may_go_on():
            await self._open_source(topics.partitions, found.recovery.positions)
        while self._may_go_on():
            if self._done(state):
                log.info("stream %s has learnt its %d records", self._stream.name, state.records)
                return True
            state = await self._next(writer, state, topics)
        return False

    def _may_go_on(self) -> bool:
        return not self._interrupted and not self._stopping.is_set()

    def _done(self, state: State) -> bool:
        n_records = getattr(self._stream.made.options, "n_records", None)
        if not self._settings.worker.stop_when_done or n_records is None:
            return False
        # Pairs leave the last record of an odd number over.
        return bool(state.records > n_records - self._stream.made.preprocessing.granularity)

    async def _open_source(
        self, partitions: tuple[int, ...], positions: dict[int, int], skip_lost: bool | None = None
    ) -> Source:
        stream = self._stream
        if skip_lost is None:
            skip_lost = stream.lost_records == "skip"
        self._source = await self._call(
            self._records,
            "opening the input",
            Source,
            self._settings.kafka,
            stream.input,
            partitions,
            PayloadCodec(stream.dim, stream.record_kind, stream.dtype, stream.max_rows),
            positions,
            self._clock,
            skip_lost,
            deadline=60.0,
        )
        return self._source

    async def _close_source(self) -> None:
        source, self._source = self._source, None
        if source is not None:
            await self._call(self._records, "closing", source.close, deadline=30.0)

    async def _next(self, writer: CheckpointWriter, state: State, topics: Topics) -> State:
        """One batch: taken, charged, answered. The same state when interrupted."""
        # A frame of its own: nothing holds this batch while the next one is gathered.
        assert self._source is not None
        plan = self._stream.made.plan(state)
        taken = await self._call(
            self._records, "waiting for records", self._source.take, plan.count, plan.granularity
        )
        if taken is None:
            return state
        await self._check_topic(topics)
        reserved = await self._exchange(
            writer, "reserve", writer.reserve, taken.ranges, self._parameters(plan), plan.charge
        )
        return await self._answer(writer, state, reserved, taken)

    def _parameters(self, plan: Plan) -> dict[str, Any]:
        """What RESERVED carries: all that the batch's answer depends on, but the records and the state."""
        chosen = self._stream.made.options
        options = chosen.model_dump(mode="json", exclude=set(chosen.sizing))
        return plan.parameters | {"options": options, "seed": self._stream.seed}

    async def _check_topic(self, topics: Topics) -> None:
        """Whether records that were just read are of the topic that will be charged.

        Checked after reading: an id never comes back.
        """
        current = await self._call(
            self._commits,
            "looking at the topic",
            input_topic_id,
            self._settings.kafka,
            self._stream,
            deadline=self._settings.worker.step_deadline_seconds,
        )
        if current != topics.topic_id:
            raise SessionLost(f"topic {self._stream.input!r} was deleted and created again")

    async def _resume(
        self, writer: CheckpointWriter, state: State, found: TakenOver, topics: Topics
    ) -> State:
        """Finish a batch that a predecessor reserved, or abandon it: its charge is spent already."""
        reserved = found.reservation
        assert reserved is not None
        plan = self._stream.made.plan(state)
        if reserved.parameters != self._parameters(plan) or reserved.charge != plan.charge:
            reason = "the mechanism's parameters changed"
        else:
            # Of its partitions only, and whatever retention did: lost records of this
            # batch abandon it, those of later batches are the next source's matter.
            source = await self._open_source(
                tuple(r.partition for r in reserved.ranges),
                {r.partition: r.start for r in reserved.ranges},
                skip_lost=True,
            )
            taken = None
            if self._may_go_on():
                taken = await self._call(
                    self._records, "reading the batch again", source.retake, reserved.ranges, plan.granularity
                )
            await self._close_source()
            if taken is not None:
                await self._check_topic(topics)
                log.info("finishing batch %d that was reserved before", reserved.batch)
                taken = replace(taken, positions=found.recovery.positions | taken.positions)
                return await self._answer(writer, state, reserved, taken)
            if not self._may_go_on():
                return state
            reason = "records are gone"
        await self._exchange(writer, "abandon", writer.abandon, reserved, reason)
        log.warning("batch %d abandoned: %s; its charge stays", reserved.batch, reason)
        return state

    async def _answer(
        self, writer: CheckpointWriter, state: State, reserved: Reserved, taken: Taken
    ) -> State:
        """Compute the batch's one answer, commit it, publish it."""
        estimator = self._stream.made
        try:
            new: State = await self._call(self._records, "learning", estimator.update, state, taken.batch)
            release = make_release(self._stream, estimator.release(new), reserved.batch, new.records)
            data = encode_state(new)
            Release.from_bytes(release)  # refuses what is not finite
        except Exception:
            # The error may tell of the records, or of noise that nobody has seen; and tried again,
            # the batch would draw new noise. It gets no answer and no explanation.
            await self._exchange(writer, "abandon", writer.abandon, reserved, "the estimator failed")
            raise StreamRefused(
                f"the estimator failed on batch {reserved.batch}, which is abandoned; its charge stays. "
                "Restart to go on behind it"
            ) from None
        await self._exchange(writer, "commit", writer.commit, reserved, taken.positions, data, release)
        await self._publish(writer)
        return new

    async def _publish(self, writer: CheckpointWriter) -> None:
        data = await self._exchange(writer, "publish", writer.publish)
        self._trouble_since = None
        release = Release.from_bytes(data)
        log.info("stream %s: batch %d released, %d records", release.stream, release.batch, release.records)
        if self._on_release is not None:
            self._on_release(Progress(release.batch, release.records, data))

    async def _exchange(
        self, writer: CheckpointWriter, what: str, function: Callable[..., T], *args: Any
    ) -> T:
        return await self._call(
            self._commits, what, function, *args, deadline=self._settings.worker.step_deadline_seconds
        )


def run_worker(settings: Settings, on_release: Callable[[Progress], None] | None = None) -> int:
    """Run until SIGTERM, SIGINT, the end of the stream or a refusal.

    Returns
    -------
    int
        Exit status: 0 stopped or done, 2 refused or misconfigured, 3 budget
        exceeded, 4 broker lost.
    """

    async def main() -> None:
        worker = Worker(settings, on_release)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        await worker.run()

    try:
        with warnings.catch_warnings():
            # A library's warning about a number is a statement about records or noise.
            warnings.simplefilter("ignore")
            uvloop.run(main())
    except (BudgetExceeded, BudgetExceededByAnother) as error:
        log.error("budget exceeded: %s", error)
        return 3
    except (StreamRefused, TopicError, RecordsLost) as error:
        log.error("%s", error)
        return 2
    except (BrokerUnreachable, SessionLost, KafkaError) as error:
        log.error("%s", error)
        return 4
    except DeadlineExceeded as error:
        log.error("%s: ending the process; the next one recovers", error)
        logging.shutdown()
        # The thread that hangs would keep a normal exit waiting.
        os._exit(4)
    return 0
