"""Spark for the tests, and a plain word at the end when it cannot be had.

With REQUIRE_SPARK=1 a missing Java fails these tests; otherwise it skips them.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from streaming_pca.config.spark import SparkSettings
from streaming_pca.dev.jars import KafkaUnavailable, find_java
from streaming_pca.spark.session import start_spark, stop_spark
from tests.conftest import NoBroker
from tests.spark.cluster import SparkCluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_java() -> str:
    """A Java that Spark runs on."""
    try:
        return find_java()
    except KafkaUnavailable as unavailable:
        if os.environ.get("REQUIRE_SPARK", "") not in ("", "0"):
            pytest.fail(f"REQUIRE_SPARK is set, but {unavailable}", pytrace=False)
        raise NoBroker("spark", unavailable.reason, unavailable.detail) from None


@pytest.fixture(scope="module")
def spark(spark_java: str) -> Iterator[SparkSession]:
    """Session of two local cores, with a Java process of its own for each file."""
    interrupt = signal.getsignal(signal.SIGINT)
    session = start_spark(SparkSettings(), "local[2]")
    # Spark's own handler of Ctrl-C cancels all jobs.
    assert signal.getsignal(signal.SIGINT) is interrupt
    yield session
    stop_spark(session)


@pytest.fixture(scope="module")
def spark_cluster(spark_java: str) -> Iterator[SparkCluster]:
    """A standalone master with two workers of one core each."""
    with SparkCluster() as cluster:
        yield cluster
        for name, text in cluster.logs():
            print(f"==> {name} <==\n{text[-4000:]}")
