"""Public transformation of a row, applied while kernels read it."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit

Floats = NDArray[np.float64]


class PublicMap(NamedTuple):
    """Parameters of x -> (min(max(x, lower), upper) - shift) * factor, then pairs.

    Arrays have one entry a feature, or none for a step that is left out.
    """

    lower: Floats
    upper: Floats
    shift: Floats
    factor: Floats
    pairs: bool
    """Two neighbouring records x, y of one row each become (x - y)/sqrt(2); others are null."""

    @property
    def plain(self) -> bool:
        """Return whether features stay unchanged."""
        return not (self.lower.size or self.shift.size or self.factor.size or self.pairs)


_NOTHING = np.zeros(0)

NO_MAP = PublicMap(_NOTHING, _NOTHING, _NOTHING, _NOTHING, False)
"""Identity map."""


@njit(cache=True, nogil=True)
def map_row(row: NDArray[np.floating], how: PublicMap, out: Floats) -> None:
    """Apply bounds, shift and factor to one row (d,), in float64; NaN stays NaN."""
    lower, upper, shift, factor = how.lower, how.upper, how.shift, how.factor
    for j in range(row.shape[0]):
        v = np.float64(row[j])
        if lower.size > 0:
            if v < lower[j]:
                v = lower[j]
            if v > upper[j]:
                v = upper[j]
        if shift.size > 0:
            v -= shift[j]
        if factor.size > 0:
            v *= factor[j]
        out[j] = v


@njit(cache=True, nogil=True)
def map_pair(first: NDArray[np.floating], second: NDArray[np.floating], how: PublicMap, out: Floats) -> None:
    """Compute the scaled difference of a pair's mapped rows (d,)."""
    other = np.empty(out.shape[0])
    map_row(first, how, out)
    map_row(second, how, other)
    half = math.sqrt(0.5)
    for j in range(other.shape[0]):
        out[j] = (out[j] - other[j]) * half
