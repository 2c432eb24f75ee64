"""Compiled kernels that clip records and round them onto the lattice.

Every kernel works record by record, in a fixed order, in float64 without
``fastmath``: what a record contributes depends on that record and on public
numbers alone, bit for bit, whatever block, thread or position it is in.

The bound is *checked in integers* rather than argued in floats: a record is
scaled, rounded to nearest and its integer norm computed exactly; if rounding
carried it above the radius it is scaled again, to a radius reduced by half the
diagonal of a lattice cell and by a rigorous allowance for the float norm,
(n + 8) 2**-52 relative for n entries; and if even that failed it would be
dropped. No float input, however extreme, reaches a sum with a larger norm.
Scaling first by the power of two of the largest entry keeps squares away from
overflow and underflow (entries from 5e-324 to 1.8e308).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.lattice import MATRIX_RADIUS, RADIUS

__all__ = [
    "quantise_factors",
    "quantise_images",
    "quantise_matrices",
    "quantise_matrix_images",
    "record_squared_norms",
]

_RADIUS = float(RADIUS)
_RADIUS_SQUARED = float(RADIUS) ** 2
_MATRIX_RADIUS = float(MATRIX_RADIUS)
_MAX_IMAGE_NORM_SQUARED = float(2**46)
_MAX_BLOCK_NORM_SQUARED = 2.0**80


@njit(cache=True, nogil=True)
def _exponent(values: NDArray[np.float64]) -> int:
    """e with 2**(e-1) <= max|v| < 2**e, or -100000 if all are zero."""
    largest = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            a = abs(values[i, j])
            if a > largest:
                largest = a
    if largest == 0.0:
        return -100000
    return math.frexp(largest)[1]


@njit(cache=True, nogil=True)
def _scale_down(values: NDArray[np.float64], e: int, out: NDArray[np.float64]) -> float:
    """out = values * 2**-e; returns the sum of squares, in row order."""
    half = e // 2
    first = math.ldexp(1.0, -half)
    second = math.ldexp(1.0, -(e - half))
    total = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            v = values[i, j] * first * second
            out[i, j] = v
            total += v * v
    return total


@njit(cache=True, nogil=True)
def _round_scaled(values: NDArray[np.float64], t: float, out: NDArray[np.float64]) -> float:
    """out = rint(t * values); returns the sum of squares, exact below 2**53."""
    total = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            z = np.rint(values[i, j] * t)
            out[i, j] = z
            total += z * z
    return total


@njit(cache=True, nogil=True)
def _quantise(
    values: NDArray[np.float64],
    per_unit: float,
    radius: float,
    out: NDArray[np.float64],
) -> None:
    """Clip to ``radius`` lattice units and round; |out|_F <= radius always.

    Zero records stay zero, and so does whatever holds a NaN or an infinity.
    ``out`` may be ``values`` itself.
    """
    e = _exponent(values)
    if e == -100000:
        out[:, :] = 0.0
        return
    norm = math.sqrt(_scale_down(values, e, out))
    scaled = out.copy()
    t = radius / norm
    if per_unit < math.inf:
        t = min(t, math.ldexp(per_unit, e))
    # Written so that a NaN fails the comparison.
    if not _round_scaled(scaled, t, out) <= radius * radius:
        n = float(values.size)
        allowance = 1.0 - (n + 8.0) * 2.0**-52
        t = (radius - 0.5 * math.sqrt(n) - 1.0) / norm * allowance
        if not t > 0.0 or not _round_scaled(scaled, t, out) <= radius * radius:
            out[:, :] = 0.0


@njit(cache=True, nogil=True)
def quantise_factors(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
    out: NDArray[np.float64],
) -> None:
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
    """
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a < b:
            _quantise(rows[a:b], per_unit, _RADIUS, out[a:b])


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
def _product_norm_squared(z: NDArray[np.float64], y: NDArray[np.float64]) -> float:
    """|z^T y|_F**2; entries are exact integers, the sum of their squares is a float."""
    if z.shape[0] == 1:
        a = 0.0
        for j in range(z.shape[1]):
            a += z[0, j] * z[0, j]
        b = 0.0
        for j in range(y.shape[1]):
            b += y[0, j] * y[0, j]
        return a * b
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
) -> None:
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

    Notes
    -----
    With z = f x and the image f 2**20 Q^T x, the product x x^T Q in lattice
    units is z y^T with y = image * per_unit/(f**2 2**20). The norm of z^T y
    is a float sum of squares of exact integers, so it is compared with a bound
    reduced by (d k + 8) 2**-52. |y| is held below 2**23 too: 2**10 records of
    many rows then still add up exactly.
    """
    d = factors.shape[1]
    k = images.shape[1]
    guard = 1.0 - (float(d) * float(k) + 8.0) * 2.0**-52
    bound = _MAX_BLOCK_NORM_SQUARED * guard
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a >= b:
            continue
        z = factors[a:b]
        y = images[a:b]
        e = _exponent(rows[a:b])
        if e == -100000 or _exponent(z) == -100000:
            y[:, :] = 0.0
            continue
        scaled = np.empty((b - a, d))
        norm_squared = _scale_down(rows[a:b], e, scaled)
        norm_z = math.sqrt(_norm_squared(z))
        # 1/f**2 = (|x|/|z|)**2, in two factors so that 2**(2 e) cannot overflow early
        ratio = norm_squared / (norm_z * norm_z) * 2.0**-20
        t = math.ldexp(math.ldexp(per_unit * ratio, e), e)
        image = y.copy()
        size = math.sqrt(_product_norm_squared(z, image))
        if size == 0.0:
            y[:, :] = 0.0
            continue
        limit = _RADIUS_SQUARED / size
        norm_image = math.sqrt(_norm_squared(image))
        limit = min(limit, 2.0**23 / norm_image)
        t = min(t, limit)
        if not _fits(image, t, z, y, bound):
            # Rounding adds at most half a cell to y, which |z| <= RADIUS carries to the product.
            n = float(y.size)
            t = min(t, limit * (1.0 - (0.5 * math.sqrt(n) + 1.0) * _RADIUS / _RADIUS_SQUARED))
            t = t * guard * (1.0 - 2.0**-30)
            if not t > 0.0 or not _fits(image, t, z, y, bound):
                y[:, :] = 0.0


@njit(cache=True, nogil=True)
def _norm_squared(values: NDArray[np.float64]) -> float:
    total = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            total += values[i, j] * values[i, j]
    return total


@njit(cache=True, nogil=True)
def _fits(
    image: NDArray[np.float64],
    t: float,
    z: NDArray[np.float64],
    y: NDArray[np.float64],
    bound: float,
) -> bool:
    """Round t * image into y and tell whether both bounds hold."""
    if not _round_scaled(image, t, y) <= _MAX_IMAGE_NORM_SQUARED:
        return False
    return _product_norm_squared(z, y) <= bound


@njit(cache=True, nogil=True)
def quantise_matrices(
    rows: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
    out: NDArray[np.float64],
) -> None:
    """Clip symmetric matrices in Frobenius norm to MATRIX_RADIUS lattice units and round them.

    Parameters as :func:`quantise_factors`; a record is d rows of a symmetric
    d x d matrix, and so is its image: equal entries round equally.
    """
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a < b:
            _quantise(rows[a:b], per_unit, _MATRIX_RADIUS, out[a:b])


@njit(cache=True, nogil=True)
def quantise_matrix_images(
    rows: NDArray[np.float64],
    matrices: NDArray[np.float64],
    images: NDArray[np.float64],
    starts: NDArray[np.int64],
    per_unit: float,
) -> None:
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
    """
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a >= b:
            continue
        e = _exponent(rows[a:b])
        norm_m = math.sqrt(_norm_squared(matrices[a:b]))
        if e == -100000 or norm_m == 0.0:
            images[a:b] = 0.0
            continue
        scaled = np.empty((b - a, rows.shape[1]))
        norm = math.sqrt(_scale_down(rows[a:b], e, scaled))
        # The image is 2**20 |M|/|A| times A Q.
        per_image_unit = math.ldexp(per_unit * (norm / norm_m * 2.0**-20), e)
        _quantise(images[a:b], per_image_unit, _MATRIX_RADIUS, images[a:b])
