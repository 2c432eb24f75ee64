"""Transactions wait for their messages longer than they may be open themselves."""

from __future__ import annotations

from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.transaction import Transaction, delivery_timeout_ms, discard

SETTINGS = KafkaSettings(request_timeout_ms=1000)


class BatchResult:
    """Result that the client gives for a message, or for a request of a transaction."""

    def __init__(self, arrives: bool) -> None:
        self._arrives = arrives

    def get(self, timeout: float) -> None:
        if not self._arrives:
            raise KafkaTimeoutError("Expiring 1 record(s)")

    def wait(self, timeout_ms: int) -> bool:
        assert timeout_ms == 2000
        return self._arrives


class Producer:
    """Producer that never receives some messages' acknowledgements, or some responses."""

    def __init__(self, lost: str = "") -> None:
        self._lost, self.done = lost, list[str]()
        self._transaction_manager = self._sender = self

    def _answer(self, what: str) -> BatchResult:
        self.done.append(what)
        return BatchResult(what != self._lost)

    def begin_transaction(self) -> None:
        self.done.append("begin")

    def wakeup(self) -> None:
        """Do nothing, since nothing sleeps."""

    def send(self, topic: str, **_: Any) -> BatchResult:
        return self._answer(topic)

    def send_offsets_to_transaction(self, offsets: Any, group: str) -> BatchResult:
        return self._answer("offsets")

    def begin_commit(self) -> BatchResult:
        return self._answer("commit")


def commit(producer: Producer) -> None:
    transaction = Transaction(producer, SETTINGS)
    transaction.send("state", b"", None)
    transaction.send("ledger", b"", None)
    transaction.send_offsets("input", {0: 1}, "group", "")
    transaction.commit()


def test_everything_arrives_before_the_commit() -> None:
    producer = Producer()
    commit(producer)
    assert producer.done == ["begin", "state", "ledger", "offsets", "commit"]


@pytest.mark.parametrize("lost", ["state", "ledger", "offsets"])
def test_nothing_is_committed_behind_a_lost_message(lost: str) -> None:
    producer = Producer(lost)
    with pytest.raises(KafkaTimeoutError):
        commit(producer)
    assert "commit" not in producer.done


def test_a_commit_without_an_answer_is_no_commit() -> None:
    with pytest.raises(KafkaTimeoutError, match="no answer to the transaction's commit in 2000 ms"):
        commit(Producer("commit"))


@pytest.mark.parametrize("request_ms", [1000, 7000, 10_000, 60_000])
@pytest.mark.parametrize("transaction_ms", [1000, 15_000, 900_000])
def test_a_message_is_given_up_after_the_broker_has_aborted(request_ms: int, transaction_ms: int) -> None:
    """Brokers look for expired transactions every 10 s."""
    settings = KafkaSettings(request_timeout_ms=request_ms, transaction_timeout_ms=transaction_ms)
    assert delivery_timeout_ms(settings) > transaction_ms + 10_000
    assert delivery_timeout_ms(settings) >= 2 * request_ms


def test_a_producer_whose_broker_hangs_is_closed_without_an_error() -> None:
    """Its own error would replace the one that ends the session."""
    calls = []

    class Hanging:
        class _sender:
            force_close = staticmethod(lambda: calls.append("force"))

        def close(self, timeout: float) -> None:
            calls.append("close")
            raise KafkaTimeoutError("Timeout waiting for future")

    discard(Hanging())  # type: ignore[arg-type]
    assert calls == ["force", "close"]
