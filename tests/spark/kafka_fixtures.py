"""Fixtures of the tests that run drivers against Apache Kafka; tests/spark/conftest.py names them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.kafka.stream import session_timeout_ms, start_fork_server
from tests.spark.cluster import SparkCluster

__all__ = ["fork_server", "session_ms", "spark_cluster"]


@pytest.fixture(scope="session")
def session_ms(kafka_bootstrap: str) -> int:
    """The shortest session of group members that the broker allows."""
    return session_timeout_ms(kafka_bootstrap)


@pytest.fixture(scope="session")
def fork_server() -> None:
    """Server of children with compiled kernels."""
    start_fork_server()


@pytest.fixture(scope="module")
def spark_cluster(spark_java: str) -> Iterator[SparkCluster]:
    """A standalone master with two workers of one core each."""
    with SparkCluster() as cluster:
        yield cluster
        for name, text in cluster.logs():
            print(f"==> {name} <==\n{text[-4000:]}")
