"""Benchmarks of streaming_pca; each runs as ``python -m benchmarks.NAME --json``."""

import os

# Set before numpy is imported. By default, the threads of OpenBLAS spin for over a second after a product,
# on cores that the next contender needs. A short wait is enough for consecutive products.
os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "10")
