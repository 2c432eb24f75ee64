"""Clipped sums of A Q - C over symmetric matrices: one pass, exact in integers.

A record is scaled to a Frobenius norm of 2**26 and rounded, and Q to a grid of 2**-26, so that BLAS
multiplies them exactly. The residual is scaled, clipped to R in Frobenius norm (MATRIX_RADIUS units) and
rounded; its integer norm is exact in float64 and is compared with the radius. A null record
and a record that is not finite contribute clip(-C). Proof: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.blas import multiply
from streaming_pca.kernels.block.bounds import COUNTED_AS_CLIPPED
from streaming_pca.kernels.lattice import MATRIX_RADIUS, Floats, Integers
from streaming_pca.kernels.reading import RecordsView
from streaming_pca.kernels.rounding import erase, fit_squares, sum_of_squares

MATRIX_GRID = 26
"""Bits of the basis after the point: with as many bits of a record, every partial product has 53."""
CANCELLED = 2.0**-10
"""Least share of |A Q| + |C| in a residual whose norm the rounded products still resolve."""
_BOUND = float(MATRIX_RADIUS)
_FAR = 2.0**60


@njit(cache=True, nogil=True)
def _scaled_product(
    rows: NDArray[np.floating], first: int, columns: Floats, dgemm: int, z: Floats, y: Floats
) -> tuple[float, int]:
    """Compute y; return (s, e) with A Q = s 2**e y, or (0, 0) for a null matrix."""
    d = z.shape[0]
    for i in range(d):
        for j in range(d):
            z[i, j] = rows[first + i, j]
    size, e = fit_squares(z)
    if size == 0.0:
        return 0.0, 0
    # Rounding may add d/2 to the norm.
    scale = (_BOUND - 0.5 * d) / math.sqrt(size)
    for i in range(d):
        for j in range(d):
            z[i, j] = np.rint(z[i, j] * scale)
    multiply(dgemm, z, d, columns, y)
    return 1.0 / scale, e


@njit(cache=True, nogil=True, error_model="numpy")
def sum_matrix_products(
    read: RecordsView,
    first: int,
    last: int,
    columns: Floats,
    centre: Floats,
    per_unit: float,
    dgemm: int,
    total: Integers,
    sizes: Floats,
) -> int:
    """Add the clipped residuals of records ``first`` to ``last`` to ``total``, or write their norms.

    Returns the number of records with a residual above the radius. A record of another number of rows than d
    is null; ``dgemm`` is :func:`~streaming_pca.kernels.blas.dgemm_address`.

    Parameters
    ----------
    columns : (d, k), Q, on a grid of 2**-MATRIX_GRID.
    centre : (d, k), C in lattice units; empty for none.
    per_unit : lattice units per unit of the data.
    total : (d, k).
    sizes : (last - first,), norms in lattice units, -1 where unresolved; empty to sum.
    """
    d, k = columns.shape
    z, y = np.empty((d, d)), np.empty((d, k))
    clipped = 0
    reach = math.sqrt(sum_of_squares(centre))
    for i in range(first, last):
        t, e = 0.0, 0
        if read.starts[i + 1] - read.starts[i] == d:
            t, e = _scaled_product(read.rows, read.begins[i], columns, dgemm, z, y)
        if t > 0.0:
            t *= per_unit
            t = t if e == 0 else math.ldexp(t, e)
            size = math.sqrt(sum_of_squares(y))
            t = min(t, _FAR / size) if size > 0.0 else 0.0
        elif centre.size == 0:
            continue
        else:
            erase(y)
        for a in range(d):
            for c in range(k):
                y[a, c] *= t
        terms = math.sqrt(sum_of_squares(y)) + reach
        if centre.size > 0:
            for a in range(d):
                for c in range(k):
                    y[a, c] -= centre[a, c]
        length = math.sqrt(sum_of_squares(y))
        if sizes.size > 0:
            sizes[i - first] = length if length >= CANCELLED * terms and length < _FAR / 4 else -1.0
            continue
        limit = max(_BOUND * (1.0 - 2.0**-30) - 0.5 * math.sqrt(float(y.size)), 0.0)
        shrink = min(1.0, limit / length)
        clipped += length > _BOUND * COUNTED_AS_CLIPPED
        for a in range(d):
            for c in range(k):
                y[a, c] = np.rint(y[a, c] * shrink)
        # Integers: exact up to 2**53, and no smaller than that beyond. False for NaN.
        if sum_of_squares(y) <= _BOUND * _BOUND:
            for a in range(d):
                for c in range(k):
                    total[a, c] += np.int64(y[a, c])
    return clipped
