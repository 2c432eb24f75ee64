"""No tick waits for the worker, and no feed waits for a dead clock process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
from kafka import TopicPartition
from kafka.errors import KafkaError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.data.features.records import PublicSchema, Subject
from streaming_pca.service import schema_registry
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.input import clock
from streaming_pca.service.input.clock import Poller, decode_schemas, event_writer
from streaming_pca.service.input.end_offsets import EndOffsetPoller, EndOffsets, OffsetFeed, _lines
from tests.service.registry.faults import FaultyServer, answer
from tests.waiting import LIMIT, wait_for

Patch = pytest.MonkeyPatch


def test_a_worker_that_does_not_read_holds_up_no_tick() -> None:
    back, forth = os.pipe()
    with os.fdopen(back, "rb") as lines, os.fdopen(forth, "wb") as out:
        reported, gone = threading.Event(), threading.Event()
        report = event_writer(out, gone.set)

        def tick() -> None:
            for at in range(5000):  # a pipe holds about 1,000
                report({"at": at, "ends": {"topic": [0] * 10}})
            reported.set()

        threading.Thread(target=tick, daemon=True).start()
        held_up = not reported.wait(120)
        read = []
        while len(read) < 5000:
            if (line := lines.readline()) != b"\n":
                read.append(line)
    assert not held_up
    assert read[-1].startswith(b'{"at": 4999,')
    # It writes something every second, and so it notices.
    assert gone.wait(120)


def test_a_line_of_many_schemas_costs_its_length_alone() -> None:
    """Rescanning 40 MiB after each 64 KiB took 21 s, and delayed all ticks."""
    length = 2**25
    back, forth = os.pipe()
    with os.fdopen(back, "rb") as out:

        def write() -> None:
            with os.fdopen(forth, "wb") as lines:
                lines.write(b"\n\nbefore\n" + b"x" * length + b"\nafter\n\n cut")

        threading.Thread(target=write, daemon=True).start()
        began = time.thread_time()
        found = [(len(line), line[:6]) for line in _lines(out)]
    assert found == [(6, b"before"), (length, b"xxxxxx"), (5, b"after")]
    assert time.thread_time() - began < 3


def test_a_process_that_is_killed_while_it_writes_fails_its_feeds(tmp_path: Path, monkeypatch: Patch) -> None:
    killed = tmp_path / "killed"
    program = "import sys\nsys.stdin.readline()\nsys.stdin.readline()\nsys.stdout.write"
    killed.write_text(f"#!{sys.executable}\n{program}" + '(\'{"at": 1e9, "ends": {"to\')\n')
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


@pytest.mark.usefixtures("broker")
def test_ticks_that_hang_beside_signs_of_life_end_the_process(monkeypatch: Patch) -> None:
    # Of its two other threads, one writes signs of life and one reads ids: to the worker, both seem fine.
    hung, ended = threading.Event(), threading.Event()
    events = SimpleQueue[dict[str, Any]]()
    # Below the least of a settings file: a tick may hang for two heartbeats, of a second each.
    kafka = KafkaSettings(bootstrap_timeout_ms=100).model_copy(update={"request_timeout_ms": 400})

    def hangs(*_: Any, **__: Any) -> None:
        hung.set()
        threading.Event().wait()

    monkeypatch.setattr(clock, "reading_consumer", hangs)
    monkeypatch.setattr(clock, "_end", ended.set)
    poller = Poller(kafka, 0.1, 1.0, events.put)
    poller.set_topics({"topic": 1})
    threading.Thread(target=poller.run, daemon=True).start()
    assert hung.wait(120)
    assert ended.wait(120)
    text = [events.get() for _ in range(events.qsize())]
    assert {"topic": "id"} in [event.get("ids") for event in text]
    assert text[-1]["failed"] == "the clock stopped"


@pytest.mark.usefixtures("broker")
def test_slow_ticks_end_nothing(monkeypatch: Patch) -> None:
    # Each tick takes as long as its request may; together they take far longer than one tick may hang.
    ended, ticks = threading.Event(), threading.Semaphore(0)

    def slow(*_: Any) -> dict[Any, int]:
        time.sleep(0.9)
        ticks.release()
        raise KafkaError

    monkeypatch.setattr(clock, "offsets_by", slow)
    monkeypatch.setattr(clock, "_end", ended.set)
    kafka = KafkaSettings(bootstrap_timeout_ms=100, request_timeout_ms=1000)
    poller = Poller(kafka, 0.1, 1000.0, lambda _: None)
    poller.set_topics({"topic": 1})
    threading.Thread(target=poller.run, daemon=True).start()
    for _ in range(6):
        poller.set_topics({"topic": 1})
        assert ticks.acquire(timeout=120)
    assert not ended.is_set()
    # Its thread stays: with a topic it would look for a real broker, and end this process without one.
    poller.set_topics({})
    # Two steps may still have the topic: a tick that has begun, and its request.
    before = poller._steps
    wait_for("a tick without the topic", lambda: poller._steps > before + 2)


@pytest.mark.usefixtures("broker")
def test_one_unexpected_error_costs_a_tick_and_two_in_a_row_the_lead(monkeypatch: Patch) -> None:
    """While connections closed, the client raised ValueError once."""
    events, answers = SimpleQueue[dict[str, Any]](), iter([0, None, 1, None, None])

    def ask(*_: Any) -> dict[Any, int]:
        if (answer := next(answers, None)) is None:
            raise ValueError("a socket")
        return {TopicPartition("topic", 0): answer}

    monkeypatch.setattr(clock, "offsets_by", ask)
    poller = Poller(KafkaSettings(), 0.01, 1000.0, events.put)
    poller.set_topics({"topic": 1})
    threading.Thread(target=poller.run, daemon=True).start()
    seen: list[Any] = []
    while len(seen) < 5:
        event = events.get(timeout=LIMIT)
        if "ends" in event:
            seen.append(event["ends"])
        elif "failed" in event:
            assert re.fullmatch(rf"a bug in the clock: ValueError at {__name__}:\d+", event["failed"])
            seen.append(event["topics"])
    assert seen == [{"topic": [0]}, [], {"topic": [1]}, [], None]


def test_a_lost_tick_fails_no_feed_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    poller = EndOffsetPoller(KafkaSettings(), 0.1, 1.0)
    poller._fail({"at": time.monotonic(), "failed": "a bug in the clock: ValueError at a:1", "topics": []})
    assert "a tick was lost: a bug in the clock: ValueError at a:1" in caplog.text


@pytest.mark.usefixtures("broker")
def test_rare_ticks_end_nothing(monkeypatch: Patch) -> None:
    """The pause between two ticks may be longer than the requests of one."""
    ended, ticks = threading.Event(), threading.Semaphore(0)

    def count(*_: Any) -> dict[Any, int]:
        ticks.release()
        raise KafkaError

    monkeypatch.setattr(clock, "offsets_by", count)
    monkeypatch.setattr(clock, "_end", ended.set)
    kafka = KafkaSettings(bootstrap_timeout_ms=100).model_copy(update={"request_timeout_ms": 300})
    poller = Poller(kafka, 3.0, 1000.0, lambda _: None)
    poller.set_topics({"topic": 1})
    threading.Thread(target=poller.run, daemon=True).start()
    for _ in range(2):
        assert ticks.acquire(timeout=120)
    assert not ended.is_set()
    # Its threads stay, and must not end this process.
    poller._tick = 0.1
    poller.set_topics({})


class Registry:
    """Registry that lists a new schema each time, and sometimes fails."""

    faults: ClassVar[dict[int, Exception]] = {}
    reads = 0

    def __init__(self, settings: RegistrySettings, name: str, format_: str, message: str | None) -> None:
        self.known: list[int] = []

    def read(self, known: Mapping[int, PublicSchema]) -> dict[int, PublicSchema]:
        number = Registry.reads = Registry.reads + 1
        if number in self.faults:
            raise self.faults[number]
        return {**known, number: PublicSchema("avro", b"%d" % number)}


def test_schemas_are_listed_on_an_interval_and_each_is_sent_once(monkeypatch: Patch) -> None:
    events = SimpleQueue[dict[str, Any]]()
    monkeypatch.setattr(schema_registry, "SchemaRegistry", Registry)
    Registry.reads = 0
    Registry.faults = {2: SessionLost("away"), 3: StreamRefused("refused"), 4: MemoryError()}
    settings = RegistrySettings(url="http://127.0.0.1:1", seconds=0.1)
    poller = Poller(KafkaSettings(), 0.1, 1.0, events.put, settings)
    poller.set_topics({}, [Subject("a", "avro")])
    began = time.monotonic()
    threading.Thread(target=poller._watch_schemas, args=(settings,), daemon=True).start()
    found = [events.get(timeout=120) for _ in range(5)]
    poller.set_topics({})  # its thread stays
    assert all(event["subject"] == ("a", "avro", None) for event in found)
    # Not from the first listing: on busy processors it may come late, and the next ones on time.
    assert found[-1]["at"] - began > 0.39
    text = [{key: event[key] for key in event if key not in ("at", "subject")} for event in found]
    assert re.fullmatch(rf"a bug in the clock: MemoryError at {__name__}:\d+", text[3].pop("failed"))
    assert text == [
        {"schemas": {1: "MQ=="}},
        {"failed": "away", "refused": False},
        {"failed": "refused", "refused": True},
        {"refused": False},
        {"schemas": {5: "NQ=="}},
    ]
    assert decode_schemas(Subject("a", "avro"), {"5": "NQ=="}) == {5: PublicSchema("avro", b"5")}


def test_a_subject_is_there_before_the_thread_that_lists_it_is_woken(monkeypatch: Patch) -> None:
    """In the other order, a quick thread listed the old subjects, then waited an interval."""
    poller, seen = Poller(KafkaSettings(), 0.1, 1.0, lambda _: None), []
    monkeypatch.setattr(poller._new_subjects, "set", lambda: seen.append(poller._subjects))
    subject = Subject("a", "avro")
    poller.set_topics({}, [subject])
    poller.set_topics({}, [subject])
    poller.set_topics({}, [subject], list_now=True)
    assert seen == [(subject,), (subject,)]


def test_no_feed_waits_for_the_interval_of_another_one_of_its_subject() -> None:
    def give(handler: Any) -> None:
        is_list = handler.path.partition("?")[0].endswith("/versions")
        answer([1] if is_list else {"id": 7, "schema": '"double"'})(handler)

    kafka = KafkaSettings(bootstrap_servers="127.0.0.1:1")
    with FaultyServer(give) as server:
        registry = RegistrySettings(url=server.url, seconds=60)
        poller = EndOffsetPoller(kafka, 0.1, 1.0, registry=registry)
        subject = Subject("a", "avro")
        try:
            for topic in "xyz":
                feed = poller.open_feed(topic, [0], lambda: None, subject=subject)
                wait_for("its schemas", lambda feed=feed: feed.schemas is not None, 50)
        finally:
            poller.close()


def test_a_slow_registry_holds_up_no_subject_for_another() -> None:
    """One after another, sixteen subjects waited for sixteen time limits; eight are asked together."""
    events, together = SimpleQueue[dict[str, Any]](), threading.Barrier(8)

    def wait_for_others(handler: Any) -> None:
        together.wait(LIMIT)
        answer([])(handler)

    with FaultyServer(wait_for_others) as slow:
        settings = RegistrySettings(url=slow.url, seconds=60, timeout_seconds=60)
        poller = Poller(KafkaSettings(), 0.1, 1.0, events.put, settings)
        poller.set_topics({}, [Subject(f"s{i}", "avro") for i in range(16)])
        threading.Thread(target=poller._watch_schemas, args=(settings,), daemon=True).start()
        found = [events.get(timeout=LIMIT) for _ in range(16)]
    assert {event["subject"][0] for event in found} == {f"s{i}" for i in range(16)}
    assert all("has no version" in event["failed"] for event in found)


def listing(at: float, **what: Any) -> dict[str, Any]:
    return {"at": at, "subject": ["a", "avro", None], **what}


def test_a_registry_that_fails_leaves_the_schemas_that_are_known(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    poller = EndOffsetPoller(KafkaSettings(), 0.1, 1.0)
    feed = OffsetFeed("t", lambda: None, subject=Subject("a", "avro"))
    feed.started = 0.0
    poller._feeds.append(feed)
    poller._list_schemas(listing(1, failed="away", refused=False))
    assert isinstance(feed.unlisted, SessionLost)
    poller._list_schemas(listing(2, failed="refused", refused=True))
    assert isinstance(feed.unlisted, StreamRefused)
    assert feed.listed_at == 0
    poller._list_schemas(listing(3, schemas={"1": "MQ=="}))
    assert feed.unlisted is None
    first = feed.schemas
    assert first == {1: PublicSchema("avro", b"1")}
    feed.add(3.5, {0: 1}, 3.6)
    for at in (4, 5):
        poller._list_schemas(listing(at, failed="away", refused=False))
    assert feed.next() == EndOffsets(3.5, {0: 1}, first)
    listed_at = feed.listed_at
    poller._list_schemas(listing(6, schemas={}))
    assert feed.schemas is first
    assert feed.listed_at >= listed_at
    poller._list_schemas(listing(7, schemas={"2": "Mg=="}))
    assert sorted(feed.schemas or {}) == [1, 2]
    # A restarted clock sends all of them again.
    newest = feed.schemas
    poller._list_schemas(listing(8, schemas={"1": "MQ==", "2": "Mg=="}))
    assert feed.schemas is newest
    went = "away: continuing with the known schemas of subject"
    came = "the schema registry answers again for subject"
    assert [each.message.split(" 'a'")[0] for each in caplog.records] == ["subject", went, came, "subject"]


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace the clients: a broker with one topic."""

    def describe(topics: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "topic_id": "id", "error_code": 0} for name in topics]

    client = SimpleNamespace(describe_topics=describe, end_offsets=None, close=lambda **_: None)
    monkeypatch.setattr(clock, "admin_client", lambda _: client)
    monkeypatch.setattr(clock, "reading_consumer", lambda *_, **__: client)


def test_it_starts_without_numpy() -> None:
    # Each worker starts one, and numpy would cost a third of its processor time, and 12 MB.
    program = "import sys, streaming_pca.service.input.clock\nassert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", program], check=True)
