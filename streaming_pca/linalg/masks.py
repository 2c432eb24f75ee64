"""Masks and units of arrays, which numpy drops silently."""

from __future__ import annotations

from typing import Any

import numpy as np


def refuse_masks_and_units(X: Any, name: str = "X") -> None:
    """Refuse an argument with masks or units, which numpy would drop; ValueError with the remedy."""
    if np.ma.is_masked(X):
        raise ValueError(
            f"{name} is masked, and its masked entries have undefined values: "
            f"fill them ({name}.filled(...)), or leave their records out"
        )
    # Quantities of astropy are arrays with a unit, pint's have a magnitude with units. A table may have a
    # column of that name.
    is_quantity = isinstance(X, np.ndarray) or hasattr(X, "magnitude")
    unit = getattr(X, "unit", getattr(X, "units", None)) if is_quantity else None
    if unit is not None and str(unit) not in ("", "dimensionless"):
        raise ValueError(
            f"{name} has the unit {str(unit)[:60]}, which would be lost: "
            "pass its numbers in the unit that you mean"
        )
