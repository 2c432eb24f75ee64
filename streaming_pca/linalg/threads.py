"""The one pool of threads that the package's kernels share.

BLAS has a pool of its own, whose threads spin while they wait: two pools on the same cores cost
a hundred times what they gain. So commands set BLAS to one thread before numpy is
imported (:mod:`streaming_pca.cli`), and whoever imports the package does well to do the same
(``OPENBLAS_NUM_THREADS=1``). Kernels here release the interpreter's lock, share out whole
ranges of records, and add up integers: any number of threads has the same result.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

__all__ = ["limited_threads", "shared_out", "thread_count", "use_threads"]

Result = TypeVar("Result")

_MOST = 8
"""By default. Records come from memory, which more threads do not read faster."""
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_chosen: int | None = None
_pool: ThreadPoolExecutor | None = None
_lock = threading.Lock()
_here = threading.local()


def thread_count() -> int:
    """Threads that a kernel may use: the processors of this process, 8 at most, or what was chosen."""
    if _chosen is not None:
        return _chosen
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(affine, _quota(), _MOST)


@functools.cache
def _quota() -> int:
    """Whole processors that a container may use."""
    try:
        most, period = _CPU_QUOTA.read_text(encoding="ascii").split()
        return max(int(most) // int(period), 1)
    except (OSError, ValueError):
        # Not in a container, or one without a quota ("max").
        return _MOST


def use_threads(count: int | None) -> None:
    """Let kernels use so many threads from now on; None for :func:`thread_count`'s own choice."""
    global _chosen
    _chosen = count


@contextmanager
def limited_threads(count: int) -> Iterator[None]:
    """The same in the meantime."""
    before = _chosen
    use_threads(count)
    try:
        yield
    finally:
        use_threads(before)


def _mark_thread() -> None:
    _here.in_pool = True


def _submitted(work: Callable[[int, int], Result], parts: Sequence[tuple[int, int]]) -> list[Future[Result]]:
    """Hand parts to the pool, which has a thread for each of them.

    Under the lock: no other caller replaces the pool, and ends it, in the meantime.
    """
    global _pool
    with _lock:
        if _pool is None or _pool._max_workers < len(parts):
            if _pool is not None:
                _pool.shutdown(wait=False)
            _pool = ThreadPoolExecutor(len(parts), thread_name_prefix="kernel", initializer=_mark_thread)
        _keep_off(_pool._threads)
        return [_pool.submit(work, a, b) for a, b in parts]


def _keep_off(threads: Iterable[threading.Thread]) -> None:
    """Keep threads off the processor that the caller works on.

    Linux likes to wake a thread where its waker is, and may leave it waiting there, beside a processor
    that has nothing to do, for longer than a sum takes.
    """
    if _processor_of_caller is None:
        return
    mine = _processor_of_caller()
    others = os.sched_getaffinity(0) - {mine}
    if not others:
        return
    for thread in threads:
        # One that has ended since has no processor to be kept off.
        with suppress(OSError):
            if thread.native_id is not None:
                os.sched_setaffinity(thread.native_id, others)


def _find_processor_of_caller() -> Callable[[], int] | None:
    if not hasattr(os, "sched_setaffinity"):
        return None
    with suppress(AttributeError, OSError):
        found: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
        return found
    return None


_processor_of_caller = _find_processor_of_caller()


def _forget_pool() -> None:
    """A fork has none of its parent's threads, and may have found the lock held by one."""
    global _pool, _lock
    _pool, _lock = None, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def shared_out(
    total: int, work: Callable[[int, int], Result], granularity: int = 1, least: int = 1
) -> list[Result]:
    """``work(first, last)`` of consecutive ranges that make up ``total``, one a thread.

    All of them have ended when it returns or raises. Work that shares itself out again does
    so in its own thread: the pool's others may be waiting for it.

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
    if len(parts) <= 1 or getattr(_here, "in_pool", False):
        return [work(a, b) for a, b in parts]
    others = _submitted(work, parts[1:])
    try:
        first = work(*parts[0])
    finally:
        wait(others)
    return [first, *(other.result() for other in others)]
