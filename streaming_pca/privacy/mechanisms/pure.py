"""Mechanisms of pure differential privacy: discrete Laplace noise, one alarm.

OpenDP's samplers saturate: a draw beyond int64 becomes its end. Here the sum is clipped so that a saturated
draw and the true one give the same answer. The answer is then a function of (total + noise) in unbounded
integers, and as private: to the last bit, and with no tail to charge.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_count, require_positive
from streaming_pca.privacy.mechanisms.gaussian import require_integers
from streaming_pca.privacy.noise import LARGEST_TOTAL
from streaming_pca.privacy.randomness import noise_sampler

_ENDS = np.iinfo(np.int64)


def laplace_scale(sensitivity: float, epsilon: float) -> float:
    """Return the smallest float scale with sensitivity/scale <= epsilon.

    epsilon is read as the smaller of the float and the decimal that prints it.
    :class:`ParameterError` if no float is large enough.
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

    Notes
    -----
    Released: every coordinate plus independent noise, P(j) proportional to
    exp(-|j|/scale). Adjacency: replace-one, under which neighbouring totals
    differ by at most D in L1. By the triangle inequality the likelihood ratio
    at any output is at most exp(sum |D_i|/scale) <= exp(D/scale), so the
    release is (D/scale)-DP; clipping it to int64's inside is post-processing.

    Source: [GhoshRoughgardenSundararajan2012]; the sampler is OpenDP's [CanonneKamathSteinke2020, Alg. 2].
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


class AboveThreshold:
    """Noisy comparison of integer queries with a threshold, until one is above.

    Parameters
    ----------
    threshold : int
        Public.
    epsilon : float
        Cost of all answers together.
    sensitivity : int
        Largest change of a query when one record is replaced.

    Notes
    -----
    Released: for each query "below", until one is "above", and then nothing.
    Adjacency: replace-one, and all queries on the same records. Any number of
    answers "below" costs nothing beyond the one epsilon, also when each query
    is chosen after the answers before it.

    The threshold gets discrete Laplace noise r of scale 2 D/epsilon once, each query q_i fresh noise of scale
    4 D/epsilon, D the sensitivity. Let the answer be "below" k - 1 times and then "above", and fix the draws
    of the queries before k. On a neighbour those q_i + noise rise by at most D; so if r rises by D too, they
    stay below, at a price of e^(D/(2 D/epsilon)) = e^(epsilon/2) for the probability of r; and the k-th stays
    above if its own noise rises by at most 2 D, at a price of e^(2 D/(4 D/epsilon)) = e^(epsilon/2). Both
    shifts are integers, so the sums over the integers map to themselves, and the product is e^epsilon; a
    sequence that never fires pays the first factor only. A noise drawn again for the threshold, or an answer
    that shows the noisy query, would break this, and neither is done.

    A draw beyond int64 saturates. At the largest scale that is accepted that
    has probability below e^(-2**22) a draw, which no delta in use can see.

    Source: [DworkRoth2014, Alg. 1]; [LyuSuLi2017, Alg. 1].
    """

    def __init__(self, threshold: int, epsilon: float, sensitivity: int = 1) -> None:
        if isinstance(threshold, bool) or not isinstance(threshold, int):
            raise ParameterError(f"threshold must be a whole number, not {threshold!r}")
        require_count("sensitivity", sensitivity)
        self._scale = laplace_scale(4 * sensitivity, epsilon)
        if self._scale > 2.0**40:
            raise ParameterError(f"epsilon = {epsilon!r} is too small for a sensitivity of {sensitivity}")
        (noise,) = noise_sampler().discrete_laplace(1, laplace_scale(2 * sensitivity, epsilon)).tolist()
        self._level: int = threshold + noise
        self._fired = False

    @property
    def fired(self) -> bool:
        """True once a query was above: further queries are refused."""
        return self._fired

    def ask(self, query: int) -> bool:
        """Return whether the noisy query is at least the noisy threshold; RuntimeError after True."""
        if isinstance(query, bool) or not isinstance(query, int):
            raise ParameterError(f"query must be an int, not {type(query).__name__}")
        if self._fired:
            raise RuntimeError("this AboveThreshold has fired: a new one, with its own epsilon, is needed")
        (noise,) = noise_sampler().discrete_laplace(1, self._scale).tolist()
        self._fired = query + noise >= self._level
        return self._fired
