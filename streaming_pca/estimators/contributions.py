"""What records contribute to a sum: transformed, clipped, on the lattice.

Two sums, each for both kinds of record. Adjacency is replace-one.

Covariance sum: the records' matrices. Factors are clipped in trace: with
A, B positive semidefinite of trace at most R, |A - B|_F^2 <= |A|^2 + |B|^2
<= 2 R^2, so the sensitivity is sqrt(2) R. Symmetric matrices are clipped in
Frobenius norm: sensitivity 2 R.

Block sum: A Q - C for a basis Q and a public centre C (0 if none is given),
clipped in Frobenius norm to R: sensitivity 2 R.

A sum comes with the number of records that its clip made smaller: the last
integer of the vector that a kernel sums, so it goes where the sum goes.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.factor_covariance import FactorCovariance, factor_traces
from streaming_pca.estimators.image_kernels import FactorImages, MatrixImages, factor_sizes, matrix_sizes
from streaming_pca.linalg.centred import frobenius_norm, residual_norms, sum_residuals
from streaming_pca.linalg.clipping import quantise_records, record_squared_norms
from streaming_pca.linalg.lattice import (
    BLOCK,
    MATRIX_RADIUS,
    MAX_RECORDS,
    RADIUS,
    LatticeSum,
    lattice_unit,
)
from streaming_pca.linalg.tiles import longest_column
from streaming_pca.preprocessing import Preprocessing, transformed
from streaming_pca.records import Batch, RecordKind, SumKernel

__all__ = [
    "block_sensitivity",
    "block_sum",
    "covariance_sensitivity",
    "covariance_sum",
    "covariance_unit",
    "record_sizes",
    "residual_sizes",
]

_SQRT2_UP = math.nextafter(math.sqrt(2), 2)

_TIGHT = 0.05
"""Below this many |C|, 20 bits of a record are too few for its residual: it is rounded instead."""


def covariance_sensitivity(kind: RecordKind) -> float:
    """Sensitivity of :func:`covariance_sum` in lattice units, rounded up."""
    return _SQRT2_UP * RADIUS**2 if kind is RecordKind.FACTOR else 2.0 * MATRIX_RADIUS


def covariance_unit(kind: RecordKind, radius: float) -> float:
    """What one lattice unit of :func:`covariance_sum` stands for."""
    if kind is RecordKind.MATRIX:
        return lattice_unit(radius, MATRIX_RADIUS)
    row_unit = lattice_unit(math.sqrt(radius), RADIUS)
    return row_unit * row_unit


def _block_radius(kind: RecordKind) -> int:
    return RADIUS**2 if kind is RecordKind.FACTOR else MATRIX_RADIUS


def block_sensitivity(kind: RecordKind) -> float:
    """Sensitivity of :func:`block_sum` in lattice units, with any centre or none."""
    return 2.0 * _block_radius(kind)


def record_sizes(batch: Batch, preprocessing: Preprocessing) -> NDArray[np.float64]:
    """The number that :func:`covariance_sum` clips: trace of a factor's matrix, |A|_F of a matrix.

    Each is a function of its record alone, computed in a fixed order.
    """

    if batch.kind is RecordKind.FACTOR:
        return factor_traces(batch, preprocessing)

    def kernel(block: Batch) -> NDArray[np.float64]:
        starts, rows = transformed(preprocessing, block)
        out = np.zeros(len(starts) - 1)
        record_squared_norms(rows, starts, out)
        return np.sqrt(out)

    return batch.map(kernel)


def residual_sizes(
    batch: Batch, preprocessing: Preprocessing, basis: NDArray[np.float64], centre: NDArray[np.float64]
) -> NDArray[np.float64]:
    """|A_i Q - C|_F, which :func:`block_sum` clips, to choose its radius by.

    Each is a function of its record alone, computed in a fixed order.
    """
    basis, centre = np.ascontiguousarray(basis), np.ascontiguousarray(centre)
    of_matrices = batch.kind is RecordKind.MATRIX
    if of_matrices:
        sizes = matrix_sizes(batch, preprocessing, basis, centre)
    else:
        sizes = factor_sizes(batch, preprocessing, basis, centre)
    unknown = sizes < 0
    if not unknown.any():
        return sizes

    def kernel(block: Batch) -> NDArray[np.float64]:
        starts, rows = transformed(preprocessing, block)
        out = np.zeros(len(starts) - 1)
        residual_norms(rows, starts, of_matrices, basis, centre, out)
        return out

    # What is left of these records beside the centre is too little for float32 images.
    sizes[unknown] = batch.only(np.repeat(unknown, preprocessing.units)).map(kernel)
    return sizes


def _vector(total: NDArray[np.floating] | NDArray[np.int64], clipped: int) -> NDArray[np.int64]:
    """A kernel's answer: the total's entries, and the number of clipped records."""
    out = np.empty(total.size + 1, dtype=np.int64)
    out[:-1] = total.ravel()
    out[-1] = clipped
    return out


class _MatrixSum:
    """Sum of clipped symmetric matrices."""

    limit = BLOCK
    whole = False

    def __init__(self, preprocessing: Preprocessing, per_unit: float) -> None:
        self.preprocessing, self.per_unit = preprocessing, per_unit
        self.dim = preprocessing.output_dim
        self.shape: tuple[int, ...] = (self.dim * self.dim + 1,)

    def __call__(self, block: Batch) -> NDArray[np.int64]:
        starts, rows = transformed(self.preprocessing, block)
        z = np.empty_like(rows)
        clipped = quantise_records(rows, starts, self.per_unit, float(MATRIX_RADIUS), z)
        return _vector(z.reshape(-1, self.dim, self.dim).sum(axis=0), clipped)


def covariance_sum(batch: Batch, preprocessing: Preprocessing, radius: float) -> LatticeSum:
    """Exact lattice sum of clipped matrices.

    Parameters
    ----------
    batch : Batch
    preprocessing : Preprocessing
    radius : float
        Clip of the trace (factors), of the Frobenius norm (matrices).

    Returns
    -------
    LatticeSum of a (d, d) symmetric total
    """
    unit = covariance_unit(preprocessing.kind, radius)
    kernel: FactorCovariance | _MatrixSum = _MatrixSum(preprocessing, 1 / unit)
    if preprocessing.kind is RecordKind.FACTOR:
        kernel = FactorCovariance(preprocessing, 1 / lattice_unit(math.sqrt(radius), RADIUS))
    d = preprocessing.output_dim
    return _summed(batch, kernel, (d, d), unit, covariance_sensitivity(preprocessing.kind))


class _TightBlock:
    """Residuals about a centre that R is far below: they are rounded, not the records."""

    limit = 2**10
    whole = False

    def __init__(
        self,
        preprocessing: Preprocessing,
        basis: NDArray[np.float64],
        per_unit: float,
        centre: NDArray[np.float64],
    ) -> None:
        self.preprocessing, self.per_unit = preprocessing, per_unit
        self.basis = np.ascontiguousarray(basis, dtype=np.float64)
        self.shape: tuple[int, ...] = (basis.size + 1,)
        self.centre = centre

    def __call__(self, block: Batch) -> NDArray[np.int64]:
        starts, rows = transformed(self.preprocessing, block)
        total = np.zeros(self.basis.shape, dtype=np.int64)
        of_matrices = self.preprocessing.kind is RecordKind.MATRIX
        clipped = sum_residuals(rows, starts, of_matrices, self.basis, self.centre, self.per_unit, total)
        return _vector(total, clipped)


def block_sum(
    batch: Batch,
    preprocessing: Preprocessing,
    basis: NDArray[np.float64],
    radius: float,
    centre: NDArray[np.float64] | None = None,
) -> LatticeSum:
    """Exact lattice sum of clip_R(A_i Q - C).

    Parameters
    ----------
    batch : Batch
    preprocessing : Preprocessing
    basis : (d, k) float64, orthonormal columns
        Rounded to float32; where R is below 0.05 |C|_F it is used as it is.
    radius : float
        R, in squared units of the data (in units of the data for matrices).
    centre : (d, k) float64, optional
        C, in the same units; public: an earlier private output. A null record
        then contributes clip_R(-C), where without a centre it adds nothing.

    Returns
    -------
    LatticeSum of a (d, k) total
        Its ``centre`` is the one that was taken off: C on a lattice of R 2**-20, without
        what is outside the basis and two columns more if that is R/8 at most; C itself
        for matrices and where R is below 0.05 |C|_F. Rounding of the values, relative to
        R: see :mod:`streaming_pca.linalg.tiles`, :mod:`~streaming_pca.linalg.matrix_sums`
        and :mod:`~streaming_pca.linalg.centred`.

    Raises
    ------
    ValueError
        If the centre is not finite or not of the basis' shape.
    """
    unit = lattice_unit(radius, _block_radius(preprocessing.kind))
    kernel = _block_kernel(preprocessing, basis, 1 / unit, centre, radius)
    sensitivity = block_sensitivity(preprocessing.kind)
    return _summed(batch, kernel, basis.shape, unit, sensitivity, kernel.centre)


def _block_kernel(
    preprocessing: Preprocessing,
    basis: NDArray[np.float64],
    per_unit: float,
    centre: NDArray[np.float64] | None,
    radius: float,
) -> FactorImages | MatrixImages | _TightBlock:
    """The kernel for a kind and a centre: by R and |C|, never by a record."""
    basis = np.ascontiguousarray(basis, dtype=np.float64)
    _check_basis(basis)
    if centre is not None:
        if centre.shape != basis.shape or not np.all(np.isfinite(centre)):
            raise ValueError(f"the centre must be finite, of the basis' shape {basis.shape}")
        centre = np.ascontiguousarray(centre, dtype=np.float64)
        if radius < _TIGHT * frobenius_norm(centre):
            return _TightBlock(preprocessing, basis, per_unit, centre)
    if preprocessing.kind is RecordKind.MATRIX:
        return MatrixImages(preprocessing, basis, per_unit, centre)
    return FactorImages(preprocessing, basis, per_unit, centre, radius)


def _check_basis(basis: NDArray[np.float64]) -> None:
    """Columns that are far too long would void the headroom of exact sums."""
    if not longest_column(basis) <= 1.01:
        raise ValueError("the basis must be finite and have orthonormal columns")


def _summed(
    batch: Batch,
    kernel: SumKernel,
    shape: tuple[int, ...],
    unit: float,
    sensitivity: float,
    centre: NDArray[np.float64] | None = None,
) -> LatticeSum:
    if len(batch) > MAX_RECORDS:
        raise ValueError(f"a batch may hold {MAX_RECORDS} records at most: lower max_batch")
    vector = batch.sum(kernel)
    return LatticeSum(vector[:-1].reshape(shape), unit, sensitivity, int(vector[-1]), centre)
