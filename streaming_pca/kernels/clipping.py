"""Compiled kernels that clip records and round them onto the lattice.

A contribution depends on its record and on public numbers alone, bit for bit, and its bound is
checked on integers (:mod:`~streaming_pca.kernels.rounding`). A count of clipped records adds
0 or 1 per record, so its sensitivity is 1; it is as secret as the sum.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.rounding import clip_and_round


@njit(cache=True, nogil=True)
def quantise_records(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
    radius: float,
    out: NDArray[np.float64],
) -> int:
    """Clip records in Frobenius norm to ``radius`` lattice units and round them.

    Parameters
    ----------
    rows : (n, d) float64
        Rows of all records; record i is ``rows[starts[i]:starts[i + 1]]``.
    starts : (m + 1,) int64
    per_unit : float
        Lattice units per unit of the data; inf normalises every record to ``radius``.
    out : (n, d) float64
        Integer values, |out of record i|_F <= ``radius``. So a factor's matrix out^T out is
        positive semidefinite with trace at most its square. Equal entries round equally:
        a symmetric matrix stays one.

    Returns
    -------
    int
        Records with a norm above the radius.
    """
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a < b and clip_and_round(rows[a:b], per_unit, radius, out[a:b]):
            clipped += 1
    return clipped


@njit(cache=True, nogil=True)
def record_squared_norms(
    rows: NDArray[np.float64], starts: NDArray[np.int64], out: NDArray[np.float64]
) -> None:
    """Write |F|_F**2, the trace of F^T F, of each record; 0 for null records, never NaN."""
    for i in range(starts.shape[0] - 1):
        total = 0.0
        for j in range(starts[i], starts[i + 1]):
            for c in range(rows.shape[1]):
                total += rows[j, c] * rows[j, c]
        out[i] = total
