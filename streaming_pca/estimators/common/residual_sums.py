"""Exact block sums and residual norms: input and output of the compiled kernels."""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.common.record_reader import NormKernel, RecordReader, worth_a_thread
from streaming_pca.kernels.block.bounds import Centre
from streaming_pca.kernels.block.matrix_sums import matrix_rows, sum_matrix_products
from streaming_pca.kernels.block.norms import product_sizes
from streaming_pca.kernels.block.strip_products import MIXED
from streaming_pca.kernels.block.sums import new_counter, sum_products
from streaming_pca.kernels.block.terms import Sums, new_sums
from streaming_pca.kernels.block.tiles import MOST_ROWS, Frame, Tile, frame_of, new_tile, tile_rows
from streaming_pca.kernels.lattice import quantise_centre
from streaming_pca.kernels.public_map import PublicMap
from streaming_pca.kernels.records_view import RecordsView
from streaming_pca.kernels.residuals import frobenius_norm
from streaming_pca.kernels.threads import shared_out, thread_count, together
from streaming_pca.kernels.vectors import LANES

__all__ = ["FactorProducts", "FactorResidualNorms", "MatrixProducts", "MatrixResidualNorms"]

Matrix = NDArray[np.float64]

_SHARE = 2**17
"""Entries that a thread takes at once."""

_FEW = 2
"""Largest number of columns outside the basis that cost less than all of the centre's."""

_LEFT_OUT = 2.0**-3
"""Part of a centre outside few columns, in units of R, that is not worth a third product. It can
lengthen a residual by as much. The sum is about the centre without it, which the caller gets."""

NO_CENTRE = Centre(np.zeros((0, 0)), 0.0, 0.0)


@dataclass(frozen=True)
class _Columns:
    """Columns B to multiply by, and the centre expressed in them."""

    frame: Frame
    centre: Centre
    lattice_centre: Matrix | None = None
    """C', integers near 2**20 C."""


def _columns(basis: Matrix) -> _Columns:
    return _Columns(frame_of(basis, basis.shape[1]), NO_CENTRE)


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
    lengths[lengths == 0] = 1.0
    columns = np.concatenate([basis, added / lengths], axis=1)
    mix = np.ldexp(np.concatenate([inside, rest * lengths[:, None]]), 20)
    lattice_centre = quantise_centre(centre, 1.0)
    frame = frame_of(columns, k)
    off = lattice_centre - columns @ mix
    per_column = float(np.linalg.norm(np.linalg.norm(columns, axis=0) @ np.abs(mix)))
    # |z E| <= |z| times E's largest singular value, with room for float64 rounding.
    spread = float(np.linalg.eigvalsh(off.T @ off)[-1]) + 2.0**-40 * float(np.vdot(off, off))
    rounding = 2.0**-50 * (len(columns) + len(mix)) * per_column
    error = np.sqrt(max(spread, 0.0)) + frame.product_error * per_column + rounding
    # Rounded up by more than any order of summation can lose.
    squared = float(np.vdot(lattice_centre, lattice_centre)) * (1 + (lattice_centre.size + 8) * 2.0**-52)
    padded = np.zeros((len(mix), -(-k // MIXED) * MIXED))
    padded[:, :k] = mix
    return _Columns(frame, Centre(padded, squared, float(error)), lattice_centre)


_own = threading.local()


def _room(frame: Frame, longest: int, how: PublicMap) -> tuple[Tile, Sums, Matrix]:
    """Return this thread's buffers, which it keeps for the next sum of the same shape.

    New memory costs a small sum as much as its products. The buffers hold at most 256 rows of
    rounded records and a few times (d, k) numbers.
    """
    rows = tile_rows(frame.d, longest)
    key = (frame.d, frame.columns, frame.k, rows, how.plain)
    if getattr(_own, "key", None) == key:
        kept: tuple[Tile, Sums, Matrix] = _own.room
        return kept
    tile = new_tile(frame, longest)
    sums = new_sums(frame, tile)
    mapped = np.empty((0 if how.plain else tile.rows, frame.d))
    if rows <= MOST_ROWS:
        _own.key, _own.room = key, (tile, sums, mapped)
    return tile, sums, mapped


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
        self.frame, self.of_centre = columns.frame, columns.centre

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
        """Return the records to take at once: about a tenth of a millisecond, in whole tiles."""
        rows = tile_rows(self.frame.d, read.longest)
        wanted = _SHARE // (self.frame.d * read.longest)
        return max(-(-wanted // rows), 1) * rows

    def _part(
        self, read: RecordsView, counter: NDArray[np.int64], share: int
    ) -> tuple[NDArray[np.int64], int, int]:
        how = self.records.how
        tile, sums, room = _room(self.frame, read.longest, how)
        clipped, weights = sum_products(
            read,
            counter,
            share,
            how,
            how.plain,
            self.frame,
            self.of_centre,
            self.frame.norm_margin,
            self.per_unit,
            tile,
            sums,
            room,
        )
        # The sums are copied out, as this thread uses its buffers again.
        return sums.whole(self.frame), clipped, weights


def _scale_of(centre: Matrix) -> float:
    """Return the divisor of a centre: its norm within [1e-250, 1e300], or 1 for zeros."""
    scale = frobenius_norm(centre)
    return min(max(scale, 1e-250), 1e300) if scale > 0 else 1.0


class FactorResidualNorms(NormKernel):
    """|A Q - C|_F of every factor; -1 where float32 products are too coarse."""

    def __init__(self, preprocessing: Preprocessing, basis: Matrix, centre: Matrix) -> None:
        super().__init__(RecordReader(preprocessing, basis))
        self.scale = _scale_of(centre)
        self.columns = _columns_about(basis, centre / self.scale)
        self.per_unit = 2.0**40 / self.scale

    def fill(self, read: RecordsView, first: int, last: int, out: Matrix) -> None:
        """Write the norms in lattice units."""
        how, frame = self.records.how, self.columns.frame
        tile, sums, room = _room(frame, read.longest, how)
        product_sizes(
            read,
            first,
            last,
            how,
            how.plain,
            frame,
            self.columns.centre,
            self.per_unit,
            tile,
            sums,
            room,
            out,
        )

    def __call__(self, block: ArrayBatch) -> Matrix:
        norms = super().__call__(block)
        return np.where(norms < 0, norms, norms * (self.scale * 2.0**-40))


class _MatrixWork:
    """Inputs and buffers of the kernel of symmetric matrices."""

    def __init__(
        self, preprocessing: Preprocessing, basis: Matrix, per_unit: float, centre: Matrix | None
    ) -> None:
        self.records = RecordReader(preprocessing, basis)
        self.frame = frame_of(basis, basis.shape[1])
        self.per_unit = per_unit
        self.height, self.padded = matrix_rows(len(basis))
        d, k = basis.shape
        self.centre = np.zeros(0)
        if centre is not None:
            columns = np.zeros((k, self.padded))
            columns[:, :d] = centre.T * per_unit
            self.centre = columns.ravel()

    def run(self, read: RecordsView, first: int, last: int, norms: Matrix) -> tuple[NDArray[np.int64], int]:
        """Return totals (d, k) and the number of clipped records.

        If ``norms`` has room for them, it writes the norms there instead, in lattice units.
        """
        frame = self.frame
        z = np.zeros(frame.strips * (self.height + 1) * LANES, dtype=np.float32)
        y = np.zeros(frame.columns * self.padded)
        total = np.zeros(frame.k * self.padded, dtype=np.int64)
        clipped = sum_matrix_products(
            read,
            first,
            last,
            frame,
            self.centre,
            self.per_unit,
            self.height,
            self.padded,
            z,
            y,
            total,
            norms,
        )
        return total.reshape(frame.k, self.padded)[:, : frame.d].T, clipped


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
    """|A Q - C|_F of every symmetric matrix; -1 where float32 products are too coarse."""

    def __init__(self, preprocessing: Preprocessing, basis: Matrix, centre: Matrix) -> None:
        self.scale = _scale_of(centre)
        self._matrices = _MatrixWork(preprocessing, basis, 2.0**26 / self.scale, centre)
        super().__init__(self._matrices.records)

    def fill(self, read: RecordsView, first: int, last: int, out: Matrix) -> None:
        """Write the norms in lattice units."""
        self._matrices.run(read, first, last, out)

    def __call__(self, block: ArrayBatch) -> Matrix:
        norms = super().__call__(block)
        return np.where(norms < 0, norms, norms * (self.scale * 2.0**-26))
