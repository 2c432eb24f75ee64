"""The total variance: a noisy mean of the records' traces, from a share of its own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from streaming_pca.estimators.clipping import PartCosts, split_parts
from streaming_pca.estimators.contributions import record_sizes
from streaming_pca.estimators.sizes import private_sizes
from streaming_pca.linalg.lattice import RADIUS
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.privacy.mechanisms import gaussian_on_vector
from streaming_pca.records import Batch, RecordKind

__all__ = ["TOTAL_LATTICE", "TotalVariance", "learn_total", "take_total"]

TOTAL_LATTICE = RADIUS**2
"""Largest term: so fine that rounding costs next to nothing; 2**22 terms fit int64."""

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

    @property
    def standard_error(self) -> float:
        """Of the value, from the noise."""
        return math.sqrt(self.noise)


def take_total(
    known: TotalVariance,
    batch: Batch,
    preprocessing: Preprocessing,
    costs: PartCosts,
    sizes: tuple[float, float],
) -> tuple[TotalVariance, Batch]:
    """Spend a batch's first records on :func:`learn_total`; the rest is for other mechanisms.

    Symmetric matrices have no variance as their trace: then nothing is spent.
    """
    if preprocessing.kind is not RecordKind.FACTOR:
        return known, batch
    wanted = int(min(max(_SHARE * len(batch), 400 / costs.size_epsilon), 0.1 * len(batch)))
    part, rest = split_parts(batch, [wanted], preprocessing.granularity)
    return learn_total(known, part, preprocessing, costs, sizes), rest


def learn_total(
    known: TotalVariance,
    part: Batch,
    preprocessing: Preprocessing,
    costs: PartCosts,
    sizes: tuple[float, float],
) -> TotalVariance:
    """Add a part's noisy mean of min(size, R), R its 0.95 quantile.

    Parameters
    ----------
    known : TotalVariance
    part : Batch
    preprocessing : Preprocessing
    costs : PartCosts
    sizes : (float, float)
        Public: where sizes are looked for.

    Notes
    -----
    Released: a histogram of half of the part, epsilon-DP, and the sum over the
    other half of floor(2**40 min(size/R, 1)) plus Gaussian noise,
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
    found = private_sizes(record_sizes(looked, preprocessing), *sizes, costs.size_epsilon)
    radius = found.quantile(_QUANTILE)
    with np.errstate(all="ignore"):
        ratio = record_sizes(summed, preprocessing) / radius
    # Comparisons with NaN are false: what overflowed counts as clipped.
    terms = np.where(ratio < 1, ratio, 1.0) * TOTAL_LATTICE
    exact = np.array([int(np.floor(terms).astype(np.int64).sum())], dtype=np.int64)
    sigma = costs.sigma(float(TOTAL_LATTICE))
    scale = radius / TOTAL_LATTICE / count
    noisy = float(gaussian_on_vector(exact, sigma)[0]) * scale
    share = count / (known.weight + count)
    return TotalVariance(
        known.value + share * (noisy - known.value),
        (1 - share) ** 2 * known.noise + (share * sigma * scale) ** 2,
        known.weight + count,
    )
