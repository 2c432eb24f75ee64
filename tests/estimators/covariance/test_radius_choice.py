"""The radius chosen from private moments is small unless clipping turns the subspace.

Data and noise have fixed seeds.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.mean_offset import MeanShift
from streaming_pca.estimators.covariance.radius_choice import (
    ONCE,
    Reading,
    leading_subspaces,
    read_radii,
    symmetric_noise,
)
from streaming_pca.estimators.covariance.state import CovarianceEstimate
from streaming_pca.estimators.covariance.update import CovarianceUpdate
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs, subspace_error
from streaming_pca.privacy.randomness import replace_noise_sampler, utility_generator
from tests.estimators.suite import Floats
from tests.privacy.noise import SeededSampler

SPAN = (2.0**-40, 2.0**60)


def elliptical(m: int, d: int, k: int, freedom: int, seed: int) -> tuple[Floats, Floats]:
    """Return Student's t with k directions of variance 16 among 1, and the directions."""
    rng = utility_generator(seed)
    truth = orthonormalise(rng.standard_normal((d, k)))
    x = rng.standard_normal((m, d)) + math.sqrt(15) * rng.standard_normal((m, k)) @ truth.T
    return x / np.sqrt(rng.chisquare(freedom, (m, 1)) / freedom), truth.T


def swapped(m: int, d: int, seed: int, rare: float = 0.08, size: float = 15.0) -> tuple[Floats, Floats]:
    """Return ordinary records along two directions, and large ones along a third, which leads."""
    rng = utility_generator(seed)
    turn = orthonormalise(rng.standard_normal((d, d)))
    scale = np.full(d, 0.3)
    scale[:2] = 3.0, 2.0
    x = rng.standard_normal((m, d)) * scale
    others = rng.random(m) < rare
    x[others] = 0.3 * rng.standard_normal((int(others.sum()), d))
    x[others, 2] += size * rng.choice([-1.0, 1.0], int(others.sum()))
    exact = (1 - rare) * np.diag(scale**2) + rare * np.diag(np.full(d, 0.09))
    exact[2, 2] += rare * size**2
    return x @ turn.T, (turn @ ritz_pairs(exact, 2)[1]).T


def looked(
    x: Floats, seed: int, multiplier: float = 4.2, coming: float = 0.0, k: int = 2
) -> tuple[CovarianceEstimate, Reading]:
    d = x.shape[1]
    preprocessing = Preprocessing(dim=d, centering="none")
    route = CovarianceUpdate(k, preprocessing, multiplier, SPAN, None, MeanShift(*np.zeros((3, d))))
    with replace_noise_sampler(SeededSampler(seed)):
        batch, budget = ArrayBatch.of_vectors(x), Budget(multiplier, 1.0)
        estimate, look = route.look(CovarianceEstimate.empty(d), batch, budget, coming)
    assert estimate.chosen == look.reading.best
    return estimate, look.reading


@pytest.mark.parametrize("coming", [0.0, 1e6])
def test_elliptical_records_are_clipped_near_their_median(coming: float) -> None:
    """Clipping only shrinks these: under much noise, the smallest radii have the least of it."""
    found = []
    for seed in range(8):
        x, _ = elliptical(60_000, 20, 2, 5, seed)
        estimate, reading = looked(x, seed, multiplier=42.0, coming=coming)
        assert estimate.used >= 6
        assert reading.least < 0.1
        found.append(estimate.radii[estimate.chosen] / estimate.radii[0])
    assert np.median(found) < 2


@pytest.mark.parametrize("freedom", [3, 5, 10])
def test_the_chosen_radius_is_near_the_records_subspace(freedom: int) -> None:
    """Little noise may lead to a larger radius: tails move a sample's subspace, at no cost."""
    for seed in range(3):
        x, truth = elliptical(20_000, 20, 2, freedom, seed)
        estimate, reading = looked(x, seed)
        assert subspace_error(reading.eigenvectors[estimate.chosen][:, :2].T, truth) < 0.3


@pytest.mark.parametrize("seed", range(4))
def test_a_direction_that_leads_by_its_large_records_gets_a_large_radius(seed: int) -> None:
    """Its 8% of the records have size 225, with median 12; at the median it is third."""
    x, truth = swapped(60_000, 10, seed)
    estimate, reading = looked(x, seed)
    assert estimate.radii[estimate.chosen] > 5 * estimate.radii[0]
    assert reading.bias[0] > 0.5
    chosen = reading.eigenvectors[estimate.chosen][:, :2].T
    median = reading.eigenvectors[0][:, :2].T
    assert subspace_error(chosen, truth) < 0.3
    assert subspace_error(median, truth) > 1


@pytest.mark.parametrize("seed", range(3))
def test_rare_records_of_another_direction_are_found_when_they_can_be_told(seed: int) -> None:
    """A hundredth of the records are 50 times as long as others."""
    x, truth = swapped(200_000, 10, seed, rare=0.01, size=40.0)
    estimate, reading = looked(x, seed, multiplier=1.0)
    assert subspace_error(reading.eigenvectors[estimate.chosen][:, :2].T, truth) < 0.3


def moments_of(spectrum: Floats, radii: int, sigma: float, seed: int) -> tuple[Floats, Floats]:
    """Return the same moment at all radii, with layers' noise that grows to ``sigma``; and its covariance."""
    known = np.linspace(0.2, 1.0, radii) * sigma**2
    noise = np.minimum.outer(known, known)
    drawn = symmetric_noise(utility_generator(seed), radii, len(spectrum))
    drawn = np.tensordot(np.linalg.cholesky(noise), drawn, axes=1)
    return np.diag(spectrum) + drawn, noise


def read(
    spectrum: Floats, radii: int, sigma: float, k: int, seed: int = 0, coming: float = 1.0, **changes: Any
) -> Reading:
    moments, noise = moments_of(spectrum, radii, sigma, seed)
    how: dict[str, Any] = {"excess": np.zeros(radii), "squared_excess": np.zeros(radii), "count": 1e9}
    how |= {"deviations": ONCE, **changes}
    return read_radii(moments, noise, np.ones(len(spectrum)), k, coming * np.diagonal(noise), *how.values())


@pytest.mark.parametrize(("d", "k"), [(10, 1), (20, 2), (60, 3)])
@pytest.mark.parametrize("height", [6.0, 12.0])
def test_the_noise_that_is_told_is_the_error_to_come(d: int, k: int, height: float) -> None:
    """The mean square error over 60 draws is within a factor of 2; half of the look's noise."""
    sigma = 1.0
    spectrum = np.where(np.arange(d) < k, height * math.sqrt(d) / 2, 0.0)
    reported = np.mean([read(spectrum, 4, sigma, k, seed, coming=0.5).noise for seed in range(10)], axis=0)
    rng = utility_generator(99)
    for radius, share in enumerate(np.linspace(0.2, 1.0, 4)):
        drawn = np.diag(spectrum) + math.sqrt(0.5 * share) * sigma * symmetric_noise(rng, 60, d)
        vectors = np.linalg.eigh(drawn)[1][:, :, ::-1][:, :, :k]
        error = np.mean(2 * k - 2 * (vectors[:, :k] ** 2).sum(axis=(1, 2)))
        assert error / 2 < reported[radius] < 2 * error


@pytest.mark.parametrize("deviations", [ONCE, 4.0])
def test_noise_alone_is_hardly_ever_taken_for_bias(deviations: float) -> None:
    """The same moment at all radii shows little apparent bias in 50 seeds."""
    spectrum = np.array([40.0, 30.0, *[0.0] * 8])
    found = [read(spectrum, 5, 1.0, 2, seed, deviations=deviations) for seed in range(50)]
    worst = np.array([reading.bias.max() for reading in found])
    least = np.array([reading.least for reading in found])
    assert np.mean(worst > 0.2 * least) < (0.4 if deviations == ONCE else 0.2)
    assert np.median([reading.best for reading in found]) == 0


def test_a_bias_is_its_distance() -> None:
    """There are two radii, hardly any noise, and a leading direction that turns by 0.3."""
    turn = np.eye(4)
    turn[:2, :2] = [[math.cos(0.3), -math.sin(0.3)], [math.sin(0.3), math.cos(0.3)]]
    one = np.diag([9.0, 1.0, 0.5, 0.2])
    noise = np.minimum.outer([1e-8, 2e-8], [1e-8, 2e-8])
    moments, excess = np.stack([one, turn @ one @ turn.T]), np.array([1, 1e-6])
    reading = read_radii(moments, noise, np.ones(4), 1, np.diagonal(noise), excess, np.zeros(2), 1e9, ONCE)
    assert reading.bias[0] == pytest.approx(2 * math.sin(0.3) ** 2, rel=0.01)
    assert reading.bias[1] < 1e-6
    assert reading.best == 1


def test_a_clip_that_takes_much_of_a_sample_is_biased_by_chance() -> None:
    """This holds even where the clip only shrinks, and more so with fewer records."""
    spectrum = np.array([10.0, 8.0, 1.0, 1.0, 1.0])
    squared = np.array([400.0, 40.0, 0.0])
    few, many = (
        read(spectrum, 3, 1e-3, 2, squared_excess=squared, excess=np.array([9.0, 2.0, 0.0]), count=count).bias
        for count in (300.0, 1e9)
    )
    assert few[0] > few[1] > few[2]
    assert few[0] > 0.005
    assert many[0] < 1e-5


def test_the_whole_space_has_neither_noise_nor_bias() -> None:
    reading = read(np.arange(5.0, 0, -1), 3, 1.0, 5)
    assert not reading.noise.any()
    assert not reading.bias.any()
    assert reading.best == 0
    assert reading.agreement.tolist() == [1, 1, 1]


def test_what_is_resolved_rises_above_the_noise() -> None:
    """Noise of 1 on the diagonal reaches about sqrt(2 d) = 4.5 among ten."""
    spectrum = np.array([50.0, 20.0, 3.0, *[0.0] * 7])
    reading = read(spectrum, 2, 1.0, 2)
    assert reading.resolved(2).all()
    assert not read(spectrum, 2, 1.0, 3).resolved(3)[1]
    assert reading.values[1, 0] == pytest.approx(50, rel=0.1)
    assert reading.values[1, 1] == pytest.approx(20, rel=0.2)


@pytest.mark.parametrize("moment", [np.zeros((6, 6)), np.full((6, 6), 1e-200), -np.eye(6), 1e100 * np.eye(6)])
def test_degenerate_moments_give_numbers(moment: Floats) -> None:
    noise = np.minimum.outer([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    moments, nothing = np.stack([moment] * 3), np.zeros(3)
    reading = read_radii(moments, noise, np.ones(6), 2, np.diagonal(noise), nothing, nothing, 10.0, ONCE)
    for part in (reading.noise, reading.bias, reading.agreement, reading.values):
        assert np.isfinite(part).all()
        assert (part >= 0).all() or part is reading.values


def test_the_same_is_read_every_time() -> None:
    spectrum = np.array([9.0, 5.0, 1.0, 1.0, 0.5])
    one, other = read(spectrum, 4, 1.0, 2), read(spectrum, 4, 1.0, 2)
    assert one.noise.tobytes() == other.noise.tobytes()
    assert one.bias.tobytes() == other.bias.tobytes()


def test_symmetric_noise_has_half_the_variance_off_the_diagonal() -> None:
    """20,000 draws: within 5%, seven deviations."""
    noise = symmetric_noise(utility_generator(0), 20_000, 3)
    assert np.array_equal(noise, noise.swapaxes(1, 2))
    np.testing.assert_allclose(noise.var(axis=0), np.where(np.eye(3), 1.0, 0.5), rtol=0.07)


@pytest.mark.parametrize("d", [5, 40, 41, 120])
@pytest.mark.parametrize("shift", [0.0, -30.0])
def test_leading_subspaces_are_those_of_eigenvectors(d: int, shift: float) -> None:
    """This holds even where the eigenvalues largest in absolute value are the others."""
    rng = utility_generator(d)
    base = np.diag(np.concatenate([[60.0, 50.0, 40.0], np.linspace(5, 0, d - 3)]) + shift)
    matrices = base + symmetric_noise(rng, 4, d)
    start = np.linalg.eigh(base)[1][:, ::-1][:, : min(3 + 4, d)]
    found = leading_subspaces(matrices, 3, np.stack([start] * 4))
    exact = np.linalg.eigh(matrices)[1][:, :, ::-1][:, :, :3]
    for a, b in zip(found, exact, strict=True):
        assert subspace_error(a.T, b.T) < 0.02
