"""Records as kernels read them: at checked places, and through a public map."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import Floats, Integers


class RecordsView(NamedTuple):
    """Checked records, made by :func:`records_view`."""

    rows: NDArray[np.floating]
    """(n, d), float32 or float64: aligned, in C order and not writable, so that payloads and arrays use the
    same compiled kernels."""
    begins: Integers
    starts: Integers
    """(m,) and (m + 1,) record i has starts[i + 1] - starts[i] rows, from rows[begins[i]] on."""
    longest: int
    """Rows of the longest record, or 1."""


def records_view(rows: NDArray[np.floating], begins: Integers, starts: Integers) -> RecordsView:
    """Check that records lie within ``rows`` (ValueError); copy rows only where layout requires it."""
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    longest = _longest_record(begins, starts, len(rows))
    if longest < 0:
        raise ValueError(f"records must lie within the {len(rows)} rows")
    view = np.require(rows, requirements=["C", "A"]).view()
    view.setflags(write=False)
    return RecordsView(view, begins, starts, longest)


@njit(cache=True, nogil=True)
def _longest_record(begins: Integers, starts: Integers, rows: int) -> int:
    """Return rows of the longest record, at least 1; -1 where a record exceeds ``rows``."""
    if starts.size != begins.size + 1:
        return -1
    longest = 1
    for i in range(begins.size):
        length = starts[i + 1] - starts[i]
        if length < 0 or begins[i] < 0 or begins[i] > rows - length:
            return -1
        longest = max(longest, length)
    return longest


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


@njit(cache=True, nogil=True)
def load_factor(read: RecordsView, i: int, how: PublicMap, room: Floats) -> int:
    """Copy record i's mapped rows (r, d) to ``room``; return r, 0 for a null record."""
    rows, begins, starts = read.rows, read.begins, read.starts
    a = begins[i]
    r: int = starts[i + 1] - starts[i]
    if how.pairs:
        if r != 1 or starts[i + 2] - starts[i + 1] != 1:
            return 0
        map_pair(rows[a], rows[begins[i + 1]], how, room[0])
    else:
        for j in range(r):
            map_row(rows[a + j], how, room[j])
    return r
