"""A stream that begins at the latest records waits until the clock shows every partition."""

from __future__ import annotations

import asyncio
import logging
from types import SimpleNamespace
from typing import Any

from streaming_pca.service.input.end_offsets import OffsetFeed, Offsets
from streaming_pca.service.session import Session
from tests.waiting import LIMIT


def test_a_tick_of_fewer_partitions_does_not_begin_the_stream() -> None:
    """A partition that STARTED lacks is read from its first record."""

    async def begin() -> tuple[Offsets, list[Any]]:
        started: list[Any] = []
        session: Any = object.__new__(Session)
        session._wakeup, session._interrupted = asyncio.Event(), False
        session._feed = feed = OffsetFeed("in", session._wakeup.set)
        session._topics = SimpleNamespace(partitions=(0, 1))
        session._writer, session._log = SimpleNamespace(start=None), logging.getLogger("test")

        async def check_topic() -> None:
            pass

        async def exchange(task: str, function: Any, positions: Offsets) -> None:
            started.append(positions)

        session._check_topic, session._exchange = check_topic, exchange
        waiting = asyncio.ensure_future(session._start_at_ends())
        # The clock ran for another stream, and had not looked for new partitions yet.
        feed.add(1.0, {0: 7})
        await asyncio.sleep(0.05)
        assert not started
        feed.add(1.2, {0: 8, 1: 5})
        return await asyncio.wait_for(waiting, LIMIT), started

    assert asyncio.run(begin()) == ({0: 8, 1: 5}, [{0: 8, 1: 5}])
