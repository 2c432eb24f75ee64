"""Calibration of noise to a privacy guarantee."""
