"""Errors of privacy parameters, and the checks that raise them."""

from __future__ import annotations

import sys

from streaming_pca.errors import UserError


class ParameterError(UserError, ValueError):
    """Parameter of a mechanism, a calibration or an accountant that is out of its range.

    Every checked parameter is public, so the message may show it; values computed
    from records are never checked.
    """


class CalibrationError(ParameterError):
    """Privacy guarantee that no noise scale attains."""


def require_positive(name: str, value: float) -> None:
    """Refuse anything but a finite number above 0."""
    # NaN compares false; an int may be too large for a float.
    if not (_is_number(value) and 0 < value <= sys.float_info.max):
        raise ParameterError(f"{name} must be a finite number above 0, not {value!r}")


def require_open_unit(name: str, value: float) -> None:
    """Refuse anything but a number strictly between 0 and 1."""
    if not (_is_number(value) and 0 < value < 1):
        raise ParameterError(f"{name} must lie strictly between 0 and 1, not {value!r}")


def require_count(name: str, value: int, least: int = 1) -> None:
    """Refuse anything but a whole number of at least ``least``."""
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ParameterError(f"{name} must be a whole number of at least {least}, not {value!r}")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
