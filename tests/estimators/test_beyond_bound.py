"""Angles beyond the bound of the noise, caused by clips and by steps. Seeds are fixed."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from streaming_pca import PrivatePCA
from streaming_pca.linalg.subspace import principal_angles
from streaming_pca.privacy.randomness import replace_noise_sampler
from tests.estimators.suite import Floats
from tests.privacy.noise import SeededSampler


def heavy(rng: np.random.Generator) -> Floats:
    """Return few large records along the last feature, whose variance is the second."""
    x = rng.normal(size=(30_000, 12)) * np.linspace(4, 1, 12)
    x[::60, -1] += 25 * rng.choice([-1.0, 1.0], 500)
    return x


def lognormal(rng: np.random.Generator) -> Floats:
    return np.exp(rng.normal(size=(20_000, 10)) * np.linspace(0.3, 1.5, 10))


def scale_mixed(rng: np.random.Generator) -> Floats:
    x = rng.normal(size=(20_000, 20)) * np.geomspace(4, 0.4, 20)
    return np.asarray(x * np.exp(0.8 * rng.normal(size=(20_000, 1))))


def counts(rng: np.random.Generator) -> Floats:
    rates = np.exp(rng.normal(size=(20_000, 3)) @ rng.normal(size=(3, 15)) * 0.5)
    return rng.poisson(rates).astype(np.float64)


def fitted(x: Floats, epsilon: float, seed: int, k: int = 2, **options: Any) -> tuple[PrivatePCA, float]:
    """Return a model, and its angle to the directions of the same records."""
    with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(seed)):
        warnings.simplefilter("ignore")
        pca = PrivatePCA(k, epsilon=epsilon, options=options, random_state=seed).fit(x)
    exact = np.linalg.eigh(np.cov(x.T))[1][:, ::-1][:, :k]
    return pca, principal_angles(pca.components_, exact.T)[0]


@pytest.mark.parametrize("make", [heavy, lognormal, scale_mixed, counts])
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0, 1e4])
def test_an_angle_beyond_its_bound_is_doubted(make: Any, epsilon: float) -> None:
    """All three seeds pass; the noise bound alone silently failed for 10 of these 48."""
    for seed in range(3):
        pca, angle = fitted(make(np.random.default_rng([seed, 77])), epsilon, seed)
        assert angle <= pca.angle_bound_ or pca.doubts_


@pytest.mark.parametrize("seed", [0, 1, 3, 5])
def test_norms_of_a_few_values_are_not_cut_off_unnoticed(seed: int) -> None:
    """One-hot records have a norm for each category; the rarest had the largest, above the radius."""
    shares = 1 / np.arange(1, 7)
    chosen = np.random.default_rng(seed).choice(6, 30_000, p=shares / shares.sum())
    pca, angle = fitted(np.eye(6)[chosen], 8.0, seed, 3)
    assert pca.doubts_ == ()
    assert angle < pca.angle_bound_ / 3


def test_a_radius_found_among_few_records_that_are_not_zero_is_doubted() -> None:
    """Counts can hardly show the norms of 150 records at epsilon 1, nor that 1,350 others have none."""
    for seed in range(8):
        x = np.random.default_rng(seed).normal(size=(1500, 5)) * np.array([5.0, 1, 1, 1, 1])
        x[150:] = 0
        pca, _ = fitted(x, 1.0, seed, 1)
        assert pca.doubts_ or abs(pca.total_variance_ - np.cov(x.T).trace()) < 3 * pca.total_variance_error_


def test_variances_of_mostly_zeros_are_read_off_the_radii_that_show_them() -> None:
    """The chosen clip keeps a hundredth of the total, and of each variance."""
    rng = np.random.default_rng(0)
    x = np.where(rng.random((30_000, 12)) < 0.99, 0.0, rng.poisson(9, (30_000, 12)))
    for seed in range(4):
        pca, _ = fitted(x, 1.0, seed, 3)
        true = np.einsum("ij,jk,ik->i", pca.components_, np.cov(x.T), pca.components_)
        assert (abs(pca.explained_variance_ - true) < 5 * pca.explained_variance_error_).all()
        assert abs(pca.total_variance_ - np.cov(x.T).trace()) < 5 * pca.total_variance_error_
        assert (pca.explained_variance_ > 0.4).all()


def test_large_records_that_no_single_count_shows_are_found_over_some_batches() -> None:
    """5% of the records hold two thirds of the variance, and are 150 of a batch, in five bins of norms."""
    for seed in range(6):
        rng = np.random.default_rng(seed)
        x = rng.normal(size=(12_000, 8)) * np.array([4.0, 3.0, *[1.0] * 6])
        x[rng.random(12_000) < 0.05] *= 6
        pca = PrivatePCA(2, random_state=seed)
        with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(seed)):
            warnings.simplefilter("ignore")
            for part in np.array_split(x, 4):
                pca.partial_fit(part)
        off = abs(pca.total_variance_ - np.cov(x.T).trace())
        assert pca.doubts_ or off < 3 * pca.total_variance_error_


def test_records_that_a_clip_only_shrinks_have_a_bound_and_no_doubt() -> None:
    for seed in range(5):
        x = np.random.default_rng(seed).normal(size=(30_000, 12)) * np.array([5.0, 4.0, *[1.0] * 10])
        pca, angle = fitted(x, 1.0, seed)
        assert pca.doubts_ == ()
        assert angle < pca.angle_bound_ < 0.25


def test_steps_that_still_turn_are_told_until_the_components_settle() -> None:
    """One batch is far off even without noise: a random start, a slowly falling spectrum."""
    x = np.random.default_rng(0).normal(size=(20_000, 30)) * 0.97 ** np.arange(30)
    pca, angle = fitted(x, 1e4, 0, route="block")
    assert angle > 0.1
    assert "unsettled" in pca.doubts_ or "not-resolved" in pca.doubts_
    spiked = np.random.default_rng(0).normal(size=(20_000, 30)) * np.array([5.0, 3.0, *[1.0] * 28])
    pca, angle = fitted(spiked, 1e4, 0, route="block")
    with replace_noise_sampler(SeededSampler(1)):
        for _ in range(8):
            pca.partial_fit(spiked)
    assert principal_angles(pca.components_, np.eye(2, 30))[0] <= pca.angle_bound_ < 0.2
    assert "clipped" not in pca.doubts_


@pytest.mark.parametrize("seed", [0, 2, 4])
def test_a_direction_that_a_random_start_may_hide_is_doubted(seed: int) -> None:
    """Of three near directions the block's two columns hold a mixture, which hardly turns any more."""
    scales = np.sqrt([10, 9.5, 8.5, *[1.0] * 17])
    x = np.random.default_rng(seed).normal(size=(20_000, 20)) * scales
    pca, angle = fitted(x, 4.0, seed, 1, route="block")
    assert angle > 1
    assert "unsettled" in pca.doubts_
    assert pca.angle_bound_ > np.pi / 4


def test_steps_that_have_settled_do_not_hide_what_clipped_residuals_turn() -> None:
    """A few users have most of all counts: clipping at the median removes most of the leading directions."""
    rng = np.random.default_rng(4)
    users, habits = rng.pareto(3.5, (20_000, 1)) + 0.2, rng.dirichlet(np.full(20, 0.2), 5)
    x = rng.poisson(8 * users * habits[rng.integers(0, 5, 20_000)]).astype(np.float64)
    pca, _ = fitted(x, 4.0, 0, route="block")
    with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(1)):
        warnings.simplefilter("ignore")
        for _ in range(7):
            pca.partial_fit(x)
    angle = principal_angles(pca.components_, np.linalg.eigh(np.cov(x.T))[1][:, ::-1][:, :2].T)[0]
    assert angle <= pca.angle_bound_
    assert "clipped" in pca.doubts_


def test_steps_that_settle_between_near_eigenvalues_are_doubted() -> None:
    """With three of them one column beyond the rank does not show where the steps would end."""
    for seed in range(4):
        x = np.random.default_rng(seed).normal(size=(200_000, 20))
        x *= np.sqrt([10, 9.85, 9.7, *[1.0] * 17])
        pca, angle = fitted(x, 4.0, seed, k=1, route="block")
        assert angle <= pca.angle_bound_ or pca.doubts_


def test_later_batches_do_not_forget_how_the_steps_turned() -> None:
    """Each moves the basis by its share only, so its own turn is small: once a bound of 5 degrees, 30 off."""
    x = np.random.default_rng(1).normal(size=(400_000, 20)) * np.sqrt([10, 9.5, 8.5, *[1.0] * 17])
    exact = np.linalg.eigh(np.cov(x.T))[1][:, ::-1][:, :1].T
    with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(1)):
        warnings.simplefilter("ignore")
        pca = PrivatePCA(1, estimator="block", epsilon=4.0, random_state=1)
        for part in np.array_split(x, 20):
            pca.partial_fit(part)
            assert principal_angles(pca.components_, exact)[0] <= pca.angle_bound_ or pca.doubts_


@pytest.mark.parametrize("seed", range(4))
def test_the_block_s_bound_covers_a_clip_of_skewed_residuals(seed: int) -> None:
    """Residuals are exponential on one side, so that their clipped mean is off: by three times the noise."""
    rng, n, d = np.random.default_rng(1000 + seed), 20_000, 10
    x = 0.1 * rng.standard_normal((n, d))
    signs = np.sign(rng.standard_normal(n))
    x[:, 0] += 10 * signs
    x[:, 1] += 0.5 * signs * rng.exponential(size=n)
    pca, angle = fitted(x, 1.0, seed, k=1)
    assert pca._state.route == "block"
    assert angle <= pca.angle_bound_ < 0.05


@pytest.mark.parametrize(("first", "later", "epsilon"), [(28_000, 2000, 4.0), (100_000, 8000, 1.0)])
@pytest.mark.parametrize("turn", [1, -1])
def test_a_late_small_batch_of_far_larger_records_is_doubted(
    first: int, later: int, epsilon: float, turn: int
) -> None:
    """It is too small for a look at the norms, but it shows in the layers above the radius."""
    rng, scales = np.random.default_rng(0), np.array([4, 2, 1.2, 1, 1, 1, 1, 0.8])
    pca = PrivatePCA(2, epsilon=epsilon, random_state=0)
    with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(0)):
        warnings.simplefilter("ignore")
        pca.partial_fit(rng.standard_normal((first, 8)) * scales)
        pca.partial_fit(rng.standard_normal((later, 8)) * scales)
        assert pca.doubts_ == ()
        pca.partial_fit(rng.standard_normal((later, 8)) * scales[::turn] * 30)
    assert "clipped" in pca.doubts_


def test_columns_beyond_the_rank_do_not_unsettle() -> None:
    """The additional columns turn with the noise; the released ones do not."""
    x = np.random.default_rng(0).normal(size=(100_000, 20)) * np.array([5.0, 3.0, *[1.0] * 18])
    with warnings.catch_warnings(), replace_noise_sampler(SeededSampler(0)):
        warnings.simplefilter("ignore")
        pca = PrivatePCA(2, estimator="block", epsilon=4.0, options={"oversampling": 3}, random_state=0)
        for _ in range(3):
            pca.partial_fit(x)
    assert pca.doubts_ == ()
