"""Compiled kernels for means: of a record's rows, and of locally private reports.

As in :mod:`~streaming_pca.kernels.rounding`, bounds are checked on rounded integers. A block of 2**13
records of norm 2**40 adds up exactly in float64.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import BLOCK, Floats, Integers
from streaming_pca.kernels.reading import PublicMap, RecordsView, load_factor
from streaming_pca.kernels.rounding import are_finite, clip_and_round, erase, sum_of_squares

MEAN_RADIUS = 2**40
"""Largest norm, in lattice units, of a quantised mean."""

_MEAN_RADIUS = float(MEAN_RADIUS)


@njit(cache=True, nogil=True)
def _load_mean(read: RecordsView, i: int, how: PublicMap, room: Floats, mean: Floats) -> bool:
    """Write record i's mean row (1, d), dividing first against overflow; False for a null record."""
    r = load_factor(read, i, how, room)
    erase(mean)
    for a in range(r):
        for j in range(room.shape[1]):
            mean[0, j] += room[a, j] / float(r)
    return r > 0


@njit(cache=True, nogil=True)
def record_mean_norms(
    read: RecordsView, first: int, last: int, how: PublicMap, room: Floats, out: Floats
) -> None:
    """Compute the norm of each record's mean row; 0 for null records, inf on overflow.

    ``room`` (r, d) is scratch for the longest record.
    """
    mean = np.empty((1, room.shape[1]))
    for n in range(last - first):
        out[n] = 0.0
        if _load_mean(read, first + n, how, room, mean):
            square = sum_of_squares(mean)
            if square < np.inf or are_finite(mean):
                out[n] = math.sqrt(square)


@njit(cache=True, nogil=True)
def sum_record_means(
    read: RecordsView, first: int, last: int, how: PublicMap, per_unit: float, room: Floats, total: Integers
) -> None:
    """Add the means of records' rows, clipped and rounded, to ``total`` (d,).

    ``per_unit`` has the lattice units per unit of the mapped rows. A record adds integers of norm at most
    MEAN_RADIUS, a null one nothing.
    """
    d = room.shape[1]
    mean, z, exact = np.empty((1, d)), np.empty((1, d)), np.zeros(d)
    held = 0
    for i in range(first, last):
        if not _load_mean(read, i, how, room, mean):
            continue
        clip_and_round(mean, per_unit, _MEAN_RADIUS, z)
        for j in range(d):
            exact[j] += z[0, j]
        held += 1
        if held == BLOCK:
            for j in range(d):
                total[j] += np.int64(exact[j])
                exact[j] = 0.0
            held = 0
    for j in range(d):
        total[j] += np.int64(exact[j])


_PIECE = 4096  # entries summed in one pass: the total's entries stay in a core's cache


@njit(cache=True, nogil=True)
def add_reports(rows: NDArray[Any], limit: float, total: Floats) -> int:
    """Add rows (m, n) whose entries are within the limit to the total (n,); return their number.

    A row with an entry of a larger magnitude, or a NaN, is left out. Any division into calls gives the
    same bits.
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
