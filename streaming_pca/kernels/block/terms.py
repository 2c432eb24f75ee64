"""Products of a tile's records with the basis, and the terms of their norms.

z is a record's rounded direction, y its product z B, C' the centre, and C' is near B M. Names are those
of :mod:`~streaming_pca.kernels.block.sums`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.bounds import Centre
from streaming_pca.kernels.block.strip_products import (
    MIXED,
    MOST_COLUMNS,
    ROWS,
    add_products,
    mix_columns,
    square_sum,
)
from streaming_pca.kernels.block.tiles import Frame, Tile, put_records
from streaming_pca.kernels.public_map import PublicMap, map_pair, map_row
from streaming_pca.kernels.records_view import RecordsView
from streaming_pca.kernels.vectors import LANES

__all__ = [
    "RECORDS_PER_FLUSH",
    "Sums",
    "add_sums",
    "copy_products",
    "load_tile",
    "new_sums",
    "overlap",
    "place_of_u",
    "product_squared",
    "record_terms",
    "units",
]

Floats = NDArray[np.float64]

RECORDS_PER_FLUSH = 2**8


class Sums(NamedTuple):
    """Scratch memory for sums and a tile's terms.

    ``exact`` (strips, k, 16) has float64 sums of up to 2**8 records, ``own`` those of one, ``total`` int64
    those of all; u is in blocks of 12 columns, each (T, columns) (:func:`place_of_u`). ``overlaps`` is y M,
    column by column; ``squares``, ``crosses`` and ``factors`` have a number a row; ``terms`` (7, T) has the
    inputs of :func:`~streaming_pca.kernels.block.bounds.scaled_down` for each record, and its factor.
    """

    exact: Floats
    own: Floats
    total: NDArray[np.int64]
    u: Floats
    overlaps: Floats
    squares: Floats
    crosses: Floats
    factors: Floats
    terms: Floats

    def whole(self, frame: Frame) -> NDArray[np.int64]:
        """Return a copy of ``total`` as (d, k)."""
        strips = self.total.reshape(frame.strips, frame.k, LANES).transpose(0, 2, 1)
        return np.array(strips.reshape(-1, frame.k)[: frame.d])


def new_sums(frame: Frame, tile: Tile) -> Sums:
    """Allocate zeroed sums."""
    size = frame.strips * frame.k * LANES
    return Sums(
        np.zeros(size),
        np.zeros(size),
        np.zeros(size, dtype=np.int64),
        np.zeros(frame.k * tile.rows),
        np.zeros(-(-frame.k // MIXED) * MIXED * tile.rows),
        np.zeros(tile.rows),
        np.zeros(tile.rows),
        np.zeros(tile.rows),
        np.zeros((7, tile.rows)),
    )


@njit(cache=True, nogil=True)
def place_of_u(c: int, tile: Tile, frame: Frame) -> tuple[int, int]:
    """Return the offset of column c of u and the stride of its entries."""
    first = c // MOST_COLUMNS * MOST_COLUMNS
    return first * tile.rows + c - first, min(MOST_COLUMNS, frame.k - first)


@njit(cache=True, nogil=True)
def add_sums(
    tile: Tile,
    frame: Frame,
    sums: Sums,
    first: int,
    count: int,
    into: Floats,
    ahead: NDArray[np.floating],
    ahead0: int,
) -> None:
    """Add z^T u of the tile's rows from ``first`` on to ``into``.

    Prefetches as many rows of ``ahead``, from entry ``ahead0`` on.
    """
    strips = (frame.d + LANES - 1) // LANES
    stride = (tile.rows + 1) * LANES
    for s in range(strips):
        for c in range(0, frame.k, MOST_COLUMNS):
            u0, columns = place_of_u(c, tile, frame)
            add_products(
                tile.z,
                s * stride + first * LANES,
                sums.u,
                u0 + first * columns,
                columns,
                count,
                into,
                (s * frame.k + c) * LANES,
                LANES,
                ahead,
                ahead0 + s * count * LANES,
            )


@njit(cache=True, nogil=True)
def product_squared(tile: Tile, frame: Frame, sums: Sums, a: int, b: int) -> float:
    """Return |z^T u|**2 of the record in rows a to b, rounded up.

    Leaves z^T u in ``sums.own``.
    """
    sums.own[:] = 0.0
    # z is in the cache already: prefetch nothing new.
    add_sums(tile, frame, sums, a, b - a, sums.own, tile.z, 0)
    total = square_sum(sums.own, 0, sums.own.size)
    return float(total) * (1.0 + (float(sums.own.size) + 8.0) * 2.0**-52)


@njit(cache=True, nogil=True)
def overlap(tile: Tile, frame: Frame, sums: Sums, centre: Centre, n: int) -> None:
    """Compute y M of n rows, and each row's |y|**2 and <y, y M>."""
    rows, y, overlaps = tile.rows, tile.y, sums.overlaps
    squares, crosses = sums.squares[:n], sums.crosses[:n]
    squares[:] = 0.0
    crosses[:] = 0.0
    with_centre = centre.mix.size > 0
    if with_centre:
        width = centre.mix.shape[1]
        for c in range(0, width, MIXED):
            for i in range(0, n, ROWS):
                mix_columns(y, i, rows, centre.mix, c, width, frame.columns, overlaps, c * rows + i, rows)
    for c in range(frame.k):
        of_column = y[c * rows : c * rows + n]
        o = overlaps[c * rows : c * rows + n]
        for i in range(n):
            squares[i] += of_column[i] * of_column[i]
        if with_centre:
            for i in range(n):
                crosses[i] += of_column[i] * o[i]


@njit(cache=True, nogil=True)
def copy_products(tile: Tile, frame: Frame, sums: Sums, a: int, b: int) -> None:
    """Copy y of rows a to b to the place of u."""
    for c in range(frame.k):
        u0, step = place_of_u(c, tile, frame)
        for i in range(a, b):
            sums.u[u0 + i * step] = tile.y[c * tile.rows + i]


@njit(cache=True, nogil=True, error_model="numpy")
def units(scale: float, e: int, per_unit: float) -> float:
    """Return t with t z^T y = A Q in lattice units; may be inf."""
    t = per_unit / (scale * scale)
    return t if e == 0 else math.ldexp(math.ldexp(t, e), e)


@njit(cache=True, nogil=True)
def record_terms(tile: Tile, sums: Sums, a: int, b: int, margin: float) -> tuple[float, float, float]:
    """Return |z|**2 rounded up, |u|**2 and <u, z C'> of a record.

    The record is in rows a to b of the tile; before u is set, y takes its place.
    """
    norm = squares = cross = 0.0
    for j in range(a, b):
        norm += tile.squares[j]
        squares += sums.squares[j]
        cross += sums.crosses[j]
    return norm * margin, squares, cross


@njit(cache=True, nogil=True)
def load_tile(
    read: RecordsView,
    first: int,
    last: int,
    how: PublicMap,
    plain: bool,
    tile: Tile,
    room: Floats,
    places: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill the tile from record ``first`` on; return the next record and the count.

    ``places`` receives each record's number, counted from ``first``; absent numbers are null records.
    """
    rows, begins, starts = read.rows, read.begins, read.starts
    slots, offsets = tile.begins, tile.offsets
    d = rows.shape[1]
    step = 2 if how.pairs else 1
    records = slot = 0
    i = first
    while i < last:
        a = begins[i]
        r = starts[i + 1] - starts[i]
        if how.pairs:
            r = 1 if r == 1 and starts[i + 2] - starts[i + 1] == 1 else 0
        if slot + r > tile.rows or records == RECORDS_PER_FLUSH:
            break
        i += step
        if r == 0:
            continue
        places[records] = (i - first) // step - 1
        if how.pairs:
            map_pair(rows[a], rows[begins[i - 1]], how, room[slot])
        elif not plain:
            for j in range(r):
                map_row(rows[a + j], how, room[slot + j])
        for j in range(r):
            offsets[slot + j] = (a + j if plain else slot + j) * d
        slots[records] = slot
        records += 1
        slot += r
        slots[records] = slot
    if plain:
        put_records(rows, tile, records)
    else:
        put_records(room, tile, records)
    return i, records
