"""Chunks: some records at a time, mapped, normalised, rounded, and multiplied by BLAS.

A record F of r rows becomes z, about 2**20 F/|F|_F, rounded to integers, and its product y = z B, for columns
B on a grid of 2**-30: every partial sum of y is an integer of 51 bits over 2**30, so BLAS adds it exactly in
any order. With F = f z for a number f, A Q = F^T F Q is f**2 z^T y for the columns Q of B.
A chunk's result for a record depends on that record and on public numbers alone, bit for bit, and is the
same for float32 and float64 entries of equal values. Error bounds: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streaming_pca.kernels import njit
from streaming_pca.kernels.blas import add_product, multiply
from streaming_pca.kernels.block.bounds import Centre
from streaming_pca.kernels.lattice import RADIUS, Floats, Integers
from streaming_pca.kernels.reading import PublicMap, RecordsView, load_factor
from streaming_pca.kernels.rounding import fit_squares, round_scaled, sum_of_squares

MOST_RECORDS = 2**8
"""Records whose products z^T u float64 adds exactly."""

_RADIUS = float(RADIUS)
_GRID = 30
_CHUNK_ENTRIES = 2**16
_LEAST_ROWS = 32


def grid(columns: Floats, bits: int = _GRID) -> Floats:
    """Round columns to multiples of 2**-bits."""
    return np.ascontiguousarray(np.ldexp(np.rint(np.ldexp(columns, bits)), -bits), dtype=np.float64)


class Chunk(NamedTuple):
    """Scratch memory for some rows, their products, and the terms of their records."""

    z: Floats
    """(T, d) rounded directions."""
    y: Floats
    """(T, c) products with all columns B."""
    overlaps: Floats
    """(T, k) y M, for a centre near B M."""
    u: Floats
    """(T, k) products with Q, scaled and rounded."""
    own: Floats
    """(d, k) z^T u of one record of several rows."""
    begins: Integers
    """(T + 1,) first row of each record, and the end of the last."""
    places: Integers
    """(T,) number of each record, counted from the first one read; absent numbers are null records."""
    terms: Floats
    """(7, T) for each record: |z^T y|**2, |y|**2, |z|**2, <y, z C'>, its units, r k, and the scale of u."""
    values: Floats
    """(r, d) scratch for the longest record."""


def chunk_rows(d: int, longest: int) -> int:
    """Return T for rows of d features: as many as a cache holds, at least ``longest``."""
    return max(min(max(_CHUNK_ENTRIES // max(d, 1), _LEAST_ROWS), MOST_RECORDS), longest)


def new_chunk(d: int, k: int, columns: int, longest: int) -> Chunk:
    """Allocate a chunk of :func:`chunk_rows` rows."""
    rows = chunk_rows(d, longest)
    return Chunk(
        np.zeros((rows, d)),
        np.zeros((rows, columns)),
        np.zeros((rows, k)),
        np.zeros((rows, k)),
        np.zeros((d, k)),
        np.zeros(rows + 1, dtype=np.int64),
        np.zeros(rows, dtype=np.int64),
        np.zeros((7, rows)),
        np.zeros((longest, d)),
    )


@njit(cache=True, nogil=True)
def _round_direction(values: Floats, out: Floats) -> tuple[float, int, float]:
    """Write z = rint(scale 2**-e F); return scale, e and |z|**2, or zeros for a null record."""
    size, e = fit_squares(values)
    if size == 0.0:
        return 0.0, 0, 0.0
    scale = _RADIUS / math.sqrt(size)
    return scale, e, round_scaled(values, scale, out)


@njit(cache=True, nogil=True, error_model="numpy")
def _units(scale: float, e: int, per_unit: float) -> float:
    """Return t with t z^T y = A Q in lattice units; may be inf."""
    t = per_unit / (scale * scale)
    return t if e == 0 else math.ldexp(math.ldexp(t, e), e)


@njit(cache=True, nogil=True)
def fill_chunk(
    read: RecordsView,
    first: int,
    last: int,
    how: PublicMap,
    columns: Floats,
    centre: Centre,
    per_unit: float,
    dgemm: int,
    chunk: Chunk,
) -> tuple[int, int]:
    """Fill a chunk from record ``first`` on: z, y, y M and terms; return the next record and the count."""
    k = chunk.u.shape[1]
    step = 2 if how.pairs else 1
    records = slot = 0
    i = first
    while i < last and records < MOST_RECORDS:
        if slot + read.starts[i + 1] - read.starts[i] > chunk.z.shape[0]:
            break
        r = load_factor(read, i, how, chunk.values)
        i += step
        if r == 0:
            continue
        scale, e, square = _round_direction(chunk.values[:r], chunk.z[slot : slot + r])
        if square == 0.0:
            continue
        chunk.places[records] = (i - first) // step - 1
        chunk.terms[2, records] = square
        chunk.terms[4, records] = _units(scale, e, per_unit)
        chunk.terms[5, records] = float(r * k)
        chunk.begins[records] = slot
        records += 1
        slot += r
        chunk.begins[records] = slot
    if records > 0:
        multiply(dgemm, chunk.z, slot, columns, chunk.y)
        _overlap(chunk, centre, records)
    return i, records


@njit(cache=True, nogil=True)
def _overlap(chunk: Chunk, centre: Centre, records: int) -> None:
    """Compute y M, and each record's |y|**2 and <y, y M>."""
    y, overlaps, mix = chunk.y, chunk.overlaps, centre.mix
    k = overlaps.shape[1]
    for n in range(records):
        squares = cross = 0.0
        for i in range(chunk.begins[n], chunk.begins[n + 1]):
            if mix.size > 0:
                for c in range(k):
                    overlaps[i, c] = 0.0
                for b in range(mix.shape[0]):
                    # Each overlap has its own sum, so that vector instructions reorder nothing.
                    for c in range(k):
                        overlaps[i, c] += y[i, b] * mix[b, c]
                for c in range(k):
                    cross += y[i, c] * overlaps[i, c]
            for c in range(k):
                squares += y[i, c] * y[i, c]
        chunk.terms[1, n], chunk.terms[3, n] = squares, cross


@njit(cache=True, nogil=True)
def product_squared(chunk: Chunk, n: int, dgemm: int) -> float:
    """Return |z^T u|**2 of record n, rounded up; leaves z^T u in ``own``."""
    a, b = chunk.begins[n], chunk.begins[n + 1]
    add_product(dgemm, chunk.z[a:b], chunk.u[a:b], 0.0, chunk.own)
    return sum_of_squares(chunk.own) * (1.0 + (float(chunk.own.size) + 8.0) * 2.0**-52)


@njit(cache=True, nogil=True)
def rough_squared(chunk: Chunk, n: int, dgemm: int) -> float:
    """Return |z^T y|**2 of record n of several rows, rounded up: of y rounded to 23 bits of its norm."""
    a, b = chunk.begins[n], chunk.begins[n + 1]
    if chunk.terms[1, n] == 0.0:
        return 0.0
    up = math.ldexp(1.0, 23 - math.frexp(math.sqrt(chunk.terms[1, n]))[1])
    for i in range(a, b):
        for c in range(chunk.u.shape[1]):
            chunk.u[i, c] = np.rint(up * chunk.y[i, c])
    lost = 0.5 * math.sqrt(chunk.terms[5, n] * chunk.terms[2, n])
    return ((math.sqrt(product_squared(chunk, n, dgemm)) + lost) / up) ** 2
