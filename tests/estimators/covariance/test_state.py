"""The layers of all radii weigh batches by their sizes in each layer. Seeds are fixed."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

from streaming_pca.estimators.common.state import decode_fitting_state, encode_state
from streaming_pca.estimators.covariance.state import SLOTS, CovarianceEstimate
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.privacy.randomness import utility_generator
from tests.estimators.suite import Floats, check_subspace, make, pack, records, run, start

D = 3


class Seen(NamedTuple):
    """Layers of a batch: their values, their noise, and the batch's variance for the gain."""

    layers: Floats
    noise: Floats
    doubt: float


def symmetric(rng: np.random.Generator, count: int) -> Floats:
    a = rng.standard_normal((count, D, D))
    return a + a.swapaxes(1, 2)


def history(seed: int, used: int, batches: int) -> list[Seen]:
    """Return layers of some batches."""
    rng = utility_generator(seed)
    found = []
    for _ in range(batches):
        noise = 10 ** rng.uniform(-3, 3) * rng.uniform(0.1, 1, used)
        found.append(Seen(symmetric(rng, used), noise, 10 ** rng.uniform(-3, 3)))
    return found


def on_grid(used: int, radii: Floats | None = None) -> CovarianceEstimate:
    return CovarianceEstimate.empty(D).on_grid(np.arange(1.0, used + 1) if radii is None else radii)


def learnt(seen: list[Seen], used: int) -> CovarianceEstimate:
    estimate = on_grid(used)
    for one in seen:
        estimate = estimate.with_layers(*one)
    return estimate


@pytest.mark.parametrize("used", [1, 2, 5, SLOTS])
@pytest.mark.parametrize("batches", [1, 2, 7])
def test_each_layer_is_the_mean_of_all_batches(used: int, batches: int) -> None:
    for seed in range(5):
        seen = history(seed, used, batches)
        estimate = learnt(seen, used)
        estimate.check()
        weights = np.array([1 / one.doubt for one in seen])
        weights /= weights.sum()
        means = np.tensordot(weights, [one.layers for one in seen], axes=1)
        noise = weights**2 @ np.array([one.noise for one in seen])
        np.testing.assert_allclose(estimate.all_moments(), np.cumsum(means, axis=0), atol=1e-9)
        np.testing.assert_allclose(estimate.noise[:used], noise, rtol=1e-9)
        assert not estimate.noise[used:].any()
        known = np.cumsum(noise)
        np.testing.assert_allclose(estimate.noise_of_moments(), np.minimum.outer(known, known))


def test_noise_that_is_told_is_that_of_the_moments() -> None:
    """In 4,000 draws with fixed seeds, variances are within 14%, six of their deviations."""
    used, draws = 3, 4000
    plan = history(1, used, 4)
    rng = utility_generator(2)
    found = np.empty((draws, used))
    for i in range(draws):
        seen = []
        for one in plan:
            noise = np.zeros_like(one.layers)
            noise[:, 0, 0] = np.sqrt(one.noise) * rng.standard_normal(len(noise))
            seen.append(one._replace(layers=noise))
        estimate = learnt(seen, used)
        found[i] = estimate.all_moments()[:, 0, 0]
    np.testing.assert_allclose(found.var(axis=0), np.diagonal(estimate.noise_of_moments()), rtol=0.14)
    last = replace(estimate, chosen=used - 1)
    assert last.released_noise == pytest.approx(estimate.noise_of_moments()[-1, -1])


def test_faded_records_count_less() -> None:
    """Records count as half as many after one half-life, with twice the variance."""
    rng = utility_generator(0)
    used = 3
    layers, noise, new = symmetric(rng, used), rng.uniform(0.1, 1, used), symmetric(rng, used)
    estimate = on_grid(used).with_layers(layers, noise, 1.0)
    assert estimate.discounted(1.0).doubt == estimate.doubt
    half = estimate.discounted(0.5).with_layers(new, noise, 1.0)
    np.testing.assert_allclose(half.all_moments(), np.cumsum(layers / 3 + 2 * new / 3, axis=0), atol=1e-12)
    np.testing.assert_allclose(half.noise[:used], noise * (1 / 9 + 4 / 9), atol=1e-12)
    counted = replace(estimate, records=800.0, looked=600.0).discounted(0.5)
    assert (counted.records, counted.looked) == (400.0, 300.0)
    # A moment that has moved by far more than its noise is forgotten.
    gone = estimate.discounted(1.0, 1e12).with_layers(new, noise, 1.0)
    np.testing.assert_allclose(gone.moment(1), new[:2].sum(axis=0), atol=1e-6)


@pytest.mark.parametrize("used", [2, 4, SLOTS])
@pytest.mark.parametrize("factor", [1.01, 2.0, 30.0, 1e30])
def test_a_grid_that_reaches_further_keeps_what_it_knew(used: int, factor: float) -> None:
    rng = utility_generator(0)
    radii = 3.0 * 1.5 ** np.arange(used)
    noise = rng.uniform(0.1, 1, used)
    estimate = on_grid(used, radii).with_layers(symmetric(rng, used), noise, 1.0)
    for chosen in range(used):
        grown = replace(estimate, chosen=chosen).extended_to(float(radii[-1]) * factor)
        grown.check()
        kept = np.flatnonzero(np.isin(radii, grown.radii))
        assert kept.size
        assert kept[-1] == used - 1
        now = grown.radii[: grown.used]
        # A jump that slots of this ratio do not reach takes a larger one: its batch must not be clipped.
        np.testing.assert_allclose(now[1:] / now[:-1], now[1] / now[0])
        assert now[1] / now[0] == pytest.approx(1.5) or factor > 1.5 ** (SLOTS - 1)
        assert now[-1] >= radii[-1] * factor * (1 - 1e-12)
        reported = np.diagonal(grown.noise_of_moments())
        for slot, old in enumerate(kept):
            assert grown.radii[slot] == radii[old]
            np.testing.assert_allclose(grown.moment(slot), estimate.moment(old), atol=1e-12)
            assert reported[slot] == pytest.approx(estimate.noise_of_moments()[old, old])
        for slot in range(len(kept), grown.used):
            np.testing.assert_allclose(grown.moment(slot), estimate.moment(used - 1), atol=1e-12)
            assert reported[slot] > 2 * reported[len(kept) - 1]
        if chosen in kept:
            assert grown.radii[grown.chosen] == radii[chosen]


def test_a_grid_that_reaches_far_enough_stays() -> None:
    estimate = on_grid(2)
    assert estimate.extended_to(2.0) is estimate
    assert estimate.extended_to(0.1) is estimate


def test_batches_weigh_as_in_other_layers_at_a_new_radius() -> None:
    """The state knows that records before the new radius hardly reached it."""
    rng = utility_generator(0)
    noise = np.ones(3)
    estimate = on_grid(2).with_layers(symmetric(rng, 2), noise[:2], 1.0).extended_to(4.0)
    shown = estimate.with_layers(np.stack([np.eye(D)] * 3), noise, 1.0)
    np.testing.assert_allclose(np.diag(shown.moment(2) - shown.moment(1)), 0.5)


def test_a_release_is_in_the_records_coordinates() -> None:
    rng = utility_generator(0)
    basis = orthonormalise(rng.standard_normal((D, D)))
    own = symmetric(rng, 1)
    weights = np.array([2.0, 1.0, 0.5])
    estimate = replace(CovarianceEstimate.empty(D), basis=basis, weights=weights)
    assert estimate.weighted
    noise = np.array([0.1])
    estimate = estimate.on_grid(np.array([1.0])).with_layers(basis.T @ own @ basis, noise, 1.0)
    np.testing.assert_allclose(estimate.released_moment(), own[0], atol=1e-12)
    np.testing.assert_allclose(estimate.turn, basis / np.sqrt(weights))
    assert CovarianceEstimate.empty(D).turn is None


def test_a_radius_that_is_set_later_takes_the_place_of_all() -> None:
    """A stream that found its radii later gets a fixed one in its settings."""
    found = make("analyze-gauss", epsilon=8.0)
    state = run(found, [records(found, 2000, i) for i in range(2)])
    assert state.covariance.used > 1
    fixed = make("analyze-gauss", epsilon=8.0, clip_radius=3.0)
    decoded = decode_fitting_state(fixed, encode_state(state))
    after = fixed.update(decoded, pack(fixed, records(fixed, 2000, 3)))
    assert after.covariance.used == 1
    assert after.covariance.radii[0] == 3.0
    known = sum(batch.present.latest_share for batch in (state, after))
    assert 2000 * known <= after.covariance.records <= 6000
    check_subspace(fixed, fixed.release(after))
    # Returning to the old settings keeps the fixed radius.
    decoded = decode_fitting_state(found, encode_state(after))
    again = found.update(decoded, pack(found, records(found, 2000, 4)))
    check_subspace(found, found.release(again))


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
    "negative noise": lambda m: with_entry(m, "noise", 0, -1.0),
    "noise of a radius that is not there": lambda m: with_entry(m, "noise", m.used, 1.0),
    "negative doubt": lambda m: replace(m, doubt=-1.0),
    "no doubt": lambda m: replace(m, doubt=0.0),
    "doubts": lambda m: replace(m, doubt=np.ones(SLOTS)),
    "huge layers": lambda m: with_entry(m, "layers", (0, 0), 1e308),
    "no layers": lambda m: replace(m, layers=None),
    "no weight": lambda m: weighted(m, 0.0),
    "a negative weight": lambda m: weighted(m, -1.0),
    "a long basis": lambda m: replace(m, basis=1e200 * m.basis),
    "another basis": lambda m: replace(m, basis=np.eye(2)),
    "layers of another shape": lambda m: replace(m, layers=m.layers[:2]),
    "layers of NaN": lambda m: with_entry(m, "layers", (0, 0), math.nan),
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


def test_hostile_numbers_of_the_other_parts_are_refused() -> None:
    estimator = make("adaptive", "auto")
    state: Any = run(estimator, [records(estimator, 500)])
    parts: list[tuple[str, Any]] = [
        ("variance", -1.0),
        ("noise", -1.0),
        ("level", math.inf),
        ("basis", 10 * np.ones((5, 2))),
    ]
    hostile = [{"block": replace(state.block, **{name: value})} for name, value in parts]
    hostile += [{"total": replace(state.total, **{name: -1.0})} for name in ("noise", "weight")]
    hostile += [{"mean_noise": -1.0}, {"mean_weight": -1.0}, {"mean_weight": math.inf}, {"batch": -1}]
    for changes in hostile:
        with pytest.raises((ValueError, TypeError)):
            decode_fitting_state(estimator, encode_state(replace(state, **changes)))


def test_a_memory_survives_its_bytes() -> None:
    estimator = make("adaptive", "auto", half_life="auto")
    data = encode_state(run(estimator, [records(estimator, 1500, i) for i in range(4)]))
    assert encode_state(decode_fitting_state(estimator, data)) == data
    start(estimator).covariance.check()
