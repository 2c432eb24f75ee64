"""Linear algebra of subspaces and tensors, in NumPy and SciPy."""
