"""The next batch is gathered step by step, and a stop ends all reading."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from streaming_pca.service.errors import SessionLost
from streaming_pca.service.input.source import ReadAhead


def steps(*answers: bool | Exception) -> tuple[Callable[[], Awaitable[bool]], list[bool]]:
    """Return a step that gives these answers and then False, and its past answers."""
    left, given = list(answers), []

    async def step() -> bool:
        await asyncio.sleep(0)
        answer = left.pop(0) if left else False
        if isinstance(answer, Exception):
            raise answer
        given.append(answer)
        return answer

    return step, given


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_it_steps_while_there_is_more_and_then_waits_for_news() -> None:
    async def run() -> None:
        news = asyncio.Event()
        step, given = steps(True, True, False, True, False)
        ahead = ReadAhead(step, news)
        ahead.start()
        await settle()
        assert given == [True, True, False]
        news.set()
        await settle()
        assert given == [True, True, False, True, False]
        await ahead.stop()
        news.set()
        await settle()
        assert len(given) == 5
        # It can be started again.
        news.clear()
        for n in (6, 7):
            ahead.start()
            await settle()
            await ahead.stop()
            assert len(given) == n

    asyncio.run(run())


def test_stopping_waits_for_the_step_that_is_being_done() -> None:
    async def run() -> None:
        news, go, done = asyncio.Event(), asyncio.Event(), []

        async def step() -> bool:
            await go.wait()
            done.append(True)
            return True

        ahead = ReadAhead(step, news)
        ahead.start()
        await settle()
        stopping = asyncio.create_task(ahead.stop())
        await settle()
        assert not stopping.done()
        go.set()
        await stopping
        assert done == [True]

    asyncio.run(run())


def test_what_a_step_raises_is_raised_where_the_next_batch_is_wanted() -> None:
    async def run() -> None:
        step, _ = steps(True, SessionLost("gone"))
        ahead = ReadAhead(step, asyncio.Event())
        ahead.start()
        await settle()
        with pytest.raises(SessionLost, match="gone"):
            await ahead.stop()
        # Raised once: a second stop, to close, raises nothing.
        await ahead.stop()

    asyncio.run(run())
