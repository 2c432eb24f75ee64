"""Noise drawn ahead is the noise that would have been drawn, and each value of it is used once."""

from __future__ import annotations

import copy
import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import psutil
import pytest
from numpy.typing import NDArray
from scipy import stats

from streaming_pca.privacy import noise_pool as module
from streaming_pca.privacy import noise_supply
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import (
    NoiseAhead,
    gaussian_modes,
    gaussian_on_symmetric,
    gaussian_on_vector,
    laplace_histogram,
    laplace_on_vector,
    stability_histogram,
    stability_modes,
)
from streaming_pca.privacy.noise_memory import BLOCK_VALUES
from streaming_pca.privacy.noise_pool import NoisePool, noise_pool
from streaming_pca.privacy.noise_source import Kind
from streaming_pca.privacy.randomness import noise_door, replace_noise_door
from tests.privacy.noise import FACTORS, MISS, ScriptedDoor, has_scale, missed
from tests.privacy.noise_sources import CountingDoor

ROOT = Path(__file__).parents[2]
LAW = Kind.GAUSSIAN

Values = NDArray[np.int64]
Use = Callable[[str], None]


def until(reached: Callable[[], bool]) -> None:
    """Wait for another process; that it takes too long is a test's failure."""
    deadline = time.monotonic() + 120
    while not reached():
        assert time.monotonic() < deadline
        time.sleep(0.005)


@pytest.fixture
def use(monkeypatch: pytest.MonkeyPatch) -> Use:
    """Put a source of :mod:`tests.privacy.noise_sources` in place of the real one."""
    monkeypatch.chdir(ROOT)

    def put(name: str) -> None:
        command = [sys.executable, "-m", "tests.privacy.noise_sources", name]
        monkeypatch.setattr(noise_supply, "_SOURCE", command)

    return put


@pytest.fixture
def pool() -> Iterator[NoisePool]:
    """A pool beside a direct door whose draws count, too."""
    made = NoisePool(1)
    with replace_noise_door(CountingDoor()):
        yield made
    made.close()


def idle(pool: NoisePool) -> bool:
    """Whether nothing is on its way."""
    with pool._changed:
        return not pool._ordered


def held(pool: NoisePool) -> set[int]:
    """What the pool's memory holds, but zeros."""
    return set(pool._memory.values[pool._memory.values != 0].tolist())


def by_process(values: Values) -> tuple[Values, Values]:
    """Those that this process drew, and those that another did, in their order."""
    own = values >> 32 == os.getpid()
    return values[own], values[~own]


def source_of(pool: NoisePool) -> int:
    assert pool._supply is not None
    return pool._supply.pid


def gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


# Each value once.


@pytest.mark.parametrize("source", ["counting", "slow"])
def test_values_are_used_once_in_the_order_in_which_they_were_drawn(
    pool: NoisePool, use: Use, source: str
) -> None:
    use(source)
    rng = np.random.default_rng(0)
    taken = [pool.take(LAW, 3000, 1.0)[0]]
    until(lambda: pool.depth > 0)
    for size in rng.integers(64, 5000, 40).tolist():
        if rng.random() < 0.5:
            goal = int(rng.integers(1, 3000))
            until(lambda goal=goal: pool.depth >= goal or idle(pool))  # type: ignore[misc]
        values, ready = pool.take(LAW, size, 1.0)
        assert values.size == size
        own, ahead = by_process(values)
        # The oldest first, and what was ready is used.
        assert np.array_equal(values, np.concatenate([ahead, own]))
        assert ready <= ahead.size
        taken.append(values)
    for drawn in by_process(np.concatenate(taken)):
        assert drawn.size >= 3000
        assert np.array_equal(drawn, np.arange(drawn[0], drawn[0] + drawn.size))
        assert drawn[0] & 0xFFFFFFFF == 0


def test_what_is_on_its_way_is_waited_for_and_not_passed_over(pool: NoisePool, use: Use) -> None:
    """Which values are ready depends on how long they took, and so on what they are."""
    use("gated")
    pool.take(LAW, 2 * BLOCK_VALUES, 1.0)
    until(lambda: len(pool._ordered) == 2)
    pid = source_of(pool)
    taken: list[Values] = []
    thread = threading.Thread(target=lambda: taken.append(pool.take(LAW, 3 * BLOCK_VALUES, 1.0)[0]))
    thread.start()
    until(lambda: pool._requests == 2)

    def signalled() -> bool:
        os.kill(pid, signal.SIGUSR1)
        return not thread.is_alive()

    until(signalled)
    own, ahead = by_process(taken[0])
    assert np.array_equal(ahead, (pid << 32) + np.arange(2 * BLOCK_VALUES))
    assert own.size == BLOCK_VALUES


def test_scales_and_kinds_are_kept_apart(pool: NoisePool) -> None:
    for kind, scale in (
        (Kind.GAUSSIAN, 50.0),
        (Kind.GAUSSIAN, 1e9),
        (Kind.LAPLACE, 1e9),
        (Kind.LAPLACE, 1e15),
    ):
        with replace_noise_door(ScriptedDoor()):
            assert not pool.take(kind, 2000, scale)[0].any()
    until(lambda: pool.depth == 4 * 4000)
    for kind, scale in (
        (Kind.GAUSSIAN, 50.0),
        (Kind.GAUSSIAN, 1e9),
        (Kind.LAPLACE, 1e9),
        (Kind.LAPLACE, 1e15),
    ):
        values, ready = pool.take(kind, 2000, scale)
        assert ready == 2000
        assert has_scale(values, scale, kind.name.lower())


def test_threads_never_share_a_value(pool: NoisePool, use: Use) -> None:
    use("counting")
    taken: list[Values] = []
    lock = threading.Lock()
    # The door that counts is not made for threads.
    door = CountingDoor()
    pool.take(LAW, 500, 1.0)
    until(lambda: pool.depth == 1000)

    def work(seed: int) -> None:
        for i, size in enumerate(np.random.default_rng(seed).integers(64, 900, 60).tolist()):
            if i % 3:
                until(lambda: pool.depth > 0 or idle(pool))
            values = pool.take(LAW, size, 1.0)[0]
            with lock:
                taken.append(values)

    original = door.discrete_gaussian

    def one_at_a_time(size: int, scale: float) -> Values:
        with lock:
            return original(size, scale)

    door.discrete_gaussian = one_at_a_time  # type: ignore[method-assign]
    with replace_noise_door(door):
        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    values = np.concatenate(taken)
    assert by_process(values)[1].size
    assert np.unique(values).size == values.size


# Its law.


@pytest.mark.parametrize(("law", "scale"), [("gaussian", 3.0), ("laplace", 2.0)])
def test_what_was_drawn_ahead_has_the_exact_discrete_distribution(law: str, scale: float) -> None:
    """Chi-square over all values that 20,000 draws should show 20 times; fails by chance below 1e-6."""
    n = 20_000
    j = np.arange(-200, 201)
    p = np.exp(-(j**2) / (2 * scale**2)) if law == "gaussian" else np.exp(-np.abs(j) / scale)
    p /= p.sum()
    values = ready(law, n, scale)
    counts = np.bincount(values + 200, minlength=401)
    often = n * p >= 20
    observed = np.append(counts[often], counts[~often].sum())
    expected = np.append(n * p[often], n * p[~often].sum())
    statistic = float(np.sum((observed - expected) ** 2 / expected))
    # As in test_mechanisms.py: 1e-9 and 30 leave room for the tail.
    assert statistic <= stats.chi2(len(expected) - 1).isf(1e-9) + 30


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_what_was_drawn_ahead_has_the_scale_it_was_asked_for(law: str) -> None:
    n, scale = 2000, 2.0**42 + 0.3
    assert max(missed(n, law, f) for f in FACTORS) < MISS
    assert has_scale(ready(law, n, scale), scale, law)
    for factor in FACTORS:
        assert not has_scale(ready(law, n, factor * scale), scale, law)


def ready(law: str, size: int, scale: float) -> Values:
    """Of a pool that has all of it."""
    with noise_pool() as pool:
        for _ in range(2):
            values: Values = getattr(noise_door(public_size=True), f"discrete_{law}")(size, scale)
            until(lambda: pool.depth >= 2 * size)
        with pool.in_use() as draws:
            values = getattr(noise_door(public_size=True), f"discrete_{law}")(size, scale)
        assert (draws.ahead, draws.waited) == (size, 0)
    return values


# Wiped.


def test_a_value_is_wiped_as_it_is_handed_out(pool: NoisePool, use: Use) -> None:
    use("counting")
    pool.take(LAW, 3000, 1.0)
    until(lambda: pool.depth == 6000)
    before = held(pool)
    values, _ = pool.take(LAW, 1500, 1.0)
    assert set(values.tolist()) <= before
    assert not set(values.tolist()) & held(pool)


def test_what_is_forgotten_is_wiped_even_if_it_was_on_its_way(pool: NoisePool, use: Use) -> None:
    use("slow")
    pool.take(LAW, 3000, 1.0)
    until(lambda: pool.depth > 0)
    assert held(pool)
    pool.forget()
    assert pool.depth == 0
    until(lambda: idle(pool))
    assert not held(pool)


def test_closing_wipes_everything_and_ends_the_process(pool: NoisePool, use: Use) -> None:
    use("counting")
    pool.take(LAW, 3000, 1.0)
    until(lambda: pool.depth == 6000)
    pid = source_of(pool)
    assert len(held(pool)) == 6000
    pool.close()
    assert not held(pool)
    assert pool.depth == 0
    assert gone(pid)
    # Who still draws from it gets noise.
    values, ready = pool.take(LAW, 3000, 1.0)
    assert by_process(values)[0].size == 3000
    assert not ready


def test_a_request_that_waits_while_the_pool_is_closed_gets_noise_and_no_zeros(
    pool: NoisePool, use: Use
) -> None:
    use("silent")
    pool.take(LAW, 3000, 1.0)
    until(lambda: not idle(pool))
    taken: list[Values] = []
    thread = threading.Thread(target=lambda: taken.append(pool.take(LAW, 3000, 1.0)[0]))
    thread.start()
    until(lambda: pool._requests == 2)
    pool.close()
    thread.join()
    assert np.unique(taken[0]).size == 3000
    assert by_process(taken[0])[0].size == 3000


def test_a_request_that_draws_while_the_pool_is_closed_gets_noise_and_no_zeros(
    pool: NoisePool, use: Use
) -> None:
    """What it had claimed is wiped by then."""
    use("counting")
    pool.take(LAW, 1000, 1.0)
    until(lambda: pool.depth == 2000)
    drawing, closed = threading.Event(), threading.Event()

    class Waiting(CountingDoor):
        def discrete_gaussian(self, size: int, scale: float) -> Values:
            drawing.set()
            assert closed.wait(120)
            return super().discrete_gaussian(size, scale)

    taken: list[Values] = []
    with replace_noise_door(Waiting()):
        thread = threading.Thread(target=lambda: taken.append(pool.take(LAW, 3000, 1.0)[0]))
        thread.start()
        assert drawing.wait(120)
        pool.close()
        assert not held(pool)
        closed.set()
        thread.join()
    assert by_process(taken[0])[0].size == np.unique(taken[0]).size == 3000


def test_a_pool_is_never_pickled_copied_or_shown(pool: NoisePool) -> None:
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(TypeError, match="each value is used once"):
            attempt(pool)
    assert repr(pool) == "<NoisePool of 0 values>"


# When processes end.


def test_half_an_answer_is_none(pool: NoisePool, use: Use, caplog: pytest.LogCaptureFixture) -> None:
    """kill -9 in the middle of the second answer, while a request waits for it."""
    use("torn")
    pool.take(LAW, 2 * BLOCK_VALUES, 1.0)
    until(lambda: pool.depth == BLOCK_VALUES and not idle(pool))
    pid = source_of(pool)
    taken: list[Values] = []
    thread = threading.Thread(target=lambda: taken.append(pool.take(LAW, 3 * BLOCK_VALUES, 1.0)[0]))
    thread.start()
    until(lambda: pool._requests == 2)
    until(lambda: bool(held(pool)))  # what has arrived of the half
    with caplog.at_level(logging.WARNING):
        os.kill(pid, signal.SIGKILL)
        thread.join()
        until(lambda: bool(caplog.records))
    own, ahead = by_process(taken[0])
    assert np.array_equal(ahead, (pid << 32) + np.arange(BLOCK_VALUES))
    assert own.size == 2 * BLOCK_VALUES
    assert "has ended" in caplog.text
    # Another process has taken its place.
    until(lambda: pool.depth >= BLOCK_VALUES)
    assert source_of(pool) != pid
    assert not {v for v in held(pool) if v >> 32 == pid}


def test_a_real_source_that_is_killed_is_replaced(pool: NoisePool) -> None:
    pool.take(LAW, 2000, 1e9)
    for _ in range(3):
        until(lambda: pool.depth >= 4000)
        os.kill(source_of(pool), signal.SIGKILL)
        values, _ = pool.take(LAW, 2000, 1e9)
        assert has_scale(values[values < 2**32], 1e9) or values[values < 2**32].size < 64
    until(lambda: pool.depth >= 4000)


def test_a_process_that_says_nothing_is_not_waited_for_for_ever(
    pool: NoisePool, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("silent")
    monkeypatch.setattr(module, "_PATIENCE_SECONDS", 0.1)
    pool.take(LAW, 3000, 1.0)
    until(lambda: not idle(pool))
    values, ready = pool.take(LAW, 3000, 1.0)
    assert by_process(values)[0].size == 3000
    assert not ready


def test_a_source_that_fails_at_once_is_not_started_again_and_again(
    pool: NoisePool, use: Use, monkeypatch: pytest.MonkeyPatch
) -> None:
    use("failing")
    now, started = [0.0], []
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now[0]))

    class Watched(noise_supply.Supply):
        def __init__(self, receiver: NoisePool) -> None:
            started.append(now[0])
            super().__init__(receiver)

    monkeypatch.setattr(module, "Supply", Watched)
    for _ in range(60):
        assert pool.take(LAW, 100, 1.0)[0].size == 100
        until(lambda: pool._supply is None)
        now[0] += 1
    assert len(started) < 8
    assert pool.depth == 0


def test_a_machine_without_room_for_a_process_draws_directly(
    pool: NoisePool, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(noise_supply, "_SOURCE", ["/nowhere/at/all"])
    assert pool.take(LAW, 100, 1.0)[0].size == 100
    assert "no process to draw noise ahead" in caplog.text


STARTED = """
import os, sys, time
from streaming_pca.privacy.noise_pool import NoisePool
from streaming_pca.privacy.noise_source import Kind
pool = NoisePool(1)
pool.take(Kind.GAUSSIAN, 2000, 1e9)
while pool.depth < 4000:
    time.sleep(0.01)
"""


def started(then: str) -> subprocess.Popen[str]:
    """Another program with a full pool."""
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", STARTED + then], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )


def test_the_source_ends_with_a_process_that_is_killed() -> None:
    with started("print(pool._supply.pid, flush=True); time.sleep(3600)") as program:
        assert program.stdout is not None
        source = int(program.stdout.readline())
        assert not gone(source)
        program.kill()
        until(lambda: gone(source))


def test_the_source_ends_with_a_process_that_never_closed_its_pool() -> None:
    with started("print(pool._supply.pid, flush=True)") as program:
        assert program.stdout is not None
        source = int(program.stdout.readline())
        assert program.wait(120) == 0
    until(lambda: gone(source))


def test_the_child_of_a_fork_has_nothing_of_the_pool_and_draws_its_own() -> None:
    then = """
child = os.fork()
if child == 0:
    values, ready = pool.take(Kind.GAUSSIAN, 2000, 1e9)
    empty = not pool._memory.values.any() and not ready and pool.depth == 0
    print(int(empty), len(set(values.tolist())), flush=True)
    time.sleep(3600)
else:
    values, ready = pool.take(Kind.GAUSSIAN, 2000, 1e9)
    print(ready, flush=True)
    print(child, pool._supply.pid, flush=True)
    time.sleep(3600)
"""
    with started(then) as program:
        assert program.stdout is not None
        lines = sorted(
            (program.stdout.readline().split() for _ in range(3)), key=lambda x: (len(x), int(x[0]))
        )
        ready, (empty, different), (child, source) = lines
        try:
            assert ready == ["2000"]
            assert empty == "1"
            assert int(different) > 1900
            program.kill()
            # Though the fork lives on.
            until(lambda: gone(int(source)))
        finally:
            os.kill(int(child), signal.SIGKILL)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_source_has_no_core_dumps_and_waits_for_nobody(pool: NoisePool) -> None:
    pool.take(LAW, 2000, 1e9)
    until(lambda: pool.depth == 4000)
    limits = Path(f"/proc/{source_of(pool)}/limits").read_text()
    (core,) = [line.split() for line in limits.splitlines() if "core file" in line]
    assert core[4:6] == ["0", "0"]
    assert psutil.Process(source_of(pool)).nice() == 19
    # A signal to all processes of a service is for the worker: it finishes its batch first.
    os.kill(source_of(pool), signal.SIGTERM)
    pool.take(LAW, 2000, 1e9)
    until(lambda: pool.depth == 4000)


# Bounds.


def test_memory_is_bounded(pool: NoisePool, use: Use) -> None:
    use("counting")
    bound = 2**20 // 8
    for scale in range(1, 4):
        pool.take(LAW, 100_000, float(scale))
    until(lambda: pool.depth > bound - 3 * BLOCK_VALUES and idle(pool))
    assert pool._memory.values.size == bound
    assert pool.depth <= bound
    values, ready = pool.take(LAW, 100_000, 1.0)
    assert np.unique(values).size == 100_000
    assert ready


def test_scales_that_are_used_no_more_make_room(pool: NoisePool, use: Use) -> None:
    use("counting")
    for scale in range(1, 21):
        pool.take(LAW, 64, float(scale))
    assert [scale for _, scale in pool._stocks] == list(range(1, 17))
    for _ in range(65):
        pool.take(LAW, 64, 7.0)
    pool.take(LAW, 64, 100.0)
    assert [scale for _, scale in pool._stocks] == [7.0, 100.0]
    until(lambda: pool.depth == 2 * 64 + pool._stocks[LAW, 7.0].target)
    assert {v & 0xFFFFFFFF < 20_000 for v in held(pool)} == {True}


def test_more_is_kept_of_what_is_asked_for_many_times_in_a_row(pool: NoisePool, use: Use) -> None:
    use("counting")
    for _ in range(100):
        pool.take(LAW, 1000, 1.0)
    assert 2000 < pool._stocks[LAW, 1.0].target <= 16_000


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "1"])
def test_a_size_that_is_no_number_is_refused(size: int) -> None:
    with pytest.raises(ParameterError, match="mebibytes"):
        NoisePool(size)


# What goes through it.


def test_only_requests_of_public_size_go_through_it() -> None:
    with noise_pool() as pool, pool.in_use() as draws:

        def drawn() -> int:
            count, draws.ahead, draws.waited = draws.ahead + draws.waited, 0, 0
            return count

        # How many keys or bins hold a record is not public.
        stability_histogram(list(range(200)), 1.0, 1e-6)
        stability_modes(np.arange(400, dtype=np.int32).reshape(2, 200), 1.0, 1e-6)
        gaussian_modes(np.arange(400, dtype=np.int32).reshape(2, 200), 1.0, 1e-6)
        assert drawn() == 0
        assert not pool._requests
        gaussian_on_vector(np.zeros((20, 10), dtype=np.int64), 50.0)
        assert drawn() == 200
        gaussian_on_symmetric(np.zeros((100, 100), dtype=np.int64), 50.0)
        assert drawn() == 5050
        laplace_on_vector(np.zeros(70, dtype=np.int64), 50.0)
        assert drawn() == 70
        laplace_histogram(np.zeros(5, dtype=np.int64), 80, 1.0)
        assert drawn() == 80
        NoiseAhead(30, 10, 50.0).take()
        assert drawn() == 300
        # A few values are not worth the bother.
        gaussian_on_vector(np.zeros(63, dtype=np.int64), 50.0)
        assert drawn() == 0


def test_outside_and_in_other_threads_noise_is_drawn_directly() -> None:
    direct = noise_door(public_size=True)
    with noise_pool():
        assert noise_door() is direct
        assert noise_door(public_size=True) is not direct
        elsewhere: list[object] = []
        thread = threading.Thread(target=lambda: elsewhere.append(noise_door(public_size=True)))
        thread.start()
        thread.join()
        assert elsewhere == [direct]
    assert noise_door(public_size=True) is direct


def test_a_door_that_a_test_has_put_in_place_goes_first() -> None:
    door = ScriptedDoor()
    with noise_pool(), replace_noise_door(door):
        assert noise_door(public_size=True) is door
    with replace_noise_door(door), noise_pool():
        assert noise_door(public_size=True) is door


def test_orders_and_selections_are_drawn_directly() -> None:
    with noise_pool():
        door = noise_door(public_size=True)
        assert sorted(door.permutation(100).tolist()) == list(range(100))
        assert door.noisy_max(np.array([0, 10**6], dtype=np.int64), 1.0) == 1
