"""A session's input: opened, read ahead of whoever learns from its batches, and closed.

While a batch is reserved, learnt from, committed and published, the next one
is fetched and decoded, or as much of it as the setting ``worker.read_ahead`` says.
Reading ahead of a reservation is fine, computing is not; and it changes no
batch, for where a batch ends is settled by the clock's snapshots alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from streaming_pca.estimators.base import Plan
from streaming_pca.privacy.entries import OffsetRange
from streaming_pca.service.clients import BrokerUnreachable
from streaming_pca.service.errors import DeadlineExceeded, RecordsLost, SessionLost, StreamRefused
from streaming_pca.service.snapshots import Ends, Feed
from streaming_pca.service.source import Source, Taken
from streaming_pca.service.threads import Room, Threads
from streaming_pca.settings import KafkaSettings, StreamSettings
from streaming_pca.wire import PayloadCodec

__all__ = ["Input", "ReadingAhead"]

T = TypeVar("T")


class ReadingAhead:
    """A task that gathers the next batch, a step at a time, until it is told to stop.

    Parameters
    ----------
    step : callable
        Reads a little; returns whether there is more to read now. Never called
        again before it has returned, nor after :meth:`stop` has.
    news : asyncio.Event
        Set when there may be more to read.
    """

    def __init__(self, step: Callable[[], Awaitable[bool]], news: asyncio.Event) -> None:
        self._step, self._news = step, news
        self._task: asyncio.Task[None] | None = None
        self._wanted = False

    def start(self) -> None:
        """Begin; not while it runs."""
        assert self._task is None, "it runs"
        self._wanted = True
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Wait for the step that is being done, and raise what one has raised; nothing if it does not run."""
        task, self._task, self._wanted = self._task, None, False
        if task is not None:
            self._news.set()
            await task

    async def _run(self) -> None:
        while self._wanted:
            # First: what comes while there is a look must not be missed.
            self._news.clear()
            while self._wanted and await self._step():
                pass
            if self._wanted:
                await self._news.wait()


class Input:
    """What a session reads, one source at a time.

    Parameters
    ----------
    kafka, stream : settings
    threads : Threads
    news : asyncio.Event
        Set when there may be something to read, or reason to stop.
    share : float
        Of a batch: what is read ahead.
    """

    def __init__(
        self,
        kafka: KafkaSettings,
        stream: StreamSettings,
        threads: Threads,
        news: asyncio.Event,
        share: float,
    ) -> None:
        self._kafka, self._stream, self._threads = kafka, stream, threads
        self._source: Source | None = None
        self._stopped = False
        self._share = share
        self._ahead = ReadingAhead(self._read_ahead, news)

    def stop(self) -> None:
        """Have what is read now, and whatever is opened later, return nothing soon; for good."""
        self._stopped = True
        if self._source is not None:
            self._source.stop()

    @property
    def lag(self) -> int:
        """Offsets between where the next batch starts and the newest ends; from any thread."""
        source = self._source
        return 0 if source is None else source.lag

    async def open(
        self,
        partitions: tuple[int, ...],
        codec: PayloadCodec,
        positions: Ends,
        epochs: Ends,
        feed: Feed,
        skip_lost: bool | None = None,
    ) -> None:
        """Start to read from positions; ``skip_lost`` is the stream's where not given."""
        stream = self._stream
        if skip_lost is None:
            skip_lost = stream.lost_records == "skip"
        self._source = await self._of_records(
            "opening the input",
            Source,
            self._kafka,
            stream.input,
            partitions,
            codec,
            positions,
            epochs,
            feed,
            skip_lost,
            stream.max_wait_seconds,
            self._share,
            deadline=60.0,
        )
        if self._stopped:
            self._source.stop()

    async def close(self) -> None:
        """Stop reading; harmless where nothing is open."""
        source = self._source
        if source is None:
            return
        source.stop()
        # Whatever it has met: nobody wants the next batch.
        with contextlib.suppress(Exception):
            await self._ahead.stop()
        self._source = None
        await self._of_records("closing the input", source.close, deadline=30.0)

    async def aim(self, plan: Plan) -> None:
        """Say what the next batch shall be, and end reading ahead; raises what that has met."""
        await self._ahead.stop()
        self._opened.aim(plan)

    async def advance(self) -> Taken | None:
        """The batch that was aimed at, once a snapshot closes it: then its successor is read ahead."""
        taken = await self._of_records("reading records", self._opened.advance, room=Room.READING)
        if taken is not None:
            self._ahead.start()
        return taken

    def give_back(self) -> None:
        """Nobody reads the batch that was taken last, or will: the next ones may use its memory."""
        if self._source is not None:
            self._source.give_back()

    async def retake(self, ranges: Sequence[OffsetRange], granularity: int) -> Taken | None:
        """The very records of a reservation; None if some are gone, or when stopped."""
        return await self._of_records("reading the batch again", self._opened.retake, ranges, granularity)

    async def _read_ahead(self) -> bool:
        return await self._of_records("reading ahead", self._opened.read_ahead, room=Room.READING)

    @property
    def _opened(self) -> Source:
        assert self._source is not None, "open first"
        return self._source

    async def _of_records(
        self,
        what: str,
        function: Callable[..., T],
        *args: Any,
        room: Room = Room.RECORDS,
        deadline: float = 0.0,
    ) -> T:
        """Do what touches records before they are charged.

        An error that we do not know may tell of them: a shape that could not be
        allocated is a count of those that are not null.
        """
        try:
            return await self._threads.call(room, what, function, *args, deadline=deadline)
        except (SessionLost, RecordsLost, BrokerUnreachable, DeadlineExceeded):
            raise
        except Exception:
            raise StreamRefused(f"{what} failed; why could tell of records, so no more is said") from None
