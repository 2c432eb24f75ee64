"""Benchmarks of streaming_pca; each runs as ``python -m benchmarks.NAME --json``."""

import os

# Before numpy is imported: the threads of OpenBLAS spin for a second and more after a product, on cores
# that the next contender needs. A short wait is enough for products that follow each other.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
