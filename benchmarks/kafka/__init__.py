"""Apache Kafka and workers for measurements."""
