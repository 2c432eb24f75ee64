"""The total variance: a noisy mean of the records' traces, from a share of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streaming_pca.estimators.contributions import record_sizes
from streaming_pca.estimators.sizes import private_sizes
from streaming_pca.linalg.lattice import RADIUS
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.privacy.calibration import lattice_sigma
from streaming_pca.privacy.mechanisms import gaussian_on_vector
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.records import Batch

__all__ = ["TOTAL_LATTICE", "TotalVariance", "learn_total", "total_records", "total_sigma"]

TOTAL_LATTICE = RADIUS**2
"""Largest term: fine enough for rounding to cost less than in any other sum; 2**22 terms fit int64."""

_SHARE = 0.01
_QUANTILE = 0.95


@dataclass(frozen=True)
class TotalVariance:
    """A running mean of the traces of (transformed) records, and what is known of it.

    Attributes
    ----------
    value : float
    noise : float
        Variance of its noise.
    weight : float
        Records behind it.
    """

    value: float = 0.0
    noise: float = 0.0
    weight: float = 0.0


def total_records(count: int, epsilon: float) -> int:
    """Records of a batch of ``count`` that are spent on it."""
    return int(min(max(_SHARE * count, 400 / epsilon), 0.1 * count))


def total_sigma(privacy: PrivacyParameters, multiplier: float | None = None) -> float:
    """Noise scale in lattice units: the least that the promise asks for, or by a larger multiplier."""
    return lattice_sigma(
        privacy.epsilon,
        privacy.delta,
        float(TOTAL_LATTICE),
        1.0,
        multiplier,
        contributions=privacy.contributions,
    )


def learn_total(
    known: TotalVariance,
    part: Batch,
    preprocessing: Preprocessing,
    privacy: PrivacyParameters,
    size_epsilon: float,
    sizes: tuple[float, float],
    multiplier: float | None = None,
) -> TotalVariance:
    """Add a part's noisy mean of min(size, R), R its 0.95 quantile.

    Notes
    -----
    Released: a histogram of half of the part, epsilon-DP, and the sum over the
    other half of floor(2**40 min(size/R, 1)) plus discrete Gaussian noise,
    (epsilon, delta)-DP. Adjacency: replace-one; each term is an integer from 0 to
    2**40 and a function of its record alone, so the sum's sensitivity is 2**40.
    The halves are disjoint.
    """
    unit = preprocessing.units
    half = len(part) // (2 * unit) * unit
    looked, summed = part.split([half, len(part) - half])
    count = len(summed) // unit
    if not half or not count:
        return known
    found = private_sizes(record_sizes(looked, preprocessing), *sizes, size_epsilon)
    radius = found.quantile(_QUANTILE)
    with np.errstate(over="ignore", invalid="ignore"):
        ratio = record_sizes(summed, preprocessing) / radius
    # Comparisons with NaN are false: what overflowed counts as clipped.
    terms = np.where(ratio < 1, ratio, 1.0) * TOTAL_LATTICE
    exact = np.array([int(np.floor(terms).astype(np.int64).sum())], dtype=np.int64)
    sigma = total_sigma(privacy, multiplier)
    scale = radius / TOTAL_LATTICE / count
    noisy = float(gaussian_on_vector(exact, sigma)[0]) * scale
    share = count / (known.weight + count)
    return TotalVariance(
        known.value + share * (noisy - known.value),
        (1 - share) ** 2 * known.noise + (share * sigma * scale) ** 2,
        known.weight + count,
    )


def standard_error(total: TotalVariance) -> float:
    """Of its value, from the noise."""
    return math.sqrt(total.noise)
