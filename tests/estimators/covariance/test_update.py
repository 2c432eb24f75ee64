"""The covariance route over batches: its moments, the times of its looks, and its accuracy.

Data and noise have fixed seeds. The costs of its mechanisms are tested in test_budget, their inputs
in test_layered_sums and test_sizes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.budget import WHOLE, Budget
from streaming_pca.estimators.common.mean_offset import MeanOffset, MeanShift
from streaming_pca.estimators.common.norm_distribution import NormCounts, NormDistribution
from streaming_pca.estimators.common.present import PresentShare
from streaming_pca.estimators.covariance.release import covariance_subspace
from streaming_pca.estimators.covariance.state import CovarianceEstimate
from streaming_pca.estimators.covariance.update import CovarianceUpdate
from streaming_pca.linalg.subspace import orthonormalise, principal_angles, ritz_pairs, subspace_error
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import LARGE, Floats, make, start
from tests.privacy.noise import ScriptedSampler, SeededSampler

SPAN = (2.0**-40, 2.0**60)
Z = 4.2


def route_of(
    d: int, k: int = 2, multiplier: float = Z, kind: RecordKind = RecordKind.FACTOR, **more: Any
) -> CovarianceUpdate:
    preprocessing = Preprocessing(dim=d, kind=kind, centering="none")
    shift = MeanShift(*np.zeros((3, d)))
    return CovarianceUpdate(k, preprocessing, multiplier, SPAN, more.pop("half_life", None), shift, **more)


def learn(
    route: CovarianceUpdate, parts: list[Floats], sampler: Any = None, coming: float = 0.0
) -> list[CovarianceEstimate]:
    memories = [CovarianceEstimate.empty(route.preprocessing.dim)]
    with replace_noise_sampler(sampler or ScriptedSampler()):
        for part in parts:
            budget = Budget(route.multiplier, 1.0)
            batch = ArrayBatch.of_vectors(part)
            memories.append(route.learn(memories[-1], batch, budget, coming)[0])
            assert budget.left == 0
            memories[-1].check()
    return memories[1:]


def spread(m: int, d: int, seed: int = 0) -> Floats:
    return utility_generator(seed).standard_normal((m, d)) * np.linspace(2, 0.3, d)


@pytest.mark.parametrize("weighted", [False, True])
def test_without_noise_each_moment_is_that_of_the_clipped_records(weighted: bool) -> None:
    """This holds at all radii, for all batches and coordinates, up to the lattice's rounding."""
    d = 4
    parts = np.split(utility_generator(0).standard_normal((12_000, d)) * [30, 10, 0.5, 0.5], [4000, 7000])
    (*_, estimate) = learn(route_of(d, 2, multiplier=1.0, weighted=weighted), parts)
    assert estimate.weighted == weighted
    assert estimate.records == 12_000
    turn = np.eye(d) if estimate.turn is None else estimate.turn
    x = np.concatenate(parts) @ turn
    sizes = np.sum(x**2, axis=1)
    scale = np.sqrt(np.outer(estimate.weights, estimate.weights))
    for slot in range(estimate.used):
        kept = np.minimum(1, estimate.radii[slot] / sizes)
        wanted = (x * kept[:, None]).T @ x / 12_000 * scale
        # The sums are at the chosen radius; the others contain the layers of every batch.
        tolerance = 1e-3 if slot == estimate.chosen else 0.1
        assert np.linalg.norm(estimate.moment(slot) - wanted) < tolerance * np.linalg.norm(wanted)


def test_batches_are_averaged_by_their_sizes_at_a_public_radius() -> None:
    """Weights are one over 2 z^2/n^2 + 1/(d^2 n): n^2 where noise dominates, n where sampling does."""
    x = spread(5000, 4, 3)
    parts = np.split(x, [100, 700, 2500])
    for epsilon in (1.0, 1e4):
        estimator = make("analyze-gauss", dim=4, clip_radius=1e3, epsilon=epsilon)
        state = start(estimator)
        with replace_noise_sampler(ScriptedSampler()):
            for part in parts:
                state = estimator.update(state, ArrayBatch.of_vectors(part))
        assert state.covariance.records == 5000
        assert state.covariance.used == 1
        z = estimator.costs.multiplier
        weights = np.array([1 / (2 * (z / len(part)) ** 2 + 1 / (16 * len(part))) for part in parts])
        means = [part.T @ part / len(part) for part in parts]
        wanted = np.tensordot(weights / weights.sum(), means, axes=1)
        np.testing.assert_allclose(state.covariance.moment(0), wanted, atol=1e-3)


def test_the_noise_that_is_told_is_the_noise() -> None:
    """200 seeds at a public radius: the mean square off the diagonal is within 10% of half of ``noise``."""
    x = spread(3000, 4, 3)
    estimator = make("analyze-gauss", dim=4, clip_radius=100.0)
    squares = []
    for seed in range(200):
        state = start(estimator)
        with replace_noise_sampler(SeededSampler(seed)):
            for part in np.split(x, 2):
                state = estimator.update(state, ArrayBatch.of_vectors(part))
        off = (state.covariance.moment(0) - x.T @ x / 3000)[np.triu_indices(4, 1)]
        squares.append(np.mean(off**2))
    assert np.mean(squares) == pytest.approx(state.covariance.released_noise / 2, rel=0.1)


@pytest.mark.parametrize("weighted", [False, True])
def test_the_noise_of_looks_and_sums_together_is_told(weighted: bool) -> None:
    """150 seeds of noise on tiny records, over two batches: entry ij has sqrt(u_i u_j) times as much.

    Counts of sizes get no noise, so the radii stay fixed. The mean is within 8%.
    """
    d = 3
    basis = orthonormalise(utility_generator(1).standard_normal((d, d)))
    first = CovarianceEstimate.empty(d)
    weights = np.array([4.0, 1.0, 0.25])
    if weighted:
        first = replace(first, basis=basis, weights=weights)
    route = route_of(d, 1)
    part = spread(2000, d) * 1e-3
    found = []
    for seed in range(150):
        rng = np.random.default_rng(seed)

        def noise(size: int, scale: float, rng: np.random.Generator = rng) -> NDArray[np.int64]:
            drawn = rng.normal(scale=scale, size=size) if scale > 1e9 else np.zeros(size)
            return np.rint(drawn).astype(np.int64)

        estimate = first
        with replace_noise_sampler(ScriptedSampler(noise)):
            for number in range(2):
                budget = Budget(Z, 1.0)
                batch = ArrayBatch.of_vectors(part)
                share, price = (0.1, 0.25) if number else (0.15, 1.0)
                estimate, look = route._look_at_radii(estimate, batch, budget, share, price, 0.0)
                estimate = replace(estimate, chosen=1)
                estimate, _ = route.sum(estimate, batch, budget, look)
        found.append(estimate.moment(1))
    deviations = np.std(found, axis=0)
    u = weights if weighted else np.ones(d)
    reported = np.sqrt(estimate.released_noise * np.outer(u, u) * np.where(np.eye(d), 1, 0.5))
    np.testing.assert_allclose(deviations, reported, rtol=0.25)
    assert np.mean(deviations / reported) == pytest.approx(1, abs=0.08)


def looks(batches: int, size: int = 200, **options: Any) -> list[int]:
    """Return the number of looks after each batch, for batches of equal size."""
    route = route_of(3, 1, multiplier=0.5, **options)
    parts = [spread(size, 3, i) for i in range(batches)]
    return [estimate.looks for estimate in learn(route, parts, SeededSampler(0))]


def test_it_looks_at_all_radii_sixteen_times_and_then_more_and_more_rarely() -> None:
    seen = looks(60)
    assert seen[:16] == list(range(1, 17))
    assert seen[-1] in range(19, 25)


def test_with_a_half_life_it_looks_again_each_time_a_fifth_is_forgotten() -> None:
    """After 16 batches, 0.32 half-lives lie between looks: four batches, and three while records grow."""
    seen = looks(48, half_life=2_000.0)
    assert seen[15] == 16
    assert 16 + 32 // 4 <= seen[-1] <= 16 + 32 // 3


def test_what_is_left_of_a_later_batch_is_nearly_all_of_it() -> None:
    """The sum of a batch without a look has the whole budget; with a look, 0.8 of it or more."""
    route = route_of(3, 1)
    estimate = learn(route, [spread(4000, 3)])[0]
    for state, least in ((estimate, 0.8), (replace(estimate, looks=99, looked=1e9), 1.0)):
        budget = Budget(Z, 1.0)
        with replace_noise_sampler(ScriptedSampler()):
            route.look(state, ArrayBatch.of_vectors(spread(4000, 3, 1)), budget, 0.0)
        assert budget.left >= least * WHOLE


def test_a_first_batch_keeps_half_of_its_budget_for_the_sum() -> None:
    route = route_of(6, 2)
    batch = ArrayBatch.of_vectors(spread(30_000, 6) * [10, 5, 1, 1, 1, 1])
    budget = Budget(Z, 1.0)
    with replace_noise_sampler(SeededSampler(0)):
        estimate, look = route.look(CovarianceEstimate.empty(6), batch, budget, 0.0)
        route.weigh(estimate, look, batch, budget, 0.0)
    assert budget.left >= 0.5 * WHOLE


def test_larger_records_that_come_later_get_radii_of_their_own() -> None:
    """First all records have one size; then a tenth are a hundred times as long, which noise cannot hide."""
    d = 4
    first, later = spread(4000, d), spread(8000, d, 1)
    later[::10] *= 100
    route = route_of(d, 1, multiplier=0.2)
    one, two, *_, last = learn(route, [first, *[np.concatenate([later, later])] * 5], SeededSampler(0))
    assert one.radii[one.used - 1] < 200
    # A grid keeps at least one of its radii.
    assert two.radii[two.used - 1] > 2 * one.radii[one.used - 1]
    assert last.radii[last.used - 1] > 5000


def error_after(estimator: Any, x: Floats, parts: int, truth: Floats, seed: int = 0) -> float:
    state = start(estimator)
    with replace_noise_sampler(SeededSampler(seed)):
        for part in np.split(x, parts):
            state = estimator.update(state, ArrayBatch.of_vectors(part))
    return subspace_error(estimator.release(state).components, truth)


def family(name: str, m: int, d: int, seed: int) -> tuple[Floats, Floats]:
    rng = utility_generator(seed)
    turn = orthonormalise(rng.standard_normal((d, d)))
    scale = 4 * 0.6 ** np.arange(d) if name == "falling" else np.where(np.arange(d) < 2, 4.0, 1.0)
    x = rng.standard_normal((m, d)) * scale
    if name == "heavy":
        x /= np.sqrt(rng.chisquare(4, (m, 1)) / 4)
    if name == "signs":
        x = np.sign(x) * scale
    return x @ turn.T, turn.T[:2]


@pytest.mark.parametrize("name", ["spiked", "falling", "heavy", "signs"])
@pytest.mark.parametrize("parts", [1, 5])
@pytest.mark.parametrize("centering", ["none", "auto"])
def test_it_is_accurate_on_synthetic_families(name: str, parts: int, centering: str) -> None:
    """30,000 records of 10 features at epsilon 1 give errors of 0.02 to 0.06."""
    x, truth = family(name, 30_000, 10, 1)
    mean = 0.0 if centering == "none" else 30.0
    for estimator_name in ("adaptive", "analyze-gauss"):
        estimator = make(estimator_name, centering, dim=10, first_batch=30_000, **LARGE)
        assert error_after(estimator, x + mean, parts, truth) < 0.2


def test_weights_pay_where_one_direction_has_most_of_the_size() -> None:
    """The task is to find the second direction: 8 seeds, mean errors."""
    d = 10
    rng = utility_generator(0)
    scale = np.array([30.0, 6.0, *[0.5] * (d - 2)])
    x = rng.standard_normal((20_000, d)) * scale
    errors = {}
    for weighted in (True, False):
        route = route_of(d, 2, multiplier=2.0, weighted=weighted)
        found = []
        for seed in range(8):
            (estimate,) = learn(route, [x], SeededSampler(seed))
            assert estimate.weighted == weighted
            vectors = ritz_pairs(estimate.released_moment(), 2)[1]
            found.append(subspace_error(vectors.T, np.eye(2, d)))
        errors[weighted] = np.mean(found)
    assert errors[True] < 0.5 * errors[False]


@pytest.mark.parametrize("centering", ["none", "pairs"])
def test_a_half_life_forgets(centering: str) -> None:
    """The first batch's records count half after a second batch as long as the half-life."""
    first, second = np.array([[1.0, 0.0], [-1.0, 0.0]]), np.array([[0.0, 1.0], [0.0, -1.0]])
    estimator = make("analyze-gauss", centering, dim=2, k=1, clip_radius=4.0, half_life=1000.0)
    state = start(estimator)
    with replace_noise_sampler(ScriptedSampler()):
        for x in (first, second):
            state = estimator.update(state, ArrayBatch.of_vectors(np.tile(x, (500, 1))))
    found = np.diag(state.covariance.moment(0))
    np.testing.assert_allclose(found / found.sum(), [1 / 3, 2 / 3], atol=1e-4)


def test_null_records_do_not_shorten_the_grid() -> None:
    """One distribution of the norms of the records that are not null, as shares of all records."""
    radii = np.geomspace(1.0, 1e4, 60)
    grids = []
    for present in (1.0, 0.1):
        found = NormDistribution(radii, 0.5 * present * radii**-1.2, present)
        route = route_of(12, present=present)
        grids.append(route._grid(found, round(1e6 / present)))
        squared = route._with_norms(CovarianceEstimate.empty(12).on_grid(grids[-1]), found).squared_excess
        np.testing.assert_allclose(squared[0], found.squared_excess(1.0) / present)
    np.testing.assert_allclose(*grids)


def test_bounds_end_the_counts_in_the_coordinates_of_the_clip() -> None:
    """In the weighted coordinates a record's norm may exceed the bound in its own."""
    shift = MeanShift(*np.zeros((3, 2)))
    preprocessing = Preprocessing(dim=2, centering="none", bounds=(-1.0, 1.0))
    route = CovarianceUpdate(1, preprocessing, Z, SPAN, None, shift)
    counts = NormCounts(0.5, 1.0, np.array([4e4, 3e4, 2e3, 1e3, 4e2, *[0.0] * 7]), 1e4, 1e5)
    assert preprocessing.largest_squared_norm == 2.0
    near, far = (route._distribution(counts, weight) for weight in (1.0, 0.25))
    assert near.share_above(2.0) == 0
    assert far.share_above(2.0) > 0.003


@pytest.mark.parametrize("weighted", [False, True])
def test_the_angle_bound_covers_the_noise(weighted: bool) -> None:
    """At least 0.93 of 150 seeds are within the bounds, which stay near the noise.

    A true coverage of 0.95 is below 0.93 with probability 0.1, but
    the bounds are conservative and the seeds fixed.
    """
    d = 8
    scale = np.array([30.0, 10.0, *[0.5] * (d - 2)]) if weighted else np.array([5.0, 4.0, *[1.0] * (d - 2)])
    x = utility_generator(0).standard_normal((8000, d)) * scale
    route = route_of(d, 2, multiplier=1.0 if weighted else Z, weighted=weighted)
    exact = learn(route, [x])[0]
    assert exact.weighted == weighted
    angles, bounds = [], []
    for seed in range(150):
        with replace_noise_sampler(SeededSampler(seed)):
            doubted, budget = replace(exact, doubt=exact.doubt * 1e12), Budget(route.multiplier, 1.0)
            estimate, _ = route.sum(doubted, ArrayBatch.of_vectors(x), budget)
        # Without counted norms, the bound covers the noise alone.
        estimate = replace(estimate, sizes=NormCounts.empty())
        offset = MeanOffset(np.zeros(d))
        release = covariance_subspace(estimate, route.preprocessing, 2, PresentShare(), offset)
        clipped = exact.released_moment()
        angles.append(principal_angles(release.components, ritz_pairs(clipped, 2)[1].T)[0])
        bounds.append(release.angle_bound)
    assert None not in bounds
    assert np.mean(np.array(angles) <= np.array(bounds, dtype=float)) >= 0.93
    assert np.median(np.array(bounds, dtype=float)) < 4 * np.quantile(angles, 0.95)
