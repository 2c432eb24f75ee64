"""Products of small matrices, compiled, every entry summed in a fixed order.

Each product depends on its record alone, bit for bit; a BLAS product of many records does not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.rounding import erase

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True)
def times(a: Floats, b: Floats, out: Floats) -> None:
    """Compute out = a b, each entry in the order of b's rows."""
    erase(out)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            v = a[i, j]
            for c in range(b.shape[1]):
                out[i, c] += v * b[j, c]


@njit(cache=True, nogil=True)
def transposed_times(a: Floats, b: Floats, out: Floats) -> None:
    """Compute out = a^T b, each entry in the order of the rows."""
    erase(out)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            v = a[i, j]
            for c in range(b.shape[1]):
                out[j, c] += v * b[i, c]


@njit(cache=True, nogil=True)
def record_product(x: Floats, of_matrices: bool, basis: Floats, product: Floats) -> None:
    """Compute A Q of one record in a fixed order; 0 for a null record.

    Parameters
    ----------
    x : (r, d) float64
        A itself, or F with A = F^T F; r may be 0.
    of_matrices : bool
        Whether x is A.
    basis, product : (d, k) float64, C order
        Overflow is inf or NaN.
    """
    if of_matrices:
        times(x, basis, product)
        return
    seen = np.empty((x.shape[0], basis.shape[1]))
    times(x, basis, seen)
    transposed_times(x, seen, product)
