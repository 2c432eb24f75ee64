"""Factors of covariance sums: mapped, clipped and rounded within the nearest cache."""

from __future__ import annotations

import numpy as np

from streaming_pca.kernels import njit
from streaming_pca.kernels.blas import add_gram
from streaming_pca.kernels.lattice import BLOCK, RADIUS, Floats, Integers
from streaming_pca.kernels.reading import PublicMap, RecordsView, load_factor
from streaming_pca.kernels.rounding import are_finite, clip_and_round, sum_of_squares, times

_RADIUS = float(RADIUS)


@njit(cache=True, nogil=True)
def _flush(exact: Floats, total: Integers) -> None:
    """Add the lower triangle to int64 and reset it."""
    for i in range(exact.shape[0]):
        for j in range(i + 1):
            total[i, j] += np.int64(exact[i, j])
            exact[i, j] = 0.0


@njit(cache=True, nogil=True)
def factor_squared_norms(
    read: RecordsView, first: int, last: int, how: PublicMap, turn: Floats, room: Floats, out: Floats
) -> None:
    """Write |F turn|_F**2 of each mapped factor, never NaN. 0 for null and for infinite records.

    ``turn``: (d, d), an earlier private output; (0, 0) for none.
    """
    step = 2 if how.pairs else 1
    turned = np.empty((room.shape[0], turn.shape[1])) if turn.size else room
    for n in range((last - first) // step):
        r = load_factor(read, first + n * step, how, room)
        if turn.size:
            times(room[:r], turn, turned[:r])
        out[n] = sum_of_squares(turned[:r])
        if not out[n] < np.inf and not are_finite(turned[:r]):
            out[n] = 0.0


@njit(cache=True, nogil=True)
def sum_factors(
    read: RecordsView,
    chosen: Integers,
    per_units: Floats,
    how: PublicMap,
    turn: Floats,
    dsyrk: int,
    room: Floats,
    rounded: Floats,
    exact: Floats,
    total: Integers,
) -> int:
    """Add F^T F of chosen records to ``total``, its lower triangle; return the number clipped.

    At any scale a record's integers have a Frobenius norm of at most RADIUS
    (:func:`~streaming_pca.kernels.rounding.clip_and_round`), so the trace of F^T F is at most RADIUS**2, and
    products of BLOCK records sum to at most 2**53: exact in float64, in any order.

    Parameters
    ----------
    chosen : (m,), indices of the records (pairs) to add.
    per_units : (m,), lattice units per unit of each mapped record; inf normalises it to RADIUS.
    turn : (d, d), public change of coordinates applied first; (0, 0) for none.
    dsyrk : :func:`~streaming_pca.kernels.blas.dsyrk_address`.
    room, rounded : (r, d) and (n, d), n >= r, scratch for the longest record and for one BLAS product.
    exact : (d, d), scratch: zeros, and zeros again on return.
    """
    step = 2 if how.pairs else 1
    turned = np.empty((room.shape[0], turn.shape[1])) if turn.size else room
    held = rows = clipped = 0
    for n in range(chosen.shape[0]):
        r = load_factor(read, chosen[n] * step, how, room)
        if r == 0:
            continue
        if rows + r > rounded.shape[0] or held == BLOCK:
            add_gram(dsyrk, rounded, rows, exact)
            rows = 0
            if held == BLOCK:
                _flush(exact, total)
                held = 0
        if turn.size:
            times(room[:r], turn, turned[:r])
        if clip_and_round(turned[:r], per_units[n], _RADIUS, rounded[rows : rows + r]):
            clipped += 1
        rows += r
        held += 1
    add_gram(dsyrk, rounded, rows, exact)
    _flush(exact, total)
    return clipped
