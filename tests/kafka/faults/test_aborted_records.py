"""Records of aborted transactions are not read, although a broker may leave a transaction out of its list.

A follower that catches up appends many batches at a time, and Apache Kafka 4.1 then stores last stable
offsets in its index of aborted transactions that are too high: a fetch that ends before such an offset gets
a list that is too short (docs/explanation/kafka-client.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import KafkaError

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.clients import reading_consumer
from streaming_pca.service.kafka.record_blocks import BlockReader
from tests.kafka.faults.stored import committed_offsets, stored_batches
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.three_brokers import revive
from tests.waiting import LIMIT, wait_for

FETCHES = (1300, 1500, 2000, 3000, 4000, 6000, 8000, 2**20)
"""Sizes of fetches in bytes: the list is too short if one ends between the aborted records and ``x``."""


@dataclass(frozen=True)
class Log:
    """Topic of one partition on a leader that has caught up, and the offsets of its committed records."""

    bootstrap: str
    topic: str
    committed: list[int]


def produce(bootstrap: str, topic: str, count: int, transaction: Any = None) -> None:
    """Write a batch of records, in a transaction unless None: a producer, and its end."""
    producer, end = transaction or (Producer({"bootstrap.servers": bootstrap, "linger.ms": 100}), None)
    if transaction:
        producer.begin_transaction()
    for _ in range(count):
        producer.produce(topic, b"v" * 180, b"k" * 20, 0)
    producer.flush(LIMIT)
    if transaction:
        getattr(producer, f"{end}_transaction")(LIMIT)


@pytest.fixture(scope="module")
def log(three_brokers: FaultyCluster) -> Iterator[Log]:
    cluster, topic = three_brokers, "aborted-records"
    revive(cluster)
    with KafkaAdminClient(bootstrap_servers=cluster.bootstrap) as admin:

        def leader() -> int:
            try:
                return int(admin.describe_topics([topic])[0]["partitions"][0]["leader_id"])
            except KafkaError:  # of a node that was killed
                return -1

        configs = {"index.interval.bytes": "4096"}  # Apache Kafka's default
        admin.create_topics({topic: {"num_partitions": 1, "replication_factor": 3, "configs": configs}})
        cluster.wait_until_whole()
        first = wait_for("a leader", lambda: max(leader(), 0))
        cluster.kill(first)
        wait_for("another leader", lambda: leader() not in (first, -1))
        made = [
            Producer({"bootstrap.servers": cluster.bootstrap, "transactional.id": name, "linger.ms": 100})
            for name in ("aborts", "commits")
        ]
        for producer in made:
            producer.init_transactions(LIMIT)
        produce(cluster.bootstrap, topic, 1, (made[0], "abort"))
        produce(cluster.bootstrap, topic, 5, (made[0], "abort"))
        for _ in range(12):
            produce(cluster.bootstrap, topic, 5)
        produce(cluster.bootstrap, topic, 1, (made[1], "commit"))
        for _ in range(6):
            produce(cluster.bootstrap, topic, 5)
        cluster.start(first)
        cluster.wait_until_whole()
        if leader() != first:
            admin.elect_leaders(0, {topic: [0]})
        wait_for("the first leader", lambda: leader() == first)
        committed = committed_offsets(stored_batches(cluster.log_directory(first, topic, 0)))
        yield Log(cluster.bootstrap, topic, sorted(committed))


def offsets(log: Log, consumer: KafkaConsumer) -> list[int]:
    """Read the whole topic."""
    partition, found = TopicPartition(log.topic, 0), []
    with closing(consumer):
        consumer.assign([partition])
        end = consumer.end_offsets([partition])[partition]
        consumer.seek(partition, 0)
        while consumer.position(partition) < end:
            for messages in consumer.poll(timeout_ms=100).values():
                for message in messages:
                    found += message.offsets.tolist() if hasattr(message, "offsets") else [message.offset]
    return found


@pytest.mark.parametrize("blocks", [False, True], ids=["records", "blocks"])
@pytest.mark.parametrize("size", FETCHES)
def test_records_of_aborted_transactions_are_not_read(log: Log, size: int, blocks: bool) -> None:
    kafka = KafkaSettings(bootstrap_servers=log.bootstrap)
    reader = BlockReader if blocks else None
    consumer = reading_consumer(kafka, fetch_bytes=size, io="records", topics=[log.topic], reader=reader)
    assert offsets(log, consumer) == log.committed


def test_the_broker_still_has_the_fault(log: Log) -> None:
    """A client that trusts the broker reads records of an aborted transaction."""
    found = {}
    for size in FETCHES:
        how = {"isolation_level": "read_committed", "max_partition_fetch_bytes": size}
        client = KafkaConsumer(bootstrap_servers=log.bootstrap, enable_auto_commit=False, **how)
        found[size] = len(offsets(log, client)) - len(log.committed)
    assert max(found.values()) > 0 == found[2**20], found
