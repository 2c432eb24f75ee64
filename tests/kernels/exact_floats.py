"""Operations of IEEE 754 one by one: exact fractions, rounded once to the nearest, halves to even."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np

__all__ = ["Numbers", "fma", "halved", "nearest", "times"]

Numbers = list[float]

_FORMATS = {np.float32: (24, -149, float(np.finfo(np.float32).max)), np.float64: (53, -1074, None)}


def nearest(x: Fraction, kind: Any) -> float:
    """The float32 or float64 that is nearest to an exact number; a float that holds it."""
    if x == 0:
        return 0.0
    bits, least, most = _FORMATS[kind]
    e = abs(x.numerator).bit_length() - x.denominator.bit_length()
    # 2**(e-1) < |x| < 2**(e+1)
    if abs(x) < Fraction(2) ** e:
        e -= 1
    cell = Fraction(2) ** max(e - bits + 1, least)
    # Python rounds halves to even.
    value = float(round(x / cell) * cell)
    if most is not None and abs(value) > most:
        return float(np.copysign(np.inf, value))
    return value


def fma(a: float, b: float, c: float, kind: Any) -> float:
    """a b + c, rounded once."""
    return nearest(Fraction(a) * Fraction(b) + Fraction(c), kind)


def times(a: float, b: float, kind: Any) -> float:
    """a b, rounded once."""
    return nearest(Fraction(a) * Fraction(b), kind)


def halved(lanes: Sequence[float], kind: Any) -> float:
    """The sum as a tree: the second half is added to the first, until one number is left."""
    values = [Fraction(v) for v in lanes]
    while len(values) > 1:
        half = len(values) // 2
        values = [Fraction(nearest(values[i] + values[i + half], kind)) for i in range(half)]
    return float(values[0])
