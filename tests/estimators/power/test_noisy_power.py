"""The noisy power method: both clips, the radius of a pass, composition, and accuracy.

Tests with real noise state their probability of failing by chance.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.clipped_sums import block_sensitivity, block_sum
from streaming_pca.estimators.power.noisy_power import BoundedRecords, NoisyPowerMethod, scale_records
from streaming_pca.kernels.lattice import MATRIX_RADIUS
from streaming_pca.linalg.subspace import orthonormalise, subspace_error
from streaming_pca.privacy.parameters import parse_rational
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats, differing, made, mechanism_inputs, spiked
from tests.privacy.calibration.accounting import Gaussian, Route, delta_of
from tests.privacy.noise import ScriptedSampler, SeededSampler

D = 6


def make(dim: int = D, k: int = 2, kind: RecordKind = RecordKind.FACTOR, **more: Any) -> NoisyPowerMethod:
    centering = more.pop("centering", "none")
    how = RecordKind.MATRIX if kind is RecordKind.MATRIX else centering
    return made(NoisyPowerMethod, dim, k, how, **{"clip_l2": 1.0, **more})


def start(estimator: NoisyPowerMethod, seed: int = 0) -> Any:
    return estimator.init(utility_generator(seed))


def scaled(records: list[Floats], size: float, spread: float = math.inf) -> tuple[list[Floats], int]:
    rows = np.concatenate(records)
    starts = np.cumsum([0, *map(len, records)]).astype(np.int64)
    out = np.full_like(rows, 7.0)
    clipped = scale_records(rows, starts, size, spread, out)
    return [out[a:b] for a, b in itertools.pairwise(starts)], clipped


@pytest.mark.parametrize("scale", [1e-300, 1e-3, 1.0, 1e5, 1e150, 1e300])
@pytest.mark.parametrize("rows", [1, 3])
def test_records_are_scaled_into_both_balls_and_not_turned(scale: float, rows: int) -> None:
    rng = np.random.default_rng(0)
    records = [scale * rng.standard_normal((rows, D)) for _ in range(50)]
    for size, spread in ((1.0, math.inf), (1.0, 1.5), (1.0, 3.0), (1e9, 1.5)):
        found, clipped = scaled(records, size, spread)
        changed = 0
        for before, after in zip(records, found, strict=True):
            columns = np.linalg.norm(after, axis=0)
            assert np.linalg.norm(after) <= size * (1 + 1e-14)
            assert columns.sum() <= spread * (1 + 1e-14)
            reached = max(np.linalg.norm(after) / size, columns.sum() / spread)
            if np.array_equal(before, after):
                assert reached < 1
            else:
                assert reached == pytest.approx(1.0)
                direction = before / np.abs(before).max()
                np.testing.assert_allclose(after / np.abs(after).max(), direction, rtol=1e-13)
                changed += 1
        assert clipped == changed


def test_what_is_no_number_is_null() -> None:
    records = [np.full((1, 3), v) for v in (np.nan, np.inf, 0.0)]
    records.append(np.array([[1.0, np.nan, 2.0]]))
    found, clipped = scaled(records, 1.0, 1.0)
    assert all(np.array_equal(x, np.zeros((1, 3))) for x in found)
    assert clipped == 0


def test_matrices_are_clipped_in_norm() -> None:
    a = np.diag([3.0, -4.0, 0.0])
    p = Preprocessing(dim=3, kind=RecordKind.MATRIX, centering="none")
    about = BoundedRecords(**dict(p), clip_l2=1.5, clip_l1=None)
    (out,) = [about.apply(ArrayBatch.of_records([a], 3, RecordKind.MATRIX)).rows]
    np.testing.assert_allclose(out, a * 1.5**2 / 5)


def test_clipped_records_are_counted_once_whatever_the_passes() -> None:
    x = np.repeat([[0.5, 0, 0, 0, 0, 0], [3.0, 0, 0, 0, 0, 0], [0.9] * 6], [6, 4, 3], axis=0)
    for options, expected in (({}, 7), ({"clip_l1": 0.4}, 13)):
        estimator = make(share=0.1, **options)
        with replace_noise_sampler(SeededSampler(0)):
            _, clipped = estimator.learn_batch(start(estimator), ArrayBatch.of_vectors(x))
        assert clipped == expected


def bases(seed: int) -> list[Floats]:
    rng = np.random.default_rng(seed)
    near = orthonormalise(np.eye(D)[:, :2] + 0.01 * rng.standard_normal((D, 2)))
    even = orthonormalise(np.stack([np.ones(D), np.resize([1.0, -1.0], D)], axis=1))
    return [orthonormalise(rng.standard_normal((D, 2))), near, even, np.eye(D)[:, :2]]


@pytest.mark.parametrize("alpha", [0.5, 1.0, 1.5, 10.0])
def test_products_of_bounded_records_are_within_the_radius(alpha: float) -> None:
    """Each product is within it in floats, so the clip in integers only removes roundings."""
    estimator = make(clip_l1=alpha)
    records = BoundedRecords(**dict(estimator.preprocessing), clip_l2=1.0, clip_l1=alpha)
    rng = np.random.default_rng(1)
    x = np.concatenate([rng.standard_normal((200, 2, D)), rng.standard_normal((200, 2, D)) ** 5])
    x[:, 1] *= rng.random(400)[:, None] < 0.5
    rows = records.apply(ArrayBatch.of_vectors(10 * x)).rows.reshape(400, 2, D)
    for basis in bases(2):
        radius = estimator._radius(basis)
        largest = max(float(np.linalg.norm(f.T @ (f @ basis))) for f in rows)
        assert largest <= radius * (1 + 1e-12)
        printed = alpha * np.abs(basis).max() * math.sqrt(2)
        assert radius <= min(1.0, printed) * (1 + 1e-12)
        assert block_sum(ArrayBatch.of_vectors(10 * x), records, basis, radius).clipped == 0


def test_the_radius_is_attained_by_signs() -> None:
    """An even vector and the record of its signs attain beta alpha max|q|."""
    q = np.ones((D, 1)) / math.sqrt(D)
    beta, alpha = 1.0, 0.5
    estimator = make(k=1, clip_l2=beta, clip_l1=alpha)
    records = BoundedRecords(**dict(estimator.preprocessing), clip_l2=beta, clip_l1=alpha)
    x = records.apply(ArrayBatch.of_vectors(np.ones((1, D)))).rows
    product = float(np.linalg.norm(x.T @ (x @ q)))
    # Its Euclidean norm is alpha/sqrt(d), below beta: the radius is alpha sqrt(d)/beta times that.
    assert product == pytest.approx(alpha**2 / D)
    assert estimator._radius(q) == pytest.approx(beta * alpha / math.sqrt(D))
    spike = records.apply(ArrayBatch.of_vectors(np.eye(1, D))).rows
    assert np.linalg.norm(spike.T @ (spike @ q)) <= estimator._radius(q)
    # With alpha = beta sqrt(d), where both clips bind together, it is attained.
    loose = make(k=1, clip_l2=beta, clip_l1=beta * math.sqrt(D))
    records = BoundedRecords(**dict(loose.preprocessing), clip_l2=beta, clip_l1=beta * math.sqrt(D))
    x = records.apply(ArrayBatch.of_vectors(np.ones((1, D)))).rows
    assert np.linalg.norm(x.T @ (x @ q)) == pytest.approx(loose._radius(q))


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
@pytest.mark.parametrize("options", [{}, {"clip_l1": 0.7}, {"oversampling": 2}, {"clip_l1": 2.0}], ids=str)
def test_integers_that_meet_noise_are_within_their_sensitivity_in_every_pass(
    kind: RecordKind, options: dict[str, Any]
) -> None:
    if kind is RecordKind.MATRIX:
        options = {n: v for n, v in options.items() if n != "clip_l1"}
    estimator = make(kind=kind, iterations=3, **options)
    ratio = estimator.plan(start(estimator)).parameters["sigma_over_sensitivity"]
    rng = np.random.default_rng(4)
    items: list[Any] = [rng.standard_normal((1, D)) for _ in range(60)]
    q = start(estimator).start[:, :1]
    p = np.linalg.svd(q, full_matrices=True)[0][:, -1:]
    turned = [1e6 * (q + p).T, 1e6 * (q - p).T]
    second = start(estimator).start[:, 1:2]
    lasts: list[Any] = [None, 1e200 * q.T, 5 * second.T, *turned, np.sign(q.T), np.full((1, D), np.nan)]
    if kind is RecordKind.MATRIX:
        items = [x.T @ x for x in items]
        lasts = [None, q @ q.T, -1e9 * q @ q.T, 1e150 * q @ q.T, np.full((D, D), np.nan)]
    state = start(estimator)
    whole = mechanism_inputs(estimator, [*items, lasts[1]], state=state)
    assert len(whole) == 3
    answers, largest = [call.answer for call in whole], 0.0
    for last in lasts:
        for a, b in zip(whole, mechanism_inputs(estimator, [*items, last], answers, state), strict=True):
            apart, sigma = math.sqrt(differing(a, b)), a.args[-1]
            assert apart <= sigma / ratio * (1 + 1e-12)
            assert np.array_equal(a.args[0], b.args[0])
            largest = max(largest, apart * ratio / sigma)
    # Opposite matrices are 2 rho apart: the full sensitivity. Two records in the basis are sqrt(2) beta^2
    # apart.
    assert largest > (0.999 if kind is RecordKind.MATRIX else 0.1 if "clip_l1" in options else 0.7)


def test_a_record_far_beyond_the_radius_of_a_pass_is_still_within_it() -> None:
    """The bound rests on the clip in integers alone: here records arrive unscaled."""
    basis = np.ascontiguousarray(np.ones((D, 1)) / math.sqrt(D))
    unscaled = Preprocessing(dim=D, centering="none")
    total = block_sum(ArrayBatch.of_vectors(1e6 * np.ones((1, D))), unscaled, basis, 1e-3).total
    assert sum(int(v) ** 2 for v in total.flat) <= (block_sensitivity(RecordKind.FACTOR) / 2) ** 2
    a = ArrayBatch.of_records([1e6 * np.eye(D)], D, RecordKind.MATRIX)
    total = block_sum(a, Preprocessing(dim=D, kind=RecordKind.MATRIX, centering="none"), basis, 1e-3).total
    assert sum(int(v) ** 2 for v in total.flat) <= MATRIX_RADIUS**2


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-9), (1.0, 1e-6), (8.0, 0.01)])
@pytest.mark.parametrize("contributions", [1, 3])
@pytest.mark.parametrize("iterations", [1, 5])
def test_all_passes_of_all_batches_cost_the_promise(
    epsilon: float, delta: float, contributions: int, iterations: int
) -> None:
    """The accountant finds nearly the whole promise spent, and the charge's rho covers all passes."""
    estimator = make(epsilon=epsilon, delta=delta, contributions=contributions, iterations=iterations)
    plan = estimator.plan(start(estimator))
    one = Gaussian(plan.parameters["sigma_over_sensitivity"])
    spent = delta_of([one] * iterations, epsilon, Route.GDP, contributions)
    # The accountant itself rounds up, by a part in 10**12.
    assert 0.99 * delta < spent <= delta * (1 + 1e-9)
    assert plan.charge.epsilon <= parse_rational(epsilon)
    assert plan.charge.delta <= parse_rational(delta)
    assert float(plan.charge.rho) == pytest.approx(one.rho * iterations * contributions, rel=1e-6)
    assert len(mechanism_inputs(estimator, ArrayBatch.of_vectors(np.ones((9, D))))) == iterations


def test_so_few_records_suffice_if_they_are_clear() -> None:
    """Without noise, identical records have the clearest possible eigenvalue."""
    estimator = make(k=1)
    x = np.tile(3 * np.eye(1, D), (estimator.plan(start(estimator)).least, 1))
    with replace_noise_sampler(ScriptedSampler()):
        enough = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
    assert enough.outcome == "learnt"
    assert subspace_error(estimator.release(enough).components, np.eye(1, D)) < 1e-5


def test_a_batch_that_is_lost_in_noise_teaches_nothing_and_says_so() -> None:
    """The records have a hundredth of the clip, 10^-4 in eigenvalues: noise alone exceeds it by 10.

    Its Ritz values are then below its norm, about half of it: in all of 20 seeds.
    """
    x = 0.01 * np.random.default_rng(0).standard_normal((1000, D))
    estimator = make()
    for seed in range(20):
        with replace_noise_sampler(SeededSampler(seed)):
            state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
        assert state.outcome == "no-gap"
        assert state.precision == 0.0
        assert estimator.release(state).outcome == "no-gap"


@pytest.mark.parametrize("options", [{}, {"clip_l1": 8.0 * math.sqrt(2)}, {"oversampling": 2}], ids=str)
def test_it_finds_a_spiked_subspace_within_the_papers_bound(options: dict[str, Any]) -> None:
    """Hardt and Price 2014, Corollary 1.1: if 5 |G|_2 <= e (s_k - s_{k+1}) and 5 |U^T G|_2 <=
    (s_k - s_{k+1}) (sqrt(p) - sqrt(k - 1))/(t sqrt(d)), p the columns, |(I - X X^T) U|_2 <= e after
    O(s_k/(s_k - s_{k+1}) ln(d t/e)) passes, except for t^-Omega(p + 1 - k) of the starts.

    n = 40,000, d = 8, k = 2, clipped at 8: s_k - s_{k+1} is 8 or more (5 with the coordinates' clip),
    s_{k+1}/s_k 0.002. z(4, 1e-6) < 1.25, times sqrt(4) passes, and 2 rho z/n = 0.008 an entry: |G|_2 <=
    0.008 (sqrt(8) + sqrt(4) + 5.5) = 0.083 except for 1e-6 in four passes. So e = 0.052 (0.083), t = 3, and
    |U U^T - V V^T|_F <= sqrt(2 k) e = 0.11 (0.17). The start is fixed, and sampling adds 1e-3.
    """
    x, truth = spiked(40_000, 8, 2, 2)
    estimator = make(8, epsilon=4.0, clip_l2=8.0, batch_size=40_000, **options)
    gap = 5.0 if "clip_l1" in options else 8.0
    z = estimator.plan(start(estimator)).parameters["sigma_over_sensitivity"]
    claimed = 2 * 5 * 2 * 64 * z / 40_000 * (math.sqrt(8) + 2 + 5.5) / gap
    assert claimed < 0.18
    state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
    release = estimator.release(state)
    assert state.outcome == "learnt"
    assert subspace_error(release.components, truth) < claimed + 0.005
    assert release.explained_variance[-1] > gap
    # Clipping in size takes less than 0.5 from each variance; five deviations of the noise 0.1.
    if "clip_l1" not in options:
        np.testing.assert_allclose(release.explained_variance, [9.0, 9.0], atol=1.0)


def test_the_clip_of_the_coordinates_lowers_the_noise_of_spread_bases() -> None:
    """Sparse records, here of one coordinate each, are not scaled by alpha = beta; rho is beta^2/8."""
    d, m = 64, 20_000
    rng = utility_generator(1)
    x = np.zeros((m, d))
    x[np.arange(m), rng.integers(0, d, m)] = 1.0
    plain, both = make(d, 1), make(d, 1, clip_l1=1.0)
    even = np.ones((d, 1)) / math.sqrt(d)
    assert plain._radius(even) == 1.0
    assert both._radius(even) == pytest.approx(1 / 8)
    sums = []
    for e, alpha in ((plain, None), (both, 1.0)):
        records = BoundedRecords(**dict(e.preprocessing), clip_l2=1.0, clip_l1=alpha)
        sums.append(block_sum(ArrayBatch.of_vectors(x), records, even, e._radius(even)))
    assert sums[0].clipped == sums[1].clipped == 0
    values = [s.total * s.unit for s in sums]
    np.testing.assert_allclose(values[0], values[1], rtol=1e-4)
    assert sums[1].unit / sums[0].unit == pytest.approx(1 / 8)


def test_later_batches_start_where_the_last_one_ended() -> None:
    """Errors fall until they reach the noise: one pass a batch, a flat spectrum."""
    rng = utility_generator(6)
    truth = orthonormalise(rng.standard_normal((D, 2)))
    x = rng.standard_normal((60_000, 2)) @ truth.T * 2 + 1.2 * rng.standard_normal((60_000, D))
    estimator = make(iterations=1, clip_l2=30.0, epsilon=8.0)
    state = start(estimator)
    errors = []
    for part in np.split(x, 6):
        with replace_noise_sampler(ScriptedSampler()):
            state = estimator.update(state, ArrayBatch.of_vectors(part))
        errors.append(subspace_error(state.start.T, truth.T))
    assert errors[0] > 0.3
    assert all(later < 0.75 * before for before, later in itertools.pairwise(errors[:4]))


def test_bases_of_batches_are_averaged() -> None:
    """16 batches of one size: the error of their average is about a quarter of a single batch's."""
    x, truth = spiked(64_000, D, 2, 4)
    estimator = make(clip_l2=8.0)
    last, average = [], []
    for seed in range(5):
        with replace_noise_sampler(SeededSampler(seed)):
            state = start(estimator)
            for part in np.split(x, 16):
                state = estimator.update(state, ArrayBatch.of_vectors(part))
        # The last iterate's first k columns are the last batch's own result.
        last.append(subspace_error(state.start.T, truth))
        average.append(subspace_error(estimator.release(state).components, truth))
    assert np.mean(average) < 0.5 * np.mean(last)


def test_a_batch_that_is_nearly_noise_counts_for_little() -> None:
    """A first batch is a hundred times smaller than the next: two decades of precision."""
    x, truth = spiked(40_400, D, 2, 7)
    estimator = make(clip_l2=8.0, epsilon=2.0)
    with replace_noise_sampler(SeededSampler(2)):
        first = estimator.update(start(estimator), ArrayBatch.of_vectors(x[:400]))
        second = estimator.update(first, ArrayBatch.of_vectors(x[400:]))
        alone = estimator.update(first, ArrayBatch.of_vectors(x[:0]))
    if first.precision:
        assert second.precision > 1000 * first.precision
        assert np.array_equal(alone.average, first.average)
    assert subspace_error(estimator.release(second).components, truth) < 0.05


def test_oversampling_converges_by_a_later_eigenvalue() -> None:
    """Eigenvalues 9, 4, 4, 0.01: two passes from one start, with a column and with three."""
    rng = utility_generator(8)
    x = rng.standard_normal((5000, D)) * np.array([3.0, 2.0, 2.0, 0.1, 0.1, 0.1])
    errors = []
    for extra in (0, 2):
        found = []
        for seed in range(10):
            estimator = make(k=1, iterations=2, oversampling=extra, clip_l2=30.0, epsilon=20.0)
            with replace_noise_sampler(ScriptedSampler()):
                state = estimator.update(start(estimator, seed), ArrayBatch.of_vectors(x))
            assert state.outcome == "learnt"
            found.append(subspace_error(estimator.release(state).components, np.eye(1, D)))
        errors.append(np.mean(found))
    assert errors[1] < 0.2 * errors[0]


def test_of_indefinite_matrices_the_largest_absolute_eigenvalues_are_found() -> None:
    a = np.diag([1.0, -3.0, 0.1, 0.1, 2.0, 0.1])
    estimator = make(kind=RecordKind.MATRIX, clip_l2=2.0, iterations=20, epsilon=16.0)
    with replace_noise_sampler(ScriptedSampler()):
        state = estimator.update(start(estimator), ArrayBatch.of_records([a] * 2000, D, RecordKind.MATRIX))
    assert subspace_error(estimator.release(state).components, np.eye(D)[[1, 4]]) < 1e-3


def test_the_whole_space_is_found_at_once() -> None:
    estimator = make(k=D, oversampling=3, epsilon=16.0, clip_l2=5.0)
    x = np.random.default_rng(0).standard_normal((2000, D)) * np.arange(D, 0, -1) / 3
    with replace_noise_sampler(SeededSampler(0)):
        state = estimator.update(start(estimator), ArrayBatch.of_vectors(x))
    assert state.outcome == "learnt"
    assert (np.diff(estimator.release(state).explained_variance) <= 0).all()
