"""Orthonormal bases, distances between subspaces, eigenpairs, Ritz pairs, stable signs.

scipy loads its subpackages at their first use, so commands that compute nothing do not wait for them.
"""

from __future__ import annotations

import numpy as np
import scipy
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

_LAPACK_BLOCK = 32  # columns that LAPACK's QR works on together; its best workspace is this times k numbers
_SMALL = 64  # up to this order all eigenpairs are as cheap as some of them


def orthonormalise(columns: Matrix) -> Matrix:
    """Compute an orthonormal basis (d, k) of the span of columns (d, k) by QR.

    k is at most d. Columns keep their direction (the diagonal of R is made positive), and a
    rank-deficient input is completed, not refused.
    """
    d, k = columns.shape
    if not d >= k >= 1:
        raise ValueError(f"{k} orthonormal columns of {d} entries")
    # LAPACK directly: numpy's wrapper takes as long again, which shows on small batches.
    factored, scales, _, _ = scipy.linalg.lapack.dgeqrf(columns, lwork=_LAPACK_BLOCK * k)
    signs = np.where(factored.diagonal() < 0, -1.0, 1.0)
    q, _, _ = scipy.linalg.lapack.dorgqr(factored, scales, lwork=_LAPACK_BLOCK * k, overwrite_a=True)
    return np.asarray(np.multiply(q, signs, order="C"))


def project_symmetric(y: Matrix, basis: Matrix) -> Matrix:
    """Project y (d, k) orthogonally on {Y : Q^T Y symmetric} [DunglerSanyal2026, section 2.1]."""
    inner = basis.T @ y
    return np.asarray(y - basis @ ((inner - inner.T) / 2))


def ritz_pairs(matrix: Matrix, k: int) -> tuple[Matrix, Matrix]:
    """Return the k largest eigenvalues (k,), decreasing, and their eigenvectors (d, k)."""
    values, vectors = np.linalg.eigh((matrix + matrix.T) / 2)
    return values[::-1][:k].copy(), fixed_signs(np.ascontiguousarray(vectors[:, ::-1][:, :k]))


def fixed_signs(vectors: Matrix) -> Matrix:
    """Return columns (..., d, k) whose largest entry is positive: LAPACK's signs vary with memory."""
    largest = np.argmax(np.abs(vectors), axis=-2, keepdims=True)
    return np.asarray(np.where(np.take_along_axis(vectors, largest, axis=-2) < 0, -vectors, vectors))


def stable_signs(components: Matrix, previous: Matrix | None) -> Matrix:
    """Choose signs of the rows of ``components`` (k, d) that do not flip between releases.

    A row that overlaps the previous release's row of the same rank by more
    than 0.1 points the same way; any other has its largest entry positive.
    """
    out = np.ascontiguousarray(fixed_signs(components.T).T)
    for row, before in zip(out, () if previous is None else previous, strict=False):
        if row @ before < -0.1:
            row *= -1.0
    return out


def subspace_error(a: Matrix, b: Matrix) -> float:
    """Return |U U^T - V V^T|_F for two sets of orthonormal rows (k, d)."""
    # len(a) + len(b) - 2 |a b^T|^2 would lose half of the digits if a and b nearly agree.
    overlap = a @ b.T
    return float(np.hypot(np.linalg.norm(a - overlap @ b), np.linalg.norm(b - overlap.T @ a)))


def principal_angles(a: Matrix, b: Matrix) -> NDArray[np.float64]:
    """Return all principal angles, decreasing, in radians, between two subspaces.

    Both are sets of orthonormal rows (k, d), perhaps of different k: the angles are as many as the smaller k.
    Small ones come from sines and large ones from cosines, as neither is exact for both [BjorckGolub1973].
    """
    small, large = (a, b) if len(a) <= len(b) else (b, a)
    overlap = small @ large.T
    cosines = np.linalg.svd(overlap, compute_uv=False)[::-1]
    sines = np.linalg.svd(small - overlap @ large, compute_uv=False)
    from_sines, from_cosines = np.arcsin(np.minimum(sines, 1.0)), np.arccos(np.minimum(cosines, 1.0))
    return np.asarray(np.where(sines * sines < 0.5, from_sines, from_cosines))


def leading_eigenpairs(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """Return the largest eigenvalues, decreasing, and their eigenvectors as columns (m, count).

    LAPACK's routine for some eigenpairs (MRRR) takes a third of the time of the routine for all (divide and
    conquer). It may fail if many eigenvalues are nearly equal; then all are computed, which does not fail.
    """
    m = len(matrix)
    if _SMALL < m and count < m:
        try:
            values, vectors = scipy.linalg.eigh(
                matrix, subset_by_index=[m - count, m - 1], check_finite=False
            )
            return values[::-1], vectors[:, ::-1]
        except scipy.linalg.LinAlgError:
            pass
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1][:count], vectors[:, ::-1][:, :count]
