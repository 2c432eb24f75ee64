"""The memory of all radii: it weighs what it saw as generalised least squares do. Seeds are fixed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.estimators.common.state import decode_fitting_state, decode_state, encode_state
from streaming_pca.estimators.covariance.state import SLOTS, CovarianceEstimate
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.randomness import utility_generator
from tests.estimators.suite import check_subspace, make, pack, records, run, start

Floats = NDArray[np.float64]
D = 3


class Seen(NamedTuple):
    """A look at all radii (``slot`` None), or a sum at one: what it said, its noise, its records."""

    slot: int | None
    moments: Floats
    noise: Floats
    count: float


def symmetric(rng: np.random.Generator, count: int) -> Floats:
    a = rng.standard_normal((count, D, D))
    return a + a.swapaxes(1, 2)


def layered(rng: np.random.Generator, used: int) -> Floats:
    """The covariance of layers that add up."""
    known = np.cumsum(rng.uniform(0.1, 1, used))
    return np.minimum.outer(known, known)


def history(seed: int, used: int, counts: list[float]) -> list[Seen]:
    """A first look, then sums and looks by turns."""
    rng = utility_generator(seed)
    found = [Seen(None, symmetric(rng, used), layered(rng, used), counts[0])]
    for i, count in enumerate(counts[1:]):
        if i % 2:
            found.append(Seen(None, symmetric(rng, used), layered(rng, used), count))
        else:
            slot = int(rng.integers(used))
            found.append(Seen(slot, symmetric(rng, 1), np.array([[rng.uniform(0.01, 2)]]), count))
    return found


def learnt(seen: list[Seen], used: int) -> CovarianceEstimate:
    first = seen[0]
    estimate = CovarianceEstimate.empty(D)
    estimate = estimate.with_first_look(np.arange(1.0, used + 1), first.moments, first.noise, first.count)
    for one in seen[1:]:
        if one.slot is None:
            estimate = estimate.with_look(one.moments, one.noise, one.count)
        else:
            estimate = estimate.with_sum(one.slot, one.moments[0], float(one.noise[0, 0]), one.count)
    return estimate


def least_squares(seen: list[Seen], used: int) -> tuple[Floats, Floats]:
    """Moments that minimise all squares, each over noise times records; and the covariance of their noise."""
    designs = [np.eye(used) if one.slot is None else np.eye(used)[one.slot : one.slot + 1] for one in seen]
    precisions = [np.linalg.inv(one.noise * one.count) for one in seen]
    whole = np.linalg.inv(sum(h.T @ p @ h for h, p in zip(designs, precisions, strict=True)))
    gains = [whole @ h.T @ p for h, p in zip(designs, precisions, strict=True)]
    moments = sum(np.tensordot(g, one.moments, axes=1) for g, one in zip(gains, seen, strict=True))
    noise = sum(g @ one.noise @ g.T for g, one in zip(gains, seen, strict=True))
    return np.asarray(moments), np.asarray(noise)


@pytest.mark.parametrize("used", [1, 2, 5, SLOTS])
@pytest.mark.parametrize("counts", [[1.0] * 6, [100.0, 160.0, 256.0, 400.0], [10.0, 1e6, 3.0, 1e5, 40.0]])
def test_it_is_generalised_least_squares(used: int, counts: list[float]) -> None:
    for seed in range(5):
        seen = history(seed, used, counts)
        estimate = learnt(seen, used)
        moments, noise = least_squares(seen, used)
        np.testing.assert_allclose(estimate.all_moments(), moments, rtol=1e-6, atol=1e-8)
        np.testing.assert_allclose(estimate.noise[:used, :used], noise, rtol=1e-6, atol=1e-9)
        assert not estimate.noise[used:].any()
        estimate.check()


def test_of_batches_alike_the_noise_is_the_least_that_any_weights_give() -> None:
    """Then noise times records is noise, in other units, and gains are the best linear ones."""
    used = 4
    seen = history(0, used, [1.0] * 5)
    best = np.diagonal(learnt(seen, used).noise)[:used]
    for seed in range(20):
        rng = utility_generator(seed)
        # Other weights of the same measurements, that add up to one.
        looks = [one for one in seen if one.slot is None]
        weights = rng.dirichlet(np.ones(len(looks)))
        other = sum(w**2 * np.diagonal(one.noise) for w, one in zip(weights, looks, strict=True))
        assert (best <= np.asarray(other) + 1e-12).all()


def test_noise_that_is_told_is_that_of_the_moments() -> None:
    """4,000 draws of fixed seeds: variances within 10%, six deviations of theirs."""
    used, draws = 3, 4000
    plan = history(1, used, [50.0, 80.0, 30.0, 60.0])
    rng = utility_generator(2)
    found = np.empty((draws, used))
    for i in range(draws):
        seen = []
        for one in plan:
            root = np.linalg.cholesky(one.noise)
            noise = np.zeros_like(one.moments)
            noise[:, 0, 0] = root @ rng.standard_normal(len(root))
            seen.append(one._replace(moments=noise))
        estimate = learnt(seen, used)
        found[i] = estimate.all_moments()[:, 0, 0]
    expected = np.diagonal(estimate.noise)[:used]
    np.testing.assert_allclose(found.var(axis=0), expected, rtol=0.14)


def test_faded_records_count_less() -> None:
    """A half-life gone by: as if there had been half of the records, of twice the variance."""
    rng = utility_generator(0)
    used = 3
    moments, noise, new = symmetric(rng, used), layered(rng, used), symmetric(rng, used)
    estimate = CovarianceEstimate.empty(D).with_first_look(np.arange(1.0, 4.0), moments, noise, 100.0)
    assert estimate.discounted(1.0) is estimate
    half = estimate.discounted(0.5).with_look(new, noise, 100.0)
    np.testing.assert_allclose(half.all_moments(), moments / 3 + 2 * new / 3, atol=1e-12)
    np.testing.assert_allclose(half.noise[:used, :used], noise * (1 / 9 + 4 / 9), atol=1e-12)
    # What has moved by far more than its noise is forgotten.
    gone = estimate.discounted(1.0, 1e12).with_sum(1, new[1], float(noise[1, 1]), 100.0)
    np.testing.assert_allclose(gone.moment(1), new[1], atol=1e-6)


def test_records_count_by_their_numbers_where_noise_is_as_it_should_be() -> None:
    """Noise of a batch of n is in proportion to 1/n^2: a batch of twice the records counts twice."""
    rng = utility_generator(0)
    noise, first, second = layered(rng, 2), symmetric(rng, 2), symmetric(rng, 2)
    estimate = CovarianceEstimate.empty(D).with_first_look(np.array([1.0, 2.0]), first, noise, 1.0)
    estimate = estimate.with_look(second, noise / 4, 2.0)
    np.testing.assert_allclose(estimate.all_moments(), (first + 2 * second) / 3, atol=1e-12)


# The grid grows.


@pytest.mark.parametrize("used", [2, 4, SLOTS])
@pytest.mark.parametrize("factor", [1.01, 2.0, 30.0, 1e30])
def test_a_grid_that_reaches_further_keeps_what_it_knew(used: int, factor: float) -> None:
    rng = utility_generator(0)
    radii = 3.0 * 1.5 ** np.arange(used)
    moments, noise = symmetric(rng, used), layered(rng, used)
    estimate = CovarianceEstimate.empty(D).with_first_look(radii, moments, noise, 10.0)
    for chosen in range(used):
        grown = replace(estimate, chosen=chosen).extended_to(float(radii[-1]) * factor)
        grown.check()
        kept = np.flatnonzero(np.isin(radii, grown.radii))
        assert kept.size
        assert kept[-1] == used - 1
        now = grown.radii[: grown.used]
        np.testing.assert_allclose(now[1:] / now[:-1], 1.5)
        if factor < 1e3:
            assert now[-1] >= radii[-1] * factor * (1 - 1e-12) or grown.used == SLOTS
        for slot, old in enumerate(kept):
            assert grown.radii[slot] == radii[old]
            np.testing.assert_array_equal(grown.moment(slot), moments[old])
            assert grown.noise[slot, slot] == noise[old, old]
        last = len(kept) - 1
        for slot in range(len(kept), grown.used):
            np.testing.assert_array_equal(grown.moment(slot), moments[-1])
            assert grown.noise[slot, slot] > 2 * grown.noise[last, last]
        if chosen in kept:
            assert grown.radii[grown.chosen] == radii[chosen]


def test_a_grid_that_reaches_far_enough_stays() -> None:
    rng = utility_generator(0)
    estimate = CovarianceEstimate.empty(D).with_first_look(
        np.array([1.0, 2.0]), symmetric(rng, 2), layered(rng, 2), 9.0
    )
    assert estimate.extended_to(2.0) is estimate
    assert estimate.extended_to(0.1) is estimate


def test_batches_weigh_by_their_counts_at_a_new_radius() -> None:
    """Records before it hardly reached it, which is known of them."""
    rng = utility_generator(0)
    moments, noise = symmetric(rng, 2), np.array([[1.0, 1.0], [1.0, 2.0]])
    estimate = (
        CovarianceEstimate.empty(D)
        .with_first_look(np.array([1.0, 2.0]), moments, noise, 10.0)
        .extended_to(4.0)
    )
    # One that is higher by 1 at all radii, and by 2 beyond the old ones.
    shown = estimate.all_moments() + np.array([1.0, 1.0, 2.0])[:, None, None] * np.eye(D)
    moved = np.diag(
        estimate.with_look(shown, np.minimum.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0]), 10.0).moment(2)
        - estimate.moment(2)
    )
    assert np.all((moved > 0.8) & (moved < 1.7))


# Coordinates.


def test_a_release_is_in_the_records_coordinates() -> None:
    rng = utility_generator(0)
    basis = orthonormalise(rng.standard_normal((D, D)))
    own = symmetric(rng, 1)
    weights = np.array([2.0, 1.0, 0.5])
    estimate = replace(CovarianceEstimate.empty(D), basis=basis, weights=weights)
    assert estimate.weighted
    estimate = estimate.with_first_look(np.array([1.0]), basis.T @ own @ basis, np.array([[0.1]]), 1.0)
    np.testing.assert_allclose(estimate.released_moment(), own[0], atol=1e-12)
    assert estimate.turn is not None
    np.testing.assert_allclose(estimate.turn, basis / np.sqrt(weights))
    assert CovarianceEstimate.empty(D).turn is None


def test_a_radius_that_is_set_later_takes_the_place_of_all() -> None:
    """A stream that found its radii, and then gets one in its settings."""
    found = make("analyze-gauss", epsilon=8.0)
    state = run(found, [records(found, 2000, i) for i in range(2)])
    assert state.covariance.used > 1
    fixed = make("analyze-gauss", epsilon=8.0, clip_radius=3.0)
    after = fixed.update(
        decode_fitting_state(fixed, encode_state(state)), pack(fixed, records(fixed, 2000, 3))
    )
    assert after.covariance.used == 1
    assert after.covariance.radii[0] == 3.0
    known = sum(batch.present.latest_share for batch in (state, after))
    assert 2000 * known <= after.covariance.records <= 6000
    check_subspace(fixed, fixed.release(after))
    # And back: what was set stays.
    again = found.update(
        decode_fitting_state(found, encode_state(after)), pack(found, records(found, 2000, 4))
    )
    check_subspace(found, found.release(again))


# Hostile states.


def weighted(estimate: CovarianceEstimate, value: float) -> CovarianceEstimate:
    return replace(estimate, weights=np.full_like(estimate.weights, value))


def with_entry(estimate: CovarianceEstimate, name: str, place: Any, value: float) -> CovarianceEstimate:
    array = getattr(estimate, name).copy()
    array[place] = value
    return replace(estimate, **{name: array})


HOSTILE: dict[str, Any] = {
    "a radius of NaN": lambda m: with_entry(m, "radii", 0, math.nan),
    "an infinite radius": lambda m: with_entry(m, "radii", -1, math.inf),
    "radii that fall": lambda m: with_entry(m, "radii", 0, 1e60),
    "radii alike": lambda m: with_entry(m, "radii", 1, m.radii[0]),
    "a negative radius": lambda m: with_entry(m, "radii", 0, -1.0),
    "a hole": lambda m: with_entry(m, "radii", 0, 0.0),
    "a huge radius": lambda m: with_entry(m, "radii", m.used - 1, 1.7e308),
    "a slot out of range": lambda m: replace(m, chosen=SLOTS),
    "a slot that is empty": lambda m: replace(m, chosen=m.used),
    "a negative slot": lambda m: replace(m, chosen=-1),
    "negative looks": lambda m: replace(m, looks=-1),
    "negative records": lambda m: replace(m, records=-1.0),
    "infinite records": lambda m: replace(m, records=math.inf),
    "records of NaN": lambda m: replace(m, records=math.nan),
    "negative noise": lambda m: with_entry(m, "noise", (0, 0), -1.0),
    "noise that is no covariance": lambda m: with_entry(
        with_entry(m, "noise", (0, 1), 1e9), "noise", (1, 0), 1e9
    ),
    "doubt that is not symmetric": lambda m: with_entry(m, "doubt", (0, 1), 1e9),
    "no weight": lambda m: weighted(m, 0.0),
    "a negative weight": lambda m: weighted(m, -1.0),
    "a long basis": lambda m: replace(m, basis=1e200 * m.basis),
    "another basis": lambda m: replace(m, basis=np.eye(2)),
    "moments of another shape": lambda m: replace(m, moments=m.moments[:2]),
    "moments of NaN": lambda m: with_entry(m, "moments", (0, 0), math.nan),
    "fewer radii": lambda m: replace(m, radii=m.radii[:3]),
    "whole numbers": lambda m: replace(m, above=np.zeros(SLOTS, dtype=np.int64)),
    "a negative median": lambda m: replace(m, sizes=replace(m.sizes, median=-1.0)),
    "an infinite median": lambda m: replace(m, sizes=replace(m.sizes, median=math.inf)),
    "more present than there are": lambda m: replace(m, sizes=replace(m.sizes, present=2.0)),
    "counts of negative variance": lambda m: replace(m, sizes=replace(m.sizes, variance=-1.0)),
    "counts of another shape": lambda m: replace(m, sizes=replace(m.sizes, counts=np.zeros(3))),
}


@pytest.mark.parametrize("name", ["adaptive", "analyze-gauss"])
@pytest.mark.parametrize("what", HOSTILE)
def test_a_hostile_state_is_refused_in_a_line(name: str, what: str) -> None:
    estimator = make(name)
    state: Any = run(estimator, [records(estimator, 2000, i) for i in range(2)])
    decode_fitting_state(estimator, encode_state(state))
    bad = replace(state, covariance=HOSTILE[what](state.covariance))
    with pytest.raises((ValueError, TypeError)) as caught:
        decode_fitting_state(estimator, encode_state(bad))
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("part", "changes"),
    [
        ("block", {"variance": -1.0}),
        ("block", {"noise": -1.0}),
        ("block", {"level": math.inf}),
        ("block", {"basis": 10 * np.ones((5, 2))}),
        ("total", {"noise": -1.0}),
        ("total", {"weight": -1.0}),
        ("", {"mean_noise": -1.0}),
        ("", {"mean_weight": -1.0}),
        ("", {"mean_weight": math.inf}),
        ("", {"batch": -1}),
    ],
)
def test_hostile_numbers_of_the_other_parts_are_refused(part: str, changes: dict[str, Any]) -> None:
    estimator = make("adaptive", "auto")
    state: Any = run(estimator, [records(estimator, 500)])
    bad = replace(state, **({part: replace(getattr(state, part), **changes)} if part else changes))
    with pytest.raises((ValueError, TypeError)):
        decode_fitting_state(estimator, encode_state(bad))


@pytest.mark.parametrize("batches", [0, 1, 4])
def test_a_memory_survives_its_bytes(batches: int) -> None:
    estimator = make("adaptive", "auto", half_life="auto")
    state = run(estimator, [records(estimator, 1500, i) for i in range(batches)])
    data = encode_state(state)
    again: Any = decode_fitting_state(estimator, data)
    assert encode_state(again) == data == encode_state(decode_state(estimator.state_type, data))
    assert again.covariance.used == state.covariance.used
    assert again.covariance.sizes.records == state.covariance.sizes.records
    start(estimator).covariance.check()
