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
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

__all__ = ["limited_threads", "shared_out", "thread_count", "together", "use_threads"]

Result = TypeVar("Result")

_MOST = 8
"""By default. Records come from memory, which more threads do not read faster."""
_CPU_QUOTA = Path("/sys/fs/cgroup/cpu.max")

_chosen: int | None = None


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


class _Errand(Generic[Result]):
    """One call of some work by a thread of the pool, unless that comes too late for it."""

    def __init__(self, work: Callable[[], Result]) -> None:
        self._work = work
        self._begun, self._ended = threading.Lock(), threading.Lock()
        self._ended.acquire()
        self._results: list[Result] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        """Do it, in the pool's thread."""
        if not self._begun.acquire(blocking=False):
            return
        try:
            self._results.append(self._work())
        except BaseException as error:
            self._error = error
        finally:
            self._ended.release()

    def settle(self) -> None:
        """Withdraw it if it has not begun, else wait until it has ended; in the caller's thread."""
        if not self._begun.acquire(blocking=False):
            self._ended.acquire()

    @property
    def results(self) -> list[Result]:
        """What the work returned, nothing if it was withdrawn; raises what it has raised."""
        if self._error is not None:
            raise self._error
        return self._results


class _Hand(threading.Thread):
    """A thread of the pool. It waits for a lock of its own: a queue's would take several times as long."""

    def __init__(self) -> None:
        super().__init__(name="kernel", daemon=True)
        self._called = threading.Lock()
        self._called.acquire()
        self._errand: _Errand[Any] | None = None
        self._kept_off: int | None = None
        self.start()

    def call(self, errand: _Errand[Any]) -> None:
        """Have it run an errand; only while it is idle."""
        self._keep_off()
        self._errand = errand
        self._called.release()

    def run(self) -> None:
        while True:
            self._called.acquire()
            errand, self._errand = self._errand, None
            assert errand is not None
            errand.run()
            # It may hold a batch.
            del errand
            _idle.append(self)

    def _keep_off(self) -> None:
        """Keep it off the processor that the caller works on.

        Linux likes to wake a thread where its waker is, and may leave it waiting there, beside a processor
        that has nothing to do, for longer than a sum takes.
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


_idle: deque[_Hand] = deque()
_lock = threading.Lock()
_made = 0


def _idle_hands(most: int) -> list[_Hand]:
    """Threads that have nothing to do, no longer idle; made where there are fewer than ``most`` at all."""
    global _made
    found: list[_Hand] = []
    with suppress(IndexError):
        while len(found) < most:
            found.append(_idle.pop())
    if len(found) < most and _made < most:
        # A process that may have no more threads goes on with those it has.
        with _lock, suppress(RuntimeError):
            while len(found) < most and _made < most:
                found.append(_Hand())
                _made += 1
    return found


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
    global _idle, _made, _lock
    _idle, _made, _lock = deque(), 0, threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_pool)


def together(work: Callable[[], Result], most: int) -> list[Result]:
    """Call ``work`` in this thread, and meanwhile in those of the pool that have nothing to do.

    The calls share out among themselves what there is to do, so that it is done when the
    caller's own has returned and those that have begun have, too. A thread that wakes late is not
    waited for. All have ended when this returns or raises. Work may call it again.

    Parameters
    ----------
    work : callable
        Releases the interpreter's lock where it takes long.
    most : int
        Threads, the caller's included.

    Returns
    -------
    list
        What each call returned, the caller's first.
    """
    errands = []
    for hand in _idle_hands(min(most, thread_count()) - 1):
        errand = _Errand(work)
        hand.call(errand)
        errands.append(errand)
    try:
        own = work()
    finally:
        for errand in errands:
            errand.settle()
    return [own, *itertools.chain.from_iterable(errand.results for errand in errands)]


def shared_out(
    total: int, work: Callable[[int, int], Result], granularity: int = 1, least: int = 1
) -> list[Result]:
    """``work(first, last)`` of consecutive ranges that make up ``total``, as many as there are threads.

    All of them have ended when it returns or raises.

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
    found: dict[int, Result] = {}
    numbers = itertools.count()

    def some() -> None:
        while (i := next(numbers)) < len(parts):
            found[i] = work(*parts[i])

    together(some, len(parts))
    return [found[i] for i in range(len(parts))]
