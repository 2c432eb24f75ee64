"""Private counts of sizes: each has its stated sensitivity, and quantiles and tails follow from them.

Tests add noise only where they mention it; the seeds of data and noise are fixed.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayValues
from streaming_pca.estimators.common import budget as budget_module
from streaming_pca.estimators.common import norm_distribution as module
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.norm_distribution import (
    NormCounts,
    NormDistribution,
    norm_shares,
    private_norm_distribution,
    private_quantile_radius,
)
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Call, Floats, differing, watched
from tests.privacy.noise import ScriptedSampler, SeededSampler

LOW, HIGH = 2.0**-40, 2.0**60
BIN = 2 ** (1 / 8)
Z = 4.2
SHARES = (0.03, 0.05)
QUERIES = 11
"""Queries for 100 octaves of 8 steps: one for the null records, at most ten for the median."""


def found(
    sizes: Floats, low: float = LOW, high: float = HIGH, seed: int | None = None, multiplier: float = Z
) -> NormDistribution:
    sampler = ScriptedSampler() if seed is None else SeededSampler(seed)
    with replace_noise_sampler(sampler):
        return private_norm_distribution(ArrayValues(sizes), low, high, Budget(multiplier, 1.0), SHARES)


def counts(sizes: Floats, answers: list[Any] | None = None) -> list[Call]:
    with replace_noise_sampler(SeededSampler(0)), watched(answers) as seen:
        private_norm_distribution(ArrayValues(sizes), LOW, HIGH, Budget(Z, 1.0), SHARES)
    return seen


def check(distribution: NormDistribution) -> None:
    radii, above = distribution.radii, distribution.above
    assert radii.shape == above.shape
    assert radii.size > 0
    assert np.isfinite(radii).all()
    assert radii[0] > 0
    assert (np.diff(radii) > 0).all()
    assert (np.diff(above) <= 0).all()
    assert ((above >= 0) & (above <= 1)).all()
    assert 0 < distribution.present <= 1
    for q in (0.5, 0.9, 0.999):
        weight = distribution.mean_weight(distribution.quantile(q))
        assert 0 <= weight <= 1 + 1e-12
        assert distribution.quantile(q) in radii
        assert distribution.squared_excess(distribution.quantile(q)) >= 0
    excess = distribution.excess(radii)
    assert np.isfinite(excess).all()
    assert (excess >= 0).all()
    assert (np.diff(excess) <= 0).all()


anything = st.one_of(
    st.sampled_from([0.0, math.nan, math.inf, 5e-324, 1.0, LOW, HIGH, 1.7e308]),
    st.floats(0, 1.7e308),
    st.floats(0.5, 2.0),
)


@settings(deadline=None)
@given(
    values=st.lists(anything, max_size=30),
    times=st.sampled_from([1, 40]),
    multiplier=st.sampled_from([0.2, 4.0, 400.0]),
    span=st.sampled_from([(LOW, HIGH), (1.0, 1.0000001), (1e-230, 1e70), (3.0, 1e5)]),
    seed=st.integers(0, 99),
)
def test_any_sizes_and_any_noise_give_a_distribution(
    values: list[float], times: int, multiplier: float, span: tuple[float, float], seed: int
) -> None:
    check(found(np.array(values * times), *span, seed, multiplier))


@settings(max_examples=80, deadline=None)
@given(values=st.lists(anything, min_size=5, max_size=30), place=st.integers(0, 29), new=anything)
def test_a_replaced_record_moves_a_count_by_one_and_the_histogram_by_one_bin_for_another(
    values: list[float], place: int, new: float
) -> None:
    """Equal earlier answers lead to the same questions with the same noise."""
    sizes = np.array(values)
    neighbour = sizes.copy()
    neighbour[place % len(values)] = new
    one = counts(sizes)
    other = counts(neighbour, [call.answer for call in one])
    grain = budget_module._GRAIN
    budget = Budget(Z, 1.0)
    for a, b in zip(one, other, strict=True):
        (sigma,), single = a.args, a.values.size == 1
        assert differing(a, b) <= (1 if single else 2) * grain**2
        share = SHARES[0] / QUERIES if single else SHARES[1]
        sensitivity = float(grain) if single else math.sqrt(2) * grain * module._UP
        assert sigma == budget.sigma(budget.take(share), sensitivity)
        assert sigma >= Z / math.sqrt(share) * grain * (1 if single else math.sqrt(2))
    assert budget.left >= (1 - sum(SHARES)) * 1e6


def test_no_more_is_asked_than_was_reckoned_with() -> None:
    for sizes in (np.ones(50), np.zeros(9), law("chi2")):
        asked = [call.values.size for call in counts(sizes)]
        assert asked in ([1] * QUERIES + [12], [1] * (QUERIES - 1) + [12])


DRAWS = 40_000


def law(name: str) -> Floats:
    rng = utility_generator(5)
    return {
        "normal": lambda: np.exp(rng.standard_normal(DRAWS)),
        "chi2": lambda: rng.chisquare(5, DRAWS),
        "pareto 3": lambda: 1 + rng.pareto(3, DRAWS),
        "pareto 1.5": lambda: 1 + rng.pareto(1.5, DRAWS),
        "uniform": lambda: rng.random(DRAWS),
        "half of it null": lambda: rng.chisquare(5, DRAWS) * (rng.random(DRAWS) < 0.5),
    }[name]()


LAW_NAMES = ["normal", "chi2", "pareto 3", "pareto 1.5", "uniform", "half of it null"]
noises = pytest.mark.parametrize("seed", [None, 0, 1])


@pytest.mark.parametrize("name", LAW_NAMES)
@noises
def test_quantiles_are_found(name: str, seed: int | None) -> None:
    """The median is within a step of 9% (two with noise); the tail is within its half or whole octave."""
    sizes = law(name)
    distribution = found(sizes, seed=seed)
    check(distribution)
    filled = sizes[sizes > 0]
    assert distribution.present == pytest.approx(filled.size / sizes.size, abs=0.01)
    median = float(np.median(filled))
    steps = 1 if seed is None else 2
    assert median / BIN ** (steps - 1) <= distribution.radii[0] <= median * BIN**steps
    for q in (0.9, 0.99):
        exact = float(np.quantile(filled, q))
        assert exact / 1.5 <= distribution.quantile(q) <= exact * 1.5


@pytest.mark.parametrize("name", LAW_NAMES)
@noises
def test_the_mean_weight_is_near(name: str, seed: int | None) -> None:
    sizes = law(name)
    distribution = found(sizes, seed=seed)
    for q in (0.5, 0.9):
        radius = max(float(np.quantile(sizes[sizes > 0], q)), float(distribution.radii[0]))
        weight = float(np.minimum(1, radius / np.maximum(sizes, 1e-300)).mean())
        assert weight * 0.93 < distribution.mean_weight(radius) < weight * 1.06


@pytest.mark.parametrize("name", ["normal", "chi2", "pareto 3", "pareto 1.5"])
def test_the_excess_of_heavy_and_light_tails_is_known_to_a_factor(name: str) -> None:
    sizes = law(name)
    distribution = found(sizes)
    for q, factor in ((0.5, 1.3), (0.9, 1.5), (0.99, 4.0)):
        radius = max(float(np.quantile(sizes, q)), float(distribution.radii[0]))
        excess = float(np.maximum(sizes - radius, 0).mean())
        # The distribution beyond the last filled bin is unknown.
        assert excess / factor < float(distribution.excess(radius)) < excess * 1.3


@pytest.mark.parametrize("quantile", [0.05, 0.2, 0.5, 0.75, 0.95])
@noises
def test_any_quantile_can_be_looked_for(quantile: float, seed: int | None) -> None:
    sizes = law("half of it null")
    with replace_noise_sampler(ScriptedSampler() if seed is None else SeededSampler(seed)):
        values, budget = ArrayValues(sizes), Budget(Z, 1.0)
        radius, present = private_quantile_radius(values, LOW, HIGH, quantile, budget, 0.03)
    assert present == pytest.approx(0.5, abs=0.02)
    inside = float(np.mean(sizes[sizes > 0] <= radius))
    # 9% of a radius contains up to this share of the records.
    assert quantile - 0.05 <= inside <= quantile + 0.1


def test_sizes_all_alike_need_no_more_than_their_step() -> None:
    for size in (1.0, 5.0, 3e-9, 7e12):
        distribution = found(np.full(2000, size))
        check(distribution)
        assert distribution.present == 1
        assert size / BIN < distribution.quantile(0.5) <= size * BIN
        assert distribution.quantile(0.99) <= size * 1.5
        assert float(distribution.excess(size * BIN)) < 0.01 * size


def test_null_records_have_no_size_and_are_counted_as_such() -> None:
    sizes = np.zeros(4000)
    for filled in (0, 400):
        sizes[:filled] = 2.0
        distribution = found(utility_generator(1).permutation(sizes))
        check(distribution)
        assert distribution.present == pytest.approx(filled / 4000, abs=0.021)
        if filled:
            assert 2 <= distribution.quantile(0.5) <= 2 * BIN
            assert distribution.mean_weight(4.0) == pytest.approx(1.0, abs=0.01)
        else:
            assert float(distribution.excess(distribution.radii[0])) == 0
            assert distribution.mean_weight(distribution.quantile(0.5)) == 1


@pytest.mark.parametrize("m", [0, 1, 2, 3, 4, 10])
def test_hardly_any_records_still_give_a_radius(m: int) -> None:
    check(found(np.full(m, 3.0)))
    for seed in range(10):
        check(found(np.full(m, 3.0), seed=seed, multiplier=40.0))


@pytest.mark.parametrize(("size", "present"), [(1e9, 1.0), (1e-9, 0.02)])
def test_sizes_above_the_range_are_at_its_end_and_those_below_are_null(size: float, present: float) -> None:
    distribution = found(np.full(2000, size), 1.0, 100.0)
    check(distribution)
    assert distribution.present == pytest.approx(present)
    assert size < 1 or distribution.quantile(0.5) == 100


def test_what_overflowed_does_not_move_the_bulk() -> None:
    for bad in (math.nan, math.inf):
        sizes = np.ones(4000)
        sizes[:40] = bad
        distribution = found(utility_generator(2).permutation(sizes))
        check(distribution)
        assert 1 <= distribution.quantile(0.5) <= BIN


@pytest.mark.parametrize("size", [30.0, 1000.0, math.inf])
def test_large_records_are_seen_across_a_gap(size: float) -> None:
    """400 large records are found in each of 20 seeds; the noise is sqrt(2) 4.2/sqrt(0.05) = 27."""
    sizes = np.ones(40_000)
    sizes[:400] = size
    sizes = utility_generator(2).permutation(sizes)
    for seed in range(20):
        assert float(found(sizes, seed=seed).share_above(14.0)) == pytest.approx(0.01, rel=0.5)


def test_a_few_large_records_do_not_move_the_bulk() -> None:
    """Noise has 30 fixed seeds; 10 records in 20,000 are 2^50 times as large as the others."""
    sizes = utility_generator(3).permutation(np.concatenate([np.full(19_990, 1.0), np.full(10, 2.0**50)]))
    for seed in range(30):
        distribution = found(sizes, seed=seed)
        assert 1 <= distribution.quantile(0.5) <= BIN**2
        assert distribution.quantile(0.9) <= 1.5


def test_noise_alone_makes_no_tail() -> None:
    """200 seeds: empty bins count as filled above 2 deviations in a row, or 5 anywhere."""
    sizes = np.ones(20_000)
    ends = np.array([float(found(sizes, seed=seed).share_above(2.0)) for seed in range(200)])
    assert np.mean(ends > 0) < 0.1
    assert ends.max() < 0.01


@settings(deadline=None)
@given(count=st.integers(0, 10**7), multiplier=st.floats(0.01, 1e3), part=st.sampled_from([1.0, 0.5, 0.25]))
def test_shares_lie_between_their_limits(count: int, multiplier: float, part: float) -> None:
    median, tail = norm_shares(count, multiplier, part)
    assert 0.002 * part <= median <= 0.2 * part
    if count >= 208 * multiplier:
        assert median <= 0.03 * part
    assert 0.008 * part <= tail <= 0.16 * part
    more, tails = norm_shares(2 * count, multiplier, part)
    assert more <= median
    assert tails <= tail


def test_bins_that_show_records_together_are_in_what_hides() -> None:
    """Each bin is below the limit for filled ones; three of them in a row are above it."""
    one, many = np.zeros(module.BINS), np.zeros(module.BINS)
    one[:2] = many[:2] = [4000.0, 1000.0]
    one[5], many[4:7] = 160.0, 120.0
    radii, excess = np.array([1.0, 2.0]), np.array([0.5, 0.1])
    hidden = [
        module.NormCounts(1.0, 1.0, counts, 50.0**2, 10_000.0).tail(radii, excess, 1.0).hidden
        for counts in (one, many)
    ]
    assert hidden[0] < 0.12
    assert hidden[1] > 120 * (2**2.5 + 2**3.5 + 2**4.5) / 10_000


def test_counts_of_few_norms_above_zero_are_coarse() -> None:
    for present, is_coarse in ((0.9, False), (0.1, True)):
        counts = NormCounts(1.0, present, np.zeros(12), 30.0**2, 5000.0)
        assert counts.tail(np.ones(1), np.zeros(1), 1.0).is_coarse is is_coarse


def test_noise_beyond_the_bounds_is_not_taken_for_records() -> None:
    """The bound of a row's norm is two octaves above the median; the bins' noise has a deviation of 100."""
    known = NormCounts(1.0, 1.0, np.zeros(12), 100.0**2, 100_000.0)
    noisy = replace(known, counts=np.array([40_000, 9_000, 1_000, *[0] * 7, 550.0, -120.0]))
    assert noisy.tail(np.ones(1), np.ones(1), 1.0).hidden > 1
    assert noisy.within(4.0).tail(np.ones(1), np.ones(1), 1.0).hidden < 0.01
    # Records of several rows may be longer than the bound of one row.
    long = replace(known, counts=np.array([40_000, 9_000, 1_000, 0, 0, 700.0, *[0] * 6]))
    assert long.within(4.0) is long
    few = replace(known, counts=np.array([40_000, 9_000, 1_000, 0, 0, 500.0, *[0] * 6]))
    assert few.within(4.0).counts.tolist() == [40_000, 9_000, 1_000, *[0] * 9]


@pytest.mark.parametrize(("deviation", "is_coarse"), [(0.019, False), (0.021, True)])
def test_counts_of_much_noise_do_not_show_a_tail(deviation: float, is_coarse: bool) -> None:
    known = NormCounts(1.0, 1.0, np.array([400.0, *[0.0] * 11]), (1000 * deviation) ** 2, 1000.0)
    tail = known.tail(np.ones(1), np.full(1, 0.1), 1.0)
    assert tail.is_coarse == is_coarse
    # The next bins, of norms 1.7 and 2.4, hide two deviations each instead of half of one in the first.
    hidden = 2 * deviation * (2**0.75 + 2**1.25) if is_coarse else 0.5 * deviation * 2**0.75
    wide = 0.4 * (2**0.25 - 1) / 2
    assert tail.hidden == pytest.approx(math.hypot(hidden, wide))


def test_counts_are_averaged_as_shares_with_the_weights_of_the_sums() -> None:
    """A variance has the square of the weight: after half-lives of one batch, shares of 1/3 and 2/3."""
    first = module.NormCounts(1.0, 1.0, np.full(module.BINS, 300.0), 50.0, 1000.0)
    second = module.NormCounts(1.0, 0.5, np.full(module.BINS, 400.0), 80.0, 4000.0)
    both = first.averaged(second, 2 / 3)
    np.testing.assert_allclose(both.counts / both.records, 0.3 / 3 + 0.1 * 2 / 3)
    assert both.variance / both.records**2 == pytest.approx((50 / 1000**2 + 4 * 80 / 4000**2) / 9)
    assert both.present == pytest.approx(1 / 3 + 0.5 * 2 / 3)
    # Of equal batches that count alike, all records are counted.
    alike = first.averaged(first, 0.5)
    assert (alike.records, alike.variance, alike.counts[0]) == (2000.0, 100.0, 600.0)
    assert module.NormCounts.empty().averaged(first, 0.1) is first
