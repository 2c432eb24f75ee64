"""The service: records in from Kafka, private subspaces out."""

import streaming_pca.service.kafka  # noqa: F401  (checks the version of kafka-python first)
