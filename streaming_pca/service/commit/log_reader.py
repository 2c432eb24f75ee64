"""Readers of one-partition topics to a given end, and the ledger's replay."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from kafka import KafkaConsumer, TopicPartition

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.privacy.ledger.entries import LedgerEntry, MalformedEntry, decode_entry
from streaming_pca.privacy.ledger.ledger import Ledger, Verdict
from streaming_pca.service.errors import SessionLost, StreamRefused, session_lost_by
from streaming_pca.service.kafka.clients import TpOffsets, offsets_by, reading_consumer

_POLL_MS = 10  # short, because a poll that finds only a transaction marker waits for the full timeout

_Report = Callable[[str], None]
_report: ContextVar[_Report | None] = ContextVar("report", default=None)


@contextmanager
def report_reading(report: _Report) -> Iterator[None]:
    """Call a function with a text about the progress while the block reads logs.

    The text has the topic and, if they are public, its offsets. A context variable, because logs are read
    many calls below the commands that show progress.
    """
    token = _report.set(report)
    try:
        yield
    finally:
        _report.reset(token)


def high_watermark(kafka: KafkaSettings, topic: str) -> int:
    """Return the end of a topic's partition 0, open transactions included.

    A read_committed end would lie before a predecessor's transaction that the broker is still completing; a
    successor must read past it. Raises SessionLost if the broker fails.
    """
    with closing(reading_consumer(kafka, committed=False, topics=[topic])) as consumer:
        return _end(kafka, topic, consumer)


def _end(kafka: KafkaSettings, topic: str, consumer: KafkaConsumer) -> int:
    tp = TopicPartition(topic, 0)
    with session_lost_by(f"reading the end of {topic}", "Describe"):
        return offsets_by(consumer.end_offsets, [tp], kafka.request_timeout_ms)[tp]


class LogReader:
    """Read_committed reader of partition 0, starting at the first record.

    Without ``public_size``, neither progress nor an error shows an offset.
    """

    def __init__(self, kafka: KafkaSettings, topic: str, *, public_size: bool = True) -> None:
        self.topic, self._public_size = topic, public_size
        self._kafka, self._tp = kafka, TopicPartition(topic, 0)
        self._held = deque[Any]()  # received messages that the next call yields
        self._consumer = reading_consumer(kafka, max_poll_records=500, topics=[topic])
        try:
            with session_lost_by(f"reading the start of {topic}", "Describe"):
                self.first = self._offset(self._consumer.beginning_offsets)
        except SessionLost:
            self._consumer.close(autocommit=False)
            raise
        self._consumer.assign([self._tp])
        self._consumer.seek(self._tp, self.first)

    @property
    def position(self) -> int:
        if self._held:
            return int(self._held[0].offset)
        return int(self._consumer.position(self._tp, timeout_ms=self._kafka.request_timeout_ms) or 0)

    def committed_end(self) -> int:
        """Return the end of the partition before its first open transaction."""
        return self._offset(self._consumer.end_offsets)

    def _offset(self, ask: Callable[..., TpOffsets]) -> int:
        return offsets_by(ask, [self._tp], self._kafka.request_timeout_ms)[self._tp]

    def read_to(self, end: int, patience_seconds: float) -> Iterator[Any]:
        """Yield the committed messages before offset ``end``.

        Waits for open transactions. Raises SessionLost after ``patience_seconds`` without progress.
        """
        seen, deadline, report = -1, 0.0, _report.get()
        while (position := self.position) < end:
            if report is not None:
                place = f"at offset {position:,} of {end:,} of " if self._public_size else "reading "
                report(place + self.topic)
            if position != seen:
                # Limit only the time without progress: a long log may take any time.
                seen, deadline = position, time.monotonic() + patience_seconds
            elif time.monotonic() > deadline:
                to, at = (f"offset {end}", f" at {position}") if self._public_size else ("its end", "")
                raise SessionLost(
                    f"{self.topic} could not be read to {to}: it has stopped for "
                    f"{patience_seconds:g} s{at} (an open transaction, or a broker that hangs)"
                )
            if not self._held:
                with session_lost_by(f"reading {self.topic}", "Read", quoted=self._public_size):
                    polled = self._consumer.poll(timeout_ms=_POLL_MS)
                self._held.extend(polled.get(self._tp, ()))
            # A response may end within a transaction that began after ``end``.
            while self._held and self._held[0].offset < end:
                yield self._held.popleft()

    def backwards(self, end: int, patience_seconds: float, span: int) -> Iterator[Iterator[Any]]:
        """Yield the messages of the last ``span`` offsets before ``end``, then of more.

        Each iterator must be read to its end.
        """
        while True:
            start = max(self.first, end - span)
            self._held.clear()
            self._consumer.seek(self._tp, start)
            yield self.read_to(end, patience_seconds)
            if start == self.first:
                return
            # Aborted transactions leave any number of offsets without a message.
            span *= 4

    def close(self) -> None:
        self._consumer.close(autocommit=False)


def whole_log(kafka: KafkaSettings, topic: str) -> LogReader:
    """Return a reader from a ledger's first entry; raise StreamRefused if that was deleted."""
    reader = LogReader(kafka, topic)
    if reader.first != 0:
        reader.close()
        raise StreamRefused(lost_entries(topic, reader.first))
    return reader


def lost_entries(topic: str, first: int) -> str:
    """Return the message for a ledger that does not start at offset 0."""
    return (
        f"ledger topic {topic!r} starts at offset {first}: entries were deleted, "
        "so it is not known which records were charged. Restore the topic"
    )


@dataclass(frozen=True)
class Replayed:
    offset: int
    entry: LedgerEntry
    verdict: Verdict


class LedgerReplay:
    """Replay of one ledger topic from messages of the caller; counts entries and bytes, void ones too."""

    def __init__(self, topic: str, topic_id: str) -> None:
        self.topic = topic
        self.ledger = Ledger(topic_id)
        self.entries = self.bytes = 0

    def apply(self, offset: int, value: bytes | None) -> Replayed:
        """Replay the next message; raise StreamRefused if it is not an entry."""
        try:
            entry = decode_entry(value or b"")
        except MalformedEntry as error:
            raise StreamRefused(
                f"ledger topic {self.topic!r}, offset {offset}: {error}. "
                "Another program writes to it, or a newer version of this one does"
            ) from None
        self.entries, self.bytes = self.entries + 1, self.bytes + len(value or b"")
        return Replayed(offset, entry, self.ledger.apply(entry))


class LedgerLog(LedgerReplay):
    """Replay of one ledger topic, updated on demand."""

    def __init__(self, kafka: KafkaSettings, topic: str, topic_id: str) -> None:
        super().__init__(topic, topic_id)
        self._kafka = kafka
        self._reader = whole_log(kafka, topic)
        self._ends: KafkaConsumer | None = None  # it stays connected

    def catch_up(self, end: int | None = None) -> None:
        for _ in self.new_entries(end):
            pass

    def new_entries(self, end: int | None = None) -> Iterator[Replayed]:
        """Replay to ``end``, by default the high watermark, and yield each new entry.

        None is stored: a ledger grows for ever.
        """
        if end is None:
            if self._ends is None:
                self._ends = reading_consumer(self._kafka, committed=False, topics=[self.topic])
            end = _end(self._kafka, self.topic, self._ends)
        for message in self._reader.read_to(end, self._kafka.transaction_timeout_ms / 1000 + 15):
            yield self.apply(message.offset, message.value)

    def read_committed(self, most: int) -> bool:
        """Replay up to ``most`` more offsets without waiting for transactions; return True at the end."""
        end, position = self._reader.committed_end(), self._reader.position
        self.catch_up(min(end, position + most))
        return end <= position + most

    def close(self) -> None:
        self._reader.close()
        if self._ends is not None:
            self._ends.close()
