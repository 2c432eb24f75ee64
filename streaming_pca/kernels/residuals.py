"""Compiled kernels of residuals A Q - C about a distant public centre C.

For R < 0.05 |C|, where the rounding of a record would be too coarse: the residual is rounded
instead. (:mod:`~streaming_pca.kernels.block.sums` and :mod:`~streaming_pca.kernels.block.matrix_sums` are
faster, for all other centres.) Residuals are formed in float64 in a fixed order, scaled by powers of
two, clipped, rounded, and their integer norm checked. A null record and a
record that is not finite contribute clip(-C). Error analysis: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

import math

import numpy as np

from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import MATRIX_RADIUS, RADIUS, Floats, Integers
from streaming_pca.kernels.rounding import (
    NO_EXPONENT,
    clip_and_round,
    erase,
    exponent,
    record_product,
    scale_down,
)

_BLOCK_RADIUS = float(RADIUS) ** 2
_MATRIX_RADIUS = float(MATRIX_RADIUS)


@njit(cache=True, nogil=True)
def frobenius_norm(values: Floats) -> float:
    """Return |values|_F in a fixed order, without intermediate overflow."""
    e = exponent(values)
    if e == NO_EXPONENT:
        return 0.0
    return math.ldexp(math.sqrt(scale_down(values, e, np.empty_like(values))), e)


@njit(cache=True, nogil=True)
def _subtract(product: Floats, e: int, centre: Floats, out: Floats) -> int:
    """Compute (2**e product - centre) 2**-s, entries at most 2; return s."""
    of_product = exponent(product)
    of_centre = exponent(centre)
    s = max(of_product + e if of_product != NO_EXPONENT else NO_EXPONENT, of_centre)
    if s == NO_EXPONENT:
        erase(out)
        return 0
    # Powers of two in two factors each, and 0 for zeros: 2**-s alone could overflow.
    half = (e - s) // 2
    first = math.ldexp(1.0, half) if of_product != NO_EXPONENT else 0.0
    second = math.ldexp(1.0, e - s - half) if of_product != NO_EXPONENT else 0.0
    half = -s // 2
    third = math.ldexp(1.0, half) if of_centre != NO_EXPONENT else 0.0
    fourth = math.ldexp(1.0, -s - half) if of_centre != NO_EXPONENT else 0.0
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = product[i, j] * first * second - centre[i, j] * third * fourth
    return s


@njit(cache=True, nogil=True)
def sum_residuals(
    rows: Floats,
    starts: Integers,
    of_matrices: bool,
    basis: Floats,
    centre: Floats,
    per_unit: float,
    total: Integers,
) -> int:
    """Add clip(A_i Q - C) of every record to ``total`` (d, k), rounding the residual.

    Returns the number of records with a residual above the radius.

    ``of_matrices``: whether a record's rows are A itself (clipped to MATRIX_RADIUS lattice units), or F with
    A = F^T F (to RADIUS**2). ``basis``, ``centre``: (d, k), C order. ``per_unit``: lattice units per
    (squared, for factors) unit of the data.
    """
    d, k = basis.shape
    radius = _MATRIX_RADIUS if of_matrices else _BLOCK_RADIUS
    product = np.empty((d, k))
    residual, units = np.empty((d, k)), np.empty((d, k))
    clipped = 0
    for i in range(starts.shape[0] - 1):
        x = rows[starts[i] : starts[i + 1]]
        scaled = np.empty_like(x)
        e = exponent(x)
        erase(product)
        if e == NO_EXPONENT or not scale_down(x, e, scaled) < math.inf:
            e = 0
        else:
            record_product(scaled, of_matrices, basis, product)
            e = e if of_matrices else 2 * e
        s = _subtract(product, e, centre, residual)
        if clip_and_round(residual, math.ldexp(per_unit, s), radius, units):
            clipped += 1
        for j in range(d):
            for c in range(k):
                total[j, c] += np.int64(units[j, c])
    return clipped


@njit(cache=True, nogil=True)
def residual_norms(
    rows: Floats, starts: Integers, of_matrices: bool, basis: Floats, centre: Floats, out: Floats
) -> None:
    """Compute |A_i Q - C|_F of every record, as of :func:`sum_residuals`, in a fixed order.

    Chooses a radius; sums check their own bound. Overflow is inf or NaN. A null record has |C|_F.
    """
    d, k = basis.shape
    product = np.empty((d, k))
    for i in range(starts.shape[0] - 1):
        record_product(rows[starts[i] : starts[i + 1]], of_matrices, basis, product)
        total = 0.0
        for j in range(d):
            for c in range(k):
                difference = product[j, c] - centre[j, c]
                total += difference * difference
        out[i] = math.sqrt(total)
