"""How far a contribution z^T u - w C' is scaled down, and that it is within the radius.

The names are those of :mod:`~streaming_pca.linalg.image_sums`.

The bound, checked for every record in numbers that carry their errors
-----------------------------------------------------------------------
|z^T u - w C'|**2 = |z^T u|**2 - 2 w <u, z C'> + w**2 |C'|**2.

- |z^T u|**2 is |z|**2 |u|**2 for one row, with |z|**2 rounded up
  (:mod:`~streaming_pca.linalg.tiles`). For several it is taken of the product itself, whose
  entries are exact, rounded up.
- z C' is not a third product where C' is near B M, for the columns B that z was multiplied
  by anyway: it is y M, off by at most |z| e with e = |C' - B M| + image_error
  sum |B_b| |M_b| (``centre_error``). So <u, z C'> is off by |z| |u| e at most.
- Every other operation is off by 2**-53 of its result: with n = d k + r k, all of them by less
  than (n + 8) 2**-53 (|z| |u| + w |C'|)**2; twice that is added.

The sum of all that is compared with RADIUS**4; a record that fails adds nothing. None
does: it was scaled to a radius that is less by what the roundings of u (sqrt(r k)/2 cells, which |z|
carries) and w (1/2, which |C'| carries) can add, and by the errors above. So a record
beyond the radius ends up below it by a few parts in 10**6 (with a centre of 20 R: by
1 part in 10**3).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from streaming_pca.linalg.lattice import RADIUS

__all__ = ["COUNTED_AS_CLIPPED", "MOST_IMAGE", "WEIGHT", "Centre", "is_within", "scaled_down"]

Floats = NDArray[np.float64]

WEIGHT = 2.0**20
"""Weight 1."""
MOST_IMAGE = 2.0**24.5

_BOUND = float(RADIUS) ** 2
_FAR = 2.0**80
"""Norm in units, 2**40 R: a record so far away has a weight of 0 for the centre."""
COUNTED_AS_CLIPPED = 1.0 + 2.0**-16
"""A norm above this many radii counts as clipped: those of norm R exactly do not, by chance."""


class Centre(NamedTuple):
    """What the kernel knows of C'.

    Attributes
    ----------
    mix : (columns, k) float64
        M: C' is near B M. Padded with columns of zeros to a multiple of 4. Without a centre (0, 0).
    squared : float
        |C'|**2, rounded up.
    error : float
        e: |z C' - y M| <= |z| e.
    """

    mix: Floats
    squared: float
    error: float


@njit(cache=True, nogil=True, error_model="numpy")
def scaled_down(
    product: float,
    squares: float,
    norm: float,
    cross: float,
    units: float,
    cells: float,
    n: float,
    centre: Centre,
) -> tuple[float, float, bool]:
    """What scales an image, the weight, and whether the record was made smaller.

    Parameters
    ----------
    product, squares, norm, cross : float
        |z^T y|**2, |y|**2, |z| and <y, z C'>, the first and third rounded up.
    units : float
        t with t z^T y = A Q in lattice units; may be inf.
    cells : float
        r k, the numbers of the image.
    n : float
        d k + r k.
    centre : Centre
    """
    whole = WEIGHT if centre.mix.size > 0 else 0.0
    size = math.sqrt(product)
    t = 0.0
    if size > 0.0:
        t = min(units, _FAR / size)
    else:
        norm = cells = 0.0
    image = t * math.sqrt(squares)
    reach = whole * math.sqrt(centre.squared)
    plain = max((t * size) ** 2 - 2.0 * whole * t * cross + reach * reach, 0.0)
    slack = 2.0 * whole * image * norm * centre.error
    slack += (n + 16.0) * 2.0**-52 * (image * norm + reach) ** 2
    clipped = math.sqrt(plain) > _BOUND * COUNTED_AS_CLIPPED
    length = math.sqrt(plain + slack)
    roundings = 0.5 * (math.sqrt(cells) * norm + math.sqrt(centre.squared)) * (1.0 + 2.0**-10)
    limit = max(_BOUND * (1.0 - 2.0**-30) - roundings, 0.0)
    shrink = min(1.0, limit / length)
    most = MOST_IMAGE - math.sqrt(cells)
    if image * shrink > most:
        shrink = most / image
        clipped = clipped or shrink * COUNTED_AS_CLIPPED < 1.0
    return t * shrink, np.rint(shrink * whole), clipped


@njit(cache=True, nogil=True)
def is_within(
    product: float, squares: float, norm: float, cross: float, weight: float, n: float, centre: Centre
) -> bool:
    """Whether |z^T u - w C'| is within the radius, whatever was rounded on the way; False for NaN."""
    image = math.sqrt(squares)
    total = product - 2.0 * weight * cross + weight * weight * centre.squared
    total += 2.0 * weight * image * norm * centre.error
    total += (n + 16.0) * 2.0**-52 * (image * norm + weight * math.sqrt(centre.squared)) ** 2
    return image <= MOST_IMAGE and total <= _BOUND * _BOUND
