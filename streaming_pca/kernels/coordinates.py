"""Products A Q of single records by coordinate: spread, bins and clipped sums.

A contribution depends on its record and on public numbers alone, bit for bit. Its bound is held
in integers: a clamped coordinate is rounded to at most ``COORDINATE_RADIUS`` units, so the
d k integers of a record have a known norm.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import Floats, Integers
from streaming_pca.kernels.rounding import dot, record_product, transposed_times

COORDINATE_RADIUS = 2**30
"""Largest coordinate of a contribution, in lattice units; 2**22 of them sum to 2**52."""

NOWHERE = -(2**31)
"""Bin that is never counted: of null records, of NaN and of values outside int32."""

_DENSE = 4096  # widest range of bins that is counted in a table; a wider one is sorted

_TABLES = 4  # tables filled in turn: an increment waits for the last one at the same place


@njit(cache=True, nogil=True)
def products(
    rows: Floats, starts: Integers, of_matrices: bool, basis: Floats, removed: Floats, out: Floats
) -> None:
    """Compute (I - W W^T) A_i Q of every record, transposed.

    Rows of records are A itself if ``of_matrices``, or F with A = F^T F. ``basis``, (d, k), is Q;
    ``removed``, (d, c), W, has orthonormal columns; c may be 0; both are in C order. ``out``: (m, k, d),
    columns of the product are contiguous; overflow is inf or NaN; 0 for a null record.
    """
    d, k = basis.shape
    c = removed.shape[1]
    product = np.empty((d, k))
    inner = np.empty((c, k))
    for i in range(starts.shape[0] - 1):
        record_product(rows[starts[i] : starts[i + 1]], of_matrices, basis, product)
        if c > 0:
            transposed_times(removed, product, inner)
            for j in range(d):
                for a in range(c):
                    for r in range(k):
                        product[j, r] -= removed[j, a] * inner[a, r]
        for r in range(k):
            for j in range(d):
                out[i, r, j] = product[j, r]


@njit(cache=True, nogil=True)
def bin_coordinates(values: Floats, width: float, out: NDArray[np.int32]) -> None:
    """Compute floor(value/width) of (m, n) values as (n, m); -2**31 for NaN and outside int32."""
    m, n = values.shape
    for i in range(m):
        for j in range(n):
            place = np.floor(values[i, j] / width)
            # A comparison with NaN is false.
            inside = -2147483647.0 <= place <= 2147483647.0
            out[j, i] = np.int32(place) if inside else np.int32(NOWHERE)


@njit(cache=True, nogil=True)
def sum_clamped(values: Floats, centre: Floats, radius: float, total: Integers) -> int:
    """Add records' coordinates (m, n), clamped about a centre and rounded, to a total.

    A NaN counts as the centre. The total is in units of ``radius / COORDINATE_RADIUS``: each record adds
    integers of at most ``COORDINATE_RADIUS`` in size. Returns how many records have a clamped coordinate.
    """
    m, n = values.shape
    per_unit = COORDINATE_RADIUS / radius
    most = float(COORDINATE_RADIUS)
    # Integers below 2**53, so exact in any order: 2**22 records of 2**30 are 2**52.
    sums = np.zeros(n)
    clamped = 0
    for i in range(m):
        moved = 0
        # No branch, so that it vectorises.
        for j in range(n):
            units = (values[i, j] - centre[j]) * per_unit
            inside = most if units > most else units
            inside = -most if inside < -most else inside
            # NaN becomes 0.
            inside = inside if inside == inside else 0.0
            moved |= inside != units
            sums[j] += np.rint(inside)
        clamped += moved
    for j in range(n):
        total[j] += np.int64(sums[j])
    return clamped


@njit(cache=True, nogil=True)
def top_eigenvalue(columns: Floats, start: Floats, steps: int) -> float:
    """Estimate the largest eigenvalue of the mean of g g^T by power steps.

    ``start`` is public. Returns the Rayleigh quotient, a lower bound; NaN or inf where sums overflow.
    """
    b, d = columns.shape
    v = start / math.sqrt((start * start).sum())
    found = 0.0
    for _ in range(steps):
        w = np.zeros(d)
        for i in range(b):
            s = dot(columns[i], v)
            for j in range(d):
                w[j] += s * columns[i, j]
        size = 0.0
        for j in range(d):
            size += w[j] * w[j]
        size = math.sqrt(size)
        if not size > 0.0:
            return float(size / b)
        found = size / b
        for j in range(d):
            v[j] = w[j] / size
    return float(found)


@dataclass(frozen=True)
class BinCounts:
    """Numbers of records in the bins of several histograms; bins without a record are not listed."""

    histograms: int
    owners: Integers
    keys: Integers
    counts: Integers
    """(b,) histogram, bin, and number of records, sorted by histogram and bin. Each record is in at most one
    bin of each histogram."""

    @classmethod
    def of(cls, bins: NDArray[np.int32]) -> BinCounts:
        """Count bins (n, m), by histogram each record's bin or :data:`NOWHERE`; ValueError if not int32."""
        if not isinstance(bins, np.ndarray) or bins.dtype != np.int32 or bins.ndim != 2:
            raise ValueError("bins must be a matrix of int32, one row per histogram")
        return cls(len(bins), *count_bins(np.ascontiguousarray(bins)))

    @classmethod
    def together(cls, parts: Iterable[BinCounts], histograms: int) -> BinCounts:
        """Add up the counts of disjoint sets of records."""
        found = [part for part in parts if len(part.counts)]
        if not found:
            none = np.zeros(0, dtype=np.int64)
            return cls(histograms, none, none, none)
        owners, keys, counts = (
            np.concatenate([getattr(part, name) for part in found]) for name in ("owners", "keys", "counts")
        )
        order = np.lexsort((keys, owners))
        owners, keys, counts = owners[order], keys[order], counts[order]
        firsts = np.flatnonzero(np.append(True, (np.diff(owners) != 0) | (np.diff(keys) != 0)))
        return cls(histograms, owners[firsts], keys[firsts], np.add.reduceat(counts, firsts))


@njit(cache=True, nogil=True)
def count_bins(bins: NDArray[np.int32]) -> tuple[Integers, Integers, Integers]:
    """Return histogram, bin and count of every bin that holds a record, sorted; bins are (n, m)."""
    n, m = bins.shape
    size = 16 * n
    owners, keys, counts = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.int64)
    held = 0
    # NOWHERE is counted in the last place, which is not read.
    dense = np.zeros((_TABLES, _DENSE + 1), np.int32)
    for i in range(n):
        low: Any = 0
        high: Any = 0
        any_at_all = False
        for j in range(m):
            b = np.int64(bins[i, j])
            if b != NOWHERE:
                if not any_at_all:
                    low, high, any_at_all = b, b, True
                low, high = min(low, b), max(high, b)
        if not any_at_all:
            continue
        if high - low < _DENSE:
            dense[:, : high - low + 1] = 0
            whole = m - m % _TABLES
            for j in range(0, whole, _TABLES):
                for table in range(_TABLES):
                    b = np.int64(bins[i, j + table])
                    dense[table, b - low if b != NOWHERE else _DENSE] += 1
            for j in range(whole, m):
                b = np.int64(bins[i, j])
                dense[0, b - low if b != NOWHERE else _DENSE] += 1
            counts_of = dense[:, : high - low + 1].sum(axis=0)
            found = np.flatnonzero(counts_of)
            of_found = counts_of[found].astype(np.int64)
            found = found + low
        else:
            ordered = np.sort(bins[i])
            found = np.empty(m, np.int64)
            of_found = np.zeros(m, np.int64)
            last = -1
            for j in range(m):
                b = np.int64(ordered[j])
                if b == NOWHERE:
                    continue
                if last < 0 or found[last] != b:
                    last += 1
                    found[last] = b
                of_found[last] += 1
            found, of_found = found[: last + 1], of_found[: last + 1]
        while held + len(found) > size:
            size *= 2
            owners, keys, counts = _grown(owners, size), _grown(keys, size), _grown(counts, size)
        owners[held : held + len(found)] = i
        keys[held : held + len(found)] = found
        counts[held : held + len(found)] = of_found
        held += len(found)
    return owners[:held].copy(), keys[:held].copy(), counts[:held].copy()


@njit(cache=True, nogil=True)
def _grown(values: Integers, size: int) -> Integers:
    out = np.empty(size, np.int64)
    out[: len(values)] = values
    return out
