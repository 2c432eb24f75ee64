"""The block route: sensitivity, convergence, correction of shrinkage, carried state, and the rounds.

Data and noise come from generators with fixed seeds.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.block.block import (
    BlockEstimate,
    BlockOptions,
    BlockPCA,
    BlockUpdate,
    learn_block,
    round_shares,
)
from streaming_pca.estimators.block.variances import TotalVariance
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.clipped_batches import BatchCosts
from streaming_pca.estimators.common.clipped_sums import block_residual_norms
from streaming_pca.estimators.common.mean_offset import MeanShift
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats, made
from tests.privacy.noise import ScriptedSampler

SPAN = (2.0**-40, 2.0**60)


def make(dim: int, k: int = 2, kind: RecordKind = RecordKind.FACTOR) -> BlockUpdate:
    multiplier = BatchCosts(PrivacyParameters(epsilon=1.0, delta=1e-6)).multiplier
    preprocessing = Preprocessing(dim=dim, kind=kind, centering="none")
    return BlockUpdate(preprocessing, multiplier, SPAN, 1.0, k, MeanShift(*np.zeros((3, dim))))


def start(route: BlockUpdate, seed: int = 0) -> BlockEstimate:
    dim = route.preprocessing.dim
    basis = orthonormalise(utility_generator(seed).standard_normal((dim, route.rank)))
    return BlockEstimate.start(basis)


def learn(
    route: BlockUpdate,
    estimate: BlockEstimate,
    part: ArrayBatch,
    radius: float = 1e6,
    weight: float = 1.0,
    half_life: Any = None,
    by_records: float = 0.0,
) -> BlockEstimate:
    with replace_noise_sampler(ScriptedSampler()):
        return route.learn(estimate, part, radius, weight, half_life, route.multiplier, by_records)[0]


def radius_of(route: BlockUpdate, estimate: BlockEstimate, part: ArrayBatch) -> tuple[float, float]:
    with replace_noise_sampler(ScriptedSampler()):
        return route.radius(estimate, part, 0.5, Budget(route.multiplier, 1.0))[:2]


def test_the_histogram_and_the_sum_clip_the_same_number() -> None:
    """Records below the radius chosen from the sizes are not clipped; those above are."""
    route = make(5)
    x = np.random.default_rng(1).standard_normal((300, 5))
    estimate = replace(start(route), product=np.full((5, 2), 0.3))
    part = ArrayBatch.of_vectors(x)
    sizes = value_array(block_residual_norms(part, route.preprocessing, estimate.basis, estimate.product))
    for radius in np.quantile(sizes, [0.1, 0.5, 0.9]):
        with replace_noise_sampler(ScriptedSampler()):
            _, clipped, _ = route.learn(estimate, part, float(radius), 1.0, None, 4.0)
        assert clipped == pytest.approx(np.sum(sizes > radius), abs=1)


def spectrum(d: int, seed: int) -> tuple[Floats, Floats]:
    """Return records with exactly known second moment, and its eigenvectors by falling eigenvalue."""
    rng = utility_generator(seed)
    vectors = orthonormalise(rng.standard_normal((d, d)))
    values = 10 * 0.6 ** np.arange(d)
    x = np.concatenate([vectors * np.sqrt(values * d), -vectors * np.sqrt(values * d)], axis=1).T
    return x[rng.permutation(2 * d)], vectors


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
def test_rounds_without_noise_converge_to_the_exact_subspace(kind: RecordKind) -> None:
    d, k = 8, 3
    x, vectors = spectrum(d, 0)
    items: list[Any] = [r[:, None] * r if kind is RecordKind.MATRIX else r[None, :] for r in x]
    part = ArrayBatch.of_records(items, d, kind)
    route = make(d, k, kind)
    estimate = start(route)
    errors = []
    for _ in range(40):
        # An infinite variance makes each round replace the whole estimate: no gain below 1.
        estimate = learn(route, replace(estimate, variance=math.inf), part, 100.0)
        estimate = route.step(estimate, 0.0)
        errors.append(subspace_error(estimate.basis.T, vectors[:, :k].T))
    assert errors[-1] < 1e-3
    assert errors[5] < 0.6**5 * 20 * errors[0]


def test_a_step_about_the_level_is_faster_than_one_without() -> None:
    d, k = 20, 2
    rng = utility_generator(1)
    vectors = orthonormalise(rng.standard_normal((d, d)))
    values = np.full(d, 3.0)
    values[:k] = 5.0, 4.5
    x = np.concatenate([vectors, -vectors], axis=1).T * np.sqrt(np.tile(values, 2) * d)[:, None]
    route = make(d, k)
    errors = []
    for total in (0.0, float(values.sum())):
        estimate = start(route)
        for _ in range(12):
            estimate = learn(route, replace(estimate, variance=math.inf), ArrayBatch.of_vectors(x), 1e4)
            estimate = route.step(estimate, total)
        errors.append(subspace_error(estimate.basis.T, vectors[:, :k].T))
    assert errors[1] < 0.3 * errors[0]


def test_the_mean_weight_mends_the_shrink() -> None:
    """Dividing by the mean weight moves the estimate nearer to Sigma Q: one round, wrong centre."""
    d, m = 6, 40_000
    rng = utility_generator(2)
    x = rng.standard_normal((m, d)) * np.linspace(2, 0.5, d)
    route = make(d, 2)
    estimate = start(route, 3)
    part = ArrayBatch.of_vectors(x)
    radius, weight = radius_of(route, estimate, part)
    assert 0.3 < weight < 0.95
    wanted = x.T @ (x @ estimate.basis) / m
    plain = learn(route, estimate, part, radius)
    mended = learn(route, estimate, part, radius, weight)
    # The comparison is along the right answer: a scalar cannot undo a rotation by the clip.
    shrunk, kept = (float(np.sum(b * wanted) / np.sum(wanted**2)) for b in (plain.product, mended.product))
    assert shrunk < 0.75
    assert abs(kept - 1) < 0.8 * (1 - shrunk)
    assert np.linalg.norm(mended.product - wanted) < np.linalg.norm(plain.product - wanted)


def test_records_that_agree_need_a_small_radius_only() -> None:
    """Residuals about an estimate of the common part are as small as the records' differences."""
    d, m = 6, 4000
    rng = utility_generator(4)
    common = rng.standard_normal(d)
    x = common + 0.01 * rng.standard_normal((m, d))
    route = make(d, 1)
    estimate = start(route)
    part = ArrayBatch.of_vectors(x)
    radii = []
    for _ in range(4):
        radius, weight = radius_of(route, estimate, part)
        radii.append(radius)
        estimate = route.step(learn(route, estimate, part, radius, weight), 0.0)
    assert radii[-1] < 0.05 * radii[0]
    assert subspace_error(estimate.basis.T, common[None, :] / np.linalg.norm(common)) < 0.02


def test_the_block_is_carried_to_the_new_basis() -> None:
    """The product on S is exact where the covariance has no component outside S."""
    d, k = 7, 3
    rng = utility_generator(6)
    lead = orthonormalise(rng.standard_normal((d, k)))
    sigma = lead @ np.diag([5.0, 3.0, 2.0]) @ lead.T
    route = make(d, k)
    estimate = start(route, 7)
    # Near the leading subspace, so that the neglected terms are of second order.
    basis = orthonormalise(lead + 1e-3 * estimate.basis)
    estimate = replace(estimate, basis=basis, product=sigma @ basis, variance=0.1, noise=0.1)
    after = route.step(estimate, 0.0)
    np.testing.assert_allclose(after.basis.T @ after.basis, np.eye(k), atol=1e-12)
    np.testing.assert_allclose(after.product, sigma @ after.basis, atol=2e-4)
    assert 0.1 <= after.variance < 0.2
    assert after.noise == 0.1


def test_a_basis_far_from_the_last_one_starts_anew() -> None:
    route = make(6, 2)
    estimate = start(route)
    block = np.zeros((6, 2))
    block[:2] = np.eye(2)
    elsewhere = replace(estimate, basis=np.eye(6)[:, 4:], product=block, variance=0.1, noise=0.1)
    assert route.step(elsewhere, 0.0).variance == math.inf


def test_later_rounds_count_by_their_variances() -> None:
    """Rounds of 1000 and 3000 records have a Kalman gain of about 3/4 or more."""
    d = 4
    rng = utility_generator(8)
    x = rng.standard_normal((4000, d))
    route = make(d, 2)
    estimate = start(route)
    first = learn(route, estimate, ArrayBatch.of_vectors(x[:1000]), 100.0)
    second = learn(route, first, ArrayBatch.of_vectors(x[1000:]), 100.0)
    fresh = learn(route, estimate, ArrayBatch.of_vectors(x[1000:]), 100.0)
    gain = first.variance / (first.variance + fresh.variance)
    assert 0.74 < gain < 0.91
    wanted = first.product + gain * (fresh.product - first.product)
    np.testing.assert_allclose(second.product, wanted, atol=1e-3)
    assert second.variance < min(first.variance, fresh.variance)


def test_a_later_batch_weighs_by_its_records_next_to_those_that_a_half_life_leaves() -> None:
    d = 4
    x = np.random.default_rng(9).standard_normal((1000, d))
    route = make(d, 2)
    known = learn(route, start(route), ArrayBatch.of_vectors(np.tile(x, (40, 1))), 100.0)
    part = ArrayBatch.of_vectors(2 * x)
    how = ((None, 1000 / 41_000), (1000.0, 1000 / 2000))
    moved = [learn(route, known, part, 100.0, 1.0, *each).product - known.product for each in how]
    fresh = learn(route, start(route), part, 100.0).product - known.product
    assert np.linalg.norm(moved[0]) < 0.1 * np.linalg.norm(fresh)
    np.testing.assert_allclose(moved[1], fresh / 2, rtol=0.05, atol=1e-2)


def repeated(diagonal: Any, m: int) -> ArrayBatch:
    return ArrayBatch.of_records([np.diag(diagonal)] * m, len(diagonal), RecordKind.MATRIX)


@pytest.mark.parametrize(("values", "is_known"), [((10, -9, 5, 4), False), ((10, 9, 5, 4), True)])
def test_negative_eigenvalues_above_a_component_in_size_leave_no_bound(
    values: tuple[float, ...], is_known: bool
) -> None:
    """Steps find the largest in size, but a release has the largest: here 10 and 5, or 10 and 9."""
    estimator = made(BlockPCA, 8, 2, RecordKind.MATRIX, epsilon=4.0)
    state = estimator.init(utility_generator(0))
    for _ in range(3):
        state = estimator.update(state, repeated([*values, *[0.1] * 4], 20_000))
    bound = estimator.release(state).angle_bound
    assert (bound < math.pi / 2) == is_known


@pytest.mark.parametrize(("before", "after"), [(3, 0), (0, 3)])
def test_a_stream_keeps_the_columns_it_began_with(before: int, after: int) -> None:
    """Sigma depends on the number of columns, so other settings must not change it."""
    d = 8
    batch = repeated(np.arange(d, 0.0, -1), 2000)
    first, other = (made(BlockPCA, d, 2, RecordKind.MATRIX, oversampling=extra) for extra in (before, after))
    state = first.update(first.init(utility_generator(0)), batch)
    plan = other.plan(state)
    assert plan == first.plan(state)
    assert plan.parameters["columns"] == 2 + before
    again = other.update(state, batch)
    assert again.block.basis.shape == (d, 2 + before)
    assert other.release(again).components.shape == (2, d)


def test_an_empty_part_teaches_nothing() -> None:
    route = make(3)
    estimate = start(route)
    with replace_noise_sampler(ScriptedSampler()):
        found = route.learn(estimate, ArrayBatch.of_vectors(np.zeros((0, 3))), 1.0, 1.0, None, 4.0)
    assert found == (estimate, 0, 0.0)


@settings(deadline=None)
@given(count=st.integers(0, 10**7), multiplier=st.floats(0.05, 1e3), cold=st.booleans())
def test_rounds_before_the_last_grow_and_none_is_too_noisy(count: int, multiplier: float, cold: bool) -> None:
    shares = round_shares(count, multiplier, cold)
    assert shares == sorted(shares)
    assert sum(shares) < (0.16 if cold else 0.1)
    assert all(count * math.sqrt(share) >= 200 * multiplier for share in shares)
    assert len(round_shares(2 * count, multiplier, cold)) >= len(shares)


def test_a_first_batch_has_several_rounds_and_a_later_one_has_one() -> None:
    route = make(4)
    part = ArrayBatch.of_vectors(utility_generator(0).standard_normal((100_000, 4)) * [3, 2, 1, 1])
    state, rounds = (start(route), TotalVariance()), []
    for number in range(2):
        estimate, total = state
        budget = Budget(route.multiplier, 1.0)
        seen: list[float] = []
        original = BlockUpdate.learn

        def learn(self: BlockUpdate, *args: Any, seen: list[float] = seen, original: Any = original) -> Any:
            seen.append(args[5])
            return original(self, *args)

        with pytest.MonkeyPatch.context() as patch, replace_noise_sampler(ScriptedSampler()):
            patch.setattr(BlockUpdate, "learn", learn)
            estimate, total, _ = learn_block(route, estimate, total, part, budget, BlockOptions())
        assert budget.left == 0
        # The last one has most of the budget.
        assert seen == sorted(seen, reverse=True)
        assert seen[-1] < 1.3 * route.multiplier
        rounds.append(len(seen))
        state = estimate, total
        assert estimate.spectrum.any(), number
        # A state with another type could not be read again.
        assert isinstance(estimate.records, float)
        assert estimate.records == pytest.approx(100_000 * (number + 1))
    assert rounds == [11, 1]
