"""Transactions that are all or nothing: nothing is committed before every message has arrived.

kafka-python 3.0.12 commits a transaction of which a message was lost. Checked in its
`producer/sender.py` and `producer/transaction_manager.py`:

- A batch that is past its delivery timeout fails with KafkaTimeoutError. That
  counts as retriable, so `_dispatch_error` changes no state, and the commit goes
  through without the batch. So it does where retries are exhausted, or where the
  producer's epoch is not the batch's any more.
- `send` answers with a failed future, and leaves the transaction as it is, where
  the broker refuses to describe the topic.
- An error that bumps the epoch (a sequence out of order, an unknown producer)
  clears the transaction. An EndTxn that waits by then is answered as done, and
  nothing was committed: `next_request_handler`, `not _transaction_started`.
- Other errors of a batch, and those of AddPartitionsToTxn and TxnOffsetCommit,
  put the transaction into error, and the commit raises.

The first three fail the message's future. So each is waited for before the commit,
and none is in flight when EndTxn is sent: then no batch can fail after it.
Offsets' answer is waited for where they are sent.

The delivery timeout lies behind the time at which the broker aborts the
transaction by itself, so that a batch that is given up is in none that could still
be committed, whoever commits it. What was committed is read back by the caller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kafka import KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaTimeoutError

from streaming_pca.kafka_settings import KafkaSettings

__all__ = ["Sent", "Transaction", "delivery_timeout_ms"]

_CLEANUP_MS = 10_000
"""A broker looks for transactions that are out of time this often, unless it is told otherwise."""
_SLACK_MS = 1_000


def delivery_timeout_ms(settings: KafkaSettings) -> int:
    """Return how long a message may take to arrive: longer than its transaction may be open."""
    aborted = settings.transaction_timeout_ms + _CLEANUP_MS
    return max(2 * settings.request_timeout_ms, aborted + _SLACK_MS)


class Sent:
    """Message on its way to partition 0 of a topic."""

    def __init__(self, future: Any) -> None:
        self._future = future

    @property
    def offset(self) -> int:
        """Where it is, after the commit."""
        return int(self._future.value.offset)


class Transaction:
    """Open transaction of a producer.

    Parameters
    ----------
    producer : KafkaProducer
        Initialised for transactions; none of them is open.
    settings : KafkaSettings
        Those that the producer was made with.

    Raises
    ------
    KafkaError
        By every method. Then nothing is known of the outcome: take over anew.
    """

    def __init__(self, producer: KafkaProducer, settings: KafkaSettings) -> None:
        self._producer = producer
        # The producer gives a message up first, and says why.
        self._patience = (delivery_timeout_ms(settings) + settings.request_timeout_ms) / 1000
        self._answer_ms = 2 * settings.request_timeout_ms
        self._manager = producer._transaction_manager
        self._sent: list[Any] = []
        producer.begin_transaction()

    def send(
        self, topic: str, value: bytes, key: bytes | None, headers: Sequence[tuple[str, bytes]] = ()
    ) -> Sent:
        """Send a message to the topic's partition 0."""
        future = self._producer.send(topic, value=value, key=key, partition=0, headers=list(headers))
        self._sent.append(future)
        return Sent(future)

    def send_offsets(self, topic: str, offsets: Mapping[int, int], group: str, metadata: str) -> None:
        """Commit a group's offsets of a topic, by partition, with the transaction."""
        wanted = {TopicPartition(topic, p): OffsetAndMetadata(o, metadata, -1) for p, o in offsets.items()}
        self._wait(self._manager.send_offsets_to_transaction(wanted, group), "offsets")

    def commit(self) -> None:
        """Commit, once every message has arrived."""
        for future in self._sent:
            future.get(timeout=self._patience)
        self._wait(self._manager.begin_commit(), "commit")

    def abort(self) -> None:
        """Take everything back."""
        self._wait(self._manager.begin_abort(), "abort")

    def _wait(self, result: Any, what: str) -> None:
        """Wait for an answer, with a bound: the producer's own methods have none.

        Beside a coordinator that has died the client may ask for ever.
        """
        self._producer._sender.wakeup()
        if not result.wait(timeout_ms=self._answer_ms):
            raise KafkaTimeoutError(f"no answer to the transaction's {what} in {self._answer_ms} ms")
