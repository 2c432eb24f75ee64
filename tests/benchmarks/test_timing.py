"""Contenders take turns, and fast ones are timed more often; the clock here is simulated."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from benchmarks.timing.timing import QUICK, THOROUGH, Effort, idle, interleaved, measured, medians


class Stage:
    """A clock that only calls advance, and the names of the called contenders."""

    def __init__(self) -> None:
        self.now, self.calls = 0.0, ""

    def clock(self) -> float:
        return self.now

    def rest(self) -> None:
        self.now += 100.0

    def call(self, name: str, *seconds: float) -> Callable[[], None]:
        """Return a contender that takes these times in turn, and then always the last one."""
        left = list(seconds)

        def run() -> None:
            self.now += left.pop(0) if len(left) > 1 else left[0]
            self.calls += name

        return run


@pytest.fixture
def stage() -> Stage:
    return Stage()


def test_contenders_take_turns_and_rests_are_not_counted(stage: Stage) -> None:
    contenders = {"a": stage.call("a", 1.0, 2.0, 3.0), "b": stage.call("b", 10.0)}
    times = interleaved(contenders, 3, clock=stage.clock, rest=stage.rest)
    assert stage.calls == "ababab"
    assert times == {"a": [1.0, 2.0, 3.0], "b": [10.0] * 3}
    assert medians(times) == {"a": 2.0, "b": 10.0}


def test_who_has_fewer_turns_has_them_evenly_spread(stage: Stage) -> None:
    contenders = {"a": stage.call("a", 1.0), "b": stage.call("b", 1.0), "c": stage.call("c", 1.0)}
    times = interleaved(contenders, {"a": 6, "b": 2, "c": 0}, clock=stage.clock, rest=stage.rest)
    assert stage.calls == "aaabaaab"
    assert [len(seconds) for seconds in times.values()] == [6, 2, 0]


def test_the_first_call_is_not_counted(stage: Stage) -> None:
    contenders = {"a": stage.call("a", 50.0, 1.0), "b": stage.call("b", 60.0, 2.0)}
    times = measured(contenders, 2, clock=stage.clock, rest=stage.rest)
    assert stage.calls == "ababab"
    assert times == {"a": [1.0, 1.0], "b": [2.0, 2.0]}


def test_the_faster_of_two_first_calls_says_how_many_turns_there_are(stage: Stage) -> None:
    effort = Effort(total=1.0, least=2, most=6, patience=9.0, fewest=1)
    quick, middling, slow = (
        stage.call(name, seconds) for name, seconds in (("q", 0.1), ("m", 0.3), ("s", 8))
    )
    times = measured(
        {"q": quick, "m": middling, "s": slow}, effort=effort, clock=stage.clock, rest=stage.rest
    )
    assert {name: len(seconds) for name, seconds in times.items()} == {"q": 6, "m": 4, "s": 1}


@pytest.mark.parametrize(
    ("seconds", "turns"), [(0.0, 60), (1e-6, 60), (0.02, 25), (0.3, 7), (1.5, 4), (6.0, 3), (100.0, 3)]
)
def test_half_a_second_at_least_seven_turns_and_three_of_what_is_slow(seconds: float, turns: int) -> None:
    assert THOROUGH.turns(seconds) == turns
    assert QUICK.turns(seconds) <= turns


def test_rest_ends_when_nothing_works_any_more() -> None:
    start = time.perf_counter()
    idle()
    assert time.perf_counter() - start < 60
