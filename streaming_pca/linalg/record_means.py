"""Compiled kernels for the mean of a record's rows: its norm, and its clipped image on the lattice.

As in :mod:`~streaming_pca.linalg.clipping`: record by record, in a fixed order,
without ``fastmath``, and the bound is checked on the rounded integers. A block
of 2**13 records of norm 2**40 adds up exactly in float64.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.rounding import clip_and_round, sum_of_squares

__all__ = ["MEAN_RADIUS", "quantise_record_means", "record_mean_norms"]

MEAN_RADIUS = 2**40
"""Largest norm, in lattice units, of a quantised mean: no other sum's lattice is finer."""

_MEAN_RADIUS = float(MEAN_RADIUS)


@njit(cache=True, nogil=True)
def _average(rows: NDArray[np.float64], out: NDArray[np.float64]) -> None:
    """out (1, d) = mean of rows (r, d), r >= 1; divided first, so that no sum overflows."""
    r = float(rows.shape[0])
    out[:, :] = 0.0
    for i in range(rows.shape[0]):
        for j in range(rows.shape[1]):
            out[0, j] += rows[i, j] / r


@njit(cache=True, nogil=True)
def record_mean_norms(rows: NDArray[np.float64], starts: NDArray[np.int64], out: NDArray[np.float64]) -> None:
    """Norm of the mean of each record's rows, perhaps inf; 0 for null records.

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
