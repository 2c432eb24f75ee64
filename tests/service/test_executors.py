"""Calls in the thread pools have deadlines, and leave nothing in memory."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from contextlib import suppress

import pytest

from streaming_pca.service.errors import DeadlineExceeded
from streaming_pca.service.executors import Executors, Pool
from tests.waiting import LIMIT


def test_calls_behind_a_thread_that_hangs_end_at_once_until_it_is_free() -> None:
    async def run() -> None:
        executors, released = Executors(), threading.Event()
        with pytest.raises(DeadlineExceeded, match=r"the election did not finish within 0\.05 s"):
            await executors.call(Pool.ELECTION, "the election", released.wait, deadline=0.05)
        with pytest.raises(DeadlineExceeded, match="leaving cannot start"):
            await executors.call(Pool.ELECTION, "leaving", int, deadline=LIMIT)
        assert await executors.call(Pool.COMMITS, "committing", int, deadline=LIMIT) == 0
        released.set()
        async with asyncio.timeout(LIMIT):
            while executors._hanging[Pool.ELECTION]:
                await asyncio.sleep(0.01)
        assert await executors.call(Pool.ELECTION, "leaving", int, deadline=LIMIT) == 0

    asyncio.run(run())


def test_a_pool_with_a_free_thread_serves_on() -> None:
    async def run() -> None:
        executors, released = Executors(), threading.Event()
        with pytest.raises(DeadlineExceeded):
            await executors.call(Pool.COMMITS, "committing", released.wait, deadline=0.05)
        assert await executors.call(Pool.COMMITS, "committing", int, deadline=LIMIT) == 0
        released.set()

    asyncio.run(run())


class Batch:
    """Stand-in for something large."""


def keep_frames(circle: list[object]) -> None:
    """Leave this thread's frames in a reference cycle, as kafka-python's errors do."""
    circle += [circle, sys._getframe()]


def read() -> Batch:
    keep_frames([])
    return Batch()


def fail() -> None:
    keep_frames([])
    raise ValueError("the broker has gone")


@pytest.mark.parametrize("deadline", [0.0, LIMIT])
def test_a_call_keeps_neither_its_result_nor_its_callers(no_collector: None, deadline: float) -> None:
    """Until garbage collection, possibly minutes later, a worker would hold more batches than allowed."""

    async def result(executors: Executors) -> weakref.ref[Batch]:
        return weakref.ref(await executors.call(Pool.READING, "reading", read, deadline=deadline))

    async def error(executors: Executors, known: list[weakref.ref[Batch]]) -> None:
        batch = Batch()
        known.append(weakref.ref(batch))
        await executors.call(Pool.COMMITS, "committing", fail, deadline=deadline)

    async def run() -> None:
        executors = Executors()
        assert (await result(executors))() is None
        known: list[weakref.ref[Batch]] = []
        with suppress(ValueError):
            await error(executors, known)
        assert known[0]() is None

    asyncio.run(run())
