"""Every estimator computes bitwise the same states and releases on executors as in memory.

These tests run without worker processes; test_streams.py runs some estimators in whole streams.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient, KafkaProducer
from kafka.admin import NewTopic
from pyspark.sql import SparkSession

from streaming_pca.config.kafka import ConfigurationError, KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.estimators.base import State
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.local import report_headers
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from streaming_pca.service.commit.batch_result import BatchResult, compute_batch
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.source import OffsetBatch, build_codec
from streaming_pca.spark.driver import cluster_readers
from streaming_pca.spark.session import start_spark, stop_spark
from tests.kafka.test_every_estimator import BATCH, DIM, RANK, TABLE
from tests.spark.cluster import SparkCluster
from tests.spark.conftest import LocalSession
from tests.spark.noise import HashedSampler
from tests.spark.streams import LOCAL, OF_REPORTS, PROMISE, on_cluster, read_all, reports

BATCHES = 2
SETTINGS = TABLE | OF_REPORTS


@pytest.fixture(scope="module", params=[pytest.param("local", marks=pytest.mark.soak), "cluster"])
def spark(
    request: pytest.FixtureRequest, local_session: LocalSession, spark_cluster: SparkCluster
) -> Iterator[SparkSession]:
    """Yield a session on two local cores, or on a standalone master with two workers."""
    local_session.end()
    how = LOCAL if request.param == "local" else on_cluster(spark_cluster.url)
    try:
        session = start_spark(SparkSettings(**how))
    except ConfigurationError as error:
        # Spark gives a master a minute, which one may miss on a busy machine.
        if "does not register" not in str(error):
            raise
        session = start_spark(SparkSettings(**how))
    yield session
    stop_spark(session)


@pytest.fixture(scope="module")
def topics(kafka_bootstrap: str) -> dict[str, str]:
    """Make topics of factors (a seventh of them null) and of reports."""
    rng = np.random.default_rng(11)
    found = {}
    with (
        KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin,
        KafkaProducer(bootstrap_servers=kafka_bootstrap) as producer,
    ):
        for kind in ("vectors", "reports"):
            found[kind] = f"estimators-{kind}-{uuid.uuid4().hex[:12]}"
            admin.create_topics([NewTopic(found[kind], num_partitions=3, replication_factor=1)])
        scales = np.array([4.0, 3.0, 1.0, 0.5, 0.2, 0.1])
        for i in range(BATCHES * BATCH):
            # One row, as tensors need, without a common centre.
            vector = rng.standard_normal(DIM) * scales + 1.0
            value = b"null" if i % 7 == 3 else vector.astype("<f4").tobytes()
            # The first partition has most records.
            partition = 0 if i % 5 else 1 + i % 2
            producer.send(found["vectors"], value, partition=partition)
        for i, report in enumerate(reports(BATCHES * BATCH)):
            partition = 0 if i % 5 else 1 + i % 2
            producer.send(found["reports"], report, headers=report_headers(**PROMISE), partition=partition)
    return found


def learnt(stream: StreamSettings, reader: Any, counts: list[list[int]]) -> list[BatchResult]:
    """Learn from batches with given counts from the partitions."""
    estimator = stream.build_estimator()
    state: State = estimator.init(utility_generator(stream.seed))
    results = []
    for number, count in enumerate(counts, 1):
        assert estimator.plan(state).count == sum(count)
        batch = OffsetBatch(reader.take(count, 1)[0], (), {}, {})
        results.append(compute_batch(stream, None, state, batch, number))
        state = results[-1].state
    return results


def without_time(release: bytes) -> dict[str, Any]:
    return {name: value for name, value in json.loads(release).items() if name != "created"}


def test_every_estimator_has_settings() -> None:
    assert SETTINGS.keys() == ESTIMATORS.keys()


@pytest.mark.parametrize("name", SETTINGS)
def test_states_and_releases_are_the_same(
    name: str,
    spark: SparkSession,
    topics: dict[str, str],
    kafka_bootstrap: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Several segments in each partition.
    monkeypatch.setattr("streaming_pca.spark.reader._FEWEST", 64)
    how: dict[str, Any] = {"centering": "none", "dim": DIM, "rank": RANK, "estimator": name, "seed": 5}
    how |= {"epsilon": 1.0, "delta": 1e-6}
    topic = topics["reports" if name in OF_REPORTS else "vectors"]
    if name in ("adaptive", "block", "analyze-gauss"):
        how["centering"] = "auto"
    stream = StreamSettings(name=f"s-{name}", input=topic, **(how | SETTINGS[name]))
    kafka = KafkaSettings(bootstrap_servers=kafka_bootstrap)
    codec = build_codec(stream, None)
    found = []
    for make in (PartitionReader, cluster_readers(spark, SparkSettings())):
        reader = make(kafka, stream, codec, 3, False, lambda: None)
        ends = reader.last_offsets([0, 1, 2])
        reader.add(dict.fromkeys(ends, 0), {})
        read_all(reader, ends)
        counts = [ends[p] // BATCHES for p in sorted(ends)]
        last = [ends[p] - counts[p] for p in sorted(ends)]
        with replace_noise_sampler(HashedSampler()):
            found.append(learnt(stream, reader, [counts, last]))
        reader.release_memory()
        reader.close()
    for here, there in zip(*found, strict=True):
        assert there.data == here.data
        assert without_time(there.release) == without_time(here.release)
