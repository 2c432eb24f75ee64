"""Map of records with named fields to rows of numbers, by a list of features."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.paths import Path, is_index


def check_places(places: Sequence[Path]) -> None:
    """Raise ValueError where a field would have to be a value and an object."""
    wanted = set(places)
    for inner in wanted:
        for size in range(1, len(inner)):
            if inner[:size] in wanted and not is_index(inner[size]):
                outer = ".".join(inner[:size])
                raise ValueError(f"{outer!r} cannot be a value: {'.'.join(inner)!r} lies below it")


_SHOWN = 40
"""Characters of a value that a reason shows."""


class RowMap:
    """Map of records to rows of ``dim`` numbers; each row is a function of its record alone.

    Attributes
    ----------
    names : tuple of str
        Names of the columns.
    bounds : (lower, upper) or None
        Bounds of all columns, each a tuple of numbers; None unless every feature has bounds.
    scale : tuple of float or None
        Factor of each column: its feature's own, or the factor that makes its range 2 wide if all
        features have bounds, or 1. None where all are 1.

    Raises
    ------
    ValueError
        Without a feature, or if two columns have one name.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        if not self.features:
            raise ValueError("name one feature at least")
        self.names = tuple(name for feature in self.features for name in feature.columns)
        if len(set(self.names)) < len(self.names):
            twice = min(name for name, times in Counter(self.names).items() if times > 1)
            raise ValueError(f"two columns have the name {twice!r}")
        check_places(self.places)
        limits = [f.column_bounds for f in self.features for _ in f.columns]
        known = [each for each in limits if each is not None]
        self.bounds = None
        if len(known) == len(limits):
            lower, upper = zip(*known, strict=True)
            self.bounds = lower, upper
        self.scale = None
        if self.bounds is not None or any(feature.scale is not None for feature in self.features):
            factors = [self._factor(feature) for feature in self.features]
            self.scale = tuple(x for f, x in zip(self.features, factors, strict=True) for _ in f.columns)

    def _factor(self, feature: Feature) -> float:
        if feature.scale is not None:
            return feature.scale
        if self.bounds is None or feature.column_bounds is None:
            return 1.0
        low, high = feature.column_bounds
        return 2 / (high - low)

    @property
    def dim(self) -> int:
        """Number d of columns."""
        return len(self.names)

    @property
    def places(self) -> list[tuple[str, ...]]:
        """Place of each feature's field in a record."""
        return [feature.place for feature in self.features]

    def rows(self, values: Sequence[Sequence[Any]], count: int) -> NDArray[np.float64]:
        """Return the rows (n, d) of n records; all of a row is NaN where a feature cannot take its value.

        Parameters
        ----------
        values : sequence of sequences
            For each feature the values of its field in all records, None if it is absent or null.
        count : int
            Number n of records.

        Notes
        -----
        If all features have bounds, values beyond them stay beyond: the code that clamps rows counts them.
        """
        rows = np.empty((count, self.dim))
        first, beyond = 0, self.bounds is not None
        for feature, column in zip(self.features, values, strict=True):
            last = first + len(feature.columns)
            feature.fill(rows[:, first:last], column, beyond)
            first = last
        wrong = ~np.isfinite(rows).all(axis=1)
        rows[wrong] = np.nan
        return rows

    def fault(self, values: Sequence[Any]) -> str:
        """Name the first field that its feature refuses, "" for none; for the holder of the records."""
        for feature, value in zip(self.features, values, strict=True):
            if not np.isfinite(feature.columns_of(value)).all():
                field = ".".join(feature.place)
                if value is None:
                    return f"field {field!r} is missing, and has no stand-in"
                return f"field {field!r} is {_shown(value)}, which is not a {_NOUNS[feature.kind]}"
        return ""


_NOUNS = {
    "number": "number",
    "category": "word of a category",
    "time": "time",
    "list": "list of numbers of its size",
}


def _shown(value: Any) -> str:
    text = repr(value) if isinstance(value, (str, int, float, list, dict)) else type(value).__name__
    return text if len(text) <= _SHOWN else text[: _SHOWN - 3] + "..."
