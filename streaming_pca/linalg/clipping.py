"""Compiled kernels that clip records and round them onto the lattice.

Every kernel works record by record, in a fixed order, in float64 without
``fastmath``: what a record contributes depends on that record and on public
numbers alone, bit for bit, whatever block, thread or position it is in. The
only numbers that come out of BLAS are products of integers which float64 holds
exactly, so they have one value, whatever the shape, the threads, the processor.

The bound is *checked in integers* rather than argued in floats: a record is
scaled, rounded and its integer norm computed; where rounding carried it above
the radius it is scaled again, a little lower, and if even that failed it would
be dropped. No float input, however extreme (entries from 5e-324 to 1.8e308),
reaches a sum with a larger norm. :mod:`~streaming_pca.linalg.rounding` has the
analysis for what is rounded as it stands.

Counts of clipped records are a by-product: each record adds 0 or 1, a function
of that record alone, so a count has sensitivity 1. It is as secret as the sum.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.rounding import clip_and_round

__all__ = ["quantise_records", "record_squared_norms"]


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
    radius : float
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
    """Trace of each record's matrix F^T F, that is |F|_F**2; 0 for null records, never NaN."""
    for i in range(starts.shape[0] - 1):
        total = 0.0
        for j in range(starts[i], starts[i + 1]):
            for c in range(rows.shape[1]):
                total += rows[j, c] * rows[j, c]
        out[i] = total
