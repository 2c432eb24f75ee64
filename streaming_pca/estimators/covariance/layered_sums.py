"""Exact covariance sums at several clip radii at once, and in other coordinates.

With radii R_1 < ... < R_L and a record of trace t, a clip at R_l multiplies the record by
w_l = min(1, R_l/t). Layer l is the sum of (w_l - w_{l-1}) F^T F, w_0 = 0. The trace of one
record's term is at most D_l = R_l - R_{l-1}, so replacing a record moves the layer
by sqrt(2) D_l in Frobenius norm at most. The first l layers add up to the covariance sum
clipped at R_l: one noisy answer a layer measures the sums at all radii.

A record whose trace lies between R_{j-1} and R_j adds D_l/t of itself to every layer below j,
which is one integer matrix in each layer's unit (its factor normalised to the
lattice's radius), and 1 - R_{j-1}/t to layer j. So two products a record serve all layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Batch, RecordKind
from streaming_pca.estimators.common.clipped_sums import (
    ROWS,
    check_count,
    covariance_sensitivity,
    covariance_sum,
    covariance_unit,
    record_norms,
)
from streaming_pca.estimators.common.record_reader import RecordReader, worth_a_thread
from streaming_pca.kernels.blas import dsyrk_address
from streaming_pca.kernels.clipping import quantise_records
from streaming_pca.kernels.factor_rows import sum_scaled_factors, turned_squared_norms
from streaming_pca.kernels.lattice import BLOCK, MATRIX_RADIUS, RADIUS, LatticeSum, lattice_unit
from streaming_pca.kernels.records_view import RecordsView
from streaming_pca.kernels.threads import shared_out

__all__ = ["Coordinates"]

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]

_NO_TURN = np.zeros((0, 0))


class Coordinates:
    """Records in some coordinates y = turn^T x, and their sums there.

    Parameters
    ----------
    preprocessing : Preprocessing
    turn : (d', d') float64, optional
        Public, such as an earlier private output. None for the records' own coordinates,
        the only ones of symmetric records of kind "matrix".
    """

    def __init__(self, preprocessing: Preprocessing, turn: Matrix | None = None) -> None:
        self.preprocessing, self.dim = preprocessing, preprocessing.output_dim
        self.own = turn is None
        self.turn = _NO_TURN if turn is None else np.ascontiguousarray(turn, dtype=np.float64)
        if not self.own and preprocessing.kind is not RecordKind.FACTOR:
            raise ValueError("symmetric records have no other coordinates")
        if not self.own and not (self.turn.shape == (self.dim, self.dim) and np.isfinite(self.turn).all()):
            raise ValueError(f"coordinates must be a finite matrix of {self.dim} x {self.dim}")

    def norms(self, batch: Batch) -> Matrix:
        """Compute the trace of each record (pair), the Frobenius norm for kind "matrix".

        Each number is a function of its record alone.
        """
        if self.own:
            return record_norms(batch, self.preprocessing)
        records = RecordReader(self.preprocessing)

        def fill(read: RecordsView, first: int, last: int, out: Matrix) -> None:
            room = np.empty((read.longest, self.dim))
            turned_squared_norms(read, first, last, records.how, self.turn, room, out)

        return records.norms(batch, fill, self.dim)

    def sum(self, batch: Batch, radius: float) -> LatticeSum:
        """Sum the records' matrices exactly, each clipped to ``radius``."""
        if self.own:
            return covariance_sum(batch, self.preprocessing, radius)
        count = check_count(len(batch)) // self.preprocessing.units
        per_units = np.full(count, 1 / lattice_unit(math.sqrt(radius), RADIUS))
        total, clipped = self._scaled(batch, np.arange(count), per_units)
        return LatticeSum(
            total,
            covariance_unit(RecordKind.FACTOR, radius),
            covariance_sensitivity(RecordKind.FACTOR),
            clipped,
        )

    def layers(self, batch: Batch, radii: Sequence[float], norms: Matrix) -> list[LatticeSum]:
        """Sum all layers exactly.

        Parameters
        ----------
        batch : Batch
        radii : sequence of float, increasing
        norms : (m,) float64
            Result of :meth:`norms` for this batch.

        Raises
        ------
        ValueError
            If the radii do not rise from above 0, or the batch is too large.
        """
        check_count(len(batch))
        edges = np.asarray(radii, dtype=np.float64)
        depths = np.diff(edges, prepend=0.0)
        if not (depths > 0).all():
            raise ValueError("radii must rise from above 0")
        shell = np.searchsorted(edges, norms, side="left")
        if self.preprocessing.kind is RecordKind.MATRIX:
            return [self._matrix_layer(batch, edges, norms, j) for j in range(len(edges))]
        sensitivity = covariance_sensitivity(RecordKind.FACTOR)
        beyond: Integers = np.zeros((self.dim, self.dim), dtype=np.int64)
        found: list[LatticeSum] = []
        for j in range(len(edges), -1, -1):
            chosen = np.flatnonzero((shell == j) & (norms > 0))
            if j < len(edges):
                below = edges[j - 1] if j else 0.0
                with np.errstate(all="ignore"):
                    left = np.sqrt(np.maximum(1 - below / norms[chosen], 0.0))
                inside, clipped = self._scaled(
                    batch, chosen, left / lattice_unit(math.sqrt(float(depths[j])), RADIUS)
                )
                unit = covariance_unit(RecordKind.FACTOR, float(depths[j]))
                found.append(LatticeSum(inside + beyond, unit, sensitivity, clipped))
            if j:
                beyond = beyond + self._scaled(batch, chosen, np.full(len(chosen), math.inf))[0]
        return found[::-1]

    def _scaled(self, batch: Batch, chosen: Integers, per_units: Matrix) -> tuple[Integers, int]:
        """Return the symmetric total of chosen records, and the number clipped.

        ``per_units`` has one lattice scale for each chosen record.
        """
        d, units = self.dim, self.preprocessing.units
        lower, clipped, first = np.zeros((d, d), dtype=np.int64), 0, 0
        for dense in batch.dense_parts():
            last = first + len(dense) // units
            some = slice(*np.searchsorted(chosen, (first, last)))
            clipped += self._add_scaled(dense, chosen[some] - first, per_units[some], lower)
            first = last
        return lower + np.tril(lower, -1).T, clipped

    def _add_scaled(self, batch: Batch, chosen: Integers, per_units: Matrix, total: Integers) -> int:
        """Add the lower triangle of chosen records to ``total``; return the number clipped."""
        records = RecordReader(self.preprocessing)
        read = records.read(batch)
        d = self.dim

        def part(first: int, last: int) -> tuple[Integers, int]:
            room, rounded = np.empty((read.longest, d)), np.empty((max(ROWS, read.longest), d))
            exact, lower = np.zeros((d, d)), np.zeros((d, d), dtype=np.int64)
            some, scales = chosen[first:last], per_units[first:last]
            clipped = sum_scaled_factors(
                read, some, scales, records.how, self.turn, dsyrk_address(), room, rounded, exact, lower
            )
            return lower, clipped

        least = worth_a_thread(read, read.longest) if d <= 2**10 else max(len(chosen), 1)
        clipped = 0
        for lower, more in shared_out(len(chosen), part, 1, least):
            total += lower
            clipped += more
        return clipped

    def _matrix_layer(self, batch: Batch, edges: Matrix, norms: Matrix, layer: int) -> LatticeSum:
        """Sum (w_l - w_{l-1}) A over symmetric matrices A of norm |A|_F: sensitivity 2 D_l."""
        below = float(edges[layer - 1]) if layer else 0.0
        depth = float(edges[layer]) - below
        unit = lattice_unit(depth, MATRIX_RADIUS)
        total, clipped, first = np.zeros((self.dim, self.dim), dtype=np.int64), 0, 0
        for block in batch.blocks(BLOCK):
            some = norms[first : first + len(block)]
            first += len(block)
            starts, rows = transformed(self.preprocessing, block)
            with np.errstate(all="ignore"):
                kept = np.minimum(1.0, edges[layer] / some) - (
                    np.minimum(1.0, below / some) if layer else 0.0
                )
            scaled = rows * np.repeat(np.where(some > 0, kept, 0.0), np.diff(starts))[:, None]
            z = np.empty_like(scaled)
            clipped += quantise_records(scaled, starts, 1 / unit, float(MATRIX_RADIUS), z)
            total += z.reshape(-1, self.dim, self.dim).sum(axis=0).astype(np.int64)
        return LatticeSum(total, unit, covariance_sensitivity(RecordKind.MATRIX), clipped)
