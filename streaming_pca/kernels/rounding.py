"""Arithmetic of one record, shared by all kernels: products, scaling, clipping and rounding.

All operations are float64 in a fixed order, compiled without ``fastmath``: none is fused or reordered, so a
record gets the same bits in any block, thread or process (a test compares them with the interpreter's). The
guarantee rests on the last integer check alone, not on the scale: no float input leaves
:func:`clip_and_round` with an integer norm above the radius. A count of clipped records adds 0 or 1 per
record, so its sensitivity is 1; it is as secret as the sum. Error analysis: docs/explanation/proofs/sums.md.
"""

from __future__ import annotations

import math

import numpy as np

from streaming_pca.kernels import njit
from streaming_pca.kernels.lattice import Floats, Integers

LEAST_SQUARE, MOST_SQUARE = 2.0**-900, 2.0**900
"""Range of sums of squares without harmful underflow or overflow."""

NO_EXPONENT = -100000
"""Exponent of zero."""

COUNTED_AS_CLIPPED = 1.0 + 2.0**-20
"""Radii above which a norm counts as clipped: records of norm R exactly must not count by chance."""


# Written as loops: numpy's own function takes seconds to compile.
@njit(cache=True, nogil=True)
def erase(values: Floats) -> None:
    """Set all entries (r, c) to 0."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            values[i, j] = 0.0


@njit(cache=True, nogil=True)
def are_finite(values: Floats) -> bool:
    """Return whether no entry (r, c) is infinite or NaN."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            if not abs(values[i, j]) < math.inf:
                return False
    return True


@njit(cache=True, nogil=True)
def exponent(values: Floats) -> int:
    """Return e with 2**(e-1) <= max|v| < 2**e, NO_EXPONENT for zeros; ignores NaN."""
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
def scale_down(values: Floats, e: int, out: Floats) -> float:
    """Compute values * 2**-e; return its :func:`sum_of_squares`, not finite if a value is not."""
    # In two factors: 2**1074 is not a float64.
    half = e // 2
    first = math.ldexp(1.0, -half)
    second = math.ldexp(1.0, -(e - half))
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            out[i, j] = values[i, j] * first * second
    return sum_of_squares(out)


@njit(cache=True, nogil=True)
def dot(a: Floats, b: Floats) -> float:
    """Return <a, b> of two vectors (d,), in a fixed order."""
    # Four sums, so that additions do not wait for each other.
    s0 = s1 = s2 = s3 = 0.0
    whole = a.shape[0] - a.shape[0] % 4
    for j in range(0, whole, 4):
        s0 += a[j] * b[j]
        s1 += a[j + 1] * b[j + 1]
        s2 += a[j + 2] * b[j + 2]
        s3 += a[j + 3] * b[j + 3]
    for j in range(whole, a.shape[0]):
        s0 += a[j] * b[j]
    return (s0 + s1) + (s2 + s3)


@njit(cache=True, nogil=True)
def sum_of_squares(values: Floats) -> float:
    """Return |values|_F**2, row by row in eight chains; exact for integers up to 2**53.

    Written out because a compiler may not reorder a plain sum.
    """
    total = 0.0
    n = values.shape[1]
    whole = n - n % 8
    for i in range(values.shape[0]):
        row = values[i]
        s0 = s1 = s2 = s3 = s4 = s5 = s6 = s7 = 0.0
        for j in range(0, whole, 8):
            s0 += row[j] * row[j]
            s1 += row[j + 1] * row[j + 1]
            s2 += row[j + 2] * row[j + 2]
            s3 += row[j + 3] * row[j + 3]
            s4 += row[j + 4] * row[j + 4]
            s5 += row[j + 5] * row[j + 5]
            s6 += row[j + 6] * row[j + 6]
            s7 += row[j + 7] * row[j + 7]
        for j in range(whole, n):
            s0 += row[j] * row[j]
        total += ((s0 + s1) + (s2 + s3)) + ((s4 + s5) + (s6 + s7))
    return total


@njit(cache=True, nogil=True)
def fit_squares(values: Floats) -> tuple[float, int]:
    """Scale values by 2**-e in place, e = 0 unless squares over- or underflow; return |values|_F**2 and e.

    Returns (0, 0) for zeros, and where a value is not finite.
    """
    size = sum_of_squares(values)
    # NaN fails the comparison.
    if size > LEAST_SQUARE and size < MOST_SQUARE:
        return size, 0
    e = exponent(values)
    if e == NO_EXPONENT:
        return 0.0, 0
    size = scale_down(values, e, values)
    if not size < math.inf:
        return 0.0, 0
    return size, e


@njit(cache=True, nogil=True)
def round_scaled(values: Floats, t: float, out: Floats) -> float:
    """Compute rint(t * values); return its sum of squares, exact up to 2**53."""
    for i in range(values.shape[0]):
        for j in range(values.shape[1]):
            out[i, j] = np.rint(values[i, j] * t)
    return sum_of_squares(out)


@njit(cache=True, nogil=True)
def squared_bound(radius: float, n: float) -> float:
    """Return the limit of a float sum of n squared integers that ensures radius**2."""
    if radius <= 2.0**26:
        return radius * radius
    # The factor covers a float sum's error over n terms, twice.
    return radius * radius * (1.0 - (n + 8.0) * 2.0**-52)


@njit(cache=True, nogil=True)
def clip_and_round(values: Floats, per_unit: float, radius: float, out: Floats) -> bool:
    """Clip to ``radius`` lattice units and round to integers; |out|_F <= radius always.

    ``per_unit``: lattice units per unit of ``values``, (r, c); inf scales every record to the radius, which
    is at most 2**40. ``out``, (r, c), not ``values``, is zero for zeros and where an entry is not finite.
    Returns whether the norm of ``values`` is above COUNTED_AS_CLIPPED radii.
    """
    total = sum_of_squares(values)
    if total > LEAST_SQUARE and total < MOST_SQUARE:
        return _clip_scaled(values, math.sqrt(total), per_unit, radius, out)
    # NaN also gets here.
    e = exponent(values)
    scaled = np.empty_like(out)
    if e == NO_EXPONENT or not scale_down(values, e, scaled) < math.inf:
        erase(out)
        return False
    whole = math.ldexp(per_unit, e) if per_unit < math.inf else math.inf
    return _clip_scaled(scaled, math.sqrt(sum_of_squares(scaled)), whole, radius, out)


@njit(cache=True, nogil=True)
def _clip_scaled(values: Floats, norm: float, per_unit: float, radius: float, out: Floats) -> bool:
    """Clip and round a record of known norm whose squares neither under- nor overflow."""
    t = radius / norm
    clipped = per_unit > t * COUNTED_AS_CLIPPED
    t = min(t, per_unit)
    n = float(values.size)
    bound = squared_bound(radius, n)
    # NaN fails the comparison.
    if not round_scaled(values, t, out) <= bound:
        t = (radius - 0.5 * math.sqrt(n) - 1.0) / norm * (1.0 - (n + 8.0) * 2.0**-51)
        if not t > 0.0 or not round_scaled(values, t, out) <= bound:
            erase(out)
    return bool(clipped)


@njit(cache=True, nogil=True)
def quantise_records(rows: Floats, starts: Integers, per_unit: float, radius: float, out: Floats) -> int:
    """Clip records in Frobenius norm to ``radius`` lattice units and round them.

    Returns the number of records with a norm above the radius.

    ``rows``, ``starts``: record i is ``rows[starts[i]:starts[i + 1]]``. ``per_unit``: lattice units per unit
    of the data; inf normalises every record to ``radius``. ``out``: (n, d), integer values, |out of record
    i|_F <= ``radius``. So a factor's matrix out^T out is positive semidefinite with trace at most its square.
    Equal entries round equally: a symmetric matrix stays one.
    """
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        if a < b and clip_and_round(rows[a:b], per_unit, radius, out[a:b]):
            clipped += 1
    return clipped


@njit(cache=True, nogil=True)
def record_squared_norms(rows: Floats, starts: Integers, out: Floats) -> None:
    """Write |F|_F**2, the trace of F^T F, of each record; 0 for null records, never NaN."""
    for i in range(starts.shape[0] - 1):
        total = 0.0
        for j in range(starts[i], starts[i + 1]):
            for c in range(rows.shape[1]):
                total += rows[j, c] * rows[j, c]
        out[i] = total


@njit(cache=True, nogil=True)
def times(a: Floats, b: Floats, out: Floats) -> None:
    """Compute out = a b, each entry in the order of b's rows."""
    erase(out)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            v = a[i, j]
            for c in range(b.shape[1]):
                out[i, c] += v * b[j, c]


@njit(cache=True, nogil=True)
def transposed_times(a: Floats, b: Floats, out: Floats) -> None:
    """Compute out = a^T b, each entry in the order of the rows."""
    erase(out)
    for i in range(a.shape[0]):
        for j in range(a.shape[1]):
            v = a[i, j]
            for c in range(b.shape[1]):
                out[j, c] += v * b[i, c]


@njit(cache=True, nogil=True)
def record_product(x: Floats, of_matrices: bool, basis: Floats, product: Floats) -> None:
    """Compute A Q of one record in a fixed order; 0 for a null record.

    ``x`` (r, d) is A itself if ``of_matrices``, else F with A = F^T F; r may be 0. Overflow is inf or NaN.
    """
    if of_matrices:
        times(x, basis, product)
        return
    seen = np.empty((x.shape[0], basis.shape[1]))
    times(x, basis, seen)
    transposed_times(x, seen, product)
