"""Transactions that commit only after every message has arrived.

kafka-python can commit a transaction that has lost a message (docs/explanation/kafka-client.md). In all
cases the message's future fails, so a commit first waits for every future. The delivery timeout is later
than the broker's own abort, so an expired batch cannot belong to a transaction that could still be
committed. The caller reads back the committed messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.structs import ConsumerGroupMetadata

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.patches import drop_unsent, transaction_manager, wake

_CLEANUP_MS = 10_000  # broker's default interval between searches for timed-out transactions
_SLACK_MS = 1_000


def delivery_timeout_ms(settings: KafkaSettings) -> int:
    """Return the delivery timeout, which exceeds the time that a transaction may be open."""
    return max(2 * settings.request_timeout_ms, settings.transaction_timeout_ms + _CLEANUP_MS + _SLACK_MS)


def discard(producer: KafkaProducer) -> None:
    """Close a producer and drop its unsent messages.

    Its own method first waits for all messages, and raises if a hung broker holds the sender too long. Then
    the sender ends later, and the caller's own error remains.
    """
    drop_unsent(producer)
    with suppress(KafkaError):
        producer.close(timeout=2)


class Transaction:
    """Open transaction of an initialised producer, with the settings that made it.

    Every method raises KafkaError on failure. The outcome is then unknown: take over again.
    """

    def __init__(self, producer: KafkaProducer, settings: KafkaSettings) -> None:
        self._producer = producer
        # The producer fails a message earlier, with the reason.
        self._patience = (delivery_timeout_ms(settings) + settings.request_timeout_ms) / 1000
        self._answer_ms = 2 * settings.request_timeout_ms
        self._manager = transaction_manager(producer)
        self._sent: list[Any] = []
        producer.begin_transaction()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int = 0,
    ) -> Any:
        """Send a message and return its future, whose ``value.offset`` is known after the commit."""
        future = self._producer.send(topic, value=value, key=key, partition=partition, headers=list(headers))
        self._sent.append(future)
        return future

    def send_offsets(
        self, topic: str, offsets: Mapping[int, int], group: str | ConsumerGroupMetadata, metadata: str
    ) -> None:
        """Commit a group's offsets of a topic, by partition, with the transaction.

        A group member of a past generation is fenced; a group's name alone is not.
        """
        wanted = {TopicPartition(topic, p): OffsetAndMetadata(o, metadata, -1) for p, o in offsets.items()}
        self._wait(self._manager.send_offsets_to_transaction(wanted, group), "offsets")

    def commit(self) -> None:
        for future in self._sent:
            future.get(timeout=self._patience)
        self._wait(self._manager.begin_commit(), "commit")

    def abort(self) -> None:
        self._wait(self._manager.begin_abort(), "abort")

    def _wait(self, result: Any, what: str) -> None:
        """Wait for a response within a time limit, which the producer's own methods lack.

        With a dead coordinator the client may retry forever.
        """
        wake(self._producer)
        if not result.wait(timeout_ms=self._answer_ms):
            raise KafkaTimeoutError(f"no answer to the transaction's {what} in {self._answer_ms} ms")
