"""Symmetric matrices as their upper triangles, row by row: (0,0), (0,1), ..., (0,d-1), (1,1), ...

Imports NumPy alone: producers of reports use it.
"""

from __future__ import annotations

import math
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Number = TypeVar("Number", bound=np.generic)


def packed_size(dim: int) -> int:
    """Return the count of numbers in the upper triangle of a matrix of order ``dim``."""
    return dim * (dim + 1) // 2


def dim_of_packed(size: int) -> int:
    """Return the order of the matrix whose triangle has ``size`` numbers, or raise ValueError."""
    dim = (math.isqrt(8 * size + 1) - 1) // 2 if size > 0 else 0
    if dim < 1 or packed_size(dim) != size:
        raise ValueError(f"{size} numbers are not the upper triangle of a matrix")
    return dim


def pack_symmetric(matrix: NDArray[Number]) -> NDArray[Number]:
    """Pack the upper triangle of symmetric matrices, (d, d) or (m, d, d).

    Entries below the diagonal are not read. The result is (d(d+1)/2,) or (m, d(d+1)/2), of the same dtype.
    ValueError if the last two axes are not equal.
    """
    if matrix.ndim not in (2, 3) or matrix.shape[-1] != matrix.shape[-2] or not matrix.shape[-1]:
        raise ValueError(f"expected square matrices, not the shape {matrix.shape}")
    dim = matrix.shape[-1]
    packed = np.empty((*matrix.shape[:-2], packed_size(dim)), dtype=matrix.dtype)
    first = 0
    # Row by row: no (d(d+1)/2, 2) indices of 8 bytes each.
    for i in range(dim):
        packed[..., first : first + dim - i] = matrix[..., i, i:]
        first += dim - i
    return packed


def unpack_symmetric(packed: NDArray[Number], dim: int | None = None) -> NDArray[Number]:
    """Return the symmetric matrix (d, d), or matrices (m, d, d), of upper triangles.

    ValueError if the last axis is not the upper triangle of such a matrix, of order ``dim`` if it is given.
    """
    if packed.ndim not in (1, 2):
        raise ValueError(f"expected upper triangles, not the shape {packed.shape}")
    found = dim_of_packed(packed.shape[-1])
    if dim is not None and dim != found:
        raise ValueError(
            f"{packed.shape[-1]} numbers are the upper triangle of a matrix of {found}, not {dim}"
        )
    matrix = np.empty((*packed.shape[:-1], found, found), dtype=packed.dtype)
    first = 0
    for i in range(found):
        row = packed[..., first : first + found - i]
        matrix[..., i, i:] = row
        matrix[..., i:, i] = row
        first += found - i
    return matrix
