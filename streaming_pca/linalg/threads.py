"""The one pool of threads that the package's kernels share.

BLAS has a pool of its own, whose threads spin while they wait: two pools on the same cores cost
a hundred times what they gain. So commands set BLAS to one thread before numpy is
imported, and whoever imports the package does well to do the same
(``OPENBLAS_NUM_THREADS=1``). Kernels here release the interpreter's lock, share out whole
ranges of records, and add up integers: any number of threads has the same result.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

__all__ = ["limited_threads", "shared_out", "thread_count"]

Result = TypeVar("Result")

_VARIABLE = "STREAMING_PCA_THREADS"
_limit: int | None = None
_pool: ThreadPoolExecutor | None = None


def thread_count() -> int:
    """Threads that a kernel may use: ``STREAMING_PCA_THREADS``, or the processors of this process.

    Raises
    ------
    ValueError
        If the variable is no number of at least 1.
    """
    if _limit is not None:
        return _limit
    given = os.environ.get(_VARIABLE)
    if given is None:
        return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    if not given.isascii() or not given.isdigit() or int(given) < 1:
        raise ValueError(f"{_VARIABLE}={given!r}: give a number of threads of at least 1")
    return int(given)


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """Use so many threads in the meantime, whatever the environment says."""
    global _limit
    before, _limit = _limit, count
    try:
        yield
    finally:
        _limit = before


def _shared_pool(threads: int) -> ThreadPoolExecutor:
    global _pool
    if _pool is None or _pool._max_workers < threads:
        if _pool is not None:
            _pool.shutdown(wait=False)
        _pool = ThreadPoolExecutor(threads, thread_name_prefix="kernel")
    return _pool


def _forget_pool() -> None:
    """A fork has none of its parent's threads."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def shared_out(
    total: int, work: Callable[[int, int], Result], granularity: int = 1, least: int = 1
) -> list[Result]:
    """``work(first, last)`` of consecutive ranges that make up ``total``, one a thread.

    Parameters
    ----------
    total : int
    work : callable
        Releases the interpreter's lock where it takes long.
    granularity : int
        Ranges are multiples of it, but for the last.
    least : int
        A range that is shorter is not worth a thread.
    """
    ranges = min(thread_count(), max(total // max(least, 1), 1))
    groups = -(-total // granularity)
    cuts = [min(groups * i // ranges * granularity, total) for i in range(ranges + 1)]
    parts = [(a, b) for a, b in itertools.pairwise(cuts) if a < b]
    if len(parts) <= 1:
        return [work(a, b) for a, b in parts]
    pool = _shared_pool(len(parts) - 1)
    others = [pool.submit(work, a, b) for a, b in parts[1:]]
    first = work(*parts[0])
    return [first, *(other.result() for other in others)]
