"""Test batches that close early, added partitions, and rows as records."""

from __future__ import annotations

import time
from typing import Any

from kafka.admin import NewPartitions

from streaming_pca.privacy.ledger.entries import Reserved
from tests.kafka.conftest import Make
from tests.kafka.stream import STEADY_MS, check_books
from tests.waiting import wait_for

ENDLESS: dict[str, Any] = {"worker": {"stop_when_done": False, "partitions_seconds": 0.3}}


def test_max_wait_closes_a_batch_that_is_not_full(make_stream: Make) -> None:
    options = {"first_batch": 5000, "max_batch": 5000}
    stream = make_stream(options=options, max_wait_seconds=2.0, epsilon=4.0, cap=("4", "1e-6"), **ENDLESS)
    child = stream.start()
    child.logs("leading")
    stream.produce_vectors(stream.vectors(399))
    # `adaptive` needs at least 400 records: with 399 it keeps waiting.
    time.sleep(4)
    assert stream.own(Reserved) == []
    stream.produce_vectors(stream.vectors(101, seed=1))
    child.logs("batch 1 released")
    child.stop()
    check_books(stream)
    batches = stream.own(Reserved)
    assert sum(e.count for e in batches) >= 400
    assert all(e.count < 5000 for e in batches)


def test_a_new_partition_is_read_from_a_batch_boundary_on(make_stream: Make) -> None:
    options = {"first_batch": 100, "growth": 1.0, "max_batch": 100}
    stream = make_stream(session_ms=STEADY_MS, partitions=1, options=options, **ENDLESS)
    child = stream.start()
    stream.produce_vectors(stream.vectors(150))
    child.logs("batch 1 released")
    with stream.admin() as admin:
        admin.create_partitions({stream.settings.stream.input: NewPartitions(2)})
    stream.partitions = 2
    child.logs("has 2 partitions now")
    # Only to the new partition: half a batch waits in the old one, and would wait for ever.
    stream.produce_vectors(stream.vectors(150, seed=1), to=lambda i: 1)
    child.logs("batch 3 released")
    child.stop()
    check_books(stream)
    first, second, third = stream.own(Reserved)
    assert {r.partition for r in first.ranges} == {0}
    assert {(r.partition, r.start, r.count) for r in second.ranges} == {(0, 100, 50), (1, 0, 50)}
    assert {(r.partition, r.start, r.count) for r in third.ranges} == {(1, 50, 100)}
    assert child.log.count("session lost") == 0


def test_a_successor_reads_partitions_that_were_added_since(make_stream: Make) -> None:
    stream = make_stream(partitions=1, options={"n_records": 200, "n_batches": 2})
    stream.produce_vectors(stream.vectors(100))
    stream.run_until("batch 1 released")
    with stream.admin() as admin:
        admin.create_partitions({stream.settings.stream.input: NewPartitions(3)})
    stream.partitions = 3
    wait_for("partitions", lambda: (stream.find(), True)[1])
    stream.produce_vectors(stream.vectors(100, seed=1), to=lambda i: 1 + i % 2)
    stream.run()
    check_books(stream)
    assert {r.partition for r in stream.own(Reserved)[1].ranges} == {1, 2}
