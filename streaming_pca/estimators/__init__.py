"""Estimators of the leading subspace, one algorithm a file."""
