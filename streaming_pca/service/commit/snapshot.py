"""Snapshot of a ledger and its jobs' committed states, taken while workers run.

The ledger is read first, up to some offset; then the state that each job's last COMMITTED before that offset
names. It is still on its topic, because the broker's cleaner does not touch recent messages; if a job commits
faster than that, all is read again. So a snapshot shows one point of the ledger's log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import Generic, TypeVar

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.privacy.ledger.entries import LedgerEntry, MalformedEntry, decode_entry
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.service.commit.log_reader import LogReader, high_watermark
from streaming_pca.service.commit.state_topic import PATIENCE_SECONDS, FoundState, find_state
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.topics.find import existing_topics

_ATTEMPTS = 20

T = TypeVar("T")


@dataclass(frozen=True)
class Snapshot(Generic[T]):
    """Ledger up to offset ``end``, with its jobs' states, if any, at that point."""

    entries: tuple[tuple[int, bytes], ...]
    end: int
    states: dict[str, T]


def read_snapshot(
    kafka: KafkaSettings, reader: LogReader, topic_id: str, keep: Callable[[FoundState, str], T]
) -> Snapshot[T]:
    """Read a ledger to its end, then its jobs' states.

    ``reader`` is at the ledger topic's start; ``topic_id`` is the input topic's current id. ``keep`` takes a
    job's found state and the digest of the search, and returns the part to keep: a state may be large.
    Raises SessionLost if the broker fails, or jobs commit faster than their states can be read.
    """
    entries: list[tuple[int, bytes]] = []
    ledger = Ledger(topic_id)
    states: dict[str, T] = {}
    sought: dict[str, str] = {}
    for _ in range(_ATTEMPTS):
        new = read_messages(kafka, reader)
        entries += new
        jobs = replay((data for _, data in new), ledger).jobs
        wanted = {name: job.state_digest for name, job in jobs.items() if job.last_committed}
        changed = {name: digest for name, digest in wanted.items() if sought.get(name) != digest}
        topics = existing_topics(kafka, [f"{name}.state" for name in changed])
        lagging = []
        for name, digest in changed.items():
            topic = f"{name}.state"
            found = find_state(kafka, topic, digest) if topic in topics else FoundState()
            states[name] = keep(found, digest)
            if not found.is_whole:
                lagging.append(name)
        sought = wanted
        # A missing state was replaced by a later one, whose entry can be read by now,
        # or is lost, as the verifier then reports.
        if not lagging:
            return Snapshot(tuple(entries), reader.position, states)
    raise SessionLost(
        f"streams {', '.join(map(repr, lagging))} commit faster than their states can be read: "
        "try again, closer to the broker"
    )


def decoded(entries: Iterable[bytes]) -> Iterator[LedgerEntry]:
    """Decode the valid entries; the verifier reports malformed ones."""
    for data in entries:
        with suppress(MalformedEntry):
            yield decode_entry(data)


def replay(entries: Iterable[bytes], ledger: Ledger) -> Ledger:
    """Apply the valid entries to a ledger and return it."""
    for entry in decoded(entries):
        ledger.apply(entry)
    return ledger


def read_messages(kafka: KafkaSettings, reader: LogReader) -> list[tuple[int, bytes]]:
    """Read the committed messages, (offset, bytes), from the reader's position to the current end."""
    end = high_watermark(kafka, reader.topic)
    return [(m.offset, m.value or b"") for m in reader.read_to(end, PATIENCE_SECONDS)]


def read_topic(kafka: KafkaSettings, topic: str) -> Iterator[tuple[int, bytes]]:
    """Yield all committed messages, (offset, bytes), of an existing topic, up to its current end."""
    with closing(LogReader(kafka, topic)) as reader:
        for message in reader.read_to(high_watermark(kafka, topic), PATIENCE_SECONDS):
            yield message.offset, message.value or b""
