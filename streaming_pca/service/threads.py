"""The few threads that all streams of a process share, and waiting with a deadline."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any, TypeVar

from streaming_pca.service.errors import DeadlineExceeded

__all__ = ["Room", "Threads", "first_of"]

T = TypeVar("T")


class Room(StrEnum):
    """Where work is done."""

    READING = "reading"
    """Fetching, decoding and putting batches together, ahead of the kernels: one thread, for decoding holds
    the interpreter's lock."""
    RECORDS = "records"
    """Kernels, and opening and closing the input: what else touches records."""
    COMMITS = "commits"
    """Exchanges with ledger, state and releases."""
    ELECTION = "election"
    """The group protocol alone: no kernel and no slow commit may stall it."""


_COUNTS = {Room.READING: 1, Room.RECORDS: 2, Room.COMMITS: 2, Room.ELECTION: 1}


class Threads:
    """Pools of threads, a few for each room, however many streams there are."""

    def __init__(self) -> None:
        self._pools = {
            room: ThreadPoolExecutor(count, thread_name_prefix=room) for room, count in _COUNTS.items()
        }
        self.long_exchange = asyncio.Semaphore(1)
        """To be held by an exchange that may take long: it leaves the other threads of its room free."""

    async def call(
        self, room: Room, what: str, function: Callable[..., T], *args: Any, deadline: float = 0.0
    ) -> T:
        """Run in a thread of a room.

        Raises
        ------
        DeadlineExceeded
            If it takes longer than ``deadline`` seconds from when a thread was
            free for it (0: it may take for ever). It goes on there; a thread
            cannot be stopped.
        """
        loop = asyncio.get_running_loop()
        started = asyncio.Event()

        def run() -> T:
            loop.call_soon_threadsafe(started.set)
            return function(*args)

        future = loop.run_in_executor(self._pools[room], run)
        if deadline:
            await started.wait()
            done, _ = await asyncio.wait([future], timeout=deadline)
            if not done:
                raise DeadlineExceeded(f"{what} did not finish within {deadline:g} s")
        return await future


async def first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events is set, or for some seconds."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
