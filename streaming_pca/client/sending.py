"""Sender of messages to a topic's partitions in turn, with a bound on unsent messages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka.errors import KafkaError, KafkaTimeoutError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.errors import BrokerUnreachable, NotPermitted, TopicError
from streaming_pca.service.kafka.clients import MAX_MESSAGE_BYTES, ask_broker, broker_failed, plain_producer
from streaming_pca.service.kafka.patches import is_served_here
from streaming_pca.service.kafka.transaction import discard

_MAX_UNSENT = 50_000
_MAX_CHARGED = 199  # for reports of charged users: an interruption loses these, and the one being made
_MAX_UNSENT_BYTES = 2 * MAX_MESSAGE_BYTES
_FLUSH_SECONDS = 60  # longest wait without an acknowledgement, for all messages
_SILENCE_SECONDS = 120  # the same of a partition, while further messages are sent
_REPORT_SECONDS = 0.1

Headers = list[tuple[str, bytes]]


class DeliveryError(BrokerUnreachable):
    """Failure to deliver messages to the broker."""


@dataclass(frozen=True)
class Outgoing:
    """Message to send, with its number of rows, and whether it must be ``keyed``."""

    value: bytes
    key: bytes | None = None
    rows: int = 1
    not_finite: bool = False
    keyed: bool = False


@dataclass(frozen=True)
class Produced:
    """Counts of sent messages and rows.

    ``not_finite`` counts messages with a number that is not finite in the stream's ``dtype``; ``without_key``
    those without a key, if the file has keys.
    """

    messages: int
    rows: int
    seconds: float
    topic: str
    not_finite: int = 0
    without_key: int = 0


@dataclass(frozen=True)
class Sending:
    """Topic to send to, public seed of a random order, and most messages a second.

    ``progress`` is called up to ten times a second with the number delivered since its last call.
    """

    kafka: KafkaSettings
    topic: str
    shuffle: int | None = None
    rate: float | None = None
    progress: Callable[[int], None] | None = None


class Sender:
    """Idempotent sender to a topic, from partition ``first`` (modulo), that stops at its first failure."""

    def __init__(self, kafka: KafkaSettings, topic: str, first: int = 0, charged: bool = False) -> None:
        self.topic = topic
        self.partitions = _count_partitions(kafka, topic)
        self.sent = 0  # number of messages passed to the client
        self._acknowledged = [0] * self.partitions
        self._progress = [0.0] * self.partitions  # time of the last acknowledgement, or without a need of one
        self._first = first
        self._kafka, self._most = kafka, _MAX_CHARGED if charged else _MAX_UNSENT
        self._failures: list[Exception] = []
        self._reason, self.is_closed = "", False
        self._unsent = self._unsent_bytes = 0
        self._producer = plain_producer(kafka)

    @property
    def delivered(self) -> int:
        return sum(self._acknowledged)

    def make_room(self) -> None:
        """Wait for room for another message; raise DeliveryError if an earlier one failed."""
        partition, now = self._next_partition(), time.monotonic()
        if self._acknowledged[partition] == self.sent // self.partitions:
            self._progress[partition] = now
        elif now - self._progress[partition] > _SILENCE_SECONDS:
            error = KafkaTimeoutError(f"partition {partition}: no answer for {_SILENCE_SECONDS} s")
            self._failures.append(error)
        self._raise_failure()
        if self._unsent >= self._most or self._unsent_bytes >= _MAX_UNSENT_BYTES:
            self.flush()

    def send(self, value: bytes, key: bytes | None, headers: Headers) -> None:
        """Pass a message to the client, which retries it without duplicates."""
        self.make_room()
        partition = self._next_partition()
        try:
            future: Any = self._producer.send(
                self.topic, value=value, key=key, partition=partition, headers=headers
            )
        except KafkaError as error:
            self._failures.append(error)
        else:
            future.add_callback(partial(self._count, partition))
            future.add_errback(self._failures.append)
            self.sent += 1
            self._unsent += 1
            self._unsent_bytes += len(value)
        self._raise_failure()

    def _next_partition(self) -> int:
        return (self._first + self.sent) % self.partitions

    def _count(self, partition: int, _: Any) -> None:
        self._acknowledged[partition] += 1
        self._progress[partition] = time.monotonic()

    def flush(self) -> None:
        """Wait for the acknowledgements of all messages; raise DeliveryError if they stop."""
        waits = True
        while waits:
            before, waits = self.delivered, False
            try:
                self._producer.flush(timeout=_FLUSH_SECONDS)
            except KafkaError as error:
                # The time limit holds for any batch, perhaps for the last one on a slow link.
                waits = isinstance(error, KafkaTimeoutError) and before < self.delivered
                if not waits:
                    self._failures.append(error)
        self._unsent = self._unsent_bytes = 0
        self._raise_failure()

    def _raise_failure(self) -> None:
        if self._failures and not self._reason:
            what = f"sending to {self.topic!r} failed after {self.delivered} delivered messages"
            self._reason = str(broker_failed(self._kafka, what, self._failures[0], "Write"))
        if self._reason:
            raise DeliveryError(self._reason)

    def is_in_clients_thread(self) -> bool:
        """Return whether this thread sends the messages: :meth:`flush` would wait for itself."""
        return is_served_here(self._producer)

    def close(self) -> None:
        """Release the connection; messages that were not flushed may be lost."""
        self.is_closed = True
        discard(self._producer)


def send_messages(
    to: Sending, messages: Iterable[Outgoing], total: int, headers: Headers, charged: bool = False
) -> Produced:
    """Send messages, already in their order, to the topic's partitions in turn.

    They are consumed once the topic is found, each after the previous one was passed to the client.
    """
    rows = not_finite = without_key = reported = 0
    with closing(Sender(to.kafka, to.topic, charged=charged)) as sender:
        started = now = due = time.monotonic()
        for message in messages:
            sender.send(message.value, message.key, headers)
            rows += message.rows
            not_finite += message.not_finite
            without_key += message.keyed and message.key is None
            now = time.monotonic()
            if to.progress is not None and now >= due:
                to.progress(-reported + (reported := sender.delivered))
                due = now + _REPORT_SECONDS
            if to.rate is not None and (ahead := sender.sent / to.rate - (now - started)) > 0.005:
                time.sleep(ahead)
            # The embedded broker reports the end of a partition as one past the *first* record of its last
            # batch: a last batch of one record makes that the true end.
            if sender.sent == total - sender.partitions:
                sender.flush()
        sender.flush()
    if to.progress is not None:
        to.progress(sender.delivered - reported)
    return Produced(sender.sent, rows, time.monotonic() - started, to.topic, not_finite, without_key)


def _count_partitions(kafka: KafkaSettings, topic: str) -> int:
    # A producer would wait a minute for a missing topic.
    with ask_broker(kafka, f"the broker did not describe {topic!r}") as admin:
        (found,) = admin.describe_topics([topic])
        if found["error_code"] or not found["partitions"]:
            NotPermitted.check([found])
            raise TopicError.missing(topic, admin.list_topics())
    return len(found["partitions"])
