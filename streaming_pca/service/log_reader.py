"""Reading a one-partition topic from its start to a given end, and the ledger replay on top."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kafka import TopicPartition
from kafka.errors import KafkaError

from streaming_pca.privacy.entries import LedgerEntry, MalformedEntry, decode_entry
from streaming_pca.privacy.ledger import Ledger, Verdict
from streaming_pca.service.clients import reading_consumer
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.settings import KafkaSettings

__all__ = ["EndReader", "LedgerLog", "LogReader", "Replayed", "high_watermark", "whole_log"]

_POLL_MS = 10
"""A poll that meets nothing but a transaction's marker goes on waiting: it must not for long."""


def high_watermark(kafka: KafkaSettings, topic: str) -> int:
    """The end of a topic's partition 0, open transactions included.

    A read_committed end would stop before a predecessor's transaction that the
    broker is still completing; a successor must read past it.
    """
    reader = EndReader(kafka, topic)
    try:
        return reader.end()
    finally:
        reader.close()


class EndReader:
    """Reads the high watermark of a topic's partition 0, again and again over one connection.

    A new one takes a tenth of a second: it asks for the topic's leader, and the client waits that long
    before it asks again.
    """

    def __init__(self, kafka: KafkaSettings, topic: str) -> None:
        self._kafka, self._tp = kafka, TopicPartition(topic, 0)
        self._consumer = reading_consumer(kafka, committed=False)

    def end(self) -> int:
        """The end, open transactions included; SessionLost if the broker does not tell."""
        try:
            ends = self._consumer.end_offsets([self._tp], timeout_ms=self._kafka.request_timeout_ms)
        except KafkaError as error:
            raise SessionLost(f"reading the end of {self._tp.topic} failed: {error}") from error
        return int(ends[self._tp])

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close(autocommit=False)


class LogReader:
    """Reads partition 0 of a topic, read_committed, from offset ``start`` or its first record on."""

    def __init__(self, kafka: KafkaSettings, topic: str, start: int = 0) -> None:
        self.topic = topic
        self._kafka = kafka
        self._tp = TopicPartition(topic, 0)
        self._consumer = reading_consumer(kafka, max_poll_records=500)
        try:
            self.first = int(
                self._consumer.beginning_offsets([self._tp], timeout_ms=kafka.request_timeout_ms)[self._tp]
            )
        except KafkaError as error:
            self._consumer.close(autocommit=False)
            raise SessionLost(f"reading the start of {topic} failed: {error}") from error
        self._consumer.assign([self._tp])
        self._consumer.seek(self._tp, max(self.first, start))

    @property
    def position(self) -> int:
        """The next offset that will be read."""
        return int(self._consumer.position(self._tp, timeout_ms=self._kafka.request_timeout_ms) or 0)

    def read_to(self, end: int, patience_seconds: float) -> Iterator[Any]:
        """Yield the committed messages before offset ``end``.

        Waits for transactions that are open there: ``patience_seconds`` at each standstill.
        """
        seen, deadline = -1, 0.0
        while (position := self.position) < end:
            if position != seen:
                # A long log takes as long as it takes; what must not last is a standstill.
                seen, deadline = position, time.monotonic() + patience_seconds
            elif time.monotonic() > deadline:
                raise SessionLost(
                    f"{self.topic} could not be read to offset {end}: for {patience_seconds:g} s it stops "
                    f"at {position} (an open transaction, or a broker that hangs)"
                )
            try:
                polled = self._consumer.poll(timeout_ms=_POLL_MS)
            except KafkaError as error:
                raise SessionLost(f"reading {self.topic} failed: {error}") from error
            for messages in polled.values():
                yield from messages

    def close(self) -> None:
        """Release the consumer."""
        self._consumer.close(autocommit=False)


def whole_log(kafka: KafkaSettings, topic: str) -> LogReader:
    """A reader of a ledger topic from its first entry; StreamRefused if that was deleted."""
    reader = LogReader(kafka, topic)
    if reader.first != 0:
        reader.close()
        raise StreamRefused(
            f"ledger topic {topic!r} starts at offset {reader.first}: entries were deleted, "
            "so what records have been charged is not known. Restore the topic"
        )
    return reader


@dataclass(frozen=True)
class Replayed:
    """One entry of the log as the replay saw it."""

    offset: int
    entry: LedgerEntry
    verdict: Verdict


class LedgerLog:
    """The replay of one ledger topic, kept up to date on demand."""

    def __init__(self, kafka: KafkaSettings, topic: str, topic_id: str) -> None:
        self.topic = topic
        self.ledger = Ledger(topic_id)
        self.entries = 0
        """How many entries were replayed, void ones included."""
        self._kafka = kafka
        self._reader = whole_log(kafka, topic)
        self._ends: EndReader | None = None

    def catch_up(self, end: int | None = None) -> list[Replayed]:
        """Replay to ``end`` (the high watermark where not given); returns what was new."""
        if end is None:
            self._ends = self._ends or EndReader(self._kafka, self.topic)
            end = self._ends.end()
        patience = self._kafka.transaction_timeout_ms / 1000 + 15
        new = []
        for message in self._reader.read_to(end, patience):
            try:
                entry = decode_entry(message.value or b"")
            except MalformedEntry as error:
                raise StreamRefused(
                    f"ledger topic {self.topic!r}, offset {message.offset}: {error}. "
                    "Another program writes to it, or a newer version of this one does"
                ) from None
            self.entries += 1
            new.append(Replayed(message.offset, entry, self.ledger.apply(entry)))
        return new

    def close(self) -> None:
        """Release the consumers."""
        self._reader.close()
        if self._ends is not None:
            self._ends.close()
