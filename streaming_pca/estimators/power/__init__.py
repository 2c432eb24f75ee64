"""Noisy power methods."""
