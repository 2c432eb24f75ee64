"""Between the clock's process and the worker: no tick waits for a reader, no feed for a dead process."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest
from kafka.errors import KafkaError

from streaming_pca.config.settings import KafkaSettings
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.input import clock
from streaming_pca.service.input.clock import Poller, event_writer
from streaming_pca.service.input.end_offsets import EndOffsetPoller


def test_a_worker_that_does_not_read_holds_up_no_tick() -> None:
    back, forth = os.pipe()
    with os.fdopen(back, "rb") as lines, os.fdopen(forth, "wb") as out:
        told, gone = threading.Event(), threading.Event()
        tell = event_writer(out, gone.set)

        def tick() -> None:
            for at in range(5000):  # a pipe holds some 1,000
                tell({"at": at, "ends": {"topic": [0] * 10}})
            told.set()

        threading.Thread(target=tick, daemon=True).start()
        held_up = not told.wait(120)
        read = []
        while len(read) < 5000:
            if (line := lines.readline()) != b"\n":
                read.append(line)
    assert not held_up
    assert read[-1].startswith(b'{"at": 4999,')
    # It says something every second, and so notices.
    assert gone.wait(120)


def test_a_process_that_is_killed_while_it_writes_fails_its_feeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = tmp_path / "killed"
    killed.write_text(
        f"#!{sys.executable}\nimport sys\nsys.stdin.readline()\nsys.stdin.readline()\n"
        'sys.stdout.write(\'{"at": 1e9, "ends": {"to\')\n'
    )
    killed.chmod(0o700)
    monkeypatch.setattr(sys, "executable", str(killed))
    poller, failed = EndOffsetPoller(KafkaSettings(), 0.1, 1.0), threading.Event()
    try:
        feed = poller.open_feed("topic", [0], failed.set)
        assert failed.wait(120)
        with pytest.raises(SessionLost, match="the clock's process ended"):
            feed.check()
    finally:
        poller.close()


def test_ticks_that_hang_beside_signs_of_life_end_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    # Of its two other threads, one writes the signs of life and one reads ids: the worker sees both go on.
    hung, ended = threading.Event(), threading.Event()
    events = SimpleQueue[dict[str, Any]]()
    kafka = KafkaSettings(bootstrap_timeout_ms=100, request_timeout_ms=1000)

    def hangs(*_: Any, **__: Any) -> None:
        hung.set()
        threading.Event().wait()

    monkeypatch.setattr(clock, "reading_consumer", hangs)
    monkeypatch.setattr(clock, "admin_client", lambda _: Admin())
    monkeypatch.setattr(clock, "_end", ended.set)
    poller = Poller(kafka, 0.1, 1.0, events.put)
    poller.set_topics({"topic": 1})
    threading.Thread(target=poller.run, daemon=True).start()
    assert hung.wait(120)
    assert ended.wait(120)
    said = [events.get() for _ in range(events.qsize())]
    assert {"topic": "id"} in [event.get("ids") for event in said]
    assert said[-1]["failed"] == "the clock stood still"


def test_slow_ticks_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    # Each tick takes as long as its request may; together they take far longer than one may stand still.
    ended, ticks = threading.Event(), threading.Semaphore(0)

    def slow(*_: Any) -> dict[Any, int]:
        time.sleep(0.9)
        ticks.release()
        raise KafkaError

    monkeypatch.setattr(clock, "reading_consumer", lambda *_, **__: Consumer())
    monkeypatch.setattr(clock, "admin_client", lambda _: Admin())
    monkeypatch.setattr(clock, "last_offsets", slow)
    monkeypatch.setattr(clock, "_end", ended.set)
    kafka = KafkaSettings(bootstrap_timeout_ms=100, request_timeout_ms=1000)
    poller = Poller(kafka, 0.1, 1000.0, lambda _: None)
    poller.set_topics({"topic": 1})
    threading.Thread(target=poller.run, daemon=True).start()
    for _ in range(6):
        poller.set_topics({"topic": 1})
        assert ticks.acquire(timeout=120)
    assert not ended.is_set()


class Admin:
    """Broker of one topic."""

    def describe_topics(self, topics: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "topic_id": "id", "error_code": 0} for name in topics]

    def close(self) -> None:
        pass


class Consumer:
    """Client that holds nothing."""

    def close(self, autocommit: bool) -> None:
        pass
