"""The online tensor power method: the paper's steps on fresh records, its rate, and its memory."""

from __future__ import annotations

import math
import tracemalloc
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.common.state import encode_state
from streaming_pca.estimators.tensor.online import OnlineTensorPower
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.linalg.tensors import deflated, products_of_rows
from tests.estimators.suite import Floats, made, start


def make(dim: int, k: int, **options: Any) -> OnlineTensorPower:
    return made(OnlineTensorPower, dim, k, delta=0.5, **options)


# Independent coordinates of variance 1, the first k of them skewed: the third moment is exactly
# sum_i skew_i a_i (x) a_i (x) a_i over the first k axes a_i of the mixing.
CHANCES = np.array([0.1, 0.15, 0.2])
SKEWS = (1 - 2 * CHANCES) / np.sqrt(CHANCES * (1 - CHANCES))


def mixing(d: int) -> Floats:
    return orthonormalise(np.random.default_rng(1).standard_normal((d, d)))


def independent(rng: np.random.Generator, m: int, axes: Floats) -> Floats:
    d, k = len(axes), len(CHANCES)
    high, low = np.sqrt((1 - CHANCES) / CHANCES), -np.sqrt(CHANCES / (1 - CHANCES))
    skewed = np.where(rng.random((m, k)) < CHANCES, high, low)
    return np.asarray(np.hstack([skewed, rng.choice([-1.0, 1.0], (m, d - k))]) @ axes.T)


def test_components_are_recovered_at_the_rate_of_theorem_3_1() -> None:
    """n = sigma^2 d/error^2 records a step, error = C_1 lambda_min/sqrt(k); C_1 = 1/2, C_2 = 1, C_3 = 2.

    sigma is the largest standard deviation of (x . u)^2 (x . v), for unit u, v:
    the deviation of a coordinate's cube, as measured on a draw.
    """
    d, k = 10, 3
    axes, rng = mixing(d), np.random.default_rng(2)
    sigma = float((independent(rng, 100_000, axes) @ axes[:, :k]).__pow__(3).std(axis=0).max())
    error = 0.5 * SKEWS.min() / math.sqrt(k)
    n = math.ceil(sigma**2 * d / error**2)
    estimator = make(d, k, batch_size=n)
    state = start(estimator)
    for _ in range(k * estimator.options.steps_in(d)):
        state = estimator.update(state, ArrayBatch.of_vectors(independent(rng, n, axes)))
    assert state.search.is_complete
    release = estimator.release(state)
    np.testing.assert_allclose(release.weights, SKEWS, atol=error)
    distances = np.linalg.norm(release.components - axes[:, :k].T, axis=1)
    assert (distances <= 2 * error / SKEWS).all()
    # Refinement averages: four times the records give about half of the error.
    for _ in range(20):
        state = estimator.update(state, ArrayBatch.of_vectors(independent(rng, n, axes)))
    refined = np.linalg.norm(estimator.release(state).components - axes[:, :k].T, axis=1)
    assert np.linalg.norm(refined) < 0.6 * np.linalg.norm(distances)


def test_a_batch_is_the_step_that_the_paper_prints() -> None:
    rng = np.random.default_rng(3)
    estimator = make(4, 2, restarts=3, steps=2)
    state = start(estimator)
    found: list[tuple[float, Floats]] = []
    for component in range(2):
        u = state.search.candidates
        for _ in range(2):
            rows = rng.standard_normal((50, 4)) + 0.5
            state = estimator.update(state, ArrayBatch.of_vectors(rows))
            seen = rows @ u
            product = (rows.T @ seen**2) / 50
            value = (seen**3).mean(axis=0)
            for weight, v in found:
                product = product - weight * np.outer(v, (v @ u) ** 2)
                value = value - weight * (v @ u) ** 3
            u = product / np.linalg.norm(product, axis=0)
        best = int(np.argmax(value))
        found.append((float(value[best]), u[:, best]))
        assert state.search.found == component + 1
        np.testing.assert_allclose(state.search.weights[component], found[-1][0])
        np.testing.assert_allclose(state.search.components[component], found[-1][1])


def test_refinement_steps_all_components_on_the_same_records() -> None:
    rng = np.random.default_rng(4)
    estimator = make(3, 2, restarts=1, steps=1, window=2)
    state = start(estimator)
    rows = rng.standard_normal((3, 40, 3)) + 0.5
    for part in rows[:2]:
        state = estimator.update(state, ArrayBatch.of_vectors(part))
    before = state.search
    assert before.is_complete
    after = estimator.update(state, ArrayBatch.of_vectors(rows[2])).search
    for i in (0, 1):
        u = before.components[i][:, None]
        own = products_of_rows(rows[2], u) / 40
        own = deflated(own, u, before.weights[1 - i :][:1], before.components[1 - i :][:1])[:, 0]
        mean = (before.products[i] + own) / 2
        np.testing.assert_allclose(after.products[i], mean)
        np.testing.assert_allclose(after.components[i], mean / np.linalg.norm(mean))
        np.testing.assert_allclose(after.weights[i], np.linalg.norm(mean))


def test_before_all_are_found_the_rest_is_an_orthonormal_fill_of_weight_0() -> None:
    rng = np.random.default_rng(5)
    estimator = make(6, 3, restarts=2, steps=1)
    state = start(estimator)
    for found in range(1, 4):
        state = estimator.update(state, ArrayBatch.of_vectors(rng.standard_normal((200, 6)) ** 2))
        release = estimator.release(state)
        assert (release.weights[:1] > 0).all()
        assert (release.weights[found:] == 0).all()
        fill = release.components[found:]
        np.testing.assert_allclose(fill @ release.components[:found].T, 0.0, atol=1e-12)


def test_memory_is_linear_in_the_dimension() -> None:
    d = 3000
    estimator = make(d, 3, restarts=10)
    state = start(estimator)
    batch = ArrayBatch.of_vectors(np.random.default_rng(6).standard_normal((16, d)))
    estimator.update(state, batch)
    tracemalloc.start()
    estimator.release(estimator.update(state, batch))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # The peak is about seventy vectors, far below a d x d matrix for d = 3000.
    assert peak < 8 * d * 150
    assert len(encode_state(state)) < 8 * d * 20 + 10_000


def test_records_of_more_or_no_rows_and_huge_ones_add_nothing() -> None:
    rng = np.random.default_rng(8)
    estimator = make(3, 1, restarts=2, steps=3)
    items: list[Any] = [rng.standard_normal((1, 3)) for _ in range(20)]
    odd = [None, rng.standard_normal((2, 3)), np.full((1, 3), 1e200), np.full((1, 3), -1e300)]
    with np.errstate(all="raise"):
        zeros, odds = (
            estimator.update(start(estimator), ArrayBatch.of_records([*items, *more], 3))
            for more in ([np.zeros((1, 3))] * 4, odd)
        )
    np.testing.assert_allclose(odds.search.candidates, zeros.search.candidates)


@pytest.mark.parametrize("rows", [np.zeros((8, 3)), np.full((8, 3), 9e49)])
def test_no_batch_makes_a_state_that_is_not_finite(rows: Floats) -> None:
    estimator = make(3, 2, restarts=2, steps=1)
    state = start(estimator)
    for _ in range(6):
        state = estimator.update(state, ArrayBatch.of_vectors(rows))
        release = estimator.release(state)
        assert np.isfinite(release.explained_variance).all()
        np.testing.assert_allclose(np.linalg.norm(release.components, axis=1), 1.0)


def test_as_many_components_as_features_are_found() -> None:
    rng, axes = np.random.default_rng(9), mixing(3)
    estimator = make(3, 3, batch_size=20_000)
    state = start(estimator)
    for _ in range(3 * estimator.options.steps_in(3) + 4):
        state = estimator.update(state, ArrayBatch.of_vectors(independent(rng, 20_000, axes)))
    overlaps = np.sum(estimator.release(state).components * axes.T, axis=1)
    assert (overlaps > 0.99).all()
