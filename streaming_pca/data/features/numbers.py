"""Numbers of fields, and functions of them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np

Transform = Literal["none", "log1p", "sqrt", "logit"]

_NUMBER = re.compile(r"[ \t]*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[ \t]*", re.ASCII)
_LONGEST = 400
"""Most characters of a number's text; float64 can use 326 of them."""


class _Function(NamedTuple):
    of: Callable[[float], float]
    domain: tuple[float, float]


def _logit(x: float) -> float:
    return math.log(x) - math.log1p(-x) if 0 < x < 1 else math.copysign(math.inf, x - 0.5)


TRANSFORMS: dict[str, _Function] = {
    "none": _Function(lambda x: x, (-math.inf, math.inf)),
    "log1p": _Function(lambda x: -math.inf if x <= -1 else math.log1p(x), (-1.0, math.inf)),
    "sqrt": _Function(math.sqrt, (0.0, math.inf)),
    "logit": _Function(_logit, (0.0, 1.0)),
}
"""Functions of a value, with the range that they take."""


def number_of(value: Any, parse: bool) -> float:
    """Return a value as a number; NaN for anything else.

    Whole numbers beyond 2**53 are rounded to the nearest float64; numbers beyond float64 are NaN.
    """
    if isinstance(value, (int, float, np.number, np.bool_, Decimal)):
        try:
            number = float(value)
        except (OverflowError, ValueError, TypeError):
            # Too large, a signalling NaN, or complex.
            return math.nan
    elif parse and isinstance(value, str) and len(value) <= _LONGEST and _NUMBER.fullmatch(value):
        number = float(value)
    else:
        return math.nan
    return number if math.isfinite(number) else math.nan


def quotient(number: int, scale: int) -> float | int:
    """Return a decimal, a whole number over 10**scale, as its text would be read; NaN if too large."""
    try:
        # A quotient of whole numbers is rounded as the text of the number is.
        return number / 10**scale if scale > 0 else int(number * 10**-scale)
    except OverflowError:
        return math.nan
