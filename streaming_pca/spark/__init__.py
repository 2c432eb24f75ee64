"""Streams whose records are read and summed by Apache Spark executors."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
