"""The private histogram of sizes: each record in one bin of one histogram, and what it says of them.

No noise but where a test says so; the seeds of data and noise are fixed.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.estimators import sizes as sizes_module
from streaming_pca.estimators.sizes import SizeDistribution, private_sizes
from streaming_pca.privacy import mechanisms
from streaming_pca.privacy.randomness import replace_noise_door, utility_generator
from tests.privacy.noise import ScriptedDoor, SeededDoor

Floats = NDArray[np.float64]
LOW, HIGH = 2.0**-40, 2.0**60
BIN = 2 ** (1 / 8)


def found(sizes: Floats, low: float = LOW, high: float = HIGH, epsilon: float = 1.0) -> SizeDistribution:
    with replace_noise_door(ScriptedDoor()):
        return private_sizes(sizes, low, high, epsilon)


def histograms(
    sizes: Floats, answers: list[NDArray[np.int64]] | None = None, epsilon: float = 1.0
) -> list[tuple[Floats, int, NDArray[np.int64]]]:
    """Bins of the records, the number of bins and the answer, of every histogram; answers may be given."""
    seen: list[tuple[Floats, int, NDArray[np.int64]]] = []

    def call(bins: Floats, n_bins: int, of: float) -> NDArray[np.int64]:
        assert of == epsilon
        answer = mechanisms.laplace_histogram(bins, n_bins, of) if answers is None else answers[len(seen)]
        seen.append((bins.copy(), n_bins, answer))
        return answer.copy()

    with pytest.MonkeyPatch.context() as patch, replace_noise_door(SeededDoor(0)):
        patch.setattr(sizes_module, "laplace_histogram", call)
        private_sizes(sizes, LOW, HIGH, epsilon)
    return seen


def check(distribution: SizeDistribution) -> None:
    radii, above = distribution.radii, distribution.above
    assert radii.shape == above.shape
    assert radii.size > 0
    assert np.isfinite(radii).all()
    assert radii[0] > 0
    assert (np.diff(radii) > 0).all()
    assert (np.diff(above) <= 0).all()
    assert ((above >= 0) & (above <= 1)).all()
    assert 0 <= distribution.present <= 1
    for q in (0.01, 0.5, 0.9, 0.999):
        assert distribution.quantile(q) == radii[distribution.index(q)]
        weight = distribution.mean_weight(distribution.quantile(q))
        assert 0 <= weight <= 1 + 1e-12
    excess = distribution.excess(radii)
    assert np.isfinite(excess).all()
    assert (excess >= 0).all()
    assert (np.diff(excess) <= 0).all()


anything = st.one_of(
    st.sampled_from([0.0, math.nan, math.inf, 5e-324, 1.0, LOW, HIGH, 1.7e308]),
    st.floats(0, 1.7e308),
    st.floats(0.5, 2.0),
)


@settings(max_examples=150, deadline=None)
@given(
    values=st.lists(anything, max_size=30),
    times=st.sampled_from([1, 40]),
    epsilon=st.sampled_from([0.01, 1.0, 20.0]),
    span=st.sampled_from([(LOW, HIGH), (1.0, 1.0000001), (1e-230, 1e70), (3.0, 1e5)]),
    seed=st.integers(0, 99),
)
def test_any_sizes_and_any_noise_give_a_distribution(
    values: list[float], times: int, epsilon: float, span: tuple[float, float], seed: int
) -> None:
    with replace_noise_door(SeededDoor(seed)):
        check(private_sizes(np.array(values * times), *span, epsilon))


@settings(max_examples=60, deadline=None)
@given(
    values=st.lists(anything, min_size=5, max_size=30),
    place=st.integers(0, 29),
    new=anything,
)
def test_a_replaced_record_changes_one_bin_of_one_histogram(
    values: list[float], place: int, new: float
) -> None:
    """With earlier answers equal: one record leaves a bin for another; the bins and their number stay."""
    sizes = np.array(values)
    neighbour = sizes.copy()
    neighbour[place % len(values)] = new
    one = histograms(sizes)
    other = histograms(neighbour, [answer for _, _, answer in one])
    assert [n for _, n, _ in one] == [n for _, n, _ in other]
    changed = [int(np.count_nonzero(a != b)) for (a, _, _), (b, _, _) in zip(one, other, strict=True)]
    assert sum(changed) <= 1


def test_each_record_is_in_one_histogram() -> None:
    (first, n_first, _), (second, n_second, _) = histograms(np.arange(1.0, 4001.0))
    assert (first.size, second.size) == (1000, 3000)
    # 100 octaves of 8 bins and one for null records; the tail from the median on.
    assert (n_first, n_second) == (801, 11)
    assert ((first >= 0) & (first < n_first)).all()


def test_the_noise_is_that_of_a_histogram_under_replacement() -> None:
    door = ScriptedDoor()
    with replace_noise_door(door):
        private_sizes(np.ones(100), LOW, HIGH, 0.25)
    assert [(name, scale) for name, _, scale in door.asked] == [("laplace", pytest.approx(8.0))] * 2


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


@pytest.mark.parametrize("name", LAW_NAMES)
def test_quantiles_are_within_two_bins(name: str) -> None:
    """One bin wide, and one for the quarter of the records that shows the bulk; the tail interpolates."""
    sizes = law(name)
    distribution = found(sizes)
    check(distribution)
    filled = sizes[sizes > 0]
    assert distribution.present == pytest.approx(filled.size / sizes.size, abs=0.02)
    for q in (0.1, 0.3, 0.5, 0.9, 0.99):
        # A size that nothing reaches is only known to lie somewhere in its bin of half an octave.
        below = 2**0.5 if name == "uniform" and q > 0.5 else BIN
        assert np.quantile(filled, q) / below <= distribution.quantile(q) <= np.quantile(filled, q) * BIN**2


@pytest.mark.parametrize("name", LAW_NAMES)
def test_the_mean_weight_is_within_a_bin(name: str) -> None:
    """Sizes count as their bin's upper end: too large by 9% at most, so weights are too small by as much."""
    sizes = law(name)
    distribution = found(sizes)
    for q in (0.1, 0.5, 0.9):
        radius = float(np.quantile(sizes[sizes > 0], q))
        weight = float(np.minimum(1, radius / np.maximum(sizes, 1e-300)).mean())
        assert weight * 0.94 < distribution.mean_weight(radius) < weight * 1.02


@pytest.mark.parametrize("name", ["normal", "chi2", "pareto 3", "pareto 1.5"])
def test_the_excess_of_heavy_and_light_tails_is_known_to_a_factor(name: str) -> None:
    sizes = law(name)
    distribution = found(sizes)
    for q, factor in ((0.5, 1.1), (0.9, 1.25), (0.99, 1.6)):
        radius = float(np.quantile(sizes, q))
        excess = float(np.maximum(sizes - radius, 0).mean())
        assert excess / factor < float(distribution.excess(radius)) < excess * factor


def test_a_tail_in_the_noise_is_continued_as_it_was_last_seen() -> None:
    """A share of 4/r^2 above r: with noise, beyond what 10,000 records show. Noise of 20 fixed seeds."""
    sizes = 2 * (1 - (np.arange(10_000) + 0.5) / 10_000) ** -0.5
    sizes = utility_generator(0).permutation(sizes)
    for seed in range(20):
        with replace_noise_door(SeededDoor(seed)):
            distribution = private_sizes(sizes, LOW, HIGH, 1.0)
        for radius in (20.0, 60.0):
            # E (size - r)+ = 4/r, but for what is beyond 12 octaves of the median.
            assert 1 / 8 < float(distribution.excess(radius)) * radius / 4 < 8


def test_sizes_all_alike_need_no_more_than_their_bin() -> None:
    """Concentrated in one bin: the whole of the records there, nothing above."""
    for size in (1.0, 5.0, 3e-9, 7e12):
        distribution = found(np.full(2000, size))
        check(distribution)
        assert distribution.present == 1
        assert distribution.quantile(0.5) == distribution.quantile(0.99)
        assert size <= distribution.quantile(0.5) <= size * BIN
        assert float(distribution.excess(size * BIN)) < 1e-4 * size


def test_null_records_have_no_size_and_are_counted_as_such() -> None:
    sizes = np.zeros(4000)
    for filled in (0, 400):
        sizes[:filled] = 2.0
        distribution = found(utility_generator(1).permutation(sizes))
        check(distribution)
        assert distribution.present == pytest.approx(filled / 4000, abs=0.02)
        if filled:
            assert 2 <= distribution.quantile(0.5) <= 2 * BIN
            assert distribution.mean_weight(1.0) == pytest.approx(0.95, abs=0.02)
        else:
            assert float(distribution.excess(distribution.radii[0])) == 0
            assert distribution.mean_weight(distribution.quantile(0.5)) == 1


@pytest.mark.parametrize("m", [0, 1, 2, 3, 4, 10])
def test_hardly_any_records_still_give_a_radius(m: int) -> None:
    check(found(np.full(m, 3.0)))
    for seed in range(10):
        with replace_noise_door(SeededDoor(seed)):
            check(private_sizes(np.full(m, 3.0), LOW, HIGH, 0.1))


def test_sizes_above_the_range_are_at_its_end_and_those_below_are_null() -> None:
    above = found(np.full(2000, 1e9), 1.0, 100.0)
    check(above)
    assert above.present == 1
    assert above.quantile(0.4) >= 100
    below = found(np.full(2000, 1e-9), 1.0, 100.0)
    check(below)
    assert below.present == 0


def test_what_overflowed_counts_as_large() -> None:
    for bad in (math.nan, math.inf):
        sizes = np.ones(4000)
        sizes[:40] = bad
        sizes = utility_generator(2).permutation(sizes)
        distribution = found(sizes)
        check(distribution)
        assert 1 <= distribution.quantile(0.9) <= BIN


@pytest.mark.parametrize("size", [30.0, 1000.0, math.inf])
def test_large_records_are_seen_across_a_gap(size: float) -> None:
    """30 of 3000 where the noise is 3: a hundredth of the records, and most of the variance."""
    sizes = np.ones(4000)
    sizes[:40] = size
    distribution = found(utility_generator(2).permutation(sizes))
    assert float(distribution.share_above(20.0)) == pytest.approx(0.01, rel=0.5)


def test_a_few_large_records_do_not_move_the_bulk() -> None:
    """With noise, of 30 fixed seeds: 10 records in 2000 at 2^50 times the size of the others."""
    sizes = utility_generator(3).permutation(np.concatenate([np.full(1990, 1.0), np.full(10, 2.0**50)]))
    for seed in range(30):
        with replace_noise_door(SeededDoor(seed)):
            distribution = private_sizes(sizes, LOW, HIGH, 1.0)
        assert 1 <= distribution.quantile(0.5) <= BIN**2
        assert distribution.quantile(0.9) <= BIN**3
