"""How topics are made and checked, on a real broker."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, NewTopic

from streaming_pca.service.clients import admin_client, transactional_producer
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.state_topic import StateReader, send_state
from streaming_pca.service.topic_sizes import LEDGER_BYTES_A_BATCH, commit_bytes, state_bound
from streaming_pca.service.topics import TopicError, check_topics, create_topics, find_topics
from streaming_pca.settings import KafkaSettings, StreamSettings
from streaming_pca.wire import Checkpoint, encode_checkpoint
from tests.kafka.conftest import MakeStream
from tests.kafka.stream import read_all, wait_for
from tests.test_cli import last_json, one_line, run, write_config

# How large a release of this stream is, is in its name.
Wrong = tuple[str, str, str]


def log_bytes(kafka: KafkaSettings, topic: str) -> int:
    """What the segments of a topic's one partition take on the broker's disk."""
    with closing(admin_client(kafka)) as admin:
        (broker,) = admin.describe_log_dirs({topic: [0]})
    sizes = [
        partition["partition_size"]
        for directory in broker["log_dirs"]
        for each in directory["topics"]
        for partition in each["partitions"]
    ]
    return sum(sizes)


def stream_of(name: str, dim: int, **more: Any) -> StreamSettings:
    options = {"n_records": 300, "n_batches": 3}
    tree = {"name": name, "input": f"{name}-in", "dim": dim, "rank": 2, "epsilon": 1.0, "delta": 1e-6}
    return StreamSettings(**(tree | {"options": options} | more))


def write_states(kafka: KafkaSettings, name: str, topic: str, size: int, count: int) -> str:
    """Commit states as a leader does; the digest of the last."""
    rng = np.random.default_rng(0)
    digest = ""
    with closing(transactional_producer(kafka, f"states-of-{name}-{topic}")) as producer:
        producer.init_transactions()
        for batch in range(1, count + 1):
            checkpoint = Checkpoint(
                "topic-id", name, batch, {0: batch}, rng.bytes(32), rng.bytes(size), b"release"
            )
            data, digest = encode_checkpoint(checkpoint)
            producer.begin_transaction()
            send_state(producer, topic, data, digest, batch)
            producer.commit_transaction()
    return digest


def last_digest(kafka: KafkaSettings, stream: StreamSettings, end: int) -> str:
    with closing(StateReader(kafka, stream, "topic-id")) as reader:
        reader.read_to(end)
        return reader.last()[1]


@pytest.mark.parametrize(("dim", "count"), [(20, 2000), (360, 300), (1414, 24)])
def test_the_state_topic_stays_below_the_stated_size(
    kafka_bootstrap: str, unique_name: Callable[[str], str], dim: int, count: int
) -> None:
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap, transaction_timeout_ms=60_000)
    stream = stream_of(unique_name("large"), dim)
    create_topics(kafka, stream, 1, 1)
    commit = commit_bytes(stream)
    size = 8 * (dim + 1) ** 2
    assert size <= commit
    digest = write_states(kafka, stream.name, stream.state_topic, size, count)
    written, bound = size * count, state_bound(commit)
    assert written > 2 * bound, "too little is written to tell"
    wait_for("the cleaner", lambda: log_bytes(kafka, stream.state_topic) <= bound, 60)
    # And what is left can be read.
    with closing(admin_client(kafka)) as admin:
        from kafka import TopicPartition
        from kafka.admin import OffsetSpec

        tp = TopicPartition(stream.state_topic, 0)
        end = admin.list_partition_offsets({tp: OffsetSpec.LATEST})[tp].offset
    assert last_digest(kafka, stream, end) == digest
