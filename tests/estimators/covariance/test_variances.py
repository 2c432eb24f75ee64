"""Variances and their errors, computed from moments at all radii, are true within the errors.

Data and noise have fixed seeds; no constant was tuned on these families.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.estimators.common.error_bounds import noise_lift
from streaming_pca.estimators.covariance.release import _deviation_of_rest, _least_squares
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.estimators.suite import Floats
from tests.privacy.noise import SeededSampler


def turned(x: Floats, rng: np.random.Generator) -> Floats:
    return np.asarray(x @ np.linalg.qr(rng.normal(size=(x.shape[1], x.shape[1])))[0])


def normal(rng: np.random.Generator) -> Floats:
    return turned(rng.normal(size=(6000, 9)) * 0.7 ** np.arange(9) * 40, rng)


def heavy(rng: np.random.Generator) -> Floats:
    return turned(rng.standard_t(6, (20_000, 12)) * np.geomspace(5, 0.5, 12), rng)


def skewed(rng: np.random.Generator) -> Floats:
    return np.asarray(rng.gamma(1.2, 1.0, (20_000, 10)) * np.geomspace(4, 0.5, 10))


def mixed(rng: np.random.Generator) -> Floats:
    centres = rng.normal(size=(5, 14)) * 3
    return np.asarray(centres[rng.integers(0, 5, 20_000)] + rng.normal(size=(20_000, 14)))


FAMILIES = (normal, heavy, skewed, mixed)


def fitted(x: Floats, seed: int, k: int = 2, **parameters: Any) -> PrivatePCA:
    with replace_noise_sampler(SeededSampler(seed)):
        return PrivatePCA(k, **parameters).fit(x)


def scores(pca: PrivatePCA, x: Floats) -> tuple[Floats, Floats]:
    """Return errors of variances and total, in standard errors and relative to the truth."""
    covariance = np.cov(x.T, bias=True)
    truth = np.einsum("id,de,ie->i", pca.components_, covariance, pca.components_)
    truth = np.append(truth, np.trace(covariance))
    found = np.append(pca.explained_variance_, pca.total_variance_)
    errors = np.append(pca.explained_variance_error_, pca.total_variance_error_)
    return (found - truth) / errors, (found - truth) / truth


@pytest.mark.parametrize("parameters", [{}, {"options": {"route": "block"}}], ids=str)
def test_most_variances_lie_within_two_errors(parameters: dict[str, Any]) -> None:
    apart, relative = [], []
    for family in FAMILIES:
        for seed, epsilon in ((1, 1.0), (2, 1.0), (3, 4.0), (4, 10_000.0)):
            x = family(np.random.default_rng(seed))
            errors, off = scores(fitted(x, seed, epsilon=epsilon, **parameters), x)
            apart.append(errors)
            relative.append(off)
    assert np.mean(np.abs(apart) <= 2) >= 0.85
    # An error that covers everything would be useless.
    assert np.median(np.abs(apart)) >= 0.1
    assert np.median(np.abs(relative)) <= 0.03


@pytest.mark.parametrize("parameters", [{}, {"options": {"route": "block"}}], ids=str)
@pytest.mark.parametrize("family", [normal, skewed, mixed])
def test_a_huge_epsilon_gives_the_numbers_of_scikit_learn(family: Any, parameters: dict[str, Any]) -> None:
    x = family(np.random.default_rng(7))
    _, off = scores(fitted(x, 7, epsilon=10_000.0, **parameters), x)
    assert np.all(np.abs(off) <= 0.02)


def test_variances_of_a_stream_are_true_while_it_grows() -> None:
    rng, apart = np.random.default_rng(3), []
    turn = np.linalg.qr(rng.normal(size=(10, 10)))[0]
    scales = 0.7 ** np.arange(10) * 5
    with replace_noise_sampler(SeededSampler(0)):
        pca = PrivatePCA(2)
        for batch in range(12):
            pca.partial_fit(rng.normal(size=(4000, 10)) * scales @ turn)
            truth = (pca.components_ @ turn.T) ** 2 @ scales**2
            if batch >= 2:
                apart.append((pca.explained_variance_ - truth) / pca.explained_variance_error_)
                assert np.all(np.abs(pca.explained_variance_ - truth) <= 0.1 * truth)
    assert np.mean(np.abs(apart) <= 2) >= 0.85


def test_all_variances_together_are_the_total() -> None:
    pca = fitted(normal(np.random.default_rng(1)), 1, k=9, epsilon=5.0)
    assert pca.explained_variance_.sum() == pytest.approx(pca.total_variance_, rel=1e-12)
    assert np.all(np.diff(pca.explained_variance_) <= 0)


def test_a_common_number_lies_between_its_measurements() -> None:
    """Least squares would extrapolate from nearly equal errors, with a weight below 0."""
    covariance = np.array([[1.0, 1.9], [1.9, 4.0]])
    value, error = _least_squares(np.array([10.0, 20.0]), covariance)
    assert value == pytest.approx(10.0)
    # They differ by far more than they should.
    assert error > 3
    alike, small = _least_squares(np.array([10.0, 10.5]), covariance)
    assert alike == pytest.approx(10.0)
    assert small == pytest.approx(1.0)


def test_noise_lifts_an_eigenvalue_above_the_variance_along_its_vector() -> None:
    rng, d, true, s = np.random.default_rng(0), 40, 1.0, 0.05
    found, along = [], []
    for _ in range(40):
        drawn = rng.normal(size=(d, d)) * s
        values, vectors = np.linalg.eigh(np.diag([true] + [0.0] * (d - 1)) + (drawn + drawn.T) / np.sqrt(2))
        found.append(values[-1] - noise_lift(float(values[-1]), d * s * s))
        along.append(true * vectors[0, -1] ** 2)
    assert np.mean(found) == pytest.approx(np.mean(along), abs=0.02)
    assert noise_lift(0.1, 1.0) == 0.1
    assert noise_lift(-1.0, 1.0) == -1.0
    assert noise_lift(-3.0, 2.0) == -noise_lift(3.0, 2.0)


@pytest.mark.parametrize("leading", [1.0, 8.0])
def test_errors_cover_all_variances_of_equal_directions(leading: float) -> None:
    """Noise spreads equal eigenvalues to both sides."""
    true = np.array([leading, *[1.0] * 49])
    X = np.random.default_rng(0).standard_normal((20_000, 50)) * np.sqrt(true)
    with replace_noise_sampler(SeededSampler()):
        pca = PrivatePCA(n_components=None).fit(X)
    missed = np.abs(pca.explained_variance_ - pca.components_**2 @ true) / pca.explained_variance_error_
    assert np.mean(missed > 2) < 0.1
    assert missed.max() < 3.5


def test_variances_that_counts_are_too_noisy_to_judge_are_in_doubt() -> None:
    """Skewed records in small batches: n mu is 60, and the noise of a count 6% of the records.

    Noise has no seed. It decides only which of the two doubts the release has.
    """
    for seed in range(4):
        rng = np.random.default_rng(seed)
        x = np.minimum(rng.gamma(0.5, 0.5, (2500, 4)) * 0.5 ** np.arange(4), 3)
        pca = PrivatePCA(2, epsilon=1.0, bounds=(0, 3), centering="pairs")
        for first in range(0, len(x), 500):
            pca.partial_fit(x[first : first + 500])
        assert {"clipped", "not-resolved"} & set(pca.doubts_)
        # The same records with less noise need no such doubt for their counts.
        state = pca._state.covariance
        precise = replace(state.sizes, variance=state.sizes.variance / 100)
        radii, excess = state.radii[: state.used], state.excess[: state.used]
        assert state.sizes.tail(radii, excess, 1.0).is_coarse
        assert not precise.tail(radii, excess, 1.0).is_coarse


def test_the_noise_of_the_rest_is_that_of_its_directions() -> None:
    """Simulated noise: the trace outside two directions, with and without weights of directions."""
    rng, d = np.random.default_rng(0), 6
    turned = np.linalg.qr(rng.normal(size=(d, 2)))[0].T
    for weights in (np.ones(d), np.geomspace(4, 0.25, d)):
        drawn = rng.normal(size=(20_000, d, d))
        noise = (drawn + drawn.swapaxes(1, 2)) / 2 * np.sqrt(np.outer(weights, weights))
        traces = np.trace(noise, axis1=1, axis2=2) - np.einsum("ki,nij,kj->n", turned, noise, turned)
        assert _deviation_of_rest(turned, weights) == pytest.approx(float(np.std(traces)), rel=0.03)
    assert _deviation_of_rest(turned, np.ones(d)) == pytest.approx(2.0)


def test_variances_of_records_that_grow_are_of_all_of_them() -> None:
    """Larger radii are found during the stream; earlier batches count there too."""
    rng, parts = np.random.default_rng(5), []
    with replace_noise_sampler(SeededSampler(0)):
        pca = PrivatePCA(2, epsilon=2.0)
        for batch in range(20):
            parts.append(rng.normal(size=(3000, 6)) * [4, 3, 2, 1, 1, 0.5] * (1 + batch / 8))
            pca.partial_fit(parts[-1])
    apart, off = scores(pca, np.concatenate(parts))
    assert np.all(np.abs(apart) <= 3)
    assert np.all(np.abs(off) <= 0.5)
