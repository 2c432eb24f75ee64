"""How much noise a promise needs.

All functions are about replace-one adjacency: ``sensitivity`` is always the
largest L2 distance between the sums of two inputs that differ in one unit of
privacy. :class:`~streaming_pca.privacy.parameters.Charge` reads a float as the
decimal that prints it, so ``epsilon`` and ``delta`` are taken as the smaller of
float and decimal here, and every result is rounded towards more noise.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from streaming_pca.privacy.analytic import gaussian_delta, gaussian_multiplier, pure_epsilon
from streaming_pca.privacy.errors import (
    CalibrationError,
    require_count,
    require_open_unit,
    require_positive,
)

__all__ = [
    "DISCRETE_GAP",
    "LEAST_SCALE",
    "CalibrationError",
    "discrete_gap",
    "gaussian_delta",
    "gaussian_multiplier",
    "gaussian_rho",
    "lattice_sigma",
    "pure_epsilon",
    "textbook_multiplier",
]

DISCRETE_GAP = 0.0202
"""Total variation distance of the discrete from the rounded Gaussian, times sigma squared: at most this."""

LEAST_SCALE = 30.0
"""Smallest scale of a coordinate, in lattice units, that :data:`DISCRETE_GAP` is used for."""

# No mechanism's coordinate has less than sigma/sqrt(2).
_LEAST_SIGMA = LEAST_SCALE * math.sqrt(2)

# The clip at 2**62 of a mechanism's result (mechanisms/addition.py) is then 32 sigma wide.
_GREATEST_SIGMA = 2.0**57


def textbook_multiplier(epsilon: float, delta: float) -> float:
    """The constant sqrt(2 ln(1.25/delta))/epsilon that papers print.

    Valid for epsilon <= 1 only; above that the analytic value is returned.
    For estimators that are faithful to such a paper, and for nothing else.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.
    """
    require_positive("epsilon", epsilon)
    require_open_unit("delta", delta)
    if epsilon > 1:
        return gaussian_multiplier(epsilon, delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def discrete_gap(epsilon: float, inverse_variances: float, contributions: int = 1) -> float:
    """What the discrete sampler adds to the delta of the continuous mechanism.

    Parameters
    ----------
    epsilon : float
    inverse_variances : float
        Sum over coordinates of 1/sigma_i**2, sigma_i in lattice units, each at
        least :data:`LEAST_SCALE`.
    contributions : int
        Batches that a unit of privacy may enter, each with its own release.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.

    Notes
    -----
    *The distance.* Let g be the density of N(0, sigma^2), g^(m) its m-th
    derivative, q(j) its integral over [j - 1/2, j + 1/2] (the rounded
    Gaussian), p(j) = g(j)/S with S the sum of g over the integers (the discrete
    one), phi the standard density.

    1. For a twice differentiable f, the integral of f over [-1/2, 1/2] less
       f(0) is the integral of K f^(2), K(u) = (1/2 - |u|)^2/2 (Peano's kernel
       of the midpoint rule). Hence sum_j |q(j) - g(j)| is at most the integral
       of w |g^(2)| over the line, w being K repeated with period 1.
    2. w = 1/24 + v, v(y) = 1/2 sum_{n>=1} (-1)^n cos(2 pi n y)/(pi n)^2, y the
       distance to the nearest half-integer. v has mean zero and a periodic
       second antiderivative V with |V| <= sum_{n>=1} 1/(8 pi^4 n^4) = 1/720.
    3. h = |g^(2)| is continuous, and smooth but for kinks at +-sigma, where its
       slope jumps by 2 |g^(3)(sigma)|. Integrating by parts twice, the integral
       of v h is that of V h^(2) plus V times the jump at each kink, so at most
       (integral of |g^(4)| + 4 |g^(3)(sigma)|)/720.
    4. g^(m)(x) is phi^(m)(x/sigma)/sigma^(m+1). So the integral of |g^(2)| is
       E|Z^2 - 1|/sigma^2 = 4 phi(1)/sigma^2; that of |g^(4)| is E|Z^4 - 6 Z^2 +
       3|/sigma^4 <= sqrt(24)/sigma^4 (Cauchy and Schwarz; the fourth Hermite
       polynomial has variance 4!); and |g^(3)(sigma)| = 2 phi(1)/sigma^4.
    5. By Poisson's summation formula S = 1 + 2 sum_{n>=1} exp(-2 pi^2 sigma^2 n^2),
       and sum_j |p(j) - g(j)| = S - 1 < 3 exp(-2 pi^2 sigma^2).

    The total variation distance of one coordinate is half the sum of 1 and 5:
    at most phi(1)/(12 sigma^2) + (sqrt(24) + 8 phi(1))/(1440 sigma^4) + 1.5
    exp(-2 pi^2 sigma^2) < 0.020165/sigma^2 + 0.00475/sigma^4 + 1.5 exp(-2 pi^2
    sigma^2), which is below :data:`DISCRETE_GAP`/sigma^2 from sigma = 12 on, so
    from :data:`LEAST_SCALE` on. Distances of independent coordinates add.

    *Its price.* On integer sums the rounded Gaussian is a post-processing of the
    continuous mechanism, so the analytic bound holds for it exactly. Let P, Q be
    the outputs on two neighbours and P', Q' those with rounded Gaussians, each
    within t of its own. Then on every set P <= P' + t <= e^epsilon Q' + delta
    + t <= e^epsilon (Q + t) + delta + t: the discrete mechanism is (epsilon,
    delta + (1 + e^epsilon) t)-private. A unit that enters c batches, whichever
    and after whatever answers, changes the input of c releases; replace the
    samplers of these alone, one after the other: t becomes at most c t.
    """
    require_positive("epsilon", epsilon)
    require_positive("inverse_variances", inverse_variances)
    require_count("contributions", contributions)
    # Above e**700 no gap is small enough anyway, and e**710 overflows.
    return (1 + math.exp(min(epsilon, 700.0))) * DISCRETE_GAP * inverse_variances * contributions


@lru_cache(maxsize=1024, typed=True)
def lattice_sigma(
    epsilon: float,
    delta: float,
    sensitivity: float,
    relative_inverse_variances: float,
    multiplier: float | None = None,
    contributions: int = 1,
) -> float:
    """Noise scale, in lattice units, of discrete Gaussians that are together (epsilon, delta)-private.

    Parameters
    ----------
    epsilon, delta : float
        The promise for one unit of privacy, over all its batches.
    sensitivity : float
        In lattice units, L2, replace-one: of one batch's sum.
    relative_inverse_variances : float
        Sum over coordinates of (sigma/sigma_i)**2: the number of coordinates
        where all have the scale sigma.
    multiplier : float, optional
        A larger noise multiplier of one batch (a paper's); it is checked.
    contributions : int
        Batches that one unit may enter.

    Returns
    -------
    float
        The same for every batch.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.
    CalibrationError
        If the lattice is too coarse for the promise, or int64 too narrow.

    Notes
    -----
    A Gaussian of multiplier z is (1/z)-GDP, and c mechanisms that are mu-GDP
    each are sqrt(c) mu-GDP together, also when each is chosen after seeing the
    earlier ones' answers (Dong, Roth and Su 2022, Theorem 3.2), and when these
    decide which batches the unit enters (Smith and Thakurta 2022; Koskela,
    Tobaben and Honkela 2023). So a batch's multiplier is sqrt(c) times that of
    a single Gaussian for (epsilon, what c discretisation gaps leave of delta).
    """
    require_positive("sensitivity", sensitivity)
    require_positive("relative_inverse_variances", relative_inverse_variances)
    require_count("contributions", contributions)
    if multiplier is not None:
        require_positive("multiplier", multiplier)
    root = _root_up(contributions)
    rough = gaussian_multiplier(epsilon, delta) * root * sensitivity
    if rough < _LEAST_SIGMA:
        raise CalibrationError("the lattice is too coarse for so little noise: lower epsilon")
    # 1e-14 covers the roundings of this line and of the decimal that prints it.
    gap = discrete_gap(epsilon, relative_inverse_variances / rough**2, contributions)
    left = (delta - gap) * (1 - 1e-14)
    if left <= delta / 2:
        raise CalibrationError(
            f"delta = {delta:g} is too small for {relative_inverse_variances:g} noisy values"
            f" at epsilon = {epsilon:g}: raise delta or lower epsilon"
        )
    needed = _product_up(gaussian_multiplier(epsilon, left), root)
    if multiplier is not None:
        if multiplier < needed:
            raise CalibrationError(f"noise multiplier {multiplier} is below the needed {needed}")
        needed = multiplier
    sigma = _product_up(needed, sensitivity)
    if sigma > _GREATEST_SIGMA:
        raise CalibrationError(f"epsilon = {epsilon:g} needs more noise than int64 sums hold: raise epsilon")
    return sigma


def gaussian_rho(multiplier: float) -> Fraction:
    """zCDP parameter 1/(2 z^2), rounded up to 12 digits; the discrete Gaussian has the same.

    Canonne, Kamath and Steinke 2020, Theorem 4. The multiplier may be a
    rounded quotient: an excess of 1e-15 over the true one is covered.

    Raises
    ------
    ParameterError
        If the multiplier is not a finite number above 0.
    """
    require_positive("multiplier", multiplier)
    exact = (1 + Fraction(1, 2**48)) / (2 * Fraction(multiplier) ** 2)
    return Fraction(math.ceil(exact * 10**12), 10**12)


def _root_up(count: int) -> float:
    root = math.sqrt(count)
    return root if Fraction(root) ** 2 >= count else math.nextafter(root, math.inf)


def _product_up(a: float, b: float) -> float:
    product = a * b
    if product < math.inf and Fraction(product) < Fraction(a) * Fraction(b):
        product = math.nextafter(product, math.inf)
    return product
