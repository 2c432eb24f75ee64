"""Clipped sums of A Q - C over symmetric matrices: one pass, exact in integers.

A record's rows are scaled to a Frobenius norm of about 1 and multiplied by Q in float32, in a
fixed order. The residual is scaled, clipped to R in Frobenius norm (MATRIX_RADIUS units) and
rounded; its integer norm is exact in float64 and is compared with the radius. A null record
and a record that is not finite contribute clip(-C). Proof: docs/explanation/proofs/exact-sums.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.bounds import COUNTED_AS_CLIPPED
from streaming_pca.kernels.block.strip_products import CHAIN, ROWS, square_sum
from streaming_pca.kernels.block.strips import scale_row, squared_norm
from streaming_pca.kernels.block.tiles import LEAST_NORM, MOST_NORM, Frame, add_products
from streaming_pca.kernels.lattice import MATRIX_RADIUS
from streaming_pca.kernels.records_view import RecordsView
from streaming_pca.kernels.rounding import NO_EXPONENT, exponent, scale_down
from streaming_pca.kernels.vectors import LANES

__all__ = ["CANCELLED", "matrix_rows", "sum_matrix_products"]

Floats = NDArray[np.float64]

CANCELLED = 2.0**-10
"""Least share of |A Q| + |C| in a residual whose norm float32 products still resolve."""
_BOUND = float(MATRIX_RADIUS)
_FAR = 2.0**60
_ROWS = 64


def matrix_rows(d: int) -> tuple[int, int]:
    """Return rows multiplied at a time, and the padded rows of a product."""
    padded = -(-d // ROWS) * ROWS
    return min(_ROWS, padded), padded


@njit(cache=True, nogil=True)
def _product(
    x: NDArray[np.floating],
    x0: int,
    scale: float,
    frame: Frame,
    height: int,
    padded: int,
    z: NDArray[np.float32],
    y: Floats,
) -> None:
    """Compute y = (scale A) Q, (columns, padded), of the matrix at x0."""
    d = frame.d
    strips = (d + LANES - 1) // LANES
    stride = (height + 1) * LANES
    y[:] = 0.0
    for first in range(0, d, height):
        count = min(height, d - first)
        for i in range(count):
            scale_row(x, x0 + (first + i) * d, d, scale, z, i * LANES, stride)
        for i in range(count, (count + ROWS - 1) // ROWS * ROWS):
            for s in range(strips):
                z[s * stride + i * LANES : s * stride + (i + 1) * LANES] = 0.0
        for s in range(0, strips, CHAIN):
            for i in range(0, count, ROWS):
                add_products(z, s * stride + i * LANES, stride, frame, s, y, first + i, padded)


@njit(cache=True, nogil=True)
def _scaled_product(
    rows: NDArray[np.floating],
    first: int,
    frame: Frame,
    height: int,
    padded: int,
    z: NDArray[np.float32],
    y: Floats,
) -> tuple[float, int]:
    """Return (s, e) with A Q = s 2**e y; (0, 0) for a null matrix."""
    d = frame.d
    size = 0.0
    for i in range(d):
        size += squared_norm(rows, (first + i) * d, d)
    # NaN fails the comparison.
    if size >= LEAST_NORM and size <= MOST_NORM:
        scale = np.float64(np.float32(1.0 / math.sqrt(size)))
        _product(rows, first * d, scale, frame, height, padded, z, y)
        return 1.0 / scale, 0
    values = np.empty((d, d))
    for i in range(d):
        for j in range(d):
            values[i, j] = rows[first + i, j]
    e = exponent(values)
    if e == NO_EXPONENT:
        return 0.0, 0
    size = scale_down(values, e, values)
    if not size < math.inf:
        return 0.0, 0
    scale = np.float64(np.float32(1.0 / math.sqrt(size)))
    _product(values, 0, scale, frame, height, padded, z, y)
    return 1.0 / scale, e


@njit(cache=True, nogil=True, error_model="numpy")
def sum_matrix_products(
    read: RecordsView,
    first: int,
    last: int,
    frame: Frame,
    centre: Floats,
    per_unit: float,
    height: int,
    padded: int,
    z: NDArray[np.float32],
    y: Floats,
    total: NDArray[np.int64],
    sizes: Floats,
) -> int:
    """Add the clipped residuals of records ``first`` to ``last`` to ``total``, or write their norms.

    Parameters
    ----------
    read : RecordsView
        A record of another number of rows than d is null.
    frame : Frame
        Q.
    centre : (k * padded,) float64
        C in lattice units, column by column; empty for none.
    per_unit : float
        Lattice units per unit of the data.
    height, padded : int
        :func:`matrix_rows`.
    z, y
        Scratch: strips (height + 1) 16 and columns padded numbers.
    total : (k * padded,) int64
    sizes : (last - first,) float64
        Norms in lattice units, -1 where unresolved; empty to sum.

    Returns
    -------
    int
        Records with a residual above the radius.
    """
    d = frame.d
    n = frame.k * padded
    clipped = 0
    reach = math.sqrt(square_sum(centre, 0, centre.size))
    products = y[:n]
    for i in range(first, last):
        t, e = 0.0, 0
        if read.starts[i + 1] - read.starts[i] == d:
            t, e = _scaled_product(read.rows, read.begins[i], frame, height, padded, z, y)
        if t > 0.0:
            t *= per_unit
            t = t if e == 0 else math.ldexp(t, e)
            size = math.sqrt(square_sum(y, 0, n))
            t = min(t, _FAR / size) if size > 0.0 else 0.0
            for j in range(n):
                products[j] *= t
        elif centre.size == 0:
            continue
        else:
            products[:] = 0.0
        terms = math.sqrt(square_sum(y, 0, n)) + reach
        if centre.size > 0:
            for j in range(n):
                products[j] -= centre[j]
        length = math.sqrt(square_sum(y, 0, n))
        if sizes.size > 0:
            sizes[i - first] = length if length >= CANCELLED * terms and length < _FAR / 4 else -1.0
            continue
        limit = max(_BOUND * (1.0 - 2.0**-30) - 0.5 * math.sqrt(float(n)), 0.0)
        shrink = min(1.0, limit / length)
        clipped += length > _BOUND * COUNTED_AS_CLIPPED
        for j in range(n):
            products[j] = np.rint(products[j] * shrink)
        # Integers: exact up to 2**53, and no smaller than that beyond. False for NaN.
        if square_sum(y, 0, n) <= _BOUND * _BOUND:
            for j in range(n):
                total[j] += np.int64(products[j])
    return clipped
