"""Executors whose Python cannot run tasks give one line, and no batch is charged."""

from __future__ import annotations

import venv
from pathlib import Path

import pytest

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.service.errors import StreamRefused
from streaming_pca.spark.jobs import Cluster
from streaming_pca.spark.session import start_spark, stop_spark


@pytest.mark.soak
def test_a_python_without_the_package_is_named(spark_java: str, tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    spark = start_spark(SparkSettings(conf={"spark.pyspark.python": python}), "local[1]")
    try:
        stream = StreamSettings(name="s", input="t", dim=3, rank=1, epsilon=1.0, delta=1e-6)
        cluster = Cluster(spark, SparkSettings(), KafkaSettings(), stream, None)
        with pytest.raises(StreamRefused, match=r"Python has no \w+: set PYSPARK_PYTHON") as refused:
            cluster.load([cluster.range(0, 0, 10)], "reading")
        assert "\n" not in str(refused.value)
        cluster.close()
    finally:
        stop_spark(spark)
