"""Compiled kernels of residuals A Q - C about a public centre C: clipped onto the lattice, and their norms.

For R < 0.05 |C|, where 20 bits of a record are 15 R at R = 1e-6 |C|: here the residual is
rounded, not the record. (:mod:`~streaming_pca.linalg.image_sums` and
:mod:`~streaming_pca.linalg.matrix_sums` have the faster ways, for all other centres.)

x (x^T Q)^T - C is formed in float64 in a fixed order, no BLAS, with Q
and C as they are; scaled by powers of two, clipped, rounded to the lattice and
its integer norm checked (see :mod:`~streaming_pca.linalg.rounding`).

- The value: with x scaled below 1, entries of Q^T x are off by d 2**-53 |x|,
  the products and the subtraction by (r + 2) 2**-53, so the residual by at most
  (d + r + 4) sqrt(k) 2**-53 (|A|_F + |C|) (A Q for a matrix: the same); at
  d = 200, k = 5, |A| = |C| and R = 1e-6 |C| that is 1e-7 R. The lattice adds
  sqrt(d k)/2 units: 2**-41 sqrt(d k) R for factors, 2**-27 sqrt(d k) R for
  matrices.
- Contributions are added as int64, record by record.

A null record has A = 0 and contributes clip(-C), as does one that
is not finite.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.lattice import MATRIX_RADIUS, RADIUS
from streaming_pca.linalg.products import record_image
from streaming_pca.linalg.rounding import NO_EXPONENT, clip_and_round, exponent, scale_down

__all__ = ["frobenius_norm", "residual_norms", "sum_residuals"]

_BLOCK_RADIUS = float(RADIUS) ** 2
_MATRIX_RADIUS = float(MATRIX_RADIUS)


@njit(cache=True, nogil=True)
def frobenius_norm(values: NDArray[np.float64]) -> float:
    """|values|_F in a fixed order, without overflow on the way; inf if it is too large."""
    e = exponent(values)
    if e == NO_EXPONENT:
        return 0.0
    return math.ldexp(math.sqrt(scale_down(values, e, np.empty_like(values))), e)


@njit(cache=True, nogil=True)
def _subtract(
    image: NDArray[np.float64], ratio: float, e: int, centre: NDArray[np.float64], out: NDArray[np.float64]
) -> int:
    """out = (ratio 2**e image - centre) 2**-s, entries of at most 2 for a ratio of at most 1; returns s."""
    of_image = exponent(image)
    of_centre = exponent(centre)
    s = max(of_image + e if of_image != NO_EXPONENT else NO_EXPONENT, of_centre)
    if s == NO_EXPONENT:
        out[:, :] = 0.0
        return 0
    # Powers of two in two factors each, and 0 for what is zero: 2**-s could be too large for it.
    half = (e - s) // 2
    first = math.ldexp(ratio, half) if of_image != NO_EXPONENT else 0.0
    second = math.ldexp(1.0, e - s - half) if of_image != NO_EXPONENT else 0.0
    half = -s // 2
    third = math.ldexp(1.0, half) if of_centre != NO_EXPONENT else 0.0
    fourth = math.ldexp(1.0, -s - half) if of_centre != NO_EXPONENT else 0.0
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            out[i, j] = image[i, j] * first * second - centre[i, j] * third * fourth
    return s


@njit(cache=True, nogil=True)
def _add_residual(
    image: NDArray[np.float64],
    ratio: float,
    e: int,
    centre: NDArray[np.float64],
    per_unit: float,
    radius: float,
    residual: NDArray[np.float64],
    units: NDArray[np.float64],
    total: NDArray[np.int64],
) -> bool:
    """Add clip(ratio 2**e image - centre), on the lattice, to ``total``; tell whether it was clipped."""
    s = _subtract(image, ratio, e, centre, residual)
    clipped = clip_and_round(residual, math.ldexp(per_unit, s), radius, units)
    for i in range(total.shape[0]):
        for j in range(total.shape[1]):
            total[i, j] += np.int64(units[i, j])
    return clipped


@njit(cache=True, nogil=True)
def sum_residuals(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    of_matrices: bool,
    basis: NDArray[np.float64],
    centre: NDArray[np.float64],
    per_unit: float,
    total: NDArray[np.int64],
) -> int:
    """Add clip(A_i Q - C) of every record to ``total``, rounding the residual.

    Parameters
    ----------
    rows : (n, d) float64
    starts : (m + 1,) int64
    of_matrices : bool
        Whether a record's rows are A itself (clipped to MATRIX_RADIUS lattice
        units), or F with A = F^T F (to RADIUS**2).
    basis, centre : (d, k) float64, C order
    per_unit : float
        Lattice units per (squared, for factors) unit of the data.
    total : (d, k) int64

    Returns
    -------
    int
        Records with a residual above the radius.
    """
    d, k = basis.shape
    radius = _MATRIX_RADIUS if of_matrices else _BLOCK_RADIUS
    image = np.empty((d, k))
    residual, units = np.empty((d, k)), np.empty((d, k))
    clipped = 0
    for i in range(starts.shape[0] - 1):
        x = rows[starts[i] : starts[i + 1]]
        scaled = np.empty_like(x)
        e = exponent(x)
        image[:, :] = 0.0
        if e == NO_EXPONENT or not scale_down(x, e, scaled) < math.inf:
            e = 0
        else:
            record_image(scaled, of_matrices, basis, image)
            e = e if of_matrices else 2 * e
        if _add_residual(image, 1.0, e, centre, per_unit, radius, residual, units, total):
            clipped += 1
    return clipped


@njit(cache=True, nogil=True)
def residual_norms(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    of_matrices: bool,
    basis: NDArray[np.float64],
    centre: NDArray[np.float64],
    out: NDArray[np.float64],
) -> None:
    """|A_i Q - C|_F of every record, in a fixed order: each a function of its record alone.

    Not a bound: it chooses a radius, and the sums check their own. What
    overflows is inf or NaN. A null record has |C|_F.

    Parameters
    ----------
    rows : (n, d) float64
    starts : (m + 1,) int64
    of_matrices : bool
        Whether a record's rows are A itself, or F with A = F^T F.
    basis, centre : (d, k) float64, C order
    out : (m,) float64
    """
    d, k = basis.shape
    image = np.empty((d, k))
    for i in range(starts.shape[0] - 1):
        x = rows[starts[i] : starts[i + 1]]
        record_image(x, of_matrices, basis, image)
        total = 0.0
        for j in range(d):
            for c in range(k):
                difference = image[j, c] - centre[j, c]
                total += difference * difference
        out[i] = math.sqrt(total)
