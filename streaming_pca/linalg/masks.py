"""Masks and units of arrays, which numpy drops silently."""

from __future__ import annotations

import math
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

MISSING_TYPES = ("NAType", "NaTType")  # names of the types of pandas' marks of a missing value


def refuse_masks_and_units(X: Any, name: str = "X") -> None:
    """Refuse an argument with masks or units, which numpy would drop; ValueError with the remedy."""
    if np.ma.is_masked(X):
        raise ValueError(
            f"{name} is masked, and its masked entries have undefined values: "
            f"fill them ({name}.filled(...)), or leave their records out"
        )
    _refuse_units(X, name)


def numbers_or_nan(X: Any, name: str = "X") -> NDArray[Any]:
    """Return an argument as an array with NaN for masked and missing entries.

    For reports of the local model: to refuse such a record would hold its report back, which reveals it.
    Other types stay as they are, and units raise ValueError as above: neither depends on a record.
    """
    _refuse_units(X, name)
    array = np.asarray(X)
    if array.dtype.kind == "O" and all(isinstance(each, Real) or _is_missing(each) for each in array.flat):
        array = np.array([_float(each) for each in array.flat]).reshape(array.shape)
    return np.where(np.ma.getmaskarray(X), np.nan, array) if isinstance(X, np.ma.MaskedArray) else array


def _is_missing(value: Any) -> bool:
    return value is None or type(value).__name__ in (*MISSING_TYPES, "MaskedConstant")


def _float(value: Any) -> float:
    try:
        return math.nan if _is_missing(value) else float(value)
    except OverflowError:
        return math.nan


def _refuse_units(X: Any, name: str) -> None:
    # Quantities of astropy are arrays with a unit, pint's have a magnitude with units. A table may have a
    # column of that name.
    is_quantity = isinstance(X, np.ndarray) or hasattr(X, "magnitude")
    unit = getattr(X, "unit", getattr(X, "units", None)) if is_quantity else None
    if unit is not None and str(unit) not in ("", "dimensionless"):
        raise ValueError(
            f"{name} has the unit {str(unit)[:60]}, which would be lost: "
            "pass its numbers in the unit that you mean"
        )
