"""Total variance: a noisy mean of the records' traces, from a small share of the budget."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.clipped_sums import record_norms
from streaming_pca.estimators.common.norm_distribution import (
    NormDistribution,
    norm_shares,
    private_norm_distribution,
)
from streaming_pca.kernels.block.norms import LAYER
from streaming_pca.privacy.mechanisms import gaussian_on_vector

TOTAL_LATTICE = LAYER
"""Largest term: fine enough that rounding costs next to nothing; 2**22 terms fit int64."""

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
_SHARE = 0.001
"""Share of the sum: trades the total's noise against the block's."""
_QUANTILE = 0.95
"""Quantile of the traces that becomes the clip radius: trades the total's noise against its clip."""
_COUNTS_PART = 0.25
"""Price of counting the traces, over the price of a first count."""


@dataclass(frozen=True)
class TotalVariance:
    """Running mean of the traces of (transformed) records.

    Attributes
    ----------
    noise : float
        Variance of the value's noise.
    weight : float
        Number of records averaged into the value.
    """

    value: float = 0.0
    noise: float = 0.0
    weight: float = 0.0

    def check(self) -> None:
        """Check that a batch could have left these values.

        Raises
        ------
        ValueError
        """
        if not (self.noise >= 0 and 0 <= self.weight < math.inf):
            raise ValueError("noise and weight of the state's total variance must not be below 0")

    @property
    def standard_error(self) -> float:
        """Standard error of the value, from the noise alone."""
        return math.sqrt(self.noise)


class _Terms:
    """Sum of floor(2**40 min(trace/R, 1)), (1,)."""

    def __init__(self, radius: float) -> None:
        self.radius = radius

    def __call__(self, traces: NDArray[np.float64]) -> NDArray[np.int64]:
        with np.errstate(all="ignore"):
            ratio = traces / self.radius
        # Comparisons with NaN are false, so a trace that overflowed counts as clipped.
        terms = np.where(ratio < 1, ratio, 1.0) * TOTAL_LATTICE
        return np.array([int(np.floor(terms).astype(np.int64).sum())], dtype=np.int64)


def learn_total(
    known: TotalVariance,
    batch: Batch,
    preprocessing: Preprocessing,
    budget: Budget,
    multiplier: float,
    norm_range: tuple[float, float],
    present: float = 1.0,
) -> tuple[TotalVariance, NormDistribution | None]:
    """Add a batch's noisy mean of min(trace, R), R its 0.95 quantile.

    It also returns the batch's distribution of traces, where one was counted. The trace of a symmetric
    matrix is not a variance: this kind spends nothing.

    Parameters
    ----------
    multiplier : float
        Noise multiplier of the whole batch.
    norm_range : (float, float)
        Public range of the traces.
    present : float
        Share of the records that are not null, an earlier answer: the mean is over these.

    Notes
    -----
    Adjacency: replace-one. Released: counts of traces, and the sum of floor(2**40 min(trace/R, 1))
    plus Gaussian noise, each for its share. Each term is an integer from 0 to
    2**40 and a function of its record alone, so the sum's sensitivity is 2**40.
    """
    if preprocessing.kind is not RecordKind.FACTOR:
        return known, None
    traces = record_norms(batch, preprocessing)
    count = len(traces)
    if not count:
        return known, None
    shares = norm_shares(count, multiplier, _COUNTS_PART)
    found = private_norm_distribution(traces, *norm_range, budget, shares)
    radius = found.quantile(_QUANTILE)
    exact = traces.sum(_Terms(radius))
    sigma = budget.sigma(budget.take(_SHARE), float(TOTAL_LATTICE))
    there = count * present
    scale = radius / TOTAL_LATTICE / there
    noisy = float(gaussian_on_vector(exact, sigma)[0]) * scale
    share = there / (known.weight + there)
    total = TotalVariance(
        known.value + share * (noisy - known.value),
        (1 - share) ** 2 * known.noise + (share * sigma * scale) ** 2,
        known.weight + there,
    )
    return total, found
