"""Weights of batches by size, and of earlier batches against a new one."""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import NDArray

HalfLife = float | Literal["auto"] | None
"""Records after which a batch counts half; "auto" to estimate drift; None to forget nothing."""

_SIGNIFICANT = 5.0
"""Standard deviations above which a change counts as drift: trades missed drift against false alarms."""
_LEAST_KEPT = 1e-12  # least weight of earlier records, a later divisor


def kept_share(half_life: HalfLife, count: float) -> float:
    """Return the weight of earlier records after ``count`` more; 1 without a fixed half-life."""
    if half_life is None or half_life == "auto":
        return 1.0
    # Never 0, as variances are divided by it.
    return max(float(0.5 ** (count / half_life)), _LEAST_KEPT)


def process_noise(innovation: NDArray[np.float64], expected: float) -> float:
    """Estimate the variance of an entry's movement beyond noise.

    ``innovation`` holds n numbers, a new private estimate less the mean of the earlier ones; ``expected``
    is the variance of an entry from noise alone. The result is their mean square less ``expected``, but
    0 unless it exceeds that by 5 standard deviations, of sqrt(2/n) times ``expected`` each. A Kalman filter
    adds it to the variance of its state.
    """
    square = float(np.mean(innovation**2)) if innovation.size else 0.0
    if not square > expected * (1 + _SIGNIFICANT * math.sqrt(2 / max(innovation.size, 1))):
        return 0.0
    return square - expected


def batch_doubt(dim: int, count: float, multiplier: float) -> float:
    """Return the variance of an entry of a batch's moment, over the squared radius: noise and sampling.

    It depends on the batch's size alone: with each layer's noise, weights would change with the radius.
    Batches weigh by its inverse while their moments agree, as a mean of all records does, with less noise.
    Where they differ beyond noise, they weigh by their records.
    """
    return 2 * (multiplier / count) ** 2 + 1 / (dim * dim * count)
