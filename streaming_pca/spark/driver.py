"""Driver: the worker process, with executors that read and sum for it.

Election, clock, ledger, state, noise and releases are those of :class:`~streaming_pca.service.worker.Worker`.
Therefore a driver and a service worker of the same stream can be standbys for each other.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from functools import partial

from pyspark.sql import SparkSession

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.service.http.server import Site
from streaming_pca.service.input.reader import ReaderFactory
from streaming_pca.service.process import end_process
from streaming_pca.service.worker import run_worker
from streaming_pca.spark.jobs import Cluster
from streaming_pca.spark.reader import ClusterReader
from streaming_pca.spark.session import start_spark, stop_spark, watch_spark


def cluster_readers(spark: SparkSession, settings: SparkSettings) -> ReaderFactory:
    """Return the factory of readers on one Spark application."""
    clusters: dict[str, Cluster] = {}

    def make_cluster(kafka: KafkaSettings, stream: StreamSettings, codec: PayloadCodec) -> Cluster:
        # A stream has one reader at a time; the previous reader's batch has been learnt by now.
        before = clusters.pop(stream.name, None)
        if before is not None:
            before.close()
        clusters[stream.name] = Cluster(spark, settings, kafka, stream, codec.user_key, codec.schemas)
        return clusters[stream.name]

    return partial(ClusterReader, make_cluster)


def run_spark(
    settings: Sequence[Settings],
    spark_settings: SparkSettings,
    master: str | None = None,
    site: Site | None = None,
) -> int:
    """Run :func:`streaming_pca.service.worker.run_worker` on a Spark cluster; return its exit status.

    ``master`` overrides the settings. Raises ConfigurationError if Spark cannot start.
    """
    spark, stopping = start_spark(spark_settings, master), threading.Event()
    try:
        # Without executors the process ends, and its successor finishes a reserved batch.
        watch_spark(spark, partial(end_process, successor="recovers"), stopping)
        return run_worker(settings, cluster_readers(spark, spark_settings), site)
    finally:
        stopping.set()
        stop_spark(spark)
