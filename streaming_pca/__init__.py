"""Differentially private streaming PCA over Apache Kafka."""

__version__ = "0.1.0"
