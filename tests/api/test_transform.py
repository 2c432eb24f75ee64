"""What a model makes of rows, and of its coordinates."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from tests.api.samplers import CASES, spiked


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
    np.testing.assert_allclose(
        pca.transform(pca.inverse_transform(coordinates)), coordinates, rtol=1e-9, atol=1e-12
    )
    assert np.array_equal(pca.inverse_transform(np.zeros((1, 3)))[0], pca.mean_)


@pytest.mark.parametrize("scale", [None, 3.0])
def test_without_a_mean_rows_are_taken_about_zero(scale: Any) -> None:
    X = spiked(50, mean=2.0)
    pca = PrivatePCA(3, scale=scale, centering="pairs").fit(X)
    coordinates = pca.transform(X)
    np.testing.assert_allclose(coordinates, X * (scale or 1.0) @ pca.components_.T, rtol=1e-9)
    assert np.array_equal(pca.inverse_transform(np.zeros((1, 3)))[0], np.zeros(8))
    np.testing.assert_allclose(
        pca.transform(pca.inverse_transform(coordinates)), coordinates, rtol=1e-9, atol=1e-12
    )


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
