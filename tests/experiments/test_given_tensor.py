"""Entry-level privacy of a given tensor: sensitivity, composition, the printed constant, recovery."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from experiments.papers.dense_tensors import products_of_tensor, sum_of_cubes, symmetrised
from experiments.papers.given_tensor import (
    GivenTensor,
    PrivateTensor,
    printed_multiplier,
    private_tensor_power,
)
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.linalg.tensors import product_values, random_starts
from streaming_pca.privacy.calibration.multipliers import gaussian_delta, gaussian_multiplier
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.privacy.noise import ScriptedSampler, SeededSampler

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
PRIVACY = PrivacyParameters(epsilon=1.0, delta=1e-6)


def orbit(d: int, i: int, j: int, k: int) -> Floats:
    """Return symmetrize(e_i (x) e_j (x) e_k) of Definition 4.2."""
    out = np.zeros((d, d, d))
    for order in itertools.permutations((i, j, k)):
        out[order] += 1.0
    return out


def lattice(candidates: Floats) -> Integers:
    return np.rint(np.ldexp(candidates, 12)).astype(np.int64)


def squared(values: Integers) -> int:
    return sum(int(v) ** 2 for v in values.flat)


@pytest.mark.parametrize("restarts", [1, 2, 7])
def test_a_neighbour_moves_the_answers_by_no_more_than_the_sensitivity(restarts: int) -> None:
    """Every orbit of a real tensor moves up and down, fully and partly; one of them is the worst."""
    d, rng = 4, np.random.default_rng(restarts)
    tensor = symmetrised(rng.standard_normal((d, d, d)) * 3)
    q = lattice(random_starts(rng, d, restarts))
    given = GivenTensor(tensor, 10.0)
    products, values = given.products(q), given.values(q)
    of_products, of_values = given.product_sensitivity(q), given.value_sensitivity(q)
    worst = [0, 0]
    for i, j, k in itertools.combinations_with_replacement(range(d), 3):
        for c in (1.0, -1.0, 0.37, 1e-9):
            other = GivenTensor(tensor + c * orbit(d, i, j, k), 10.0)
            moved = [squared(other.products(q) - products), squared(other.values(q) - values)]
            worst = [max(pair) for pair in zip(worst, moved, strict=True)]
    assert worst[0] <= Fraction(of_products) ** 2
    assert worst[1] <= Fraction(of_values) ** 2
    # The claimed values are attained by the diagonal entries.
    assert worst[0] >= 0.999 * of_products**2
    assert worst[1] >= 0.98 * of_values**2


def test_one_candidate_has_the_sensitivity_that_is_printed_and_many_together_less_than_its_root() -> None:
    d, restarts = 60, 12
    rng = np.random.default_rng(0)
    given = GivenTensor(np.zeros((d, d, d)), 1.0)
    q = lattice(random_starts(rng, d, restarts))
    u = np.ldexp(q, -12)
    units = 4.0**12 * given.per_unit
    single = [given.product_sensitivity(q[:, [i]]) / units for i in range(restarts)]
    np.testing.assert_allclose(single, 6 * np.abs(u).max(axis=0) ** 2)
    together = given.product_sensitivity(q) / units
    assert max(single) <= together <= 0.7 * math.sqrt(sum(s**2 for s in single))
    of_value = given.value_sensitivity(q[:, :1]) / (2.0**12 * given.per_unit)
    np.testing.assert_allclose(of_value, 6 * np.abs(u[:, 0]).max() ** 3, rtol=1e-2)


def test_answers_are_exact_and_near_those_of_the_reals() -> None:
    rng = np.random.default_rng(1)
    tensor = symmetrised(rng.standard_normal((5, 5, 5)))
    q = lattice(random_starts(rng, 5, 3))
    given, u = GivenTensor(tensor, 100.0), np.ldexp(q, -12)
    whole = np.rint(tensor * given.per_unit).astype(np.int64).astype(object)
    exact = np.einsum("ijk,jl,kl->il", whole, q.astype(object), q.astype(object))
    assert (given.products(q) == exact).all()
    assert (given.values(q) == np.einsum("il,il->l", exact, q.astype(object)) // 4**12).all()
    products = given.products(q) / (4.0**12 * given.per_unit)
    np.testing.assert_allclose(products, products_of_tensor(tensor, u), atol=1e-4)
    values = given.values(q) / (2.0**12 * given.per_unit)
    np.testing.assert_allclose(values, product_values(products, u), atol=1e-4)


def test_sums_stay_exact_at_the_largest_bound_and_entries_beyond_it_are_clipped() -> None:
    d = 32
    with pytest.raises(ValueError, match="entry_bound must be at most") as refused:
        GivenTensor(np.zeros((d, d, d)), 1e30)
    bound = float(str(refused.value).split("at most ")[1].split(" ")[0]) * 0.99
    given = GivenTensor(np.full((d, d, d), 1e300), bound)
    q = lattice(np.full((d, 1), d**-0.5))
    entry = int(np.rint(bound * given.per_unit))
    assert (given.products(q) == entry * int(q.sum()) ** 2).all()
    assert given.values(q)[0] == entry * int(q.sum()) ** 3 // 4**12


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (np.zeros((2, 2)), "shape"),
        (np.zeros((2, 3, 2)), "shape"),
        (np.zeros((0, 0, 0)), "between 1 and 1024"),
        (np.full((2, 2, 2), np.nan), "finite and symmetric"),
        (np.arange(8.0).reshape(2, 2, 2), "finite and symmetric"),
    ],
)
def test_what_is_no_symmetric_tensor_is_refused(tensor: Floats, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GivenTensor(tensor, 1.0)


def test_parameters_out_of_their_range_are_refused() -> None:
    def attempt(k: int = 1, **options: Any) -> PrivateTensor:
        privacy = options.pop("privacy", PRIVACY)
        return private_tensor_power(np.zeros((2, 2, 2)), k, privacy, utility_generator(0), **options)

    with pytest.raises(ValueError, match="between 1 and 2, not 3"):
        attempt(3)
    with pytest.raises(ValueError, match="restarts"):
        attempt(restarts=0)
    with pytest.raises(ValueError, match="steps"):
        attempt(steps=0)
    with pytest.raises(ValueError, match="entry_bound"):
        attempt(entry_bound=math.inf)
    with pytest.raises(ValueError, match="one contribution"):
        attempt(privacy=PrivacyParameters(epsilon=1.0, delta=1e-6, contributions=2))


# Composition.


def test_the_printed_constant_is_short_by_a_third_and_gaussian_composition_covers_it() -> None:
    epsilon, delta, answers = 1.0, 1e-6, 3 * 12 * 21
    of_each = epsilon / math.sqrt(answers * (4 + math.log(2 / delta)))
    # Advanced composition (Dwork and Roth, Theorem 3.20), with its remaining half of delta.
    composed = math.sqrt(2 * answers * math.log(2 / delta)) * of_each
    composed += answers * of_each * math.expm1(of_each)
    assert composed == pytest.approx(1.31, abs=0.005)
    # The theorem still holds, with six times the noise that Gaussian composition requires.
    printed = printed_multiplier(epsilon, delta, answers)
    assert printed == math.sqrt(2 * math.log(1.25 * 2 * answers / delta)) / of_each
    assert gaussian_delta(epsilon, printed / math.sqrt(answers)) < delta
    needed = math.sqrt(answers) * gaussian_multiplier(epsilon, delta)
    assert printed / needed == pytest.approx(6.6, abs=0.1)


@pytest.mark.parametrize("calibration", ["joint", "single", "paper"])
def test_every_answer_has_its_share_of_the_noise(calibration: Any) -> None:
    d, k, restarts, steps = 5, 2, 3, 4
    sampler = ScriptedSampler()
    with replace_noise_sampler(sampler):
        found = private_tensor_power(
            sum_of_cubes(np.array([2.0, 1.0]), np.eye(d)[:2]),
            k,
            PRIVACY,
            utility_generator(1),
            restarts=restarts,
            steps=steps,
            calibration=calibration,
        )
    together = calibration == "joint"
    assert found.answers == k * (steps + 1) * (1 if together else restarts) == len(sampler.asked)
    assert found.charge.epsilon == 1
    assert found.charge.rho is not None
    assert found.charge.rho >= found.answers / (2 * Fraction(found.multiplier) ** 2)
    # c answers of multiplier z are sqrt(c)/z-GDP.
    assert gaussian_delta(1.0, found.multiplier / math.sqrt(found.answers)) <= 1e-6
    if calibration == "paper":
        assert found.multiplier == pytest.approx(printed_multiplier(1.0, 1e-6, found.answers))
    else:
        least = math.sqrt(found.answers) * gaussian_multiplier(1.0, 1e-6)
        assert found.multiplier == pytest.approx(least, rel=1e-3)
    given = GivenTensor(np.zeros((d, d, d)), 1024.0)
    starts = lattice(random_starts(utility_generator(1), d, restarts))
    first = starts if together else starts[:, :1]
    _, size, scale = sampler.asked[0]
    assert size == first.size
    assert scale == pytest.approx(found.multiplier * given.product_sensitivity(first))
    assert {size for _, size, _ in sampler.asked} == ({d * restarts, restarts} if together else {d, 1})


# Recovery.


def test_components_are_recovered_within_the_noise_of_an_answer() -> None:
    """Theorem 4.2: incoherent components, lambda_min far above mu_0 k^2 log(lambda_max d/delta)/epsilon."""
    d, k = 64, 2
    truth = orthonormalise(np.random.default_rng(2).standard_normal((d, k))).T
    incoherence = d / k * (truth**2).sum(axis=0).max()
    weights = np.array([1.0, 0.8]) * 3000
    assert weights.min() > incoherence * k**2 * math.log(weights.max() * d / 1e-6)
    tensor = sum_of_cubes(weights, truth)
    with replace_noise_sampler(SeededSampler()):
        found = private_tensor_power(tensor, k, PRIVACY, utility_generator(3), restarts=10, steps=10)
    # The noise of the last product, whose candidates are one.
    noise = found.multiplier * 6 * math.sqrt(10 * d) * float((truth**4).max()) ** 0.5
    order = np.argmax(np.abs(found.components @ truth.T), axis=1)
    assert sorted(order) == [0, 1]
    distances = np.linalg.norm(found.components - truth[order], axis=1)
    assert (distances <= 2 * noise / weights[order]).all()
    np.testing.assert_allclose(found.weights, weights[order], atol=noise)


def test_joint_answers_find_what_the_printed_noise_hides() -> None:
    d = 30
    truth = orthonormalise(np.random.default_rng(4).standard_normal((d, 1))).T
    tensor = sum_of_cubes(np.array([1500.0]), truth)
    overlaps = {}
    for calibration in ("joint", "paper"):
        with replace_noise_sampler(SeededSampler()):
            found = private_tensor_power(
                tensor, 1, PRIVACY, utility_generator(5), restarts=10, steps=10, calibration=calibration
            )
        overlaps[calibration] = float(found.components[0] @ truth[0])
    assert overlaps["joint"] > 0.95
    assert overlaps["paper"] < 0.7


@pytest.mark.parametrize("d", [1, 3])
def test_zero_tensors_and_full_rank_release_finite_numbers(d: int) -> None:
    for sampler in (SeededSampler(), ScriptedSampler()):
        with replace_noise_sampler(sampler):
            found = private_tensor_power(np.zeros((d, d, d)), d, PRIVACY, utility_generator(6), steps=3)
        assert np.isfinite(found.weights).all()
        np.testing.assert_allclose(np.linalg.norm(found.components, axis=1), 1.0)
