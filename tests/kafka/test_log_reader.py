"""A log is read to its end, however long that takes; a standstill ends the reading."""

from __future__ import annotations

import random
from contextlib import closing
from types import SimpleNamespace
from typing import Any

import pytest

from streaming_pca.service.commit import log_reader
from streaming_pca.service.commit.log_reader import LogReader, high_watermark
from streaming_pca.service.commit.state_topic import Checkpoint, StateReader, encode_checkpoint, send_state
from streaming_pca.service.errors import SessionLost
from streaming_pca.service.kafka.clients import plain_producer
from streaming_pca.service.kafka.transaction import Transaction
from tests.kafka.conftest import Make, Patch
from tests.waiting import LIMIT

PATIENCE = 1.0


@pytest.fixture
def now(monkeypatch: Patch) -> list[float]:
    """Give the reader a clock that the test moves."""
    seconds = [0.0]
    monkeypatch.setattr(log_reader, "time", SimpleNamespace(monotonic=lambda: seconds[0]))
    return seconds


def test_a_log_that_takes_longer_than_the_patience_is_read(make_stream: Make, now: list[float]) -> None:
    stream = make_stream(partitions=1)
    topic = stream.settings.stream.input
    stream.produce(bytes([i]) for i in range(12))
    reader = LogReader(stream.settings.kafka, topic)
    poll = reader._consumer.poll

    def slow_poll(timeout_ms: int) -> Any:
        found = poll(timeout_ms=timeout_ms, max_records=1)
        now[0] += PATIENCE / 2 if found else 0.0
        return found

    reader._consumer.poll = slow_poll
    assert [m.value[0] for m in reader.read_to(12, PATIENCE)] == list(range(12))
    assert now[0] > 2 * PATIENCE
    reader.close()


def test_a_standstill_ends_the_reading(make_stream: Make, now: list[float]) -> None:
    stream = make_stream(partitions=1)
    topic, producer = stream.settings.stream.input, stream.transactional()
    with closing(plain_producer(stream.settings.kafka)) as plain:
        plain.send(topic, b"a", partition=0).get(LIMIT)
    producer.begin_transaction()
    producer.send(topic, b"b", partition=0).get(LIMIT)
    reader = LogReader(stream.settings.kafka, topic)
    poll = reader._consumer.poll

    def poll_in_vain(timeout_ms: int) -> Any:
        now[0] += PATIENCE if reader.position == 1 else 0.0
        return poll(timeout_ms=timeout_ms)

    reader._consumer.poll = poll_in_vain
    try:
        with pytest.raises(SessionLost, match="it has stopped for 1 s at 1"):
            list(reader.read_to(2, PATIENCE))
    finally:
        reader.close()
        producer.abort_transaction()
        producer.close()


def test_a_state_is_read_whole_though_a_response_ends_within_the_next(make_stream: Make) -> None:
    stream = make_stream(partitions=1)
    kafka, names, producer = stream.settings.kafka, stream.settings.stream, stream.transactional()

    def sent(batch: int) -> Transaction:
        # Two of these exceed a response, as they do not compress.
        data = random.Random(batch).randbytes(5 * 2**20)
        state = Checkpoint(stream.topic_id, names.name, batch, {0: batch}, bytes(32), data, b"{}")
        transaction = Transaction(producer, kafka)
        send_state(transaction, names.state_topic, *encode_checkpoint(state), batch, {})
        for future in transaction._sent:
            future.get(LIMIT)
        return transaction

    def last(reader: StateReader) -> int:
        checkpoint, _ = reader.last()
        assert checkpoint is not None
        return checkpoint.batch

    with closing(producer), closing(StateReader(kafka, names, stream.topic_id)) as early:
        sent(1).commit()
        end = high_watermark(kafka, names.state_topic)
        second = sent(2)
        early.read_committed()
        assert last(early) == 1
        second.commit()
        with closing(StateReader(kafka, names, stream.topic_id)) as late:
            for reader in (early, late):
                reader.read_to(end)
                assert last(reader) == 1
                reader.read_committed()
                assert last(reader) == 2
