"""The stability histogram, by exact or two-sided tests."""

from __future__ import annotations

import itertools
import math

import mpmath
import numpy as np
import pytest

from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.mechanisms import laplace_scale, stability_histogram, stability_threshold
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
        p, q = (mpmath.fprod(x.get(value, 0) for x, value in zip(s, answer, strict=True)) for s in laws)
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
    for factor in (1.0, *FACTORS):
        assert has_scale(noise, factor * 2 / epsilon, "laplace") == (factor == 1.0)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *(
            (lambda bad=bad: stability_histogram([1], bad, 0.1), "epsilon")
            for bad in (0.0, -1, math.nan, math.inf)
        ),
        *((lambda bad=bad: stability_histogram([1], 1.0, bad), "delta") for bad in (0.0, 1.0, math.nan, 2.0)),
        (lambda: stability_threshold(1e-300, 0.1), "epsilon"),
    ],
)
def test_a_bad_parameter_is_named(make: object, name: str) -> None:
    assert callable(make)
    with pytest.raises(ParameterError, match=rf"^{name} "):
        make()
