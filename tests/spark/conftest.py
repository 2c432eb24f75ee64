"""Spark for the tests, and a notice at the end when it is not available.

With REQUIRE_SPARK=1 a missing Java fails these tests; otherwise it skips them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from streaming_pca.config.spark import SparkSettings
from streaming_pca.dev.jars import KafkaUnavailable, find_java
from streaming_pca.spark.session import start_spark, stop_spark
from tests.conftest import NoBroker
from tests.kafka.stream import Stream
from tests.spark.cluster import SparkCluster
from tests.spark.java import JAVA, make_archive
from tests.spark.streams import SELDOM, Making

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark_java() -> str:
    """Return a Java that Spark runs on."""
    try:
        return find_java()
    except KafkaUnavailable as unavailable:
        if os.environ.get("REQUIRE_SPARK", "") not in ("", "0"):
            pytest.fail(f"REQUIRE_SPARK is set, but {unavailable}", pytrace=False)
        raise NoBroker("spark", unavailable.reason, unavailable.detail) from None


@pytest.fixture(scope="session", autouse=True)
def spark_classes(request: pytest.FixtureRequest) -> None:
    """Make the archive of Spark's classes, except for `make test`, which has one test."""
    if request.config.option.scope != "test":
        make_archive()


@pytest.fixture(autouse=True)
def short_lived_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start every session with the archive, and without the compiler that is slow at first."""
    monkeypatch.setenv("SPARK_SUBMIT_OPTS", JAVA)


class LocalSession:
    """Shared session of two local cores, until a test needs Java for itself."""

    def __init__(self) -> None:
        self._session: SparkSession | None = None

    def get(self) -> SparkSession:
        """Return the session; start it on the first call."""
        if self._session is None:
            self._session = start_spark(SparkSettings(), "local[2]")
        return self._session

    def end(self) -> None:
        """End the session and its Java process, if any."""
        session, self._session = self._session, None
        if session is not None:
            stop_spark(session)


@pytest.fixture(scope="session")
def local_session() -> Iterator[LocalSession]:
    """Yield the holder of this process's session, which is not started yet."""
    made = LocalSession()
    yield made
    made.end()


@pytest.fixture
def spark(spark_java: str, local_session: LocalSession) -> SparkSession:
    """Return the session that the tests of this process share."""
    return local_session.get()


@pytest.fixture
def own_java(local_session: LocalSession) -> None:
    """End the shared session, for tests that start their own."""
    local_session.end()


@pytest.fixture(scope="session")
def spark_cluster(spark_java: str) -> Iterator[SparkCluster]:
    """Yield a master with two single-core workers, for all tests of this process."""
    with SparkCluster() as cluster:
        yield cluster
        for name, text in cluster.logs():
            print(f"==> {name} <==\n{text[-4000:]}")


@pytest.fixture
def make_stream(
    kafka_bootstrap: str, fork_server: None, unique_name: Callable[[str], str], tmp_path: Path
) -> Making:
    """Return a function that makes a stream, whose name begins with the given stem."""

    def make(stem: str, worker: Mapping[str, Any] | None = None, **how: Any) -> Stream:
        calm = SELDOM | dict(worker or {})
        return Stream.make(kafka_bootstrap, unique_name(stem), tmp_path, worker=calm, **how)

    return make
