"""A local session runs in our Python, listens on the loopback only, and is quiet."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import psutil

if TYPE_CHECKING:
    import pytest
    from pyspark.sql import SparkSession


def test_tasks_run_in_our_python(spark: SparkSession) -> None:
    def where(batches: Iterator[Any]) -> Iterator[Any]:
        import sys

        import pyarrow

        for _ in batches:
            yield pyarrow.RecordBatch.from_pydict({"python": [sys.executable]})

    rows = spark.range(2, numPartitions=2).mapInArrow(where, "python string").collect()
    assert {row.python for row in rows} == {sys.executable}


def test_a_local_session_listens_on_the_loopback_alone(spark: SparkSession) -> None:
    gateway: Any = spark.sparkContext._gateway
    for process in (psutil.Process(), psutil.Process(gateway.proc.pid)):
        addresses = {c.laddr.ip for c in process.net_connections("inet") if c.status == psutil.CONN_LISTEN}
        assert addresses <= {"127.0.0.1", "::1", "::ffff:127.0.0.1"}, process
    conf = spark.sparkContext.getConf()
    names = ("spark.ui.showConsoleProgress", "spark.ui.enabled", "spark.log.level")
    assert [conf.get(name) for name in names] == ["false", "false", "WARN"]


def test_an_accumulator_connection_that_java_leaves_prints_no_traceback(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
    server: Any = spark.sparkContext._accumulatorServer
    try:
        raise EOFError
    except EOFError:
        server.handle_error(None, server.server_address)
    assert "Traceback" not in capfd.readouterr().err
