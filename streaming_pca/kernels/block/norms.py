"""Sizes of factors, each in one pass: norms of A Q - C, and squares along directions.

A norm serves the choice of a clip radius. A square is a function of its record alone, computed in a fixed
order, and an integer from 0 to `LAYER` under any rounding.
"""

from __future__ import annotations

import math

import numpy as np

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.bounds import WEIGHT, Centre
from streaming_pca.kernels.block.chunks import Chunk, fill_chunk, rough_squared
from streaming_pca.kernels.lattice import Floats, Integers
from streaming_pca.kernels.reading import PublicMap, RecordsView

LAYER = 2**40
"""Largest term: fine enough that rounding costs next to nothing; 2**22 terms fit int64."""

_LAYER = float(LAYER)
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
            several = chunk.begins[n + 1] - chunk.begins[n] > 1
            product = rough_squared(chunk, n, dgemm) if several else most
            t = terms[4, n]
            plain = t * t * product - 2.0 * WEIGHT * t * terms[3, n] + reach * reach
            of_terms = t * t * most + reach * reach
            # NaN fails the comparison.
            resolved = plain >= _CANCELLED * of_terms and of_terms < math.inf
            out[begin + chunk.places[n]] = math.sqrt(plain) if resolved else -1.0


@njit(cache=True, nogil=True)
def add_layers(
    read: RecordsView,
    first: int,
    last: int,
    how: PublicMap,
    directions: Floats,
    no_centre: Centre,
    caps: Floats,
    dgemm: int,
    chunk: Chunk,
    total: Integers,
) -> None:
    """Add floor(LAYER (min(e, c_l) - c_{l-1})+/(c_l - c_{l-1})) of every record.

    The sums are added to ``total``, (l, k + 1). ``directions`` are (d, k) orthonormal columns, on a grid of
    2**-30; e_i = sum over rows of (v_i . row)^2, and last the rest of the rows' squared norms. ``caps``,
    (l, k + 1), increase down each column, above 0. The others are as for
    :func:`~streaming_pca.kernels.block.sums.sum_products`.
    """
    k = directions.shape[1]
    energies = np.empty(k + 1)
    i = first
    while i < last:
        i, records = fill_chunk(read, i, last, how, directions, no_centre, 1.0, dgemm, chunk)
        for n in range(records):
            for c in range(k):
                energies[c] = 0.0
            for row in range(chunk.begins[n], chunk.begins[n + 1]):
                for c in range(k):
                    energies[c] += chunk.y[row, c] * chunk.y[row, c]
            energies[k] = chunk.terms[2, n]
            for c in range(k):
                energies[k] -= energies[c]
            for c in range(k + 1):
                energy, low = chunk.terms[4, n] * energies[c], 0.0
                for layer in range(caps.shape[0]):
                    term = (energy - low) / (caps[layer, c] - low)
                    low = caps[layer, c]
                    # A NaN, of squares that overflowed, counts as clipped.
                    if term <= 0.0:
                        break
                    total[layer, c] += int(_LAYER * term) if term < 1.0 else LAYER
