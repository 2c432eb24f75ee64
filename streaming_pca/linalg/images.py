"""Images A Q of single records, coordinate by coordinate: their spread, their bins, their clipped sums.

Every kernel works record by record, in a fixed order, in float64 without
``fastmath``: what a record contributes is a function of that record and of
public numbers, bit for bit, whatever block, thread or position it is in. The
bound is held in integers: a clamped coordinate is rounded to at most
``COORDINATE_RADIUS`` units, so that a record's d k integers have a known norm.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.products import record_image, transposed_times

__all__ = ["COORDINATE_RADIUS", "bin_coordinates", "images", "sum_clamped", "top_eigenvalue"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

COORDINATE_RADIUS = 2**30
"""Largest coordinate of a contribution, in lattice units; 2**22 of them sum to 2**52."""

_NOWHERE = -(2**31)
"""Bin of what is no number, or farther out than int32 counts."""


@njit(cache=True, nogil=True)
def images(
    rows: Floats, starts: Integers, of_matrices: bool, basis: Floats, removed: Floats, out: Floats
) -> None:
    """(I - W W^T) A_i Q of every record, transposed: columns of the image are contiguous.

    Parameters
    ----------
    rows : (n, d) float64
    starts : (m + 1,) int64
    of_matrices : bool
        Whether a record's rows are A itself, or F with A = F^T F.
    basis : (d, k) float64, C order
        Q.
    removed : (d, c) float64, C order
        W, orthonormal columns; c may be 0.
    out : (m, k, d) float64
        What overflows is inf or NaN. A null record's image is 0.
    """
    d, k = basis.shape
    c = removed.shape[1]
    image = np.empty((d, k))
    inner = np.empty((c, k))
    for i in range(starts.shape[0] - 1):
        x = rows[starts[i] : starts[i + 1]]
        record_image(x, of_matrices, basis, image)
        if c > 0:
            inner[:, :] = 0.0
            transposed_times(removed, image, inner)
            for j in range(d):
                for a in range(c):
                    for r in range(k):
                        image[j, r] -= removed[j, a] * inner[a, r]
        for r in range(k):
            for j in range(d):
                out[i, r, j] = image[j, r]


@njit(cache=True, nogil=True)
def bin_coordinates(values: Floats, width: float, out: NDArray[np.int32]) -> None:
    """floor(value/width) of every coordinate of every record, by coordinate.

    Parameters
    ----------
    values : (m, n) float64
        n coordinates of m records.
    width : float, above 0
    out : (n, m) int32
        ``-2**31`` for what is no number or outside of int32.
    """
    m, n = values.shape
    for i in range(m):
        for j in range(n):
            place = np.floor(values[i, j] / width)
            # A comparison with NaN is false.
            inside = -2147483647.0 <= place <= 2147483647.0
            out[j, i] = np.int32(place) if inside else np.int32(_NOWHERE)


@njit(cache=True, nogil=True)
def sum_clamped(values: Floats, centre: Floats, radius: float, total: Integers) -> int:
    """Add every record's coordinates, clamped to within a radius of a centre and rounded, to a total.

    Parameters
    ----------
    values : (m, n) float64
        NaN counts as the centre.
    centre : (n,) float64
    radius : float, above 0
    total : (n,) int64
        In units of ``radius / COORDINATE_RADIUS``; each record adds integers of
        at most ``COORDINATE_RADIUS`` in size.

    Returns
    -------
    int
        Records of which a coordinate was clamped.
    """
    m, n = values.shape
    per_unit = COORDINATE_RADIUS / radius
    most = float(COORDINATE_RADIUS)
    # Integers below 2**53, so exact in any order: 2**22 records of 2**30 are 2**52.
    sums = np.zeros(n)
    clamped = 0
    for i in range(m):
        moved = 0
        # Without a branch, so that it is compiled to vector instructions.
        for j in range(n):
            units = (values[i, j] - centre[j]) * per_unit
            inside = most if units > most else units
            inside = -most if inside < -most else inside
            # NaN is no number that equals itself.
            inside = inside if inside == inside else 0.0
            moved |= inside != units
            sums[j] += np.rint(inside)
        clamped += moved
    for j in range(n):
        total[j] += np.int64(sums[j])
    return clamped


@njit(cache=True, nogil=True)
def top_eigenvalue(columns: Floats, start: Floats, steps: int) -> float:
    """Largest eigenvalue of (1/b) sum of g g^T over b rows g, by power steps in a fixed order.

    Parameters
    ----------
    columns : (b, d) float64
    start : (d,) float64
        Public: where the power steps begin.
    steps : int

    Returns
    -------
    float
        A Rayleigh quotient: from below; NaN or inf where the sums overflow.
    """
    b, d = columns.shape
    v = start / math.sqrt((start * start).sum())
    found = 0.0
    for _ in range(steps):
        w = np.zeros(d)
        for i in range(b):
            # Four sums, so that one addition need not wait for the last.
            s0 = s1 = s2 = s3 = 0.0
            whole = d - d % 4
            for j in range(0, whole, 4):
                s0 += columns[i, j] * v[j]
                s1 += columns[i, j + 1] * v[j + 1]
                s2 += columns[i, j + 2] * v[j + 2]
                s3 += columns[i, j + 3] * v[j + 3]
            for j in range(whole, d):
                s0 += columns[i, j] * v[j]
            s = (s0 + s1) + (s2 + s3)
            for j in range(d):
                w[j] += s * columns[i, j]
        size = 0.0
        for j in range(d):
            size += w[j] * w[j]
        size = math.sqrt(size)
        if not size > 0.0:
            return float(size / b)
        found = size / b
        for j in range(d):
            v[j] = w[j] / size
    return float(found)
