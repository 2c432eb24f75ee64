"""The covariance route: what its mechanisms are given, and how it clips.

Noise and data of the tests of utility come from generators of fixed seeds, so
these tests do not fail by chance.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.estimators import covariance_route as module
from streaming_pca.estimators.analyze_gauss import AnalyzeGauss, AnalyzeGaussOptions
from streaming_pca.estimators.clipping import PartCosts
from streaming_pca.estimators.contributions import covariance_sensitivity, covariance_sum, record_sizes
from streaming_pca.estimators.covariance_memory import MAX_SHAPE_DIM, CovarianceMemory
from streaming_pca.estimators.covariance_route import Choice, CovarianceRoute, Pilot
from streaming_pca.estimators.sizes import SizeDistribution
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs, subspace_error
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.privacy import mechanisms
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import replace_noise_door, utility_generator
from streaming_pca.records import Batch, RecordKind
from tests.privacy.noise import ScriptedDoor

Floats = NDArray[np.float64]
SPAN = (2.0**-40, 2.0**60)


def noisy(seed: int) -> ScriptedDoor:
    rng = np.random.default_rng(seed)
    return ScriptedDoor(lambda size, scale: np.rint(rng.normal(scale=scale, size=size)).astype(np.int64))


def make(
    dim: int,
    k: int = 2,
    *,
    epsilon: float = 1.0,
    kind: RecordKind = RecordKind.FACTOR,
    centering: Any = "none",
    contributions: int = 1,
) -> CovarianceRoute:
    privacy = PrivacyParameters(epsilon=epsilon, delta=1e-6, contributions=contributions)
    preprocessing = Preprocessing(dim=dim, kind=kind, centering=centering)
    costs = PartCosts(privacy)
    return CovarianceRoute(k, preprocessing, costs, SPAN)


def distribution(route: CovarianceRoute, part: Batch) -> SizeDistribution:
    with replace_noise_door(ScriptedDoor()):
        return route.sizes(part)


def look(
    route: CovarianceRoute, x: Floats, seed: int, memory: CovarianceMemory | None = None
) -> tuple[CovarianceMemory, Pilot, Batch]:
    """The two small parts of a batch, with noise; and the rest."""
    batch = Batch.of_vectors(x)
    looked, shaped = route.size_records(len(x)), route.shape_records(len(x))
    first, second, rest = batch.split([looked, shaped, len(x) - looked - shaped])
    memory = CovarianceMemory.nothing(route.dim) if memory is None else memory
    with replace_noise_door(noisy(seed)):
        memory, pilot = route.pilot(memory, route.sizes(first), second, None)
    return memory, pilot, rest


# Privacy.


def totals_of_slots(route: CovarianceRoute, sizes: SizeDistribution, part: Batch) -> list[NDArray[np.int64]]:
    """The three exact sums that meet the noise, and the scale that they meet."""
    seen: list[NDArray[np.int64]] = []

    def call(total: NDArray[np.int64], sigma: float) -> Floats:
        assert sigma == route.sigma
        seen.append(total.copy())
        return mechanisms.gaussian_on_symmetric(total, sigma)

    with pytest.MonkeyPatch.context() as patch, replace_noise_door(ScriptedDoor()):
        patch.setattr(module, "gaussian_on_symmetric", call)
        route.pilot(CovarianceMemory.nothing(route.dim), sizes, part, None)
    return seen


@pytest.mark.parametrize("centering", ["none", "augment", "pairs", "matrix"])
def test_neighbouring_slots_are_within_the_sensitivity_of_one_sum(centering: str) -> None:
    """In integers; among the new records some that change slots, and some at the clip in both."""
    kind = RecordKind.MATRIX if centering == "matrix" else RecordKind.FACTOR
    d = 3
    route = make(d, kind=kind, centering="none" if centering == "matrix" else centering)
    rng = np.random.default_rng(0)
    x = rng.standard_normal((300, d))
    items: list[Any] = [r[:, None] * r if kind is RecordKind.MATRIX else r[None, :] for r in x]
    eye = np.eye(d)
    news: list[Any] = [None]
    for size in (0.0, 1e-9, 0.5, 0.9, 1.0, 1.1, 3.0, 1e3, 1e150):
        for v in (eye[0], -eye[1], (eye[0] + eye[2]) / math.sqrt(2)):
            news.append(size * v[:, None] * v if kind is RecordKind.MATRIX else size * v[None, :])
            if kind is RecordKind.MATRIX:
                news.append(-news[-1])
    part = Batch.of_records(items, d, kind)
    sizes = distribution(route, part)
    sensitivity = Fraction(covariance_sensitivity(kind))
    per_slot = []
    all_totals = []
    for new in news:
        items[7] = new
        all_totals.append(totals_of_slots(route, sizes, Batch.of_records(items, d, kind)))
        assert len(all_totals[-1]) == 3
    worst = 0
    for a in all_totals:
        for b in all_totals:
            moved = [sum(int(u) ** 2 for u in (s - t).flat) for s, t in zip(a, b, strict=True)]
            assert sum(moved) <= sensitivity**2
            per_slot.append(sum(m > 0 for m in moved))
            worst = max(worst, sum(moved))
    assert max(per_slot) == 2
    # And no pair is needed that is nearer than the sensitivity: it is not twice what it must be.
    assert worst >= sensitivity**2 / (4 if centering == "augment" else 1.01)


def test_a_record_is_in_one_slot() -> None:
    route = make(3)
    x = np.random.default_rng(1).standard_normal((500, 3))
    part = Batch.of_vectors(x)
    sizes = distribution(route, part)
    edge = sizes.quantile(0.5)
    slots = totals_of_slots(route, sizes, part)
    whole = covariance_sum(part, route.preprocessing, edge)
    assert np.array_equal(slots[0] + slots[1] + slots[2], whole.total)
    own = record_sizes(part, route.preprocessing)
    lower = covariance_sum(part.keeping(own <= edge), route.preprocessing, edge)
    assert np.array_equal(slots[0], lower.total)


def test_each_record_is_read_by_one_mechanism() -> None:
    """By their positions, whatever they hold: sizes, slots and sum add up to the batch."""
    dim, m = 4, 6000
    parts: list[Batch] = []
    estimator = AnalyzeGauss(
        dim,
        2,
        PrivacyParameters(epsilon=1.0, delta=1e-6),
        Preprocessing(dim=dim, centering="none"),
        AnalyzeGaussOptions(),
    )
    x = np.arange(1.0, m + 1)[:, None] * np.ones(dim)
    with pytest.MonkeyPatch.context() as patch, replace_noise_door(noisy(0)):
        for name, place in (("sizes", 1), ("pilot", 3), ("learn", 2)):
            original = getattr(CovarianceRoute, name)

            def call(*args: Any, original: Any = original, place: int = place) -> Any:
                parts.append(args[place])
                return original(*args)

            patch.setattr(CovarianceRoute, name, call)
        estimator.update(estimator.init(utility_generator(0)), Batch.of_vectors(x))
    read = [part.packed().rows[:, 0].tolist() for part in parts]
    assert len(read) == 3
    assert sorted(value for part in read for value in part) == x[:, 0].tolist()
    assert min(map(len, read)) >= 100


def test_above_512_features_there_are_no_slots() -> None:
    assert make(MAX_SHAPE_DIM).shape_records(10**6) > 0
    assert make(MAX_SHAPE_DIM + 1).shape_records(10**6) == 0
    assert CovarianceMemory.nothing(MAX_SHAPE_DIM + 1).shape.size == 0


# The choice.


def elliptical(m: int, d: int, k: int, seed: int) -> tuple[Floats, Floats]:
    """Student's t of 3 degrees of freedom with k directions of variance 16 among ones of 1, and those."""
    rng = utility_generator(seed)
    truth = orthonormalise(rng.standard_normal((d, k)))
    x = rng.standard_normal((m, d)) + math.sqrt(15) * rng.standard_normal((m, k)) @ truth.T
    return x / np.sqrt(rng.chisquare(3, (m, 1)) / 3), truth.T


def skewed(
    m: int, d: int, seed: int, *, rare: float = 0.08, size: float = 15.0, tilt: float = 1.0
) -> tuple[Floats, Floats]:
    """Ordinary records along two directions, and a share ``rare`` of large ones along another.

    The ordinary ones have standard deviations 3 and 2.8; the others ``size``, along a
    direction with ``tilt`` of the first to one of a third. Returned are the records and
    the leading two eigenvectors of their distribution.
    """
    rng = utility_generator(seed)
    turn = orthonormalise(rng.standard_normal((d, d)))
    scale = np.full(d, 0.3)
    scale[:2] = 3.0, 8**0.5
    large = np.zeros(d)
    large[[0, 2]] = tilt, 1.0
    large *= size / np.linalg.norm(large)
    x = rng.standard_normal((m, d)) * scale
    others = rng.random(m) < rare
    x[others] = rng.standard_normal((int(others.sum()), 1)) * large
    vectors = ritz_pairs((1 - rare) * np.diag(scale**2) + rare * np.outer(large, large), 2)[1]
    return x @ turn.T, (turn @ vectors).T


def error(moment: Floats, truth: Floats) -> float:
    return subspace_error(ritz_pairs(moment, len(truth))[1].T, truth)


@pytest.mark.parametrize("seed", range(5))
def test_elliptical_tails_are_clipped_at_about_the_median(seed: int) -> None:
    """Clipping only shrinks these: the least radius has the least noise."""
    x, truth = elliptical(40_000, 20, 2, seed)
    route = make(20)
    memory, pilot, rest = look(route, x, seed)
    choice = route.choose(memory, pilot, len(rest), more=False)
    sizes = np.sum(x**2, axis=1)
    assert np.mean(sizes <= choice.radius) < 0.65
    assert choice.quantile < 0.65
    with replace_noise_door(noisy(seed + 100)):
        learnt, clipped = route.learn(memory, rest, choice, None)
    assert clipped > 0.3 * len(rest)
    assert error(learnt.moment, truth) < 0.35


def by_choice(route: CovarianceRoute, x: Floats, seed: int) -> tuple[Choice, Pilot, Floats, Floats, Floats]:
    """The choice, what led to it, and the moments by it, by the median and by the 0.9 quantile."""
    memory, pilot, rest = look(route, x, seed)
    choice = route.choose(memory, pilot, len(rest), more=False)
    moments = []
    for how in (choice, *(Choice(pilot.sizes.quantile(q)) for q in (0.5, 0.9))):
        with replace_noise_door(noisy(seed + 100)):
            moments.append(route.learn(memory, rest, how, None)[0].moment)
    return choice, pilot, moments[0], moments[1], moments[2]


@pytest.mark.parametrize("seed", range(5))
def test_skewed_records_keep_a_high_radius_or_are_mended(seed: int) -> None:
    """A clip at the median, or at the 0.9 quantile, turns the subspace; the choice does not."""
    x, truth = skewed(60_000, 10, seed)
    choice, pilot, chosen, median, higher = by_choice(make(10, epsilon=2.0), x, seed)
    assert error(median, truth) > 0.5
    assert error(higher, truth) > 0.5
    assert error(chosen, truth) < 0.4 * error(higher, truth)
    assert choice.radius > 4 * pilot.sizes.quantile(0.9) or choice.correction.any()


@pytest.mark.xfail(reason="an eigenvalue that a clip brings below others turns nothing to first order")
@pytest.mark.parametrize("seed", range(5))
def test_a_direction_that_only_rare_records_have_is_found(seed: int) -> None:
    """At a right angle to all others, it is the leading one, and no clip leaves it there."""
    x, truth = skewed(60_000, 10, seed, tilt=0.0)
    _, _, chosen, _, _ = by_choice(make(10, epsilon=2.0), x, seed)
    assert error(chosen, truth) < 0.5


@pytest.mark.parametrize("seed", range(5))
def test_what_a_clip_cuts_off_is_put_back(seed: int) -> None:
    """At a radius that turns the subspace: with the shapes' sums times the excess it is nearer."""
    x, truth = skewed(60_000, 10, seed)
    route = make(10, epsilon=8.0)
    memory, pilot, rest = look(route, x, seed)
    radius = 50.0
    at = int(np.searchsorted(pilot.sizes.radii, radius))
    cut = module.cut_off(pilot.sizes, (0.5, 0.9), pilot.sizes.radii)[at]
    assert cut[1] > 0
    errors = []
    for correction in (np.zeros(2), cut):
        with replace_noise_door(noisy(seed + 100)):
            learnt, _ = route.learn(memory, rest, Choice(radius, correction), None)
        errors.append(error(learnt.moment, truth))
    assert errors[1] < 0.7 * errors[0]


def test_a_correction_is_paid_for_in_the_noise_that_is_told() -> None:
    x, _ = skewed(20_000, 10, 0)
    route = make(10)
    memory, _, rest = look(route, x, 0)
    told = []
    for correction in (np.zeros(2), np.array([3.0, 4.0])):
        with replace_noise_door(noisy(1)):
            told.append(route.learn(memory, rest, Choice(100.0, correction), None)[0].noise)
    assert told[1] == pytest.approx(told[0] + 2 * 25 * memory.shape_noise, rel=1e-9)


def test_without_shapes_the_upper_quantile_is_taken() -> None:
    x = np.random.default_rng(0).standard_normal((2000, 5))
    route = make(5)
    part, nothing = Batch.of_vectors(x).split([2000, 0])
    memory = CovarianceMemory.nothing(5)
    memory, pilot = route.pilot(memory, distribution(route, part), nothing, None)
    assert pilot.moment is None
    assert route.choose(memory, pilot, 1000, more=False).radius == pilot.sizes.quantile(0.9)


# Batches.


def test_batches_are_averaged_by_their_counts() -> None:
    """Without noise the mean of all is the moment of all, whatever the batches' sizes."""
    x = np.random.default_rng(3).standard_normal((5000, 4))
    route = make(4)
    memory = CovarianceMemory.nothing(4)
    with replace_noise_door(ScriptedDoor()):
        for part in np.split(x, [100, 700, 2500]):
            memory, clipped = route.learn(memory, Batch.of_vectors(part), Choice(1e3), None)
            assert clipped == 0
    assert memory.weight == 5000
    np.testing.assert_allclose(memory.moment, x.T @ x / 5000, atol=1e-3)


def test_the_noise_that_is_told_is_the_noise() -> None:
    """200 fixed seeds of noise: the mean square off the diagonal within 10% of half of ``noise``."""
    route = make(4)
    x = np.random.default_rng(3).standard_normal((3000, 4))
    squares = []
    for seed in range(200):
        memory = CovarianceMemory.nothing(4)
        with replace_noise_door(noisy(seed)):
            for part in np.split(x, [1000]):
                memory, _ = route.learn(memory, Batch.of_vectors(part), Choice(100.0), None)
        off = (memory.moment - x.T @ x / 3000)[np.triu_indices(4, 1)]
        squares.append(np.mean(off**2))
    assert np.mean(squares) == pytest.approx(memory.noise / 2, rel=0.1)


def test_a_half_life_forgets() -> None:
    """A second batch as long as the half-life: the first one's records count half."""
    first, second = np.array([[1.0, 0.0]]), np.array([[0.0, 1.0]])
    route = make(2, 1)
    memory = CovarianceMemory.nothing(2)
    with replace_noise_door(ScriptedDoor()):
        for x in (first, second):
            memory, _ = route.learn(memory, Batch.of_vectors(np.repeat(x, 1000, axis=0)), Choice(4.0), 1000.0)
    assert memory.weight == pytest.approx(1500)
    np.testing.assert_allclose(np.diag(memory.moment), [1 / 3, 2 / 3], atol=1e-4)


def test_forgetting_by_itself_follows_a_turn_and_keeps_a_steady_stream() -> None:
    rng = utility_generator(7)
    route = make(6, 1, epsilon=4.0)

    def rows(axis: int) -> Batch:
        x = 0.3 * rng.standard_normal((8000, 6))
        x[:, axis] *= 10
        return Batch.of_vectors(x)

    memory = CovarianceMemory.nothing(6)
    with replace_noise_door(noisy(0)):
        for _ in range(5):
            memory, _ = route.learn(memory, rows(0), Choice(12.0), "auto")
        assert memory.weight == 40_000
        memory, _ = route.learn(memory, rows(3), Choice(12.0), "auto")
    assert memory.weight < 12_000
    assert abs(ritz_pairs(memory.moment, 1)[1][3, 0]) > 0.9


def test_an_empty_part_teaches_nothing() -> None:
    route = make(3)
    memory = replace(CovarianceMemory.nothing(3), weight=7.0)
    nothing = Batch.of_vectors(np.zeros((0, 3)))
    assert route.learn(memory, nothing, Choice(1.0), None) == (memory, 0)
    sizes = distribution(route, nothing)
    assert route.pilot(memory, sizes, nothing, None)[0] is memory
