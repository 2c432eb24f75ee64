"""Input of a session: opening, reading ahead of the batch in progress, and closing.

While a batch is reserved, learnt from, committed and published, the next one is fetched and decoded, up to
the share ``worker.read_ahead``. Reading before a reservation is allowed; computing is not. Reading ahead
does not change batches: only end offsets decide where a batch is cut.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.estimators.base import Plan
from streaming_pca.privacy.ledger.entries import OffsetRange
from streaming_pca.service.errors import DeadlineExceeded, RecordsLost, SessionLost, StreamRefused
from streaming_pca.service.executors import Executors, Pool
from streaming_pca.service.input.end_offsets import OffsetFeed, Offsets
from streaming_pca.service.input.reader import ReaderFactory
from streaming_pca.service.input.source import CodecMaker, CutBatch, Source
from streaming_pca.service.kafka.clients import BrokerUnreachable

T = TypeVar("T")


class ReadAhead:
    """Task that reads the next batch step by step until it is stopped.

    Parameters
    ----------
    step : callable
        Reads a little; returns whether more can be read now. Steps never overlap, and none starts after
        :meth:`stop` has returned.
    wakeup : asyncio.Event
        Set when more data may be available.
    """

    def __init__(self, step: Callable[[], Awaitable[bool]], wakeup: asyncio.Event) -> None:
        self._step, self._wakeup = step, wakeup
        self._task: asyncio.Task[None] | None = None
        self._wanted = False

    def start(self) -> None:
        """Start; the task must not be running."""
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

    Parameters
    ----------
    wakeup : asyncio.Event
        Set when data may be available, or when the session should stop.
    read_ahead : float
        Share of a batch that is read ahead.
    make_reader : ReaderFactory
        Called each time a source is opened.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        stream: StreamSettings,
        executors: Executors,
        wakeup: asyncio.Event,
        read_ahead: float,
        make_reader: ReaderFactory,
    ) -> None:
        self._kafka, self._stream, self._executors = kafka, stream, executors
        self._make_reader = make_reader
        self._source: Source | None = None
        self._stopped = False
        self._read_ahead = read_ahead
        self._read_ahead_task = ReadAhead(self._read_step, wakeup)

    def stop(self) -> None:
        """End current and later reads early, permanently."""
        self._stopped = True
        if self._source is not None:
            self._source.stop()

    @property
    def lag(self) -> int:
        """Offsets between the next batch's start and the newest ends; thread-safe."""
        source = self._source
        return 0 if source is None else source.lag

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
        """Start reading from positions; ``skip_lost`` defaults to the stream's setting.

        ``codec_of`` returns the codec for other schemas, if records name schemas of a registry.
        """
        stream = self._stream
        skip = stream.lost_records == "skip" if skip_lost is None else skip_lost

        def open_source() -> Source:
            reader = self._make_reader(self._kafka, stream, codec, len(partitions), skip, feed.check)
            wait, ahead = stream.max_wait_seconds, self._read_ahead
            how = (feed, skip, wait, ahead, codec.schemas, codec_of)
            return Source(reader, stream.input, partitions, positions, epochs, *how)

        self._source = await self._call("opening the input", open_source, deadline=60.0)
        if self._stopped:
            self._source.stop()

    async def close(self) -> None:
        """Stop reading; do nothing if the input is not open."""
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

    async def poll(self) -> CutBatch | None:
        """Return the planned batch once it is cut, and start reading its successor ahead."""
        cut = await self._call("reading records", self._opened.poll, pool=Pool.READING)
        if cut is not None:
            self._read_ahead_task.start()
        return cut

    async def release_memory(self) -> None:
        """Release the last batch's memory for reuse."""
        if self._source is not None:
            await self._call("releasing a batch", self._source.release_memory)

    async def read_reserved(self, ranges: Sequence[OffsetRange], granularity: int) -> CutBatch | None:
        """Return exactly the records of a reservation.

        None if some no longer exist, or when stopped.
        """
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

        An unknown error may reveal them: for example, the shape in an allocation error contains the number
        of non-null records.
        """
        try:
            return await self._executors.call(pool, task, function, *args, deadline=deadline)
        except (SessionLost, RecordsLost, StreamRefused, BrokerUnreachable, DeadlineExceeded):
            raise
        except Exception:
            raise StreamRefused(
                f"{task} failed; the reason is withheld because it could reveal records"
            ) from None
