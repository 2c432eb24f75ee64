"""Exact lattice sums of clipped records: the covariance sum and the block sum.

Each sum takes both kinds of record. Adjacency is replace-one.

Covariance sum: the records' matrices A. Factors are clipped in trace, the nuclear norm
of A = F^T F: with A, B positive semidefinite of trace at most R, |A - B|_F^2 <= |A|_F^2 +
|B|_F^2 <= 2 R^2, so the sensitivity is sqrt(2) R. Symmetric matrices are clipped in
Frobenius norm: sensitivity 2 R.

Block sum: A Q - C for a basis Q and a public centre C (0 by default),
clipped in Frobenius norm to R: sensitivity 2 R.

A sum comes with the number of records that the clip made smaller: the last
integer of the vector that a kernel sums.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.batch import Batch, BlockSum, RecordValues, SumKernel
from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.estimators.common.residual_sums import (
    FactorProducts,
    FactorResidualNorms,
    MatrixProducts,
    MatrixResidualNorms,
    check_columns,
)
from streaming_pca.estimators.record_reader import NormKernel, RecordReader, worth_a_thread
from streaming_pca.kernels.blas import dsyrk_address
from streaming_pca.kernels.factor_rows import factor_squared_norms, sum_factors
from streaming_pca.kernels.lattice import BLOCK, MATRIX_RADIUS, MAX_RECORDS, RADIUS, LatticeSum, lattice_unit
from streaming_pca.kernels.reading import PublicMap, RecordsView
from streaming_pca.kernels.residuals import frobenius_norm, residual_norms, sum_residuals
from streaming_pca.kernels.rounding import quantise_records, record_squared_norms
from streaming_pca.kernels.threads import shared_out

Matrix = NDArray[np.float64]
Integers = NDArray[np.int64]

SQRT2_UP = math.nextafter(math.sqrt(2), 2)
"""sqrt(2), rounded up."""

_TIGHT = 0.05
"""Ratio R/|C|_F below which 20 bits of a record are too few: the residual is rounded, not the record."""

ROWS = 2**10
"""Rounded rows of one BLAS product, few enough to stay in a cache."""

NO_TURN = np.zeros((0, 0))
"""Change of coordinates of records in their own ones."""
_MOST_DIM = 2**10  # most features of a total that every thread may copy


def covariance_sensitivity(kind: RecordKind) -> float:
    """Return the sensitivity of :func:`covariance_sum` in lattice units, rounded up."""
    return SQRT2_UP * RADIUS**2 if kind is RecordKind.FACTOR else 2.0 * MATRIX_RADIUS


def covariance_unit(kind: RecordKind, radius: float) -> float:
    """Return the value of one lattice unit of :func:`covariance_sum`."""
    if kind is RecordKind.MATRIX:
        return lattice_unit(radius, MATRIX_RADIUS)
    row_unit = lattice_unit(math.sqrt(radius), RADIUS)
    return row_unit * row_unit


def _block_radius(kind: RecordKind) -> int:
    return RADIUS**2 if kind is RecordKind.FACTOR else MATRIX_RADIUS


def block_sensitivity(kind: RecordKind) -> float:
    """Return the sensitivity of :func:`block_sum` in lattice units, with any centre."""
    return 2.0 * _block_radius(kind)


class FactorNorms(NormKernel):
    """Trace of every factor's matrix, in other coordinates with a ``turn`` (d, d)."""

    def __init__(self, preprocessing: Preprocessing, turn: Matrix = NO_TURN) -> None:
        super().__init__(RecordReader(preprocessing), max(len(turn), 1))
        self.dim, self.turn = preprocessing.dim, turn

    def fill(self, read: RecordsView, first: int, last: int, out: Matrix) -> None:
        room = np.empty((read.longest, self.dim))
        factor_squared_norms(read, first, last, self.records.how, self.turn, room, out)


def _matrix_norms(preprocessing: Preprocessing, block: Block) -> Matrix:
    """Compute the Frobenius norm of every symmetric matrix."""
    starts, rows = transformed(preprocessing, block)
    out = np.zeros(len(starts) - 1)
    record_squared_norms(rows, starts, out)
    return np.sqrt(out)


def record_norms(batch: Batch, preprocessing: Preprocessing) -> RecordValues:
    """Compute the norm that :func:`covariance_sum` clips, for each record.

    It is the trace (nuclear norm) of a factor's matrix, |A|_F of a symmetric matrix. Each
    number is a function of its record alone, computed in a fixed order.
    """
    if batch.kind is RecordKind.FACTOR:
        return batch.map(FactorNorms(preprocessing))
    return batch.map(partial(_matrix_norms, preprocessing))


class _ResidualNorms:
    """|A Q - C|_F of every record, by rounded products where they are fine enough."""

    def __init__(self, kind: RecordKind, preprocessing: Preprocessing, basis: Matrix, centre: Matrix) -> None:
        self.preprocessing, self.basis, self.centre = preprocessing, basis, centre
        self.of_matrices = kind is RecordKind.MATRIX
        self.products: FactorResidualNorms | MatrixResidualNorms
        if self.of_matrices:
            self.products = MatrixResidualNorms(preprocessing, basis, centre)
        else:
            self.products = FactorResidualNorms(preprocessing, basis, centre)
        self.whole = self.products.whole

    def __call__(self, block: Block) -> Matrix:
        norms = self.products(block)
        unknown = norms < 0
        with np.errstate(all="ignore"):
            norms *= self.products.unit
        if unknown.any():
            # Relative to the centre, residuals of these records are too small for rounded products.
            few = block.only(np.repeat(unknown, self.preprocessing.units))
            batch = ArrayBatch(few.rows, few.starts, few.kind, few.begins)
            norms[unknown] = batch.map(self._exact).array
        return norms

    def _exact(self, block: Block) -> Matrix:
        starts, rows = transformed(self.preprocessing, block)
        out = np.zeros(len(starts) - 1)
        residual_norms(rows, starts, self.of_matrices, self.basis, self.centre, out)
        return out


def block_residual_norms(
    batch: Batch, preprocessing: Preprocessing, basis: Matrix, centre: Matrix
) -> RecordValues:
    """Compute |A_i Q - C|_F, the norm that :func:`block_sum` clips, for each record.

    Each number is a function of its record alone, computed in a fixed order.
    """
    basis = _checked_basis(basis)
    centre = _checked_centre(centre, basis)
    return batch.map(_ResidualNorms(batch.kind, preprocessing, basis, centre))


def check_count(count: int) -> None:
    """Check that a batch is small enough for exact sums, or raise ValueError."""
    if count > MAX_RECORDS:
        raise ValueError(f"a batch may hold {MAX_RECORDS} records at most: lower max_batch")


def add_factors(
    read: RecordsView, how: PublicMap, turn: Matrix, chosen: Integers, per_units: Matrix, total: Integers
) -> int:
    """Add the lower triangle of chosen records' matrices to ``total``, (d, d); return the number clipped.

    The work is shared by threads; parameters are those of :func:`.sum_factors`.
    """
    d = len(total)

    def part(first: int, last: int) -> tuple[Integers, int]:
        room, rounded = np.empty((read.longest, d)), np.empty((max(ROWS, read.longest), d))
        exact, lower = np.zeros((d, d)), np.zeros((d, d), dtype=np.int64)
        some, scales, dsyrk = chosen[first:last], per_units[first:last], dsyrk_address()
        return lower, sum_factors(read, some, scales, how, turn, dsyrk, room, rounded, exact, lower)

    clipped = 0
    least = worth_a_thread(read, read.longest) if d <= _MOST_DIM else max(len(chosen), 1)
    for lower, more in shared_out(len(chosen), part, 1, least):
        total += lower
        clipped += more
    return clipped


class _FactorCovariance:
    """Sum of clip(F^T F) over factors F, as a kernel of :meth:`Batch.sum`."""

    limit = BLOCK

    def __init__(self, preprocessing: Preprocessing, per_unit: float) -> None:
        self.records = RecordReader(preprocessing)
        self.whole = self.records.whole
        self.per_unit = per_unit
        self.dim = preprocessing.dim
        self.shape: tuple[int, ...] = (self.dim * self.dim + 1,)

    def __call__(self, batch: Block) -> Integers:
        read, out = self.records.read(batch), np.zeros(self.shape, dtype=np.int64)
        lower = out[:-1].reshape(self.dim, self.dim)
        everyone = np.arange(len(read.begins) // self.records.step)
        scales = np.full(len(everyone), self.per_unit)
        out[-1] = add_factors(read, self.records.how, NO_TURN, everyone, scales, lower)
        lower += np.tril(lower, -1).T
        return out


def _matrix_sum(preprocessing: Preprocessing, per_unit: float, block: Block) -> Integers:
    """Sum clipped symmetric matrices."""
    starts, rows = transformed(preprocessing, block)
    z = np.empty_like(rows)
    clipped = quantise_records(rows, starts, per_unit, float(MATRIX_RADIUS), z)
    d = preprocessing.dim
    return np.append(z.reshape(-1, d, d).sum(axis=0).astype(np.int64), clipped)


def covariance_sum(batch: Batch, preprocessing: Preprocessing, radius: float) -> LatticeSum:
    """Sum clipped matrices exactly on the lattice, to a (d, d) symmetric total.

    The clip radius is of the trace (factors) or the Frobenius norm (matrices).
    """
    unit, d = covariance_unit(preprocessing.kind, radius), preprocessing.dim
    kernel: SumKernel = BlockSum(partial(_matrix_sum, preprocessing, 1 / unit), (d * d + 1,))
    if preprocessing.kind is RecordKind.FACTOR:
        kernel = _FactorCovariance(preprocessing, 1 / lattice_unit(math.sqrt(radius), RADIUS))
    return _summed(batch, kernel, (d, d), unit, covariance_sensitivity(preprocessing.kind))


class _TightBlock:
    """Kernel for R far below |C|: it rounds residuals instead of records."""

    limit = 2**10
    whole = False

    def __init__(self, preprocessing: Preprocessing, basis: Matrix, per_unit: float, centre: Matrix) -> None:
        self.preprocessing, self.per_unit, self.basis, self.centre = preprocessing, per_unit, basis, centre
        self.shape: tuple[int, ...] = (basis.size + 1,)

    def __call__(self, block: Block) -> Integers:
        starts, rows = transformed(self.preprocessing, block)
        total = np.zeros(self.basis.shape, dtype=np.int64)
        of_matrices = self.preprocessing.kind is RecordKind.MATRIX
        clipped = sum_residuals(rows, starts, of_matrices, self.basis, self.centre, self.per_unit, total)
        return np.append(total, clipped)


def block_sum(
    batch: Batch, preprocessing: Preprocessing, basis: Matrix, radius: float, centre: Matrix | None = None
) -> LatticeSum:
    """Sum clip_R(A_i Q - C) exactly on the lattice.

    ``basis``: (d, k), orthonormal columns, rounded to 2**-30 (2**-26 for matrices); not rounded where R is
    below 0.05 |C|_F. ``radius``: R, in squared units of the data (in units of the data for matrices).
    ``centre``: (d, k), C, in the same units; public, for instance an earlier private output. A null record
    then contributes clip_R(-C); without a centre it adds nothing.

    Returns a (d, k) total. Its ``centre`` is the subtracted one: C on a lattice of R 2**-20, without its part
    outside the basis and two further columns if that part is R/8 at most; C itself for matrices and where R
    is below 0.05 |C|_F. Rounding of the values, relative to R: see :mod:`streaming_pca.kernels.block.chunks`,
    :mod:`~streaming_pca.kernels.block.matrix_sums` and :mod:`~streaming_pca.kernels.residuals`.

    Raises ValueError if the centre is not finite or not of the basis' shape.
    """
    kind = preprocessing.kind
    unit = lattice_unit(radius, _block_radius(kind))
    basis, per_unit = _checked_basis(basis), 1 / unit
    kernel: FactorProducts | MatrixProducts | _TightBlock
    # The choice depends on kind, R and |C|, never on a record.
    if centre is not None:
        centre = _checked_centre(centre, basis)
    if centre is not None and radius < _TIGHT * frobenius_norm(centre):
        kernel = _TightBlock(preprocessing, basis, per_unit, centre)
    elif kind is RecordKind.MATRIX:
        kernel = MatrixProducts(preprocessing, basis, per_unit, centre)
    else:
        kernel = FactorProducts(preprocessing, basis, per_unit, centre, radius)
    return _summed(batch, kernel, basis.shape, unit, block_sensitivity(kind), kernel.centre)


def _checked_basis(basis: Matrix) -> Matrix:
    """Check a basis: far too long columns would exceed exact sums."""
    basis = np.ascontiguousarray(basis, dtype=np.float64)
    check_columns(basis)
    return basis


def _checked_centre(centre: Matrix, basis: Matrix) -> Matrix:
    """Check a centre, whose shape kernels trust."""
    if centre.shape != basis.shape or not np.all(np.isfinite(centre)):
        raise ValueError(f"the centre must be finite, of the basis' shape {basis.shape}")
    return np.ascontiguousarray(centre, dtype=np.float64)


def _summed(
    batch: Batch,
    kernel: SumKernel,
    shape: tuple[int, ...],
    unit: float,
    sensitivity: float,
    centre: Matrix | None = None,
) -> LatticeSum:
    check_count(len(batch))
    vector = batch.sum(kernel)
    return LatticeSum(vector[:-1].reshape(shape), unit, sensitivity, int(vector[-1]), centre)
