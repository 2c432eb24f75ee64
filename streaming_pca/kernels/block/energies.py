"""Compiled kernel: squares of records along directions, in layers, as integers.

Each term is a function of its record alone, computed in a fixed order, and an integer from 0 to
`LAYER` under any rounding.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.bounds import Centre
from streaming_pca.kernels.block.chunks import Chunk, fill_chunk
from streaming_pca.kernels.public_map import PublicMap
from streaming_pca.kernels.records_view import RecordsView

LAYER = 2**40
"""Largest term: fine enough that rounding costs next to nothing; 2**22 terms fit int64."""

_LAYER = float(LAYER)


@njit(cache=True, nogil=True)
def add_layers(
    read: RecordsView,
    first: int,
    last: int,
    how: PublicMap,
    directions: NDArray[np.float64],
    no_centre: Centre,
    caps: NDArray[np.float64],
    dgemm: int,
    chunk: Chunk,
    total: NDArray[np.int64],
) -> None:
    """Add floor(LAYER (min(e, c_l) - c_{l-1})+/(c_l - c_{l-1})) of every record.

    Parameters
    ----------
    read, first, last, how, no_centre, dgemm, chunk
        As for :func:`~streaming_pca.kernels.block.sums.sum_products`.
    directions : (d, k) float64
        Orthonormal columns, on a grid of 2**-30; e_i = sum over rows of (v_i . row)^2, and last the rest
        of the rows' squared norms.
    caps : (l, k + 1) float64
        Increasing down each column, above 0.
    total : (l, k + 1) int64
        Updated in place.
    """
    k = directions.shape[1]
    energies = np.empty(k + 1)
    i = first
    while i < last:
        i, records = fill_chunk(read, i, last, how, directions, no_centre, 1.0, dgemm, chunk)
        for n in range(records):
            for c in range(k):
                energies[c] = 0.0
            for row in range(chunk.begins[n], chunk.begins[n + 1]):
                for c in range(k):
                    energies[c] += chunk.y[row, c] * chunk.y[row, c]
            energies[k] = chunk.terms[2, n]
            for c in range(k):
                energies[k] -= energies[c]
            for c in range(k + 1):
                energy, low = chunk.terms[4, n] * energies[c], 0.0
                for layer in range(caps.shape[0]):
                    term = (energy - low) / (caps[layer, c] - low)
                    low = caps[layer, c]
                    # A NaN, of squares that overflowed, counts as clipped.
                    if term <= 0.0:
                        break
                    total[layer, c] += int(_LAYER * term) if term < 1.0 else LAYER
