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


def as_array(X: Any, name: str) -> NDArray[Any]:
    """Return an argument as an array of any type; ValueError for a sparse or ragged one."""
    # Detect scipy's matrices by a method: programs that only read releases need not load scipy.
    if hasattr(X, "tocsr"):
        raise ValueError(f"{name} is sparse: pass {name}.toarray()")
    try:
        return np.asarray(X)
    except ValueError:
        raise ValueError(f"{name} has rows of different lengths") from None


def numbers_or_nan(X: Any, name: str = "X") -> NDArray[Any]:
    """Return an argument as an array with NaN for masked and missing entries.

    For reports of the local model: to refuse such a record would hold its report back, which reveals it.
    Other types stay as they are, and units raise ValueError as above: neither depends on a record.
    """
    _refuse_units(X, name)
    array = as_array(_filled(X), name)
    if array.dtype.kind == "O":
        array = np.asarray(_filled(array.tolist()))
    # With a missing one among them, booleans are floats already.
    return array.astype(np.float64) if array.dtype.kind == "b" else array


def _filled(X: Any) -> Any:
    """Replace missing and masked numbers, and missing records among others, by NaN."""
    if isinstance(X, np.ma.MaskedArray):
        return np.where(np.ma.getmaskarray(X), np.nan, X.data)
    if X is None or type(X).__name__ in MISSING_TYPES:
        return math.nan
    if isinstance(X, Real):
        try:
            return float(X)
        except OverflowError:
            return math.nan
    if not isinstance(X, list | tuple):
        return X
    filled = [_filled(each) for each in X]
    width = max((len(each) for each in filled if isinstance(each, list) or np.ndim(each)), default=0)
    return [[math.nan] * width if width and np.ndim(each) == 0 else each for each in filled]


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
