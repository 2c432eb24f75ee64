"""Sender of messages to a topic's partitions in turn, with a bound on unsent ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kafka.errors import KafkaError, KafkaTimeoutError

from streaming_pca.config.settings import KafkaSettings
from streaming_pca.service.errors import TopicError
from streaming_pca.service.kafka.clients import (
    MAX_MESSAGE_BYTES,
    BrokerUnreachable,
    admin_client,
    plain_producer,
)

__all__ = ["Outgoing", "Produced", "send_messages"]

_MAX_UNSENT = 50_000
_MAX_UNSENT_BYTES = 2 * MAX_MESSAGE_BYTES


@dataclass(frozen=True)
class Outgoing:
    """Message to send: payload, key and number of rows."""

    value: bytes
    key: bytes | None = None
    rows: int = 1


@dataclass(frozen=True)
class Produced:
    """Count of the messages and rows that were sent."""

    messages: int
    rows: int
    seconds: float
    topic: str


def send_messages(
    kafka: KafkaSettings,
    topic: str,
    messages: Iterable[Outgoing],
    total: int,
    headers: list[tuple[str, bytes]],
    *,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
    progress_every: int = 1,
) -> Produced:
    """Send messages to the topic's partitions in turn.

    Parameters
    ----------
    messages : iterable of Outgoing
        Consumed one at a time, each after the last was handed over; none before the topic was found.
    total : int
        Number of messages.
    headers : list of (str, bytes)
        Of each message.
    rate : float, optional
        Most messages per second.
    progress : callable, optional
        Called after ``progress_every`` messages with the number sent since its last call.

    Raises
    ------
    TopicError
        If the topic is missing.
    BrokerUnreachable
        If the broker does not answer, or accepts no more messages.
    """
    count = _count_partitions(kafka, topic)
    producer = plain_producer(kafka)
    started = time.monotonic()
    failures: list[BaseException] = []
    sent = rows_sent = unsent = unsent_bytes = 0
    try:
        for message in messages:
            future = producer.send(
                topic, value=message.value, key=message.key, partition=sent % count, headers=headers
            )
            future.add_errback(failures.append)
            sent += 1
            rows_sent += message.rows
            unsent += 1
            unsent_bytes += len(message.value)
            if failures:
                raise failures[0]
            if progress is not None and sent % progress_every == 0:
                progress(progress_every)
            _keep_rate(started, sent, rate)
            # The embedded broker tells the end of a partition as one past the *first* record of
            # its last batch: a last batch of one record makes that the true end.
            if unsent >= _MAX_UNSENT or unsent_bytes >= _MAX_UNSENT_BYTES or sent == total - count:
                producer.flush(timeout=60)
                unsent = unsent_bytes = 0
        producer.flush(timeout=60)
        if failures:
            raise failures[0]
    except (KafkaError, KafkaTimeoutError) as error:
        raise BrokerUnreachable(f"sending to {topic!r} failed after {sent} messages: {error}") from None
    finally:
        producer.close(timeout=5)
    if progress is not None:
        progress(sent % progress_every)
    return Produced(sent, rows_sent, time.monotonic() - started, topic)


def _count_partitions(kafka: KafkaSettings, topic: str) -> int:
    # A producer would wait a minute for a topic that is missing.
    admin = admin_client(kafka)
    try:
        (found,) = admin.describe_topics([topic])
    except KafkaError as error:
        raise BrokerUnreachable(f"the broker would not describe {topic!r}: {error}") from None
    finally:
        admin.close()
    if found["error_code"] or not found["partitions"]:
        raise TopicError(f"topic {topic!r} is missing: create it with `streaming-pca topics create`")
    return len(found["partitions"])


def _keep_rate(started: float, sent: int, rate: float | None) -> None:
    if rate is not None:
        ahead = sent / rate - (time.monotonic() - started)
        if ahead > 0.005:
            time.sleep(ahead)
