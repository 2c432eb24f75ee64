"""Covariance update of the default, Analyze Gauss and output perturbation."""
