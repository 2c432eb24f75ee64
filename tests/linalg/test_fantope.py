"""The Fantope: certificates computed by the tests prove projections and solutions optimal."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.linalg.fantope import (
    FantopeSolution,
    fantope_projection,
    fantope_weights,
    features_in_play,
    noise_penalty,
    soft_threshold,
    sparse_subspace,
)
from streaming_pca.linalg.subspace import orthonormalise, subspace_error

Matrix = NDArray[np.float64]


def symmetric(d: int, sigma: float, seed: int) -> Matrix:
    """Return a matrix with independent Gaussian entries of this deviation in the upper triangle."""
    upper = np.triu(np.random.default_rng(seed).standard_normal((d, d))) * sigma
    return np.asarray(upper + np.triu(upper, 1).T)


def sparse_spike(d: int, k: int, s: int, seed: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return a covariance, its directions and features: k directions of variance 1 on s features."""
    rng = np.random.default_rng(seed)
    features = np.sort(rng.choice(d, s, replace=False))
    rows = np.zeros((k, d))
    rows[:, features] = orthonormalise(rng.standard_normal((s, k))).T
    return rows.T @ rows + 0.1 * np.eye(d), rows, features


def most(matrix: Matrix, k: int) -> float:
    """Return the largest <A, X> over the Fantope: the sum of the k leading eigenvalues (Ky Fan)."""
    return float(np.linalg.eigvalsh(matrix)[-k:].sum())


def assert_in_the_fantope(matrix: Matrix, k: int) -> None:
    values = np.linalg.eigvalsh(matrix)
    assert values[0] >= -1e-12
    assert values[-1] <= 1 + 1e-12
    assert np.trace(matrix) == pytest.approx(k, abs=1e-10)
    assert np.array_equal(matrix, matrix.T)


def objective(s: Matrix, x: Matrix, penalty: float) -> float:
    return float(np.sum(s * x) - penalty * np.abs(x).sum())


def embedded(found: FantopeSolution, d: int, of: Matrix) -> Matrix:
    out = np.zeros((d, d))
    out[np.ix_(found.features, found.features)] = of
    return out


@pytest.mark.parametrize(
    ("values", "k", "expected"),
    [
        *(([3.0, 2.0, -1.0], 2, [1, 1, 0]), ([0.2, 0.2, 0.2, 0.2], 2, [0.5, 0.5, 0.5, 0.5])),
        *(([1.0, 0.8, 0.0], 1, [0.6, 0.4, 0]), ([5.0, 0.5, 0.3], 2, [1, 0.6, 0.4])),
        *(([-4.0, -4.5], 1, [0.75, 0.25]), ([0.0, 0.0, 0.0], 3, [1, 1, 1]), ([1e9, 0.0], 1, [1, 0])),
    ],
)
def test_weights_are_shifted_and_clipped_values(values: list[float], k: int, expected: list[float]) -> None:
    np.testing.assert_allclose(fantope_weights(np.array(values), k), expected, atol=1e-12)


@pytest.mark.parametrize("seed", range(20))
def test_weights_sum_to_the_rank_and_are_nearest(seed: int) -> None:
    rng = np.random.default_rng(seed)
    m = int(rng.integers(1, 40))
    k = int(rng.integers(1, m + 1))
    values = rng.standard_normal(m) * 10.0 ** rng.integers(-3, 3)
    weights = fantope_weights(values, k)
    assert weights.sum() == pytest.approx(k, abs=1e-9)
    # No feasible w' is on the other side of w: <v - w, w' - w> <= 0, at the best w' there is.
    residual = values - weights
    assert np.sort(residual)[m - k :].sum() <= residual @ weights + 1e-9 * (1 + np.abs(values).sum())


@pytest.mark.parametrize(("d", "k"), [(1, 1), (2, 1), (7, 3), (7, 7), (40, 5), (150, 4), (150, 149)])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e3])
def test_a_projection_is_in_the_fantope_and_nearest(d: int, k: int, scale: float) -> None:
    a = symmetric(d, scale, d + k)
    p, _ = fantope_projection(a, k, d)
    assert_in_the_fantope(p, k)
    residual = a - p
    assert most(residual, k) <= np.sum(residual * p) + 1e-9 * (1 + scale) * d


def test_a_projection_of_rank_k_is_its_own() -> None:
    rows = orthonormalise(np.random.default_rng(0).standard_normal((30, 4))).T
    np.testing.assert_allclose(fantope_projection(rows.T @ rows, 4, 30)[0], rows.T @ rows, atol=1e-12)


def test_thresholding_moves_entries_towards_zero_and_not_past_it() -> None:
    given = np.array([[3.0, -0.5], [-2.0, 1.0]])
    assert np.array_equal(soft_threshold(given, 1.0), [[2.0, 0.0], [-1.0, 0.0]])
    assert np.array_equal(soft_threshold(given, 0.0), given)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("penalty", [0.0, 0.05, 0.3, 1.0])
def test_in_the_plane_a_fine_grid_finds_nothing_better(seed: int, penalty: float) -> None:
    """The feasible X are [[a, b], [b, 1 - a]] with b^2 <= a (1 - a)."""
    s = symmetric(2, 1.0, seed)
    found = sparse_subspace(s, 1, penalty, tolerance=1e-7)
    x = embedded(found, 2, found.feasible)
    assert_in_the_fantope(x, 1)
    a = np.linspace(0, 1, 401)[:, None]
    b = np.linspace(-1, 1, 401) * np.sqrt(a * (1 - a))
    values = s[0, 0] * a + s[1, 1] * (1 - a) + 2 * s[0, 1] * b - penalty * (1 + 2 * np.abs(b))
    assert objective(s, x, penalty) == pytest.approx(values.max(), abs=1e-4)


@pytest.mark.parametrize(("d", "k", "s"), [(12, 1, 4), (30, 3, 8), (60, 5, 20), (200, 2, 10)])
@pytest.mark.parametrize("constant", [0.3, 1.0])
def test_a_solution_is_optimal_among_all_features(d: int, k: int, s: int, constant: float) -> None:
    """A dual matrix of all d features, built here from the solution's, bounds every X."""
    sigma = 0.02
    matrix = sparse_spike(d, k, s, d)[0] + symmetric(d, sigma, d + 1)
    penalty = constant * noise_penalty(d, sigma)
    found = sparse_subspace(matrix, k, penalty, tolerance=1e-5)
    assert found.converged
    x = embedded(found, d, found.feasible)
    assert_in_the_fantope(x, k)
    dual = np.clip(matrix, -penalty, penalty)
    dual[np.ix_(found.features, found.features)] = found.dual
    assert np.abs(dual).max() <= penalty * (1 + 1e-9)
    gap = most(matrix - dual, k) - objective(matrix, x, penalty)
    assert -1e-9 <= gap <= 1e-4 * k
    assert found.gap == pytest.approx(gap, abs=1e-9)
    assert np.linalg.norm(found.sparse - found.feasible) <= 1e-5 * math.sqrt(k)


@pytest.mark.parametrize("seed", range(5))
def test_features_out_of_play_cannot_make_it_better(seed: int) -> None:
    """Compare with [WangXu2020, Algorithm 2], as printed: all features, a constant step, no start."""
    d, k = 25, 3
    matrix = sparse_spike(d, k, 6, seed)[0] + symmetric(d, 0.05, seed)
    penalty = noise_penalty(d, 0.05)
    screened = sparse_subspace(matrix, k, penalty, tolerance=1e-7)
    assert len(screened.features) < d
    y = np.zeros((d, d))
    u = np.zeros((d, d))
    for _ in range(3000):
        x, _ = fantope_projection(y - u + matrix, k, d)
        y = soft_threshold(x + u, penalty)
        u += x - y
    ours = objective(matrix, embedded(screened, d, screened.feasible), penalty)
    assert ours == pytest.approx(objective(matrix, x, penalty), abs=1e-6)
    assert np.linalg.norm(embedded(screened, d, screened.sparse) - y) < 1e-3


def test_features_in_play_are_those_that_are_joined_and_the_best_of_the_others() -> None:
    matrix = np.diag([5.0, 1.0, 4.0, 3.0, 2.0])
    matrix[1, 4] = matrix[4, 1] = -0.6
    assert features_in_play(matrix, 1, 0.5).tolist() == [0, 1, 4]
    assert features_in_play(matrix, 2, 0.5).tolist() == [0, 1, 2, 4]
    assert features_in_play(matrix, 2, 0.6).tolist() == [0, 2]
    assert features_in_play(matrix, 5, 0.6).tolist() == [0, 1, 2, 3, 4]


def test_without_a_penalty_it_is_the_principal_subspace() -> None:
    matrix, rows, _ = sparse_spike(40, 4, 40, 3)
    found = sparse_subspace(matrix, 4, 0.0)
    assert subspace_error(found.components(4, 40), rows) < 1e-9


@pytest.mark.parametrize("seed", range(5))
def test_the_support_is_recovered_where_the_signal_is_above_the_noise(seed: int) -> None:
    """The parameters are in the regime of [WangXu2020, Theorem 5]."""
    d, k, s, sigma = 300, 3, 9, 0.01
    covariance, rows, features = sparse_spike(d, k, s, seed)
    matrix = covariance + symmetric(d, sigma, seed + 100)
    found = sparse_subspace(matrix, k, noise_penalty(d, sigma))
    assert found.support(1e-3).tolist() == features.tolist()
    # Theorem 4's rate, with the penalty for its sqrt(log p/n).
    assert subspace_error(found.components(k, d), rows) <= 2 * s * noise_penalty(d, sigma)
    plain = np.linalg.eigh(matrix)[1][:, -k:].T
    assert subspace_error(found.components(k, d), rows) < subspace_error(plain, rows)


def test_a_warm_start_takes_fewer_iterations_to_the_same_answer() -> None:
    d, k = 80, 4
    covariance, _, _ = sparse_spike(d, k, 16, 5)
    penalty = 0.5 * noise_penalty(d, 0.02)
    first = sparse_subspace(covariance + symmetric(d, 0.02, 6), k, penalty, tolerance=1e-6)
    near = covariance + symmetric(d, 0.02, 6) + symmetric(d, 0.0005, 7)
    cold = sparse_subspace(near, k, penalty, tolerance=1e-6)
    warm = sparse_subspace(near, k, penalty, start=first, tolerance=1e-6)
    assert warm.converged
    assert cold.converged
    assert warm.iterations < cold.iterations
    difference = embedded(warm, d, warm.sparse) - embedded(cold, d, cold.sparse)
    assert np.linalg.norm(difference) < 1e-3


def test_iterations_end_at_their_limit_with_an_honest_gap() -> None:
    d, k = 40, 3
    matrix = sparse_spike(d, k, 12, 1)[0] + symmetric(d, 0.05, 2)
    penalty = 0.5 * noise_penalty(d, 0.05)
    cut = sparse_subspace(matrix, k, penalty, max_iterations=2)
    best = sparse_subspace(matrix, k, penalty, tolerance=1e-7)
    assert (cut.iterations, cut.converged) == (2, False)
    lost = objective(matrix, embedded(best, d, best.feasible), penalty) - objective(
        matrix, embedded(cut, d, cut.feasible), penalty
    )
    assert 1e-6 < lost <= cut.gap


@pytest.mark.parametrize("scale", [0.0, 1e-12, 1e12])
def test_any_scale_works(scale: float) -> None:
    matrix = scale * (sparse_spike(20, 2, 5, 0)[0] + symmetric(20, 0.02, 1))
    found = sparse_subspace(matrix, 2, scale * noise_penalty(20, 0.02))
    assert found.converged
    assert_in_the_fantope(found.feasible, 2)
    rows = found.components(2, 20)
    np.testing.assert_allclose(rows @ rows.T, np.eye(2), atol=1e-12)


def test_the_penalty_is_what_noise_does_not_exceed() -> None:
    """The union bound allows probability 0.05: of 200 fixed matrices, at most 20."""
    penalty = noise_penalty(30, 2.0)
    over = sum(np.abs(symmetric(30, 2.0, seed)).max() > penalty for seed in range(200))
    assert over <= 20
    # The penalty is not too large: every matrix exceeds half of it.
    assert all(np.abs(symmetric(30, 2.0, seed)).max() > penalty / 2 for seed in range(200))
