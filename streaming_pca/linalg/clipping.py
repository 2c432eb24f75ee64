"""Compiled kernels that clip records and round them onto the lattice.

Every kernel works record by record, in a fixed order, in float64 without
``fastmath``: what a record contributes depends on that record and on public
numbers alone, bit for bit, whatever block, thread or position it is in. The
only numbers that come out of BLAS are products of integers which float64 holds
exactly, so they have one value, whatever the shape, the threads, the processor.

The bound is *checked in integers* rather than argued in floats: a record is
scaled, rounded and its integer norm computed; where rounding carried it above
the radius it is scaled again, a little lower, and if even that failed it would
be dropped. No float input, however extreme (entries from 5e-324 to 1.8e308),
reaches a sum with a larger norm. :mod:`~streaming_pca.linalg.rounding` has the
analysis for what is rounded as it stands.

Error analysis of images (:func:`quantise_images`), u = 2**-53
--------------------------------------------------------------
- z, the record's direction: integers, |z| <= 2**20. A row of z times a column
  of Q in units of 2**-20 is a sum of integers of at most
  |z| |q| < 2**20 * 2**20.1 < 2**53 in any order: exact.
- y, the rounded image: integers, |y|**2 <= 2**46, a sum that float64 adds
  exactly. For one row |z^T y|**2 = |z|**2 |y|**2: two exact factors, one
  rounding. For several rows an entry of z^T y is at most |z| |y| <= 2**43 and
  exact; its square, and the sum of d k squares, are (d k + 1) u off relatively.
  The comparison with 2**80 (1 - (d k + 8) 2**-52) covers twice that.
- A block: 2**10 records with |z| |y| <= 2**43 sum to 2**53 at most, exact.
- The value: z is off by sqrt(r d)/2 of 2**20, Q by 2**-21 an entry, y by
  sqrt(r k)/2, carried by |z| to the product. Relative to R, with a = |A|_F
  after clipping in units of R, at most
  2**-20 ((sqrt(r d) + sqrt(d k)) a + sqrt(r k)).

Counts of clipped records are a by-product: each record adds 0 or 1, a function
of that record alone, so a count has sensitivity 1. It is as secret as the sum.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.lattice import MATRIX_RADIUS, RADIUS
from streaming_pca.linalg.rounding import (
    COUNTED_AS_CLIPPED,
    NO_EXPONENT,
    clip_and_round,
    exponent,
    guard,
    round_scaled,
    scale_down,
    squared_bound,
    sum_of_squares,
)

__all__ = [
    "product_norm_squared",
    "quantise_factors",
    "quantise_images",
    "quantise_matrices",
    "quantise_matrix_images",
    "record_squared_norms",
]

_RADIUS = float(RADIUS)
_IMAGE_RADIUS = float(RADIUS) ** 2
_MATRIX_RADIUS = float(MATRIX_RADIUS)
_MAX_IMAGE_NORM = 2.0**23


@njit(cache=True, nogil=True)
def quantise_factors(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
    out: NDArray[np.float64],
) -> int:
    """Clip factors in Frobenius norm to RADIUS lattice units and round them.

    Parameters
    ----------
    rows : (n, d) float64
        Rows of all records; record i is ``rows[starts[i]:starts[i + 1]]``.
    starts : (m + 1,) int64
    per_unit : float
        Lattice units per unit of the data; inf normalises every record to RADIUS.
    out : (n, d) float64
        Integer values, |out of record i|_F <= RADIUS. So its matrix out^T out is
        positive semidefinite with trace at most RADIUS**2.

    Returns
    -------
    int
        Records with a norm above the radius.
    """
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a < b and clip_and_round(rows[a:b], per_unit, _RADIUS, out[a:b]):
            clipped += 1
    return clipped


@njit(cache=True, nogil=True)
def record_squared_norms(
    rows: NDArray[np.float64], starts: NDArray[np.int64], out: NDArray[np.float64]
) -> None:
    """Trace of each record's matrix F^T F, that is |F|_F**2; 0 for null records, never NaN."""
    for i in range(starts.shape[0] - 1):
        total = 0.0
        for j in range(starts[i], starts[i + 1]):
            for c in range(rows.shape[1]):
                total += rows[j, c] * rows[j, c]
        out[i] = total


@njit(cache=True, nogil=True)
def product_norm_squared(z: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """|z^T y|_F**2; entries are exact integers, the sum of their squares is a float."""
    if z.shape[0] == 1:
        return sum_of_squares(z) * sum_of_squares(y)
    total = 0.0
    for j in range(z.shape[1]):
        for c in range(y.shape[1]):
            entry = 0.0
            for i in range(z.shape[0]):
                entry += z[i, j] * y[i, c]
            total += entry * entry
    return total


@njit(cache=True, nogil=True)
def quantise_images(
    rows: NDArray[np.float64],
    factors: NDArray[np.float64],
    images: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
) -> int:
    """Clip A Q = F^T (F Q) in Frobenius norm to RADIUS**2 lattice units, rounding F Q.

    Parameters
    ----------
    rows : (n, d) float64
        The records themselves.
    factors : (n, d) float64
        The same, normalised and rounded by :func:`quantise_factors` with
        ``per_unit = inf``: direction z of each record.
    images : (n, k) float64
        On entry ``factors @ quantise_basis(Q)``, exact integers. On return the
        rounded and clipped images y with |z^T y|_F <= RADIUS**2 for every record.
    starts : (m + 1,) int64
    per_unit : float
        Lattice units (of products) per squared unit of the data.

    Returns
    -------
    int
        Records that were made smaller.

    Notes
    -----
    With z = f x and the image f 2**20 Q^T x, the product x x^T Q in lattice
    units is z y^T with y = image * per_unit/(f**2 2**20). |y| is held below
    2**23 too: 2**10 records of many rows then still add up exactly.
    """
    k = images.shape[1]
    bound = squared_bound(_IMAGE_RADIUS, float(factors.shape[1]) * float(k))
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a >= b:
            continue
        z = factors[a:b]
        y = images[a:b]
        image = y.copy()
        size = math.sqrt(product_norm_squared(z, image))
        if size == 0.0:
            y[:, :] = 0.0
            continue
        limit = min(_IMAGE_RADIUS / size, _MAX_IMAGE_NORM / math.sqrt(sum_of_squares(image)))
        t = units_of_image(rows[a:b], z, per_unit)
        if t > limit * COUNTED_AS_CLIPPED:
            clipped += 1
        t = min(t, limit)
        if not _fits(image, t, z, y, bound):
            # Rounding adds at most half a cell to y, which |z| <= RADIUS carries to the product.
            half_cell = (0.5 * math.sqrt(float(y.size)) + 1.0) * _RADIUS / _IMAGE_RADIUS
            t = min(t, limit * (1.0 - half_cell))
            t = t * guard(float(factors.shape[1]) * float(k)) * (1.0 - 2.0**-30)
            if not t > 0.0 or not _fits(image, t, z, y, bound):
                y[:, :] = 0.0
    return clipped


@njit(cache=True, nogil=True)
def units_of_image(rows: NDArray[np.float64], z: NDArray[np.float64], per_unit: float) -> float:
    """t with t z^T (z 2**20 Q) = A Q in lattice units, for rows that are not zero; may be inf."""
    e = exponent(rows)
    if e == NO_EXPONENT:
        return 0.0
    norm_squared = scale_down(rows, e, np.empty_like(rows))
    # 1/f**2 = (|x|/|z|)**2, in two factors so that 2**(2 e) cannot overflow early
    ratio = norm_squared / sum_of_squares(z) * 2.0**-20
    return math.ldexp(math.ldexp(per_unit * ratio, e), e)


@njit(cache=True, nogil=True)
def _fits(
    image: NDArray[np.float64],
    t: float,
    z: NDArray[np.float64],
    y: NDArray[np.float64],
    bound: float,
) -> bool:
    """Round t * image into y and tell whether both bounds hold."""
    if not round_scaled(image, t, y) <= _MAX_IMAGE_NORM * _MAX_IMAGE_NORM:
        return False
    return product_norm_squared(z, y) <= bound


@njit(cache=True, nogil=True)
def quantise_matrices(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
    out: NDArray[np.float64],
) -> int:
    """Clip symmetric matrices in Frobenius norm to MATRIX_RADIUS lattice units and round them.

    Parameters and result as those of :func:`quantise_factors`; a record is d
    rows of a symmetric d x d matrix, and so is its image: equal entries round
    equally.
    """
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a < b and clip_and_round(rows[a:b], per_unit, _MATRIX_RADIUS, out[a:b]):
            clipped += 1
    return clipped


@njit(cache=True, nogil=True)
def quantise_matrix_images(
    rows: NDArray[np.float64],
    matrices: NDArray[np.float64],
    images: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
) -> int:
    """Clip A Q in Frobenius norm to MATRIX_RADIUS lattice units and round it.

    Parameters
    ----------
    rows : (n, d) float64
        The records themselves.
    matrices : (n, d) float64
        The same, normalised and rounded by :func:`quantise_matrices` with
        ``per_unit = inf``: direction M of each record.
    images : (n, k) float64
        On entry ``matrices @ quantise_basis(Q)``, exact integers. On return
        integers with Frobenius norm at most MATRIX_RADIUS for every record.
    starts : (m + 1,) int64
    per_unit : float
        Lattice units per unit of the data.

    Returns
    -------
    int
        Records with an image above the radius.
    """
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a >= b:
            continue
        ratio, e = matrix_scale(rows[a:b], matrices[a:b])
        if clip_and_round(images[a:b], math.ldexp(per_unit * ratio, e), _MATRIX_RADIUS, images[a:b]):
            clipped += 1
    return clipped


@njit(cache=True, nogil=True)
def matrix_scale(rows: NDArray[np.float64], matrix: NDArray[np.float64]) -> tuple[float, int]:
    """(ratio, e) such that A Q is ratio 2**e times M (2**20 Q); (0, 0) for M = 0."""
    e = exponent(rows)
    norm_squared = sum_of_squares(matrix)
    if e == NO_EXPONENT or norm_squared == 0.0:
        return 0.0, 0
    norm = math.sqrt(scale_down(rows, e, np.empty_like(rows)))
    return norm / math.sqrt(norm_squared) * 2.0**-20, e
