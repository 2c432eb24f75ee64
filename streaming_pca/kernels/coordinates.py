"""Products A Q of single records by coordinate: spread, bins and clipped sums.

A contribution depends on its record and on public numbers alone, bit for bit. Its bound is held
in integers: a clamped coordinate is rounded to at most ``COORDINATE_RADIUS`` units, so the
d k integers of a record have a known norm.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.products import record_product, transposed_times

__all__ = ["COORDINATE_RADIUS", "bin_coordinates", "products", "sum_clamped", "top_eigenvalue"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

COORDINATE_RADIUS = 2**30
"""Largest coordinate of a contribution, in lattice units; 2**22 of them sum to 2**52."""

_NOWHERE = -(2**31)
"""Bin of NaN and of values outside int32."""


@njit(cache=True, nogil=True)
def products(
    rows: Floats, starts: Integers, of_matrices: bool, basis: Floats, removed: Floats, out: Floats
) -> None:
    """Compute (I - W W^T) A_i Q of every record, transposed.

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
        Columns of the product are contiguous; overflow is inf or NaN; 0 for a null record.
    """
    d, k = basis.shape
    c = removed.shape[1]
    product = np.empty((d, k))
    inner = np.empty((c, k))
    for i in range(starts.shape[0] - 1):
        x = rows[starts[i] : starts[i + 1]]
        record_product(x, of_matrices, basis, product)
        if c > 0:
            inner[:, :] = 0.0
            transposed_times(removed, product, inner)
            for j in range(d):
                for a in range(c):
                    for r in range(k):
                        product[j, r] -= removed[j, a] * inner[a, r]
        for r in range(k):
            for j in range(d):
                out[i, r, j] = product[j, r]


@njit(cache=True, nogil=True)
def bin_coordinates(values: Floats, width: float, out: NDArray[np.int32]) -> None:
    """Compute floor(value/width) of every coordinate of every record.

    Parameters
    ----------
    values : (m, n) float64
        n coordinates of m records.
    width : float, above 0
    out : (n, m) int32
        By coordinate; ``-2**31`` for NaN and outside int32.
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
    """Add records' coordinates, clamped about a centre and rounded, to a total.

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
        Records with a clamped coordinate.
    """
    m, n = values.shape
    per_unit = COORDINATE_RADIUS / radius
    most = float(COORDINATE_RADIUS)
    # Integers below 2**53, so exact in any order: 2**22 records of 2**30 are 2**52.
    sums = np.zeros(n)
    clamped = 0
    for i in range(m):
        moved = 0
        # No branch, so that it vectorises.
        for j in range(n):
            units = (values[i, j] - centre[j]) * per_unit
            inside = most if units > most else units
            inside = -most if inside < -most else inside
            # NaN becomes 0.
            inside = inside if inside == inside else 0.0
            moved |= inside != units
            sums[j] += np.rint(inside)
        clamped += moved
    for j in range(n):
        total[j] += np.int64(sums[j])
    return clamped


@njit(cache=True, nogil=True)
def top_eigenvalue(columns: Floats, start: Floats, steps: int) -> float:
    """Estimate the largest eigenvalue of the mean of g g^T by power steps.

    Parameters
    ----------
    columns : (b, d) float64
        Rows g.
    start : (d,) float64
        Public start of the power steps.
    steps : int

    Returns
    -------
    float
        Rayleigh quotient, a lower bound; NaN or inf where sums overflow.
    """
    b, d = columns.shape
    v = start / math.sqrt((start * start).sum())
    found = 0.0
    for _ in range(steps):
        w = np.zeros(d)
        for i in range(b):
            # Four chains hide the latency of additions.
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
