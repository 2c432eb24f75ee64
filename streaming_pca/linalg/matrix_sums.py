"""Clipped sums of A Q - C over symmetric matrices: one pass over the records, exact integers.

A record's rows are scaled to a Frobenius norm of about 1 and multiplied by Q in float32, in
a fixed order (:mod:`~streaming_pca.linalg.strips`); the image, scaled and less the centre,
is clipped to R in Frobenius norm, MATRIX_RADIUS units, and rounded. Its integer norm is
then summed in float64, exactly, as it is below 2**53, and compared with the radius: no
float reaches the total with a larger norm. What is beyond the radius is scaled to it less
sqrt(d k)/2 units, which rounding may add, so that none fails the comparison; what fails it adds
nothing.

The value: A Q is off by (s + 10) 2**-23 |A|_F sqrt(k) for rows of s strips, up to 32 of them, and the
lattice adds sqrt(d k)/2 units of R 2**-26. A null record contributes clip(-C), as does one
that is not finite.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.image_bounds import COUNTED_AS_CLIPPED
from streaming_pca.linalg.lattice import MATRIX_RADIUS
from streaming_pca.linalg.readable import Readable
from streaming_pca.linalg.rounding import NO_EXPONENT, exponent, scale_down
from streaming_pca.linalg.strip_products import CHAIN, ROWS, square_sum
from streaming_pca.linalg.strips import scale_row, squared_norm
from streaming_pca.linalg.tiles import LEAST_NORM, MOST_NORM, Frame, add_images
from streaming_pca.linalg.vectors import LANES

__all__ = ["CANCELLED", "matrix_rows", "sum_matrix_images"]

Floats = NDArray[np.float64]

CANCELLED = 2.0**-10
"""Share of A Q and C that must be left of a residual for float32 images to tell its norm."""
_BOUND = float(MATRIX_RADIUS)
_FAR = 2.0**60
_ROWS = 64


def matrix_rows(d: int) -> tuple[int, int]:
    """Rows of a matrix that are multiplied at a time, and those of an image, padded."""
    padded = -(-d // ROWS) * ROWS
    return min(_ROWS, padded), padded


@njit(cache=True, nogil=True)
def _image(
    x: NDArray[np.floating],
    x0: int,
    scale: float,
    frame: Frame,
    height: int,
    padded: int,
    z: NDArray[np.float32],
    y: Floats,
) -> None:
    """y = (scale A) Q, (columns, padded), of the d x d matrix from entry x0 of x on."""
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
                add_images(z, s * stride + i * LANES, stride, frame, s, y, first + i, padded)


@njit(cache=True, nogil=True)
def _scaled_image(
    rows: NDArray[np.floating],
    first: int,
    frame: Frame,
    height: int,
    padded: int,
    z: NDArray[np.float32],
    y: Floats,
) -> tuple[float, int]:
    """(s, e) with A Q = s 2**e y; (0, 0) for a matrix of zeros, or not finite."""
    d = frame.d
    size = 0.0
    for i in range(d):
        size += squared_norm(rows, (first + i) * d, d)
    # Written so that NaN is extreme.
    if size >= LEAST_NORM and size <= MOST_NORM:
        scale = np.float64(np.float32(1.0 / math.sqrt(size)))
        _image(rows, first * d, scale, frame, height, padded, z, y)
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
    _image(values, 0, scale, frame, height, padded, z, y)
    return 1.0 / scale, e


@njit(cache=True, nogil=True, error_model="numpy")
def sum_matrix_images(
    read: Readable,
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
    """Add the clipped residuals of records ``first`` to ``last`` to ``total``, or find their norms.

    Parameters
    ----------
    read : Readable
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
        Room: strips (height + 1) 16 and columns padded numbers.
    total : (k * padded,) int64
    sizes : (last - first,) float64
        Norms in lattice units, -1 where too little is left to tell; empty to sum.

    Returns
    -------
    int
        Records with a residual above the radius.
    """
    d = frame.d
    n = frame.k * padded
    clipped = 0
    reach = math.sqrt(square_sum(centre, 0, centre.size))
    images = y[:n]
    for i in range(first, last):
        t, e = 0.0, 0
        if read.starts[i + 1] - read.starts[i] == d:
            t, e = _scaled_image(read.rows, read.begins[i], frame, height, padded, z, y)
        if t > 0.0:
            t *= per_unit
            t = t if e == 0 else math.ldexp(t, e)
            size = math.sqrt(square_sum(y, 0, n))
            t = min(t, _FAR / size) if size > 0.0 else 0.0
            for j in range(n):
                images[j] *= t
        elif centre.size == 0:
            continue
        else:
            images[:] = 0.0
        terms = math.sqrt(square_sum(y, 0, n)) + reach
        if centre.size > 0:
            for j in range(n):
                images[j] -= centre[j]
        length = math.sqrt(square_sum(y, 0, n))
        if sizes.size > 0:
            sizes[i - first] = length if length >= CANCELLED * terms and length < _FAR / 4 else -1.0
            continue
        limit = max(_BOUND * (1.0 - 2.0**-30) - 0.5 * math.sqrt(float(n)), 0.0)
        shrink = min(1.0, limit / length)
        clipped += length > _BOUND * COUNTED_AS_CLIPPED
        for j in range(n):
            images[j] = np.rint(images[j] * shrink)
        # Integers: exact up to 2**53, and no smaller than that beyond. False for NaN.
        if square_sum(y, 0, n) <= _BOUND * _BOUND:
            for j in range(n):
                total[j] += np.int64(images[j])
    return clipped
