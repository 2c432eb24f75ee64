"""Process that projects a stream's records until it is stopped or has caught up.

The exchange with the broker runs in one thread, in bounded steps that each have a deadline. If the broker
hangs, the process ends, and its successor continues from the committed positions.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, disable_created_metrics, generate_latest

from streaming_pca.config.settings import Settings
from streaming_pca.service.errors import BrokerUnreachable, DeadlineExceeded, SessionLost, StreamRefused
from streaming_pca.service.executors import Executors, Pool, first_of
from streaming_pca.service.http.server import HttpServer
from streaming_pca.service.process import Patience, patiently, run_process, stop_on_signals
from streaming_pca.service.projection.encoding import Encoder, Format
from streaming_pca.service.projection.projector import Projector
from streaming_pca.service.topics.output import Output, check_stream, find_output

log = logging.getLogger(__name__)

T = TypeVar("T")

disable_created_metrics()  # type: ignore[no-untyped-call]

_CLOSING_SECONDS = 30.0
_PROGRESS_SECONDS = 30.0
_END_SECONDS = 0.5  # shortest interval between checks for the end of the input


@dataclass(frozen=True)
class ProjectionOptions:
    """Options of the command."""

    output: str
    format: Format = "octets"
    release_batch: int | None = None  # batch of the only release to use
    until_end: bool = False  # stop when all records present at the start are projected
    create: bool = False  # create a missing output
    http_port: int | None = None  # port of metrics and health; None disables the server


class ProjectionMetrics:
    """Metrics of a projecting worker: public quantities only."""

    def __init__(self, stream: str) -> None:
        self._registry, self._stream = CollectorRegistry(), stream
        about = "Messages whose projections were committed, null records included."
        counter = Counter("streaming_pca_projected_messages", about, ("stream",), registry=self._registry)
        self.messages = counter.labels(stream)
        lag = "Offsets between the committed positions and the input's ends."
        self._lag = self._gauge("lag_records", lag)
        self._partitions = self._gauge("partitions", "Partitions of the input that this process holds.")
        self._release = self._gauge("release_batch", "Batch of the release in use.")

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(f"streaming_pca_projection_{name}", text, ("stream",), registry=self._registry)

    def watch(self, projector: Projector) -> None:
        """Read lag and partitions from a projector at each scrape."""
        self._lag.labels(self._stream).set_function(lambda: projector.lag)
        self._partitions.labels(self._stream).set_function(lambda: len(projector.partitions))

    def show_release(self, batch: int | None) -> None:
        if batch is not None:
            self._release.labels(self._stream).set(batch)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class ProjectionWorker:
    """Worker of one stream's projections."""

    def __init__(self, settings: Settings, options: ProjectionOptions) -> None:
        self._settings, self._options = settings, options
        self._executors = Executors()
        self._stopping = asyncio.Event()
        self._metrics = ProjectionMetrics(settings.stream.name)
        self._projector: Projector | None = None
        self._ended = False
        self._projected = self._said = 0
        self._said_at = time.monotonic()

    def stop(self) -> None:
        """Finish the open transaction, leave the group, and end."""
        log.info("stopping: the transaction in progress is finished first")
        self._stopping.set()

    def roles(self) -> dict[str, str]:
        role = "starting" if self._projector is None else self._projector.role
        return {self._settings.stream.name: "ended" if self._ended else role}

    async def run(self) -> None:
        """Project until stopped, or until the end of the input."""
        settings, options = self._settings, self._options
        stream = settings.stream
        check_stream(stream)
        http = None
        if options.http_port is not None:
            address = settings.http.model_copy(update={"port": options.http_port})
            http = HttpServer(address, self._metrics.text, self.roles, port_option="--http-port")
            http.start()
            log.info("metrics and health on %s", http.url)
        try:
            how = ("finding the topics", find_output, settings.kafka, stream, options.output, options.create)
            patience = Patience(settings.worker)
            output: Output = await patiently(lambda: self._call(*how), patience, self._stopping, log)
            log.info(
                "projecting %s to %s: the projections are only as private as the records; give both "
                "topics the same protection",
                stream.input,
                output.topic,
            )
            encoder = Encoder(options.format, stream.dtype)
            parts = (settings.kafka, stream, output, encoder, options.release_batch, self._count)
            # The constructor reads the schemas from the registry, if records name any.
            projector = await self._call("making a projector", Projector, *parts, settings.registry)
            self._projector = projector
            self._metrics.watch(projector)
            hanging = False
            try:
                await self._project(projector)
            except DeadlineExceeded:
                hanging = True
                raise
            finally:
                if not hanging:
                    await self._call("leaving the group", projector.close, deadline=_CLOSING_SECONDS)
        finally:
            self._ended = True
            self._say_progress(last=True)
            if http is not None:
                await http.stop()

    async def _call(self, task: str, function: Callable[..., T], *args: object, deadline: float = 0.0) -> T:
        """Run a function in a thread; one at a time."""
        deadline = deadline or self._settings.worker.step_deadline_seconds
        return await self._executors.call(Pool.RECORDS, task, function, *args, deadline=deadline)

    async def _project(self, projector: Projector) -> None:
        """Work step by step; recover from failures until ``give_up_seconds`` have passed."""
        patience = Patience(self._settings.worker)
        ends: dict[int, tuple[int, int]] | None = None
        started, looked_at = math.inf, -math.inf
        while not self._stopping.is_set():
            try:
                if self._options.until_end and ends is None:
                    ends = await self._call("reading the input's ends", projector.ends)
                messages = await self._call("projecting", projector.work)
                started = min(started, time.monotonic())
                self._metrics.show_release(projector.release_batch)
                self._say_progress()
                if messages:
                    patience.reset()
                # Also while producers keep writing, when every step has messages.
                if ends is not None and time.monotonic() - looked_at > _END_SECONDS:
                    if projector.role == "waiting":
                        raise StreamRefused(
                            f"stream {self._settings.stream.name!r} has no release yet: run it first, or "
                            "leave --until-end out to wait for one"
                        )
                    if await self._call("reading the positions", projector.has_reached, ends):
                        log.info("everything up to the end of the input is projected")
                        return
                    looked_at = time.monotonic()
            except (SessionLost, BrokerUnreachable) as error:
                if patience.is_over(started):
                    raise
                started = math.inf
                log.warning("recovering from the committed positions: %s", error)
                await self._call("recovering", projector.recover)
                await first_of(self._stopping, seconds=1.0)

    def _count(self, messages: int) -> None:
        self._projected += messages
        self._metrics.messages.inc(messages)

    def _say_progress(self, last: bool = False) -> None:
        now = time.monotonic()
        if self._projected > self._said and (last or now - self._said_at >= _PROGRESS_SECONDS):
            log.info("projected %d messages", self._projected)
            self._said, self._said_at = self._projected, now


def run_projection(settings: Settings, options: ProjectionOptions) -> int:
    """Run until a signal, the end of the input or a refusal; return the exit status."""

    async def main() -> int:
        worker = ProjectionWorker(settings, options)
        with stop_on_signals(worker.stop):
            await worker.run()
        return 0

    return run_process(main, "continues from the committed positions")
