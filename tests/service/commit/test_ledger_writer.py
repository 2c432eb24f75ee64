"""Steps of a ledger writer that fail with an error of the client."""

from __future__ import annotations

import weakref

import pytest
from kafka.errors import InvalidProducerEpochError, KafkaConnectionError, ProducerFencedError
from kafka.producer.transaction_manager import TransactionalRequestResult

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.commit.ledger_writer import LedgerWriter
from streaming_pca.service.errors import SessionLost
from tests.waiting import LIMIT


class State:
    """Stand-in for a large state."""


def test_a_step_that_fails_keeps_no_state(no_collector: None) -> None:
    def commit(writer: LedgerWriter, state: State) -> None:
        with writer._step("commit.5 end"):
            answer = TransactionalRequestResult()
            answer.done(KafkaConnectionError("gone"))
            answer.wait(LIMIT)

    writer = LedgerWriter(KafkaSettings(), "ledger", "AAAAAAAAAAAAAAAAAAAAAA", "job")
    state = State()
    known = weakref.ref(state)
    with pytest.raises(SessionLost, match=r"commit\.5 end: .*gone"):
        commit(writer, state)
    del state
    assert known() is None


@pytest.mark.parametrize("kind", [ProducerFencedError, InvalidProducerEpochError])
def test_a_fenced_writer_asks_for_the_other_process(kind: type[Exception]) -> None:
    writer = LedgerWriter(KafkaSettings(), "ledger", "AAAAAAAAAAAAAAAAAAAAAA", "job")
    with (
        pytest.raises(SessionLost, match=r"reserve\.4 commit: .*: another process leads .*worker\.group"),
        writer._step("reserve.4 commit"),
    ):
        raise kind
