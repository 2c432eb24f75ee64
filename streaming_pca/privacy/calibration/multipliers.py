"""Noise scales for a privacy guarantee.

All functions are about replace-one adjacency: ``sensitivity`` is always the
largest L2 distance between the sums of two inputs that differ in one unit.
:class:`~streaming_pca.privacy.parameters.Charge` reads a float as the
decimal that prints it, so ``epsilon`` and ``delta`` are read as the smaller of
float and decimal here, and every result is rounded towards more noise.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from streaming_pca.privacy.calibration.analytic import gaussian_multiplier
from streaming_pca.privacy.errors import (
    CalibrationError,
    require_count,
    require_open_unit,
    require_positive,
)
from streaming_pca.privacy.noise import GREATEST_SIGMA


def textbook_multiplier(epsilon: float, delta: float) -> float:
    """Return sqrt(2 ln(1.25/delta))/epsilon, the constant of textbooks.

    Valid for epsilon <= 1 only; above that the analytic value is returned.
    Only for estimators that follow a paper with this constant.

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


def least_multiplier(epsilon: float, delta: float, contributions: int = 1) -> float:
    """Return the least multiplier of c Gaussians that are (epsilon, delta)-DP together.

    Rounded up; c is ``contributions``. It is the same for sums of any sensitivity, lattice and number
    of coordinates, so a unit's c batches may hold any mix of sums. Parameters, errors and proof:
    :func:`lattice_sigma`.
    """
    require_count("contributions", contributions)
    return _product_up(gaussian_multiplier(epsilon, delta), _root_up(contributions))


@lru_cache(maxsize=1024, typed=True)
def lattice_sigma(
    epsilon: float,
    delta: float,
    sensitivity: float,
    multiplier: float | None = None,
    contributions: int = 1,
) -> float:
    """Return the noise scale, in lattice units, of Gaussians that are (epsilon, delta)-private together.

    Parameters
    ----------
    epsilon, delta : float
        The guarantee for one unit, over all its batches.
    sensitivity : float
        L2, replace-one, of one batch's sum in lattice units.
    multiplier : float, optional
        A larger noise multiplier of one batch, as from a paper; it is checked.
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
        If int64 is too narrow for the noise, or the given multiplier is too small.

    Notes
    -----
    A Gaussian of multiplier z is (1/z)-GDP, and c mechanisms that are mu-GDP
    each are sqrt(c) mu-GDP together, also when each is chosen after seeing the
    earlier ones' answers [DongRothSu2022, Theorem 3.2], and when these
    decide which batches the unit enters [SmithThakurta2022;
    KoskelaTobabenHonkela2023]. So a batch's multiplier is sqrt(c) times the multiplier of
    a single Gaussian. Sums are integers and answers are rounded
    (:mod:`~streaming_pca.privacy.noise`), which changes nothing: neither the number of
    coordinates nor the lattice's unit matters.
    """
    require_positive("sensitivity", sensitivity)
    needed = least_multiplier(epsilon, delta, contributions)
    if multiplier is not None:
        require_positive("multiplier", multiplier)
        if multiplier < needed:
            raise CalibrationError(f"noise multiplier {multiplier} is below the needed {needed}")
        needed = multiplier
    return require_room(_product_up(needed, sensitivity), epsilon)


def require_room(sigma: float, epsilon: float) -> float:
    """Return sigma if int64 can hold so large a noise in addition to a sum.

    Raises
    ------
    CalibrationError
    """
    if sigma > GREATEST_SIGMA:
        raise CalibrationError(f"epsilon = {epsilon:g} needs more noise than int64 sums hold: raise epsilon")
    return sigma


def gaussian_rho(multiplier: float) -> Fraction:
    """Return the zCDP parameter 1/(2 z^2), rounded up to 12 digits.

    [BunSteinke2016, Proposition 1.6]; the discrete Gaussian of older streams
    has the same [CanonneKamathSteinke2020, Theorem 4]. The multiplier may be
    a rounded quotient: an excess of 1e-15 over the true one is covered.

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
