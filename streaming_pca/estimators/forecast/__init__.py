"""Forecast of the error of the default estimator, before any charge."""
