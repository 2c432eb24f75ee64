"""How much noise a promise needs, judged at 40 digits."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from streaming_pca.privacy.calibration import (
    CalibrationError,
    discrete_gap,
    gaussian_delta,
    gaussian_multiplier,
    gaussian_rho,
    lattice_sigma,
    textbook_multiplier,
)

EPSILONS = [1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0]
DELTAS = [1e-15, 1e-9, 1e-6, 1e-2, 0.3]


def exact_delta(epsilon: float, multiplier: float) -> mpmath.mpf:
    """Balle and Wang 2018, Theorem 8."""
    with mpmath.workdps(60):
        e, z = mpmath.mpf(epsilon), mpmath.mpf(multiplier)
        half = 1 / (2 * z)
        return mpmath.ncdf(half - e * z) - mpmath.exp(e) * mpmath.ncdf(-half - e * z)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("multiplier", [0.1, 0.3, 1.0, 4.0, 50.0, 3000.0])
def test_delta_is_that_of_the_analytic_gaussian_mechanism(epsilon: float, multiplier: float) -> None:
    exact = float(exact_delta(epsilon, multiplier))
    # Its two terms cancel: what is lost is a few roundings of the larger one.
    assert gaussian_delta(epsilon, multiplier) == pytest.approx(exact, rel=1e-7, abs=1e-300)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_the_multiplier_is_private_and_tight(epsilon: float, delta: float) -> None:
    reached = exact_delta(epsilon, gaussian_multiplier(epsilon, delta))
    # The multiplier carries 1e-6 of safety, which delta sees up to a hundredfold at the smallest.
    assert delta * (1 - 1e-4) <= reached <= delta


def test_more_privacy_needs_more_noise() -> None:
    for delta in DELTAS:
        assert all(a > b for a, b in pairwise(gaussian_multiplier(e, delta) for e in EPSILONS))
    for epsilon in EPSILONS:
        assert all(a > b for a, b in pairwise(gaussian_multiplier(epsilon, d) for d in DELTAS))


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-2, 0.5])
def test_the_textbook_multiplier_is_private_wherever_it_is_used(delta: float) -> None:
    for epsilon in (0.01, 0.5, 1.0):
        assert textbook_multiplier(epsilon, delta) >= gaussian_multiplier(epsilon, delta)
    assert textbook_multiplier(2.0, delta) == gaussian_multiplier(2.0, delta)


def total_variation(sigma: float) -> float:
    """Distance between the discrete and the rounded Gaussian, one coordinate."""
    j = np.arange(-int(40 * sigma), int(40 * sigma) + 1, dtype=np.float64)
    discrete = np.exp(-(j**2) / (2 * sigma**2))
    discrete /= discrete.sum()
    # From the left tail on both sides, where differences of ndtr keep their digits.
    near = -np.abs(j)
    rounded = ndtr((near + 0.5) / sigma) - ndtr((near - 0.5) / sigma)
    return float(np.abs(discrete - rounded).sum() / 2)


@pytest.mark.parametrize("sigma", [30.0, 33.3, 50.0, 100.0, 1000.0])
def test_the_discrete_gap_bounds_the_distance_to_the_rounded_gaussian(sigma: float) -> None:
    for epsilon in (0.1, 1.0, 5.0):
        t = total_variation(sigma) * (1 + math.exp(epsilon))
        gap = discrete_gap(epsilon, 1 / sigma**2)
        assert t <= gap <= 1.005 * t


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-2])
@pytest.mark.parametrize("n", [1.0, 1e4, 4e6])
def test_the_lattice_scale_pays_for_the_whole_delta(epsilon: float, delta: float, n: float) -> None:
    sensitivity = 2.0**40
    sigma = lattice_sigma(epsilon, delta, sensitivity, n)
    total = exact_delta(epsilon, sigma / sensitivity) + discrete_gap(epsilon, n / sigma**2)
    assert total <= delta
    assert sigma <= 1.001 * gaussian_multiplier(epsilon, delta) * sensitivity


def test_a_gap_that_counts_is_paid_for() -> None:
    sensitivity, n = 1000.0, 100.0
    sigma = lattice_sigma(1.0, 1e-6, sensitivity, n)
    gap = discrete_gap(1.0, n / sigma**2)
    assert gap > 1e-7
    assert exact_delta(1.0, sigma / sensitivity) + gap <= 1e-6
    assert sigma > 1.005 * gaussian_multiplier(1.0, 1e-6) * sensitivity


def test_a_larger_multiplier_is_kept_and_a_smaller_one_refused() -> None:
    needed = gaussian_multiplier(1.0, 1e-6)
    assert lattice_sigma(1.0, 1e-6, 2.0**40, 10.0, 2 * needed) == 2 * needed * 2.0**40
    with pytest.raises(CalibrationError, match="noise multiplier"):
        lattice_sigma(1.0, 1e-6, 2.0**40, 10.0, 0.99 * needed)


@pytest.mark.parametrize(
    ("epsilon", "delta", "sensitivity", "n", "message"),
    [
        (1.0, 1e-6, 2.0, 1.0, "too coarse"),
        (1.0, 1e-30, 2.0**40, 1e6, "delta"),
        (60.0, 1e-6, 2.0**40, 1e4, "lower epsilon"),
        (1000.0, 1e-6, 2.0**40, 1e4, "lower epsilon"),
        (1e-7, 1e-9, 2.0**40, 1e4, "raise epsilon"),
    ],
)
def test_a_promise_that_the_lattice_cannot_keep_is_refused(
    epsilon: float, delta: float, sensitivity: float, n: float, message: str
) -> None:
    with pytest.raises(CalibrationError, match=message):
        lattice_sigma(epsilon, delta, sensitivity, n)


@pytest.mark.parametrize("multiplier", [0.1, 1.0, 4.2246, 1e4])
def test_rho_is_rounded_up(multiplier: float) -> None:
    exact = 1 / (2 * Fraction(multiplier) ** 2)
    assert exact <= gaussian_rho(multiplier) <= exact + Fraction(1, 10**12)
