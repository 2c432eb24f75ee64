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
def round_factors(
    read: RecordsView, first: int, last: int, how: PublicMap, per_unit: float, room: Floats, out: Floats
) -> tuple[int, int, int]:
    """Clip factors to RADIUS lattice units and round them, until ``out`` is full.

    Records ``first`` to ``last`` are whole pairs, if paired. ``per_unit``: lattice units per unit of the
    mapped data; inf normalises every record to RADIUS. ``room``: (r, d), scratch for the longest record.
    ``out``: (n, d), n >= r, integers, record after record, each of Frobenius norm at most RADIUS: the trace
    of out^T out is at most RADIUS**2 a record.

    Returns the next record, the used rows of ``out``, and the number of clipped records.
    """
    rows = clipped = 0
    step = 2 if how.pairs else 1
    i = first
    while i < last:
        if rows + read.starts[i + 1] - read.starts[i] > out.shape[0]:
            break
        r = load_factor(read, i, how, room)
        i += step
        if r > 0:
            if clip_and_round(room[:r], per_unit, _RADIUS, out[rows : rows + r]):
                clipped += 1
            rows += r
    return i, rows, clipped


@njit(cache=True, nogil=True)
def sum_factors(
    read: RecordsView,
    first: int,
    last: int,
    how: PublicMap,
    per_unit: float,
    dsyrk: int,
    room: Floats,
    rounded: Floats,
    exact: Floats,
    total: Integers,
) -> int:
    """Add F^T F of rounded factors to ``total``, its lower triangle; return the number clipped.

    Products of BLOCK records of norm 2**20 sum to at most 2**53: exact in float64, in any order.

    ``dsyrk`` is :func:`~streaming_pca.kernels.blas.dsyrk_address`; ``rounded``, (n, d), n >= r, is scratch
    for the rows of one BLAS product, ``exact``, (d, d), too: zeros, and zeros again on return. The others are
    as for :func:`round_factors`.
    """
    held = clipped = 0
    while first < last:
        # If paired, BLOCK records are whole pairs.
        end, rows, more = round_factors(read, first, min(last, first + BLOCK), how, per_unit, room, rounded)
        if held + end - first > BLOCK:
            _flush(exact, total)
            held = 0
        add_gram(dsyrk, rounded, rows, exact)
        held += end - first
        clipped += more
        first = end
    _flush(exact, total)
    return clipped


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
def sum_scaled_factors(
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
    """Add F^T F of chosen records, each with its own lattice unit; return the number clipped.

    At any scale a record's integers have a Frobenius norm of at most RADIUS
    (:func:`~streaming_pca.kernels.rounding.clip_and_round`), so BLOCK of them add up exactly. Other
    parameters are those of :func:`sum_factors`.

    ``chosen``: (m,), indices of the records (pairs) to add. ``per_units``: (m,), lattice units per unit of
    each record; inf normalises it to RADIUS. ``turn``: (d, d) or (0, 0), public change of coordinates applied
    first; empty for none.
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
