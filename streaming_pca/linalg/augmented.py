"""Moments of records with the constant 1 appended."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["augmented_mean"]


def augmented_mean(column: NDArray[np.float64]) -> tuple[NDArray[np.float64], float]:
    """The records' mean, from the constant's column of their second moment.

    Parameters
    ----------
    column : (d + 1,) float64
        Noisy E w x and, last, E w: what clipping left of the records, with weights w.

    Returns
    -------
    (d,) float64, and E w
        Dividing by it makes mean and covariance those of the weighted records.
        Zeros and 0 where it is below a half: noise. Better not to centre at all then.
    """
    kept = float(column[-1])
    return (column[:-1] / kept, kept) if kept >= 0.5 else (np.zeros(len(column) - 1), 0.0)
