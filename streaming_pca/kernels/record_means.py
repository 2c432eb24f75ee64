"""Compiled kernels for means: of a record's rows, and of locally private reports.

As in :mod:`~streaming_pca.kernels.clipping`, bounds are checked on rounded integers. A block of 2**13
records of norm 2**40 adds up exactly in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.rounding import clip_and_round, sum_of_squares

__all__ = ["MEAN_RADIUS", "add_reports", "quantise_record_means", "record_mean_norms"]


MEAN_RADIUS = 2**40
"""Largest norm, in lattice units, of a quantised mean."""

_MEAN_RADIUS = float(MEAN_RADIUS)


@njit(cache=True, nogil=True)
def _average(rows: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """Compute the mean (1, d) of rows (r, d), dividing first against overflow."""
    r = float(rows.shape[0])
    out[:, :] = 0.0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            out[0, j] += rows[i, j] / r


@njit(cache=True, nogil=True)
def record_mean_norms(rows: NDArray[np.float64], starts: NDArray[np.int64], out: NDArray[np.float64]) -> None:
    """Compute the norm of each record's mean row; 0 for null records, inf on overflow.

    Parameters
    ----------
    rows : (n, d) float64, finite
    starts : (m + 1,) int64
    out : (m,) float64
    """
    mean = np.empty((1, rows.shape[1]))
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        out[i] = 0.0
        if a < b:
            _average(rows[a:b], mean)
            out[i] = math.sqrt(sum_of_squares(mean))


@njit(cache=True, nogil=True)
def quantise_record_means(
    rows: NDArray[np.float64], starts: NDArray[np.int64], per_unit: float, out: NDArray[np.float64]
) -> None:
    """Clip the mean of each record's rows to MEAN_RADIUS lattice units and round it.

    Parameters
    ----------
    rows : (n, d) float64, finite
    starts : (m + 1,) int64
    per_unit : float
        Lattice units per unit of the rows.
    out : (m, d) float64
        Integers, each row of norm at most MEAN_RADIUS; 0 for null records.
    """
    mean = np.empty((1, rows.shape[1]))
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        out[i, :] = 0.0
        if a < b:
            _average(rows[a:b], mean)
            clip_and_round(mean, per_unit, _MEAN_RADIUS, out[i : i + 1])


_PIECE = 4096
"""Entries that are summed at once: those of the total stay in a core's cache."""


@njit(cache=True, nogil=True)
def add_reports(rows: NDArray[Any], limit: float, total: NDArray[np.float64]) -> int:
    """Add rows whose entries are within the limit to the total; return their number.

    Parameters
    ----------
    rows : (m, n) float32 or float64
    limit : float
        A row with an entry of a larger magnitude, or a NaN, is left out.
    total : (n,) float64
        Updated in place; any division into calls gives the same bits.
    """
    m, n = rows.shape
    counted = np.empty(m, dtype=np.bool_)
    for i in range(m):
        within = 0
        for j in range(n):
            within += abs(rows[i, j]) <= limit
        counted[i] = within == n
    for first in range(0, n, _PIECE):
        last = min(first + _PIECE, n)
        for i in range(m):
            if counted[i]:
                for j in range(first, last):
                    total[j] += rows[i, j]
    return int(counted.sum())
