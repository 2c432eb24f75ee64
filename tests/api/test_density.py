"""The normal distribution of a model equals scikit-learn's without noise, and stays usable with noise."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.decomposition import PCA
from sklearn.exceptions import NotFittedError

from streaming_pca import BudgetAccountant, PrivatePCA
from streaming_pca.api.fitted import noise_variance
from streaming_pca.api.subspace_model import GaussianModel
from streaming_pca.data.projection import Projection
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import QUIET, spiked
from tests.data.refusals import refuses
from tests.privacy.noise import ScriptedSampler, SeededSampler


def exact(k: Any, X: Any) -> PrivatePCA:
    """Fit without noise and clipping, on a fine lattice."""
    mean, options = X.mean(axis=0), {"clip_radius": 20.0}
    # The noise variance has a floor that depends on the nominal noise; a large epsilon makes it small.
    pca = PrivatePCA(k, epsilon=1e8, estimator="analyze-gauss", centering=mean, options=options)
    with replace_noise_sampler(ScriptedSampler()):
        return pca.fit(X)


@pytest.mark.parametrize("k", [3, 8, 0.9, None])
def test_without_noise_it_is_that_of_scikit_learn(k: Any) -> None:
    X = spiked(500, mean=1.0) * np.linspace(1, 2, 8)
    # scikit-learn divides by m - 1.
    pca, peer = exact(k, X), PCA(k).fit(X * np.sqrt(499 / 500) + X.mean(axis=0) * (1 - np.sqrt(499 / 500)))
    assert pca.n_components_ == peer.n_components_
    assert pca.n_samples_seen_ == pca.n_records_seen_ == peer.n_samples_
    np.testing.assert_allclose(pca.explained_variance_, peer.explained_variance_, rtol=1e-3)
    np.testing.assert_allclose(pca.singular_values_, PCA(k).fit(X).singular_values_, rtol=1e-3)
    np.testing.assert_allclose(pca.noise_variance_, peer.noise_variance_, rtol=1e-2, atol=1e-12)
    for call in ("get_covariance", "get_precision"):
        expected = getattr(peer, call)()
        np.testing.assert_allclose(getattr(pca, call)(), expected, atol=1e-2 * np.abs(expected).max())
    np.testing.assert_allclose(pca.score_samples(X), peer.score_samples(X), rtol=1e-2, atol=1e-2)
    assert pca.score(X) == pytest.approx(peer.score(X), abs=1e-3)


def test_with_many_records_noise_hardly_moves_it() -> None:
    X = spiked(200_000, mean=0.5)
    with replace_noise_sampler(SeededSampler(0)):
        pca = PrivatePCA(2, bounds=(-2, 3)).fit(X)
    peer = PCA(2).fit(X)
    expected = peer.get_covariance()
    np.testing.assert_allclose(pca.get_covariance(), expected, atol=0.05 * np.abs(expected).max())
    assert pca.score(X[:20_000]) == pytest.approx(peer.score(X[:20_000]), abs=0.15)


@pytest.mark.parametrize("k", [2, 8])
@pytest.mark.parametrize("scale", [None, 3.0, np.linspace(0.5, 2, 8)])
@pytest.mark.parametrize("bounds", [None, (np.full(8, 0.5), 1.5)])
@pytest.mark.parametrize("centering", ["auto", "none", np.ones(8)])
def test_it_is_a_normal_distribution_in_units_of_x(k: int, scale: Any, bounds: Any, centering: Any) -> None:
    X = spiked(3000, mean=1.0)
    with replace_noise_sampler(SeededSampler(1)):
        # With epsilon 1,000, 3 seeds of 10 lose the smallest variance of the scaled records.
        pca = PrivatePCA(k, epsilon=10_000, scale=scale, bounds=bounds, centering=centering).fit(X)
    covariance = pca.get_covariance()
    np.testing.assert_allclose(pca.get_precision() @ covariance, np.eye(8), atol=1e-8)
    mean = getattr(pca, "mean_", np.zeros(8))
    clamped = X if bounds is None else np.clip(X, *bounds)
    expected = multivariate_normal(mean, covariance).logpdf(clamped)
    found = pca.score_samples(X)
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-6)
    assert pca.score(X) == found.mean()
    # Second moments have the records' own units, at any scale.
    about = (clamped - mean).T @ (clamped - mean) / len(X)
    np.testing.assert_allclose(covariance, about, atol=0.3 * np.abs(about).max())


def test_float32_rows_are_scored_in_double_precision() -> None:
    X = spiked(300).astype(np.float32)
    pca = exact(2, spiked(300))
    assert pca.score_samples(X).dtype == np.float64
    assert np.array_equal(pca.score_samples(X), pca.score_samples(X.astype(np.float64)))


def test_the_noise_variance_has_a_floor() -> None:
    variances = np.array([3.0, 2.0])
    assert noise_variance(variances, 6, 7.0, 0.5) == pytest.approx(0.5)
    # Noise has put the total below the sum: the smallest detectable value is one standard error.
    assert noise_variance(variances, 6, 4.0, 0.5) == 0.5 / 4
    assert noise_variance(variances, 6, 5.1, 0.5) == 0.5 / 4
    # The noise of four variances shows in the smallest error; a share of the first one is in the others.
    assert noise_variance(variances, 6, 4.0, 0.5, np.array([0.4, 0.1])) == pytest.approx(2 * 0.1 / 4)
    assert noise_variance(variances, 6, 4.0, 0.5, np.array([0.4, 0.3])) == 0.5 / 4
    floor = noise_variance(variances, 6, 4.0, None)
    assert 0 < floor < 1e-14
    assert noise_variance(variances, 6, None, None) is None
    assert noise_variance(variances, 2, 1.0, 0.5) == 0.0
    # The density of such a model exists.
    model = GaussianModel(Projection(np.eye(2, 6)), np.array([3.0, 0.01]), 0.125)
    np.testing.assert_allclose(model.covariance(), np.diag([3.0, *5 * [0.125]]))


def test_a_singular_covariance_has_no_density() -> None:
    model = GaussianModel(Projection(np.eye(2)), np.array([3.0, 0.0]), 0.0)
    assert np.array_equal(model.covariance(), np.diag([3.0, 0.0]))
    for call in (model.precision, lambda: model.log_likelihoods(np.eye(2))):
        refuses("singular: only 1 of its variances are above 0", call)


def test_an_estimator_without_a_total_variance_says_so() -> None:
    pca = PrivatePCA(**QUIET["oja"])
    assert hasattr(pca, "score")
    with pytest.raises(NotFittedError):
        pca.score(spiked(50))
    pca.fit(spiked(100))
    for name in ("score", "score_samples", "get_covariance", "get_precision"):
        assert not hasattr(pca, name)
        with pytest.raises(AttributeError) as caught:
            getattr(pca, name)
        assert "adaptive, analyze-gauss and block do" in str(caught.value)
    with pytest.raises(AttributeError, match="this model has no noise_variance_"):
        pca.noise_variance_  # noqa: B018
    assert pca.singular_values_.shape == (2,)


def test_factors_are_not_scored() -> None:
    X = spiked(200)
    pca = PrivatePCA(2).fit(X)
    refuses("to be scored, not factors", pca.score, X.reshape(100, 2, 8))


def test_pairs_have_a_covariance_but_no_density_without_their_mean() -> None:
    pca = PrivatePCA(2, epsilon=1000, centering="pairs").fit(spiked(300, mean=3.0))
    assert pca.get_covariance().shape == (8, 8)
    for name in ("score", "score_samples"):
        assert not hasattr(PrivatePCA(centering="pairs"), name)
        refuses(f'^{name} needs a mean, which centering="pairs"', getattr, pca, name, error=AttributeError)


def test_factors_of_several_rows_have_no_density_of_rows_and_no_whitening(tmp_path: Path) -> None:
    rows = spiked(600)
    pca = PrivatePCA(2, epsilon=1000, centering="none").partial_fit(rows[:, None])
    assert np.isfinite(pca.score(rows))
    pca.partial_fit(rows.reshape(-1, 3, 8))
    pca.save(tmp_path / "model.npz")
    for model in (pca, PrivatePCA.load(tmp_path / "model.npz"), pickle.loads(pickle.dumps(pca))):
        assert model.transform(rows).shape == (600, 2)
        refuses("sums over a record's rows, has no density of rows", model.score, rows)
        model.set_params(whiten=True)
        for call in (model.transform, lambda X, model=model: model.inverse_transform(X[:, :2])):
            refuses("has no whitening: set whiten=False", call, rows)
    # A new fit of vectors provides both.
    assert np.isfinite(pca.fit(rows).score(rows))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_whitening_of_factors_is_refused_before_the_charge(method: str) -> None:
    pca = PrivatePCA(2, whiten=True)
    with BudgetAccountant(1, 1e-6) as budget, pytest.raises(ValueError, match="has no whitening"):
        getattr(pca, method)(spiked(60).reshape(-1, 3, 8))
    assert budget.spent.epsilon == 0
    assert not hasattr(pca, "privacy_spent_")
    assert getattr(pca, method)(spiked(60)[:, None]).transform(spiked(3)).shape == (3, 2)
