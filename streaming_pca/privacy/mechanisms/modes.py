"""Fullest bins of many histograms over the same records."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtri_exp

from streaming_pca.kernels import njit
from streaming_pca.privacy.errors import ParameterError, require_open_unit, require_positive
from streaming_pca.privacy.mechanisms.gaussian import gaussian_on_vector
from streaming_pca.privacy.mechanisms.histogram import stability_threshold
from streaming_pca.privacy.mechanisms.laplace import laplace_on_vector, laplace_scale
from streaming_pca.privacy.noise import grid_exponent

__all__ = ["NOWHERE", "Modes", "count_bins", "gaussian_modes", "gaussian_modes_threshold", "stability_modes"]

NOWHERE = -(2**31)
"""Bin that is never counted: of null records, of NaN and of numbers that are too large."""

_DENSE = 4096
"""Widest range of bins that is counted in a table; a wider one is sorted."""

_TABLES = 4
"""Tables filled in turn: an increment waits for the last one at the same place."""


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


def stability_modes(bins: NDArray[np.int32], epsilon: float, delta: float) -> Modes:
    """Find the fullest bin of each of n histograms, each (epsilon, delta)-DP by itself.

    Parameters
    ----------
    bins : (n, m) int32
        By histogram, each record's bin: a function of that record alone;
        :data:`NOWHERE` for a record that is not counted. Any other int32 is a bin; the bins
        may be unknown.
    epsilon, delta : float
        Of one histogram.

    Raises
    ------
    ParameterError
        If a parameter is out of its range or ``bins`` is no matrix of int32.

    Notes
    -----
    Released: for each histogram the bin with the largest noisy count of those
    that reach :func:`~streaming_pca.privacy.mechanisms.histogram.stability_threshold`,
    a post-processing of ``stability_histogram``, whose proof holds for each.
    Adjacency: replace-one; a record is in one bin of each of the n histograms, so
    together they cost (n epsilon, n delta) by basic composition.
    """
    threshold = stability_threshold(epsilon, delta)
    owners, keys, counts = _present(bins)
    noisy = laplace_on_vector(counts, laplace_scale(2, epsilon))
    return _fullest(len(bins), owners, keys, noisy, threshold)


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


def gaussian_modes(bins: NDArray[np.int32], rho: float, delta: float) -> Modes:
    """Find the fullest bin of each of n histograms, together rho-zCDP but for delta.

    Parameters
    ----------
    bins : (n, m) int32
        As for :func:`stability_modes`.
    rho, delta : float
        Of all histograms together.

    Raises
    ------
    ParameterError
        If a parameter is out of its range or ``bins`` is no matrix of int32.

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
    probability n P(A >= t) <= delta at most. So if rho-zCDP gives (epsilon, delta'), this is
    (epsilon, delta' + (1 + e^epsilon) delta)-DP.

    Proof: docs/explanation/proofs/histograms.md.

    Source: the stability histogram [BunNissimStemmer2019] with Gaussian noise.
    """
    threshold = gaussian_modes_threshold(len(bins), rho, delta)
    owners, keys, counts = _present(bins)
    noisy = gaussian_on_vector(counts, _scale(len(bins), rho))
    return _fullest(len(bins), owners, keys, noisy, threshold)


def _scale(n: int, rho: float) -> float:
    require_positive("rho", rho)
    if n < 1:
        raise ParameterError("bins must name at least one histogram")
    return math.nextafter(math.sqrt(n / rho) * (1 + 1e-15), math.inf)


def _fullest(
    n: int, owners: NDArray[np.int64], keys: NDArray[np.int64], noisy: NDArray[np.int64], threshold: int
) -> Modes:
    bins, found = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    shown = noisy >= threshold
    owners, keys, noisy = owners[shown], keys[shown], noisy[shown]
    # A later entry of a histogram overwrites: the fullest bin comes last, of equal ones the lowest.
    order = np.lexsort((-keys, noisy, owners))
    bins[owners[order]] = keys[order]
    found[owners] = True
    return Modes(bins, found)


def _present(bins: NDArray[np.int32]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Check the bins and count them by :func:`count_bins`."""
    if not isinstance(bins, np.ndarray) or bins.dtype != np.int32 or bins.ndim != 2:
        raise ParameterError("bins must be a matrix of int32, a row a histogram")
    return count_bins(np.ascontiguousarray(bins))


@njit(cache=True, nogil=True)
def count_bins(
    bins: NDArray[np.int32],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return histogram, bin and count of every bin that holds a record, sorted; bins are (n, m)."""
    n, m = bins.shape
    size = 16 * n
    owners, keys, counts = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    held = 0
    # NOWHERE is counted in the last place, which is not read.
    dense = np.zeros((_TABLES, _DENSE + 1), np.int32)
    for i in range(n):
        low: Any = 0
        high: Any = 0
        any_at_all = False
        for j in range(m):
            b = np.int64(bins[i, j])
            if b != NOWHERE:
                if not any_at_all:
                    low, high, any_at_all = b, b, True
                low, high = min(low, b), max(high, b)
        if not any_at_all:
            continue
        if high - low < _DENSE:
            dense[:, : high - low + 1] = 0
            whole = m - m % _TABLES
            for j in range(0, whole, _TABLES):
                for table in range(_TABLES):
                    b = np.int64(bins[i, j + table])
                    dense[table, b - low if b != NOWHERE else _DENSE] += 1
            for j in range(whole, m):
                b = np.int64(bins[i, j])
                dense[0, b - low if b != NOWHERE else _DENSE] += 1
            counts_of = dense[:, : high - low + 1].sum(axis=0)
            found = np.flatnonzero(counts_of)
            of_found = counts_of[found].astype(np.int64)
            found = found + low
        else:
            ordered = np.sort(bins[i])
            found = np.empty(m, np.int64)
            of_found = np.zeros(m, np.int64)
            last = -1
            for j in range(m):
                b = np.int64(ordered[j])
                if b == NOWHERE:
                    continue
                if last < 0 or found[last] != b:
                    last += 1
                    found[last] = b
                of_found[last] += 1
            found, of_found = found[: last + 1], of_found[: last + 1]
        while held + len(found) > size:
            size *= 2
            owners, keys, counts = _grown(owners, size), _grown(keys, size), _grown(counts, size)
        owners[held : held + len(found)] = i
        keys[held : held + len(found)] = found
        counts[held : held + len(found)] = of_found
        held += len(found)
    return owners[:held].copy(), keys[:held].copy(), counts[:held].copy()


@njit(cache=True, nogil=True)
def _grown(values: NDArray[np.int64], size: int) -> NDArray[np.int64]:
    out = np.empty(size, np.int64)
    out[: len(values)] = values
    return out
