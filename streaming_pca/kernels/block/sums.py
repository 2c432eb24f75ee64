"""Clipped sums of A Q - C over factors: one pass over the records, exact in integers.

A record contributes the integer matrix z^T u - w C', where z is its rounded direction, u its
product scaled, clipped and rounded, C' the centre in units of R 2**-20 and w its weight in
units of 2**-20; without a centre, z^T u. The contribution is clipped to R in Frobenius norm,
RADIUS**2 units, and checked by :mod:`~streaming_pca.kernels.block.bounds`. Sums of 2**8 records are
exact in float64, and are then added to int64. Proof: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streaming_pca.kernels import njit
from streaming_pca.kernels.blas import add_product, array_pointer, intrinsic
from streaming_pca.kernels.block.bounds import Centre, is_within, scaled_down
from streaming_pca.kernels.block.chunks import MOST_RECORDS, Chunk, fill_chunk, product_squared, rough_squared
from streaming_pca.kernels.lattice import Floats, Integers
from streaming_pca.kernels.reading import PublicMap, RecordsView
from streaming_pca.kernels.rounding import erase


def new_counter() -> Integers:
    """Return a counter for :func:`next_chunk`, at 0."""
    return np.zeros(1, dtype=np.int64)


@intrinsic
def next_chunk(typing_context: Any, counter: Any, count: Any) -> Any:
    """Reserve ``count`` consecutive numbers; return the first (``next_chunk(counter, count)``)."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = array_pointer(context, builder, signature, args, 0)
        # Orders the numbers alone; joining the threads orders their reads and writes.
        return builder.atomic_rmw("add", address, args[1], "monotonic")

    from numba import types

    return types.int64(counter, types.int64), generate


@njit(cache=True, nogil=True, error_model="numpy")
def _scale(chunk: Chunk, centre: Centre, dgemm: int, weights: Floats) -> int:
    """Compute scales and weights of the chunk's records, unchecked; return the number clipped."""
    terms, records = chunk.terms, weights.size
    for n in range(records):
        terms[0, n] = terms[1, n] * terms[2, n]
        if chunk.begins[n + 1] - chunk.begins[n] > 1:
            terms[0, n] = rough_squared(chunk, n, dgemm)
    clipped = 0
    others = float(chunk.own.size)
    # A separate loop, which the compiler vectorises.
    for n in range(records):
        terms[6, n], weights[n], smaller = scaled_down(
            terms[0, n],
            terms[1, n],
            math.sqrt(terms[2, n]),
            terms[3, n],
            terms[4, n],
            terms[5, n],
            terms[5, n] + others,
            centre,
        )
        clipped += smaller
    return clipped


@njit(cache=True, nogil=True, error_model="numpy")
def _add(chunk: Chunk, centre: Centre, dgemm: int, weights: Floats, exact: Floats) -> int:
    """Add contributions within the radius to ``exact``; return the sum of their weights."""
    y, u, overlaps = chunk.y, chunk.u, chunk.overlaps
    with_centre = centre.mix.size > 0
    k = u.shape[1]
    total_weight = 0
    singles = False
    for n in range(weights.size):
        a, b = chunk.begins[n], chunk.begins[n + 1]
        factor, squares, cross = chunk.terms[6, n], 0.0, 0.0
        for i in range(a, b):
            for c in range(k):
                rounded = np.rint(factor * y[i, c])
                u[i, c] = rounded
                squares += rounded * rounded
                if with_centre:
                    cross += rounded * overlaps[i, c]
        several = b - a > 1
        product = product_squared(chunk, n, dgemm) if several else squares * chunk.terms[2, n]
        entries = float(chunk.own.size) + chunk.terms[5, n]
        within = is_within(product, squares, math.sqrt(chunk.terms[2, n]), cross, weights[n], entries, centre)
        if within:
            total_weight += int(weights[n])
        if several and within:
            for j in range(exact.shape[0]):
                for c in range(k):
                    exact[j, c] += chunk.own[j, c]
        if several or not within:
            # Added already, or refused.
            erase(u[a:b])
        else:
            singles = True
    if singles:
        rows = chunk.begins[weights.size]
        add_product(dgemm, chunk.z[:rows], u[:rows], 1.0, exact)
    return total_weight


@njit(cache=True, nogil=True)
def _flush(exact: Floats, total: Integers) -> None:
    """Add the float64 sums to int64 and reset them."""
    for j in range(exact.shape[0]):
        for c in range(exact.shape[1]):
            total[j, c] += np.int64(exact[j, c])
            exact[j, c] = 0.0


@njit(cache=True, nogil=True)
def sum_products(
    read: RecordsView,
    counter: Integers,
    share: int,
    how: PublicMap,
    columns: Floats,
    centre: Centre,
    per_unit: float,
    dgemm: int,
    chunk: Chunk,
    exact: Floats,
    total: Integers,
) -> tuple[int, int]:
    """Add contributions of this thread's records to ``total``, without w C'.

    Returns the number of clipped records, and the sum of all weights.

    Parameters
    ----------
    counter : (1,), shared by all threads of this sum: records taken so far.
    share : records of one turn; even for pairs.
    columns : (d, c), B, on a grid of 2**-30; the first k are Q.
    per_unit : lattice units per squared unit of the data.
    dgemm : :func:`~streaming_pca.kernels.blas.dgemm_address`.
    chunk : scratch; it holds at least the longest record.
    exact, total : (d, k) float64 zeros for scratch, and the (d, k) int64 sum.
    """
    all_weights = np.empty(chunk.places.size)
    clipped = weights = waiting = nulls = 0
    step = 2 if how.pairs else 1
    i = next_chunk(counter, share)
    while i < read.begins.size:
        last = min(i + share, read.begins.size)
        nulls += (last - i) // step
        while i < last:
            i, records = fill_chunk(read, i, last, how, columns, centre, per_unit, dgemm, chunk)
            if records == 0:
                continue
            nulls -= records
            clipped += _scale(chunk, centre, dgemm, all_weights[:records])
            waiting += records
            if waiting > MOST_RECORDS:
                _flush(exact, total)
                waiting = records
            weights += _add(chunk, centre, dgemm, all_weights[:records], exact)
        i = next_chunk(counter, share)
    _flush(exact, total)
    if centre.mix.size > 0:
        # Null records: no product, and the centre's clipped weight each.
        n_entries = float(chunk.own.size)
        _, of_null, smaller = scaled_down(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, n_entries, centre)
        if is_within(0.0, 0.0, 0.0, 0.0, of_null, n_entries, centre):
            weights += nulls * int(of_null)
        clipped += nulls * int(smaller)
    return clipped, weights
