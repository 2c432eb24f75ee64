"""Records read as committed stay committed when coordinators die at transactions' ends."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import NewTopic

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.clients import reading_consumer
from streaming_pca.service.kafka.patches import seek
from tests.kafka.faults import chaos_check
from tests.kafka.faults.chaos import Done, produce
from tests.kafka.faults.chaos_producer import Load
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.three_brokers import DIM, PARTITIONS, coordinator, hold, revive
from tests.waiting import LIMIT, wait_for

pytestmark = [pytest.mark.soak, pytest.mark.timeout(900)]

KILLS, PRODUCERS, TOPIC = 6, 3, "in-repeatable"
Records = dict[int, bytes | None]
"""Keys by offset."""


class Reader(threading.Thread):
    """The service's own reader of a partition, from its first record until it is stopped."""

    def __init__(self, bootstrap: str, partition: int, over: threading.Event) -> None:
        super().__init__(daemon=True)
        self.found: Records = {}
        self.position = 0
        self.errors: list[BaseException] = []
        self._over, self._tp = over, TopicPartition(TOPIC, partition)
        self._consumer = reading_consumer(KafkaSettings(bootstrap_servers=bootstrap), io="records")
        self._consumer.assign([self._tp])
        seek(self._consumer, self._tp, 0, -1)
        self.start()

    def run(self) -> None:
        consumer: KafkaConsumer = self._consumer
        try:
            while not self._over.is_set():
                for messages in consumer.poll(timeout_ms=50).values():
                    for message in messages:
                        assert message.offset not in self.found
                        self.found[message.offset] = message.key
                self.position = consumer.position(self._tp)
        except BaseException as error:
            self.errors.append(error)
        finally:
            consumer.close(autocommit=False)


@contextmanager
def readers(bootstrap: str) -> Iterator[list[Reader]]:
    """Start a reader of each partition, and end the readers afterwards."""
    over = threading.Event()
    made = [Reader(bootstrap, p, over) for p in range(PARTITIONS)]
    try:
        yield made
    finally:
        over.set()
        for reader in made:
            reader.join(LIMIT)


def reach(each: list[Reader], end: Mapping[int, int]) -> dict[int, Records]:
    """Wait until readers reach the ends, and return the records they have found."""
    wait_for("readers at the ends", lambda: all(r.errors or r.position >= end[p] for p, r in enumerate(each)))
    assert not [error for r in each for error in r.errors]
    return {p: r.found for p, r in enumerate(each)}


def other_client(bootstrap: str) -> dict[int, Records]:
    """Return the records that librdkafka reads as committed."""
    read = chaos_check.read(bootstrap, {TOPIC: range(PARTITIONS)})
    return {p: {raw.offset: raw.key for raw in read[TOPIC, p]} for p in range(PARTITIONS)}


def keep_producing(cluster: FaultyCluster, directory: Path, over: threading.Event) -> list[threading.Thread]:
    """Start producers of short transactions, each with successors after a refusal by Kafka."""
    threads = []
    for i in range(PRODUCERS):
        load = Load(cluster.bootstrap, TOPIC, PARTITIONS, DIM, f"t{i}", i, f"t{i}", 300.0)
        how: tuple[object, ...] = (load, random.Random(i), over, directory, Done())
        threads.append(threading.Thread(target=produce, args=how, daemon=True))
        threads[-1].start()
    return threads


def ends(bootstrap: str, isolation: str) -> dict[int, int]:
    """Return the ends of partitions: for a reader of committed records, last stable offsets."""
    with KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation) as consumer:
        found = consumer.end_offsets([TopicPartition(TOPIC, p) for p in range(PARTITIONS)])
    return {tp.partition: offset for tp, offset in found.items()}


def settled(bootstrap: str) -> dict[int, int]:
    """Return the ends of partitions once no transaction is open; open transactions time out."""

    def nothing_is_open() -> bool:
        return ends(bootstrap, "read_committed") == ends(bootstrap, "read_uncommitted")

    wait_for("the end of all transactions", nothing_is_open)
    return ends(bootstrap, "read_committed")


def test_records_that_were_read_as_committed_are_read_again_later(
    three_brokers: FaultyCluster, tmp_path: Path
) -> None:
    """The service's reader, while coordinators die and later, and librdkafka read the same records."""
    revive(three_brokers)
    with KafkaAdminClient(bootstrap_servers=three_brokers.bootstrap) as admin:
        admin.create_topics([NewTopic(name=TOPIC, num_partitions=PARTITIONS, replication_factor=3)])
    three_brokers.wait_until_whole()
    over = threading.Event()
    with readers(three_brokers.bootstrap) as live:
        try:
            producers = keep_producing(three_brokers, tmp_path, over)
            for kill in range(KILLS):
                enough = sum(len(r.found) for r in live) + 50
                wait_for("records", lambda enough=enough: sum(len(r.found) for r in live) > enough)
                # The coordinator of a producer's transactions; it may lead a partition too.
                node = coordinator(three_brokers, "__transaction_state", f"t{kill % PRODUCERS}")
                three_brokers.kill(node)
                hold(2)
                three_brokers.start(node)
                three_brokers.wait_until_whole()
        finally:
            over.set()
        for producer in producers:
            producer.join(LIMIT)
        end = settled(three_brokers.bootstrap)
        first = reach(live, end)
    with readers(three_brokers.bootstrap) as later:
        again = reach(later, end)
    assert first == again == other_client(three_brokers.bootstrap)
    assert sum(map(len, first.values())) > 50 * KILLS
