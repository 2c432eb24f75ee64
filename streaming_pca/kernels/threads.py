"""Thread pool shared by all kernels.

BLAS has its own pool, whose threads spin while they wait: two pools on the same cores cost a hundred times
their gain. Commands therefore set BLAS to one thread before numpy is imported (:mod:`streaming_pca.cli`);
programs should do the same (``OPENBLAS_NUM_THREADS=1``). Kernels release the interpreter's lock, divide whole
ranges of records, and add integers: the result does not depend on the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

Result = TypeVar("Result")

_MOST = 8  # default limit: more threads do not read memory faster
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_chosen: int | None = None


def thread_count() -> int:
    """Return the threads a kernel may use: the chosen number, or the processors, at most 8."""
    if _chosen is not None:
        return _chosen
    affine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(affine, _quota(), _MOST)


@functools.cache
def _quota() -> int:
    """Return the whole processors that the container's quota allows."""
    try:
        most, period = _CPU_QUOTA.read_text(encoding="ascii").split()
        return max(int(most) // int(period), 1)
    except (OSError, ValueError):
        # No container, or no quota ("max").
        return _MOST


def use_threads(count: int | None) -> None:
    """Set the number of threads of kernels; None restores the default."""
    global _chosen
    _chosen = count


class _Task(Generic[Result]):
    """One call of some work by a pool thread, unless withdrawn before it begins."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._begun, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._ended.release()

    def settle(self) -> None:
        """Withdraw the task if it has not begun, else wait for its end."""
        if not self._begun.acquire(blocking=False):
            self._ended.acquire()

    @property
    def results(self) -> list[Result]:
        """Results of the work, none if withdrawn; raises its error."""
        if self._error is not None:
            raise self._error
        return self._results


class _Worker(threading.Thread):
    """Pool thread, which waits on its own lock: a queue takes several times as long."""

    def __init__(self) -> None:
        super().__init__(name="kernel", daemon=True)
        self._called = threading.Lock()
        self._called.acquire()
        self._task: _Task[Any] | None = None
        self._kept_off: int | None = None
        self.start()

    def call(self, task: _Task[Any]) -> None:
        """Run a task in this thread, which must be idle."""
        self._keep_off()
        self._task = task
        self._called.release()

    def run(self) -> None:
        while True:
            self._called.acquire()
            task, self._task = self._task, None
            assert task is not None
            task.run()
            # A task may hold a batch in memory.
            del task
            _idle.append(self)

    def _keep_off(self) -> None:
        """Move this thread off the caller's processor.

        Linux tends to wake a thread on its waker's processor and may leave it waiting there, although
        another processor is idle, for longer than a sum takes.
        """
        if _processor_of_caller is None or self.native_id is None:
            return
        mine = _processor_of_caller()
        if mine == self._kept_off:
            return
        others = os.sched_getaffinity(0) - {mine}
        if others:
            with suppress(OSError):
                os.sched_setaffinity(self.native_id, others)
                self._kept_off = mine


_idle: deque[_Worker] = deque()
_lock = threading.Lock()
_made = 0


def _idle_workers(most: int) -> list[_Worker]:
    """Take up to ``most`` idle threads, starting threads while the pool is smaller."""
    global _made
    found: list[_Worker] = []
    with suppress(IndexError):
        while len(found) < most:
            found.append(_idle.pop())
    if len(found) < most and _made < most:
        # At the process's thread limit, continue with the existing threads.
        with _lock, suppress(RuntimeError):
            while len(found) < most and _made < most:
                found.append(_Worker())
                _made += 1
    return found


_processor_of_caller: Callable[[], int] | None = None
if hasattr(os, "sched_setaffinity"):
    with suppress(AttributeError, OSError):
        _processor_of_caller = ctypes.CDLL(None).sched_getcpu


def _forget_pool() -> None:
    """Reset the pool after a fork, which has no threads and perhaps a held lock."""
    global _idle, _made, _lock
    _idle, _made, _lock = deque(), 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def together(work: Callable[[], Result], most: int) -> list[Result]:
    """Call ``work`` concurrently in this thread and in idle threads of the pool.

    The calls, at most ``most`` with this thread's, divide the work among themselves: it is done when the
    caller's own call and all begun calls have returned. A thread that wakes late is not waited for. Work
    should release the interpreter's lock, and may call this function again. Results are the caller's first.
    """
    tasks = []
    for worker in _idle_workers(min(most, thread_count()) - 1):
        task = _Task(work)
        worker.call(task)
        tasks.append(task)
    try:
        own = work()
    finally:
        for task in tasks:
            task.settle()
    return [own, *itertools.chain.from_iterable(task.results for task in tasks)]


def shared_out(
    total: int, work: Callable[[int, int], Result], granularity: int = 1, least: int = 1
) -> list[Result]:
    """Call ``work(first, last)`` on consecutive ranges of ``total``, at most one a thread.

    All calls have ended when this returns or raises. Work should release the interpreter's lock. Ranges but
    the last are multiples of ``granularity``; ``least`` is the shortest one worth a thread.
    """
    ranges = min(thread_count(), max(total // max(least, 1), 1))
    groups = -(-total // granularity)
    cuts = [min(groups * i // ranges * granularity, total) for i in range(ranges + 1)]
    parts = [(a, b) for a, b in itertools.pairwise(cuts) if a < b]
    if len(parts) <= 1:
        return [work(a, b) for a, b in parts]
    found: dict[int, Result] = {}
    numbers = itertools.count()

    def some() -> None:
        while (i := next(numbers)) < len(parts):
            found[i] = work(*parts[i])

    together(some, len(parts))
    return [found[i] for i in range(len(parts))]
