"""Gaussian noise on exact integer sums, rounded to a grid: exact and vectorised.

The answer to a sum S (lattice units) is

    round((S + sigma Z) / 2**e) 2**e,    Z a standard normal real number,

a post-processing of the continuous Gaussian mechanism on S, so every bound of that mechanism
holds for it unchanged: (epsilon, delta), Gaussian DP and zCDP, at any scale, for any number of
values and for any grid 2**e.

Only the rounded answer is computed, and without error. |Z| is the point whose upper tail is U/2,
U a uniform number whose bits, and a sign, come from the operating system. 63 bits of U are
drawn first. Where they and a bound on the float error leave two answers possible, more bits of
the same U are drawn, and compared with the tails at growing precision, until one answer is left.
Only the error of ndtri is trusted, with a margin of 2**6; a test checks it.

No state is kept between calls: a copy of a process draws its own noise. The time of a draw
depends on S only through its part below the grid, and a little on the noise.

Proof: docs/explanation/proofs/noise.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import MAX_EMAX, MIN_EMIN, Context, Decimal, localcontext
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_positive

NOISE_LAW = "rounded-gaussian"
"""Name of the law in reservations and states; those without a name had discrete Gaussians."""

LARGEST_TOTAL = 2**62
"""Totals are clipped to this before noise, and answers after it."""

GREATEST_SIGMA = 2.0**57
"""Largest noise scale: the clip is then 32 sigma wide."""

_GRID_BITS = 26
"""Bits of sigma above the grid: more send more values to the slow path, fewer coarsen the answers."""

_NDTRI_ERROR = 2.0**-44
"""Bound on the relative error of scipy's ndtri, 2**6 above the error that Cephes states."""

_BLOCK = 2**14  # values drawn at a time: a second-level cache holds their dozen arrays

RandomBytes = Callable[[int], bytes]


def grid_exponent(sigma: float) -> int:
    """Return e, the grid of answers being 2**e: 0 for a sigma below 2**27, else sigma 2**-27 < 2**e."""
    require_positive("sigma", sigma)
    if sigma > GREATEST_SIGMA:
        raise ParameterError(f"sigma must be at most 2**57 lattice units, not {sigma!r}")
    return max(0, math.frexp(sigma)[1] - 1 - _GRID_BITS)


def rounded_gaussian(total: NDArray[np.int64], sigma: float, random_bytes: RandomBytes) -> NDArray[np.int64]:
    """Round ``total`` plus Gaussian noise to the grid; see the module's notes for the law.

    ``total``, of any shape, has exact sums; they are clipped to :data:`LARGEST_TOTAL` first, which moves no
    two sums further apart. ``sigma`` is the standard deviation in lattice units, at most
    :data:`GREATEST_SIGMA`; ``random_bytes(n)`` returns n fresh, uniform, secret bytes. Returns multiples of
    2**:func:`grid_exponent`, within :data:`LARGEST_TOTAL` of 0.
    """
    exponent = grid_exponent(sigma)
    values = np.clip(total, -LARGEST_TOTAL, LARGEST_TOTAL).ravel()
    for first in range(0, values.size, _BLOCK):
        block = values[first : first + _BLOCK]
        block[:] = _rounded(block, exponent, math.ldexp(sigma, -exponent), random_bytes)
    return values.reshape(total.shape)


def _rounded(
    total: NDArray[np.int64], exponent: int, scale: float, random_bytes: RandomBytes
) -> NDArray[np.int64]:
    # Imported here: it takes 0.1 s, and most commands draw no noise.
    from scipy.special import ndtri

    bits = np.frombuffer(random_bytes(8 * total.size), dtype="<u8")
    negative = (bits & np.uint64(1)).astype(bool)
    p = (bits >> np.uint64(1)).astype(np.float64)
    p *= 2.0**-64
    quotient, remainder = total >> exponent, total & ((1 << exponent) - 1)
    # All 63 bits may be 0 (p = 0): noise and error are then infinite, and the value is not settled.
    with np.errstate(all="ignore"):
        noise = ndtri(p)
        noise *= -scale
        error = (scale * 2.0**-62) / p
        error += noise * (_NDTRI_ERROR + 2.0**-50)
        error += scale * 2.0**-50 + 2.0**-40
        np.negative(noise, out=noise, where=negative)
        noise += remainder * 2.0**-exponent
        nearest = np.rint(noise)
        settled = np.abs(noise - nearest) + error < 0.5
    unsettled = np.flatnonzero(~settled)
    nearest[unsettled] = 0
    steps = nearest.astype(np.int64)
    for i in unsettled.tolist():
        tail = _Tail(int(bits[i]) >> 1, random_bytes)
        offset = Fraction(int(remainder[i]), 1 << exponent)
        # No float tail reaches beyond 9 sigma.
        guess = noise[i] if math.isfinite(noise[i]) else math.copysign(9 * scale, noise[i])
        steps[i] = _settle(tail, bool(negative[i]), Fraction(scale), offset, round(float(guess)))
    # Never reached in practice: a step beyond 2**38 takes half a million zero bits.
    most = LARGEST_TOTAL >> exponent
    return np.asarray(np.clip(quotient + steps, -most, most) << exponent)


class _Tail:
    """Tail probability p = (m + V) 2**-bits in (0, 1/2); V is drawn as needed."""

    def __init__(self, m: int, random_bytes: RandomBytes) -> None:
        self._m, self._bits = m, 64
        self._random_bytes = random_bytes

    def is_below_tail_at(self, x: Fraction) -> bool:
        """Return whether p < Q(x), the standard normal's upper tail at x >= 0."""
        while True:
            # The boundary is exact to 2**-40 of the last bit.
            boundary = _upper_tail(x, self._bits + 40) * 2**self._bits
            guard = Fraction(1, 2**40)
            if self._m + 1 <= boundary - guard:
                return True
            if self._m >= boundary + guard:
                return False
            self._m = self._m << 64 | int.from_bytes(self._random_bytes(8), "little")
            self._bits += 64


def _settle(tail: _Tail, negative: bool, scale: Fraction, offset: Fraction, guess: int) -> int:
    """Round offset +- scale z to an integer; ``tail`` is the upper tail of z."""

    def rounds_to_at_most(k: int) -> bool:
        x = (k + Fraction(1, 2) - offset) / scale
        if negative:
            return x >= 0 or tail.is_below_tail_at(-x)
        return x > 0 and not tail.is_below_tail_at(x)

    step = 1
    low = high = guess
    if rounds_to_at_most(guess):
        while rounds_to_at_most(low := high - step):
            high, step = low, 2 * step
    else:
        while not rounds_to_at_most(high := low + step):
            low, step = high, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        if rounds_to_at_most(middle):
            high = middle
        else:
            low = middle
    return min(max(high, -LARGEST_TOTAL), LARGEST_TOTAL)


def _upper_tail(x: Fraction, bits: int) -> Fraction:
    """Return Q(x) for x >= 0, within 2**-bits: 1/2 - phi(x) sum_n x**(2n + 1)/(2n + 1)!!.

    Error bound: docs/explanation/proofs/noise.md. From x = 2**10 on Q is below 2**(-2**19).
    """
    if x >= 2**10 and bits < 2**19:
        return Fraction(0)
    digits = math.ceil(bits * 0.30103) + 12
    with localcontext(Context(prec=digits, Emax=MAX_EMAX, Emin=MIN_EMIN, traps=[])):
        point = Decimal(x.numerator) / Decimal(x.denominator)
        square = point * point
        density = (-square / 2).exp() / (2 * _pi(digits)).sqrt()
        term = total = point
        n = 1
        while 2 * square > n or term > total.scaleb(-digits):
            n += 2
            term = term * square / n
            total += term
        return Fraction(1, 2) - Fraction(density * total)


def _pi(digits: int) -> Decimal:
    """Return pi by Machin's formula, in the current context."""

    def arc_cotangent(x: int) -> int:
        power = unit // x
        total, n, sign = power, 1, 1
        while power:
            power //= x * x
            n, sign = n + 2, -sign
            total += sign * (power // n)
        return total

    unit: int = 10 ** (digits + 10)
    return Decimal(4 * (4 * arc_cotangent(5) - arc_cotangent(239))).scaleb(-digits - 10)
