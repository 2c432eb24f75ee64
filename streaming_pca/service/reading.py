"""Reading ahead of whoever learns from batches.

While a batch is reserved, learnt from, committed and published, the next one
is fetched and decoded: one batch is in hand, and at most one more is gathered.
Reading ahead of a reservation is fine, computing is not; and it changes no
batch, for where a batch ends is settled by the clock's snapshots alone.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

__all__ = ["ReadingAhead"]


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

    async def drop(self) -> None:
        """Stop, whatever the steps have met: nobody wants the next batch."""
        with contextlib.suppress(Exception):
            await self.stop()

    async def _run(self) -> None:
        while self._wanted:
            # First: what comes while there is a look must not be missed.
            self._news.clear()
            while self._wanted and await self._step():
                pass
            if self._wanted:
                await self._news.wait()
