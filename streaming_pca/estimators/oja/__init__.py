"""Oja's rule and its private descendants."""
