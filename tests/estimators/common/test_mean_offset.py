"""Sums about centres of their own, carried to one centre and to the mean. Data have fixed seeds."""

from __future__ import annotations

import math

import numpy as np
import pytest

from streaming_pca.estimators.common.mean_offset import MeanOffset, MeanShift, outer_product
from tests.estimators.suite import Floats

D = 4


def moment(x: Floats, centre: Floats) -> Floats:
    return (x - centre).T @ (x - centre) / len(x)


def test_shifted_sums_less_the_offset_are_the_covariance_about_the_mean() -> None:
    """Batches have other centres, means and weights; no error remains but the floats'."""
    rng = np.random.default_rng(0)
    parts = [rng.standard_normal((50, D)) + 5 * rng.standard_normal(D) for _ in range(4)]
    weights, anchor = np.array([0.1, 0.2, 0.3, 0.4]), rng.standard_normal(D)
    basis = np.linalg.qr(rng.standard_normal((D, 2)))[0]
    sums, mean, total = np.zeros((D, 2)), np.zeros(D), 0.0
    for x, weight in zip(parts, weights, strict=True):
        centre = x.mean(axis=0) + rng.standard_normal(D)
        shift = MeanShift(centre - anchor, x.mean(axis=0) - centre, np.zeros(D))
        about = moment(x, centre)
        sums += weight * (about @ basis + shift.excess(basis))
        total += weight * (np.trace(about) + shift.total)
        mean += weight * x.mean(axis=0)
        np.testing.assert_allclose(shift.along(basis.T), np.sum(basis * shift.excess(basis), axis=0))
        np.testing.assert_allclose(shift.after(1.0, np.zeros(D)), x.mean(axis=0) - anchor)
    offset = MeanOffset.between(mean, anchor, 0.0)
    exact = sum(w * moment(x, mean) for x, w in zip(parts, weights, strict=True))
    np.testing.assert_allclose(sums - outer_product(offset.vector, basis), exact @ basis, atol=1e-12)
    assert total - offset.square == pytest.approx(np.trace(exact))
    np.testing.assert_allclose(offset.along(np.eye(D)), offset.vector**2)


def test_errors_of_the_means_are_reported() -> None:
    """Means of batches whose centres move on a line have errors of known variances, with known weights."""
    rng = np.random.default_rng(1)
    weights, variances = np.array([0.5, 0.3, 0.2]), np.array([1e-4, 4e-4, 9e-4])
    moved = np.outer([0.0, 2.0, 5.0], [0.6, 0.8, 0, 0])
    means = moved + 0.1 * rng.standard_normal((3, D))
    noise = float(weights**2 @ variances)
    paths = (float(weights**2 * variances @ np.sum(moved**2, axis=1)), (weights**2 * variances) @ moved)
    exact = MeanOffset.between(weights @ means, np.zeros(D), noise, paths)
    away = np.sum((moved - exact.vector) ** 2, axis=1)
    assert exact.spread == pytest.approx(float(weights**2 * variances @ away))
    truth = sum(
        w * MeanShift(q, m - q, np.zeros(D)).excess(np.eye(D))
        for w, q, m in zip(weights, moved, means, strict=True)
    ) - np.outer(exact.vector, exact.vector)
    totals, lengths = [], []
    for _ in range(4000):
        noisy = means + np.sqrt(variances)[:, None] * rng.standard_normal((3, D))
        found = sum(
            w * MeanShift(q, m - q, np.zeros(D)).excess(np.eye(D))
            for w, q, m in zip(weights, moved, noisy, strict=True)
        )
        offset = MeanOffset.between(weights @ noisy, np.zeros(D), noise, paths).vector
        error = found - np.outer(offset, offset) - truth
        totals.append(float(np.trace(error)))
        lengths.append(float(np.abs(np.linalg.eigvalsh(error)).sum()) / 2)
    assert np.std(totals) == pytest.approx(exact.total_error(0.0, 0.0), rel=0.1)
    assert max(lengths) < exact.reach
    assert exact.with_noise(4 * noise).spread == pytest.approx(4 * exact.spread)


@pytest.mark.parametrize("far", [1e200, math.inf])
def test_an_offset_that_overflows_corrects_nothing(far: float) -> None:
    offset = MeanOffset.between(np.full(D, far), np.zeros(D), 1.0)
    assert not offset.vector.any()
    assert offset.square == 0.0
