"""Consumer of many topics with a single partition each: releases and ledgers."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import (
    KafkaError,
    LeaderNotAvailableError,
    OffsetOutOfRangeError,
    TopicAuthorizationFailedError,
)

from streaming_pca.admin.broker_status import NO_LEADER
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.errors import BrokerUnreachable, missing_permission
from streaming_pca.service.kafka.clients import offsets_by, reading_consumer, retry

DENIED = "topic {!r} may not be read by this user"
_PATH = re.compile(r"""(?<![\w/])['"]?/[^\s'",:;()]+['"]?""")
_POLL_MS = 200
_FETCH_BYTES = 4 * 2**20  # largest size of one fetch in bytes, unless a single message is larger
_POLLED = 500  # largest number of messages that one poll returns
_LEADERS_MS = 2000  # longest wait for the leaders of new topics; then only topics with leaders are read


@dataclass(frozen=True)
class Message:
    """Message of a topic's partition 0."""

    topic: str
    offset: int
    value: bytes


class TopicsLost(Exception):
    """Topics whose next message was deleted, or may not be read by this user."""

    def __init__(self, topics: Collection[str], *, denied: bool = False) -> None:
        super().__init__(", ".join(sorted(topics)))
        self.topics = frozenset(topics)
        self.denied = denied


class TopicsReader:
    """Read-committed reader of single-partition topics over one connection; not thread-safe."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._timeout_ms = kafka.request_timeout_ms
        self._consumer: KafkaConsumer = reading_consumer(
            kafka, max_poll_records=_POLLED, fetch_bytes=_FETCH_BYTES
        )

    def assign(self, topics: Iterable[str]) -> None:
        """Read only these topics; topics that were already assigned keep their positions."""
        self._consumer.assign([TopicPartition(topic, 0) for topic in sorted(topics)])

    def seek(self, topic: str, offset: int) -> None:
        self._consumer.seek(TopicPartition(topic, 0), offset)

    def bounds(self, topics: Collection[str], patience_ms: int = _LEADERS_MS) -> dict[str, tuple[int, int]]:
        """Return first offsets and readable ends of the topics with a leader; may raise KafkaError."""
        tps = [TopicPartition(topic, 0) for topic in sorted(topics)]
        if not tps:
            return {}

        def ask(of: Callable[..., dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
            return retry(lambda: offsets_by(of, tps, self._timeout_ms), NO_LEADER, patience_ms)

        try:
            # For a read_committed consumer, ends are last stable offsets: before the first open transaction.
            firsts, ends = ask(self._consumer.beginning_offsets), ask(self._consumer.end_offsets)
        except LeaderNotAvailableError:
            if len(tps) == 1:
                return {}
            return {name: found for topic in topics for name, found in self.bounds([topic], 0).items()}
        return {tp.topic: (firsts[tp], ends[tp]) for tp in tps}

    def position(self, topic: str) -> int:
        """Return the next offset to read, after the transaction markers already passed."""
        return int(self._consumer.position(TopicPartition(topic, 0), timeout_ms=self._timeout_ms) or 0)

    def poll(self, wait_ms: int = _POLL_MS) -> list[Message]:
        """Wait briefly for messages; raise TopicsLost or KafkaError."""
        try:
            polled = self._consumer.poll(timeout_ms=wait_ms)
        except OffsetOutOfRangeError as error:
            raise TopicsLost({tp.topic for tp in error.args[0]}) from None
        except TopicAuthorizationFailedError as error:
            raise TopicsLost(set(error.args[0]), denied=True) from None
        return [
            Message(tp.topic, message.offset, message.value or b"")
            for tp, messages in polled.items()
            for message in messages
        ]

    def message_from(self, topic: str, offset: int, end: int) -> Message | None:
        """Return the first message in [``offset``, ``end``); unassign all other topics."""
        self.assign([topic])
        self.seek(topic, offset)
        deadline = time.monotonic() + self._timeout_ms / 1000
        while True:
            found = self.poll()
            if found:
                return found[0] if found[0].offset < end else None
            if self.position(topic) >= end:
                return None
            if time.monotonic() > deadline:
                raise BrokerUnreachable(f"reading {topic} takes too long: the broker does not answer")

    def close(self) -> None:
        self._consumer.close(autocommit=False)


def in_words(error: BaseException, servers: str) -> str:
    """Describe a broker failure in one line, without file paths."""
    if (missing := missing_permission(error, "Read")) is not None:
        return str(missing)
    if isinstance(error, KafkaError):
        does = "does not answer" if getattr(error, "retriable", False) else "fails"
        return f"the broker at {servers} {does} ({type(error).__name__})"
    return _PATH.sub("(a file)", (str(error).splitlines() or [type(error).__name__])[0][:300])
