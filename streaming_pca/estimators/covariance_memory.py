"""What the covariance route keeps between batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["MAX_SHAPE_DIM", "SLOTS", "CovarianceMemory"]

Matrix = NDArray[np.float64]

MAX_SHAPE_DIM = 512
"""Above it the slots' d x d sums cost more (time, state) than they can tell."""

SLOTS = 3


@dataclass(frozen=True)
class CovarianceMemory:
    """Outputs of mechanisms, post-processed.

    Attributes
    ----------
    moment : (d', d') float64
        Weighted mean of the batches' noisy second moments.
    noise : float
        Variance of the noise on its diagonal; off it half of that.
    weight : float
        Records behind it.
    shape : (3, d', d') float64
        Mean of the slots' noisy sums, in units of their clip radius.
    shape_noise : float
        Variance of the noise off their diagonals.
    shape_weight : float
        Their precision: squares of the numbers of records behind them.
    radius : float
        Mean clip radius behind ``moment``.
    kept : float
        Share of the records' total size that those clips left.
    """

    moment: Matrix
    noise: float
    weight: float
    shape: Matrix
    shape_noise: float
    shape_weight: float
    radius: float
    kept: float

    @classmethod
    def nothing(cls, dim: int) -> CovarianceMemory:
        """Before any record; ``dim`` is d'."""
        slots = dim if dim <= MAX_SHAPE_DIM else 0
        return cls(np.zeros((dim, dim)), 0.0, 0.0, np.zeros((SLOTS, slots, slots)), 0.0, 0.0, 0.0, 1.0)
