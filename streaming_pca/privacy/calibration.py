"""How much noise a promise needs.

All functions are about replace-one adjacency: ``sensitivity`` is always the
largest L2 distance between the sums of two inputs that differ in one record.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from scipy.special import log_ndtr

__all__ = [
    "DISCRETE_GAP",
    "CalibrationError",
    "discrete_gap",
    "gaussian_delta",
    "gaussian_multiplier",
    "gaussian_rho",
    "lattice_sigma",
    "textbook_multiplier",
]

DISCRETE_GAP = 0.0202
"""Total variation distance of the discrete from the rounded Gaussian, times sigma squared."""

# get_sigma_gaussian solves to a relative error in delta of 4e-12 (measured);
# a multiplier larger by 1e-9 covers that with room to spare.
_SAFETY = 1 + 1e-6

# The gap's constant holds from 30 on; no mechanism's coordinate has less than sigma/sqrt(2).
_LEAST_SIGMA = 30 * math.sqrt(2)

# 32 sigma of noise and a sum of 2**62 stay within int64: a draw beyond has probability e**-500.
_GREATEST_SIGMA = 2.0**57


class CalibrationError(ValueError):
    """No noise scale gives the promise that was asked for."""


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Exact delta of a Gaussian mechanism.

    Parameters
    ----------
    epsilon : float
    multiplier : float
        Noise standard deviation over sensitivity.

    Notes
    -----
    Balle and Wang 2018, Theorem 8: delta = Phi(a) - e^epsilon Phi(b) with
    a = 1/(2 z) - epsilon z and b = -1/(2 z) - epsilon z, evaluated in logs.
    """
    first = log_ndtr(0.5 / multiplier - epsilon * multiplier)
    second = epsilon + log_ndtr(-0.5 / multiplier - epsilon * multiplier)
    if second >= first:
        return 0.0
    return float(-math.exp(first) * math.expm1(second - first))


def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Smallest noise standard deviation over sensitivity that is (epsilon, delta)-private.

    The analytic Gaussian mechanism (Balle and Wang 2018, Algorithm 1), by
    dp-accounting, rounded up.
    """
    # Here, because it takes 1.4 s to import: most commands calibrate nothing.
    from dp_accounting import get_sigma_gaussian

    return float(get_sigma_gaussian(epsilon, delta)) * _SAFETY


def textbook_multiplier(epsilon: float, delta: float) -> float:
    """The constant sqrt(2 ln(1.25/delta))/epsilon that papers print.

    Valid for epsilon <= 1 only; above that the analytic value is returned.
    For estimators that are faithful to such a paper, and for nothing else.
    """
    if epsilon > 1:
        return gaussian_multiplier(epsilon, delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def discrete_gap(epsilon: float, inverse_variances: float) -> float:
    """What the discrete sampler adds to the delta of the continuous mechanism.

    Parameters
    ----------
    epsilon : float
    inverse_variances : float
        Sum over coordinates of 1/sigma_i**2, sigma_i in lattice units.

    Notes
    -----
    On integer sums, a rounded Gaussian is a post-processing of the continuous
    mechanism, so the analytic bound holds for it exactly. The discrete
    Gaussian's mass at j against the rounded one's is, to first order in
    1/sigma^2, 1 - (j^2/sigma^2 - 1)/(24 sigma^2): the integral of the density
    over a cell by Taylor's formula; the normalising constants agree to
    exp(-2 pi^2 sigma^2). So the total variation distance of one coordinate is
    E|Z^2 - 1|/(48 sigma^2) = 4 phi(1)/(48 sigma^2) = 0.02016/sigma^2, plus
    terms in 1/sigma^4 that the constant 0.0202 covers for sigma >= 30. Distances
    add over independent coordinates. If M' is within t of an (epsilon,
    delta)-private M, it is (epsilon, delta + (1 + e^epsilon) t)-private.
    """
    # Above e**700 no gap is small enough anyway, and e**710 overflows.
    return (1 + math.exp(min(epsilon, 700.0))) * DISCRETE_GAP * inverse_variances


@lru_cache(maxsize=1024)
def lattice_sigma(
    epsilon: float,
    delta: float,
    sensitivity: float,
    relative_inverse_variances: float,
    multiplier: float | None = None,
) -> float:
    """Noise scale, in lattice units, of a discrete Gaussian that is (epsilon, delta)-private.

    Parameters
    ----------
    epsilon, delta : float
    sensitivity : float
        In lattice units, L2, replace-one.
    relative_inverse_variances : float
        Sum over coordinates of (sigma/sigma_i)**2: the number of coordinates
        where all have the scale sigma.
    multiplier : float, optional
        A larger noise multiplier (a paper's); it is checked.

    Raises
    ------
    CalibrationError
        If the lattice is too coarse for the promise, or int64 too narrow.
    """
    rough = gaussian_multiplier(epsilon, delta) * sensitivity
    if rough < _LEAST_SIGMA:
        raise CalibrationError("the lattice is too coarse for so little noise: lower epsilon")
    left = delta - discrete_gap(epsilon, relative_inverse_variances / rough**2)
    if left <= delta / 2:
        raise CalibrationError(
            f"delta = {delta:g} is too small for {relative_inverse_variances:g} noisy values"
            f" at epsilon = {epsilon:g}: raise delta or lower epsilon"
        )
    needed = gaussian_multiplier(epsilon, left)
    if multiplier is not None:
        if multiplier < needed:
            raise CalibrationError(f"noise multiplier {multiplier} is below the needed {needed}")
        needed = multiplier
    sigma = needed * sensitivity
    if sigma > _GREATEST_SIGMA:
        raise CalibrationError(f"epsilon = {epsilon:g} needs more noise than int64 sums hold: raise epsilon")
    return sigma


def gaussian_rho(multiplier: float) -> Fraction:
    """zCDP parameter 1/(2 z^2), rounded up to 12 digits; the discrete Gaussian has the same.

    Canonne, Kamath and Steinke 2020, Theorem 4.
    """
    exact = 1 / (2 * Fraction(multiplier) ** 2)
    return Fraction(math.ceil(exact * 10**12), 10**12)
