"""Worker process: one election, one clock and a few threads for all its streams.

Each stream stands by, leads in sessions, and steps down; its end does not end the others. The event loop
(asyncio on uvloop) never blocks. A thread that misses its deadline cannot be stopped, so the process ends
and its successor recovers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import math
import sys
import time
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import TypeVar

from kafka.errors import KafkaError

from streaming_pca.config.effective import doubts_of_settings
from streaming_pca.config.settings import Settings
from streaming_pca.estimators import kernel_cache
from streaming_pca.kernels import load_compiler
from streaming_pca.kernels.threads import use_threads
from streaming_pca.service.commit.admission import StandbyCheck
from streaming_pca.service.election import Election
from streaming_pca.service.errors import BrokerUnreachable, SessionLost, TopicError, exit_status
from streaming_pca.service.executors import Executors, Pool, first_of
from streaming_pca.service.http.server import HttpServer, Site
from streaming_pca.service.input.end_offsets import EndOffsetPoller
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.reader import ReaderFactory
from streaming_pca.service.logs import StreamLog
from streaming_pca.service.metrics import Metrics, StreamMetrics
from streaming_pca.service.process import RETRY_SECONDS, Patience, patiently, run_process, stop_on_signals
from streaming_pca.service.session import Session
from streaming_pca.service.topics.find import Topics, find_topics
from streaming_pca.service.tracing import Tracing
from streaming_pca.service.verification import verify_periodically

log = logging.getLogger(__name__)

_COMPILING_POLL_SECONDS = 0.2  # polling interval of the compiler
_REST_SECONDS = 120.0  # delay before the other kernels compile, so that they do not slow the start
_SWITCH_SECONDS = 0.0005
"""Longest time that a decoding thread may keep the GIL.

Other threads wait for it with a commit's response or a kernel's next block: at Python's default of 5 ms a
batch waits for it dozens of times.
"""

_ELECTION_SECONDS = 60.0  # time limit of one step of the group protocol
_CHECK_SECONDS = 300.0  # time limit of one step of a standby's comparison with the ledger
_JOINING_SECONDS = 3.0  # time for a joined process to receive the lead: a leader compares its settings itself
_RECHECK_SECONDS = 2.0  # pause after a comparison that failed because of the broker

T = TypeVar("T")


def _prepare() -> None:
    """Set up the interpreter after all imports.

    Their objects are frozen: garbage collection was a fifth of the processor time for small messages.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    load_compiler()
    gc.collect()
    gc.freeze()


class _Stream:
    def __init__(self, worker: Worker, settings: Settings) -> None:
        self.settings = settings
        self.status: int | None = None  # exit status; None until the stream ends
        self._worker = worker
        self._log = StreamLog(log, settings.stream.name)
        self.metrics = StreamMetrics(worker.metrics, settings.stream.name)
        self.metrics.set_source("ready", lambda: self.role in ("leading", "standby", "paused"))
        self._leading = asyncio.Event()
        self.session: Session | None = None  # there while a batch may be in progress
        self._patience = Patience(settings.worker)
        self._led_since = math.inf  # time of the session's take-over
        self._lost_at: float | None = None  # time of the last lost session; None once a session has followed
        self._compared = False  # True once its settings have been compared with the ledger, while standing by
        self._agrees = False  # True once the settings have agreed with the ledger; never reset
        self.is_candidate = False  # True once its topics have been found, so that this process can lead it
        self.refusal: str | None = None  # reason why settings or topics do not allow this process to run it

    @property
    def topic(self) -> str:
        """Topic whose assignment decides the stream's leader."""
        return self.settings.stream.state_topic

    @property
    def role(self) -> str:
        if self.status is not None:
            return "ended"
        if self.session is not None and self.session.paused:
            return "paused"
        if self._leading.is_set():
            return "leading"
        return "standby" if self._compared and self._worker.joined.is_set() else "starting"

    def warn(self) -> None:
        for line in doubts_of_settings(self.settings.stream):
            self._log.warning("%s", line)

    def set_leading(self, leading: bool) -> None:
        if leading and not self._leading.is_set():
            self._log.info("leading stream %s", self.settings.stream.name)
            if not self.settings.stream.private:
                self._log.warning("the stream is not private: its releases have no guarantee")
            self._leading.set()
        elif not leading and self._leading.is_set():
            self._log.info("no longer leading stream %s", self.settings.stream.name)
            self._lost_at = None
            self._leading.clear()
            self.interrupt()
        self.metrics.set("leader", leading)

    def interrupt(self) -> None:
        """End the session, after its reserved batch."""
        if self.session is not None:
            self.session.interrupt()

    async def run(self) -> None:
        """Lead whenever elected; set :attr:`status` at the stream's end."""
        try:
            await self._run()
            self.status = 0
        except Exception as error:
            self.status = exit_status(error)
            if self.status is None:
                raise
            if self.status == 2:
                self.refusal = str(error)
                self.metrics.set("refused", True)
            if self.status == 3:
                self._log.error("budget exceeded: %s", error)
            else:
                self._log.error("%s", error)

    async def _run(self) -> None:
        stopping = self._worker.stopping
        topics: Topics | None = await self._find_topics_patiently()
        await first_of(self._worker.compiled, stopping)
        if stopping.is_set():
            return
        self.is_candidate = True
        self._worker.candidates.set()
        if not self._leading.is_set():
            self._log.info("standing by for stream %s", self.settings.stream.name)
        while not stopping.is_set():
            await self._stand_by()
            if stopping.is_set():
                break
            self._led_since = math.inf
            try:
                topics = topics or await self._find_topics()
                if await self._lead(topics):
                    break
            except (SessionLost, BrokerUnreachable) as error:
                if stopping.is_set() or self._patience.is_over(self._led_since):
                    raise
                self._lost_at = self._lost_at or time.monotonic()
                self._log.warning("session lost, recovering from the topics: %s", error)
                await first_of(stopping, seconds=RETRY_SECONDS)
                continue
            finally:
                topics = None
            self._patience.reset()

    async def _stand_by(self) -> None:
        """Wait for the lead or the process's end; raise StreamRefused if a take-over would."""
        worker, check = self._worker, None
        if not self._agrees:
            await first_of(self._leading, worker.stopping, worker.joined)
            await first_of(self._leading, worker.stopping, seconds=_JOINING_SECONDS)
        try:
            while not (self._leading.is_set() or worker.stopping.is_set()):
                wait: float | None = None
                if not self._agrees:
                    try:
                        # Each time: the input may have been created again.
                        topics = await self._find_topics()
                        check = check or StandbyCheck(self.settings.kafka, self.settings.stream)
                        # One at a time, like take-overs: reading a ledger may take long.
                        async with worker.executors.long_exchange:
                            wait = await self._compare(partial(check.run, topics.topic_id))
                        self._agrees, self._compared = wait is None, self._compared or wait != 0
                    except (SessionLost, BrokerUnreachable, KafkaError, TopicError) as error:
                        self._log.warning("the settings could not be compared with the ledger: %s", error)
                        wait = _RECHECK_SECONDS
                await first_of(self._leading, worker.stopping, seconds=wait)
        finally:
            if check is not None:
                await self._compare(check.close)

    async def _compare(self, function: Callable[[], T]) -> T:
        return await self._worker.executors.call(
            Pool.COMMITS, "comparing settings with the ledger", function, deadline=_CHECK_SECONDS
        )

    async def _lead(self, topics: Topics) -> bool:
        worker = self._worker
        parts = (worker.executors, worker.poller, self.metrics, self._log)
        how = (*parts, worker.make_reader, worker.tracing, self._note_take_over)
        self.session = session = Session(self.settings, topics, *how)
        try:
            # The lead may have been lost by now, or the process may be stopping.
            if worker.stopping.is_set() or not self._leading.is_set():
                return False
            return await session.run()
        finally:
            if session.made_progress:
                self._patience.reset()
            self.session = None

    def _note_take_over(self) -> None:
        self._led_since = time.monotonic()
        if self._lost_at is not None:
            name, seconds = self.settings.stream.name, time.monotonic() - self._lost_at
            self._log.info("recovered: leading stream %s again, after %.0f s", name, seconds)
            self._lost_at = None

    async def _find_topics(self) -> Topics:
        what = ("finding topics", find_topics, self.settings.kafka, self.settings.stream)
        deadline = self.settings.worker.step_deadline_seconds
        return await self._worker.executors.call(Pool.COMMITS, *what, deadline=deadline)

    async def _find_topics_patiently(self) -> Topics:
        """Find the topics; retry if a broker has responded, to this stream or to another of the process."""
        worker = self._worker
        topics = await patiently(
            self._find_topics, self._patience, worker.stopping, self._log, lambda: worker.broker_reached
        )
        worker.broker_reached = True
        return topics


class Worker:
    """Process that runs streams, each as leader or standby; their settings differ in ``stream`` only.

    ``site`` is shown with metrics and health.
    """

    def __init__(
        self,
        settings: Sequence[Settings],
        make_reader: ReaderFactory = PartitionReader,
        site: Site | None = None,
    ) -> None:
        self._settings, self._site = settings[0], site
        self.make_reader = make_reader
        self.stopping = asyncio.Event()
        self.executors = Executors()
        self.metrics = Metrics(process=self._settings.http.process_metrics)
        often = (self._settings.worker.tick_seconds, self._settings.worker.partitions_seconds)
        on_answer = self.metrics.broker_seconds.observe
        self.poller = EndOffsetPoller(self._settings.kafka, *often, on_answer, self._settings.registry)
        self.tracing = Tracing(self._settings.trace)
        self.compiled = asyncio.Event()  # set once the kernels are compiled
        self.candidates = asyncio.Event()  # set once the process is a candidate for a stream
        self.broker_reached = False  # True once the broker has responded to any stream
        self.joined = asyncio.Event()  # set after the election's first assignment
        self._streams = [_Stream(self, each) for each in settings]

    def stop(self) -> None:
        """Finish reserved batches, drop unreserved ones, and step down."""
        log.info("stopping: a reserved batch is finished first")
        self.stopping.set()
        for stream in self._streams:
            stream.interrupt()

    async def _compile(self) -> None:
        """Compile the kernels of first batches, then, after the start, the others.

        No batch may wait for its kernels, so the process becomes a candidate later. Cancelling stops
        immediately: a worker that finds no broker does not wait for the compiler.
        """
        use_threads(self._settings.worker.threads)
        streams = [stream.settings.stream for stream in self._streams]
        first = {kernel_cache.FIRST if kernel_cache.needs_first_alone(s) else s.record_kind for s in streams}
        await self._fill_cache(first)
        self.compiled.set()
        await asyncio.sleep(_REST_SECONDS)
        try:
            await self._fill_cache({each.record_kind for each in streams})
        except Exception as error:
            # By now the worker serves streams, which continue without the kernels.
            log.warning("kernels compile at their first use: %s", error)

    async def _fill_cache(self, kinds: Collection[str]) -> None:
        look = ("looking for kernels", kernel_cache.are_cached, kinds)
        if await self.executors.call(Pool.RECORDS, *look):
            return
        log.info("%s: up to half a minute of one core, longer on a busy machine", kernel_cache.COMPILING)
        started, compiler = time.monotonic(), kernel_cache.compile_apart(kinds)
        try:
            # Polled, because no pool thread may be blocked by the second compilation.
            while (status := compiler.poll()) is None:
                await asyncio.sleep(_COMPILING_POLL_SECONDS)
        finally:
            kernel_cache.stop(compiler)
        if status:
            log.warning("the compiler ended with status %d: kernels compile at their first use", status)
        elif not await self.executors.call(Pool.RECORDS, *look):
            log.warning(
                "the compiled kernels could not be saved: make room in numba's cache (NUMBA_CACHE_DIR); "
                "until then every worker compiles them, at its start and at their first use"
            )
        else:
            log.info("compiled kernels in %.0f s", time.monotonic() - started)

    def roles(self) -> dict[str, str]:
        return {stream.settings.stream.name: stream.role for stream in self._streams}

    def refusals(self) -> dict[str, str]:
        return {s.settings.stream.name: s.refusal for s in self._streams if s.refusal is not None}

    async def run(self) -> int:
        """Serve until stopped, or until all streams have ended; return the greatest exit status."""
        for each in self._streams:
            each.warn()
        http = None
        if self._settings.http.enabled:
            http = HttpServer(self._settings.http, self.metrics.text, self.roles, self.refusals, self._site)
            http.start()
            log.info("metrics and health on %s", http.url)
            if self._site is not None:
                log.info("dashboard on %s/", http.url)
        self.poller.start()
        compiling = asyncio.create_task(self._compile())
        running = [asyncio.create_task(stream.run()) for stream in self._streams]
        for task in running:
            # The first error is raised; asyncio would print the others with their messages.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        election = asyncio.create_task(self._serve_election())
        shown: dict[str, list[StreamMetrics]] = {}
        for stream in self._streams:
            shown.setdefault(stream.settings.stream.input, []).append(stream.metrics)
        how = (self._settings.kafka, shown, self._settings.worker.verify_seconds, self.stopping)
        verifying = asyncio.create_task(verify_periodically(*how))
        try:
            await self._until_done(running, compiling, election, verifying)
        finally:
            self.stopping.set()
            compiling.cancel()
            await asyncio.wait([verifying])
            await asyncio.wait([election], timeout=self._settings.kafka.request_timeout_ms / 1000)
            patience = self._settings.kafka.request_timeout_ms / 1000 + 5
            await self.executors.call(Pool.ELECTION, "closing", self.poller.close, deadline=patience)
            if http is not None:
                await http.stop()
            # Outside the pools, whose threads may hang.
            await asyncio.to_thread(self.tracing.close)
        return max(stream.status or 0 for stream in self._streams)

    async def _until_done(self, running: list[asyncio.Task[None]], *others: asyncio.Task[None]) -> None:
        """Wait for all streams; raise the first error that ends the process."""
        waiting = {*running, *others}
        while any(not task.done() for task in running):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        for task in others:
            if task.done():
                task.result()

    async def _serve_election(self) -> None:
        """Serve the election until stopping; replace failed consumers."""
        kafka, group = self._settings.kafka, self._settings.worker.group
        await first_of(self.candidates, self.stopping)
        while not self.stopping.is_set():
            election = None
            try:
                election = await self._in_election(
                    "joining", Election, kafka, group, self.metrics.rebalances.inc
                )
                while not self.stopping.is_set() or any(s.session for s in self._streams):
                    led_topics = await self._in_election("the election", election.poll, self._topics())
                    if election.joined:
                        self.joined.set()
                    if not self.stopping.is_set():
                        self._lead(led_topics)
            except (KafkaError, BrokerUnreachable) as error:
                log.warning("election: %s", error)
                self._lead(frozenset())
                await first_of(self.stopping, seconds=RETRY_SECONDS)
            finally:
                if election is not None:
                    await self._in_election(
                        "leaving", election.close, deadline=kafka.request_timeout_ms / 1000 + 5
                    )
        self._lead(frozenset())

    async def _in_election(
        self, task: str, function: Callable[..., T], *args: object, deadline: float = _ELECTION_SECONDS
    ) -> T:
        return await self.executors.call(Pool.ELECTION, task, function, *args, deadline=deadline)

    def _topics(self) -> list[str]:
        """Return the state topics of the streams that this process may lead."""
        return [stream.topic for stream in self._streams if stream.is_candidate and stream.status is None]

    def _lead(self, led_topics: frozenset[str]) -> None:
        for stream in self._streams:
            stream.set_leading(stream.topic in led_topics and stream.status is None)


def run_worker(
    settings: Sequence[Settings], make_reader: ReaderFactory = PartitionReader, site: Site | None = None
) -> int:
    """Run until SIGTERM, SIGINT, the end of all streams or their refusal.

    Returns the exit status: 0 stopped or done, 2 refused or misconfigured, 3 budget exceeded, 4 broker lost;
    the greatest if streams ended differently.
    """
    _prepare()

    async def main() -> int:
        worker = Worker(settings, make_reader, site)
        with stop_on_signals(worker.stop):
            return await worker.run()

    return run_process(main, "recovers")
