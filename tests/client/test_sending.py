"""A sender waits as long as acknowledgements arrive, and ends when they stop."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from streaming_pca.client import DeliveryError, sending
from streaming_pca.client.sending import Sender
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.errors import BrokerUnreachable


class Producer:
    """Producer whose messages are acknowledged a few at each flush, or not at all."""

    def __init__(self, *acknowledged: int) -> None:
        self.steps = [*acknowledged]
        self.waiting: list[Callable[[Any], None]] = []

    def send(self, topic: str, **_: Any) -> Any:
        return SimpleNamespace(add_callback=self.waiting.append, add_errback=lambda _: None)

    def acknowledge(self, messages: int) -> None:
        for call in self.waiting[:messages]:
            call(None)
        del self.waiting[:messages]

    def flush(self, timeout: float) -> None:
        self.acknowledge(self.steps.pop(0))
        if self.waiting:
            raise KafkaTimeoutError("Timeout waiting for future")


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Return the time, which the test sets."""
    clock = [1000.0]
    monkeypatch.setattr(sending, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    monkeypatch.setattr(sending, "_count_partitions", lambda kafka, topic: 2)
    monkeypatch.setattr(
        sending, "broker_failed", lambda _, what, error, how: BrokerUnreachable(f"{what}: {error}")
    )
    return clock


def sender_of(producer: Producer, monkeypatch: pytest.MonkeyPatch, messages: int = 0) -> Sender:
    monkeypatch.setattr(sending, "plain_producer", lambda kafka: producer)
    sender = Sender(KafkaSettings(), "records")
    for _ in range(messages):
        sender.send(b"", None, [])
    return sender


@pytest.mark.usefixtures("now")
def test_a_flush_waits_as_long_as_messages_arrive(monkeypatch: pytest.MonkeyPatch) -> None:
    sender = sender_of(Producer(1, 2, 1, 6), monkeypatch, 10)
    sender.flush()
    assert sender.delivered == 10


@pytest.mark.usefixtures("now")
@pytest.mark.parametrize("steps", [(0,), (3, 0)])
def test_a_flush_without_an_acknowledgement_ends(
    monkeypatch: pytest.MonkeyPatch, steps: tuple[int, ...]
) -> None:
    sender = sender_of(Producer(*steps), monkeypatch, 10)
    with pytest.raises(DeliveryError, match=f"failed after {sum(steps)} delivered messages: .*Timeout"):
        sender.flush()


def test_a_silent_partition_ends_the_sending(monkeypatch: pytest.MonkeyPatch, now: list[float]) -> None:
    """The client repeats its messages without end, and no flush waits for them yet."""
    producer = Producer()
    sender = sender_of(producer, monkeypatch)

    def send_after(seconds: float) -> None:
        """Send a message to each partition."""
        now[0] += seconds
        for _ in range(2):
            sender.send(b"", None, [])

    # Messages to both are acknowledged late: 100 s after the first of these, and in part.
    for seconds in (1000, 50, 50):
        send_after(seconds)
    producer.acknowledge(2)
    send_after(119)
    # From here on the second partition answers, the first does not.
    silent, lively = producer.waiting[::2], producer.waiting[1::2]
    producer.waiting = lively
    producer.acknowledge(len(lively))
    with pytest.raises(DeliveryError, match="partition 0: no answer for 120 s"):
        send_after(2)
    assert len(silent) == 3
