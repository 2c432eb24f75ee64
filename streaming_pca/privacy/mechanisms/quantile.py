"""Exponential mechanism for a quantile over public candidates."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_open_unit
from streaming_pca.privacy.mechanisms.laplace import laplace_scale
from streaming_pca.privacy.randomness import noise_sampler


def counts_at_most(values: NDArray[np.float64], candidates: NDArray[np.float64]) -> NDArray[np.int64]:
    """Count the values that are at most each candidate; NaN is above every candidate."""
    # NaN sorts last.
    return np.searchsorted(np.sort(values), candidates, side="right").astype(np.int64)


def private_quantile(
    counts: NDArray[np.int64],
    size: int,
    candidates: NDArray[np.float64],
    quantile: float,
    epsilon: float,
) -> float:
    """Choose a quantile among fixed candidates by the exponential mechanism.

    Parameters
    ----------
    counts : (c,) int64
        For each candidate, the number of values at most as large (:func:`counts_at_most`), of m values: one
        number a record, each a function of that record alone. No value is refused: NaN counts as above
        every candidate.
    size : int
        m, public.
    candidates : (c,) float64, strictly increasing, finite, public
    quantile : float in (0, 1)
    epsilon : float

    Returns
    -------
    float
        One of the candidates.

    Raises
    ------
    ParameterError
        If a parameter, or the shape of an array, is not as above.

    Notes
    -----
    Released: one candidate, by permute-and-flip on the integer scores
    -|#{values <= c} - ceil(quantile m)|. Adjacency: replace-one. Replacing a
    record moves each count by at most 1 and m, hence the target, not at all,
    so each score has sensitivity 1. Permute-and-flip takes candidates in random
    order and accepts c with probability exp(-(best - score_c)/scale), the same
    distribution as the largest of score + exponential noise. Between neighbours
    best - score_c moves by at most 2, which bounds the acceptances' ratio; the
    full argument, that the whole is epsilon-DP at scale 2/epsilon, is
    [McKennaSheldon2020, Theorem 1]. Scale 1/epsilon would do if all scores moved
    the same way (monotone); they do not: a record that moves up raises the
    score of candidates above the quantile and lowers those below it.

    Floating point leaks nothing: the values are compared with candidates, and
    only the order counts; scores are integers between -m and 0; the sampler is
    OpenDP's permute-and-flip, in unbounded rationals, its coins of probability
    exp(-x) exact [CanonneKamathSteinke2020, Alg. 1]; and the scale
    is rounded up.
    """
    if candidates.ndim != 1 or not candidates.size:
        raise ParameterError(f"candidates must be a list of at least one number, not {candidates.shape}")
    if not (np.isfinite(candidates).all() and (np.diff(candidates) > 0).all()):
        raise ParameterError("candidates must be finite and strictly increasing")
    if counts.shape != candidates.shape or counts.dtype != np.int64:
        raise ParameterError(
            f"counts must be one int64 per candidate, not {counts.dtype} of shape {counts.shape}"
        )
    if (np.diff(counts, prepend=0, append=size) < 0).any():
        raise ParameterError("counts must not fall, nor leave the range from 0 to the number of values")
    require_open_unit("quantile", quantile)
    scale = laplace_scale(2, epsilon)
    target = math.ceil(quantile * size)
    return float(candidates[noise_sampler().noisy_max(-np.abs(counts - target), scale)])
