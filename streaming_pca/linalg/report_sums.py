"""Sums of packed reports, compiled, every entry summed in the order of the reports."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["add_reports"]

_PIECE = 4096
"""Entries that are summed at once: those of the total stay in a core's cache."""


@njit(cache=True, nogil=True)
def add_reports(rows: NDArray[Any], limit: float, total: NDArray[np.float64]) -> int:
    """Add the rows without an entry beyond the limit to the total; how many they are.

    Parameters
    ----------
    rows : (m, n) float32 or float64
    limit : float
        A row with an entry of a larger magnitude, or a NaN, is left out.
    total : (n,) float64
        Added to in place. Whatever the cut into calls, the bits are the same.
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
