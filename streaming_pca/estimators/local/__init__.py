"""Estimators that learn from locally private reports."""
