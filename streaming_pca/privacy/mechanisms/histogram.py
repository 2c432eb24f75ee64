"""Noisy histograms over unknown keys, and the fullest bins of many over the same records."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_open_unit, require_positive
from streaming_pca.privacy.mechanisms.gaussian import gaussian_on_vector
from streaming_pca.privacy.mechanisms.pure import laplace_on_vector, laplace_scale
from streaming_pca.privacy.noise import grid_exponent

if TYPE_CHECKING:
    from streaming_pca.kernels.coordinates import BinCounts

Key = TypeVar("Key", int, str, bytes, tuple[int, ...])


def stability_threshold(epsilon: float, delta: float) -> int:
    """Return the smallest noisy count that :func:`stability_histogram` shows.

    The least integer t >= 2 such that a bin of one record is shown with probability P(1 + N >= t) = q^(t -
    1)/(1 + q) at most min(delta, 1 - q), q = e^(-1/scale) and scale = 2/epsilon: the exact tail of the
    discrete Laplace distribution P(N = j) = q^|j| (1 - q)/(1 + q).
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

    Returns
    -------
    dict of key to noisy count, in the order of the keys
        Only those of at least :func:`stability_threshold`.

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

    Proof: docs/explanation/proofs/noise.md.

    Source: [KorolovaEtAl2009]; [BunNissimStemmer2019, Section 3] (there for add/remove and
    with continuous noise).
    """
    threshold = stability_threshold(epsilon, delta)
    counts = Counter(key for key in keys if key is not None)
    distinct = sorted(counts)
    exact = np.array([counts[key] for key in distinct], dtype=np.int64)
    noisy = laplace_on_vector(exact, laplace_scale(2, epsilon))
    return {key: int(n) for key, n in zip(distinct, noisy, strict=True) if n >= threshold}


@dataclass(frozen=True)
class Modes:
    """Fullest bin of each histogram."""

    bins: NDArray[np.int64]
    """0 if none was found, (n,)."""
    found: NDArray[np.bool_]
    """True if any bin's noisy count passed the threshold, (n,)."""


def gaussian_modes_threshold(n: int, rho: float, delta: float) -> int:
    """Return the smallest noisy count that :func:`gaussian_modes` shows.

    The least integer t with n P(A >= t) <= delta, A the answer to a count of 1: 1 + s Z rounded to a multiple
    of g = 2**e. A >= t needs 1 + s Z >= t - g/2: so t >= 1 + g/2 - s Phi^-1(delta/n) is enough.
    """
    # Imported here: producers of reports need no scipy for it.
    from scipy.special import log_ndtr, ndtri_exp

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
        Counts of bins that are each a function of one record alone. Any int32 but
        :data:`~streaming_pca.kernels.coordinates.NOWHERE` may be a bin; the bins may be unknown.
    rho, delta : float
        Privacy of all histograms together.

    Notes
    -----
    Released: for each histogram the bin with the largest noisy count of those
    that reach t = :func:`gaussian_modes_threshold`; noise is drawn for bins that hold
    a record, a Gaussian of variance s^2 = n/rho each, rounded. Adjacency:
    replace-one, under which in each histogram one count falls by one and
    another rises by one.

    On bins that hold records of both neighbours the noisy counts are a Gaussian mechanism whose inputs differ
    by at most sqrt(2n) in L2: (2n)/(2 s^2) = rho-zCDP. At most n bins hold a record of one neighbour alone,
    one record each; any of them is shown with probability at most n P(A >= t) <= delta. So if rho-zCDP gives
    (epsilon, delta'), this is (epsilon, delta' + (1 + e^epsilon) delta)-DP.

    Proof: docs/explanation/proofs/noise.md.

    Source: the stability histogram [BunNissimStemmer2019] with Gaussian noise.
    """
    require_counts(bins)
    threshold = gaussian_modes_threshold(bins.histograms, rho, delta)
    noisy = gaussian_on_vector(bins.counts, _scale(bins.histograms, rho))
    return fullest(bins, noisy, threshold)


def _scale(n: int, rho: float) -> float:
    require_positive("rho", rho)
    if n < 1:
        raise ParameterError("bins must name at least one histogram")
    return math.nextafter(math.sqrt(n / rho) * (1 + 1e-15), math.inf)


def fullest(counted: BinCounts, noisy: NDArray[np.int64], threshold: int) -> Modes:
    """Return the fullest bins by noisy counts that reach the threshold: post-processing."""
    n = counted.histograms
    bins, found = np.zeros(n, dtype=np.int64), np.zeros(n, dtype=bool)
    shown = noisy >= threshold
    owners, keys, noisy = counted.owners[shown], counted.keys[shown], noisy[shown]
    # A later entry of a histogram overwrites: the fullest bin comes last, of equal ones the lowest.
    order = np.lexsort((-keys, noisy, owners))
    bins[owners[order]] = keys[order]
    found[owners] = True
    return Modes(bins, found)


def require_counts(bins: BinCounts) -> None:
    """Raise ParameterError unless the bins are counted."""
    # Imported here: it is compiled, and a producer of reports does not need the compiler.
    from streaming_pca.kernels.coordinates import BinCounts

    if not isinstance(bins, BinCounts):
        raise ParameterError(f"bins must be counted, as BinCounts, not {type(bins).__name__}")
