"""Oja's steps record by record, compiled: whole blocks with a QR after each, or one noisy message.

A message about a record is a function of that record and of public numbers, in a
fixed order, without ``fastmath``; its bound is checked on its integers.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.products import record_image
from streaming_pca.linalg.rounding import NO_EXPONENT, clip_and_round, exponent, scale_down

__all__ = ["MESSAGE_RADIUS", "count_clipped_messages", "move_by_message", "oja_message", "oja_steps"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

MESSAGE_RADIUS = 2**40
"""Largest norm of a message without noise, in lattice units."""


@njit(cache=True, nogil=True)
def oja_steps(
    rows: Floats, starts: NDArray[np.int64], of_matrices: bool, basis: Floats, rates: Floats
) -> None:
    """Q <- orth(Q + eta_i A_i Q) for each record in turn, in place.

    Parameters
    ----------
    rows : (n, d) float64
    starts : (m + 1,) int64
    of_matrices : bool
        Whether a record's rows are A itself, or F with A = F^T F.
    basis : (d, k) float64, C order, orthonormal columns
    rates : (m,) float64
    """
    d, k = basis.shape
    image = np.empty((d, k))
    next_basis = np.empty((d, k))
    for i in range(starts.shape[0] - 1):
        x = rows[starts[i] : starts[i + 1]]
        if x.shape[0] == 0:
            continue
        record_image(x, of_matrices, basis, image)
        for j in range(d):
            for c in range(k):
                next_basis[j, c] = basis[j, c] + rates[i] * image[j, c]
        if _orthonormalised(next_basis):
            basis[:, :] = next_basis


@njit(cache=True, nogil=True)
def _orthonormalised(basis: Floats) -> bool:
    """Gram-Schmidt, twice for each column, in place; False where a column vanishes or overflows."""
    d, k = basis.shape
    for c in range(k):
        for _ in range(2):
            for b in range(c):
                inner = 0.0
                for j in range(d):
                    inner += basis[j, b] * basis[j, c]
                for j in range(d):
                    basis[j, c] -= inner * basis[j, b]
        size = 0.0
        for j in range(d):
            size += basis[j, c] * basis[j, c]
        size = math.sqrt(size)
        if not 0.0 < size < math.inf:
            return False
        for j in range(d):
            basis[j, c] /= size
    return True


@njit(cache=True, nogil=True)
def _take_out(removed: Floats, vector: Floats) -> None:
    """vector <- (I - U U^T) vector in place, one column of U (d, c) after the other."""
    d, c = removed.shape
    for a in range(c):
        inner = 0.0
        for j in range(d):
            inner += removed[j, a] * vector[j]
        for j in range(d):
            vector[j] -= inner * removed[j, a]


@njit(cache=True, nogil=True)
def oja_message(
    rows: Floats, of_matrices: bool, iterate: Floats, removed: Floats, per_unit: float, out: Integers
) -> bool:
    """clip(P A w), P = I - U U^T, in lattice units: integers of norm at most MESSAGE_RADIUS.

    Parameters
    ----------
    rows : (r, d) float64
        Of one record; r may be 0.
    of_matrices : bool
        Whether the rows are A itself, or F with A = F^T F.
    iterate : (d,) float64
        w = P w.
    removed : (d, c) float64, C order
        U, orthonormal columns; c may be 0.
    per_unit : float
        Lattice units per unit of A.
    out : (d,) int64
        Zero where the record is null, or holds a NaN or an infinity.

    Returns
    -------
    bool
        Whether the clip made it smaller.
    """
    d = iterate.shape[0]
    out[:] = 0
    e = exponent(rows)
    if e == NO_EXPONENT:
        return False
    # By a power of two, so that no product overflows.
    x = np.empty_like(rows)
    scale_down(rows, e, x)
    image = np.zeros((1, d))
    for i in range(x.shape[0]):
        seen = 0.0
        for j in range(d):
            seen += x[i, j] * iterate[j]
        if of_matrices:
            image[0, i] = seen
        else:
            for j in range(d):
                image[0, j] += seen * x[i, j]
    _take_out(removed, image[0])
    scale = math.ldexp(per_unit, e)
    if not of_matrices:
        scale = math.ldexp(scale, e)
    units = np.empty_like(image)
    clipped = clip_and_round(image, scale, float(MESSAGE_RADIUS), units)
    for j in range(d):
        out[j] = np.int64(units[0, j])
    return clipped


@njit(cache=True, nogil=True)
def count_clipped_messages(
    rows: Floats, starts: Integers, of_matrices: bool, iterate: Floats, removed: Floats, per_unit: float
) -> int:
    """How many records' messages at one iterate the clip makes smaller."""
    out = np.empty(iterate.shape[0], dtype=np.int64)
    clipped = 0
    for i in range(starts.shape[0] - 1):
        clipped += oja_message(rows[starts[i] : starts[i + 1]], of_matrices, iterate, removed, per_unit, out)
    return clipped


@njit(cache=True, nogil=True)
def move_by_message(iterate: Floats, removed: Floats, message: Integers, unit: float, rate: float) -> float:
    """w <- P (w + rate message)/|.| in place; returns <w, message> of the old w.

    Parameters
    ----------
    iterate : (d,) float64
        w; stays where the sum vanishes or overflows.
    removed : (d, c) float64
        U of P = I - U U^T.
    message : (d,) int64
        With its noise.
    unit : float
        What one of its units stands for.
    rate : float
    """
    d = iterate.shape[0]
    seen = 0.0
    moved = np.empty(d)
    for j in range(d):
        value = float(message[j]) * unit
        seen += iterate[j] * value
        moved[j] = iterate[j] + rate * value
    # Twice: what roundings leave of U after the first is as large as they are, no more after it.
    for _ in range(2):
        _take_out(removed, moved)
    size = 0.0
    for j in range(d):
        size += moved[j] * moved[j]
    size = math.sqrt(size)
    if 0.0 < size < math.inf:
        for j in range(d):
            iterate[j] = moved[j] / size
    return seen
