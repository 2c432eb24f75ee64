"""The effect of noise alone on a release: bounds that hold, and are small enough to be useful.

Coverage is counted over 2,000 draws and must be at least 0.95. Seeds are fixed.
A bound whose true coverage is 0.93 passes with probability 2e-4 (binomial); the
bounds here are conservative, so that a correct bound fails
with a probability below 1e-9.
"""

from __future__ import annotations

import math

import numpy as np
import pytest

from streaming_pca.estimators.common.error_bounds import (
    FAILURE,
    angle_bound_of_block,
    angle_bound_of_covariance,
    explained_ratio,
)
from streaming_pca.linalg.subspace import project_symmetric
from tests.estimators.suite import Floats

DRAWS = 2000
SAYS_NOTHING = math.pi / 2


def symmetric_noise(rng: np.random.Generator, draws: int, d: int) -> Floats:
    """Return noise with standard deviation 1 on the diagonal, 1/sqrt(2) off it."""
    g = rng.standard_normal((draws, d, d))
    return (g + g.transpose(0, 2, 1)) / 2


def eigenpairs(matrices: Floats) -> tuple[Floats, Floats]:
    """Return eigenpairs in decreasing order."""
    values, vectors = np.linalg.eigh(matrices)
    return values[:, ::-1], vectors[:, :, ::-1]


def angles(vectors: Floats, basis: Floats) -> Floats:
    """Return the largest principal angle of many subspaces, (draws, d, k), to one, (d, k)."""
    rest = vectors - basis @ (basis.T @ vectors)
    return np.arcsin(np.minimum(np.linalg.norm(rest, 2, axis=(1, 2)), 1.0))


def covered(found: Floats, bounds: Floats) -> float:
    return float(np.mean(found <= bounds))


def draw_covariance(
    spectrum: Floats, k: int, sigma: float = 1.0, draws: int = DRAWS
) -> tuple[Floats, Floats]:
    """Return angles and eigenvalues of noisy matrices."""
    d = len(spectrum)
    noise = sigma * symmetric_noise(np.random.default_rng([d, k]), draws, d)
    values, vectors = eigenpairs(np.diag(spectrum) + noise)
    return angles(vectors[:, :, :k], np.eye(d)[:, :k]), values


def spike(k: int, d: int, height: float, rest: float = 0.0) -> Floats:
    return np.where(np.arange(d) < k, height, rest)


SPECTRA: dict[str, tuple[Floats, int]] = {
    "one large": (spike(1, 20, 60.0), 1),
    "three large": (spike(3, 20, 60.0), 3),
    "all but one large": (spike(11, 12, 60.0), 11),
    "a line": (np.linspace(300.0, 5.0, 12), 2),
    "10/i": (300.0 / np.arange(1, 21), 2),
    "wide": (spike(2, 40, 40.0), 2),
    "indefinite": (np.concatenate([[30.0], np.zeros(8), [-200.0]]), 1),
    "large above": (np.concatenate([[1e4], [25.0], np.zeros(8)]), 2),
    "at the edge of what can be said": (spike(2, 12, 19.0), 2),
    "hardly a gap": (spike(2, 12, 4.0), 2),
    "a tie": (np.zeros(12), 2),
    "a tie that stands out": (np.concatenate([[30.0, 30.0], np.zeros(8)]), 1),
}


@pytest.mark.parametrize("name", SPECTRA)
def test_the_angle_of_a_covariance_is_within_its_bound(name: str) -> None:
    spectrum, k = SPECTRA[name]
    found, values = draw_covariance(spectrum, k)
    bounds = np.array([angle_bound_of_covariance(each, k, 1.0) for each in values])
    assert covered(found, bounds) >= 1 - FAILURE
    assert bounds.max() <= SAYS_NOTHING


@pytest.mark.parametrize(
    ("d", "k", "factor"), [(20, 1, 1.6), (20, 3, 1.6), (40, 2, 1.5), (100, 2, 1.4), (12, 11, 1.9)]
)
def test_where_the_gap_is_large_the_bound_is_near_the_true_quantile(d: int, k: int, factor: float) -> None:
    found, values = draw_covariance(spike(k, d, 60 * math.sqrt(d)), k)
    bounds = np.array([angle_bound_of_covariance(each, k, 1.0) for each in values])
    assert bounds.max() < factor * np.quantile(found, 1 - FAILURE)
    # Assuming half the noise, the bound must fail, so the tests of coverage can fail.
    halves = np.array([angle_bound_of_covariance(each, k, 0.5) for each in values])
    assert covered(found, halves) < 1 - FAILURE


@pytest.mark.parametrize(
    ("name", "lowest", "highest"), [("flat", 1.7, 2.1), ("1/i", 4.0, 5.5), ("near", 8.5, 11.5)]
)
def test_the_bound_is_twice_to_ten_times_the_mean_angle(name: str, lowest: float, highest: float) -> None:
    """To first order a direction turns by its noise over its own gap; the bound takes the least gap."""
    spectra = {
        "flat": (spike(1, 20, 400.0), 1),
        "1/i": (4800 / np.arange(1.0, 41.0), 3),
        "near": (-400.0 * np.array([0, 1, *range(20, 38)]), 1),
    }
    spectrum, k = spectra[name]
    found, values = draw_covariance(spectrum, k, draws=400)
    bounds = [angle_bound_of_covariance(each, k, 1.0) for each in values]
    assert lowest < np.mean(bounds) / np.mean(found) < highest


def test_a_gap_well_above_the_noise_is_bounded_and_one_inside_it_is_not() -> None:
    d = 100
    _, values = draw_covariance(spike(1, d, 60.0), 1, draws=100)
    # The noise alone has eigenvalues up to sqrt(2 d) = 14, and the gap above them is about 47.
    assert max(angle_bound_of_covariance(each, 1, 1.0) for each in values) < math.pi / 10
    _, values = draw_covariance(spike(1, d, 14.0), 1, draws=100)
    assert {angle_bound_of_covariance(each, 1, 1.0) for each in values} == {SAYS_NOTHING}


def test_a_bound_on_the_angle_scales_with_noise_and_gap_together() -> None:
    values = np.array([9.0, 8.0, 1.0, 0.5])
    bound = angle_bound_of_covariance(values, 2, 0.3)
    assert angle_bound_of_covariance(7 * values, 2, 2.1) == pytest.approx(bound)
    assert bound < angle_bound_of_covariance(values, 2, 0.4) < math.pi / 4
    assert bound < angle_bound_of_covariance(values, 2, 0.3, other=0.2) < math.pi / 4
    assert angle_bound_of_covariance(values, 2, 0.0) == 0.0


def test_the_whole_space_has_no_angle() -> None:
    assert angle_bound_of_covariance(np.ones(3), 3, 5.0) == 0.0
    assert angle_bound_of_block(np.ones(3), 3, 3, 5.0) == 0.0


@pytest.mark.parametrize("value", [math.inf, math.nan, 1e300])
def test_numbers_that_overflow_say_nothing(value: float) -> None:
    large = np.full(4, value)
    falling = np.array([value * 1e10, 1.0, 0.5, 0.0])
    plain = np.array([3.0, 1.0, 0.5, 0.0])
    assert angle_bound_of_covariance(large, 2, 1.0) == SAYS_NOTHING
    assert angle_bound_of_covariance(plain, 1, value) == SAYS_NOTHING
    assert angle_bound_of_covariance(falling, 1, 1.0) == SAYS_NOTHING
    assert angle_bound_of_block(large, 2, 9, 1.0) == SAYS_NOTHING
    assert angle_bound_of_block(falling, 1, 9, 1.0) == SAYS_NOTHING


def test_a_perturbation_of_any_kind_is_covered_by_its_norm() -> None:
    d, k, norm = 12, 2, 6.0
    rng = np.random.default_rng(5)
    noise = symmetric_noise(rng, DRAWS, d)
    # The worst case of the noise turns the last leading direction toward the noisiest other.
    turn = noise[:, k:, k - 1] / np.linalg.norm(noise[:, k:, k - 1], axis=1, keepdims=True)
    other = np.zeros_like(noise)
    other[:, k:, k - 1] = other[:, k - 1, k:] = norm * turn
    values, vectors = eigenpairs(np.diag(spike(k, d, 80.0)) + noise + other)
    found = angles(vectors[:, :, :k], np.eye(d)[:, :k])
    bounds = np.array([angle_bound_of_covariance(v, k, 1.0, other=norm) for v in values])
    assert covered(found, bounds) >= 1 - FAILURE
    without = np.array([angle_bound_of_covariance(v, k, 1.0) for v in values])
    assert covered(found, without) < 1 - FAILURE


def orthonormal(d: int, k: int) -> Floats:
    return np.asarray(np.linalg.qr(np.random.default_rng(d).standard_normal((d, k)))[0])


def draw_block(exact: Floats, k: int, project: bool = False) -> tuple[Floats, Floats]:
    """Return angles and singular values of noisy blocks."""
    d, columns = exact.shape
    noise = np.random.default_rng([d, k]).standard_normal((DRAWS, d, columns))
    if project:
        basis = orthonormal(d, columns)
        noise = np.array([project_symmetric(each, basis) for each in noise])
    left, values, _ = np.linalg.svd(exact + noise, full_matrices=False)
    return angles(left[:, :, :k], np.linalg.svd(exact)[0][:, :k]), values


def block(d: int, *singular_values: float) -> Floats:
    columns = len(singular_values)
    return orthonormal(d, columns) * np.array(singular_values) @ orthonormal(columns, columns).T


BLOCKS: dict[str, tuple[Floats, int]] = {
    "one column": (block(20, 60.0), 1),
    "three columns": (block(20, 80.0, 60.0, 50.0), 3),
    "wide": (block(60, 90.0, 60.0), 2),
    "almost the whole space": (block(6, *[40.0] * 5), 5),
    "hardly above the noise": (block(20, 60.0, 8.0), 2),
    "of lower rank": (block(20, 60.0, 0.0), 2),
    "a column to spare": (block(20, 80.0, 60.0, 0.0), 2),
    "spare columns that hold something": (block(20, 160.0, 150.0, 60.0, 50.0), 2),
    "no gap": (block(20, 60.0, 60.0, 60.0), 2),
}


@pytest.mark.parametrize("project", [False, True])
@pytest.mark.parametrize("name", BLOCKS)
def test_the_angle_of_a_block_is_within_its_bound(name: str, project: bool) -> None:
    exact, k = BLOCKS[name]
    found, values = draw_block(exact, k, project)
    bounds = np.array([angle_bound_of_block(each, k, len(exact), 1.0) for each in values])
    if name == "of lower rank":
        # The leading subspace is not unique; the bound is to the nearest that contains the column space.
        assert (bounds == SAYS_NOTHING).mean() > 0.9
    assert covered(found, bounds) >= 1 - FAILURE


@pytest.mark.parametrize(("spare", "factor"), [(0, 1.3), (2, 1.9)])
def test_where_singular_values_are_large_the_bound_of_a_block_is_near_the_true_quantile(
    spare: int, factor: float
) -> None:
    exact = block(100, 3000.0, 3000.0, *[0.0] * spare)
    found, values = draw_block(exact, 2)
    bounds = np.array([angle_bound_of_block(each, 2, 100, 1.0) for each in values])
    assert bounds.max() < factor * np.quantile(found, 1 - FAILURE)
    halves = np.array([angle_bound_of_block(each, 2, 100, 0.5) for each in values])
    assert covered(found, halves) < 1 - FAILURE


@pytest.mark.parametrize(
    ("explained", "total", "expected"),
    [
        ([3, 1], 8.0, [0.375, 0.125]),
        ([3, 1], 2.0, [0.75, 0.25]),
        ([3, 1], -5.0, [0.75, 0.25]),
        ([0, 0], 8.0, [0, 0]),
    ],
)
def test_shares_of_the_total_are_never_more_than_the_whole(
    explained: list[float], total: float, expected: list[float]
) -> None:
    assert explained_ratio(np.array(explained, dtype=float), total).tolist() == expected


@pytest.mark.parametrize("total", [0.0, -1.0, math.inf, math.nan])
def test_nothing_has_no_shares(total: float) -> None:
    assert explained_ratio(np.zeros(2), total) is None
