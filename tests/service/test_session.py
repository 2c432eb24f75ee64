"""A session that waits for its take-over can be interrupted before it fences anybody."""

from __future__ import annotations

import asyncio
import logging
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.service import session as session_module
from streaming_pca.service.executors import Executors, Pool
from streaming_pca.service.logs import StreamLog
from streaming_pca.service.metrics import Metrics, StreamMetrics
from streaming_pca.service.session import Session
from streaming_pca.service.topics.find import Topics
from streaming_pca.service.tracing import Span
from tests.dashboard.offline import made_offline
from tests.waiting import LIMIT

STREAM = StreamSettings(name="s", input="in", dim=4, rank=2, epsilon=1.0, delta=1e-6)


class Writer:
    """Writer that notes its calls."""

    step = ""

    def __init__(self, *_: Any) -> None:
        self.calls: list[str] = []

    def take_over(self) -> None:
        self.calls.append("take_over")
        raise AssertionError("the next leader is fenced")

    def close(self) -> None:
        self.calls.append("close")


@pytest.mark.parametrize(
    ("how", "level", "words"),
    [
        ({}, "WARNING", "are null: `streaming-pca payload check` shows why"),
        (
            {"privacy_unit": "user", "contributions_per_user": 1},
            "INFO",
            "are null: further messages of users are null by design; "
            "`streaming-pca payload check` shows others",
        ),
    ],
)
def test_many_null_messages_are_a_warning_unless_users_send_them(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    how: dict[str, Any],
    level: str,
    words: str,
) -> None:
    made = made_offline("s", **how)
    release = made.next_release(null_records=90.0)

    async def publish() -> None:
        executors, metrics = Executors(), StreamMetrics(Metrics(), "s")
        topics, log = Topics("id", (0,)), StreamLog(logging.getLogger("test"), "s")
        session = Session(made.settings, topics, executors, cast("Any", None), metrics, log)
        session._writer = cast("Any", SimpleNamespace(publish=release.to_bytes))
        monkeypatch.setattr(session, "_show_ledger", lambda: None)
        await session._publish(Span())

    caplog.set_level("INFO", "test")
    asyncio.run(publish())
    assert caplog.records[-1].levelname == level
    assert caplog.messages[-1].endswith(f"batch 1: at least 85% of its records {words}")


async def interrupt_while_waiting(*, for_thread: bool) -> tuple[bool, list[str]]:
    """Interrupt a session that waits for the semaphore or a thread; return its result and the calls."""
    executors, metrics = Executors(), StreamMetrics(Metrics(), "s")
    settings, topics = Settings(kafka=KafkaSettings(), stream=STREAM), Topics("id", (0,))
    log = StreamLog(logging.getLogger("test"), "s")
    session = Session(settings, topics, executors, cast("Any", None), metrics, log)
    hold, busy = threading.Event(), []
    if for_thread:
        busy = [asyncio.create_task(executors.call(Pool.COMMITS, "x", hold.wait, LIMIT)) for _ in range(2)]
    else:
        await executors.long_exchange.acquire()
    running = asyncio.create_task(session.run())
    await asyncio.sleep(0.1)
    session.interrupt()
    if for_thread:
        hold.set()
    else:
        executors.long_exchange.release()
    done = await asyncio.wait_for(running, LIMIT)
    await asyncio.gather(*busy)
    return done, cast("Any", session._writer).calls


@pytest.mark.parametrize("for_thread", [False, True])
def test_an_interrupted_session_does_not_take_over(monkeypatch: pytest.MonkeyPatch, for_thread: bool) -> None:
    monkeypatch.setattr(session_module, "CheckpointWriter", Writer)
    assert asyncio.run(interrupt_while_waiting(for_thread=for_thread)) == (False, ["close"])
