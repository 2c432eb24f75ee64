"""Share of the records that are not null: a noisy count, from a small share of the budget.

A null record is 0 in a sum: a moment over all records is smaller by this share.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import Batch
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.privacy.mechanisms import gaussian_on_vector

Vector = NDArray[np.float64]

__all__ = ["PresentShare", "learn_present", "present_share"]

_PRECISION = 0.004
"""Wanted deviation of a batch's share: error of the variances against noise of everything else."""
_LEAST, _MOST = 0.0005, 0.01
"""Limits of the count's share of a batch's budget."""
_SEEN = 2.0
"""Deviations below 1 from which on null records are seen: noise alone rescales no variance."""
_SMALLEST = 0.02
"""Least share that anything is divided by."""
_GRAIN = 2**10
"""Lattice units of one record: noise of less than a record is not rounded away."""


@dataclass(frozen=True)
class PresentShare:
    """Running share of the records that are not null.

    Attributes
    ----------
    value : float
        Noisy mean over the batches; it can be above 1.
    noise : float
        Variance of its noise.
    weight : float
        Records behind it; 0 before any batch, and then all records count as present.
    latest : float
        Noisy share of the last batch alone.
    """

    value: float = 1.0
    noise: float = 0.0
    weight: float = 0.0
    latest: float = 1.0

    def check(self) -> None:
        """Check that a batch could have left these values.

        Raises
        ------
        ValueError
        """
        told = math.isfinite(self.value) and math.isfinite(self.latest)
        if not (told and 0 <= self.noise < math.inf and 0 <= self.weight < math.inf):
            raise ValueError("noise and weight of the state's present records must not be below 0")

    @property
    def share(self) -> float:
        """Share so far: 1 unless null records are seen beyond noise, and at least 0.02."""
        if self.value >= 1 - _SEEN * math.sqrt(self.noise):
            return 1.0
        return max(self.value, _SMALLEST)

    @property
    def latest_share(self) -> float:
        """Share to divide the last batch's own sums by; 1 where no null records are seen so far."""
        return min(max(self.latest, _SMALLEST), 1.0) if self.share < 1 else 1.0

    def widened(self, errors: float | Vector, values: float | Vector) -> Vector:
        """Return the errors of values per present record, the share's own error included."""
        own: Vector = np.asarray(values, dtype=np.float64) * (math.sqrt(self.noise) / self.share)
        return np.asarray(np.sqrt(np.square(errors) + np.square(own)), dtype=np.float64)


def present_share(count: int, multiplier: float) -> float:
    """Return the share of a batch's budget that the count takes; ``multiplier`` is the batch's."""
    return min(max((multiplier / (_PRECISION * max(count, 1))) ** 2, _LEAST), _MOST)


def learn_present(
    known: PresentShare, batch: Batch, pairs: bool, budget: Budget, kept: float
) -> PresentShare:
    """Add a batch's noisy count of records that are not null.

    Of a batch that is publicly complete the number is known, and nothing is spent.

    Parameters
    ----------
    known : PresentShare
    batch : Batch
    pairs : bool
        Whether two records in a row are one, null if either is.
    budget : Budget
    kept : float
        Part of their weight that earlier batches keep.

    Notes
    -----
    Adjacency: replace-one. Released: the number of records (pairs) that are not null, with Gaussian
    noise. One record changes it by 1 at most, its sensitivity.
    """
    count = len(batch) // (2 if pairs else 1)
    if not count:
        return known
    weight = kept * known.weight + count
    gain = count / weight
    if batch.complete:
        return PresentShare(known.value + gain * (1 - known.value), (1 - gain) ** 2 * known.noise, weight)
    present = int(batch.map(_WholePairs()).sum(_Total())[0]) if pairs else count - batch.null_count()
    sigma = budget.sigma(budget.take(present_share(count, budget.multiplier)), float(_GRAIN))
    noisy = float(gaussian_on_vector(np.array([present * _GRAIN], dtype=np.int64), sigma)[0])
    latest = noisy / _GRAIN / count
    return PresentShare(
        known.value + gain * (latest - known.value),
        (1 - gain) ** 2 * known.noise + (gain * sigma / _GRAIN / count) ** 2,
        weight,
        latest,
    )


class _WholePairs:
    """1 for each pair of two vectors, else 0."""

    whole = True

    def __call__(self, block: ArrayBatch) -> NDArray[np.float64]:
        lengths = np.diff(block.starts)
        whole: NDArray[np.bool_] = (lengths[0::2] == 1) & (lengths[1::2] == 1)
        return whole.astype(np.float64)


class _Total:
    """Sum of whole numbers."""

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.int64]:
        return np.array([int(values.sum())], dtype=np.int64)
