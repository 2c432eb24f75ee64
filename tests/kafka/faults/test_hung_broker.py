"""A commit is never partial, even if a broker stands still while a worker commits.

Three nodes. The only replica of the struck topic is on the third; everything else (ledger, input,
coordinators) is on the first two. kafka-python 3.0.12 fails a batch at its delivery timeout without
putting the transaction into error, and a commit that does not check this succeeds.
"""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka.admin import NewTopic

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.privacy.ledger.entries import Committed, Released
from streaming_pca.service.commit import checkpoint
from streaming_pca.service.kafka.clients import admin_client, reading_consumer
from streaming_pca.service.topics.find import ensure_topics, input_topic, written_topics
from tests.kafka.child import Strike
from tests.kafka.faulty_cluster import FaultyCluster
from tests.kafka.steps import steps_of
from tests.kafka.stream import ENDLESS, Child, Stream, check_books
from tests.waiting import wait_for

MakeCluster = Callable[..., FaultyCluster]

REQUEST_MS = 1500
TRANSACTION_MS = 5000
STRUCK_NODE = 3
STOP_SECONDS = max(2 * REQUEST_MS, TRANSACTION_MS + 10_000) / 1000 + 5
"""Longer than a producer retries: formerly up to twice the request timeout, now possibly until
10 s after the broker has aborted the transaction.
"""

INTERNAL = {"cleanup.policy": "compact", "compression.type": "producer", "segment.bytes": str(100 * 2**20)}


@dataclass
class Struck:
    """Stream whose worker waited at a step while the broker was stopped."""

    stream: Stream
    worker: Child


def placed(topic: NewTopic, *nodes: int) -> NewTopic:
    """Return a topic with one replica of each partition, on these nodes in turn."""
    places = {p: [nodes[p % len(nodes)]] for p in range(max(topic.num_partitions, 1))}
    return NewTopic(topic.name, -1, -1, replica_assignments=places, topic_configs=topic.topic_configs)


def make_stream(cluster: FaultyCluster, directory: Path, name: str, struck: str) -> Stream:
    """Make a stream with only one topic on the node that will stand still."""
    kafka = KafkaSettings(bootstrap_servers=cluster.bootstrap)
    how: dict[str, Any] = {
        "input": f"in-{name}",
        "dim": 5,
        "rank": 2,
        "epsilon": 1.0,
        "delta": 1e-6,
    } | ENDLESS
    settings = StreamSettings(name=name, **{key: how[key] for key in how.keys() - {"partitions"}})
    topics = [input_topic(settings, 2, 1), *written_topics(settings, 1)]
    ensure_topics(
        kafka, [placed(t, STRUCK_NODE) if t.name == f"{name}.{struck}" else placed(t, 1, 2) for t in topics]
    )
    cluster.wait_until_whole()
    made = Stream.make(cluster.bootstrap, name, directory, session_ms=6000, **how)
    limits = {"request_timeout_ms": REQUEST_MS, "transaction_timeout_ms": TRANSACTION_MS}
    made.settings = made.changed("kafka", **limits)
    return made


@pytest.fixture(scope="module")
def struck(
    make_cluster: MakeCluster, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[dict[str, Struck]]:
    """Yield two streams: the broker of one's releases, and of the other's state, has stood still."""
    cluster = make_cluster(replication=1, in_sync=1)
    # Created explicitly, so that they are not on the node that stands still.
    names = ("__transaction_state", "__consumer_offsets")
    internal = [placed(NewTopic(name, 4, 1, topic_configs=INTERNAL), 1, 2) for name in names]
    ensure_topics(KafkaSettings(bootstrap_servers=cluster.bootstrap), internal)
    directory = tmp_path_factory.mktemp("hung")
    found: dict[str, Struck] = {}
    try:
        for topic, step in (("releases", "publish.2 release"), ("state", "commit.2 state")):
            assert step in steps_of(checkpoint)
            stream = make_stream(cluster, directory, f"hung-{topic}", topic)
            stream.produce_vectors(stream.vectors(80))
            worker = stream.start(strike=Strike(step, "before", nth=2, what="wait"))
            found[topic] = Struck(stream, worker)
        for each in found.values():
            each.worker.strikes()
        cluster.stop(STRUCK_NODE)
        for each in found.values():
            each.worker.let_go()
        time.sleep(STOP_SECONDS)
        cluster.go_on(STRUCK_NODE)
        cluster.wait_until_whole()
        yield found
    finally:
        for each in found.values():
            each.stream.destroy()


def numbers_of(stream: Stream, kind: type[Any]) -> list[int]:
    return [entry.batch for entry in stream.own(kind)]


def goes_on(struck: Struck) -> None:
    """Wait until the worker, or the next one, has learnt three batches."""
    stream, worker = struck.stream, struck.worker
    wait_for(
        "the second release",
        lambda: "batch 2 released" in worker.log or worker.status() is not None,
        seen=worker.log_and_stacks,
    )
    if worker.status() is None:
        worker.stop()
    stream.produce_vectors(stream.vectors(40, seed=1))
    stream.run_until("batch 3 released")
    check_books(stream)
    assert [release.batch for release in stream.releases()] == [1, 2, 3]


@pytest.mark.timeout(600)
def test_no_release_is_lost_while_its_broker_stands_still(struck: dict[str, Struck]) -> None:
    stream, worker = struck["releases"].stream, struck["releases"].worker
    settle(worker)
    # In this order, because the worker may be running.
    released = numbers_of(stream, Released)
    published = [json.loads(value)["batch"] for value in stream.release_values()]
    lost = sorted(set(released) - set(published))
    assert not lost, f"RELEASED is committed and the release is missing: batches {lost}\n{worker.log}"
    goes_on(struck["releases"])


@pytest.mark.timeout(600)
def test_no_state_is_lost_while_its_broker_stands_still(struck: dict[str, Struck]) -> None:
    stream, worker = struck["state"].stream, struck["state"].worker
    settle(worker)
    # In this order, because the worker may be running.
    last = max(numbers_of(stream, Committed))
    states = [state.batch for state, _ in stream.checkpoints()]
    assert last in states, (
        f"COMMITTED of batch {last} has no state, the last is of batch {states[-1]}; "
        f"group offsets {stream.group_offsets()}\n{worker.log}"
    )
    goes_on(struck["state"])


@pytest.mark.parametrize("first", [True, False])
def test_a_bootstrap_server_that_stands_still_is_passed_over(kafka_bootstrap: str, first: bool) -> None:
    """kafka-python spends all of the time on one server, drawn at random."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        servers = [f"127.0.0.1:{mute.getsockname()[1]}", kafka_bootstrap]
        names = ",".join(servers if first else reversed(servers))
        kafka = KafkaSettings(bootstrap_servers=names, bootstrap_timeout_ms=20_000)
        for _ in range(5):
            admin_client(kafka).close()
            reading_consumer(kafka).close(autocommit=False)


def settle(worker: Child) -> None:
    """Wait until a worker has released, has lost its session, or has ended."""
    words = ("batch 2 released", "session lost")
    wait_for(
        "what became of the batch",
        lambda: any(word in worker.log for word in words) or worker.status() is not None,
        seen=worker.log_and_stacks,
    )
