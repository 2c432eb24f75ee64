"""The private mean: its mechanisms on neighbours, its accuracy, and its use by estimators.

Where a test draws secret noise, its docstring gives the probability of failing by chance.
"""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtri

from streaming_pca import PrivatePCA
from streaming_pca.api.model_file import decode_model_state
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators import private_mean as mean_module
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.common.state import decode_state, encode_state
from streaming_pca.estimators.private_mean import PrivateMean, clipped_mean_sum
from streaming_pca.estimators.registry import ESTIMATORS, find
from streaming_pca.kernels.record_means import MEAN_RADIUS
from streaming_pca.linalg.subspace import subspace_error
from streaming_pca.privacy.calibration.multipliers import gaussian_delta, pure_epsilon
from streaming_pca.privacy.mechanisms import gaussian_on_vector, private_quantile
from streaming_pca.privacy.mechanisms.pure import counts_at_most
from streaming_pca.privacy.parameters import PrivacyParameters, parse_rational
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.privacy.noise import ScriptedSampler, SeededSampler

D = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "adadpo": {"batch_size": 4000},
    "adaptive-power": {"clip_radius": 40.0, "batch_size": 4000, "rounds": 2},
    "dp-pca": {"batch_size": 4000},
    # Fewer than remain of 4,000 records: the estimator uses only this many of a larger batch.
    "k-dp-ojas": {"clip_radius": 20.0, "batch_size": 3000},
    "k-dp-pca": {"batch_size": 4000},
    "noisy-power": {"clip_l2": 6.0, "batch_size": 4000},
    "output-perturbation": {"clip_radius": 40.0, "batch_size": 4000},
    "private-oja": {"clip_radius": 20.0, "batch_size": 4000, "learning_rate": 5.0, "offset": 0.0},
    "tadadpo": {"batch_size": 4000},
    "tensor-private": {"clip_radius": 6.0, "batch_size": 4000, "whitening": False},
}
CENTRED = [name for name, kind in ESTIMATORS.items() if "auto" in kind.centerings and not kind.finds_centre]
"""Estimators that can use a private mean; estimators that find it themselves are in test_centre."""
REACHED = ("noisy-power", "output-perturbation", "private-oja")
"""Estimators with plenty of information in 20,000 records at an epsilon of 8."""


def rank(name: str) -> int:
    return 1 if name == "dp-pca" else 2


def test_every_estimator_is_in_this_suite() -> None:
    assert set(OPTIONS) == set(CENTRED)


def preprocessing(dim: int = D, **more: Any) -> Preprocessing:
    return Preprocessing(dim=dim, centering="auto", **more)


def private_mean(
    dim: int = D, epsilon: float = 1.0, delta: float = 1e-6, contributions: int = 1, **more: Any
) -> PrivateMean:
    privacy = PrivacyParameters(epsilon=epsilon, delta=delta, contributions=contributions)
    return PrivateMean(privacy, preprocessing(dim, **more))


def make(name: str, *, epsilon: float = 1.0, share: float = 0.0, **more: Any) -> Estimator[Any, Any]:
    kind = find(name)
    return kind(
        D,
        rank(name),
        PrivacyParameters(epsilon=epsilon, delta=1e-6),
        preprocessing(**more),
        kind.options_type(**OPTIONS[name]),
        share,
    )


def total(records: list[Any], radius: float = 1.0, **more: Any) -> list[int]:
    about = preprocessing(**more).about(np.full(D, 0.25))
    return [int(v) for v in clipped_mean_sum(ArrayBatch.of_records(records, D), about, radius)]


def distance_squared(a: list[int], b: list[int]) -> int:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


# The sum.

EXTREME = [
    None,
    np.zeros((1, D)),
    np.full((1, D), 0.25),
    np.full((1, D), 1e308),
    np.full((1, D), -1.7e308),
    np.full((1, D), 5e-324),
    np.array([[1e308, 5e-324, -1e-300, 1.0]]),
    np.array([[1.7e308] * D, [1.7e308] * D, [-1.7e308] * D]),
    np.full((3, D), 1e308),
    np.array([[3.0, 0.0, 0.0, 0.0]]),
    np.array([[-3.0, 0.0, 0.0, 0.0]]),
]


@pytest.mark.parametrize("radius", [1e-90, 1e-3, 1.0, 0.7, 1e90])
@pytest.mark.parametrize("more", [{}, {"scale": 3.0}, {"bounds": (-1.0, 2.0)}], ids=str)
def test_no_record_adds_more_than_the_radius_and_no_replacement_moves_more_than_twice_it(
    radius: float, more: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    records = [*EXTREME, *(rng.standard_normal((r, D)) * 10.0**e for r in (1, 5) for e in range(-9, 10, 3))]
    alone = [total([r], radius, **more) for r in records]
    for a in alone:
        assert distance_squared(a, [0] * D) <= MEAN_RADIUS**2
    for i in range(0, len(records), 3):
        others = [records[(i + 7 * j) % len(records)] for j in range(20)]
        for j in range(len(records)):
            first, second = (total([*others, r], radius, **more) for r in (records[i], records[j]))
            assert distance_squared(first, second) <= (2 * MEAN_RADIUS) ** 2
            assert [x - y for x, y in zip(first, second, strict=True)] == [
                x - y for x, y in zip(alone[i], alone[j], strict=True)
            ]


def test_opposite_records_are_as_far_apart_as_the_sensitivity_says() -> None:
    """Otherwise the noise would be too large; the check's margin is some units of 2**40."""
    a, b = (total([np.array([[s * 1e6, 0.25, 0.25, 0.25]])]) for s in (1, -1))
    assert distance_squared(a, b) >= (2 * (MEAN_RADIUS - 10)) ** 2


def test_rounding_never_takes_a_record_above_the_radius() -> None:
    """Norms equal the radius up to rounding, checked in integers of any size."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((3000, 7))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    about = Preprocessing(dim=7, centering=np.zeros(7))
    out = np.array([clipped_mean_sum(ArrayBatch.of_vectors(row[None]), about, 1.0) for row in rows])
    norms = [sum(int(v) ** 2 for v in row) for row in out]
    assert max(norms) <= MEAN_RADIUS**2
    assert min(norms) >= (MEAN_RADIUS - 10) ** 2
    np.testing.assert_allclose(out / MEAN_RADIUS, rows, atol=1e-11)


def test_a_record_adds_the_mean_of_its_rows_and_a_null_record_nothing() -> None:
    x = np.random.default_rng(2).standard_normal((5, D)) * 0.1
    unit = 2.0**-40
    np.testing.assert_allclose(np.array(total([x])) * unit, x.mean(axis=0) - 0.25, atol=1e-11)
    assert total([None, None]) == [0] * D
    assert total([x, None, x, None]) == [2 * v for v in total([x])]


def test_the_cut_into_blocks_changes_nothing() -> None:
    """2**13 records of the radius fill the 53 bits of a float64."""
    x = np.random.default_rng(3).standard_normal((20_000, D))
    x[:9000] = [1e9, 0, 0, 0]
    about = preprocessing().about(np.zeros(D))
    whole = clipped_mean_sum(ArrayBatch.of_vectors(x), about, 1.0)
    parts = [
        clipped_mean_sum(ArrayBatch.of_vectors(x[i : i + 777]), about, 1.0) for i in range(0, 20_000, 777)
    ]
    assert np.array_equal(whole, np.sum(parts, axis=0))


# The mechanisms on neighbours.


def watched(pm: PrivateMean, records: list[Any], weight: float) -> list[tuple[str, Any, tuple[Any, ...]]]:
    """Return inputs of the mechanisms of one share, with fixed answers."""
    seen: list[tuple[str, Any, tuple[Any, ...]]] = []

    def quantile(counts: Any, size: int, candidates: Any, *args: Any) -> float:
        seen.append(("quantile", counts.copy(), (size, candidates.tolist(), *args)))
        return 1.25

    def gaussian(values: Any, *args: Any) -> NDArray[np.int64]:
        seen.append(("gaussian", [int(v) for v in values], args))
        return np.full(D, 12345, dtype=np.int64)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mean_module, "private_quantile", quantile)
        patch.setattr(mean_module, "gaussian_on_vector", gaussian)
        pm.refresh(np.full(D, 0.5) if weight else None, weight, ArrayBatch.of_records(records, D))
    return seen


@pytest.mark.parametrize("weight", [0.0, 500.0])
@pytest.mark.parametrize("more", [{}, {"bounds": (-3.0, 4.0), "scale": 2.0}], ids=str)
def test_a_replaced_record_reaches_one_mechanism_within_its_sensitivity(
    weight: float, more: dict[str, Any]
) -> None:
    pm = private_mean(**more)
    rng = np.random.default_rng(4)
    items: list[Any] = list(rng.standard_normal((300, 1, D)))
    whole = watched(pm, items, weight)
    assert [kind for kind, _, _ in whole] == ["quantile", "gaussian"] * (1 if weight else 2)
    for place in (0, 10, 70, 149, 150, 160, 299):
        for new in EXTREME:
            neighbour = items.copy()
            neighbour[place] = new
            changed = 0
            for (kind, a, args), (_, b, same) in zip(whole, watched(pm, neighbour, weight), strict=True):
                assert repr(args) == repr(same)
                if kind == "quantile":
                    assert np.abs(a - b).max() <= 1
                    changed += bool((a != b).any())
                else:
                    sensitivity = Fraction(args[-1] / pm.parameters["sigma_over_sensitivity"] * (1 + 1e-12))
                    assert distance_squared(a, b) <= sensitivity**2
                    changed += a != b
            assert changed <= 1


def test_what_is_cut_depends_on_numbers_only() -> None:
    pm = private_mean()
    full = watched(pm, [np.ones((1, D))] * 300, 0.0)
    empty = watched(pm, [None] * 300, 0.0)
    assert [(kind, args) for kind, _, args in full] == [(kind, args) for kind, _, args in empty]


@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("epsilon", [0.1, 1.0, 8.0])
def test_each_mechanism_costs_the_promise_and_not_more(epsilon: float, contributions: int) -> None:
    delta = 1e-6
    pm = private_mean(epsilon=epsilon, contributions=contributions)
    z, pure = pm.parameters["sigma_over_sensitivity"], pm.parameters["radius_epsilon"]
    together = gaussian_delta(epsilon, z / math.sqrt(contributions))
    assert 0.99 * delta <= together <= delta
    assert pure <= epsilon
    # Over several batches the quantile is as private as the sum: see pure_epsilon.
    assert contributions == 1 or -2 * ndtri(1 / (1 + math.exp(pure))) <= (1 + 1e-9) / z
    charge = pm.charge
    assert (charge.epsilon, charge.delta) == (parse_rational(epsilon), parse_rational(delta))
    assert charge.rho is not None
    assert charge.rho >= contributions * max(1 / (2 * Fraction(z) ** 2), Fraction(pure) ** 2 / 2) * (
        1 - Fraction(1, 10**9)
    )


def test_rhos_of_a_mean_add_up_where_each_batch_costs_a_part() -> None:
    """The estimator's noise is so large that its rho alone would not cover the mean's."""
    kind = find("k-dp-ojas")
    privacy = PrivacyParameters(epsilon=1.0, delta=1e-6, contributions=20)
    options = kind.options_type(clip_radius=1.0, noise_multiplier=50.0)
    estimator = kind(D, 1, privacy, preprocessing(), options)
    plan = estimator.plan(estimator.init(utility_generator(0)))
    rho = Fraction(plan.parameters["mean"]["radius_epsilon"]) ** 2 / 2
    assert plan.charge.rho is not None
    assert plan.charge.rho >= 20 * rho * (1 - Fraction(1, 10**9))


@pytest.mark.parametrize("name", CENTRED)
def test_a_user_in_any_mix_of_batches_is_within_the_promise(name: str) -> None:
    """A batch's mean costs at most as much as its estimator."""
    kind = find(name)
    radius = "clip_l2" if name == "noisy-power" else "clip_radius"
    options = {radius: 1.0} if radius in kind.options_type.model_fields else {}
    privacy = PrivacyParameters(epsilon=1.0, delta=1e-6, contributions=4)
    estimator = kind(D, rank(name), privacy, preprocessing(), kind.options_type(**options))
    plan = estimator.plan(estimator.init(utility_generator(0)))
    of_mean = plan.parameters["mean"]
    rho = (
        max(1 / Fraction(of_mean["sigma_over_sensitivity"]) ** 2, Fraction(of_mean["radius_epsilon"]) ** 2)
        / 2
    )
    assert plan.charge.rho is None or plan.charge.rho >= 4 * rho * (1 - Fraction(1, 10**9))
    multiplier = of_mean["sigma_over_sensitivity"]
    # Each batch costs a quarter of the promise, or all four together cost the whole.
    batches, epsilon, delta = (1, 0.25, 2.5e-7) if kind.in_parts else (4, 1.0, 1e-6)
    left = delta * (0.9 if name == "output-perturbation" else 1.0)
    assert gaussian_delta(epsilon, multiplier / math.sqrt(batches)) <= left
    assert of_mean["radius_epsilon"] <= (0.25 if kind.in_parts else pure_epsilon(multiplier * (1 - 1e-12)))


# The radius.


def radii(pm: PrivateMean, x: NDArray[np.float64], n: int = 20) -> NDArray[np.float64]:
    about = pm._preprocessing.about(np.zeros(x.shape[1]))
    return np.array([pm._radius(ArrayBatch.of_vectors(x), about) for _ in range(n)])


@pytest.mark.parametrize("records", [64, 200, 600])
@pytest.mark.parametrize("size", [1.0, 1.02, 1000.0, 1e-3])
def test_sizes_that_are_all_equal_are_found(records: int, size: float) -> None:
    """Candidates above all records tie: probability 2e-4 a draw by the scores' margin of 16 at 64 records.

    80 draws at 64 records would fail one run in sixty: the noise is fixed.
    """
    x = np.zeros((records, D))
    x[:, 0] = size
    with replace_noise_sampler(SeededSampler(0)):
        found = radii(private_mean(), x)
    assert found.min() >= size * 0.9
    assert found.max() <= size * math.sqrt(2) * 1.03


def test_spreading_is_what_finds_them() -> None:
    """The same mechanism on the sizes themselves draws among all candidates above."""
    sizes = np.full(600, 1000.0)
    candidates = 2.0 ** np.arange(-20, 30.1, 1 / 8)
    counts = counts_at_most(sizes, candidates)
    found = [private_quantile(counts, 600, candidates, 0.9, 1.0) for _ in range(40)]
    assert max(found) > 1e5


def test_null_records_have_the_least_radius() -> None:
    """A share without records must not bring noise of the largest radius."""
    pm = private_mean()
    about = pm._preprocessing.about(np.zeros(D))
    found = [pm._radius(ArrayBatch.of_records([None] * 600, D), about) for _ in range(20)]
    assert max(found) < 2.0**-19


def test_the_radius_follows_the_quantile_and_stays_within_the_bounds() -> None:
    x = np.random.default_rng(5).standard_normal((600, D))
    sizes = np.linalg.norm(x, axis=1)
    found = radii(private_mean(), x)
    assert np.quantile(sizes, 0.75) < found.min()
    assert found.max() < sizes.max() * math.sqrt(2)
    bounded = radii(private_mean(bounds=(-0.5, 0.5)), 100 * x)
    assert bounded.max() <= 2.0


@pytest.mark.parametrize("value", [1e300, 5e-324, 1e-200])
def test_extreme_records_leave_a_finite_mean(value: float) -> None:
    pm = private_mean()
    batch = ArrayBatch.of_vectors(np.full((600, D), value))
    mean, weight = pm.refresh(None, 0.0, batch)
    assert np.isfinite(mean).all()
    again, _ = pm.refresh(mean, weight, batch)
    assert np.isfinite(again).all()


@pytest.mark.parametrize("bound", [1e-200, 1e-3, 1e200])
def test_the_mean_stays_within_the_bounds(bound: float) -> None:
    pm = private_mean(bounds=(-bound, (bound, 2 * bound, bound, bound)))
    assert PrivateMean.start_of(pm._preprocessing).tolist() == [0.0, bound / 2, 0.0, 0.0]
    mean, _ = pm.refresh(None, 0.0, ArrayBatch.of_vectors(np.full((200, D), 1e300)))
    assert np.all((mean >= -bound) & (mean <= 2 * bound))


# Accuracy.


def shifted(m: int, seed: int = 0, distance: float = 20.0) -> NDArray[np.float64]:
    """Return rows about (distance, -distance, ...), with variances 9, 4, 0.04, 0.04."""
    rng = np.random.default_rng(seed)
    return rng.standard_normal((m, D)) * [3.0, 2.0, 0.2, 0.2] + distance * np.resize([1.0, -1.0], D)


def test_the_error_is_that_of_the_noise() -> None:
    """About the true mean, R <= 13: deviations sigma = R 2 z/m, z < 4.3, m = 3600, are below 0.04.

    With those of the records, 3/60, below 0.07; clipping shrinks no direction more
    than the other, as records are symmetric. Six deviations: chance below 1e-8.
    """
    x = shifted(4000, 1, 0.0)
    mean, weight = private_mean().refresh(np.zeros(D), 1e-9, ArrayBatch.of_vectors(x))
    assert weight == pytest.approx(3400, abs=1)
    assert np.abs(mean).max() < 0.42


def test_without_noise_the_mean_is_that_of_the_clipped_records() -> None:
    x = shifted(4000, 2)
    with replace_noise_sampler(ScriptedSampler()):
        mean, _ = private_mean().refresh(None, 0.0, ArrayBatch.of_vectors(x))
    np.testing.assert_allclose(mean, x.mean(axis=0), atol=0.4)


def test_scaled_features_have_a_mean_in_units_of_the_data() -> None:
    x = shifted(4000, 3) * [1.0, 1e3, 1e6, 1e-3]
    with replace_noise_sampler(ScriptedSampler()):
        pm = private_mean(scale=(1.0, 1e-3, 1e-6, 1e3))
        mean, _ = pm.refresh(None, 0.0, ArrayBatch.of_vectors(x))
    np.testing.assert_allclose(mean * [1.0, 1e-3, 1e-6, 1e3], 20 * np.resize([1.0, -1.0], D), atol=0.4)


def test_a_second_round_goes_about_the_first_one() -> None:
    """One round is clipped at 1000 or more: noise of 8 a feature or more; two of them at 100 or less, 0.8.

    R2 is the first round's error, |noise| < 6 16 = 100 except for 1e-8. Six deviations again.
    """
    x = shifted(4000, 4, 500.0)
    mean, _ = private_mean().refresh(None, 0.0, ArrayBatch.of_vectors(x))
    assert np.abs(mean - x.mean(axis=0)).max() < 6


@pytest.mark.parametrize("name", CENTRED)
def test_the_mean_is_refreshed_over_batches(name: str) -> None:
    """It follows no single batch: weights are counts, and the error falls.

    Noise of a later batch: R 2 z/m with R < 60, m = 200, z < 4.3: 2.6; after 12
    batches 2.6/sqrt(12) = 0.75 and the first one's rest. Six deviations are 4.5.
    """
    estimator = make(name)
    state = estimator.init(utility_generator(0))
    assert (state.mean, state.mean_weight) == (None, 0.0)
    weights = []
    for i in range(12):
        state = estimator.update(state, ArrayBatch.of_vectors(shifted(4000, i)))
        weights.append(state.mean_weight)
        assert state.records == 4000 * (i + 1)
    assert np.all(np.diff([0.0, *weights]) > 0)
    assert np.abs(state.mean - 20 * np.resize([1.0, -1.0], D)).max() < 4.5


@pytest.mark.parametrize("name", CENTRED)
def test_a_batch_is_learnt_about_the_mean_of_its_own_share(name: str) -> None:
    """Without noise, the share's mean is subtracted from the rest of the same batch."""
    estimator = make(name)
    start = estimator.init(utility_generator(0))
    with replace_noise_sampler(ScriptedSampler()):
        state = estimator.update(start, ArrayBatch.of_vectors(shifted(4000, 1)))
        about = make(name).__class__(
            D,
            rank(name),
            estimator.privacy,
            Preprocessing(dim=D, centering=tuple(state.mean.tolist())),
            estimator.options,
        )
        first = estimator.private_mean.records(4000, 0.0) if estimator.private_mean else 0
        expected = about.update(start, ArrayBatch.of_vectors(shifted(4000, 1)[first:]))
    a, b = estimator.release(state), about.release(expected)
    assert np.array_equal(a.components, b.components)
    assert np.array_equal(a.explained_variance, b.explained_variance)


# In an estimator.


@pytest.mark.parametrize("name", CENTRED)
def test_every_estimator_takes_part_through_the_base_class(name: str) -> None:
    """An override of these methods would omit the mean, or the counts."""
    for method in ("plan", "update", "release"):
        assert getattr(find(name), method) is getattr(Estimator, method), f"{name}: name it _{method}"


@pytest.mark.parametrize("name", CENTRED)
def test_the_plan_names_and_charges_the_mean(name: str) -> None:
    estimator = make(name)
    plan = estimator.plan(estimator.init(utility_generator(0)))
    of_mean = plan.parameters["mean"]
    assert of_mean["mechanism"] == "mean"
    assert of_mean.keys() == {
        "mechanism",
        "share",
        "first_share",
        "largest_share",
        "first_rounds",
        "clip_quantile",
        "radius_range",
        "radius_epsilon",
        "sigma_over_sensitivity",
    }
    assert (plan.charge.epsilon, plan.charge.delta) == (1, Fraction(1, 10**6))
    if plan.charge.rho is not None:
        assert plan.charge.rho >= 1 / (2 * Fraction(of_mean["sigma_over_sensitivity"]) ** 2)
    assert 640 <= plan.least <= plan.count
    bounded = make(name, bounds=(-1.0, 3.0), scale=2.0)
    assert bounded.plan(bounded.init(utility_generator(0))).parameters["mean"]["radius_range"][1] == 16.0


@pytest.mark.parametrize("name", CENTRED)
def test_what_is_reserved_holds_for_the_centred_copy(name: str) -> None:
    estimator = make(name, bounds=(-1.0, 3.0))
    state = estimator.init(utility_generator(0))
    copy = estimator._about(np.full(D, 2.0))
    assert type(copy) is type(estimator)
    assert copy.preprocessing.centre == (2.0,) * D
    assert estimator.preprocessing.centre is None
    assert copy.plan(state) == estimator.plan(state)


@pytest.mark.parametrize("name", CENTRED)
def test_a_batch_that_is_too_small_for_a_share_leaves_the_mean(name: str) -> None:
    estimator = make(name)
    state = estimator.init(utility_generator(0))
    small = estimator.update(state, ArrayBatch.of_vectors(shifted(100)))
    assert (small.mean.tolist(), small.mean_weight, small.records) == ([0.0] * D, 0.0, 100)
    large = estimator.update(small, ArrayBatch.of_vectors(shifted(4000)))
    again = estimator.update(large, ArrayBatch.of_vectors(shifted(100)))
    assert large.mean_weight == again.mean_weight > 0
    assert np.array_equal(large.mean, again.mean)


@pytest.mark.parametrize("name", CENTRED)
def test_null_records_and_records_of_many_rows_go_through(name: str) -> None:
    estimator = make(name)
    state = estimator.init(utility_generator(0))
    rng = np.random.default_rng(0)
    records = [None if i % 3 == 0 else rng.standard_normal((1 + i % 4, D)) + 5 for i in range(4000)]
    for _ in range(3):
        state = estimator.update(state, ArrayBatch.of_records(records, D))
    release = estimator.release(state)
    assert release.mean is not None
    assert np.isfinite(release.mean).all()
    k = rank(name)
    np.testing.assert_allclose(release.components @ release.components.T, np.eye(k), atol=1e-12)


@pytest.mark.parametrize("name", CENTRED)
def test_a_state_with_a_mean_survives_its_bytes(name: str) -> None:
    estimator = make(name)
    state = estimator.update(estimator.init(utility_generator(0)), ArrayBatch.of_vectors(shifted(4000)))
    again: Any = decode_state(estimator.state_type, encode_state(state))
    assert again.mean.tobytes() == state.mean.tobytes()
    assert again.mean_weight == state.mean_weight > 0
    assert encode_state(again) == encode_state(state)


def test_a_state_of_before_there_were_means_is_read() -> None:
    estimator = make("private-oja")
    state = estimator.init(utility_generator(0))
    data = encode_state(state)
    for name in (b'"mean": null, ', b'"mean_weight": "0x0.0p+0", '):
        assert name in data
    fields = {k: getattr(state, k) for k in ("batch", "records", "basis", "inner", "components")}
    assert encode_state(estimator.state_type(**fields)) == data


@pytest.mark.parametrize("name", CENTRED)
def test_counts_are_of_all_records(name: str) -> None:
    """Counts include null records in the share."""
    estimator = make(name, share=0.5)
    rows = np.random.default_rng(0).standard_normal((4000, 1, D))
    records = [None if i % 4 == 0 else row for i, row in enumerate(rows)]
    with replace_noise_sampler(ScriptedSampler()):
        state = estimator.update(estimator.init(utility_generator(0)), ArrayBatch.of_records(records, D))
    assert state.counts is not None
    assert state.counts[0] == 1000


@pytest.mark.parametrize("scale", [None, (1.5, 1.0, 2.0, 2.0)])
@pytest.mark.parametrize("name", REACHED)
def test_private_pca_finds_mean_and_components_of_shifted_records(name: str, scale: Any) -> None:
    """Errors are nearly as small as about the exact mean, relative to the exact components.

    Noise of the second round's mean: R 2 z/m = 20 2 0.8/300 < 0.11 a feature, for
    z(8, 1e-6) < 0.8. A centre that is off by 6 such, 0.7, in each of four features
    adds 2 to a spectrum with a gap of 4 or more. The scale leaves that gap and brings
    the mean nearer: dividing by less than 1 would make R and the noise larger.
    """
    x = shifted(20_000, 7)
    options = {k: v for k, v in OPTIONS[name].items() if "batch" not in k}
    mean = x.mean(axis=0)
    private, exact = (
        PrivatePCA(
            2, epsilon=8.0, estimator=name, centering=how, scale=scale, random_state=0, options=options
        ).fit(x)
        for how in ("auto", mean)
    )
    assert np.abs(private.mean_ - mean).max() < 1.5
    errors = [subspace_error(pca.components_, np.eye(2, D)) for pca in (private, exact)]
    assert errors[0] < errors[1] + 0.3
    assert private.privacy_spent_.epsilon == 8


def test_a_saved_model_keeps_its_mean(tmp_path: Any) -> None:
    options = {"clip_radius": 20.0}
    pca = PrivatePCA(2, estimator="private-oja", centering="auto", options=options)
    pca.partial_fit(shifted(4000)).save(tmp_path / "model")
    again = PrivatePCA.load(tmp_path / "model")
    assert np.array_equal(again.mean_, pca.mean_)
    again.partial_fit(shifted(4000, 1))
    assert again._state.mean_weight > pca._state.mean_weight


@pytest.mark.parametrize(
    "wrong",
    [
        {"mean": np.zeros(D + 1)},
        {"mean": np.full(D, np.nan)},
        {"mean": np.zeros(D, dtype=np.float32)},
        {"mean_weight": math.nan},
    ],
    ids=str,
)
def test_a_saved_mean_that_does_not_fit_is_refused(wrong: dict[str, Any]) -> None:
    estimator = make("private-oja")
    state = estimator.update(estimator.init(utility_generator(0)), ArrayBatch.of_vectors(shifted(4000)))
    assert decode_model_state(estimator, encode_state(state)).mean_weight == state.mean_weight
    with pytest.raises(ValueError, match=r"mean|could not be broadcast"):
        decode_model_state(estimator, encode_state(dataclasses.replace(state, **wrong)))


def test_noise_of_the_sum_is_the_mechanisms() -> None:
    """All noise comes from `privacy.mechanisms`."""
    assert mean_module.gaussian_on_vector is gaussian_on_vector
    assert mean_module.private_quantile is private_quantile
