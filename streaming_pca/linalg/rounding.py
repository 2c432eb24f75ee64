"""Scaling, clipping and rounding one record: what every kernel is made of.

All of it is float64 in a fixed order, compiled without ``fastmath``: IEEE 754
operations only, none fused or reordered, so a record gets the same bits in any
block, thread or process (a test compares them with the interpreter's).

Error analysis, u = 2**-53, n entries
-------------------------------------
- Scaling by a power of two (:func:`scale_down`) is exact but for entries
  below 2**-1022 of the largest: they vanish.
- The norm of the scaled entries: n squares and n - 1 sums of numbers >= 0,
  each off by u relatively, then a root: (n/2 + 2) u relatively. The scale
  t = radius/norm adds u, t v another.
- Rounding to nearest: at most 1/2 an entry, sqrt(n)/2 in norm.
- The check. Squares of the rounded entries are added up in float64. Up to
  2**53 that sum is the exact integer, and from there on it only grows: for a
  radius of at most 2**26 it decides exactly. For a larger one it may be below
  the true sum by n u relatively, so it is compared with the squared radius
  times 1 - (n + 8) 2**-52 (:func:`squared_bound`), twice what is needed.
- Where the check fails, the record is scaled to radius - sqrt(n)/2 - 1, less
  (n + 8) 2**-51 for the float norm and the check's own margin, and checked
  again. By the bounds above that passes; should it not, the record is dropped.

The guarantee rests on the last check alone, not on the scale: no float input
leaves :func:`clip_and_round` with an integer norm above the radius.

numba's cache does not see that a function of another file has changed, so the
package forgets kernels that are older than any of its sources.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = [
    "COUNTED_AS_CLIPPED",
    "NO_EXPONENT",
    "clip_and_round",
    "exponent",
    "guard",
    "round_scaled",
    "scale_down",
    "squared_bound",
    "sum_of_squares",
]

NO_EXPONENT = -100000
"""The exponent of zero."""

COUNTED_AS_CLIPPED = 1.0 + 2.0**-20
"""A norm above this many radii counts as clipped. One above the radius by less is
shrunk by less than rounding may: records of norm R exactly are not to count by chance."""


@njit(cache=True, nogil=True)
def exponent(values: NDArray[np.float64]) -> int:
    """e with 2**(e-1) <= max|v| < 2**e, or NO_EXPONENT if all are zero. NaNs are passed over."""
    largest = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            a = abs(values[i, j])
            if a > largest:
                largest = a
    if largest == 0.0:
        return NO_EXPONENT
    return math.frexp(largest)[1]


@njit(cache=True, nogil=True)
def scale_down(values: NDArray[np.float64], e: int, out: NDArray[np.float64]) -> float:
    """out = values * 2**-e; returns the sum of squares, in row order: not finite if a value is not."""
    # In two factors: 2**1074 is no float64.
    half = e // 2
    first = math.ldexp(1.0, -half)
    second = math.ldexp(1.0, -(e - half))
    total = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            v = values[i, j] * first * second
            out[i, j] = v
            total += v * v
    return total


@njit(cache=True, nogil=True)
def sum_of_squares(values: NDArray[np.float64]) -> float:
    """|values|_F**2, in row order; exact for integers while it is below 2**53."""
    total = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            total += values[i, j] * values[i, j]
    return total


@njit(cache=True, nogil=True)
def round_scaled(values: NDArray[np.float64], t: float, out: NDArray[np.float64]) -> float:
    """out = rint(t * values); returns its sum of squares, exact while it is below 2**53."""
    total = 0.0
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            z = np.rint(values[i, j] * t)
            out[i, j] = z
            total += z * z
    return total


@njit(cache=True, nogil=True)
def guard(n: float) -> float:
    """Factor below 1 that covers a float sum of n terms: each 2**-53 off, and twice that."""
    return 1.0 - (n + 8.0) * 2.0**-52


@njit(cache=True, nogil=True)
def squared_bound(radius: float, n: float) -> float:
    """What a float sum of n squared integers must not pass, so that the true sum is at most radius**2."""
    if radius <= 2.0**26:
        return radius * radius
    return radius * radius * guard(n)


@njit(cache=True, nogil=True)
def clip_and_round(
    values: NDArray[np.float64], per_unit: float, radius: float, out: NDArray[np.float64]
) -> bool:
    """Clip to ``radius`` lattice units and round to integers; |out|_F <= radius always.

    Parameters
    ----------
    values : (r, c) float64
    per_unit : float
        Lattice units per unit of ``values``; inf scales every record to the radius.
    radius : float
        At most 2**40, in lattice units.
    out : (r, c) float64
        May be ``values``. Zero stays zero, and so does whatever holds a NaN or an infinity.

    Returns
    -------
    bool
        Whether the norm of ``values`` is above COUNTED_AS_CLIPPED radii.
    """
    e = exponent(values)
    if e == NO_EXPONENT:
        out[:, :] = 0.0
        return False
    norm = math.sqrt(scale_down(values, e, out))
    if not norm < math.inf:
        out[:, :] = 0.0
        return False
    scaled = out.copy()
    t = radius / norm
    whole = math.inf
    if per_unit < math.inf:
        whole = math.ldexp(per_unit, e)
    clipped = whole > t * COUNTED_AS_CLIPPED
    t = min(t, whole)
    n = float(values.size)
    bound = squared_bound(radius, n)
    # Written so that a NaN fails the comparison.
    if not round_scaled(scaled, t, out) <= bound:
        t = (radius - 0.5 * math.sqrt(n) - 1.0) / norm * (1.0 - (n + 8.0) * 2.0**-51)
        if not t > 0.0 or not round_scaled(scaled, t, out) <= bound:
            out[:, :] = 0.0
    return clipped
