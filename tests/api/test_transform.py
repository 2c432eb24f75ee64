"""A model's coordinates of rows, and rows from its coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from tests.api.samplers import CASES, spiked
from tests.data.refusals import refuses


@pytest.mark.parametrize("scale", [None, 3.0, np.linspace(0.5, 2, 8)])
@pytest.mark.parametrize("centering", ["auto", "none", np.linspace(-1, 1, 8)])
def test_the_whole_space_is_its_own_inverse(scale: Any, centering: Any) -> None:
    X = spiked(50, mean=2.0)
    pca = PrivatePCA(8, scale=scale, centering=centering).fit(X)
    np.testing.assert_allclose(pca.inverse_transform(pca.transform(X)), X, rtol=1e-9, atol=1e-9)


def test_transforming_projects_on_the_subspace_through_the_mean() -> None:
    X = spiked(4000, mean=2.0)
    pca = PrivatePCA(3).fit(X)
    coordinates = pca.transform(X)
    np.testing.assert_allclose(coordinates, (X - pca.mean_) @ pca.components_.T, rtol=1e-9, atol=1e-9)
    again = pca.transform(pca.inverse_transform(coordinates))
    np.testing.assert_allclose(again, coordinates, rtol=1e-9, atol=1e-12)
    assert np.array_equal(pca.inverse_transform(np.zeros((1, 3)))[0], pca.mean_)


@pytest.mark.parametrize("scale", [None, 3.0])
def test_without_a_mean_rows_are_taken_about_zero(scale: Any) -> None:
    X = spiked(50, mean=2.0)
    pca = PrivatePCA(3, scale=scale, centering="pairs").fit(X)
    coordinates = pca.transform(X)
    np.testing.assert_allclose(coordinates, X * (scale or 1.0) @ pca.components_.T, rtol=1e-9)
    assert np.array_equal(pca.inverse_transform(np.zeros((1, 3)))[0], np.zeros(8))
    again = pca.transform(pca.inverse_transform(coordinates))
    np.testing.assert_allclose(again, coordinates, rtol=1e-9, atol=1e-12)


def test_rows_are_clamped_to_the_bounds_as_records_were() -> None:
    lower, upper = np.full(8, -1.0), np.linspace(0.5, 2, 8)
    pca = PrivatePCA(8, bounds=(lower, upper)).fit(spiked(50))
    X = spiked(50, seed=1)
    kept = X.copy()
    inverse = pca.inverse_transform(pca.transform(X))
    np.testing.assert_allclose(inverse, np.clip(X, lower, upper), rtol=1e-9, atol=1e-9)
    assert np.array_equal(X, kept)


def test_factors_are_transformed_row_by_row() -> None:
    factors = spiked(60).reshape(20, 3, 8)
    pca = PrivatePCA(2).fit(factors)
    coordinates = pca.transform(factors)
    assert coordinates.shape == (20, 3, 2)
    np.testing.assert_allclose(coordinates.reshape(60, 2), pca.transform(factors.reshape(60, 8)))
    assert pca.inverse_transform(coordinates).shape == (20, 3, 8)


def test_changed_parameters_do_not_change_a_model_that_is_there() -> None:
    X = spiked(50)
    pca = PrivatePCA(bounds=(-1, 1), scale=2.0).fit(X)
    before = pca.transform(X)
    pca.set_params(bounds=None, scale=None, n_components=4)
    assert np.array_equal(pca.transform(X), before)
    assert pca.get_feature_names_out().tolist() == ["privatepca0", "privatepca1"]


def test_numbers_that_overflow_give_no_warning() -> None:
    huge = np.full((20, 8), 1.7e308)
    for parameters in CASES.values():
        pca = PrivatePCA(**parameters).fit(huge)
        assert np.isfinite(pca.components_).all()
        pca.transform(huge)
        pca.inverse_transform(np.full((1, 2), 1.7e308))
    PrivatePCA().fit(huge.astype(np.float64) / 1e270).transform(np.full((1, 8), 3e38, dtype=np.float32))


@pytest.mark.parametrize("scale", [None, np.linspace(0.5, 2, 8)])
def test_whitened_coordinates_have_variance_one(scale: Any) -> None:
    X = spiked(20_000, mean=2.0)
    pca = PrivatePCA(2, epsilon=20, bounds=(0, 4), scale=scale).fit(X)
    plain = pca.transform(X)
    assert pca.set_params(whiten=True) is pca
    white = pca.transform(X)
    np.testing.assert_allclose(white, plain / np.sqrt(pca.explained_variance_), rtol=1e-12)
    np.testing.assert_allclose(white.var(axis=0), 1, rtol=0.15)
    back = pca.inverse_transform(white)
    np.testing.assert_allclose(back, pca.set_params(whiten=False).inverse_transform(plain), atol=1e-9)
    # The covariance belongs to X, whitened or not.
    assert np.array_equal(pca.get_covariance(), pca.set_params(whiten=True).get_covariance())


def test_a_variance_that_noise_has_covered_is_whitened_by_its_error_or_not_at_all() -> None:
    X = spiked(50)
    pca = PrivatePCA(2, whiten=True).fit(X)
    pca.explained_variance_ = np.array([3.0, 0.0])
    pca.explained_variance_error_ = np.array([0.5, 0.5])
    plain = (X - getattr(pca, "mean_", 0.0)) @ pca.components_.T
    np.testing.assert_allclose(pca.transform(X), plain / np.sqrt([3.0, 0.5]))
    del pca.explained_variance_error_
    for call in (pca.transform, lambda rows: pca.inverse_transform(rows[:, :2])):
        refuses(r"whiten divides by .* noise hides the variance of component 1", call, X)
    refuses("whiten must be True or False, not 'yes'", pca.set_params(whiten="yes").fit, X)
