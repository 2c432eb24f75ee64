"""What records contribute to a sum: transformed, clipped, on the lattice.

Two sums, each for both kinds of record. Adjacency is replace-one.

Covariance sum: the records' matrices. Factors are clipped in trace: with
A, B positive semidefinite of trace at most R, |A - B|_F^2 <= |A|^2 + |B|^2
<= 2 R^2, so the sensitivity is sqrt(2) R. Symmetric matrices are clipped in
Frobenius norm: sensitivity 2 R.

Block sum: A Q for a basis Q, clipped in Frobenius norm to R: sensitivity 2 R.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.clipping import (
    quantise_factors,
    quantise_images,
    quantise_matrices,
    quantise_matrix_images,
    record_squared_norms,
)
from streaming_pca.linalg.lattice import (
    BLOCK,
    MATRIX_RADIUS,
    MAX_RECORDS,
    RADIUS,
    LatticeSum,
    lattice_unit,
    quantise_basis,
)
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.records import Batch, RecordKind

__all__ = ["block_sum", "covariance_sensitivity", "covariance_sum", "record_sizes"]

_SQRT2_UP = math.nextafter(math.sqrt(2), 2)


def covariance_sensitivity(kind: RecordKind) -> float:
    """Sensitivity of :func:`covariance_sum` in lattice units, rounded up."""
    return _SQRT2_UP * RADIUS**2 if kind is RecordKind.FACTOR else 2.0 * MATRIX_RADIUS


def _transformed(preprocessing: Preprocessing, block: Batch) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Starts and float64 rows of a block's transformed records."""
    transformed = preprocessing.apply(block)
    return transformed.starts, np.asarray(transformed.rows, dtype=np.float64)


def record_sizes(batch: Batch, preprocessing: Preprocessing) -> NDArray[np.float64]:
    """The number that :func:`covariance_sum` clips: trace of a factor's matrix, |A|_F of a matrix.

    Each is a function of its record alone, computed in a fixed order.
    """

    def kernel(block: Batch) -> NDArray[np.float64]:
        starts, rows = _transformed(preprocessing, block)
        out = np.zeros(len(starts) - 1)
        record_squared_norms(rows, starts, out)
        return out if batch.kind is RecordKind.FACTOR else np.sqrt(out)

    return batch.map(kernel)


class _Covariance:
    limit = BLOCK

    def __init__(self, preprocessing: Preprocessing, per_unit: float) -> None:
        self.preprocessing, self.per_unit = preprocessing, per_unit
        d = preprocessing.output_dim
        self.shape: tuple[int, ...] = (d, d)

    def __call__(self, block: Batch) -> NDArray[np.int64]:
        starts, rows = _transformed(self.preprocessing, block)
        z = np.empty_like(rows)
        if self.preprocessing.kind is RecordKind.MATRIX:
            quantise_matrices(rows, starts, self.per_unit, z)
            return np.asarray(z.reshape(-1, *self.shape).sum(axis=0).astype(np.int64))
        quantise_factors(rows, starts, self.per_unit, z)
        return np.asarray((z.T @ z).astype(np.int64))


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
    _check_size(batch)
    if preprocessing.kind is RecordKind.FACTOR:
        row_unit = lattice_unit(math.sqrt(radius), RADIUS)
        total = batch.sum(_Covariance(preprocessing, 1 / row_unit))
        unit = row_unit * row_unit
    else:
        unit = lattice_unit(radius, MATRIX_RADIUS)
        total = batch.sum(_Covariance(preprocessing, 1 / unit))
    return LatticeSum(total, unit, covariance_sensitivity(preprocessing.kind))


class _Block:
    limit = 2**10
    """Images of many rows reach 2**23: 2**10 * 2**20 * 2**23 == 2**53."""

    def __init__(self, preprocessing: Preprocessing, basis: NDArray[np.float64], per_unit: float) -> None:
        self.preprocessing, self.per_unit = preprocessing, per_unit
        self.basis = quantise_basis(basis)
        self.shape: tuple[int, ...] = basis.shape

    def __call__(self, block: Batch) -> NDArray[np.int64]:
        starts, rows = _transformed(self.preprocessing, block)
        z = np.empty_like(rows)
        if self.preprocessing.kind is RecordKind.MATRIX:
            quantise_matrices(rows, starts, math.inf, z)
            y = z @ self.basis
            quantise_matrix_images(rows, z, y, starts, self.per_unit)
            return np.asarray(y.reshape(-1, *self.shape).sum(axis=0).astype(np.int64))
        quantise_factors(rows, starts, math.inf, z)
        y = z @ self.basis
        quantise_images(rows, z, y, starts, self.per_unit)
        return np.asarray((z.T @ y).astype(np.int64))


def block_sum(
    batch: Batch, preprocessing: Preprocessing, basis: NDArray[np.float64], radius: float
) -> LatticeSum:
    """Exact lattice sum of clip_R(A_i Q).

    Parameters
    ----------
    batch : Batch
    preprocessing : Preprocessing
    basis : (d, k) float64, orthonormal columns
        Rounded to multiples of 2**-20, so that A Q is exact.
    radius : float
        R, in squared units of the data.

    Returns
    -------
    LatticeSum of a (d, k) total
    """
    _check_size(batch)
    lattice_radius = RADIUS**2 if preprocessing.kind is RecordKind.FACTOR else MATRIX_RADIUS
    unit = lattice_unit(radius, lattice_radius)
    total = batch.sum(_Block(preprocessing, basis, 1 / unit))
    return LatticeSum(total, unit, 2.0 * lattice_radius)


def _check_size(batch: Batch) -> None:
    if len(batch) > MAX_RECORDS:
        raise ValueError(f"a batch may hold {MAX_RECORDS} records at most: lower max_batch")
