"""Deadlines of calls in the thread pools."""

from __future__ import annotations

import asyncio
import threading

import pytest

from streaming_pca.service.errors import DeadlineExceeded
from streaming_pca.service.executors import Executors, Pool


def test_calls_behind_a_thread_that_hangs_end_at_once_until_it_is_free() -> None:
    async def run() -> None:
        executors, released = Executors(), threading.Event()
        with pytest.raises(DeadlineExceeded, match=r"the election did not finish within 0\.05 s"):
            await executors.call(Pool.ELECTION, "the election", released.wait, deadline=0.05)
        with pytest.raises(DeadlineExceeded, match="leaving cannot start"):
            await executors.call(Pool.ELECTION, "leaving", int, deadline=30)
        assert await executors.call(Pool.COMMITS, "committing", int, deadline=30) == 0
        released.set()
        async with asyncio.timeout(30):
            while executors._hanging[Pool.ELECTION]:
                await asyncio.sleep(0.01)
        assert await executors.call(Pool.ELECTION, "leaving", int, deadline=30) == 0

    asyncio.run(run())


def test_a_pool_with_a_free_thread_serves_on() -> None:
    async def run() -> None:
        executors, released = Executors(), threading.Event()
        with pytest.raises(DeadlineExceeded):
            await executors.call(Pool.COMMITS, "committing", released.wait, deadline=0.05)
        assert await executors.call(Pool.COMMITS, "committing", int, deadline=30) == 0
        released.set()

    asyncio.run(run())
