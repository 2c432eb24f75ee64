"""Exact block sums and residual norms: input and output of the compiled kernels."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.record_reader import NormKernel, RecordReader, worth_a_thread
from streaming_pca.kernels.blas import dgemm_address
from streaming_pca.kernels.block.bounds import Centre
from streaming_pca.kernels.block.chunks import MOST_RECORDS, Chunk, chunk_rows, grid, new_chunk
from streaming_pca.kernels.block.matrix_sums import MATRIX_GRID, sum_matrix_products
from streaming_pca.kernels.block.norms import product_sizes
from streaming_pca.kernels.block.sums import new_counter, sum_products
from streaming_pca.kernels.lattice import quantise_centre
from streaming_pca.kernels.records_view import RecordsView
from streaming_pca.kernels.residuals import frobenius_norm
from streaming_pca.kernels.threads import shared_out, thread_count, together

Matrix = NDArray[np.float64]

_SHARE = 2**17
"""Entries that a thread takes at once."""

_FEW = 2
"""Largest number of columns outside the basis that cost less than all of the centre's."""

_LEFT_OUT = 2.0**-3
"""Part of a centre outside few columns, in units of R, that is not worth a third product. It can
lengthen a residual by as much. The sum is about the centre without it, which the caller gets."""

_LEAST_LENGTH = 1e-100

NO_CENTRE = Centre(np.zeros((0, 0)), 0.0, 0.0)


def check_columns(basis: Matrix) -> None:
    """Check columns (d, k): far too long ones would exceed the headroom of exact sums.

    Raises
    ------
    ValueError
    """
    if not np.all(np.einsum("ij,ij->j", basis, basis) <= 1.01):
        raise ValueError("the basis must be finite and have orthonormal columns")


@dataclass(frozen=True)
class _Columns:
    """Columns B to multiply by, and the centre expressed in them."""

    rounded: Matrix
    centre: Centre
    lattice_centre: Matrix | None = None
    """C', integers near 2**20 C."""


def _columns(basis: Matrix) -> _Columns:
    return _Columns(grid(basis), NO_CENTRE)


def _columns_about(basis: Matrix, centre: Matrix, leave_out: float = 0.0) -> _Columns:
    """Extend Q to columns B for the centre, and bound |C' - B M|.

    The centre is a part Q M and a part D outside the basis. Where D is near a matrix of rank
    at most 2, C = B M takes as many columns; else all columns of D are multiplied.

    Parameters
    ----------
    basis : (d, k) float64
    centre : (d, k) float64
        C in units of R.
    leave_out : float
        Norm of a part of D that C' may leave out, in units of R, besides rounding.
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
    return _Columns(columns, Centre(np.ascontiguousarray(mix), squared, float(error)), lattice_centre)


_own = threading.local()


def room_of(columns: Matrix, k: int, longest: int) -> tuple[Chunk, Matrix, NDArray[np.int64]]:
    """Return this thread's buffers, which it keeps for the next sum of the same shape.

    New memory costs a small sum as much as its products. The buffers hold at most 256 rows of
    rounded records and a few times (d, k) numbers; the sums are zeros.
    """
    d, count = columns.shape
    rows = chunk_rows(d, longest)
    key = (d, count, k, rows, longest)
    if getattr(_own, "key", None) == key:
        kept: tuple[Chunk, Matrix, NDArray[np.int64]] = _own.room
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
        self.centre: Matrix | None = None
        self.lattice_centre: NDArray[np.int64] | None = None
        if centre is None:
            columns = _columns(basis)
        else:
            columns = _columns_about(basis, centre / radius, _LEFT_OUT)
            assert columns.lattice_centre is not None
            self.centre = np.ldexp(np.ascontiguousarray(columns.lattice_centre), -20) * radius
            self.lattice_centre = columns.lattice_centre.astype(np.int64)
        self.columns, self.of_centre = columns.rounded, columns.centre

    def __call__(self, batch: ArrayBatch) -> NDArray[np.int64]:
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
        """Return the records to take at once: about a tenth of a millisecond, in whole chunks."""
        rows = chunk_rows(len(self.columns), read.longest)
        wanted = _SHARE // (len(self.columns) * read.longest)
        return max(-(-wanted // rows), 1) * rows * self.records.step

    def _part(
        self, read: RecordsView, counter: NDArray[np.int64], share: int
    ) -> tuple[NDArray[np.int64], int, int]:
        chunk, exact, total = room_of(self.columns, self.basis_shape[1], read.longest)
        clipped, weights = sum_products(
            read,
            counter,
            share,
            self.records.how,
            self.columns,
            self.of_centre,
            self.per_unit,
            dgemm_address(),
            chunk,
            exact,
            total,
        )
        # The sums are copied out, as this thread uses its buffers again.
        return total.copy(), clipped, weights


def _scale_of(centre: Matrix) -> float:
    """Return the divisor of a centre: its norm within [1e-250, 1e300], or 1 for zeros."""
    scale = frobenius_norm(centre)
    return min(max(scale, 1e-250), 1e300) if scale > 0 else 1.0


class FactorResidualNorms(NormKernel):
    """|A Q - C|_F of every factor; -1 where rounded directions are too coarse."""

    def __init__(self, preprocessing: Preprocessing, basis: Matrix, centre: Matrix) -> None:
        super().__init__(RecordReader(preprocessing, basis))
        self.scale = _scale_of(centre)
        self.columns, self.k = _columns_about(basis, centre / self.scale), basis.shape[1]
        self.per_unit = 2.0**40 / self.scale

    def fill(self, read: RecordsView, first: int, last: int, out: Matrix) -> None:
        """Write the norms in lattice units."""
        columns, centre = self.columns.rounded, self.columns.centre
        chunk, _, _ = room_of(columns, self.k, read.longest)
        how, dgemm = self.records.how, dgemm_address()
        product_sizes(read, first, last, how, columns, centre, self.per_unit, dgemm, chunk, out)

    def __call__(self, block: ArrayBatch) -> Matrix:
        norms = super().__call__(block)
        with np.errstate(all="ignore"):
            return np.where(norms < 0, norms, norms * (self.scale * 2.0**-40))


class _MatrixWork:
    """Inputs and buffers of the kernel of symmetric matrices."""

    def __init__(
        self, preprocessing: Preprocessing, basis: Matrix, per_unit: float, centre: Matrix | None
    ) -> None:
        self.records = RecordReader(preprocessing, basis)
        self.columns = grid(basis, MATRIX_GRID)
        self.per_unit = per_unit
        self.centre = np.zeros((0, 0)) if centre is None else np.ascontiguousarray(centre * per_unit)

    def run(self, read: RecordsView, first: int, last: int, norms: Matrix) -> tuple[NDArray[np.int64], int]:
        """Return totals (d, k) and the number of clipped records.

        If ``norms`` has room for them, it writes the norms there instead, in lattice units.
        """
        total = np.zeros(self.columns.shape, dtype=np.int64)
        columns, centre, dgemm = self.columns, self.centre, dgemm_address()
        clipped = sum_matrix_products(read, first, last, columns, centre, self.per_unit, dgemm, total, norms)
        return total, clipped


class MatrixProducts:
    """Sum of clip(A Q - C) over symmetric matrices, as a kernel of :meth:`Batch.sum`."""

    limit = 2**12

    def __init__(
        self, preprocessing: Preprocessing, basis: Matrix, per_unit: float, centre: Matrix | None = None
    ) -> None:
        self.work = _MatrixWork(preprocessing, basis, per_unit, centre)
        self.whole = self.work.records.whole
        self.basis_shape = basis.shape
        self.shape: tuple[int, ...] = (basis.size + 1,)
        self.centre = centre

    def __call__(self, batch: ArrayBatch) -> NDArray[np.int64]:
        read = self.work.records.read(batch)
        parts = shared_out(
            len(batch),
            lambda first, last: self.work.run(read, first, last, np.zeros(0)),
            least=worth_a_thread(read, batch.dim),
        )
        out = np.zeros(self.shape, dtype=np.int64)
        total = out[:-1].reshape(self.basis_shape)
        for part, clipped in parts:
            total += part
            out[-1] += clipped
        return out


class MatrixResidualNorms(NormKernel):
    """|A Q - C|_F of every symmetric matrix; -1 where rounded products are too coarse."""

    def __init__(self, preprocessing: Preprocessing, basis: Matrix, centre: Matrix) -> None:
        self.scale = _scale_of(centre)
        self._matrices = _MatrixWork(preprocessing, basis, 2.0**26 / self.scale, centre)
        super().__init__(self._matrices.records)

    def fill(self, read: RecordsView, first: int, last: int, out: Matrix) -> None:
        """Write the norms in lattice units."""
        self._matrices.run(read, first, last, out)

    def __call__(self, block: ArrayBatch) -> Matrix:
        norms = super().__call__(block)
        with np.errstate(all="ignore"):
            return np.where(norms < 0, norms, norms * (self.scale * 2.0**-26))
