"""Compiled block sums of A Q - C."""
