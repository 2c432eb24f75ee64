"""Oja's steps record by record: blocks with a QR after each step, or one noisy message.

A message depends on its record and on public numbers alone, in a fixed order; its bound is
checked on its integers.
"""

from __future__ import annotations

import math

import numpy as np

from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import Floats, Integers
from streaming_pca.kernels.rounding import NO_EXPONENT, clip_and_round, exponent, record_product, scale_down

MESSAGE_RADIUS = 2**40
"""Largest norm of a message without noise, in lattice units."""


@njit(cache=True, nogil=True)
def oja_steps(rows: Floats, starts: Integers, of_matrices: bool, basis: Floats, rates: Floats) -> None:
    """Update Q <- orth(Q + eta_i A_i Q) for each record in turn, in place.

    A record's rows are A itself if ``of_matrices``, or F with A = F^T F. ``basis`` (d, k) has orthonormal
    columns in C order; ``rates`` (m,) are the eta_i.
    """
    d, k = basis.shape
    product = np.empty((d, k))
    next_basis = np.empty((d, k))
    for i in range(starts.shape[0] - 1):
        x = rows[starts[i] : starts[i + 1]]
        if x.shape[0] == 0:
            continue
        record_product(x, of_matrices, basis, product)
        for j in range(d):
            for c in range(k):
                next_basis[j, c] = basis[j, c] + rates[i] * product[j, c]
        if _orthonormalised(next_basis):
            basis[:, :] = next_basis


@njit(cache=True, nogil=True)
def _orthonormalised(basis: Floats) -> bool:
    """Orthonormalise by Gram-Schmidt, twice for each column, in place; False if one vanishes or overflows."""
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
    """Project ``vector`` off the columns of U (d, c) in place, one after the other."""
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
    """Compute clip(P A w) as integers of norm at most MESSAGE_RADIUS; P = I - U U^T.

    ``rows``, (r, d), of one record, are A itself if ``of_matrices``, or F with A = F^T F; r may be 0.
    ``iterate`` is w = P w; ``removed``, (d, c), C order, is U, with orthonormal columns; c may be 0.
    ``per_unit``: lattice units per unit of A. ``out`` is zero where the record is null, or holds a NaN or an
    infinity. Returns whether it was clipped.
    """
    d = iterate.shape[0]
    out[:] = 0
    e = exponent(rows)
    if e == NO_EXPONENT:
        return False
    # A power of two keeps products from overflowing.
    x = np.empty_like(rows)
    scale_down(rows, e, x)
    product = np.zeros((1, d))
    for i in range(x.shape[0]):
        seen = 0.0
        for j in range(d):
            seen += x[i, j] * iterate[j]
        if of_matrices:
            product[0, i] = seen
        else:
            for j in range(d):
                product[0, j] += seen * x[i, j]
    _take_out(removed, product[0])
    scale = math.ldexp(per_unit, e)
    if not of_matrices:
        scale = math.ldexp(scale, e)
    units = np.empty_like(product)
    clipped = clip_and_round(product, scale, float(MESSAGE_RADIUS), units)
    for j in range(d):
        out[j] = np.int64(units[0, j])
    return clipped


@njit(cache=True, nogil=True)
def count_clipped_messages(
    rows: Floats, starts: Integers, of_matrices: bool, iterate: Floats, removed: Floats, per_unit: float
) -> int:
    """Count the records whose message at one iterate is clipped."""
    out = np.empty(iterate.shape[0], dtype=np.int64)
    clipped = 0
    for i in range(starts.shape[0] - 1):
        clipped += oja_message(rows[starts[i] : starts[i + 1]], of_matrices, iterate, removed, per_unit, out)
    return clipped


@njit(cache=True, nogil=True)
def move_by_message(iterate: Floats, removed: Floats, message: Integers, unit: float, rate: float) -> float:
    """Update w <- P (w + rate message)/|.| in place; return <w, message> of the old w.

    ``iterate`` (d,) is w, and stays where the sum vanishes or overflows; ``removed`` (d, c) is U of
    P = I - U U^T. ``message`` (d,) has its noise, in lattice units of value ``unit``.
    """
    d = iterate.shape[0]
    seen = 0.0
    moved = np.empty(d)
    for j in range(d):
        value = float(message[j]) * unit
        seen += iterate[j] * value
        moved[j] = iterate[j] + rate * value
    # Twice: rounding leaves a trace of U after the first pass.
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
