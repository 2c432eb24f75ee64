"""Thread pools that all streams of a process share, and waits with a deadline."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from typing import Any, TypeVar

from streaming_pca.service.errors import DeadlineExceeded

T = TypeVar("T")


class Pool(StrEnum):
    READING = "reading"
    """Fetching, decoding and assembly of batches ahead of the kernels; one thread: decoding holds the GIL."""
    RECORDS = "records"  # kernels, and opening and closing the input: all other work on records
    COMMITS = "commits"  # exchanges with ledger, state and releases
    ELECTION = "election"  # the group protocol only, so that kernels and slow commits cannot delay it


_COUNTS = {Pool.READING: 1, Pool.RECORDS: 2, Pool.COMMITS: 2, Pool.ELECTION: 1}


class Executors:
    """Thread pools of fixed sizes, for any number of streams."""

    def __init__(self) -> None:
        self._pools = {
            pool: ThreadPoolExecutor(count, thread_name_prefix=pool) for pool, count in _COUNTS.items()
        }
        self._hanging: Counter[Pool] = Counter()
        self.long_exchange = asyncio.Semaphore(1)
        """Held during an exchange that may take long, so that the pool's other threads stay free."""

    async def call(
        self, pool: Pool, task: str, function: Callable[..., T], *args: Any, deadline: float = 0.0
    ) -> T:
        """Run a function in a thread of a pool.

        Raises DeadlineExceeded if it runs longer than ``deadline`` seconds after a thread has started it (0:
        no limit). It keeps running there, because a thread cannot be stopped. Also if all threads of the pool
        are past such a deadline, because perhaps no thread becomes free again.
        """
        if self._hanging[pool] == _COUNTS[pool]:
            raise DeadlineExceeded(f"{task} cannot start: the process hangs in an earlier step")
        loop = asyncio.get_running_loop()
        started = asyncio.Event()

        # Not via the future: it would be in kafka-python's reference cycle and keep a batch in memory.
        results: list[T] = []
        errors: list[BaseException] = []

        def run() -> None:
            loop.call_soon_threadsafe(started.set)
            try:
                results.append(function(*args))
            except BaseException as error:
                errors.append(error)

        future = loop.run_in_executor(self._pools[pool], run)
        if deadline:
            await started.wait()
            done, _ = await asyncio.wait([future], timeout=deadline)
            if not done:
                self._hanging[pool] += 1
                future.add_done_callback(lambda _: self._hanging.subtract([pool]))
                raise DeadlineExceeded(f"{task} did not finish within {deadline:g} s")
        await future
        if errors:
            raise errors.pop()
        return results.pop()


async def first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Wait until one of the events is set, or for ``seconds``."""
    waits = [asyncio.create_task(event.wait()) for event in events]
    try:
        await asyncio.wait(waits, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for wait in waits:
            wait.cancel()
