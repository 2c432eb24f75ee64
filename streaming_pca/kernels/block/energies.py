"""Compiled kernel: squares of records along directions, in layers, as integers.

Each term is a function of its record alone, computed in a fixed order, and an integer from 0 to
`LAYER` under any rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit

__all__ = ["LAYER", "add_layers"]

LAYER = 2**40
"""Largest term: fine enough that rounding costs next to nothing; 2**22 terms fit int64."""

_LAYER = float(LAYER)


@njit(cache=True, nogil=True)
def add_layers(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    directions: NDArray[np.float64],
    caps: NDArray[np.float64],
    total: NDArray[np.int64],
) -> None:
    """Add floor(LAYER (min(y, c_l) - c_{l-1})+/(c_l - c_{l-1})) of every record.

    Parameters
    ----------
    rows : (n, d) float64, finite
    starts : (m + 1,) int64
    directions : (d, k) float64
        Orthonormal columns; y_i = sum over rows of (v_i . row)^2, and last the rest of the rows'
        squared norms.
    caps : (l, k + 1) float64
        Increasing down each column, above 0.
    total : (l, k + 1) int64
        Updated in place.
    """
    d, k = directions.shape
    energies, products = np.empty(k + 1), np.empty(k)
    for record in range(starts.shape[0] - 1):
        energies[:] = 0.0
        for row in range(starts[record], starts[record + 1]):
            products[:] = 0.0
            for j in range(d):
                x = rows[row, j]
                energies[k] += x * x
                # Each product has its own sum, so that vector instructions reorder nothing.
                for i in range(k):
                    products[i] += directions[j, i] * x
            for i in range(k):
                energies[i] += products[i] * products[i]
        for i in range(k):
            energies[k] -= energies[i]
        for i in range(k + 1):
            low = 0.0
            for layer in range(caps.shape[0]):
                term = (energies[i] - low) / (caps[layer, i] - low)
                low = caps[layer, i]
                # A NaN, of squares that overflowed, counts as clipped.
                if term <= 0.0:
                    break
                total[layer, i] += int(_LAYER * term) if term < 1.0 else LAYER
