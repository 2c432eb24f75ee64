"""Exact covariance sums at several clip radii together, and in other coordinates.

With radii R_1 < ... < R_L and a record of trace t, a clip at R_l multiplies the record by w_l = min(1,
R_l/t). Layer l is the sum of (w_l - w_{l-1}) F^T F, w_0 = 0. The trace of one record's term is at most D_l =
R_l - R_{l-1}, so replacing a record moves the layer by at most sqrt(2) D_l in Frobenius norm. The first l
layers add up to the covariance sum clipped at R_l: one noisy answer a layer measures the sums at all radii.

A record whose trace lies between R_{j-1} and R_j adds D_l/t of itself to every layer below j,
which is one integer matrix in each layer's unit (its factor normalised to the
lattice's radius), and 1 - R_{j-1}/t to layer j. So two products a record serve all layers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch, BlockSum, RecordValues, SumKernel
from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.estimators.common.clipped_sums import (
    NO_TURN,
    FactorNorms,
    add_factors,
    check_count,
    covariance_sensitivity,
    covariance_sum,
    covariance_unit,
    record_norms,
)
from streaming_pca.estimators.record_reader import RecordReader
from streaming_pca.kernels.lattice import BLOCK, MATRIX_RADIUS, RADIUS, LatticeSum, lattice_unit
from streaming_pca.kernels.reading import RecordsView
from streaming_pca.kernels.rounding import quantise_records

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]


_MOST_TOTALS = 2**23  # entries of the layers that are summed in one reading: 64 MiB


class Coordinates:
    """Records in some coordinates y = turn^T x, and their sums there.

    ``turn``: (d', d'), public, such as an earlier private output. None for the records' own coordinates, the
    only ones of symmetric records of kind "matrix".
    """

    def __init__(self, preprocessing: Preprocessing, turn: Matrix | None = None) -> None:
        self.preprocessing, self.dim = preprocessing, preprocessing.dim
        self.own = turn is None
        self.turn = NO_TURN if turn is None else np.ascontiguousarray(turn, dtype=np.float64)
        if not self.own and preprocessing.kind is not RecordKind.FACTOR:
            raise ValueError("symmetric records have no other coordinates")
        if not self.own and not (self.turn.shape == (self.dim, self.dim) and np.isfinite(self.turn).all()):
            raise ValueError(f"coordinates must be a finite matrix of {self.dim} x {self.dim}")

    def norms(self, batch: Batch) -> RecordValues:
        """Compute the trace of each record (pair) by it alone; for kind "matrix" the Frobenius norm."""
        if self.own:
            return record_norms(batch, self.preprocessing)
        return batch.map(FactorNorms(self.preprocessing, self.turn))

    def layers(self, batch: Batch, radii: Sequence[float], norms: RecordValues) -> list[LatticeSum]:
        """Sum all layers exactly, for increasing radii and the :meth:`norms` of this batch.

        A layer's ``clipped`` counts the records with a norm above its radius.

        Raises ValueError if the radii do not rise from above 0, or the batch is too large.
        """
        check_count(len(batch))
        edges = np.asarray(radii, dtype=np.float64)
        depths = np.diff(edges, prepend=0.0)
        if not (depths > 0).all():
            raise ValueError("radii must rise from above 0")
        if len(edges) == 1 and self.own:
            return [covariance_sum(batch, self.preprocessing, float(edges[0]))]
        kind, d = self.preprocessing.kind, self.dim
        beyond: Integers = np.zeros((d, d), dtype=np.int64)
        found: list[LatticeSum] = []
        # Each reading holds as many layers as fit into one sum.
        at_once = max(_MOST_TOTALS // (d * d), 1)
        for last in range(len(edges), 0, -at_once):
            layers = range(max(last - at_once, 0), last)
            kernel: SumKernel = _FactorLayers(self.preprocessing, self.turn, edges, layers)
            if kind is RecordKind.MATRIX:
                of_matrices = partial(_matrix_layers, self.preprocessing, edges, layers)
                kernel = BlockSum(of_matrices, (len(layers) * (d * d + 1),))
            vector = batch.sum(kernel, norms)
            totals, clipped = vector[: -len(layers)].reshape(-1, d, d), vector[-len(layers) :]
            for i, layer in reversed(list(enumerate(layers))):
                total, unit = totals[i], lattice_unit(float(depths[layer]), MATRIX_RADIUS)
                if kind is not RecordKind.MATRIX:
                    total = total + beyond
                    total += np.tril(total, -1).T
                    unit = covariance_unit(RecordKind.FACTOR, float(depths[layer]))
                found.append(LatticeSum(total, unit, covariance_sensitivity(kind), int(clipped[i])))
            if kind is not RecordKind.MATRIX:
                beyond = beyond + totals[-1]
        return found[::-1]


class _FactorLayers:
    """Lower triangles of consecutive layers, with the clipped records of each.

    After the layers come the terms that every lower layer also gets, then the counts of clipped records.

    It reads the records with a norm between the radii of one of these layers; the topmost layers also
    read the records beyond the largest radius. The caller adds records beyond other layers.
    """

    limit = BLOCK
    # Scaled rows are held a few at a time, so blocks would save no memory.
    whole = True

    def __init__(self, preprocessing: Preprocessing, turn: Matrix, edges: Matrix, layers: range) -> None:
        self.records, self.dim, self.turn = RecordReader(preprocessing), preprocessing.dim, turn
        self.edges, self.layers = edges, layers
        self.shape: tuple[int, ...] = ((len(layers) + 1) * self.dim**2 + len(layers),)

    def __call__(self, batch: Block, norms: Matrix) -> Integers:
        read = self.records.read(batch)
        edges, n = self.edges, len(self.layers)
        shell = np.searchsorted(edges, norms, side="left")
        out = np.zeros(self.shape, dtype=np.int64)
        totals, clipped = out[:-n].reshape(n + 1, self.dim, self.dim), out[-n:]
        beyond = totals[n]
        if self.layers.stop == len(edges):
            self._add(read, np.flatnonzero((shell == len(edges)) & (norms > 0)), math.inf, beyond)
        for i, layer in reversed(list(enumerate(self.layers))):
            chosen = np.flatnonzero((shell == layer) & (norms > 0))
            below = edges[layer - 1] if layer else 0.0
            with np.errstate(all="ignore"):
                left = np.sqrt(np.maximum(1 - below / norms[chosen], 0.0))
            totals[i] += beyond
            depth = float(edges[layer] - below)
            self._add(read, chosen, left / lattice_unit(math.sqrt(depth), RADIUS), totals[i])
            clipped[i] = np.count_nonzero(norms > edges[layer])
            if layer:
                self._add(read, chosen, math.inf, beyond)
        return out

    def _add(self, read: RecordsView, chosen: Integers, per_unit: float | Matrix, total: Integers) -> None:
        """Add chosen records to ``total``; an infinite scale normalises a record to the lattice's radius."""
        add_factors(read, self.records.how, self.turn, chosen, np.full(len(chosen), per_unit), total)


def _matrix_layers(
    preprocessing: Preprocessing, edges: Matrix, layers: range, block: Block, norms: Matrix
) -> Integers:
    """Sum (w_l - w_{l-1}) A over symmetric matrices A of norm |A|_F: sensitivity 2 D_l each.

    Consecutive layers, then the number of clipped records in each.
    """
    starts, rows = transformed(preprocessing, block)
    d, n = preprocessing.dim, len(layers)
    matrices, sizes = rows.reshape(-1, d, d), norms[np.diff(starts) > 0]
    out = np.zeros(n * (d * d + 1), dtype=np.int64)
    totals, clipped = out[:-n].reshape(n, d, d), out[-n:]
    for i, layer in enumerate(layers):
        below = float(edges[layer - 1]) if layer else 0.0
        unit = lattice_unit(float(edges[layer]) - below, MATRIX_RADIUS)
        reached = sizes > below
        with np.errstate(all="ignore"):
            at = sizes[reached]
            kept = np.minimum(1.0, edges[layer] / at) - np.minimum(1.0, below / at)
            scaled = (matrices[reached] * kept[:, None, None]).reshape(-1, d)
        z, ends = np.empty_like(scaled), np.arange(len(kept) + 1) * d
        quantise_records(scaled, ends, 1 / unit, float(MATRIX_RADIUS), z)
        totals[i] = z.reshape(-1, d, d).sum(axis=0).astype(np.int64)
        clipped[i] = np.count_nonzero(norms > edges[layer])
    return out
