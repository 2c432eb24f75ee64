"""Discrete Laplace noise: pure differential privacy for integer vectors."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_positive
from streaming_pca.privacy.mechanisms.addition import add, require_integers
from streaming_pca.privacy.randomness import noise_door

__all__ = ["laplace_on_vector", "laplace_scale"]


def laplace_scale(sensitivity: float, epsilon: float) -> float:
    """Smallest float scale with sensitivity/scale <= epsilon, the decimal that prints epsilon.

    Raises
    ------
    ParameterError
        If a parameter is not a finite number above 0, or no float is large enough.
    """
    require_positive("sensitivity", sensitivity)
    require_positive("epsilon", epsilon)
    exact = Fraction(sensitivity) / min(Fraction(repr(float(epsilon))), Fraction(float(epsilon)))
    try:
        scale = float(exact)
    except OverflowError:
        scale = math.inf
    if 0 < scale < math.inf and Fraction(scale) < exact:
        scale = math.nextafter(scale, math.inf)
    if not 0 < scale < math.inf:
        raise ParameterError(f"epsilon = {epsilon!r} is out of range for a sensitivity of {sensitivity!r}")
    return scale


def laplace_on_vector(total: NDArray[np.int64], scale: float) -> NDArray[np.int64]:
    """Discrete Laplace mechanism on an integer vector.

    Parameters
    ----------
    total : (n,) int64
        Exact counts or sums.
    scale : float
        Noise scale in units of the integers; see :func:`laplace_scale`.

    Returns
    -------
    (n,) int64, within 2**62 of 0

    Raises
    ------
    ParameterError
        If ``scale`` is not a finite number above 0 or ``total`` is not int64.

    Notes
    -----
    Released: every coordinate plus independent noise, P(j) proportional to
    exp(-|j|/scale). Adjacency: replace-one, under which neighbouring totals
    differ by at most D in L1. By the triangle inequality the likelihood ratio
    at any output is at most exp(sum |D_i|/scale) <= exp(D/scale), so the
    release is (D/scale)-DP; clipping it to int64's inside is post-processing.

    Source: Ghosh, Roughgarden and Sundararajan 2012; the sampler is Canonne,
    Kamath and Steinke 2020, Algorithm 2, by OpenDP.
    """
    require_positive("scale", scale)
    require_integers("total", total)
    return add(total, noise_door().discrete_laplace(total.size, scale))
