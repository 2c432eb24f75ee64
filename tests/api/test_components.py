"""The number of components: an integer, all, or enough for a share of the variance."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from streaming_pca import DoubtfulResultWarning, PrivatePCA
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.api.samplers import spiked
from tests.data.refusals import refuses
from tests.privacy.noise import SeededSampler


@pytest.mark.parametrize(("records", "rank"), [(50, 8), (5, 5)])
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(("estimator", "later"), [("adaptive", 8), ("block", None)])
def test_none_is_all_that_records_and_features_allow(
    records: int, rank: int, method: str, estimator: str, later: int | None
) -> None:
    pca = getattr(PrivatePCA(None, estimator=estimator), method)(spiked(records))
    assert pca.components_.shape == (rank, 8)
    assert pca.partial_fit(spiked(60, seed=1)).n_components_ == (later or rank)
    assert pca.transform(spiked(3)).shape == (3, later or rank)


@pytest.mark.parametrize("estimator", ["adaptive", "analyze-gauss"])
def test_all_components_have_the_covariance_of_the_records(estimator: str, tmp_path: Path) -> None:
    # Every clip radius gives the right span of d components; a radius chosen by the span lost 15% of this
    # matrix.
    X = spiked(20_000) * np.linspace(1, 2, 8) + 3
    with replace_noise_sampler(SeededSampler(0)):
        pca = PrivatePCA(None, estimator=estimator, epsilon=100, bounds=(X.min(0), X.max(0))).fit(X)
    covariance = np.cov(X.T)
    assert np.linalg.norm(pca.get_covariance() - covariance) < 0.02 * np.linalg.norm(covariance)
    pca.save(tmp_path / "model.npz")
    assert np.array_equal(PrivatePCA.load(tmp_path / "model.npz").components_, pca.components_)


@pytest.mark.parametrize("estimator", ["adaptive", "analyze-gauss"])
def test_a_share_takes_the_fewest_components_that_reach_it(estimator: str) -> None:
    X = spiked(30_000, mean=0.5) * np.linspace(1, 2, 8)
    spectrum = np.linalg.eigvalsh(np.cov(X.T))[::-1]
    shares = np.cumsum(spectrum) / spectrum.sum()
    for share, rank in ((0.5, 1), (0.9, 2), ((shares[2] + shares[3]) / 2, 4), (1 - 1e-9, 8)):
        with replace_noise_sampler(SeededSampler(0)):
            pca = PrivatePCA(share, estimator=estimator, epsilon=5, bounds=(-4, 5)).fit(X)
        assert pca.n_components_ == len(pca.components_) == rank
        assert pca.explained_variance_ratio_.sum() >= share > pca.explained_variance_ratio_[:-1].sum()
        assert float(pca.privacy_spent_.epsilon) == 5
        assert list(pca.get_feature_names_out()) == [f"privatepca{i}" for i in range(rank)]


def test_a_share_is_judged_anew_with_each_batch_and_costs_nothing(tmp_path: Path) -> None:
    X = spiked(20_000)
    X[:, 0] += 3 * np.random.default_rng(3).standard_normal(20_000)
    with replace_noise_sampler(SeededSampler(0)):
        pca = PrivatePCA(np.float64(0.8), epsilon=5, bounds=(-12, 12)).partial_fit(X)
        assert pca.n_components_ == 1
        pca.save(tmp_path / "model.npz")
        copy = PrivatePCA.load(tmp_path / "model.npz")
        assert np.array_equal(copy.components_, pca.components_)
        # Another share of the same spectrum takes effect with the next release, without a new fit.
        pca.set_params(n_components=0.98).partial_fit(X[:10])
        assert pca.n_components_ == 2
        assert copy.partial_fit(X[:10]).n_components_ == 1
    assert float(pca.privacy_spent_.epsilon) == 5


def test_noise_alone_leaves_a_share_that_is_reached() -> None:
    for seed in range(5):
        with replace_noise_sampler(SeededSampler(seed)), pytest.warns(DoubtfulResultWarning):
            pca = PrivatePCA(0.9, epsilon=0.01).fit(spiked(30))
        assert 1 <= pca.n_components_ <= 8
        ratio = getattr(pca, "explained_variance_ratio_", np.ones(1))
        assert ratio.sum() >= 0.9


@pytest.mark.parametrize(
    ("parameters", "d", "words"),
    [
        ({"estimator": "block"}, 4, 'block does not release: take estimator "adaptive" or "analyze-gauss"'),
        ({"options": {"route": "block"}}, 4, 'set option route to "covariance"'),
        ({}, 513, "too many above 512"),
        ({"options": [1]}, 4, "options must be a dict"),
    ],
)
def test_a_share_needs_a_whole_spectrum(parameters: dict[str, Any], d: int, words: str) -> None:
    pca = PrivatePCA(0.9, **parameters)
    for call in (lambda: pca.fit(np.eye(d)), lambda: pca.plan(d, 1000)):
        assert words in refuses(r"n_components|options", call)
    assert not hasattr(pca, "privacy_spent_")


@pytest.mark.parametrize("wrong", [0.0, 1.0, 1.5, -0.5, np.nan, "all", True])
def test_what_is_neither_is_refused(wrong: Any) -> None:
    refuses("n_components must be a whole number of at least 1", PrivatePCA(wrong).fit, np.eye(4))


@pytest.mark.parametrize("estimator", ["adaptive", "analyze-gauss"])
@pytest.mark.parametrize("k", [6, 9, 10])
def test_a_rank_of_nearly_all_features_clips_no_variance_away(estimator: str, k: int) -> None:
    # For k > d/2 components, every radius gives nearly the same span; a radius chosen by it lost a tenth or
    # more.
    rng = np.random.default_rng(0)
    X = rng.standard_normal((20_000, 10)) * np.linspace(2, 1, 10) * rng.uniform(0.2, 1.8, (20_000, 1))
    spectrum = np.linalg.eigvalsh(np.cov(X.T))[::-1]
    bounds = (X.min(0), X.max(0))
    with replace_noise_sampler(SeededSampler(0)):
        pca = PrivatePCA(k, estimator=estimator, epsilon=1000, bounds=bounds).fit(X)
    assert pca.total_variance_ == pytest.approx(spectrum.sum(), rel=0.02)
    np.testing.assert_allclose(pca.explained_variance_, spectrum[:k], rtol=0.05)


def test_later_batches_have_any_number_of_records() -> None:
    """Only the first batch of a model needs as many rows as components."""
    X = np.random.default_rng(0).standard_normal((600, 6))
    model = PrivatePCA(n_components=3, epsilon=5.0, delta=1e-6, bounds=(-5, 5))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DoubtfulResultWarning)
        refuses("fewer than n_components = 3", model.partial_fit, X[:2])
        model.partial_fit(X[:500])
        for count in (1, 2, 7):
            before = model.n_samples_seen_
            model.partial_fit(X[500 : 500 + count])
            assert model.n_samples_seen_ == before + count
