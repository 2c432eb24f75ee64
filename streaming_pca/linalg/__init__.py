"""Linear algebra: exact lattice sums, clipping kernels, subspaces."""
