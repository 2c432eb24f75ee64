"""Timing of calls and the conditions of a measurement."""
