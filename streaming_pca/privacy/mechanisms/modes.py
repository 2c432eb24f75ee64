"""Fullest bins of many histograms over the same records."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.privacy.errors import ParameterError, require_open_unit, require_positive
from streaming_pca.privacy.mechanisms.gaussian import gaussian_on_vector
from streaming_pca.privacy.mechanisms.histogram import stability_threshold
from streaming_pca.privacy.mechanisms.laplace import laplace_on_vector, laplace_scale
from streaming_pca.privacy.noise import grid_exponent


@dataclass(frozen=True)
class Modes:
    """Fullest bin of each histogram.

    Attributes
    ----------
    bins : (n,) int64
        0 if none was found.
    found : (n,) bool
        True if any bin's noisy count passed the threshold.
    """

    bins: NDArray[np.int64]
    found: NDArray[np.bool_]


def stability_modes(bins: BinCounts, epsilon: float, delta: float) -> Modes:
    """Find the fullest bin of each of n histograms, each (epsilon, delta)-DP by itself.

    Parameters
    ----------
    bins : BinCounts
        Counts of bins that are each a function of one record alone. Any int32 but
        :data:`~streaming_pca.kernels.coordinates.NOWHERE` may be a bin; the bins may be unknown.
    epsilon, delta : float
        Privacy of one histogram.

    Raises
    ------
    ParameterError
        If a parameter is out of its range or ``bins`` is not a :class:`BinCounts`.

    Notes
    -----
    Released: for each histogram the bin with the largest noisy count of those
    that reach :func:`~streaming_pca.privacy.mechanisms.histogram.stability_threshold`,
    a post-processing of ``stability_histogram``, whose proof holds for each.
    Adjacency: replace-one; a record is in one bin of each of the n histograms, so
    together they cost (n epsilon, n delta) by basic composition.
    """
    _check(bins)
    threshold = stability_threshold(epsilon, delta)
    noisy = laplace_on_vector(bins.counts, laplace_scale(2, epsilon))
    return _fullest(bins, noisy, threshold)


def gaussian_modes_threshold(n: int, rho: float, delta: float) -> int:
    """Return the smallest noisy count that :func:`gaussian_modes` shows.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.

    Notes
    -----
    The least integer t with n P(A >= t) <= delta, A the answer to a count of 1: 1 + s Z
    rounded to a multiple of g = 2**e. A >= t needs 1 + s Z >= t - g/2: so
    t >= 1 + g/2 - s Phi^-1(delta/n) is enough.
    """
    require_open_unit("delta", delta)
    scale = _scale(n, rho)
    tail = math.log(delta) - math.log(n)
    # 1e-9 covers the roundings of the inverse and of the decimal that prints delta.
    z = -float(ndtri_exp(tail - 1e-9)) * (1 + 1e-9)
    if not scale * z < 2**51 or scale > 2**51 or log_ndtr(-z) > tail:
        raise ParameterError(f"rho = {rho!r} is too small for counts to be shown")
    return max(math.ceil(1 + 2.0 ** (grid_exponent(scale) - 1) + scale * z), 2)


def gaussian_modes(bins: BinCounts, rho: float, delta: float) -> Modes:
    """Find the fullest bin of each of n histograms, together rho-zCDP but for delta.

    Parameters
    ----------
    bins : BinCounts
        As for :func:`stability_modes`.
    rho, delta : float
        Privacy of all histograms together.

    Raises
    ------
    ParameterError
        If a parameter is out of its range or ``bins`` is not a :class:`BinCounts`.

    Notes
    -----
    Released: for each histogram the bin with the largest noisy count of those
    that reach t = :func:`gaussian_modes_threshold`; noise is drawn for bins that hold
    a record, a Gaussian of variance s^2 = n/rho each, rounded. Adjacency:
    replace-one, under which in each histogram one count falls by one and
    another rises by one.

    On bins that hold records of both neighbours the noisy counts are a Gaussian mechanism
    whose inputs differ by at most sqrt(2n) in L2: (2n)/(2 s^2) = rho-zCDP. At most n bins hold
    a record of one neighbour alone, one record each; any of them is shown with
    probability at most n P(A >= t) <= delta. So if rho-zCDP gives (epsilon, delta'), this is
    (epsilon, delta' + (1 + e^epsilon) delta)-DP.

    Proof: docs/explanation/proofs/histograms.md.

    Source: the stability histogram [BunNissimStemmer2019] with Gaussian noise.
    """
    _check(bins)
    threshold = gaussian_modes_threshold(bins.histograms, rho, delta)
    noisy = gaussian_on_vector(bins.counts, _scale(bins.histograms, rho))
    return _fullest(bins, noisy, threshold)


def _scale(n: int, rho: float) -> float:
    require_positive("rho", rho)
    if n < 1:
        raise ParameterError("bins must name at least one histogram")
    return math.nextafter(math.sqrt(n / rho) * (1 + 1e-15), math.inf)


def _fullest(counted: BinCounts, noisy: NDArray[np.int64], threshold: int) -> Modes:
    n = counted.histograms
    bins, found = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    shown = noisy >= threshold
    owners, keys, noisy = counted.owners[shown], counted.keys[shown], noisy[shown]
    # A later entry of a histogram overwrites: the fullest bin comes last, of equal ones the lowest.
    order = np.lexsort((-keys, noisy, owners))
    bins[owners[order]] = keys[order]
    found[owners] = True
    return Modes(bins, found)


def _check(bins: BinCounts) -> None:
    if not isinstance(bins, BinCounts):
        raise ParameterError(f"bins must be counted, as BinCounts, not {type(bins).__name__}")
