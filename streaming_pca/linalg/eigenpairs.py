"""The leading eigenpairs of a symmetric matrix, for less than all of them cost."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import LinAlgError, eigh

__all__ = ["leading_eigenpairs"]

Matrix = NDArray[np.float64]

_SMALL = 64
"""Up to this order all eigenpairs cost no more than some of them."""


def leading_eigenpairs(matrix: Matrix, count: int) -> tuple[Matrix, Matrix]:
    """The ``count`` largest eigenvalues, decreasing, and their eigenvectors as columns (m, count).

    LAPACK's routine for some of them (MRRR) takes a third of the time of that for
    all, and is known to give up where many eigenvalues are nearly equal: then that
    for all (divide and conquer) is taken, which does not.
    """
    m = len(matrix)
    if _SMALL < m and count < m:
        try:
            values, vectors = eigh(matrix, subset_by_index=[m - count, m - 1], check_finite=False)
            return values[::-1], vectors[:, ::-1]
        except LinAlgError:
            pass
    values, vectors = np.linalg.eigh(matrix)
    return values[::-1][:count], vectors[:, ::-1][:, :count]
