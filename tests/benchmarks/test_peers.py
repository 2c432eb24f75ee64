"""Peers of the utility benchmark: sensitivity, scale of the noise, and results without noise."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from benchmarks.accuracy import peers
from benchmarks.accuracy.clipped_covariance import ClippedCovariance, clipped_mean_square, symmetric_noise
from benchmarks.accuracy.comparison import measure
from benchmarks.accuracy.peers import COINPRESS_SHARES, ORACLE_QUANTILES, PEERS, oracle
from benchmarks.accuracy.settings import centred_setting
from benchmarks.accuracy.synthetic_families import FAMILIES
from streaming_pca.linalg.subspace import subspace_error
from streaming_pca.privacy.calibration.multipliers import gaussian_multiplier

RNG = np.random.default_rng(0)
DRAWS = 400


def gaussian_records(n: int = 3_000, dim: int = 6) -> np.ndarray:
    scales = np.sqrt([9.0, 4.0, *[0.5] * (dim - 2)])
    return (np.random.default_rng(1).standard_normal((n, dim)) * scales).astype(np.float32)


def records_of_one_norm(n: int = 3_000) -> np.ndarray:
    records = gaussian_records(n)
    return (2.0 * records / np.linalg.norm(records, axis=1, keepdims=True)).astype(np.float32)


def noise_scales(draws: list[np.ndarray]) -> tuple[float, float]:
    """Return standard deviations on and off the diagonal, pooled over entries."""
    off = ~np.eye(len(draws[0]), dtype=bool)
    stack = np.array(draws)
    diagonal = np.array([draw.diagonal() for draw in draws])
    return float(diagonal.std()), float(stack[:, off].std())


def test_clipping_keeps_directions_and_limits_norms() -> None:
    records = gaussian_records(500)
    wide = records.astype(np.float64)
    norms = np.linalg.norm(wide, axis=1)
    shrunk = wide * np.minimum(1.0, 1.5 / norms)[:, None]
    covariance = ClippedCovariance(records)
    assert covariance.at(1.5**2) == pytest.approx(shrunk.T @ shrunk / 500)
    assert covariance.exact == pytest.approx(wide.T @ wide / 500)
    assert covariance.largest == pytest.approx(norms.max() ** 2)
    assert covariance.excess(1.5**2) == pytest.approx((norms**2 - (shrunk**2).sum(axis=1)).sum())


def test_clipping_is_of_the_transformed_records() -> None:
    records, factor = gaussian_records(20_000), RNG.standard_normal((6, 6))
    images = records.astype(np.float64) @ factor.T
    images *= np.minimum(1.0, 2.0 / np.linalg.norm(images, axis=1))[:, None]
    assert clipped_mean_square(records, 4.0, factor) == pytest.approx(images.T @ images / 20_000)


def test_a_replaced_record_moves_the_clipped_moment_by_sqrt_2_radii_over_n_at_most() -> None:
    records = gaussian_records(50)
    radius = 3.0
    moves = []
    for _ in range(200):
        other = records.copy()
        other[0] = 100 * RNG.standard_normal(6)
        moves.append(clipped_mean_square(records, radius) - clipped_mean_square(other, radius))
    bound = math.sqrt(2) * radius / 50
    assert max(np.linalg.norm(move) for move in moves) <= bound * (1 + 1e-6)
    # Large orthogonal records attain the bound.
    one, two = records.copy(), records.copy()
    one[0], two[0] = 100 * np.eye(6)[0], 100 * np.eye(6)[1]
    move = clipped_mean_square(one, radius) - clipped_mean_square(two, radius)
    assert np.linalg.norm(move) == pytest.approx(bound)


def test_symmetric_noise_has_its_scale_in_every_direction() -> None:
    draws = [symmetric_noise(5, 2.0, RNG) for _ in range(4_000)]
    assert all(np.array_equal(draw, draw.T) for draw in draws[:10])
    assert noise_scales(draws) == pytest.approx((2.0, math.sqrt(2)), rel=0.03)
    direction = RNG.standard_normal((5, 5))
    direction += direction.T
    direction /= np.linalg.norm(direction)
    assert np.std([np.vdot(draw, direction) for draw in draws]) == pytest.approx(2.0, rel=0.05)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_the_gaussian_multiplier_has_the_delta_that_is_promised(epsilon: float) -> None:
    mu = 1 / gaussian_multiplier(epsilon, 1e-6)
    delta = norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
    assert delta == pytest.approx(1e-6, rel=1e-4)


def test_noise_of_one_covariance_is_its_sensitivity_times_the_multiplier() -> None:
    covariance = ClippedCovariance(gaussian_records())
    expected = math.sqrt(2) * covariance.largest / 3_000 * 5.0
    draws = [peers._noisy(covariance, covariance.largest, 5.0, RNG) - covariance.exact for _ in range(DRAWS)]
    assert noise_scales(draws) == pytest.approx((expected, expected / math.sqrt(2)), rel=0.06)


def test_coinpress_adds_noise_for_its_clip_in_the_units_of_lambda_1() -> None:
    covariance = ClippedCovariance(records_of_one_norm(200_000))
    clip = 6 + 2 * math.sqrt(6 * math.log(10)) + 2 * math.log(10)
    expected = math.sqrt(2) * clip * covariance.largest_eigenvalue / 200_000 * gaussian_multiplier(1.0, 1e-6)
    clipped = covariance.at(clip * covariance.largest_eigenvalue)
    draws = [peers._coinpress(covariance, (1.0,), 1.0, 1e-6, RNG) - clipped for _ in range(DRAWS)]
    assert noise_scales(draws) == pytest.approx((expected, expected / math.sqrt(2)), rel=0.06)


def test_coinpress_spends_its_budget_once() -> None:
    assert sorted(COINPRESS_SHARES) == [1, 2, 3]
    for t, shares in COINPRESS_SHARES.items():
        assert len(shares) == t
        assert sum(shares) == 1.0


def test_a_second_step_of_coinpress_whitens_what_the_first_found() -> None:
    covariance = ClippedCovariance(gaussian_records(20_000))
    for shares in COINPRESS_SHARES.values():
        found = peers._coinpress(covariance, shares, 1e8, 1e-6, RNG)
        assert found == pytest.approx(covariance.exact, rel=0.05, abs=0.02)


def test_adaptive_cov_pays_seven_eighths_for_radius_and_release() -> None:
    """All norms are one: no smaller radius is chosen; the release has its exact noise."""
    records = records_of_one_norm(20_000)
    covariance = ClippedCovariance(records)
    rho = 1.0
    expected = covariance.largest / (20_000 * math.sqrt(0.75 * rho))
    draws = [peers._adaptive(covariance, rho, RNG) - covariance.exact for _ in range(DRAWS)]
    assert noise_scales(draws) == pytest.approx((expected, expected / math.sqrt(2)), rel=0.06)


def test_adaptive_cov_takes_a_smaller_radius_where_one_record_is_large() -> None:
    """The features are many, so a radius's noise is far above the search's own."""
    records = RNG.standard_normal((500, 300)).astype(np.float32)
    records[0] *= 50.0
    covariance = ClippedCovariance(records)
    rho = 0.05
    at_largest = covariance.largest / (500 * math.sqrt(0.75 * rho))
    draws = [peers._adaptive(covariance, rho, RNG) for _ in range(20)]
    assert np.mean([np.std(draw.diagonal()) < at_largest / 2 for draw in draws]) > 0.8


def test_separate_cov_gives_each_half_sqrt_2_times_the_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(peers, "_separate", lambda c, radius, z, rng: seen.append((radius, z)) or c.exact)
    covariance = ClippedCovariance(gaussian_records())
    peers.separate_cov(covariance, 2, 1.0, 1e-6, 0)
    assert seen == [(covariance.largest, pytest.approx(math.sqrt(2) * gaussian_multiplier(1.0, 1e-6)))]


@pytest.mark.parametrize("name", [*PEERS, "oracle"])
def test_with_almost_no_noise_each_finds_the_exact_subspace(name: str) -> None:
    covariance = ClippedCovariance(records_of_one_norm())
    exact = np.linalg.eigh(covariance.exact)[1][:, ::-1][:, :2].T
    method = oracle if name == "oracle" else PEERS[name]
    for components in method(covariance, 2, 1e10, 1e-6, 0).values():
        assert components.shape == (2, 6)
        assert subspace_error(components, exact) < 1e-3


@pytest.mark.parametrize("name", [*PEERS, "oracle"])
def test_a_seed_names_the_noise(name: str) -> None:
    covariance = ClippedCovariance(gaussian_records())
    method = oracle if name == "oracle" else PEERS[name]
    first, again, other = (method(covariance, 2, 0.5, 1e-6, seed) for seed in (1, 1, 2))
    assert all(np.array_equal(first[variant], again[variant]) for variant in first)
    assert not any(np.array_equal(first[variant], other[variant]) for variant in first)


def test_the_best_quantile_and_number_of_steps_are_those_of_the_mean_error() -> None:
    setting = centred_setting(FAMILIES["spike-10-2k"], 1, 0.5)
    found = measure(setting, [0, 1, 2], ["oracle", "coinpress"])
    rows = {row["method"]: row for row in found["results"]}
    draws = [setting.draw(seed) for seed in (0, 1, 2)]
    for name, method, variants in (
        ("oracle", oracle, ORACLE_QUANTILES),
        ("coinpress", PEERS["coinpress"], (1.0, 2.0, 3.0)),
    ):
        by_seed = [method(draw.vectors, 1, 0.5, 1e-6, seed) for seed, draw in enumerate(draws)]
        means = {
            variant: np.mean(
                [subspace_error(made[variant], d.truth) for made, d in zip(by_seed, draws, strict=True)]
            )
            for variant in variants
        }
        assert rows[name]["mean"] == pytest.approx(min(means.values()))
        assert rows[name]["variant"] == min(means, key=lambda variant: means[variant])
    assert found["best_peer"] == "coinpress"
    assert rows["coinpress"]["ratio_to_oracle"] == pytest.approx(
        rows["coinpress"]["mean"] / rows["oracle"]["mean"]
    )
