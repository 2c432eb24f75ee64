"""Number of threads of kernels within a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from streaming_pca.kernels.threads import use_threads


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Give kernels ``count`` threads within the block, and the default number after it."""
    use_threads(count)
    try:
        yield
    finally:
        use_threads(None)
