"""Compiled kernels that clip residuals A Q - C about a public centre C, on the lattice.

Three ways, chosen by the kind of record and by public numbers, never by a
record. R is the clip radius, u = R/RADIUS**2 the lattice unit (R/MATRIX_RADIUS
for matrices), p = 2**20.

Weighted factors (:func:`weigh_residuals`), for R >= 0.05 |C|
-------------------------------------------------------------
The contribution of a record is the integer matrix z y^T - w C', where z is its
rounded direction, y its rounded and weighted image, w the weight as an integer
in units of 1/p, and C' the centre as integers in units of u p. A block's sum
is one exact BLAS product less (sum of w) C'. With n = d k + r k:

- Bounds: |z| <= 2**20, |y| <= 2**25, |C'| <= 20 p + sqrt(d k)/2 < 2**24.4.
  z C' comes out of BLAS, a sum of integers below 2**20 * 2**24.4: exact. The
  products of 2**8 records sum to 2**20 * 2**25 * 2**8 = 2**53: exact.
- The check is of the integer contribution itself,
  |z y^T|**2 - 2 w <y, z C'> + w**2 |C'|**2 <= 2**80.
  Its three terms are float64 sums of at most d k, r k and 1 products of exact
  integers (|C'|**2 is rounded up); each operation is off by 2**-53 of its
  result, so all of it by less than (n + 8) 2**-53 (|z| |y| + w |C'|)**2.
  Twice that, (n + 16) 2**-52 (...)**2, is added before comparing: at most
  (n + 16) 2**40, of 2**80. In float32 this sum overshot R by 26%.
- Where rounding carried a contribution over (y by sqrt(r k)/2 cells, which |z|
  carries to the product, and w by 1/2, which |C'| carries), the weight is
  lowered by that much and checked again; should that fail, y = w = 0.
- The value. C' is not C: the sum is about C' u p, and the caller gets this
  centre back. A record that is not clipped has w = p exactly. Its contribution
  is off from A Q - C' u p, relative to R, by at most
  2**-20 ((sqrt(r d) + sqrt(d k)) a + sqrt(r k)) with a = |A|_F/R (z and Q; y).
  The weight of a clipped record is off by 2**-21, which |C| carries:
  2**-21 |C|/R <= 2**-16.6 more; its a is w |A|_F/R.

Float factors and matrices (:func:`sum_residuals`), for R < 0.05 |C|
---------------------------------------------------------------------
20 bits of x are 15 R at R = 1e-6 |C|: here the residual is rounded, not the
record. x (x^T Q)^T - C is formed in float64 in a fixed order, no BLAS, with Q
and C as they are; scaled by powers of two, clipped, rounded to the lattice and
its integer norm checked (see :mod:`~streaming_pca.linalg.rounding`).

- The value: with x scaled below 1, entries of Q^T x are off by d 2**-53 |x|,
  the products and the subtraction by (r + 2) 2**-53, so the residual by at most
  (d + r + 4) sqrt(k) 2**-53 (|A|_F + |C|) (A Q for a matrix: the same); at
  d = 200, k = 5, |A| = |C| and R = 1e-6 |C| that is 1e-7 R. The lattice adds
  sqrt(d k)/2 units: 2**-41 sqrt(d k) R for factors, 2**-27 sqrt(d k) R for
  matrices.
- Contributions are added as int64, record by record.

Rounded matrices (:func:`sum_matrix_residuals`), for R >= 0.05 |C|
-------------------------------------------------------------------
M (2**20 Q) comes out of BLAS exactly; the residual is formed from it and C in
float64, clipped, rounded and checked as above. The value: M is off by d/2 of
2**26, Q by 2**-21 an entry: (2**-27 d + 2**-21 sqrt(d k)) |A|_F, and the lattice.

In all three a null record has A = 0 and contributes clip(-C), as does one that
is not finite.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.clipping import matrix_scale, product_norm_squared, units_of_image
from streaming_pca.linalg.lattice import MATRIX_RADIUS, RADIUS
from streaming_pca.linalg.products import record_image
from streaming_pca.linalg.rounding import (
    COUNTED_AS_CLIPPED,
    NO_EXPONENT,
    clip_and_round,
    exponent,
    round_scaled,
    scale_down,
    sum_of_squares,
)

__all__ = [
    "BLOCK_OF_WEIGHTED",
    "frobenius_norm",
    "sum_matrix_residuals",
    "sum_residuals",
    "weigh_residuals",
]

BLOCK_OF_WEIGHTED = 2**8
"""Records whose products z^T y float64 adds exactly: 2**8 * 2**20 * 2**25 == 2**53."""

_RADIUS = float(RADIUS)
_BLOCK_RADIUS = float(RADIUS) ** 2
_MATRIX_RADIUS = float(MATRIX_RADIUS)
_WEIGHT = 2.0**20
_MAX_IMAGE_NORM = 2.0**25
_FAR = 2.0**80
"""Norm in lattice units, 2**40 R: a record so far away has a weight of 0 for the centre."""


@njit(cache=True, nogil=True)
def frobenius_norm(values: NDArray[np.float64]) -> float:
    """|values|_F in a fixed order, without overflow on the way; inf if it is too large."""
    e = exponent(values)
    if e == NO_EXPONENT:
        return 0.0
    return math.ldexp(math.sqrt(scale_down(values, e, np.empty_like(values))), e)


@njit(cache=True, nogil=True)
def _inner(a: NDArray[np.float64], b: NDArray[np.float64]) -> float:
    total = 0.0
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            total += a[i, j] * b[i, j]
    return total


@njit(cache=True, nogil=True)
def _fits(
    z: NDArray[np.float64],
    y: NDArray[np.float64],
    size_of_y: float,
    overlaps: NDArray[np.float64],
    weight: float,
    centre_squared: float,
) -> bool:
    """Whether |y| and the integer contribution z^T y - weight C' are within their bounds."""
    if not size_of_y <= _MAX_IMAGE_NORM * _MAX_IMAGE_NORM:
        return False
    n = float(z.shape[1] * y.shape[1] + y.size)
    terms = math.sqrt(sum_of_squares(z) * size_of_y) + weight * math.sqrt(centre_squared)
    total = product_norm_squared(z, y) - 2.0 * weight * _inner(y, overlaps) + weight * weight * centre_squared
    return total + (n + 16.0) * 2.0**-52 * terms * terms <= _BLOCK_RADIUS * _BLOCK_RADIUS


@njit(cache=True, nogil=True)
def weigh_residuals(
    rows: NDArray[np.float64],
    factors: NDArray[np.float64],
    images: NDArray[np.float64],
    overlaps: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
    centre_squared: float,
    weights: NDArray[np.int64],
) -> int:
    """Clip A Q - C in Frobenius norm to RADIUS**2 lattice units: images and weights as integers.

    Parameters
    ----------
    rows : (n, d) float64
        The records themselves.
    factors : (n, d) float64
        The same, normalised and rounded: direction z of each record.
    images : (n, k) float64
        On entry ``factors @ quantise_basis(Q)``; on return y.
    overlaps : (n, k) float64
        ``factors @ C'`` with C' = ``quantise_centre(C, R)``.
    starts : (m + 1,) int64
    per_unit : float
        Lattice units per squared unit of the data.
    centre_squared : float
        |C'|_F**2, rounded up.
    weights : (m,) int64
        On return w: |z^T y - w C'|_F <= RADIUS**2 for every record.

    Returns
    -------
    int
        Records that were made smaller.
    """
    d, k = factors.shape[1], images.shape[1]
    centre_norm = math.sqrt(centre_squared)
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        z = factors[a:b]
        y = images[a:b]
        overlap = overlaps[a:b]
        image = y.copy()
        size = math.sqrt(product_norm_squared(z, image))
        t = 0.0
        if size > 0.0:
            t = units_of_image(rows[a:b], z, per_unit)
        if t * size < _FAR:
            reach = _WEIGHT * centre_norm
            cross = 2.0 * t * _WEIGHT * _inner(image, overlap)
            residual = math.sqrt(max((t * size) ** 2 - cross + reach * reach, 0.0))
        else:
            t = _FAR / size
            residual = _FAR
        shrink = 1.0
        if residual > _BLOCK_RADIUS:
            shrink = _BLOCK_RADIUS / residual
        norm_image = math.sqrt(sum_of_squares(image))
        if t * shrink * norm_image > _MAX_IMAGE_NORM:
            shrink = _MAX_IMAGE_NORM / (t * norm_image)
        if shrink * COUNTED_AS_CLIPPED < 1.0:
            clipped += 1
        weight = np.rint(shrink * _WEIGHT)
        size_of_y = round_scaled(image, t * shrink, y)
        if not _fits(z, y, size_of_y, overlap, weight, centre_squared):
            half_cells = 0.5 * math.sqrt(float(y.size)) * _RADIUS + 0.5 * centre_norm
            shrink *= 1.0 - half_cells / _BLOCK_RADIUS - float(d * k + y.size + 16) * 2.0**-40 - 2.0**-30
            weight = np.rint(shrink * _WEIGHT)
            size_of_y = round_scaled(image, t * shrink, y)
            if not shrink > 0.0 or not _fits(z, y, size_of_y, overlap, weight, centre_squared):
                y[:, :] = 0.0
                weight = 0.0
        weights[i] = np.int64(weight)
    return clipped


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
    total: NDArray[np.int64],
) -> bool:
    """Add clip(ratio 2**e image - centre), on the lattice, to ``total``; tell whether it was clipped."""
    s = _subtract(image, ratio, e, centre, residual)
    clipped = clip_and_round(residual, math.ldexp(per_unit, s), radius, residual)
    for i in range(total.shape[0]):
        for j in range(total.shape[1]):
            total[i, j] += np.int64(residual[i, j])
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
    residual = np.empty((d, k))
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
        if _add_residual(image, 1.0, e, centre, per_unit, radius, residual, total):
            clipped += 1
    return clipped


@njit(cache=True, nogil=True)
def sum_matrix_residuals(
    rows: NDArray[np.float64],
    matrices: NDArray[np.float64],
    images: NDArray[np.float64],
    starts: NDArray[np.int64],
    centre: NDArray[np.float64],
    per_unit: float,
    total: NDArray[np.int64],
) -> int:
    """Add clip(A_i Q - C) of every symmetric matrix to ``total``.

    Parameters
    ----------
    rows : (n, d) float64
        The records themselves.
    matrices : (n, d) float64
        The same, normalised and rounded: direction M of each record.
    images : (n, k) float64
        ``matrices @ quantise_basis(Q)``, exact integers.
    starts : (m + 1,) int64
    centre : (d, k) float64, C order
    per_unit : float
        Lattice units per unit of the data.
    total : (d, k) int64

    Returns
    -------
    int
        Records with a residual above the radius.
    """
    nothing = np.zeros(total.shape)
    residual = np.empty(total.shape)
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        image = nothing
        ratio, e = 0.0, 0
        if a < b:
            ratio, e = matrix_scale(rows[a:b], matrices[a:b])
            if ratio > 0.0:
                image = images[a:b]
        if _add_residual(image, ratio, e, centre, per_unit, _MATRIX_RADIUS, residual, total):
            clipped += 1
    return clipped
