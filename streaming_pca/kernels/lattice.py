"""Exact sums of clipped records on an integer lattice.

A float sum depends on its order, and a BLAS product on shapes, threads and processors. Here each contribution
is a vector of integers, small enough that float64 holds every partial sum of a block exactly: at most 2**13 *
2**40 = 2**53. BLAS may then add in any order; blocks are added as int64, at most 2**62, which leaves room for
noise of 2**62 (:func:`~streaming_pca.privacy.calibration.multipliers.lattice_sigma`). The lattice unit is the
clip radius over a power of two, so noise has one scale in lattice units for every radius. Headroom of every
sum: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

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
    """Exact sum with its unit and sensitivity."""

    total: Integers
    """In lattice units."""
    unit: float
    """Value of one lattice unit."""
    sensitivity: float
    """Largest L2 (Frobenius) distance, in lattice units, between the totals of two inputs that differ in one
    record."""
    clipped: int
    """Clipped records (pairs). Sensitivity 1, and as secret as the total: it leaves through a mechanism or
    not at all."""
    centre: Floats | None = None
    """(d, k) subtracted from each record before the clip, in the data's units: the mean of A Q is near
    ``centre + total * unit / records``."""


def lattice_unit(radius: float, lattice_radius: int) -> float:
    """Return the unit that makes the clip radius a fixed integer.

    Raises ValueError if the radius is not a number between 1e-250 and 1e250.
    """
    if not 1e-250 <= radius <= 1e250:
        raise ValueError(f"clip radius {radius!r} must lie between 1e-250 and 1e250")
    return radius / lattice_radius


def quantise_basis(basis: Floats) -> Floats:
    """Round a basis (d, k) to multiples of 2**-20, as integers in float64, Fortran order.

    Products of it with quantised factors are then exact: |q| |z| <= 2**41. Columns are orthonormal, or it is
    a ValueError.
    """
    rounded = np.rint(np.ldexp(basis, 20))
    if not np.all(np.abs(rounded) <= RADIUS):
        raise ValueError("the basis must be finite and have orthonormal columns")
    # Longer columns would void the headroom above.
    if not np.all(np.einsum("ij,ij->j", rounded, rounded) <= 1.01 * RADIUS**2):
        raise ValueError("the basis must have orthonormal columns")
    return np.asfortranarray(rounded)


def quantise_centre(centre: Floats, radius: float) -> Floats:
    """Round a centre (d, k) to multiples of R 2**-20, as such integers.

    Products of it with quantised factors are then exact, and so is an integer weight times it. Its norm is at
    most 20 R or so.
    """
    return np.asfortranarray(np.rint(np.ldexp(centre / radius, 20)))
