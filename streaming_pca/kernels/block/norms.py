"""Norms of A Q - C over factors, for the choice of a clip radius: one pass over the records."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.bounds import WEIGHT, Centre
from streaming_pca.kernels.block.chunks import Chunk, fill_chunk, rough_squared
from streaming_pca.kernels.public_map import PublicMap
from streaming_pca.kernels.records_view import RecordsView

Floats = NDArray[np.float64]

_CANCELLED = 2.0**-10
"""Least share of its terms in a squared residual; below it rounded directions cannot resolve the norm."""


@njit(cache=True, nogil=True, error_model="numpy")
def product_sizes(
    read: RecordsView,
    first: int,
    last: int,
    how: PublicMap,
    columns: Floats,
    centre: Centre,
    per_unit: float,
    dgemm: int,
    chunk: Chunk,
    out: Floats,
) -> None:
    """Write |A Q - C'| of each record, in lattice units, to ``out``; -1 where unresolved.

    Parameters as of :func:`~streaming_pca.kernels.block.sums.sum_products`.
    """
    step = 2 if how.pairs else 1
    reach = WEIGHT * math.sqrt(centre.squared)
    for n in range(out.size):
        out[n] = reach
    terms = chunk.terms
    i = first
    while i < last:
        begin = (i - first) // step
        i, records = fill_chunk(read, i, last, how, columns, centre, per_unit, dgemm, chunk)
        for n in range(records):
            most = terms[1, n] * terms[2, n]
            product = most
            if chunk.begins[n + 1] - chunk.begins[n] > 1:
                product = rough_squared(chunk, n, dgemm)
            t = terms[4, n]
            plain = t * t * product - 2.0 * WEIGHT * t * terms[3, n] + reach * reach
            of_terms = t * t * most + reach * reach
            # NaN fails the comparison.
            if plain >= _CANCELLED * of_terms and of_terms < math.inf:
                out[begin + chunk.places[n]] = math.sqrt(plain)
            else:
                out[begin + chunk.places[n]] = -1.0
