"""Streams whose records are read and summed by the executors of Apache Spark."""
