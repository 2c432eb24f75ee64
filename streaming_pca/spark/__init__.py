"""Streams whose records are read and summed by the executors of Apache Spark."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
