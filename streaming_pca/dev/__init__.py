"""Apache Kafka on this machine, without containers, for trials and tests."""
