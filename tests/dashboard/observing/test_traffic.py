"""Offsets and lag over time: fine when recent, coarse when old, and bounded."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.dashboard.models import Traffic
from streaming_pca.dashboard.observing.traffic import LEVELS, TrafficHistory

_START = 1_800_000_000.0
MOST = sum(most for _, most in LEVELS)


def seconds(answer: Traffic) -> list[float]:
    """Return the times of an answer, from the first sample."""
    return [datetime.fromisoformat(at).timestamp() - _START for at in answer.at]


def filled(samples: list[tuple[float, int, int]]) -> TrafficHistory:
    history = TrafficHistory()
    for at, end, lag in samples:
        history.add("topic", _START + at, end, lag)
    return history


def test_samples_of_ten_seconds_are_one_point() -> None:
    answer = filled([(2.0 * i, 100 * i, lag) for i, lag in enumerate([5, 9, 3, 4, 8, 7, 6])]).answer("s")
    assert (answer.stream, seconds(answer)) == ("s", [8.0, 12.0])
    assert (answer.offsets, answer.lag_low, answer.lag_high) == ([400, 600], [3, 6], [9, 7])


def test_older_points_are_farther_apart_and_their_number_is_bounded() -> None:
    history = TrafficHistory()
    # Two years, sampled each half hour, then each minute, and then every two seconds.
    last, days, hours = 2 * 365 * 86_400, 9 * 86_400, 7200
    times = [*range(0, last - days, 1800), *range(last - days, last - hours, 60)]
    times += range(last - hours, last, 2)
    for at in times:
        history.add("topic", _START + at, at, at % 1000)
    answer = history.answer("s")
    assert None not in answer.offsets
    assert len(answer.at) == MOST
    age = [times[-1] - at for at in seconds(answer)]
    assert age == sorted(age, reverse=True)
    ages = [(0, 3500), (3700, 85_000), (90_000, 600_000), (800_000, 10**9)]
    for (step, _), (young, old) in zip(LEVELS, ages, strict=True):
        steps = [a - b for a, b in pairwise(age) if young <= b and a <= old]
        assert max(steps) == pytest.approx(step, abs=120)
        assert len(steps) > 250


samples = st.lists(
    st.tuples(st.floats(0.1, 100_000), st.integers(0, 10**6), st.integers(0, 10**6)), min_size=1, max_size=60
)


@given(samples)
def test_no_extreme_and_no_arrival_is_lost(steps: list[tuple[float, int, int]]) -> None:
    at, end = 0.0, 0
    taken = []
    for wait, arrived, lag in steps:
        at, end = at + wait, end + arrived
        taken.append((at, end, lag))
    answer = filled(taken).answer("s")
    assert min(low for low in answer.lag_low if low is not None) == min(lag for _, _, lag in taken)
    assert max(high for high in answer.lag_high if high is not None) == max(lag for _, _, lag in taken)
    assert answer.offsets[-1] == end
    assert seconds(answer) == sorted(seconds(answer))
    # Offsets of a point are those of the sample at its time.
    known = {round(at, 3): end for at, end, _ in taken}
    for moment, offsets in zip(seconds(answer), answer.offsets, strict=True):
        assert offsets is None or min(abs(moment - at) for at in known) < 0.01


def test_a_time_without_samples_is_a_gap() -> None:
    answer = filled([(0, 10, 1), (10, 20, 1), (20, 30, 1), (500, 40, 2), (510, 50, 2)]).answer("s")
    assert answer.offsets == [10, 20, 30, None, 40, 50]
    assert answer.lag_low == answer.lag_high == [1, 1, 1, None, 2, 2]
    assert seconds(answer)[3] == 260.0


@pytest.mark.parametrize(
    ("topic", "at", "end"), [("another", 40, 30), ("topic", 40, 10), ("topic", -100, 30)]
)
def test_another_topic_a_lost_tail_or_another_clock_starts_again(topic: str, at: float, end: int) -> None:
    history = filled([(0, 10, 1), (10, 20, 1)])
    history.add(topic, _START + at, end, 3)
    answer = history.answer("s")
    assert (seconds(answer), answer.offsets, answer.lag_high) == ([at], [end], [3])


def test_a_clock_that_steps_back_a_little_waits() -> None:
    history = filled([(0, 10, 1), (10, 20, 1)])
    history.add("topic", _START + 5, 25, 3)
    history.add("topic", _START + 20, 30, 3)
    assert history.answer("s").offsets == [10, 20, 30]


def test_nothing_seen_is_an_empty_answer() -> None:
    answer = TrafficHistory().answer("s")
    assert answer.model_dump() == {"stream": "s", "at": [], "offsets": [], "lag_low": [], "lag_high": []}
