"""Single values of fields as numbers: parsed, transformed, and times with their cyclic parts."""

from __future__ import annotations

import math
import re
from calendar import monthrange
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any, Literal, NamedTuple

import numpy as np

Transform = Literal["none", "log1p", "sqrt", "logit"]

_NUMBER = re.compile(r"[ \t]*[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?[ \t]*", re.ASCII)
_LONGEST_NUMBER = 400  # most characters of a number's text; float64 can use 326 of them


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


def parsed_number(value: Any, parse: bool) -> float:
    """Return a value as a number; NaN for anything else.

    Whole numbers beyond 2**53 are rounded to the nearest float64; numbers beyond float64 are NaN.
    """
    if isinstance(value, (int, float, np.number, np.bool_, Decimal)):
        try:
            number = float(value)
        except (OverflowError, ValueError, TypeError):
            # Too large, a signalling NaN, or complex.
            return math.nan
    elif parse and isinstance(value, str) and len(value) <= _LONGEST_NUMBER and _NUMBER.fullmatch(value):
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


Part = Literal["hour", "weekday", "day", "month"]
TimeUnit = Literal["s", "ms", "us"]

_UNITS = {"s": 1, "ms": 1000, "us": 1_000_000}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_FIRST_DAY = _EPOCH.toordinal()
_LEAST, _MOST = (
    (datetime(year, *day, tzinfo=UTC) - _EPOCH).total_seconds()
    for year, day in ((1, (1, 1)), (9999, (12, 31)))
)
_DAY = 86400
_LONGEST_TIME = 64


def unix_seconds(value: Any, unit: str) -> float:
    """Return a time as seconds since 1970 in UTC; NaN for anything but a time from year 1 to 9999.

    A number counts ``unit``; a text is ISO 8601. Times without a zone are UTC.
    """
    if isinstance(value, str):
        if len(value) > _LONGEST_TIME:
            return math.nan
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return math.nan
    if isinstance(value, np.datetime64):
        # Beyond these years microseconds could overflow, and wrap.
        if not 1 <= value.astype("datetime64[Y]").astype(int) + 1970 <= 9999:
            return math.nan
        value = value.astype("datetime64[us]").item()
    if isinstance(value, date):
        if not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        try:
            if type(value) is not datetime:
                # A time of pandas has nanoseconds or not, depending on the other values of its column.
                value = datetime.combine(value.date(), value.timetz())
            aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
            seconds = (aware - _EPOCH).total_seconds()
        except (OverflowError, ValueError):
            return math.nan
    elif isinstance(value, (int, float, np.number)) and not isinstance(value, (bool, complex)):
        try:
            seconds = float(value) / _UNITS[unit]
        except (OverflowError, TypeError):
            return math.nan
    else:
        return math.nan
    return seconds if _LEAST <= seconds <= _MOST else math.nan


def utc_time(count: int, per_second: int) -> datetime | float:
    """Return the time of a count since 1970; NaN, which is not a time, beyond year 9999."""
    try:
        return _EPOCH + timedelta(microseconds=count * 10**6 // per_second)
    except OverflowError:
        return math.nan


def utc_day(count: int) -> date | float:
    """Return the day of a count since 1970; NaN, which is not a time, beyond year 9999."""
    try:
        return date.fromordinal(_FIRST_DAY + count)
    except (OverflowError, ValueError):
        return math.nan


def _day(seconds: float) -> float:
    moment = _moment(seconds)
    return (moment.day - 1) / monthrange(moment.year, moment.month)[1]


def _moment(seconds: float) -> datetime:
    return _EPOCH + timedelta(seconds=math.floor(seconds))


PERIODS: dict[str, Callable[[float], float]] = {
    "hour": lambda seconds: seconds % _DAY / _DAY,
    # The first of January 1970 was a Thursday.
    "weekday": lambda seconds: (math.floor(seconds / _DAY) + 3) % 7 / 7,
    "day": _day,
    "month": lambda seconds: (_moment(seconds).month - 1) / 12,
}
"""Share of its period that has passed: of the day, by the day of the week, of the month, by the month."""
