"""Exact block sums and residual norms: input and output of the compiled kernels."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Block
from streaming_pca.estimators.record_reader import NormKernel, RecordReader, added_up, worth_a_thread
from streaming_pca.kernels.blas import dgemm_address
from streaming_pca.kernels.block.bounds import Centre
from streaming_pca.kernels.block.chunks import MOST_RECORDS, Chunk, chunk_rows, grid, new_chunk
from streaming_pca.kernels.block.matrix_sums import MATRIX_GRID, sum_matrix_products
from streaming_pca.kernels.block.norms import product_sizes
from streaming_pca.kernels.block.sums import new_counter, sum_products
from streaming_pca.kernels.lattice import quantise_centre
from streaming_pca.kernels.reading import RecordsView
from streaming_pca.kernels.residuals import frobenius_norm
from streaming_pca.kernels.threads import thread_count, together

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]

_SHARE = 2**17  # entries of one turn of a thread

_FEW = 2  # largest number of columns outside the basis that cost less than all of the centre's

_LEFT_OUT = 2.0**-3
"""Norm, in units of R, of a centre's part outside few columns that is not worth a third product. Without
it a residual can be longer by as much. The sum is about the remaining centre, which the caller gets."""

_LEAST_LENGTH = 1e-100

NO_CENTRE = Centre(np.zeros((0, 0)), 0.0, 0.0)


def check_columns(basis: Matrix) -> None:
    """Check columns (d, k), or raise ValueError: too long ones exceed the headroom of exact sums."""
    if not np.all(np.einsum("ij,ij->j", basis, basis) <= 1.01):
        raise ValueError("the basis must be finite and have orthonormal columns")


def _columns_about(basis: Matrix, centre: Matrix, leave_out: float = 0.0) -> tuple[Matrix, Centre, Matrix]:
    """Extend Q to columns B for the centre, and bound |C' - B M|.

    The centre is a part Q M and a part D outside the basis. If D is near a matrix of rank
    at most 2, C = B M takes as many columns; else all columns of D are multiplied.

    C is in units of R. ``leave_out`` is the norm of a part of D that C' may omit, in addition to rounding.
    Returns B, the centre in terms of B, and C', whole numbers near 2**20 C.
    """
    k = basis.shape[1]
    inside = basis.T @ centre
    outside = centre - basis @ inside
    added, rest = outside, np.eye(k)
    # Cumulative sums of squared singular values.
    values, vectors = np.linalg.eigh(outside.T @ outside)
    left = np.cumsum(np.maximum(values, 0.0))
    least = max(2.0**-21 * float(np.linalg.norm(centre)), leave_out)
    needed = k - int(np.searchsorted(left, least**2, side="right"))
    if needed <= min(_FEW, k - 1):
        leading = vectors[:, k - needed :]
        added, rest = outside @ leading, leading.T
        if leave_out > 0:
            centre = basis @ inside + added @ rest
    lengths = np.linalg.norm(added, axis=0)
    # Squares of smaller ones vanish: their columns are left out.
    added = np.where(lengths > _LEAST_LENGTH, added, 0.0)
    lengths[lengths <= _LEAST_LENGTH] = 1.0
    columns = grid(np.concatenate([basis, added / lengths], axis=1))
    mix = np.ldexp(np.concatenate([inside, rest * lengths[:, None]]), 20)
    lattice_centre = quantise_centre(centre, 1.0)
    off = lattice_centre - columns @ mix
    # |z E| <= |z| times E's largest singular value, with room for float64 rounding, of columns @ mix too.
    spread = float(np.linalg.eigvalsh(off.T @ off)[-1]) + 2.0**-40 * float(np.vdot(off, off))
    per_column = float(np.linalg.norm(np.linalg.norm(columns, axis=0) @ np.abs(mix)))
    error = np.sqrt(max(spread, 0.0)) + 2.0**-50 * (len(columns) + len(mix)) * per_column
    # Rounded up by more than any order of summation can lose.
    squared = float(np.vdot(lattice_centre, lattice_centre)) * (1 + (lattice_centre.size + 8) * 2.0**-52)
    return columns, Centre(np.ascontiguousarray(mix), squared, float(error)), lattice_centre


_own = threading.local()


def allocate_room(columns: Matrix, k: int, longest: int) -> tuple[Chunk, Matrix, Integers]:
    """Return this thread's buffers, which it keeps for the next sum of the same shape.

    New memory costs a small sum as much as its products. The buffers hold at most 256 rows of
    rounded records and a few times (d, k) numbers; the sums are zeros.
    """
    d, count = columns.shape
    rows = chunk_rows(d, longest)
    key = (d, count, k, rows, longest)
    if getattr(_own, "key", None) == key:
        kept: tuple[Chunk, Matrix, Integers] = _own.room
        kept[1][:] = 0.0
        kept[2][:] = 0
        return kept
    room = (new_chunk(d, k, count, longest), np.zeros((d, k)), np.zeros((d, k), dtype=np.int64))
    if rows <= MOST_RECORDS:
        _own.key, _own.room = key, room
    return room


class FactorProducts:
    """Sum of clip(A Q - C) over factors, as a kernel of :meth:`Batch.sum`."""

    limit = 2**12

    def __init__(
        self,
        preprocessing: Preprocessing,
        basis: Matrix,
        per_unit: float,
        centre: Matrix | None = None,
        radius: float = 1.0,
    ) -> None:
        self.records = RecordReader(preprocessing, basis)
        self.whole = self.records.whole
        self.per_unit = per_unit
        self.basis_shape = basis.shape
        self.shape: tuple[int, ...] = (basis.size + 1,)
        self.columns, self.of_centre = grid(basis), NO_CENTRE
        self.centre: Matrix | None = None
        self.lattice_centre: Integers | None = None
        if centre is not None:
            self.columns, self.of_centre, near = _columns_about(basis, centre / radius, _LEFT_OUT)
            self.centre = np.ldexp(np.ascontiguousarray(near), -20) * radius
            self.lattice_centre = near.astype(np.int64)

    def __call__(self, batch: Block) -> Integers:
        read = self.records.read(batch)
        counter, share = new_counter(), self._share(read)
        threads = min(len(read.begins) // worth_a_thread(read, read.longest), thread_count())
        parts = together(lambda: self._part(read, counter, share), threads)
        out = np.zeros(self.shape, dtype=np.int64)
        total = out[:-1].reshape(self.basis_shape)
        weights = 0
        for part, clipped, weight in parts:
            total += part
            out[-1] += clipped
            weights += weight
        if self.lattice_centre is not None:
            total -= weights * self.lattice_centre
        return out

    def _share(self, read: RecordsView) -> int:
        """Return the records of one turn: about a tenth of a millisecond, in whole chunks."""
        rows = chunk_rows(len(self.columns), read.longest)
        wanted = _SHARE // (len(self.columns) * read.longest)
        return max(-(-wanted // rows), 1) * rows * self.records.step

    def _part(self, read: RecordsView, counter: Integers, share: int) -> tuple[Integers, int, int]:
        chunk, exact, total = allocate_room(self.columns, self.basis_shape[1], read.longest)
        how, columns, centre, dgemm = self.records.how, self.columns, self.of_centre, dgemm_address()
        clipped, weights = sum_products(
            read, counter, share, how, columns, centre, self.per_unit, dgemm, chunk, exact, total
        )
        # The sums are copied out, as this thread uses its buffers again.
        return total.copy(), clipped, weights


def _centre_scale(centre: Matrix) -> float:
    """Return the divisor of a centre: its norm within [1e-250, 1e300], or 1 for zeros."""
    scale = frobenius_norm(centre)
    return min(max(scale, 1e-250), 1e300) if scale > 0 else 1.0


class FactorResidualNorms(NormKernel):
    """|A Q - C|_F/unit of every factor; -1 where rounded directions are too coarse."""

    def __init__(self, preprocessing: Preprocessing, basis: Matrix, centre: Matrix) -> None:
        super().__init__(RecordReader(preprocessing, basis))
        scale = _centre_scale(centre)
        self.columns, self.of_centre, _ = _columns_about(basis, centre / scale)
        self.k, self.per_unit, self.unit = basis.shape[1], 2.0**40 / scale, scale * 2.0**-40

    def fill(self, read: RecordsView, first: int, last: int, out: Matrix) -> None:
        chunk, _, _ = allocate_room(self.columns, self.k, read.longest)
        how, columns, dgemm = self.records.how, self.columns, dgemm_address()
        product_sizes(read, first, last, how, columns, self.of_centre, self.per_unit, dgemm, chunk, out)


class MatrixProducts:
    """Sum of clip(A Q - C) over symmetric matrices, as a kernel of :meth:`Batch.sum`."""

    limit = 2**12

    def __init__(
        self, preprocessing: Preprocessing, basis: Matrix, per_unit: float, centre: Matrix | None = None
    ) -> None:
        self.records = RecordReader(preprocessing, basis)
        self.whole = self.records.whole
        self.columns, self.per_unit, self.centre = grid(basis, MATRIX_GRID), per_unit, centre
        self.shape: tuple[int, ...] = (basis.size + 1,)
        self._in_units = np.zeros((0, 0)) if centre is None else np.ascontiguousarray(centre * per_unit)

    def __call__(self, batch: Block) -> Integers:
        read = self.records.read(batch)
        return added_up(read, lambda first, last: self.part(read, first, last, np.zeros(0)), self.shape)

    def part(self, read: RecordsView, first: int, last: int, norms: Matrix) -> Integers:
        """Sum some records; with room in ``norms``, write their norms in lattice units there instead."""
        out = np.zeros(self.shape, dtype=np.int64)
        total, columns, dgemm = out[:-1].reshape(self.columns.shape), self.columns, dgemm_address()
        out[-1] = sum_matrix_products(
            read, first, last, columns, self._in_units, self.per_unit, dgemm, total, norms
        )
        return out


class MatrixResidualNorms(NormKernel):
    """|A Q - C|_F/unit of every symmetric matrix; -1 where rounded products are too coarse."""

    def __init__(self, preprocessing: Preprocessing, basis: Matrix, centre: Matrix) -> None:
        scale = _centre_scale(centre)
        self.unit = scale * 2.0**-26
        self._products = MatrixProducts(preprocessing, basis, 2.0**26 / scale, centre)
        super().__init__(self._products.records)

    def fill(self, read: RecordsView, first: int, last: int, out: Matrix) -> None:
        self._products.part(read, first, last, out)
