"""Accuracy of estimators: data, settings, rivals and comparisons."""
