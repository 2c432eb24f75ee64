"""Norms of residuals A Q - C: a number a record, to choose a clip radius by."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.products import record_image

__all__ = ["residual_norms"]


@njit(cache=True, nogil=True)
def residual_norms(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    of_matrices: bool,
    basis: NDArray[np.float64],
    centre: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """|A_i Q - C|_F of every record, in a fixed order: each a function of its record alone.

    Not a bound: it chooses a radius, and the sums check their own. What
    overflows is inf or NaN. A null record has |C|_F.

    Parameters
    ----------
    rows : (n, d) float64
    starts : (m + 1,) int64
    of_matrices : bool
        Whether a record's rows are A itself, or F with A = F^T F.
    basis, centre : (d, k) float64, C order
    out : (m,) float64
    """
    d, k = basis.shape
    image = np.empty((d, k))
    for i in range(starts.shape[0] - 1):
        x = rows[starts[i] : starts[i + 1]]
        record_image(x, of_matrices, basis, image)
        total = 0.0
        for j in range(d):
            for c in range(k):
                difference = image[j, c] - centre[j, c]
                total += difference * difference
        out[i] = math.sqrt(total)
