"""Clipped sums of A Q - C over factors: one pass over the records, in integers that add up exactly.

A record's contribution is the integer matrix z^T u - w C', where z is its rounded
direction, u its image scaled, clipped and rounded, C' the centre in units of R 2**-20
and w its weight in units of 2**-20; without a centre, z^T u. Both are clipped to R in
Frobenius norm, which is RADIUS**2 units.

The bound is checked for every record, in numbers that carry their errors:
:mod:`~streaming_pca.linalg.image_bounds`.

Exactness: |z| is 2**20 + sqrt(r d)/2 at most, below 2**20.5, and |u| is held below 2**24.5. So the
entries of 2**8 records' z^T u sum to at most 2**8 2**20.5 2**24.5 = 2**53: float64 adds
them exactly, and every 2**8 records they are added to int64, which may wrap around on the way, as
long as the sum of all contributions, 2**62 at most, does not.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.image_bounds import WEIGHT, Centre, is_within, scaled_down
from streaming_pca.linalg.public_map import PublicMap, map_pair, map_row
from streaming_pca.linalg.shares import take
from streaming_pca.linalg.strip_products import (
    MIXED,
    MOST_COLUMNS,
    ROWS,
    add_products,
    mix_columns,
    square_sum,
)
from streaming_pca.linalg.tiles import Frame, Tile, fill_images, put_records
from streaming_pca.linalg.vectors import LANES

__all__ = ["Sums", "image_sizes", "new_sums", "sum_images"]

Floats = NDArray[np.float64]

RECORDS_PER_FLUSH = 2**8
_CANCELLED = 2.0**-10
"""Of a squared residual, what is left of its terms: below, float32 images tell too little."""


class Sums(NamedTuple):
    """Room for sums and for what is computed of a tile.

    ``exact`` (groups * group, strips * 16) and ``of_ones`` (groups * group,) are float64 sums of up to
    2**8 records, ``own`` and ``own_of_ones`` those of one, ``total`` (k, d') int64 those of all; u is
    (groups, T, group). ``overlaps`` is y M, column by column; ``squares``, ``crosses`` and ``factors`` have
    a number a row; ``terms`` (7, T) has what :func:`~streaming_pca.linalg.image_bounds.scaled_down`
    reads of each record, and the factor that it says.
    """

    group: int
    groups: int
    exact: Floats
    of_ones: Floats
    own: Floats
    own_of_ones: Floats
    total: NDArray[np.int64]
    u: Floats
    overlaps: Floats
    squares: Floats
    crosses: Floats
    factors: Floats
    terms: Floats


def new_sums(frame: Frame, tile: Tile, augmented: bool) -> Sums:
    """Room, zeroed."""
    groups = -(-frame.k // MOST_COLUMNS)
    group = -(-frame.k // groups)
    padded = frame.strips * LANES
    return Sums(
        group,
        groups,
        np.zeros(groups * group * padded),
        np.zeros(groups * group),
        np.zeros(groups * group * padded),
        np.zeros(groups * group),
        np.zeros((frame.k, frame.d + augmented), dtype=np.int64),
        np.zeros(groups * group * tile.rows),
        np.zeros(-(-frame.k // MIXED) * MIXED * tile.rows),
        np.zeros(tile.rows),
        np.zeros(tile.rows),
        np.zeros(tile.rows),
        np.zeros((7, tile.rows)),
    )


@njit(cache=True, nogil=True)
def _strip_sums(tile: Tile, frame: Frame, sums: Sums, first: int, count: int, into: Floats) -> None:
    """Add z^T u of the tile's rows from ``first`` on to ``into``."""
    strips = (frame.d + LANES - 1) // LANES
    stride = (tile.rows + 1) * LANES
    padded = strips * LANES
    for s in range(strips):
        for g in range(sums.groups):
            add_products(
                tile.z,
                s * stride + first * LANES,
                sums.u,
                (g * tile.rows + first) * sums.group,
                sums.group,
                count,
                into,
                g * sums.group * padded + s * LANES,
                padded,
            )


@njit(cache=True, nogil=True)
def _product_squared(tile: Tile, frame: Frame, sums: Sums, a: int, b: int) -> float:
    """|z^T u|**2 of the record in rows a to b of the tile, rounded up; u is in ``sums.u``.

    Leaves z^T u in ``sums.own`` and its row for the constant in ``sums.own_of_ones``.
    """
    sums.own[:] = 0.0
    _strip_sums(tile, frame, sums, a, b - a, sums.own)
    total = square_sum(sums.own, 0, sums.own.size)
    for c in range(frame.k):
        place = (c // sums.group) * tile.rows * sums.group + c % sums.group
        one = 0.0
        for i in range(a, b):
            one += tile.ones[i] * sums.u[place + i * sums.group]
        sums.own_of_ones[c] = one
        total += one * one
    return float(total) * (1.0 + (float(sums.own.size) + frame.k + 8.0) * 2.0**-52)


@njit(cache=True, nogil=True)
def _overlap(tile: Tile, frame: Frame, sums: Sums, centre: Centre, n: int) -> None:
    """y M of n rows, and each row's |y|**2 and <y, y M>."""
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
def _place_images(tile: Tile, frame: Frame, sums: Sums, n: int) -> None:
    """u = rint(factor y) of n rows, and each row's |u|**2 and <u, y M>."""
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
        first = (c // sums.group) * tile.rows * sums.group + c % sums.group
        for i in range(n):
            sums.u[first + i * sums.group] = y[i]


@njit(cache=True, nogil=True)
def _copy_images(tile: Tile, frame: Frame, sums: Sums, a: int, b: int) -> None:
    """Put y of rows a to b where u is to be."""
    for c in range(frame.k):
        first = (c // sums.group) * tile.rows * sums.group + c % sums.group
        for i in range(a, b):
            sums.u[first + i * sums.group] = tile.y[c * tile.rows + i]


@njit(cache=True, nogil=True, error_model="numpy")
def _units(scale: float, e: int, per_unit: float) -> float:
    """t with t z^T y = A Q in lattice units; may be inf."""
    t = per_unit / (scale * scale)
    return t if e == 0 else math.ldexp(math.ldexp(t, e), e)


@njit(cache=True, nogil=True)
def _record_terms(tile: Tile, sums: Sums, a: int, b: int, margin: float) -> tuple[float, float, float]:
    """|z|**2, rounded up, |u|**2 and <u, z C'> of the record in rows a to b (of y before it is u)."""
    norm = squares = cross = 0.0
    for j in range(a, b):
        norm += tile.squares[j]
        squares += sums.squares[j]
        cross += sums.crosses[j]
    return norm * margin, squares, cross


@njit(cache=True, nogil=True, error_model="numpy")
def _scale_tile(
    tile: Tile, frame: Frame, sums: Sums, centre: Centre, margin: float, per_unit: float, weights: Floats
) -> int:
    """u and weights of the tile's records, not checked yet; returns how many were made smaller."""
    records = weights.size
    rows = tile.begins[records]
    _overlap(tile, frame, sums, centre, rows)
    terms = sums.terms
    for i in range(records):
        a, b = tile.begins[i], tile.begins[i + 1]
        norm, squares, cross = _record_terms(tile, sums, a, b, margin)
        product = norm * squares
        if b - a > 1:
            _copy_images(tile, frame, sums, a, b)
            product = _product_squared(tile, frame, sums, a, b)
        terms[0, i], terms[1, i], terms[2, i], terms[3, i] = product, squares, norm, cross
        terms[4, i] = _units(tile.scales[i], tile.exponents[i], per_unit)
        terms[5, i] = float((b - a) * frame.k)
    clipped = 0
    # By itself, so that the compiler takes eight records at a time.
    factors, others = terms[6], float((frame.d + 1) * frame.k)
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
    _place_images(tile, frame, sums, rows)
    return clipped


@njit(cache=True, nogil=True, error_model="numpy")
def _add_tile(tile: Tile, frame: Frame, sums: Sums, centre: Centre, margin: float, weights: Floats) -> int:
    """Add the contributions that are within the radius to ``sums``; returns their weights' sum."""
    records = weights.size
    rows = tile.begins[records]
    total_weight = 0
    singles = False
    for i in range(records):
        a, b = tile.begins[i], tile.begins[i + 1]
        norm, squares, cross = _record_terms(tile, sums, a, b, margin)
        several = b - a > 1
        product = _product_squared(tile, frame, sums, a, b) if several else norm * squares
        n = float((b - a + frame.d + 1) * frame.k)
        within = is_within(product, squares, math.sqrt(norm), cross, weights[i], n, centre)
        if within:
            total_weight += int(weights[i])
        if several and within:
            exact, of_ones = sums.exact, sums.of_ones
            for j in range(exact.size):
                exact[j] += sums.own[j]
            for c in range(of_ones.size):
                of_ones[c] += sums.own_of_ones[c]
        if several or not within:
            # It is added already, or must not be.
            for g in range(sums.groups):
                sums.u[(g * tile.rows + a) * sums.group : (g * tile.rows + b) * sums.group] = 0.0
        else:
            singles = True
    if singles:
        _strip_sums(tile, frame, sums, 0, rows, sums.exact)
        for c in range(frame.k):
            place = (c // sums.group) * tile.rows * sums.group + c % sums.group
            one = 0.0
            for j in range(rows):
                one += tile.ones[j] * sums.u[place + j * sums.group]
            sums.of_ones[c] += one
    return total_weight


@njit(cache=True, nogil=True)
def _flush(frame: Frame, sums: Sums) -> None:
    padded = (frame.d + LANES - 1) // LANES * LANES
    for c in range(frame.k):
        exact = sums.exact[c * padded : c * padded + frame.d]
        total = sums.total[c]
        for j in range(frame.d):
            total[j] += np.int64(exact[j])
        exact[:] = 0.0
        if total.size > frame.d:
            total[frame.d] += np.int64(sums.of_ones[c])
            sums.of_ones[c] = 0.0


@njit(cache=True, nogil=True)
def _load_tile(
    rows: NDArray[np.floating],
    begins: NDArray[np.int64],
    starts: NDArray[np.int64],
    first: int,
    last: int,
    how: PublicMap,
    plain: bool,
    tile: Tile,
    room: Floats,
    places: NDArray[np.int64],
) -> tuple[int, int]:
    """Fill the tile from record ``first`` on; returns the next record, and how many are in the tile.

    ``places`` gets the number of each, counted from ``first``; those that are missing are null.
    """
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
    one = 1.0 if how.augmented else 0.0
    if plain:
        put_records(rows, tile, records, one)
    else:
        put_records(room, tile, records, one)
    return i, records


@njit(cache=True, nogil=True)
def sum_images(
    rows: NDArray[np.floating],
    begins: NDArray[np.int64],
    starts: NDArray[np.int64],
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
    """Add the contributions of records that no other thread has taken to ``sums.total``, less w C'.

    Parameters
    ----------
    rows : (n, d) float32 or float64
    begins, starts : (m,) and (m + 1,) int64
        Record i has starts[i + 1] - starts[i] rows, from rows[begins[i]] on.
    counter : (1,) int64
        Of all threads that sum these records: how many were taken.
    share : int
        Records to take at once, a multiple of those that the map makes one of.
    how : PublicMap
    plain : bool
        Whether it leaves features alone.
    frame, centre
        Q and C'.
    margin : float
        Of squared norms.
    per_unit : float
        Lattice units per squared unit of the data.
    tile, sums
        Room; the tile has room for the longest record.
    room : (T, d) float64
        For mapped rows; what has no use where ``plain``.

    Returns
    -------
    (int, int)
        Records that were made smaller, and the sum of all weights.
    """
    places = np.empty(tile.rows, dtype=np.int64)
    all_weights = np.empty(tile.rows)
    clipped = weights = waiting = nulls = 0
    step = 2 if how.pairs else 1
    sums.total[:] = 0
    i = take(counter, share)
    while i < begins.size:
        last = min(i + share, begins.size)
        nulls += (last - i) // step
        while i < last:
            i, records = _load_tile(rows, begins, starts, i, last, how, plain, tile, room, places)
            if records == 0:
                continue
            nulls -= records
            n = tile.begins[records]
            fill_images(tile, frame, n)
            clipped += _scale_tile(tile, frame, sums, centre, margin, per_unit, all_weights[:records])
            waiting += records
            if waiting > RECORDS_PER_FLUSH:
                _flush(frame, sums)
                waiting = records
            weights += _add_tile(tile, frame, sums, centre, margin, all_weights[:records])
        i = take(counter, share)
    _flush(frame, sums)
    if centre.mix.size > 0:
        # Null records: no image, and the centre's clipped weight each.
        _, of_null, smaller = scaled_down(
            0.0, 0.0, 0.0, 0.0, 0.0, 0.0, float((frame.d + 1) * frame.k), centre
        )
        if is_within(0.0, 0.0, 0.0, 0.0, of_null, float((frame.d + 1) * frame.k), centre):
            weights += nulls * int(of_null)
        clipped += nulls * int(smaller)
    return clipped, weights


@njit(cache=True, nogil=True, error_model="numpy")
def image_sizes(
    rows: NDArray[np.floating],
    begins: NDArray[np.int64],
    starts: NDArray[np.int64],
    first: int,
    last: int,
    how: PublicMap,
    plain: bool,
    frame: Frame,
    centre: Centre,
    per_unit: float,
    tile: Tile,
    sums: Sums,
    room: Floats,
    out: Floats,
) -> None:
    """|A Q - C'| of each record, in lattice units, into ``out``; -1 where too little is left to tell."""
    places = np.empty(tile.rows, dtype=np.int64)
    step = 2 if how.pairs else 1
    reach = WEIGHT * math.sqrt(centre.squared)
    out[:] = reach
    i = first
    while i < last:
        begin = (i - first) // step
        i, records = _load_tile(rows, begins, starts, i, last, how, plain, tile, room, places)
        if records == 0:
            continue
        n = tile.begins[records]
        fill_images(tile, frame, n)
        _overlap(tile, frame, sums, centre, n)
        for j in range(records):
            a, b = tile.begins[j], tile.begins[j + 1]
            norm, squares, cross = _record_terms(tile, sums, a, b, 1.0)
            product = norm * squares
            if b - a > 1:
                _copy_images(tile, frame, sums, a, b)
                product = _product_squared(tile, frame, sums, a, b)
            t = _units(tile.scales[j], tile.exponents[j], per_unit)
            far = t * t * product
            plain_sum = far - 2.0 * WEIGHT * t * cross + reach * reach
            terms = t * t * norm * squares + reach * reach
            # Written so that NaN is told apart.
            if plain_sum >= _CANCELLED * terms and terms < math.inf:
                out[begin + places[j]] = math.sqrt(plain_sum)
            else:
                out[begin + places[j]] = -1.0
