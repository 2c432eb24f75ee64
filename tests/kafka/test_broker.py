"""Test that the brokers behave as the other tests assume."""

from __future__ import annotations

from contextlib import closing

import pytest
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError
from kafka.net.compat import KafkaNetClient
from kafka.producer.transaction_manager import EndTxnHandler

from tests.kafka.conftest import Name
from tests.waiting import LIMIT, wait_for


def create(bootstrap: str, topic: str, **configs: str) -> TopicPartition:
    with KafkaAdminClient(bootstrap_servers=bootstrap) as admin:
        admin.create_topics(
            {topic: {"num_partitions": 1, "replication_factor": 1, "configs": configs}},
            wait_for_metadata=True,
        )
    return TopicPartition(topic, 0)


def read(bootstrap: str, partition: TopicPartition, count: int, isolation: str) -> list[bytes]:
    """Return at least `count` values from the beginning, plus those of half a second more."""
    with KafkaConsumer(bootstrap_servers=bootstrap, isolation_level=isolation) as consumer:
        consumer.assign([partition])
        consumer.seek_to_beginning()
        values: list[bytes] = []

        def poll() -> bool:
            values.extend(r.value for records in consumer.poll(500).values() for r in records)
            return len(values) >= count

        wait_for(f"{count} records", poll, seen=lambda: str(values))
        poll()
        return values


def round_trip(bootstrap: str, topic: str) -> None:
    partition = create(bootstrap, topic)
    with KafkaProducer(bootstrap_servers=bootstrap) as producer:
        for value in (b"one", b"two", b"three"):
            producer.send(topic, value)
        producer.flush(LIMIT)
    assert read(bootstrap, partition, 3, "read_committed") == [b"one", b"two", b"three"]


def test_what_goes_into_any_broker_comes_out(broker_bootstrap: str, unique_name: Name) -> None:
    round_trip(broker_bootstrap, unique_name("round-trip"))


def test_what_goes_into_the_embedded_broker_comes_out(embedded_bootstrap: str, unique_name: Name) -> None:
    round_trip(embedded_bootstrap, unique_name("round-trip"))


def test_aborted_records_are_not_seen(kafka_bootstrap: str, unique_name: Name) -> None:
    topic = unique_name("aborted")
    partition = create(kafka_bootstrap, topic)
    with KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=unique_name("t")) as producer:
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"aborted").get(LIMIT)
        producer.abort_transaction()
        producer.begin_transaction()
        producer.send(topic, b"committed").get(LIMIT)
        producer.commit_transaction()
    assert read(kafka_bootstrap, partition, 1, "read_committed") == [b"committed"]
    assert read(kafka_bootstrap, partition, 2, "read_uncommitted") == [b"aborted", b"committed"]


def test_a_late_duplicate_of_a_commit_ends_the_next_transaction(
    kafka_bootstrap: str, unique_name: Name
) -> None:
    """So the service does not repeat the request after a lost connection: test_patches.py."""
    topic, identity = unique_name("late"), unique_name("t")
    partition = create(kafka_bootstrap, topic)
    with (
        KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=identity) as producer,
        closing(KafkaNetClient(bootstrap_servers=kafka_bootstrap)) as network,
    ):
        producer.init_transactions()
        producer.begin_transaction()
        producer.send(topic, b"first").get(LIMIT)
        end = EndTxnHandler(producer._transaction_manager, committed=True).request
        producer.commit_transaction()
        producer.begin_transaction()
        producer.send(topic, b"half of the second").get(LIMIT)
        assert network.send_and_receive(network.least_loaded_node(True), end).error_code == 0
        assert read(kafka_bootstrap, partition, 2, "read_committed") == [b"first", b"half of the second"]
        # The producer does not notice.
        producer.commit_transaction()


def test_a_second_producer_of_the_same_id_fences_the_first(kafka_bootstrap: str, unique_name: Name) -> None:
    topic, identity = unique_name("fenced"), unique_name("t")
    partition = create(kafka_bootstrap, topic)
    first = KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=identity)
    second = KafkaProducer(bootstrap_servers=kafka_bootstrap, transactional_id=identity)
    try:
        first.init_transactions()
        first.begin_transaction()
        first.send(topic, b"of a zombie").get(LIMIT)
        second.init_transactions()
        second.begin_transaction()
        second.send(topic, b"of its successor").get(LIMIT)
        second.commit_transaction()
        with pytest.raises(KafkaError):
            first.commit_transaction()
    finally:
        first.close(timeout=5)
        second.close(timeout=5)
    assert read(kafka_bootstrap, partition, 1, "read_committed") == [b"of its successor"]


def test_a_message_of_sixteen_megabytes_passes(kafka_bootstrap: str, unique_name: Name) -> None:
    topic, size = unique_name("large"), 16 * 2**20
    partition = create(kafka_bootstrap, topic)
    with KafkaProducer(bootstrap_servers=kafka_bootstrap, max_request_size=2 * size) as producer:
        producer.send(topic, bytes(size)).get(LIMIT)
    (value,) = read(kafka_bootstrap, partition, 1, "read_committed")
    assert len(value) == size


def test_a_topic_is_not_created_by_asking_for_it(kafka_bootstrap: str, unique_name: Name) -> None:
    topic = unique_name("absent")
    with KafkaConsumer(bootstrap_servers=kafka_bootstrap) as consumer:
        assert not consumer.partitions_for_topic(topic)
        assert topic not in consumer.topics()


def test_retention_deletes_within_seconds(kafka_bootstrap: str, unique_name: Name) -> None:
    topic = unique_name("short-lived")
    partition = create(kafka_bootstrap, topic, **{"retention.ms": "1000", "segment.ms": "1000"})
    with KafkaProducer(bootstrap_servers=kafka_bootstrap) as producer:
        producer.send(topic, b"old").get(LIMIT)
    with KafkaConsumer(bootstrap_servers=kafka_bootstrap) as consumer:
        wait_for("the deletion", lambda: consumer.beginning_offsets([partition])[partition] > 0)
