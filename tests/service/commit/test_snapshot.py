"""A ledger and its states are read while workers continue; no broker is needed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from itertools import count
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import CorruptRecordError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.privacy.ledger.entries import encode_entry
from streaming_pca.service.commit import log_reader, snapshot
from streaming_pca.service.commit.log_reader import LedgerLog, report_reading
from streaming_pca.service.commit.snapshot import Snapshot, read_snapshot
from streaming_pca.service.commit.state_topic import FoundState, StateReader, find_state, summarise
from streaming_pca.service.errors import SessionLost, StreamRefused
from tests.admin.test_backup import state_of
from tests.privacy.ledger.test_ledger import Writer, span

# Results of a search for a state: the topic has it, a later state, or nothing.
HELD, OVERWRITTEN, LOST = "held", "overwritten", "lost"


class Topics:
    """Ledger that grows by a batch whenever it is read again, and a state topic."""

    topic = "in.ledger"

    def __init__(self, answers: list[str]) -> None:
        self.writer, self.answers, self.position = Writer(epsilon=9), answers, 0
        self.sought: list[str] = []
        self.grow()

    def grow(self) -> None:
        job = self.writer.ledger.job("a")
        start = job.ends.get(0, 0)
        self.writer.answer("a", span(start, start + 5))

    def read_to(self, end: int, patience_seconds: float) -> Iterator[Any]:
        for entry in self.writer.log[self.position : end]:
            yield SimpleNamespace(offset=self.position, value=encode_entry(entry))
            self.position += 1

    def find(self, kafka: Any, topic: str, digest: str) -> FoundState:
        self.sought.append(digest)
        answer = self.answers.pop(0)
        if answer == OVERWRITTEN:
            self.grow()
            return FoundState(last=self.writer.ledger.job("a").state_digest)
        return FoundState(b"x", None, digest, is_whole=True) if answer == HELD else FoundState()


def read(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Snapshot[str]:
    monkeypatch.setattr(snapshot, "high_watermark", lambda kafka, topic: len(topics.writer.log))
    monkeypatch.setattr(snapshot, "existing_topics", lambda kafka, names: set(names))
    monkeypatch.setattr(snapshot, "find_state", topics.find)
    reader: Any = topics
    return read_snapshot(SimpleNamespace(), reader, "T", lambda found, digest: found.last)  # type: ignore[arg-type]


def test_a_state_that_was_followed_by_another_is_sought_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics([OVERWRITTEN, OVERWRITTEN, HELD])
    found = read(topics, monkeypatch)
    assert topics.sought == [f"state a {batch}" for batch in (1, 2, 3)]
    assert found.states == {"a": "state a 3"}
    assert len(found.entries) == found.end == len(topics.writer.log)


def test_a_state_that_is_lost_is_reported_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    topics = Topics([LOST])
    assert read(topics, monkeypatch).states == {"a": ""}
    assert topics.sought == ["state a 1"]


def test_jobs_that_are_always_faster_end_the_search(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(SessionLost, match="streams 'a' commit faster"):
        read(Topics([OVERWRITTEN] * 20), monkeypatch)


def test_what_is_no_state_is_summed_up_as_that() -> None:
    data, digest = state_of("a", 3)
    whole = summarise(data, None)
    assert (whole.digest, whole.stream, whole.batch, whole.problem) == (digest, "a", 3, "")
    assert "a table of users that its state does not name" in summarise(data, b"").problem
    broken = summarise(b"\x00\x00\x00\xff{", None)
    assert "cannot be read" in broken.problem
    assert len(broken.digest) == 64


END = 8_765
KAFKA = KafkaSettings()


class Partition:
    """Consumer of a partition that ends at offset 8,765, and that fails in one way at offset 4,321."""

    def __init__(self, failure: str) -> None:
        self.failure = failure

    def beginning_offsets(self, partitions: list[Any], timeout_ms: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: list[Any], timeout_ms: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, END)

    def position(self, partition: Any, timeout_ms: int) -> int:
        self.partition = partition
        return 4_321

    def poll(self, timeout_ms: int) -> dict[Any, Any]:
        if self.failure == "corrupt":
            raise CorruptRecordError("the batch at offset 4321 fails its checksum")
        foreign = SimpleNamespace(key=b"x", headers=(), value=b"x", offset=4_321)
        return {self.partition: [foreign]} if self.failure == "foreign" else {}

    def assign(self, *_: Any, **__: Any) -> None: ...

    seek = close = assign


def seen_of(read: Callable[[], Any]) -> list[str]:
    """Return the texts of progress, and the error, of reading a topic that fails."""
    seen: list[str] = []
    with report_reading(seen.append):
        try:
            read()
        except (SessionLost, StreamRefused) as error:
            seen.append(str(error))
    return sorted(set(seen))


@pytest.mark.parametrize(
    ("failure", "of_ledger", "of_state"),
    [
        (
            "stalled",
            "to offset 8765: it has stopped for 30 s at 4321 (an open",
            "to its end: it has stopped for",
        ),
        ("corrupt", "fails its checksum", "reading a.state failed: CorruptRecordError"),
        ("foreign", "offset 4321: not a ledger entry", "a message is not a chunk of a state"),
    ],
)
def test_no_text_shows_the_size_of_a_state_topic_which_follows_the_number_of_users(
    failure: str, of_ledger: str, of_state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_reader, "reading_consumer", lambda *_, **options: Partition(failure))
    times = count(step=40.0)
    monkeypatch.setattr(log_reader, "time", SimpleNamespace(monotonic=lambda: next(times)))
    stream = StreamSettings(name="a", input="in", dim=2, rank=1, epsilon=1.0, delta=1e-6, privacy_unit="user")
    ledger = seen_of(lambda: LedgerLog(KAFKA, "in.ledger", "T").catch_up())
    assert ledger[0] == "at offset 4,321 of 8,765 of in.ledger"
    assert of_ledger in ledger[1]
    shown = seen_of(StateReader(KAFKA, stream, "T").read_committed)
    assert of_state in " ".join(shown)
    for texts in (shown, seen_of(lambda: find_state(KAFKA, stream.state_topic, "digest"))):
        assert "reading a.state" in texts
        assert not re.search("4.?321|8.?765", " ".join(texts))
