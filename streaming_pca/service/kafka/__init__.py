"""Kafka clients, with the faults of kafka-python that the service works around."""
