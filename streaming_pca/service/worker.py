"""Worker process: one election, one clock and a few threads for all its streams.

Each stream stands by, leads in sessions, and steps down. The end of one stream (a cap that is reached,
a changed privacy contract) does not end the others. The loop is asyncio on uvloop and never blocks
(:mod:`streaming_pca.service.session`). A thread that misses its deadline cannot be stopped, so then the
process ends and its successor recovers.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from typing import TypeVar

import uvloop
from kafka.errors import KafkaError

from streaming_pca.config.settings import ConfigurationError, Settings
from streaming_pca.estimators.common.kernel_cache import are_cached, compile_apart
from streaming_pca.kernels.threads import use_threads
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.ledger.ledger import BudgetExceeded
from streaming_pca.service.commit.checkpoint import BudgetExceededByAnother
from streaming_pca.service.commit.release import Progress
from streaming_pca.service.election import Election
from streaming_pca.service.errors import DeadlineExceeded, RecordsLost, SessionLost, StreamRefused, TopicError
from streaming_pca.service.executors import Executors, Pool, first_of
from streaming_pca.service.http import HttpServer
from streaming_pca.service.input.end_offsets import EndOffsetPoller
from streaming_pca.service.kafka.clients import BrokerUnreachable
from streaming_pca.service.logs import StreamLog
from streaming_pca.service.metrics import Metrics
from streaming_pca.service.session import Session
from streaming_pca.service.topics.find import Topics, find_topics

__all__ = ["Worker", "run_worker"]

log = logging.getLogger(__name__)

_SWITCH_SECONDS = 0.0005
"""Time that a decoding thread may keep the interpreter's lock.

Others wait for that lock with the answer to a commit, or a kernel's next block: at Python's own 5 ms a
batch waits for it dozens of times.
"""

_ELECTION_SECONDS = 60.0
"""Time limit of one step of the group protocol."""

T = TypeVar("T")


def _prepare() -> None:
    """Set up the interpreter, once everything is imported.

    Objects that exist now are excluded from garbage collection: hundreds of thousands, of the libraries,
    which the collector would search every few polls. That was a fifth of the processor time of a worker of
    small messages. The collector still runs as often: a fetch that was read is megabytes of cyclic garbage.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()


def _status_of(error: BaseException) -> int | None:
    """Return the exit status of a stream's end; None where the process must end."""
    if isinstance(error, BudgetExceeded | BudgetExceededByAnother):
        return 3
    if isinstance(error, StreamRefused | TopicError | RecordsLost | ConfigurationError | ParameterError):
        return 2
    if isinstance(error, BrokerUnreachable | SessionLost | KafkaError):
        return 4
    return None


class _Stream:
    """One stream of the process: standing by, leading, or ended.

    Parameters
    ----------
    worker : Worker
    settings : Settings
    """

    def __init__(self, worker: Worker, settings: Settings) -> None:
        self.settings = settings
        self.status: int | None = None
        """Exit status; None while the stream has not ended."""
        self._worker = worker
        self._log = StreamLog(log, settings.stream.name)
        self._metrics = worker.metrics.for_stream(settings.stream.name)
        self._leading = asyncio.Event()
        self._session: Session | None = None
        self._trouble_since: float | None = None
        self.is_candidate = False
        """True once its topics were found, so that this process can lead it."""

    @property
    def topic(self) -> str:
        """Topic whose assignment is the stream's leadership."""
        return self.settings.stream.state_topic

    @property
    def in_session(self) -> bool:
        """True while a batch may be in progress."""
        return self._session is not None

    @property
    def role(self) -> str:
        """Role of this process in the stream."""
        if self.status is not None:
            return "ended"
        if self._session is not None and self._session.paused:
            return "paused"
        if self._leading.is_set():
            return "leading"
        return "standby" if self.is_candidate and self._worker.joined else "starting"

    def set_leading(self, leading: bool) -> None:
        """Follow the election's result."""
        if leading and not self._leading.is_set():
            self._log.info("leading stream %s", self.settings.stream.name)
            if not self.settings.stream.private:
                self._log.warning("the stream is not private: its releases have no guarantee")
            self._leading.set()
        elif not leading and self._leading.is_set():
            self._log.info("no longer leading stream %s", self.settings.stream.name)
            self._leading.clear()
            self.interrupt()
        self._metrics.set_leading(leading)

    def interrupt(self) -> None:
        """End the session, after its reserved batch."""
        if self._session is not None:
            self._session.interrupt()

    async def run(self) -> None:
        """Lead whenever elected; set :attr:`status` at the stream's end."""
        try:
            await self._run()
            self.status = 0
        except Exception as error:
            self.status = _status_of(error)
            if self.status is None:
                raise
            if self.status == 3:
                self._log.error("budget exceeded: %s", error)
            else:
                self._log.error("%s", error)

    async def _run(self) -> None:
        stopping = self._worker.stopping
        topics: Topics | None = await self._find_topics_patiently()
        await self._worker.kernels
        self.is_candidate = True
        self._worker.candidates.set()
        if not self._leading.is_set():
            self._log.info("standing by for stream %s", self.settings.stream.name)
        while not stopping.is_set():
            await first_of(self._leading, stopping)
            if stopping.is_set():
                break
            started = time.monotonic()
            try:
                if await self._lead(topics or await self._find_topics()):
                    break
            except (SessionLost, BrokerUnreachable) as error:
                if stopping.is_set():
                    raise
                self._raise_if_stuck(started)
                self._log.warning("session lost, recovering from the topics: %s", error)
                await first_of(stopping, seconds=1.0)
                continue
            finally:
                topics = None
            self._trouble_since = None

    async def _lead(self, topics: Topics) -> bool:
        worker = self._worker
        session = Session(
            self.settings,
            topics,
            worker.executors,
            worker.poller,
            self._metrics,
            self._log,
            worker.on_release,
        )
        self._session = session
        try:
            # The lead may be lost by now, or the process stopping.
            if worker.stopping.is_set() or not self._leading.is_set():
                return False
            return await session.run()
        finally:
            if session.made_progress:
                self._trouble_since = None
            self._session = None

    async def _find_topics(self) -> Topics:
        return await self._worker.executors.call(
            Pool.COMMITS,
            "finding topics",
            find_topics,
            self.settings.kafka,
            self.settings.stream,
            deadline=self.settings.worker.step_deadline_seconds,
        )

    async def _find_topics_patiently(self) -> Topics:
        """Find the topics; retry if the broker has answered another stream of the process."""
        worker = self._worker
        while True:
            started = time.monotonic()
            try:
                topics = await self._find_topics()
            except BrokerUnreachable as error:
                await first_of(worker.stopping, seconds=1.0)
                if worker.stopping.is_set() or not worker.broker_reached:
                    raise
                self._raise_if_stuck(started)
                self._log.warning("looking for the topics again: %s", error)
            else:
                worker.broker_reached, self._trouble_since = True, None
                return topics

    def _raise_if_stuck(self, started: float) -> None:
        """Raise the current error again if trouble has lasted too long without progress."""
        now, patience = time.monotonic(), self.settings.worker.give_up_seconds
        if self._trouble_since is None or now - started > patience:
            self._trouble_since = now
        if now - self._trouble_since > patience:
            raise


class Worker:
    """Process that runs streams, each as leader or standby.

    Parameters
    ----------
    settings : sequence of Settings
        One for each stream, equal but for ``stream``.
    on_release : callable, optional
        Called with every release after it was published.
    """

    def __init__(
        self, settings: Sequence[Settings], on_release: Callable[[Progress], None] | None = None
    ) -> None:
        self._settings = settings[0]
        self.on_release = on_release
        self.stopping = asyncio.Event()
        self.executors = Executors()
        self.poller = EndOffsetPoller(
            self._settings.kafka,
            self._settings.worker.tick_seconds,
            self._settings.worker.partitions_seconds,
        )
        self.metrics = Metrics()
        self.kernels: asyncio.Future[None]
        """Done when they are compiled."""
        self.candidates = asyncio.Event()
        """Set once there is a stream to stand for."""
        self.broker_reached = False
        """True once the broker has answered any stream."""
        self.joined = False
        """True once the election has answered."""
        self._streams = [_Stream(self, each) for each in settings]

    def stop(self) -> None:
        """Finish reserved batches, drop unreserved ones, and step down."""
        log.info("stopping: a reserved batch is finished first")
        self.stopping.set()
        for stream in self._streams:
            stream.interrupt()

    def _compile(self) -> None:
        """Compile the kernels before standing for a stream: no batch may wait for that."""
        use_threads(self._settings.worker.threads)
        kinds = {stream.settings.stream.record_kind for stream in self._streams}
        if not are_cached(kinds):
            log.info("compiling kernels: the first start on a machine takes some 20 seconds longer")
            compile_apart(kinds)

    def roles(self) -> dict[str, str]:
        """Return the role of this process in each stream."""
        return {stream.settings.stream.name: stream.role for stream in self._streams}

    async def run(self) -> int:
        """Serve until stopped, or until all streams have ended.

        Returns
        -------
        int
            Exit status: the greatest of the streams'.
        """
        self.poller.start()
        self.kernels = asyncio.ensure_future(self.executors.call(Pool.RECORDS, "compiling", self._compile))
        http = None
        if self._settings.http.enabled:
            http = HttpServer(self._settings.http, self.metrics, self.roles)
            http.start()
            log.info("metrics and health on http://%s", http.address)
        running = [asyncio.create_task(stream.run()) for stream in self._streams]
        for task in running:
            # The first error is raised; asyncio would print the others, with their contents.
            task.add_done_callback(lambda done: done.cancelled() or done.exception())
        election = asyncio.create_task(self._serve_election())
        try:
            await self._until_done(running, election)
        finally:
            self.stopping.set()
            await asyncio.wait([election], timeout=self._settings.kafka.request_timeout_ms / 1000)
            patience = self._settings.kafka.request_timeout_ms / 1000 + 5
            await self.executors.call(Pool.ELECTION, "closing", self.poller.close, deadline=patience)
            if http is not None:
                await http.stop()
        return max(stream.status or 0 for stream in self._streams)

    async def _until_done(self, running: list[asyncio.Task[None]], election: asyncio.Task[None]) -> None:
        """Wait for all streams; raise the first error that ends the process."""
        waiting = {*running, election}
        while any(not task.done() for task in running):
            done, waiting = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        if election.done():
            election.result()

    async def _serve_election(self) -> None:
        """Serve the election until stopping; replace a failed consumer."""
        kafka, group = self._settings.kafka, self._settings.worker.group
        await first_of(self.candidates, self.stopping)
        while not self.stopping.is_set():
            election = None
            try:
                election = await self._in_election(
                    "joining", Election, kafka, group, self._topics(), self.metrics.rebalances.inc
                )
                while not self.stopping.is_set() or any(s.in_session for s in self._streams):
                    await self._in_election("the election", election.stand_for, self._topics())
                    led_topics = await self._in_election("the election", election.poll)
                    self.joined = election.joined
                    if not self.stopping.is_set():
                        self._lead(led_topics)
            except (KafkaError, BrokerUnreachable) as error:
                log.warning("election: %s", error)
                self._lead(frozenset())
                await first_of(self.stopping, seconds=1.0)
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
        """Return the state topics of the streams for which this process stands."""
        return [stream.topic for stream in self._streams if stream.is_candidate and stream.status is None]

    def _lead(self, led_topics: frozenset[str]) -> None:
        for stream in self._streams:
            stream.set_leading(stream.topic in led_topics and stream.status is None)


def run_worker(settings: Sequence[Settings], on_release: Callable[[Progress], None] | None = None) -> int:
    """Run until SIGTERM, SIGINT, the end of all streams or their refusal.

    Returns
    -------
    int
        Exit status: 0 stopped or done, 2 refused or misconfigured, 3 budget
        exceeded, 4 broker lost; the greatest where streams ended differently.
    """
    _prepare()

    async def main() -> int:
        worker = Worker(settings, on_release)
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, worker.stop)
        return await worker.run()

    try:
        with warnings.catch_warnings():
            # A library's warning about a number is a statement about records or noise.
            warnings.simplefilter("ignore")
            return uvloop.run(main())
    except DeadlineExceeded as error:
        log.error("%s: ending the process; the next one recovers", error)
        logging.shutdown()
        # The hanging thread would delay a normal exit.
        os._exit(4)
    except Exception as error:
        status = _status_of(error)
        if status is None:
            raise
        log.error("%s", error)
        return status
