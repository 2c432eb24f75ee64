"""The service: records in from Kafka, private subspaces out."""
