"""Discrete Laplace noise on integer vectors: pure differential privacy.

OpenDP's samplers saturate: a draw beyond int64 becomes its end. Here the sum is
clipped so that a saturated draw and the true one give the same answer. The answer is
then a function of (total + noise) in unbounded integers, and as private: to the last
bit, and with no tail to charge.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_positive
from streaming_pca.privacy.mechanisms.gaussian import require_integers
from streaming_pca.privacy.noise import LARGEST_TOTAL
from streaming_pca.privacy.randomness import noise_sampler

_ENDS = np.iinfo(np.int64)


def laplace_scale(sensitivity: float, epsilon: float) -> float:
    """Return the smallest float scale with sensitivity/scale <= epsilon.

    epsilon is read as the smaller of the float and the decimal that prints it.

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
    """Add discrete Laplace noise to an integer vector.

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

    Source: [GhoshRoughgardenSundararajan2012]; the sampler is OpenDP's
    [CanonneKamathSteinke2020, Alg. 2].
    """
    require_positive("scale", scale)
    require_integers("total", total)
    return add(total, noise_sampler().discrete_laplace(total.size, scale))


def add(total: NDArray[np.int64], noise: NDArray[np.int64]) -> NDArray[np.int64]:
    """Add noise to a total, clipped to ``LARGEST_TOTAL - 1`` on both sides.

    Notes
    -----
    A total is clipped to [-2**62, 2**62] first, which moves no two neighbours
    further apart in any norm. A draw N >= 2**63 - 1 arrives as 2**63 - 1; total + N and
    total + 2**63 - 1 are both at least 2**62 - 1, and clip to that. Likewise
    below. So the answer is clip(total + N).
    """
    bounded = np.clip(total, -LARGEST_TOTAL, LARGEST_TOTAL)
    noise = noise.reshape(total.shape)
    # int64 wraps without a warning; a sum wrapped when its sign is neither term's.
    wrapped = bounded + noise
    ends = np.where(noise < 0, _ENDS.min, _ENDS.max)
    whole = np.where(((bounded ^ wrapped) & (noise ^ wrapped)) < 0, ends, wrapped)
    return np.asarray(np.clip(whole, 1 - LARGEST_TOTAL, LARGEST_TOTAL - 1))
