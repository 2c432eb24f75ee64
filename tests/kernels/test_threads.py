"""The kernels' pool: ranges, failures, growth under other callers, work within work, forks."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from streaming_pca.kernels import threads
from streaming_pca.kernels.threads import shared_out, thread_count, together
from tests.threads import limited_threads
from tests.waiting import LIMIT, wait_for


def ran(work: Callable[[], object], limit: float = LIMIT) -> None:
    """Fail on a deadlock instead of waiting forever."""
    failed: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as e:
            failed.append(e)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    thread.join(limit)
    assert not thread.is_alive(), "deadlock"
    if failed:
        raise failed[0]


@pytest.mark.parametrize("count", [1, 2, 3, 7, 16])
@pytest.mark.parametrize("total", [0, 1, 2, 5, 14, 1001])
@pytest.mark.parametrize("granularity", [1, 2, 8])
@pytest.mark.parametrize("least", [1, 4, 10**6])
def test_ranges_make_up_the_whole_in_order(count: int, total: int, granularity: int, least: int) -> None:
    with limited_threads(count):
        parts = shared_out(total, lambda a, b: (a, b), granularity, least)
    assert len(parts) <= min(count, max(total // least, 1))
    assert [i for a, b in parts for i in range(a, b)] == list(range(total))
    assert all(a % granularity == 0 for a, _ in parts)


def test_each_part_has_a_thread_of_its_own_and_the_caller_works_too() -> None:
    meeting = threading.Barrier(5, timeout=LIMIT)

    def work(a: int, b: int) -> int:
        # The barrier breaks unless all five threads run simultaneously.
        meeting.wait()
        return threading.get_ident()

    with limited_threads(5):
        names = shared_out(5, work)
    assert threading.get_ident() in names
    assert len(set(names)) == 5


@pytest.mark.parametrize("where", [0, 2])
def test_what_fails_is_raised_when_nothing_is_at_work_any_more(where: int) -> None:
    running = []

    def work(a: int, b: int) -> None:
        if a == where:
            raise ZeroDivisionError
        time.sleep(0.05)
        running.append(a)

    with limited_threads(4):
        with pytest.raises(ZeroDivisionError):
            shared_out(4, work)
        there = list(running)
        time.sleep(0.1)
        assert running == there
        assert shared_out(4, lambda a, b: a) == [0, 1, 2, 3]


def test_together_is_one_call_a_thread_at_most_and_the_callers_first() -> None:
    meeting = threading.Barrier(3, timeout=LIMIT)

    def work() -> int:
        meeting.wait()
        return threading.get_ident()

    with limited_threads(3):
        found = together(work, 3)
    assert found[0] == threading.get_ident()
    assert len(set(found)) == 3
    with limited_threads(2):
        assert len(together(threading.get_ident, 5)) <= 2
    assert together(threading.get_ident, 1) == [threading.get_ident()]


def test_a_thread_that_wakes_late_is_not_waited_for() -> None:
    """Others do its work while it is blocked at its lock; it does not repeat the work."""
    threads._forget_pool()
    woken, calls = threading.Event(), []

    class Late(threads._Worker):
        def run(self) -> None:
            woken.wait(120)
            super().run()

    late = Late()
    threads._idle.append(late)
    threads._made = 1
    with limited_threads(2):
        ran(lambda: together(lambda: calls.append(threading.get_ident()), 2))
        assert len(calls) == 1
        woken.set()
        wait_for("the thread that was late", lambda: late in threads._idle)
        assert len(calls) == 1
        # A thread of an earlier pool may end its work here.
        assert threads._idle.count(late) == 1
        assert shared_out(2, lambda a, b: a) == [0, 1]


def test_callers_at_once_get_along_with_few_threads() -> None:
    """All share one extra thread: no caller waits for it, and none receives another's results."""

    def caller(n: int, failures: list[object]) -> None:
        for i in range(200):
            found = shared_out(2, lambda a, b: (n, i, a))  # noqa: B023
            if found != [(n, i, 0), (n, i, 1)]:
                failures.append(found)

    def whole() -> None:
        failures: list[object] = []
        callers = [threading.Thread(target=caller, args=(n, failures)) for n in range(6)]
        for c in callers:
            c.start()
        for c in callers:
            c.join()
        assert not failures

    threads._forget_pool()
    with limited_threads(2):
        ran(whole)
        assert threads._made == 1


def test_work_that_is_shared_out_within_work_waits_for_no_thread_of_the_pool() -> None:
    def outer(a: int, b: int) -> int:
        return sum(shared_out(6, lambda c, d: d - c))

    def whole() -> None:
        # The pool has exactly the threads that these three use.
        threads._forget_pool()
        with limited_threads(3):
            assert shared_out(3, outer) == [6, 6, 6]

    ran(whole)


def test_a_pool_that_grows_refuses_none_who_uses_it() -> None:
    """Callers of 2 to 16 threads start simultaneously, each time from a fresh pool."""

    def caller(wanted: int, failures: list[BaseException]) -> None:
        try:
            for _ in range(20):
                assert sum(shared_out(wanted, lambda a, b: b - a)) == wanted
        except BaseException as e:
            failures.append(e)

    def whole() -> None:
        for _ in range(15):
            threads._forget_pool()
            failures: list[BaseException] = []
            callers = [threading.Thread(target=caller, args=(n, failures)) for n in (2, 3, 5, 8, 16)]
            for c in callers:
                c.start()
            for c in callers:
                c.join()
            assert not failures

    with limited_threads(16):
        ran(whole)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_makes_a_pool_of_its_own_even_if_the_lock_was_held() -> None:
    with limited_threads(4):
        assert shared_out(4, lambda a, b: a) == [0, 1, 2, 3]
        with threads._lock:
            child = os.fork()
            if child == 0:
                right = False
                try:
                    ran(lambda: shared_out(4, lambda a, b: a))
                    right = shared_out(4, lambda a, b: a) == [0, 1, 2, 3]
                finally:
                    os._exit(0 if right else 1)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        assert shared_out(4, lambda a, b: a) == [0, 1, 2, 3]


def test_a_container_has_the_processors_of_its_quota(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(threads, "_CPU_QUOTA", tmp_path / "cpu.max")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(100)), raising=False)
    for text, wanted in (("350000 100000", 3), ("50000 100000", 1), ("max 100000", 8), ("?", 8), (None, 8)):
        if text is None:
            (tmp_path / "cpu.max").unlink()
        else:
            (tmp_path / "cpu.max").write_text(text)
        threads._quota.cache_clear()
        assert thread_count() == wanted
    with limited_threads(5):
        assert thread_count() == 5
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 7}, raising=False)
    assert thread_count() == 2
    threads._quota.cache_clear()
