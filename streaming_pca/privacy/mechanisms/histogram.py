"""Noisy histograms over unknown keys, and over fixed public bins."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_count, require_open_unit, require_positive
from streaming_pca.privacy.mechanisms.gaussian import gaussian_on_vector, require_integers
from streaming_pca.privacy.mechanisms.laplace import laplace_on_vector, laplace_scale

Key = TypeVar("Key", int, str, bytes, tuple[int, ...])


def stability_threshold(epsilon: float, delta: float) -> int:
    """Return the smallest noisy count that :func:`stability_histogram` shows.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.

    Notes
    -----
    The least integer t >= 2 such that a bin of one record is shown with
    probability P(1 + N >= t) = q^(t - 1)/(1 + q) at most min(delta, 1 - q),
    q = e^(-1/scale) and scale = 2/epsilon: the exact tail of the discrete
    Laplace distribution P(N = j) = q^|j| (1 - q)/(1 + q).
    """
    require_open_unit("delta", delta)
    scale = laplace_scale(2, epsilon)
    q = math.exp(-1 / scale)
    # In logs; 1e-12 covers their roundings and those of the decimal that prints delta.
    target = min(math.log(delta), math.log(-math.expm1(-1 / scale)))
    needed = scale * (-target * (1 + 1e-12) + 1e-12 - math.log1p(q))
    if needed > 2.0**52:
        raise ParameterError(f"epsilon = {epsilon!r} is too small for counts to be shown")
    return max(1 + math.ceil(needed), 2)


def stability_histogram(keys: Sequence[Key | None], epsilon: float, delta: float) -> dict[Key, int]:
    """Count, with noise, the keys that many records share; the keys may be unknown.

    Parameters
    ----------
    keys : sequence of m int, str, bytes or tuples of int, all of one type; or None
        One a record, a function of that record alone; None for a null record.
    epsilon, delta : float

    Returns
    -------
    dict of key to noisy count, in the order of the keys
        Only those of at least :func:`stability_threshold`.

    Raises
    ------
    ParameterError
        If a parameter is out of its range.

    Notes
    -----
    Released: for each key of at least one record its count plus discrete Laplace
    noise of scale s = 2/epsilon, if that reaches the threshold t; sorted, so the
    order reveals nothing beyond the set. Adjacency: replace-one, under
    which one bin loses a record and another gains one (or only one of the two happens,
    for a null record). Bins with a record on both sides cost e^(1/s) each, thresholding
    being post-processing. A bin with one record on one side and none on the other is shown
    with probability p = P(1 + N >= t) <= min(delta, 1 - e^(-1/s)) on the one and never on
    the other. So the release is (2/s, p)-DP, hence (epsilon, delta)-DP: replace-one costs
    two bins in epsilon, but one in delta.

    Proof: docs/explanation/proofs/histograms.md.

    Source: [KorolovaEtAl2009]; [BunNissimStemmer2019, Section 3] (there for add/remove and
    with continuous noise).
    """
    threshold = stability_threshold(epsilon, delta)
    counts = Counter(key for key in keys if key is not None)
    found = sorted(counts)
    exact = np.array([counts[key] for key in found], dtype=np.int64)
    noisy = laplace_on_vector(exact, laplace_scale(2, epsilon))
    return {key: int(n) for key, n in zip(found, noisy, strict=True) if n >= threshold}


def gaussian_histogram(bins: NDArray[np.int64], n_bins: int, rho: float) -> NDArray[np.int64]:
    """Count fixed public bins with Gaussian noise.

    Parameters
    ----------
    bins : (m,) int64
        Each record's bin, a function of that record alone. Anything outside
        0 .. n_bins - 1 counts nowhere, as a null record does.
    n_bins : int
        Public.
    rho : float
        Privacy of the whole histogram, in zCDP.

    Returns
    -------
    (n_bins,) int64
        May be negative.

    Raises
    ------
    ParameterError
        If a parameter is out of its range or ``bins`` is not a vector of int64.

    Notes
    -----
    Released: all counts plus independent Gaussians, rounded. Adjacency:
    replace-one, under which one count falls by one and another rises by one: L2
    sensitivity sqrt(2), so sigma = sqrt(2)/sqrt(2 rho) = 1/sqrt(rho) is
    rho-zCDP, exactly, at any scale and for any number of bins.

    Source: [BunSteinke2016, Proposition 1.6].
    """
    require_positive("rho", rho)
    return gaussian_on_vector(_counts(bins, n_bins), _root_inverse_up(rho))


def laplace_histogram(bins: NDArray[np.int64], n_bins: int, epsilon: float) -> NDArray[np.int64]:
    """Count fixed public bins with discrete Laplace noise: pure privacy.

    Parameters
    ----------
    bins : (m,) int64
        As for :func:`gaussian_histogram`.
    n_bins : int
        Public.
    epsilon : float

    Returns
    -------
    (n_bins,) int64
        May be negative.

    Raises
    ------
    ParameterError
        If a parameter is out of its range or ``bins`` is not a vector of int64.

    Notes
    -----
    Released: all counts plus independent discrete Laplace noise of scale
    2/epsilon. Adjacency: replace-one, under which one count falls by one and
    another rises by one: L1 sensitivity 2, so it is epsilon-DP
    (:func:`~streaming_pca.privacy.mechanisms.laplace.laplace_on_vector`).
    """
    scale = laplace_scale(2, epsilon)
    return laplace_on_vector(_counts(bins, n_bins), scale)


def _counts(bins: NDArray[np.int64], n_bins: int) -> NDArray[np.int64]:
    require_integers("bins", bins)
    if bins.ndim != 1:
        raise ParameterError(f"bins must be one number per record, not of shape {bins.shape}")
    require_count("n_bins", n_bins)
    inside = bins[(bins >= 0) & (bins < n_bins)]
    return np.bincount(inside, minlength=n_bins).astype(np.int64)


def gaussian_histogram_argmax(bins: NDArray[np.int64], n_bins: int, rho: float) -> int:
    """Return the fullest of fixed public bins, the first of equal ones.

    A post-processing of :func:`gaussian_histogram`, at its cost.
    """
    return int(np.argmax(gaussian_histogram(bins, n_bins, rho)))


def _root_inverse_up(rho: float) -> float:
    """Return a float sigma with 1/sigma^2 <= rho, as float and as decimal."""
    exact = min(Fraction(repr(float(rho))), Fraction(float(rho)))
    sigma = 1 / math.sqrt(rho)
    while Fraction(sigma) ** 2 * exact < 1:
        sigma = math.nextafter(sigma, math.inf)
    return sigma
