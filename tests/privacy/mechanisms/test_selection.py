"""AboveThreshold is private by its exact distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import AboveThreshold
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.data.refusals import refuses
from tests.privacy.noise import LEVEL, ScriptedSampler


def laplace(scale: float, reach: int) -> Iterator[tuple[int, mpmath.mpf]]:
    q = mpmath.exp(-1 / mpmath.mpf(scale))
    for j in range(-reach, reach + 1):
        yield j, q ** abs(j) * (1 - q) / (1 + q)


def at_least(t: int, scale: float) -> mpmath.mpf:
    """Return P(N >= t) of discrete Laplace noise."""
    q = mpmath.exp(-1 / mpmath.mpf(scale))
    return q**t / (1 + q) if t >= 1 else 1 - q ** (1 - t) / (1 + q)


def answers(queries: list[int], threshold: int, epsilon: float, sensitivity: int) -> list[mpmath.mpf]:
    """Return P(first "above" at query i), and last P(never), by the mechanism's docstring."""
    out = [mpmath.mpf(0)] * (len(queries) + 1)
    for r, p in laplace(2 * sensitivity / epsilon, 200):
        left = p
        for i, query in enumerate(queries):
            above = at_least(threshold + r - query, 4 * sensitivity / epsilon)
            out[i] += left * above
            left *= 1 - above
        out[-1] += left
    return out


@settings(max_examples=15, deadline=None)
@given(
    queries=st.lists(st.integers(-20, 20), min_size=1, max_size=6),
    moves=st.lists(st.integers(-2, 2), min_size=6, max_size=6),
    epsilon=st.sampled_from([0.5, 1.0, 3.0]),
)
def test_above_threshold_is_epsilon_private_by_its_exact_distribution(
    queries: list[int], moves: list[int], epsilon: float
) -> None:
    """Every sequence of answers is compared, on neighbours whose queries differ by up to 2."""
    neighbour = [q + m for q, m in zip(queries, moves, strict=False)]
    for p, q in zip(answers(queries, 3, epsilon, 2), answers(neighbour, 3, epsilon, 2), strict=True):
        assert abs(mpmath.log(p / q)) <= epsilon * (1 + 1e-9)


def test_half_the_noise_of_above_threshold_would_break_its_promise() -> None:
    """A million rising queries before a falling query that fires spend nearly the whole epsilon."""

    def fires_last(quiet: int, last: int, epsilon: float) -> mpmath.mpf:
        return mpmath.fsum(
            p * (1 - at_least(r - quiet, 4 / epsilon)) ** 10**6 * at_least(r - last, 4 / epsilon)
            for r, p in laplace(2 / epsilon, 300)
        )

    loss = [mpmath.log(fires_last(-10, -50, eps) / fires_last(-9, -51, eps)) for eps in (1.0, 2.0)]
    assert 0.9 <= loss[0] <= 1.0
    assert 1.8 <= loss[1]


def test_above_threshold_answers_with_the_distribution_that_was_proved() -> None:
    """2,500 runs agree with the exact law (chi-square at LEVEL), which other noise would miss."""
    queries, threshold, epsilon, n = [-4, 2, 0, 5], 3, 1.0, 2500
    expected = np.array([float(p) for p in answers(queries, threshold, epsilon, 1)]) * n
    assert expected.min() > 40
    bound = float(stats.chi2(expected.size - 1).isf(LEVEL))

    def misfit(scale: float) -> float:
        observed = np.zeros(expected.size)
        for _ in range(n):
            alarm = AboveThreshold(threshold, epsilon * scale)
            observed[next((i for i, q in enumerate(queries) if alarm.ask(q)), len(queries))] += 1
        return float(np.sum((observed - expected) ** 2 / expected))

    assert misfit(1.0) <= bound
    for factor in (0.4, 2.5):
        other = np.array([float(p) for p in answers(queries, threshold, epsilon * factor, 1)]) * n
        shift = float(np.sum((other - expected) ** 2 / expected))
        assert stats.ncx2(expected.size - 1, shift).cdf(bound) < 1e-6
        assert misfit(factor) > bound


def test_the_threshold_is_drawn_once_and_every_query_afresh() -> None:
    sampler = ScriptedSampler(lambda size, scale: np.arange(size, dtype=np.int64))
    with replace_noise_sampler(sampler):
        alarm = AboveThreshold(10**6, 0.5, sensitivity=3)
        assert not any(alarm.ask(0) for _ in range(130))
    sizes = [size for _, size, _ in sampler.asked]
    assert sizes[0] == 1
    assert sum(sizes[1:]) >= 130
    assert {scale for _, _, scale in sampler.asked[:1]} == {12.0}
    assert {scale for _, _, scale in sampler.asked[1:]} == {24.0}


def test_above_threshold_stops_at_its_first_alarm() -> None:
    with replace_noise_sampler(ScriptedSampler()):
        alarm = AboveThreshold(5, 1.0)
        assert [alarm.ask(q) for q in (4, 0, -3, 5)] == [False, False, False, True]
        assert alarm.fired
        for _ in range(2):
            refuses("a new one, with its own epsilon", alarm.ask, 4, error=RuntimeError)


def test_any_number_of_quiet_answers_may_be_asked() -> None:
    """10**4 queries are 10**6 below: one fires with probability below e**-(10**5) (250,000 scales)."""
    alarm = AboveThreshold(10**6, 1.0)
    assert not any(alarm.ask(0) for _ in range(10**4))
    assert not alarm.fired


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *(
            (lambda bad=bad: AboveThreshold(1, bad), "epsilon")
            for bad in (0.0, -1.0, math.nan, math.inf, 1e-13)
        ),
        *((lambda bad=bad: AboveThreshold(1, 1.0, bad), "sensitivity") for bad in (0, -1, 1.5, math.nan)),
        *((lambda bad=bad: AboveThreshold(bad, 1.0), "threshold") for bad in (1.5, math.nan, True, "1")),
        *((lambda bad=bad: AboveThreshold(1, 1.0).ask(bad), "query") for bad in (1.5, math.nan, True)),
    ],
)
def test_a_bad_parameter_of_above_threshold_is_named(make: object, name: str) -> None:
    assert callable(make)
    refuses(f"^{name} ", make, error=ParameterError)


def test_an_error_about_a_query_does_not_show_it() -> None:
    refuses(r"^query must be an int, not float$", AboveThreshold(1, 1.0).ask, 123.25, error=ParameterError)
