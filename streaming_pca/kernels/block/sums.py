"""Clipped sums of A Q - C over factors: one pass over the records, exact in integers.

A record contributes the integer matrix z^T u - w C', where z is its rounded direction, u its
product scaled, clipped and rounded, C' the centre in units of R 2**-20 and w its weight in
units of 2**-20; without a centre, z^T u. The contribution is clipped to R in Frobenius norm,
RADIUS**2 units, and checked by :mod:`~streaming_pca.kernels.block.bounds`. Sums of 2**8 records are
exact in float64, and are then added to int64. Proof: docs/explanation/proofs/exact-sums.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.bounds import Centre, is_within, scaled_down
from streaming_pca.kernels.block.terms import (
    RECORDS_PER_FLUSH,
    Sums,
    add_sums,
    copy_products,
    load_tile,
    overlap,
    place_of_u,
    product_squared,
    record_terms,
    units,
)
from streaming_pca.kernels.block.tiles import Frame, Tile, fill_products
from streaming_pca.kernels.public_map import PublicMap
from streaming_pca.kernels.records_view import RecordsView
from streaming_pca.kernels.vectors import data_of, intrinsic

__all__ = ["new_counter", "next_chunk", "sum_products"]


def new_counter() -> NDArray[np.int64]:
    """Return a counter for :func:`next_chunk`, at 0."""
    return np.zeros(1, dtype=np.int64)


@intrinsic
def next_chunk(typing_context: Any, counter: Any, count: Any) -> Any:
    """Reserve ``count`` consecutive numbers; return the first (``next_chunk(counter, count)``)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = data_of(context, builder, signature, args, 0)
        # Orders the numbers alone; joining the threads orders their reads and writes.
        return builder.atomic_rmw("add", address, args[1], "monotonic")

    from numba import types

    return types.int64(counter, types.int64), generate


Floats = NDArray[np.float64]


@njit(cache=True, nogil=True)
def _place_products(tile: Tile, frame: Frame, sums: Sums, n: int) -> None:
    """Compute u = rint(factor y) of n rows, with |u|**2 and <u, y M>."""
    squares, crosses, factors = sums.squares[:n], sums.crosses[:n], sums.factors[:n]
    squares[:] = 0.0
    crosses[:] = 0.0
    for c in range(frame.k):
        y = tile.y[c * tile.rows : c * tile.rows + n]
        o = sums.overlaps[c * tile.rows : c * tile.rows + n]
        for i in range(n):
            y[i] = np.rint(y[i] * factors[i])
        for i in range(n):
            squares[i] += y[i] * y[i]
            crosses[i] += y[i] * o[i]
        u0, step = place_of_u(c, tile, frame)
        for i in range(n):
            sums.u[u0 + i * step] = y[i]


@njit(cache=True, nogil=True, error_model="numpy")
def _scale_tile(
    tile: Tile, frame: Frame, sums: Sums, centre: Centre, margin: float, per_unit: float, weights: Floats
) -> int:
    """Compute u and weights of the tile's records, unchecked; return the number clipped."""
    records = weights.size
    rows = tile.begins[records]
    overlap(tile, frame, sums, centre, rows)
    terms = sums.terms
    for i in range(records):
        a, b = tile.begins[i], tile.begins[i + 1]
        norm, squares, cross = record_terms(tile, sums, a, b, margin)
        product = norm * squares
        if b - a > 1:
            copy_products(tile, frame, sums, a, b)
            product = product_squared(tile, frame, sums, a, b)
        terms[0, i], terms[1, i], terms[2, i], terms[3, i] = product, squares, norm, cross
        terms[4, i] = units(tile.scales[i], tile.exponents[i], per_unit)
        terms[5, i] = float((b - a) * frame.k)
    clipped = 0
    # A loop of its own, which the compiler vectorises.
    factors, others = terms[6], float(frame.d * frame.k)
    for i in range(records):
        factors[i], weights[i], smaller = scaled_down(
            terms[0, i],
            terms[1, i],
            math.sqrt(terms[2, i]),
            terms[3, i],
            terms[4, i],
            terms[5, i],
            terms[5, i] + others,
            centre,
        )
        clipped += smaller
    for i in range(records):
        for j in range(tile.begins[i], tile.begins[i + 1]):
            sums.factors[j] = factors[i]
    _place_products(tile, frame, sums, rows)
    return clipped


@njit(cache=True, nogil=True, error_model="numpy")
def _add_tile(
    tile: Tile,
    frame: Frame,
    sums: Sums,
    centre: Centre,
    margin: float,
    weights: Floats,
    ahead: NDArray[np.floating],
    ahead0: int,
) -> int:
    """Add contributions within the radius to ``sums``; return the sum of their weights."""
    records = weights.size
    rows = tile.begins[records]
    total_weight = 0
    singles = False
    for i in range(records):
        a, b = tile.begins[i], tile.begins[i + 1]
        norm, squares, cross = record_terms(tile, sums, a, b, margin)
        several = b - a > 1
        product = product_squared(tile, frame, sums, a, b) if several else norm * squares
        n = float((b - a + frame.d) * frame.k)
        within = is_within(product, squares, math.sqrt(norm), cross, weights[i], n, centre)
        if within:
            total_weight += int(weights[i])
        if several and within:
            exact = sums.exact
            for j in range(exact.size):
                exact[j] += sums.own[j]
        if several or not within:
            # Added already, or refused.
            for c in range(frame.k):
                u0, step = place_of_u(c, tile, frame)
                for j in range(a, b):
                    sums.u[u0 + j * step] = 0.0
        else:
            singles = True
    if singles:
        add_sums(tile, frame, sums, 0, rows, sums.exact, ahead, ahead0)
    return total_weight


@njit(cache=True, nogil=True)
def _flush(sums: Sums) -> None:
    """Add the float64 sums to int64 and reset them."""
    exact, total = sums.exact, sums.total
    for j in range(exact.size):
        total[j] += np.int64(exact[j])
        exact[j] = 0.0


@njit(cache=True, nogil=True)
def sum_products(
    read: RecordsView,
    counter: NDArray[np.int64],
    share: int,
    how: PublicMap,
    plain: bool,
    frame: Frame,
    centre: Centre,
    margin: float,
    per_unit: float,
    tile: Tile,
    sums: Sums,
    room: Floats,
) -> tuple[int, int]:
    """Add contributions of this thread's records to ``sums.total``, without w C'.

    Parameters
    ----------
    read : RecordsView
    counter : (1,) int64
        Shared by all threads of this sum: records taken so far.
    share : int
        Records to take at once; even for pairs.
    how : PublicMap
    plain : bool
        Whether the map leaves features unchanged.
    frame, centre
        Q and C'.
    margin : float
        Of squared norms.
    per_unit : float
        Lattice units per squared unit of the data.
    tile, sums
        Scratch; the tile holds at least the longest record.
    room : (T, d) float64
        Scratch for mapped rows; unused where ``plain``.

    Returns
    -------
    (int, int)
        Clipped records, and the sum of all weights.
    """
    places = np.empty(tile.rows, dtype=np.int64)
    all_weights = np.empty(tile.rows)
    clipped = weights = waiting = nulls = 0
    step = 2 if how.pairs else 1
    sums.total[:] = 0
    i = next_chunk(counter, share)
    while i < read.begins.size:
        last = min(i + share, read.begins.size)
        nulls += (last - i) // step
        while i < last:
            i, records = load_tile(read, i, last, how, plain, tile, room, places)
            if records == 0:
                continue
            nulls -= records
            n = tile.begins[records]
            fill_products(tile, frame, n)
            clipped += _scale_tile(tile, frame, sums, centre, margin, per_unit, all_weights[:records])
            waiting += records
            if waiting > RECORDS_PER_FLUSH:
                _flush(sums)
                waiting = records
            # Prefetch: the next tile's rows, unless another thread takes them.
            ahead0 = (read.begins[i - 1] + 1) * frame.d
            weights += _add_tile(tile, frame, sums, centre, margin, all_weights[:records], read.rows, ahead0)
        i = next_chunk(counter, share)
    _flush(sums)
    if centre.mix.size > 0:
        # Null records: no product, and the centre's clipped weight each.
        n_entries = float(frame.d * frame.k)
        _, of_null, smaller = scaled_down(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, n_entries, centre)
        if is_within(0.0, 0.0, 0.0, 0.0, of_null, n_entries, centre):
            weights += nulls * int(of_null)
        clipped += nulls * int(smaller)
    return clipped, weights
