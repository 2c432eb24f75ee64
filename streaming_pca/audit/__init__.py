"""Empirical privacy audit: worst-case neighbours, and bounds from samples."""
