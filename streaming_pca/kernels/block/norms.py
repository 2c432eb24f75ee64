"""Norms of A Q - C over factors, for the choice of a clip radius: one pass, in float32."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.bounds import WEIGHT, Centre
from streaming_pca.kernels.block.terms import (
    Sums,
    copy_products,
    load_tile,
    overlap,
    product_squared,
    record_terms,
    units,
)
from streaming_pca.kernels.block.tiles import Frame, Tile, fill_products
from streaming_pca.kernels.public_map import PublicMap
from streaming_pca.kernels.records_view import RecordsView

__all__ = ["product_sizes"]

Floats = NDArray[np.float64]

_CANCELLED = 2.0**-10
"""Least share of its terms in a squared residual; below it float32 cannot resolve the norm."""


@njit(cache=True, nogil=True, error_model="numpy")
def product_sizes(
    read: RecordsView,
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
    """Write |A Q - C'| of each record, in lattice units, to ``out``; -1 where unresolved."""
    places = np.empty(tile.rows, dtype=np.int64)
    step = 2 if how.pairs else 1
    reach = WEIGHT * math.sqrt(centre.squared)
    out[:] = reach
    i = first
    while i < last:
        begin = (i - first) // step
        i, records = load_tile(read, i, last, how, plain, tile, room, places)
        if records == 0:
            continue
        n = tile.begins[records]
        fill_products(tile, frame, n)
        overlap(tile, frame, sums, centre, n)
        for j in range(records):
            a, b = tile.begins[j], tile.begins[j + 1]
            norm, squares, cross = record_terms(tile, sums, a, b, 1.0)
            product = norm * squares
            if b - a > 1:
                copy_products(tile, frame, sums, a, b)
                product = product_squared(tile, frame, sums, a, b)
            t = units(tile.scales[j], tile.exponents[j], per_unit)
            far = t * t * product
            plain_sum = far - 2.0 * WEIGHT * t * cross + reach * reach
            terms = t * t * norm * squares + reach * reach
            # NaN fails the comparison.
            if plain_sum >= _CANCELLED * terms and terms < math.inf:
                out[begin + places[j]] = math.sqrt(plain_sum)
            else:
                out[begin + places[j]] = -1.0
