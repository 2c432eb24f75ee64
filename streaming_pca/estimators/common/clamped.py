"""Share of the records that public bounds change: a noisy count, from a small share of the budget.

Estimators learn from clamped values only, so too narrow bounds turn components unnoticed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch, Total
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Block
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.present import RunningShare, noisy_share

_PRECISION = 0.01
"""Target deviation of a batch's share: trades detection of narrow bounds against noise elsewhere."""
_LEAST, _MOST = 0.0002, 0.01
"""Limits of the count's share of a batch's budget."""
_MANY, _SEEN = 0.02, 2.0
"""Share of the records, and deviations beyond it, above which many records are clamped."""


@dataclass(frozen=True)
class ClampedShare(RunningShare):
    """Running share of the records with a value beyond the bounds."""

    sort: ClassVar[str] = "clamped"

    @property
    def is_large(self) -> bool:
        """True where more than a fiftieth is clamped, beyond the noise."""
        return self.value - _SEEN * math.sqrt(self.noise) > _MANY


def learn_clamped(
    known: ClampedShare, batch: Batch, preprocessing: Preprocessing, budget: Budget, kept: float
) -> ClampedShare:
    """Add a batch's noisy count of records that bounds change; spend nothing without bounds.

    Notes
    -----
    Adjacency: replace-one. Released: the number of records (pairs) with a value beyond the public bounds,
    with Gaussian noise. One record changes it by 1 at most, its sensitivity.
    """
    count = len(batch) // preprocessing.units
    if preprocessing.bounds is None or not count:
        return known
    exact = int(batch.map(_Outside(preprocessing)).sum(Total())[0])
    part = min(max((budget.multiplier / (_PRECISION * count)) ** 2, _LEAST), _MOST)
    return known.averaged(*noisy_share(exact, count, part, budget), count, kept)


class _Outside:
    """1 for each record (pair) with a value beyond the bounds, else 0."""

    whole = False

    def __init__(self, preprocessing: Preprocessing) -> None:
        assert preprocessing.bounds is not None
        self.lower, self.upper = (np.asarray(bound, dtype=np.float64) for bound in preprocessing.bounds)
        self.units = preprocessing.units

    def __call__(self, block: Block) -> NDArray[np.float64]:
        block = block.packed()
        # NaN counts as within the bounds. A warning would reveal a value.
        with np.errstate(all="ignore"):
            outside = ((block.rows < self.lower) | (block.rows > self.upper)).any(axis=1)
        before = np.concatenate([[0], np.cumsum(outside)])
        found = before[block.starts[1:]] > before[block.starts[:-1]]
        return np.asarray(found.reshape(-1, self.units).any(axis=1), dtype=np.float64)
