"""The private quantile and AboveThreshold: private by their exact distributions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from fractions import Fraction

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import stats

from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import AboveThreshold, AlreadyFired, private_quantile
from streaming_pca.privacy.mechanisms.pure import counts_at_most
from streaming_pca.privacy.randomness import noise_sampler, replace_noise_sampler
from tests.privacy.noise import FACTORS, LEVEL, MISS, ScriptedSampler

# The private quantile.


def permute_and_flip(scores: NDArray[np.int64], scale: float) -> NDArray[np.float64]:
    """Return the exact law: candidates in random order, each kept with exp((s - max)/scale)."""
    keep = np.exp((scores - scores.max()) / scale)
    out = np.zeros(scores.size)
    orders = list(itertools.permutations(range(scores.size)))
    for order in orders:
        left = 1.0
        for i in order:
            out[i] += left * keep[i]
            left *= 1 - keep[i]
    return out / len(orders)


def quantile_of(
    values: NDArray[np.float64], candidates: NDArray[np.float64], quantile: float, epsilon: float
) -> float:
    return private_quantile(counts_at_most(values, candidates), len(values), candidates, quantile, epsilon)


def asked_scores(
    values: NDArray[np.float64], quantile: float, epsilon: float
) -> tuple[NDArray[np.int64], float]:
    sampler = ScriptedSampler()
    with replace_noise_sampler(sampler):
        quantile_of(values, np.array([1.0, 2.0, 4.0, 8.0, 16.0]), quantile, epsilon)
    return sampler.scores, sampler.asked[0][2]


def follows(counts: NDArray[np.int64], p: NDArray[np.float64]) -> bool:
    """Return the result of a chi-square test at LEVEL; every expected count is above 40."""
    expected = counts.sum() * p
    assert expected.min() > 40
    return float(np.sum((counts - expected) ** 2 / expected)) <= stats.chi2(p.size - 1).isf(LEVEL)


def test_the_noisy_maximum_has_the_distribution_of_permute_and_flip() -> None:
    """8,000 draws; a scale off by 0.7 or 1.3 shifts the statistic far past its bound."""
    scores, scale, n = np.array([-3, 0, -6]), 3.0, 8000
    p = permute_and_flip(scores, scale)
    for factor in FACTORS:
        q = permute_and_flip(scores, factor * scale)
        # The statistic then has about a non-central chi-square distribution.
        shift = n * float(np.sum((q - p) ** 2 / p))
        bound = float(stats.chi2(p.size - 1).isf(LEVEL))
        assert stats.ncx2(p.size - 1, shift).cdf(bound) < MISS

    def draws(by: float) -> NDArray[np.int64]:
        return np.bincount([noise_sampler().noisy_max(scores, by) for _ in range(n)], minlength=3)

    assert follows(draws(scale), p)
    for factor in FACTORS:
        assert not follows(draws(factor * scale), p)


@settings(deadline=None)
@given(
    values=st.lists(
        st.sampled_from([0.0, 1.0, 1.5, 3.0, 5.0, 9.0, 20.0, math.inf, math.nan]), min_size=1, max_size=9
    ),
    place=st.integers(0, 8),
    new=st.sampled_from([0.0, 2.0, 4.1, 17.0, math.nan]),
    quantile=st.floats(0.01, 0.99),
    epsilon=st.sampled_from([0.1, 0.3, 1.0, 5.0]),
)
def test_the_quantile_is_epsilon_private_by_its_exact_distribution(
    values: list[float], place: int, new: float, quantile: float, epsilon: float
) -> None:
    neighbour = values.copy()
    neighbour[place % len(values)] = new
    (a, scale), (b, same_scale) = (asked_scores(np.array(v), quantile, epsilon) for v in (values, neighbour))
    assert scale == same_scale
    assert np.abs(a - b).max() <= 1
    assert Fraction(2) / Fraction(scale) <= Fraction(str(epsilon))
    p, q = permute_and_flip(a, scale), permute_and_flip(b, scale)
    bound = math.exp(epsilon) * (1 + 1e-9)
    assert (p <= bound * q).all()
    assert (q <= bound * p).all()


@pytest.mark.parametrize("epsilon", [0.07, 0.09, 0.1, 0.3])
def test_the_quantile_is_private_at_the_decimal_that_is_charged(epsilon: float) -> None:
    """The decimal counts, rather than the nearest float."""
    _, scale = asked_scores(np.ones(3), 0.5, epsilon)
    assert Fraction(2) / Fraction(scale) <= Fraction(str(epsilon))


def test_half_the_noise_of_the_quantile_would_break_its_promise() -> None:
    """The bound is nearly met: records at 0.5, 3 and 20, one moving from last to first."""
    epsilon = 1.0
    worst = {1.0: 0.0, 0.5: 0.0}
    for low, middle, high in itertools.product((0, 6), (2, 12, 24), (1, 8)):
        values = np.repeat([0.5, 3.0, 20.0], [low, middle, high])
        neighbour = np.repeat([0.5, 3.0, 20.0], [low + 1, middle, high - 1])
        for factor in worst:
            p, q = (
                permute_and_flip(scores, factor * scale)
                for scores, scale in (asked_scores(v, 0.3, epsilon) for v in (values, neighbour))
            )
            worst[factor] = max(worst[factor], math.log(max((p / q).max(), (q / p).max())))
    assert 0.8 * epsilon <= worst[1.0] <= epsilon < 1.5 * epsilon <= worst[0.5]


@pytest.mark.parametrize("quantile", [0.5, 0.9, 0.99])
def test_the_quantile_is_close_at_moderate_size(quantile: float) -> None:
    """A candidate r ranks from the target has probability at most e^(-r epsilon/2): 50 ranks, 1e-9."""
    values = np.random.default_rng(4).exponential(size=5000)
    candidates = np.geomspace(1e-3, 1e3, 100)
    found = quantile_of(values, candidates, quantile, 1.0)
    target = math.ceil(quantile * values.size)
    counts = np.searchsorted(np.sort(values), candidates, side="right")
    best = np.abs(counts - target).min()
    assert found in candidates
    assert abs(int((values <= found).sum()) - target) <= best + 50


def test_a_quantile_of_no_records_is_one_of_the_candidates() -> None:
    assert quantile_of(np.zeros(0), np.array([1.0, 2.0]), 0.5, 1.0) in (1.0, 2.0)


def test_the_order_of_values_and_their_bits_below_the_candidates_tell_nothing() -> None:
    """The mechanism only learns which candidates are above a value."""
    values = np.array([0.3, 1.7, 3.0, -0.0, 9.0])
    scores, _ = asked_scores(values, 0.5, 1.0)
    moved, _ = asked_scores(np.array([9.5, 0.0, 2.1, 1.2, -1e300]), 0.5, 1.0)
    assert np.array_equal(scores, moved)


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        *(({"epsilon": bad}, "epsilon") for bad in (0.0, -1.0, math.nan, math.inf, 1e-320)),
        *(({"quantile": bad}, "quantile") for bad in (0.0, 1.0, math.nan, -0.5)),
        *(
            ({"candidates": np.array(bad)}, "candidates")
            for bad in ([], [1.0, 1.0], [2.0, 1.0], [1.0, math.nan], [1.0, math.inf], [[1.0]])
        ),
        *(
            ({"counts": np.array(bad)}, "counts")
            for bad in ([], [1], [1.0, 2.0], [2, 1], [-1, 2], [1, 4], [[1, 2]])
        ),
    ],
)
def test_a_bad_parameter_of_the_quantile_is_named(changes: dict[str, object], name: str) -> None:
    counts, candidates = np.array([1, 3]), np.array([1.0, 2.0])
    good = {"counts": counts, "size": 3, "candidates": candidates, "quantile": 0.5, "epsilon": 1.0}
    assert private_quantile(**good) in (1.0, 2.0)
    with pytest.raises(ParameterError, match=f"^{name} "):
        private_quantile(**{**good, **changes})


# AboveThreshold.


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
            with pytest.raises(AlreadyFired, match="a new one, with its own epsilon"):
                alarm.ask(4)


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
    with pytest.raises(ParameterError, match=f"^{name} "):
        make()


def test_an_error_about_a_query_does_not_show_it() -> None:
    with pytest.raises(ParameterError, match=r"^query must be an int, not float$"):
        AboveThreshold(1, 1.0).ask(123.25)  # type: ignore[arg-type]
