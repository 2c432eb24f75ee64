"""The adaptive power method: its search, its filter, neighbours' effect on both, and accuracy."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.oja.deflation import DeflationState
from streaming_pca.estimators.power.adaptive_power import AdaptivePowerMethod
from streaming_pca.kernels.lattice import MATRIX_RADIUS, MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.calibration.multipliers import gaussian_multiplier
from streaming_pca.privacy.parameters import parse_rational
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Call, Floats, differing, made, mechanism_inputs, pack, start, watched
from tests.privacy.calibration.accounting import Gaussian, Mechanism, Pure, Route, delta_of
from tests.privacy.noise import ScriptedSampler, SeededSampler

D = 5


def make(how: Any = "none", *, dim: int = D, k: int = 2, **more: Any) -> AdaptivePowerMethod:
    return made(AdaptivePowerMethod, dim, k, how, **{"clip_radius": 8.0, "rounds": 3, **more})


def queries(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call.name == "AboveThreshold"]


def sums(calls: list[Call]) -> list[Call]:
    return [call for call in calls if call.name == "gaussian_on_vector"]


def records(how: Any, m: int, seed: int = 0) -> list[Any]:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((m, 1, D)) * np.linspace(2, 0.3, D)
    if how is RecordKind.MATRIX:
        return [x.T @ x - 0.3 * np.eye(D) for x in rows]
    return list(rows)


def second_component(estimator: AdaptivePowerMethod, how: Any, m: int) -> DeflationState:
    """Return a state with one component projected out."""
    with replace_noise_sampler(SeededSampler()):
        state = estimator.update(start(estimator), pack(estimator, records(how, m, 5)))
    assert (state.component, state.outcome) == (1, "learnt")
    return state


@pytest.mark.parametrize("how", ["none", "pairs", RecordKind.MATRIX], ids=str)
@pytest.mark.parametrize("component", [0, 1])
def test_neighbours_move_counts_by_one_and_sums_by_the_sensitivity(how: Any, component: int) -> None:
    """The bound 2 * 2**26 on integers that receive noise is attained, given equal answers.

    Records lie far above, at and below the threshold, are opposite or null, or overflow.
    """
    m = 4000
    estimator = make(how, epsilon=8.0, clip_radius=40.0)
    state = start(estimator) if component == 0 else second_component(estimator, how, m)
    items = records(how, m)
    places = (0, 1, m - 1)
    if how == "pairs":
        # If one half of a pair is zero, only the other half remains.
        places, zero = (0, 3, m - 1), np.zeros((1, D))
        items[1] = items[2] = items[m - 2] = zero
    whole = mechanism_inputs(estimator, items, state=state)
    answers = [call.answer for call in whole]
    assert [call.args for call in sums(whole)] == [(estimator._sigma,)] * 3
    fired = [call.answer for call in queries(whole)].index(True)
    assert fired < estimator.options.octaves
    theta = estimator.options.clip_radius * 2.0 ** (fired - estimator.options.octaves)
    x = state.basis[:, component : component + 1]
    far = np.linalg.svd(state.basis[:, : component + 1], full_matrices=True)[0][:, -1:]
    news: list[Any] = [None]
    for size in (1e-9, 0.5, 0.999, 1.001, 1e3, 1e100, 1e200, 1e307):
        for sign in (1, -1):
            if how is RecordKind.MATRIX:
                # |A x| has this size; the rows below have 0.1 |(0.1, 1)| times the square of their scale.
                news.append(sign * size * theta * (x @ far.T + far @ x.T))
            else:
                scale = math.sqrt(size) * math.sqrt(theta / 0.1 / math.hypot(0.1, 1) * (1 + (how == "pairs")))
                news.append(scale * (0.1 * x + sign * far).T)
    reached = 0
    for place in places:
        changed = []
        for new in news:
            neighbour = items.copy()
            neighbour[place] = new
            changed.append(mechanism_inputs(estimator, neighbour, answers, state))
        # All these inputs are neighbours of each other.
        for one, other in combinations([*changed, whole], 2):
            for a, b in zip(one, other, strict=True):
                distance = differing(a, b)
                assert distance <= (1 if a.name == "AboveThreshold" else (2 * MATRIX_RADIUS) ** 2)
                reached = max(reached, distance)
    # The claim is nearly attained.
    assert reached >= (1.9 * MATRIX_RADIUS) ** 2


def test_all_rounds_of_all_batches_compose_to_the_promise() -> None:
    """The accountant checks this independently of lattice_sigma; slightly less noise would not suffice."""
    for epsilon, delta, rounds, contributions in [(1.0, 1e-6, 3, 1), (0.3, 1e-9, 20, 1), (4.0, 1e-3, 5, 4)]:
        estimator = make(epsilon=epsilon, delta=delta, rounds=rounds, contributions=contributions)
        plan = estimator.plan(start(estimator))
        z = plan.parameters["sigma_over_sensitivity"]
        search = plan.parameters["search_epsilon"]
        met: list[Mechanism] = [Gaussian(z), Pure(search)] * rounds
        # 1e-9 of epsilon covers the floats of either route.
        assert delta_of(met, epsilon * (1 + 1e-9), Route.GDP, contributions) <= delta
        less: list[Mechanism] = [Gaussian(0.99 * z), Pure(search)] * rounds
        assert delta_of(less, epsilon, Route.GDP, contributions) > delta
        assert z >= math.sqrt(2 * rounds * contributions) * gaussian_multiplier(epsilon, delta) * (1 - 1e-12)
        assert plan.charge.epsilon == parse_rational(epsilon)
        assert plan.charge.delta == parse_rational(delta)
        least = rounds * contributions * (1 / Fraction(z) ** 2 + Fraction(search) ** 2) / 2
        assert least <= plan.charge.rho <= least * (1 + Fraction(1, 10**6))


def test_each_round_asks_one_search_and_one_sum() -> None:
    estimator = make(epsilon=8.0, rounds=4)
    seen = mechanism_inputs(estimator, records("none", 2000))
    assert len(sums(seen)) == 4
    assert sum(call.answer for call in queries(seen)) <= 4
    epsilon = estimator.plan(start(estimator)).parameters["search_epsilon"]
    threshold = 2000 - math.ceil(6 * math.log(100) / epsilon)
    assert {call.args for call in queries(seen)} == {(threshold, epsilon)}


def filtered(estimator: AdaptivePowerMethod, items: list[Any]) -> tuple[float, NDArray[np.int64], int]:
    """Return theta of a single round without noise, the sum that gets noise, and the clipped count."""
    with replace_noise_sampler(ScriptedSampler()), watched() as seen:
        _, clipped = estimator.learn_batch(start(estimator), pack(estimator, items))
    fired = [call.answer for call in queries(seen)]
    octave = estimator.options.octaves - fired.index(True) if True in fired else 0
    return estimator.options.clip_radius * 2.0**-octave, sums(seen)[0].values, clipped


def sizes(estimator: AdaptivePowerMethod, items: list[Any]) -> Floats:
    x = start(estimator).basis[:, 0]
    return np.array([0.0 if r is None else np.linalg.norm(r.T @ (r @ x)) for r in items])


def test_the_threshold_is_the_least_power_of_two_that_hardly_any_record_is_above() -> None:
    estimator = make(k=1, epsilon=8.0, share=0.1, rounds=1, clip_radius=1e6)
    items: list[Any] = [None if i % 10 == 3 else r for i, r in enumerate(records("none", 3000))]
    items[5] = 1e3 * items[5]
    theta, total, clipped = filtered(estimator, items)
    exact = sizes(estimator, items)
    slack = estimator._slack
    assert (exact <= theta).sum() >= 3000 - slack > (exact <= theta / 2).sum()
    # Only records within theta enter; each is off by half a unit a coordinate.
    kept = exact <= theta
    assert clipped == 3000 - kept.sum() >= 1
    x = start(estimator).basis[:, 0]
    expected = sum(r.T @ (r @ x) for r, k in zip(items, kept, strict=True) if k and r is not None)
    np.testing.assert_allclose(total * theta / MATRIX_RADIUS, expected, atol=3000 * theta / 2**26)


def test_records_above_a_threshold_are_left_out_but_those_above_the_bound_scaled_down() -> None:
    for bound, left_out in ((2.0**4, True), (2.0**-9, False)):
        estimator = make(k=1, epsilon=8.0, share=0.1, rounds=1, clip_radius=bound, octaves=11)
        one = records("none", 1)[0]
        size = sizes(estimator, [one])[0]
        one = one * np.sqrt(2.0**-5.5 / size)
        items = [one] * 2000
        items[7] = 1e3 * one
        theta, total, clipped = filtered(estimator, items)
        assert theta == (2.0**-5 if left_out else bound)
        assert clipped == (1 if left_out else 2000)
        length = np.linalg.norm(total) / MATRIX_RADIUS
        assert length == pytest.approx(1999 * 2.0**-0.5 if left_out else 2000, rel=1e-6)


def test_a_neighbour_moves_the_number_of_clipped_records_by_one_at_most() -> None:
    estimator = make(k=1, epsilon=8.0, share=0.1, rounds=3)
    items = records("none", 2000)
    state = start(estimator)
    with replace_noise_sampler(SeededSampler()), watched() as whole:
        _, clipped = estimator.learn_batch(state, pack(estimator, items))
    assert clipped > 0
    answers = [call.answer for call in whole]
    for place in range(0, 200, 10):
        for new in (None, 1e3 * items[0], 1e-3 * items[0]):
            neighbour = items.copy()
            neighbour[place] = new
            with watched(answers):
                assert abs(estimator.learn_batch(state, pack(estimator, neighbour))[1] - clipped) <= 1


def test_the_window_is_what_the_options_say() -> None:
    assert make(batch_size=5000).plan(start(make())).count == 5000
    estimator = make(k=3, n_records=100_000)
    plan = estimator.plan(start(estimator))
    assert plan.count == 33_333
    assert plan.count <= estimator.options.largest_batch
    assert 0 < plan.least == 2 * estimator._slack <= plan.count
    paired = make("pairs", n_records=100_002).plan(start(make()))
    assert (paired.count, paired.granularity, paired.least) == (50_000, 2, 4 * make()._slack)
    assert make(n_records=2**40, k=1).plan(start(make())).count == MAX_RECORDS
    assert make(k=5, n_records=1).plan(start(make())).count == 1


# Utility, with real secret noise.


def learn(estimator: AdaptivePowerMethod, x: Floats) -> Floats:
    state = start(estimator)
    for part in np.array_split(x, estimator.k):
        state = estimator.update(state, ArrayBatch.of_vectors(part))
        assert state.outcome == "learnt"
    return estimator.release(state).components


def test_it_finds_the_leading_direction_as_theorem_1_1_says() -> None:
    """[NguyenEneNguyen2026, Theorem 1.1].

    If kappa > 4 (K Y/(e s) + K^2/(e s^2)), then sin^2(v, x) <= B, where
    B = ((sqrt(min(4 n/s^2, d))/(e s^2 sqrt(kappa)) + 1/(e s^2 kappa) + sqrt(d)/(e s^2)) sqrt(T) K s Y
    + K T d (1 + kappa/2)^-T)^2, s and Y the first singular value and its coherence, K = ln(T n/(beta delta)).

    Rows +-v plus noise of 0.05, scaled to length one at most (|x| < 1.5): the theorem's epsilon
    covers one mechanism, 0.16. Evaluated below with constants of 1: kappa = 0.997 > 0.65; B = 0.02. The
    remaining noise is far smaller: a coordinate of the mean gets 2 theta z/n <= 2 2.25 5.1/10^5,
    four of them 0.0005; and 30 steps with a ratio above 100 leave nothing of the start.
    A probability of failure below 1e-6: eight deviations more are below 0.0024 < 0.005.
    """
    n, rounds, epsilon, delta, beta = 100_000, 30, 8.0, 1e-6, 0.01
    rng = utility_generator(3)
    v = orthonormalise(rng.standard_normal((D, 1)))
    x = rng.choice([-1.0, 1.0], (n, 1)) * v.T + 0.05 * rng.standard_normal((n, D))
    estimator = make(k=1, epsilon=epsilon, delta=delta, rounds=rounds, clip_radius=2.25, octaves=12)
    found = learn(estimator, x)

    left, values, right = np.linalg.svd(x / 1.5, full_matrices=False)
    s2, y = values[0] ** 2, np.abs(left[:, 0]).max()
    e, big = estimator._search_epsilon, math.log(rounds * n / (beta * delta))
    kappa = 1 - (values[1] / values[0]) ** 2
    assert kappa > 4 * (big * y / (e * math.sqrt(s2)) + big**2 / (e * s2))
    noise = math.sqrt(min(4 * n / s2, D) / kappa) + 1 / kappa + math.sqrt(D)
    noise *= math.sqrt(rounds) * big * math.sqrt(s2) * y / (e * s2)
    bound = (noise + big * rounds * D * (1 + kappa / 2) ** -rounds) ** 2
    assert bound < 0.2
    sine = subspace_error(found, right[:1]) / math.sqrt(2)
    assert sine**2 <= bound
    assert sine < 0.005


def test_a_loose_bound_costs_next_to_nothing() -> None:
    """Thetas are at most twice the size; a fixed clip at the bound would have 10^6 times the noise.

    Records' products are at most 2 in length; noise of the mean is 2 theta z/n = 2 4 2.4/10^4 = 0.002 a
    coordinate at the end (z = sqrt(2 8) 0.6 at epsilon 8, 1e-6), against a gap of 0.9: five
    coordinates at eight deviations turn it by less than 0.05.
    """
    rng = utility_generator(4)
    x = rng.uniform(-1, 1, (10_000, D)) * [1.7, 0.3, 0.3, 0.3, 0.3]
    errors = [
        subspace_error(learn(make(k=1, epsilon=8.0, rounds=8, clip_radius=bound), x), np.eye(1, D))
        for bound in (4.0, 4e6)
    ]
    assert max(errors) < 0.05


def test_deflation_on_disjoint_windows_finds_a_subspace() -> None:
    """Variances 3 and 1 among 0.01; products at most 3 3.5 < 16: noise below 2 16 2.4/20000 = 0.004 each.

    The second window's iterate is off by that over its gap of 1, and the first one's by it over 2,
    plus 8 steps at a ratio of 1/3: 0.0002. Eight deviations of six coordinates: below 0.1.
    """
    rng = utility_generator(5)
    scales = np.array([3.0, 1.7, 0.1, 0.1, 0.1, 0.1])
    x = rng.uniform(-1, 1, (40_000, 6)) * scales
    found = learn(make(dim=6, epsilon=8.0, rounds=8, clip_radius=100.0), x)
    assert subspace_error(found, np.eye(6)[:2]) < 0.1
