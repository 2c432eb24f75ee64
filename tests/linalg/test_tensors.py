"""Products of rows under a third moment, deflation and whitening."""

from __future__ import annotations

import tracemalloc

import numpy as np

from experiments.papers.dense_tensors import (
    products_of_tensor,
    robust_tensor_power,
    sum_of_cubes,
    symmetrised,
)
from streaming_pca.linalg.tensors import (
    deflated,
    enough_restarts,
    enough_steps,
    normalised,
    product_values,
    products_of_rows,
    random_starts,
    spectral_whitening,
    unwhitened,
)


def test_products_of_rows_are_those_of_their_dense_moment() -> None:
    rng = np.random.default_rng(1)
    rows, candidates = rng.standard_normal((30, 4)), random_starts(rng, 4, 3)
    dense = np.einsum("na,nb,nc->abc", rows, rows, rows)
    products = products_of_rows(rows, candidates)
    np.testing.assert_allclose(products, products_of_tensor(dense, candidates))
    direct = np.einsum("abc,bl,cl->al", dense, candidates, candidates)
    np.testing.assert_allclose(products, direct)
    values = np.einsum("abc,al,bl,cl->l", dense, candidates, candidates, candidates)
    np.testing.assert_allclose(product_values(products, candidates), values)


def test_products_of_rows_form_no_tensor() -> None:
    rows, candidates = np.ones((8, 400)), np.ones((400, 5))
    tracemalloc.start()
    products_of_rows(rows, candidates)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 400 * 400 * 8 / 10


def test_deflation_takes_the_cubes_off() -> None:
    rng = np.random.default_rng(2)
    tensor = symmetrised(rng.standard_normal((5, 5, 5)))
    weights, components = np.array([2.0, -0.5]), random_starts(rng, 5, 2).T
    candidates = random_starts(rng, 5, 4)
    products = deflated(products_of_tensor(tensor, candidates), candidates, weights, components)
    smaller = tensor - sum_of_cubes(weights, components)
    np.testing.assert_allclose(products, products_of_tensor(smaller, candidates), atol=1e-12)
    nothing = deflated(products, candidates, weights[:0], components[:0])
    np.testing.assert_array_equal(nothing, products)


def test_what_has_no_direction_leaves_the_candidate() -> None:
    candidates = random_starts(np.random.default_rng(4), 3, 4)
    products = np.array([[0.0, 3e200, np.inf, 1e-310], [0.0, 4e200, 1.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    unit = normalised(products, candidates)
    np.testing.assert_array_equal(unit[:, [0, 2]], candidates[:, [0, 2]])
    np.testing.assert_allclose(unit[:, 1], [0.6, 0.8, 0.0])
    np.testing.assert_allclose(unit[:, 3], [1.0, 0.0, 0.0])


def test_whitening_makes_independent_components_orthogonal_and_takes_them_back() -> None:
    rng = np.random.default_rng(9)
    d, k = 8, 3
    shares = np.array([0.5, 0.3, 0.2])
    means = np.abs(rng.standard_normal((k, d)))
    moment = (shares[:, None] * means).T @ means
    whitening = spectral_whitening(moment, k, 1e-9)
    whiten = whitening.basis / whitening.roots
    np.testing.assert_allclose(whiten.T @ moment @ whiten, np.eye(k), atol=1e-9)
    small = means @ whiten
    gram = small @ small.T * np.sqrt(np.outer(shares, shares))
    np.testing.assert_allclose(gram, np.eye(k), atol=1e-9)
    tensor = sum_of_cubes(shares, small)
    found = robust_tensor_power(tensor, k, 20, 30, rng)
    weights, components = unwhitened(whitening, *found)
    sizes = np.linalg.norm(means, axis=1)
    order = np.argmax(components @ (means / sizes[:, None]).T, axis=1)
    assert sorted(order) == list(range(k))
    np.testing.assert_allclose(components, (means / sizes[:, None])[order], atol=1e-6)
    np.testing.assert_allclose(weights, (shares * sizes**3)[order], rtol=1e-6)


def test_whitening_does_not_blow_up_what_is_below_the_floor() -> None:
    whitening = spectral_whitening(np.diag([4.0, 1e-12, -1.0]), 3, 0.25)
    np.testing.assert_allclose(np.linalg.norm(whitening.basis / whitening.roots, axis=0), [0.5, 2.0, 2.0])
    np.testing.assert_allclose(np.linalg.norm(whitening.unwhiten, axis=0), [2.0, 0.5, 0.5])


def test_restarts_and_steps_grow_as_the_theorem_asks() -> None:
    assert enough_restarts(1) == 10
    assert enough_restarts(20) == 120
    assert enough_steps(1) < enough_steps(100) == 20
