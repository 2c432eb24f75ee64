"""Exact sums of clipped records on an integer lattice.

Why: noise hides a sum only if neighbouring sums differ by no more than the
sensitivity says, in the very numbers that the noise is added to. Float sums
depend on their order, and BLAS products on shapes, threads and processors. So
every contribution is a vector of integers, small enough that float64 holds
every partial sum of a block exactly: |partial sum| <= 2**13 * 2**40 = 2**53.
Then BLAS may add them up in any order, with any number of threads and fused
or not, and gets the same integers; blocks are added as int64.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK", "MATRIX_RADIUS", "MAX_RECORDS", "RADIUS", "LatticeSum", "lattice_unit", "quantise_basis"]

RADIUS = 2**20
"""Largest Frobenius norm, in lattice units, of a quantised factor."""

MATRIX_RADIUS = 2**26
"""Largest Frobenius norm, in lattice units, of a quantised symmetric matrix: its square is exact."""

BLOCK = 2**13
"""Records whose products float64 adds exactly: BLOCK * RADIUS**2 == 2**53."""

MAX_RECORDS = 2**22
"""Records in one sum: MAX_RECORDS * RADIUS**2 == 2**62 leaves room for noise in int64."""


@dataclass(frozen=True)
class LatticeSum:
    """An exact sum and what is known of it.

    Attributes
    ----------
    total : int64 array
        In lattice units.
    unit : float
        What one lattice unit stands for.
    sensitivity : float
        Largest L2 (Frobenius) distance, in lattice units, between the totals
        of two inputs that differ in one record.
    """

    total: NDArray[np.int64]
    unit: float
    sensitivity: float


def lattice_unit(radius: float, lattice_radius: int) -> float:
    """The unit that makes a clip radius a fixed integer, so that noise is one integer scale for ever.

    Raises
    ------
    ValueError
        If the radius is no number between 1e-250 and 1e250.
    """
    if not 1e-250 <= radius <= 1e250:
        raise ValueError(f"clip radius {radius!r} must lie between 1e-250 and 1e250")
    return radius / lattice_radius


def quantise_basis(basis: NDArray[np.float64]) -> NDArray[np.float64]:
    """Round a basis to multiples of 2**-20, returned as integers in float64.

    Products of it with quantised factors are then exact: |q| |z| <= 2**41.

    Parameters
    ----------
    basis : (d, k) float64, orthonormal columns

    Returns
    -------
    (d, k) float64, integer values, Fortran order
    """
    rounded = np.rint(np.ldexp(basis, 20))
    if not np.all(np.abs(rounded) <= RADIUS):
        raise ValueError("the basis must have orthonormal columns")
    if math.isnan(float(rounded.sum())):
        raise ValueError("the basis must be finite")
    return np.asfortranarray(rounded)
