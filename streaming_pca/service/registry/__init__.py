"""Schemas of a stream's records, from a schema registry."""
