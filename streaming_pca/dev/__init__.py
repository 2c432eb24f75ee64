"""Apache Kafka on this machine, without containers, for trials and tests."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
