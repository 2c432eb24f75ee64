"""Norm bound of a block contribution z^T u - w C', checked for every record.

Names are those of :mod:`~streaming_pca.kernels.block.sums`. The bound is

    |z^T u - w C'|**2 = |z^T u|**2 - 2 w <u, z C'> + w**2 |C'|**2 <= RADIUS**4,

where each term carries its rounding error upward; a record that fails adds nothing.
Proof: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import RADIUS, Floats

WEIGHT = 2.0**20
"""Weight 1 of the centre, in lattice units of weight."""
MOST_PRODUCT = 2.0**24.5
"""Bound of |u|."""

_BOUND = float(RADIUS) ** 2
_FAR = 2.0**80  # norm in units, 2**40 R: at that distance the centre's weight is 0
COUNTED_AS_CLIPPED = 1.0 + 2.0**-16
"""A norm above this many radii counts as clipped: records of norm R exactly do not count by chance."""


class Centre(NamedTuple):
    """Centre C' as the kernel reads it."""

    mix: Floats
    """(columns, k) M: C' is near B M. Without a centre (0, 0)."""
    squared: float
    """|C'|**2, rounded up."""
    error: float
    """e: |z C' - y M| <= |z| e."""


@njit(cache=True, nogil=True, error_model="numpy")
def scaled_down(
    product_squared: float,
    squares: float,
    norm: float,
    cross: float,
    units: float,
    cells: float,
    n: float,
    centre: Centre,
) -> tuple[float, float, bool]:
    """Return the product's scale, the centre's weight, and whether the clip shrank the record.

    The first four arguments are |z^T y|**2, rounded up, |y|**2, |z| and <y, z C'>; ``units`` is t with
    t z^T y = A Q in lattice units, and may be inf; ``cells``: r k, the numbers of the product; n: d k + r k.
    """
    whole = WEIGHT if centre.mix.size > 0 else 0.0
    size = math.sqrt(product_squared)
    t = 0.0
    if size > 0.0:
        t = min(units, _FAR / size)
    else:
        norm = cells = 0.0
    product = t * math.sqrt(squares)
    reach = whole * math.sqrt(centre.squared)
    plain = max((t * size) ** 2 - 2.0 * whole * t * cross + reach * reach, 0.0)
    slack = 2.0 * whole * product * norm * centre.error
    slack += (n + 16.0) * 2.0**-52 * (product * norm + reach) ** 2
    clipped = math.sqrt(plain) > _BOUND * COUNTED_AS_CLIPPED
    length = math.sqrt(plain + slack)
    roundings = 0.5 * (math.sqrt(cells) * norm + math.sqrt(centre.squared)) * (1.0 + 2.0**-10)
    limit = max(_BOUND * (1.0 - 2.0**-30) - roundings, 0.0)
    shrink = min(1.0, limit / length)
    most = MOST_PRODUCT - math.sqrt(cells)
    if product * shrink > most:
        shrink = most / product
        clipped = clipped or shrink * COUNTED_AS_CLIPPED < 1.0
    return t * shrink, np.rint(shrink * whole), clipped


@njit(cache=True, nogil=True)
def is_within(
    product_squared: float, squares: float, norm: float, cross: float, weight: float, n: float, centre: Centre
) -> bool:
    """Check |z^T u - w C'| against the radius, roundings included; False for NaN."""
    product = math.sqrt(squares)
    total = product_squared - 2.0 * weight * cross + weight * weight * centre.squared
    total += 2.0 * weight * product * norm * centre.error
    total += (n + 16.0) * 2.0**-52 * (product * norm + weight * math.sqrt(centre.squared)) ** 2
    return product <= MOST_PRODUCT and total <= _BOUND * _BOUND
