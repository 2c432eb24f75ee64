"""The stability histogram and the histogram over public bins: exact or two-sided tests."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import (
    gaussian_histogram,
    gaussian_histogram_argmax,
    laplace_histogram,
    laplace_scale,
    stability_histogram,
    stability_threshold,
)
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.privacy.noise import FACTORS, MISS, ScriptedSampler, has_scale, missed

EPSILONS = [0.01, 0.3, 1.0, 4.0, 60.0]
DELTAS = [1e-300, 1e-9, 1e-4, 0.3, 0.9]


def law(count: int, epsilon: float, threshold: int, reach: int) -> dict[int | None, mpmath.mpf]:
    """Return the law of a bin of ``count`` records: its noisy count, or None."""
    q = mpmath.exp(-1 / mpmath.mpf(laplace_scale(2, epsilon)))
    if count == 0:
        return {None: mpmath.mpf(1)}
    out: dict[int | None, mpmath.mpf] = {
        value: q ** abs(value - count) * (1 - q) / (1 + q) for value in range(threshold, threshold + reach)
    }
    # One value covers everything beyond the reach: ratios of tails equal the ratio of their first terms.
    out[threshold + reach] = q ** (threshold + reach - count) / (1 + q)
    out[None] = 1 - mpmath.fsum(out.values())
    return out


def delta_between(one: list[int], other: list[int], epsilon: float, threshold: int) -> mpmath.mpf:
    """Return the exact delta of the differing bins, at epsilon, from the first side."""
    reach = max(*one, *other) + 4
    laws = [[law(n, epsilon, threshold, reach) for n in side] for side in (one, other)]
    factor = mpmath.exp(epsilon)
    total = mpmath.mpf(0)
    for answer in itertools.product(*(set(a) | set(b) for a, b in zip(*laws, strict=True))):
        p, q = (
            mpmath.fprod(bin_.get(value, 0) for bin_, value in zip(side, answer, strict=True))
            for side in laws
        )
        total += max(p - factor * q, 0)
    return total


@pytest.mark.parametrize(
    ("epsilon", "delta"), [(0.7, 1e-2), (1.5, 1e-4), (1.0, 0.2), (3.0, 1e-6), (0.5, 0.9)]
)
def test_the_stability_histogram_is_private_by_its_exact_distribution(epsilon: float, delta: float) -> None:
    """There are two bins of a and b records. One record moves, becomes null, or appears: both ways."""
    threshold = stability_threshold(epsilon, delta)
    counts = sorted({0, 1, 2, threshold - 1, threshold + 2})
    worst = mpmath.mpf(0)
    with mpmath.workdps(40):
        for a, b in itertools.product(counts, counts):
            for before, after in [([a + 1, b], [a, b + 1]), ([a + 1], [a])]:
                for one, other in ((before, after), (after, before)):
                    found = delta_between(one, other, epsilon, threshold)
                    assert found <= mpmath.mpf(delta) + mpmath.mpf("1e-30")
                    worst = max(worst, found)
        # It is spent, too: by a bin of one record that vanishes while another appears.
        q = mpmath.exp(-1 / mpmath.mpf(laplace_scale(2, epsilon)))
        assert worst >= q * min(mpmath.mpf(delta), 1 - q) * (1 - mpmath.mpf("1e-9"))
        lower = delta_between([1, 0], [0, 1], epsilon, threshold - 1) if threshold > 2 else mpmath.mpf(1)
        assert lower > min(mpmath.mpf(delta), 1 - q) * (1 - mpmath.mpf("1e-9"))


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_the_threshold_is_the_least_that_the_exact_tail_allows(epsilon: float, delta: float) -> None:
    threshold = stability_threshold(epsilon, delta)
    with mpmath.workdps(60):
        q = mpmath.exp(-1 / mpmath.mpf(laplace_scale(2, epsilon)))
        allowed = min(mpmath.mpf(repr(delta)), mpmath.mpf(delta), 1 - q)
        assert q ** (threshold - 1) / (1 + q) <= allowed
        assert threshold == 2 or q ** (threshold - 2) / (1 + q) > allowed


def test_keys_come_out_in_their_order_whatever_the_order_of_records() -> None:
    keys = [f"k{i}" for i in range(50) for _ in range(500)]
    shuffled = [keys[i] for i in np.random.default_rng(0).permutation(len(keys))]
    # 500 records against a threshold of about 29: one is hidden with probability below e**-235.
    assert list(stability_histogram(shuffled, 1.0, 1e-6)) == sorted(set(keys))
    assert list(stability_histogram([b"b"] * 500 + [b"a"] * 500, 1.0, 1e-6)) == [b"a", b"b"]
    assert list(stability_histogram([(2, 1)] * 500 + [(1, 5)] * 500, 1.0, 1e-6)) == [(1, 5), (2, 1)]


def test_rare_keys_and_null_records_are_not_shown() -> None:
    """The chance that one of 1,000 single keys is shown is below 1e-7."""
    assert stability_histogram([*range(1000), *[None] * 5000], 1.0, 1e-10) == {}
    assert stability_histogram([], 1.0, 1e-6) == {}


def test_a_count_at_the_threshold_is_shown_and_one_below_is_not() -> None:
    threshold = stability_threshold(1.0, 1e-6)
    with replace_noise_sampler(ScriptedSampler()):
        found = stability_histogram([1] * threshold + [2] * (threshold - 1), 1.0, 1e-6)
    assert found == {1: threshold}


def test_every_key_gets_noise_of_its_own_at_the_stated_scale() -> None:
    keys, each, epsilon = 800, 500, 0.2
    counts: list[int] = []
    for _ in range(3):
        # 500 records at a scale of 10 and a threshold below 100: one is hidden with probability e**-40.
        counts += stability_histogram(list(range(keys)) * each, epsilon, 1e-4).values()
    noise = np.array(counts) - each
    assert max(missed(noise.size, "laplace", f) for f in FACTORS) < MISS
    assert has_scale(noise, 2 / epsilon, "laplace")
    assert not has_scale(noise, 0.7 * 2 / epsilon, "laplace")
    assert not has_scale(noise, 1.3 * 2 / epsilon, "laplace")


# Public bins.


def test_counts_of_public_bins_are_exact_but_for_the_noise() -> None:
    bins = np.array([0, 2, 2, -1, 3, 99, -(2**63), 2**63 - 1, 2])
    with replace_noise_sampler(ScriptedSampler()):
        assert gaussian_histogram(bins, 4, 0.5).tolist() == [1, 0, 3, 1]
        assert gaussian_histogram(bins[:0], 2, 0.5).tolist() == [0, 0]
        assert gaussian_histogram_argmax(bins, 4, 0.5) == 2


def test_counts_with_laplace_noise_are_exact_but_for_the_noise() -> None:
    bins = np.array([0, 2, 2, -1, 3, 99, -(2**63), 2**63 - 1, 2])
    with replace_noise_sampler(ScriptedSampler()):
        assert laplace_histogram(bins, 4, 0.5).tolist() == [1, 0, 3, 1]
        assert laplace_histogram(bins[:0], 2, 0.5).tolist() == [0, 0]


@settings(max_examples=100, deadline=None)
@given(
    bins=st.lists(st.integers(-2, 6), min_size=1, max_size=20),
    place=st.integers(0, 19),
    new=st.integers(-2, 6),
    epsilon=st.floats(1e-9, 500),
)
def test_the_laplace_histogram_is_private_by_its_exact_law(
    bins: list[int], place: int, new: int, epsilon: float
) -> None:
    """Discrete Laplace noise of scale s on counts that differ by c in L1: a ratio of e^(c/s) at most."""
    neighbour = bins.copy()
    neighbour[place % len(bins)] = new
    sampler = ScriptedSampler()
    with replace_noise_sampler(sampler):
        one, other = (laplace_histogram(np.array(b, dtype=np.int64), 5, epsilon) for b in (bins, neighbour))
    apart = int(np.sum(np.abs(one - other)))
    assert apart <= 2
    (kind, size, scale), _ = sampler.asked
    assert (kind, size) == ("laplace", 5)
    with mpmath.workdps(60):
        assert 2 / mpmath.mpf(scale) <= min(mpmath.mpf(repr(epsilon)), mpmath.mpf(epsilon))
    assert scale == pytest.approx(2 / epsilon, rel=1e-12)


def test_laplace_noise_on_public_bins_has_the_stated_scale() -> None:
    n, epsilon = 3000, 0.002
    noise = laplace_histogram(np.arange(n), n, epsilon) - 1
    assert max(missed(noise.size, "laplace", f) for f in FACTORS) < MISS
    assert has_scale(noise, 2 / epsilon, "laplace")
    for factor in FACTORS:
        assert not has_scale(noise, factor * 2 / epsilon, "laplace")


@settings(max_examples=100, deadline=None)
@given(
    bins=st.lists(st.integers(-2, 6), min_size=1, max_size=20),
    place=st.integers(0, 19),
    new=st.integers(-2, 6),
    rho=st.floats(1e-9, 1e9),
)
def test_replacing_a_record_moves_the_counts_by_at_most_the_root_of_two(
    bins: list[int], place: int, new: int, rho: float
) -> None:
    neighbour = bins.copy()
    neighbour[place % len(bins)] = new
    sampler = ScriptedSampler()
    with replace_noise_sampler(sampler):
        one, other = (gaussian_histogram(np.array(b, dtype=np.int64), 5, rho) for b in (bins, neighbour))
    squared = int(np.sum((one - other) ** 2))
    assert squared <= 2
    (_, size, sigma), _ = sampler.asked
    assert size == 5
    # In exact numbers: 2/(2 sigma^2) <= rho.
    with mpmath.workdps(60):
        assert 1 / mpmath.mpf(sigma) ** 2 <= min(mpmath.mpf(repr(rho)), mpmath.mpf(rho))
    assert sigma == pytest.approx(1 / math.sqrt(rho), rel=1e-15)


def test_noise_on_public_bins_has_the_stated_scale() -> None:
    n, rho = 2000, 1e-6
    noise = gaussian_histogram(np.arange(n), n, rho) - 1
    assert has_scale(noise, 1 / math.sqrt(rho))
    for factor in FACTORS:
        assert not has_scale(noise, factor / math.sqrt(rho))


def test_the_fullest_bin_is_found_when_it_stands_out() -> None:
    """It leads by 400 records at noise of 10: missed with probability below e**-390."""
    bins = np.repeat(np.arange(6), [10, 500, 20, 900, 30, 0])
    assert gaussian_histogram_argmax(bins, 6, 0.01) == 3


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *(
            (lambda bad=bad: stability_histogram([1], bad, 0.1), "epsilon")
            for bad in (0.0, -1, math.nan, math.inf)
        ),
        *((lambda bad=bad: stability_histogram([1], 1.0, bad), "delta") for bad in (0.0, 1.0, math.nan, 2.0)),
        (lambda: stability_threshold(1e-300, 0.1), "epsilon"),
        *((lambda bad=bad: gaussian_histogram(np.zeros(1, int), bad, 1.0), "n_bins") for bad in (0, -1, 1.5)),
        *(
            (lambda bad=bad: gaussian_histogram(np.zeros(1, int), 2, bad), "rho")
            for bad in (0.0, -1.0, math.nan, math.inf)
        ),
        *((lambda bad=bad: laplace_histogram(np.zeros(1, int), bad, 1.0), "n_bins") for bad in (0, -1, 1.5)),
        *(
            (lambda bad=bad: laplace_histogram(np.zeros(1, int), 2, bad), "epsilon")
            for bad in (0.0, -1.0, math.nan, math.inf)
        ),
        (lambda: laplace_histogram(np.zeros(2), 2, 1.0), "bins"),
        (lambda: laplace_histogram(np.zeros((2, 2), int), 2, 1.0), "bins"),
        (lambda: gaussian_histogram(np.zeros(2), 2, 1.0), "bins"),
        (lambda: gaussian_histogram(np.zeros((2, 2), int), 2, 1.0), "bins"),
    ],
)
def test_a_bad_parameter_is_named(make: object, name: str) -> None:
    assert callable(make)
    with pytest.raises(ParameterError, match=rf"^{name} "):
        make()
