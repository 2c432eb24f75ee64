"""Dense tensors, and the power method of [WangAnandkumar2016, Algorithm 1]."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from experiments.papers.dense_tensors import (
    products_of_tensor,
    robust_tensor_power,
    sum_of_cubes,
    symmetrised,
)
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.linalg.tensors import enough_restarts, enough_steps, random_starts


def orthonormal_rows(d: int, k: int, seed: int = 0) -> np.ndarray:
    return orthonormalise(np.random.default_rng(seed).standard_normal((d, k))).T


def test_symmetrised_tensors_equal_their_transposes_bit_for_bit() -> None:
    tensor = symmetrised(np.random.default_rng(3).standard_normal((6, 6, 6)) * 1e3)
    for order in itertools.permutations(range(3)):
        np.testing.assert_array_equal(tensor, tensor.transpose(order))
    np.testing.assert_allclose(symmetrised(tensor), tensor)


@pytest.mark.parametrize(("d", "k"), [(12, 3), (6, 6), (1, 1)])
def test_components_of_an_orthogonal_tensor_are_found(d: int, k: int) -> None:
    truth = orthonormal_rows(d, k)
    weights = np.linspace(1.0, 0.5, k)
    tensor = sum_of_cubes(weights, truth)
    found, components = robust_tensor_power(
        tensor, k, enough_restarts(k), enough_steps(d), np.random.default_rng(5)
    )
    overlaps = components @ truth.T
    order = np.argmax(overlaps, axis=1)
    assert sorted(order) == list(range(k))
    # Signs agree too: a weight belongs to v, and -v has the opposite one.
    np.testing.assert_allclose(overlaps[np.arange(k), order], 1.0, atol=1e-6)
    np.testing.assert_allclose(found, weights[order], atol=1e-6)


def test_noise_within_the_bound_of_theorem_2_2_moves_components_by_no_more() -> None:
    d, k = 40, 3
    truth = orthonormal_rows(d, k)
    weights = np.array([1.0, 0.75, 0.5])
    noise = symmetrised(np.random.default_rng(6).standard_normal((d, d, d)))
    candidates = random_starts(np.random.default_rng(7), d, 200)
    # |E(I, u, u)| is the theorem's epsilon, here C_1 lambda_min/sqrt(k) with C_1 = 0.1;
    # round noise has |E(v, u, u)| about epsilon/sqrt(d), within C_0 lambda_min/d.
    epsilon = 0.1 * weights.min() / np.sqrt(k)
    noise *= epsilon / np.linalg.norm(products_of_tensor(noise, candidates), axis=0).max()
    tensor = sum_of_cubes(weights, truth) + noise
    found, components = robust_tensor_power(tensor, k, 30, enough_steps(d), np.random.default_rng(8))
    np.testing.assert_allclose(found, weights, atol=2 * epsilon)
    assert (np.linalg.norm(components - truth, axis=1) <= 4 * epsilon / weights).all()


def test_a_tensor_has_three_equal_axes_and_at_most_as_many_components() -> None:
    rng = np.random.default_rng(0)
    with pytest.raises(ValueError, match="shape"):
        robust_tensor_power(np.zeros((2, 2, 3)), 1, 1, 1, rng)
    with pytest.raises(ValueError, match="between 1 and 2, not 3"):
        robust_tensor_power(np.zeros((2, 2, 2)), 3, 1, 1, rng)
