"""Transactions that commit only after every message has arrived.

kafka-python 3.0.12 can commit a transaction that has lost a message (the cases, and how this module handles
each: docs/explanation/kafka-client.md). In all cases the message's future fails. So a commit first waits
for every future, and no message is in flight when EndTxn is sent. Offsets are confirmed when they are sent.
The delivery timeout is later than the broker's own abort of the transaction, so an expired batch cannot
belong to a transaction that could still be committed. The caller reads back the committed messages.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError, KafkaTimeoutError
from kafka.net.compat import KafkaNetClient
from kafka.structs import ConsumerGroupMetadata

from streaming_pca.config.kafka import KafkaSettings

_CLEANUP_MS = 10_000
"""Broker's default interval between searches for timed-out transactions."""
_SLACK_MS = 1_000


def delivery_timeout_ms(settings: KafkaSettings) -> int:
    """Return the delivery timeout, which exceeds the time that a transaction may be open."""
    aborted = settings.transaction_timeout_ms + _CLEANUP_MS
    return max(2 * settings.request_timeout_ms, aborted + _SLACK_MS)


def discard(producer: KafkaProducer) -> None:
    """Close a producer and drop its unsent messages.

    The producer's own method first waits for all messages; if that takes too long it raises without
    closing.
    """
    producer._sender.force_close()
    producer.close(timeout=2)


class TransactionalClient(KafkaNetClient):  # type: ignore[misc]
    """Connections of a transactional producer.

    The producer loses a transaction's request if the coordinator's connection fails before sending: the
    client raises here although the producer expects False.
    """

    def await_ready(self, node_id: Any, timeout_ms: int = 30_000) -> bool:
        """Return whether the node is connected, or becomes so within the time."""
        try:
            return bool(super().await_ready(node_id, timeout_ms=timeout_ms))
        except KafkaError:
            return False


class Sent:
    """Sent message, perhaps not delivered yet."""

    def __init__(self, future: Any) -> None:
        self._future = future

    @property
    def offset(self) -> int:
        """The message's offset, after the commit."""
        return int(self._future.value.offset)


class Transaction:
    """Open transaction of a producer.

    Parameters
    ----------
    producer : KafkaProducer
        Initialised for transactions, without an open one.
    settings : KafkaSettings
        The producer's own settings.

    Raises
    ------
    KafkaError
        From every method. The outcome is then unknown: take over again.
    """

    def __init__(self, producer: KafkaProducer, settings: KafkaSettings) -> None:
        self._producer = producer
        # The producer fails a message earlier, with the reason.
        self._patience = (delivery_timeout_ms(settings) + settings.request_timeout_ms) / 1000
        self._answer_ms = 2 * settings.request_timeout_ms
        self._manager = producer._transaction_manager
        self._sent: list[Any] = []
        producer.begin_transaction()

    def send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None,
        headers: Sequence[tuple[str, bytes]] = (),
        partition: int = 0,
    ) -> Sent:
        """Send a message."""
        future = self._producer.send(topic, value=value, key=key, partition=partition, headers=list(headers))
        self._sent.append(future)
        return Sent(future)

    def send_offsets(
        self, topic: str, offsets: Mapping[int, int], group: str | ConsumerGroupMetadata, metadata: str
    ) -> None:
        """Commit a group's offsets of a topic, by partition, with the transaction.

        A group member of a past generation is fenced; a group's name alone is not.
        """
        wanted = {TopicPartition(topic, p): OffsetAndMetadata(o, metadata, -1) for p, o in offsets.items()}
        self._wait(self._manager.send_offsets_to_transaction(wanted, group), "offsets")

    def commit(self) -> None:
        """Commit after every message has arrived."""
        for future in self._sent:
            future.get(timeout=self._patience)
        self._wait(self._manager.begin_commit(), "commit")

    def abort(self) -> None:
        """Abort the transaction."""
        self._wait(self._manager.begin_abort(), "abort")

    def _wait(self, result: Any, what: str) -> None:
        """Wait for a response within a time limit, which the producer's own methods lack.

        With a dead coordinator the client may retry forever.
        """
        self._producer._sender.wakeup()
        if not result.wait(timeout_ms=self._answer_ms):
            raise KafkaTimeoutError(f"no answer to the transaction's {what} in {self._answer_ms} ms")
