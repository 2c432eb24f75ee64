"""Bases, distances between subspaces, eigenpairs, signs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.linalg.subspace import (
    orthonormalise,
    principal_angles,
    project_symmetric,
    ritz_pairs,
    stable_signs,
    subspace_error,
)


def random_basis(d: int, k: int, seed: int = 0) -> NDArray[np.float64]:
    return orthonormalise(np.random.default_rng(seed).standard_normal((d, k)))


@pytest.mark.parametrize(("d", "k"), [(1, 1), (5, 1), (5, 5), (40, 7)])
def test_orthonormalised_columns_keep_their_span_and_direction(d: int, k: int) -> None:
    columns = np.random.default_rng(1).standard_normal((d, k)) * 1e3
    q = orthonormalise(columns)
    np.testing.assert_allclose(q.T @ q, np.eye(k), atol=1e-13)
    np.testing.assert_allclose(q @ (q.T @ columns), columns, atol=1e-9)
    assert (np.diagonal(q.T @ columns) > 0).all()


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_rank_deficient_input_is_completed(rank: int) -> None:
    rng = np.random.default_rng(2)
    columns = rng.standard_normal((6, rank)) @ rng.standard_normal((rank, 3))
    q = orthonormalise(columns)
    np.testing.assert_allclose(q.T @ q, np.eye(3), atol=1e-13)


def test_the_projection_is_symmetric_nearest_and_idempotent() -> None:
    rng = np.random.default_rng(3)
    q = random_basis(7, 3)
    y = rng.standard_normal((7, 3))
    p = project_symmetric(y, q)
    np.testing.assert_allclose(q.T @ p, (q.T @ p).T, atol=1e-14)
    np.testing.assert_allclose(project_symmetric(p, q), p, atol=1e-14)
    # The removed part is orthogonal to every member of the space.
    for _ in range(5):
        member = project_symmetric(rng.standard_normal((7, 3)), q)
        assert abs(np.sum((y - p) * member)) < 1e-13
    # A symmetric matrix times the basis is a member.
    a = rng.standard_normal((7, 7))
    np.testing.assert_allclose(project_symmetric((a + a.T) @ q, q), (a + a.T) @ q, atol=1e-13)


def test_ritz_pairs_are_the_largest_eigenpairs_in_decreasing_order() -> None:
    v = random_basis(6, 6)
    a = v @ np.diag([3.0, -9.0, 5.0, 1.0, 4.0, 0.0]) @ v.T
    values, vectors = ritz_pairs(a, 3)
    np.testing.assert_allclose(values, [5.0, 4.0, 3.0], atol=1e-13)
    np.testing.assert_allclose(a @ vectors, vectors * values, atol=1e-12)
    assert ritz_pairs(np.zeros((1, 1)), 1)[0].tolist() == [0.0]


def test_signs_follow_the_previous_release() -> None:
    rows = random_basis(6, 3).T
    previous = rows * np.array([[1.0], [-1.0], [1.0]])
    np.testing.assert_array_equal(stable_signs(rows, previous), previous)
    np.testing.assert_array_equal(stable_signs(-rows, previous), previous)


def test_rows_without_a_predecessor_have_their_largest_entry_positive() -> None:
    rows = np.array([[0.0, -1.0, 0.0], [0.8, 0.0, -0.6], [-0.6, 0.0, -0.8]])
    wanted = np.array([[0.0, 1.0, 0.0], [0.8, 0.0, -0.6], [0.6, 0.0, 0.8]])
    np.testing.assert_array_equal(stable_signs(rows, None), wanted)
    # Overlaps below 0.1 count as no predecessor, and so does a missing row of this rank.
    np.testing.assert_array_equal(stable_signs(rows, np.array([[1.0, 0.05, 0.0]])), wanted)


def test_signs_leave_their_input_alone() -> None:
    rows = -np.eye(3)
    stable_signs(rows, None)
    np.testing.assert_array_equal(rows, -np.eye(3))


@pytest.mark.parametrize(("ka", "kb"), [(3, 3), (1, 4), (8, 8)])
def test_the_error_is_the_distance_of_projections(ka: int, kb: int) -> None:
    a, b = random_basis(8, ka, 1).T, random_basis(8, kb, 2).T
    exact = np.linalg.norm(a.T @ a - b.T @ b)
    assert subspace_error(a, b) == pytest.approx(exact, abs=1e-12)
    assert subspace_error(b, a) == pytest.approx(exact, abs=1e-12)


@pytest.mark.parametrize("angle", [0.0, 1e-14, 1e-10, 1e-4, 0.5, math.pi / 2])
def test_small_errors_and_angles_keep_their_digits(angle: float) -> None:
    a = np.array([[1.0, 0.0, 0.0]])
    b = np.array([[math.cos(angle), math.sin(angle), 0.0]])
    assert subspace_error(a, b) == pytest.approx(math.sqrt(2) * math.sin(angle), rel=1e-9, abs=1e-18)
    assert principal_angles(a, b)[0] == pytest.approx(angle, rel=1e-7, abs=1e-18)


def test_the_error_does_not_depend_on_the_basis_of_a_subspace() -> None:
    rows = random_basis(9, 4).T
    turned = random_basis(4, 4, 5) @ rows
    assert subspace_error(rows, turned) < 1e-14
    assert principal_angles(rows, turned)[0] < 1e-14


def test_the_largest_principal_angle_counts() -> None:
    a = np.eye(4)[:2]
    b = np.array([[1.0, 0.0, 0.0, 0.0], [0.0, math.cos(0.3), math.sin(0.3), 0.0]])
    assert principal_angles(a, b)[0] == pytest.approx(0.3)
    assert principal_angles(a, np.eye(4)[2:])[0] == pytest.approx(math.pi / 2)


@pytest.mark.parametrize(
    "angles",
    [[1.2, 0.3], [math.pi / 2, 1e-12], [0.7, 0.7], [math.pi / 2 - 1e-12, 1e-3], [math.pi / 4, 0.0], [0.5]],
)
@pytest.mark.parametrize("more", [0, 2])
def test_all_principal_angles_keep_their_digits(angles: list[float], more: int) -> None:
    k, d = len(angles), 2 * len(angles) + more
    a = np.eye(k, d)
    b = np.zeros((k, d))
    for i, angle in enumerate(angles):
        b[i, i], b[i, k + i] = math.cos(angle), math.sin(angle)
    # Other bases of the same subspaces, rotated in the same way, one of them within a larger subspace.
    turn = random_basis(d, d, 3)
    a, b = random_basis(k, k, 1) @ a @ turn, random_basis(k, k, 2) @ b @ turn
    larger = np.vstack([a, turn[2 * k :]])
    for first in (a, larger):
        np.testing.assert_allclose(principal_angles(first, b), angles, rtol=1e-12, atol=1e-15)
        np.testing.assert_allclose(principal_angles(b, first), angles, rtol=1e-12, atol=1e-15)
