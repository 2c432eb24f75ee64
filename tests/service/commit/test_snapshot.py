"""A ledger and its states are read while workers continue; no broker is needed."""

from __future__ import annotations

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from streaming_pca.privacy.ledger.entries import encode_entry
from streaming_pca.service.commit import snapshot
from streaming_pca.service.commit.snapshot import Snapshot, read_snapshot
from streaming_pca.service.commit.state_topic import FoundState, summarise
from streaming_pca.service.errors import SessionLost
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
        return FoundState(b"x", None, digest) if answer == HELD else FoundState()


def read(topics: Topics, monkeypatch: pytest.MonkeyPatch) -> Snapshot[str]:
    monkeypatch.setattr(snapshot, "high_watermark", lambda kafka, topic: len(topics.writer.log))
    monkeypatch.setattr(snapshot, "existing_topics", lambda kafka, names: set(names))
    monkeypatch.setattr(snapshot, "find_state", topics.find)
    monkeypatch.setattr(FoundState, "is_whole", lambda self, digest: self.last == digest)
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
