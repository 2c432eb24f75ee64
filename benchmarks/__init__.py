"""What parts of streaming_pca cost; each runs as ``python -m benchmarks.NAME --json``."""
