"""Times of fields, and their cyclic parts."""

from __future__ import annotations

import math
from calendar import isleap
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from typing import Any, Literal

import numpy as np

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
_LONGEST = 64


def seconds_of(value: Any, unit: str) -> float:
    """Return a time as seconds since 1970 in UTC; NaN for anything but a time from year 1 to 9999.

    Parameters
    ----------
    value : number, str, datetime or date
        A number counts ``unit``; a text is ISO 8601. Times without a zone are UTC.
    unit : {"s", "ms", "us"}
    """
    if isinstance(value, str):
        if len(value) > _LONGEST:
            return math.nan
        try:
            value = datetime.fromisoformat(value.strip())
        except ValueError:
            return math.nan
    if isinstance(value, np.datetime64):
        value = value.astype("datetime64[us]").item()
    if isinstance(value, date):
        if not isinstance(value, datetime):
            value = datetime(value.year, value.month, value.day)
        aware = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
        try:
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


def moment_of(count: int, per_second: int) -> datetime | float:
    """Return the time of a count since 1970; NaN, which is not a time, beyond year 9999."""
    try:
        return _EPOCH + timedelta(microseconds=count * 10**6 // per_second)
    except OverflowError:
        return math.nan


def day_of(count: int) -> date | float:
    """Return the day of a count since 1970; NaN, which is not a time, beyond year 9999."""
    try:
        return date.fromordinal(_FIRST_DAY + count)
    except (OverflowError, ValueError):
        return math.nan


def _month(seconds: float) -> float:
    return (_moment(seconds).month - 1) / 12


def _day(seconds: float) -> float:
    moment = _moment(seconds)
    days = (31, 29 if isleap(moment.year) else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return (moment.day - 1) / days[moment.month - 1]


def _moment(seconds: float) -> datetime:
    return _EPOCH + timedelta(seconds=math.floor(seconds))


PERIODS: dict[str, Callable[[float], float]] = {
    "hour": lambda seconds: seconds % _DAY / _DAY,
    # The first of January 1970 was a Thursday.
    "weekday": lambda seconds: (math.floor(seconds / _DAY) + 3) % 7 / 7,
    "day": _day,
    "month": _month,
}
"""Share of its period that has passed: of the day, by the day of the week, of the month, by the month."""
