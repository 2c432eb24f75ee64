"""Readers of Avro records, made from the schema of their writer."""
