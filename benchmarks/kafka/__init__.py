"""Apache Kafka and workers, started for a measurement."""
