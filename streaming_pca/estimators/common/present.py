"""Shares of records that are not null, and that bounds change: noisy counts, for small shares of the budget.

Null records add 0 to a sum, so a moment over all records is scaled by their share. Estimators learn from
clamped values only, so too narrow bounds turn components unnoticed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch, whole_total
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Block
from streaming_pca.estimators.common.budget import Budget, noisy_count

Vector = NDArray[np.float64]

_PRECISION = 0.004
"""Target deviation of a batch's share: trades error of the variances against noise elsewhere."""
_LEAST, _MOST = 0.0005, 0.01  # limits of the count's share of a batch's budget
_SEEN = 2.0  # deviations below 1 that show null records: noise alone must not rescale a variance
_SMALLEST = 0.02  # least share used as a divisor where noise hides the number of records
_LEAST_SHARE = 1e-6  # so that a divisor is above 0
_TELLS = 0.06  # largest deviation of a batch's share that shows whether it has records
_PRECISE = 0.1  # deviation of a share, over the share, that hardly biases what is divided by it
_FEW = 3.0  # deviations below which a batch shows no records, and beyond which two shares differ


@dataclass(frozen=True)
class RunningShare:
    """Running share of the records of one sort, by noisy counts."""

    sort: ClassVar[str]

    value: float = 0.0
    """Noisy mean over the batches; it can be below 0 and above 1."""
    noise: float = 0.0
    """Variance of its noise."""
    weight: float = 0.0
    """Number of records averaged; 0 before any count."""

    def check(self) -> None:
        """Check that a batch could have left these values, or raise ValueError."""
        if not (math.isfinite(self.value) and 0 <= self.noise < math.inf and 0 <= self.weight < math.inf):
            raise ValueError(f"noise and weight of the state's {self.sort} records must not be below 0")

    def averaged(self, latest: float, deviation: float, count: float, kept: float) -> Self:
        """Average the noisy share of ``count`` more records in; earlier ones keep the part ``kept``."""
        weight = kept * self.weight + count
        gain = count / weight
        noise = (1 - gain) ** 2 * self.noise + (gain * deviation) ** 2
        return replace(self, value=self.value + gain * (latest - self.value), noise=noise, weight=weight)

    def joined(self, later: Self, kept: float) -> Self:
        """Average another running share in, of later records alone."""
        found = (later.value, math.sqrt(later.noise), later.weight, kept)
        return self.averaged(*found) if later.weight else self


@dataclass(frozen=True)
class PresentShare(RunningShare):
    """Running share of the records that are not null: 1 before any batch."""

    sort: ClassVar[str] = "present"

    value: float = 1.0
    latest: float = 1.0
    """Noisy share of the last batch; a mean of all batches where its own is too noisy."""

    def check(self) -> None:
        super().check()
        if not math.isfinite(self.latest):
            raise ValueError("the latest share of the state's present records must be finite")

    @property
    def share(self) -> float:
        """Share so far: 1 unless null records are seen beyond noise, which is its least value."""
        noise = math.sqrt(self.noise)
        return 1.0 if self.value >= 1 - _SEEN * noise else max(self.value, noise, _LEAST_SHARE)

    @property
    def latest_share(self) -> float:
        """Share to divide the last batch's own sums by; 1 where no null records are seen so far."""
        return min(max(self.latest, _LEAST_SHARE), 1.0) if self.share < 1 else 1.0

    def widened(self, errors: float | Vector, values: float | Vector) -> Vector:
        """Return the errors of values per present record, the share's own error included."""
        own: Vector = np.asarray(values, dtype=np.float64) * (math.sqrt(self.noise) / self.share)
        return np.asarray(np.sqrt(np.square(errors) + np.square(own)), dtype=np.float64)


def present_share(count: int, multiplier: float) -> float:
    """Return the share of a batch's budget that the count takes; ``multiplier`` is the batch's."""
    return min(max((multiplier / (_PRECISION * max(count, 1))) ** 2, _LEAST), _MOST)


def noisy_share(exact: int, count: int, part: float, budget: Budget) -> tuple[float, float]:
    """Measure a share of ``count`` records, and its standard deviation, by a noisy count."""
    noisy, deviation = noisy_count(exact, part, budget)
    return noisy / count, deviation / count


def learn_present(
    known: PresentShare, batch: Batch, pairs: bool, budget: Budget, kept: float
) -> PresentShare | None:
    """Add a batch's noisy count of records that are not null; return None if it shows none.

    The number is known for a publicly complete batch, which spends nothing. With ``pairs`` two
    records in a row are one, null if either is. Sums over no records would count as records of 0.

    Adjacency: replace-one. Released: the number of records (pairs) that are not null, with Gaussian
    noise. One record changes it by 1 at most, its sensitivity.
    """
    count = len(batch) // (2 if pairs else 1)
    if not count:
        return known
    latest, deviation = 1.0, 0.0
    if not batch.complete:
        present = int(batch.map(_WholePairs()).sum(whole_total)[0]) if pairs else count - batch.null_count()
        latest, deviation = noisy_share(present, count, present_share(count, budget.multiplier), budget)
    spread = math.hypot(deviation, math.sqrt(known.noise))
    is_apart = not known.weight or abs(latest - known.value) > _FEW * spread
    # Where the share is as before, no batch is left out for the noise of its count.
    if 0 < deviation <= _TELLS and latest <= _FEW * deviation and is_apart and latest < known.value:
        return None
    new = known.averaged(latest, deviation, count, kept)
    # A divisor turns noise of more than a tenth into bias; a mean over batches has less.
    here = latest if is_apart or deviation <= _PRECISE * latest else new.value
    return replace(new, latest=here if deviation <= _TELLS else max(here, _SMALLEST))


class _WholePairs:
    """1 for each pair of two vectors, else 0."""

    whole = True

    def __call__(self, block: Block) -> NDArray[np.float64]:
        lengths = np.diff(block.starts)
        whole: NDArray[np.bool_] = (lengths[0::2] == 1) & (lengths[1::2] == 1)
        return whole.astype(np.float64)


_CLAMPED_PRECISION = 0.01
"""Target deviation of a batch's share: trades detection of narrow bounds against noise elsewhere."""
_LEAST_CLAMPED, _MOST_CLAMPED = 0.0002, 0.01  # limits of the count's share of a batch's budget
_MANY_CLAMPED, _CLAMPED_SEEN = 0.02, 3.0
"""Share of the records, and deviations beyond it, above which many records are clamped."""


@dataclass(frozen=True)
class ClampedShare(RunningShare):
    """Running share of the records with a value beyond the bounds."""

    sort: ClassVar[str] = "clamped"

    @property
    def is_large(self) -> bool:
        """True where more than a fiftieth is clamped, beyond the noise."""
        return self.value - _CLAMPED_SEEN * math.sqrt(self.noise) > _MANY_CLAMPED


def learn_clamped(
    known: ClampedShare, batch: Batch, preprocessing: Preprocessing, budget: Budget, kept: float
) -> ClampedShare:
    """Add a batch's noisy count of records that bounds change; spend nothing without bounds.

    Adjacency: replace-one. Released: the number of records (pairs) with a value beyond the public bounds,
    with Gaussian noise. One record changes it by 1 at most, its sensitivity.
    """
    count = len(batch) // preprocessing.units
    if preprocessing.bounds is None or not count:
        return known
    exact = int(batch.map(partial(_outside, preprocessing)).sum(whole_total)[0])
    part = min(max((budget.multiplier / (_CLAMPED_PRECISION * count)) ** 2, _LEAST_CLAMPED), _MOST_CLAMPED)
    return known.averaged(*noisy_share(exact, count, part, budget), count, kept)


def _outside(preprocessing: Preprocessing, block: Block) -> NDArray[np.float64]:
    """Return 1 for each record (pair) with a value beyond the bounds, else 0."""
    assert preprocessing.bounds is not None
    lower, upper = (np.asarray(bound, dtype=np.float64) for bound in preprocessing.bounds)
    lower, upper = lower - 2.0**-24 * abs(lower), upper + 2.0**-24 * abs(upper)  # float32 rounds them
    block = block.packed()
    # NaN counts as within the bounds. A warning would reveal a value.
    with np.errstate(all="ignore"):
        outside = ((block.rows < lower) | (block.rows > upper)).any(axis=1)
    before = np.concatenate([[0], np.cumsum(outside)])
    found = before[block.starts[1:]] > before[block.starts[:-1]]
    return np.asarray(found.reshape(-1, preprocessing.units).any(axis=1), dtype=np.float64)
