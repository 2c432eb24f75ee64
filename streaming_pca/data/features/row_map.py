"""Map of named fields, of records or tables, to rows of numbers."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.records import NOTHING, Path, columns_of, find, is_index
from streaming_pca.linalg.masks import MISSING_TYPES
from streaming_pca.text import shown
from streaming_pca.validation_errors import error_lines


def check_places(places: Sequence[Path]) -> None:
    """Raise ValueError where a field would have to be a value and an object."""
    wanted = set(places)
    for inner in wanted:
        for size in range(1, len(inner)):
            if inner[:size] in wanted and not is_index(inner[size]):
                outer = ".".join(inner[:size])
                raise ValueError(f"{outer!r} cannot be a value: {'.'.join(inner)!r} lies below it")


_WHOLE = re.compile(r"[+-]?\d+")
_SHOWN = 40  # characters of a value that a reason shows
_MOST_NAMES = 4  # columns that a message lists


class RowMap:
    """Map of records to rows of ``dim`` numbers; each row is a function of its record alone.

    ``bounds`` are (lower, upper) of all columns, None unless every feature has bounds. ``scale`` is the
    factor of each column: its feature's own, or the factor that makes its range 2 wide if all features have
    bounds, or 1; None where all are 1. ValueError without a feature, or if two columns have one name.
    """

    def __init__(self, features: Sequence[Feature]) -> None:
        self.features = tuple(features)
        if not self.features:
            raise ValueError("name one feature at least")
        self.names = tuple(name for feature in self.features for name in feature.columns)
        refuse_twins(self.names, "two columns have the name")
        check_places(self.places)
        limits = [f.column_bounds for f in self.features for _ in f.columns]
        known = [each for each in limits if each is not None]
        self.bounds = None
        if len(known) == len(limits):
            self.bounds = tuple(low for low, _ in known), tuple(high for _, high in known)
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
        return len(self.names)

    @property
    def places(self) -> list[tuple[str, ...]]:
        return [feature.place for feature in self.features]

    def rows(self, values: Sequence[Sequence[Any]], count: int) -> NDArray[np.float64]:
        """Return the rows (n, d) of n records; all of a row is NaN where a feature cannot take its value.

        ``values`` has for each feature the values of its field, None where it is absent or null. If all
        features have bounds, values beyond them stay beyond: the code that clamps rows counts them.
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

    def fault(self, values: Sequence[Any], *, quotes: bool = True) -> str:
        """Name the first field that its feature refuses, "" for none; ``quotes``: show its value."""
        for feature, value in zip(self.features, values, strict=True):
            if not np.isfinite(feature.column_values(value)).all():
                field = ".".join(feature.place)
                if value is None:
                    return f"field {field!r} is missing, and has no stand-in: set missing of its feature"
                if value is NOTHING:
                    return f"field {field!r} is of another type or length, or below a value without fields"
                type_ = "a text" if (is_text := isinstance(value, str)) else f"of type {type(value).__name__}"
                noun = "time in ISO 8601" if feature.kind == "time" and is_text else _NOUNS[feature.kind]
                is_number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
                if feature.kind == "time" and is_number and not _is_missing(value):
                    noun = f'time in unit "{feature.unit}": set the unit that it counts, "s", "ms" or "us"'
                is_shown = quotes and isinstance(value, (str, int, float, list, dict))
                text = shown(value, _SHOWN) if is_shown else type_
                return f"field {field!r} is {text}, which is not a {noun}"
        return ""


def row_map_of(features: Any) -> RowMap:
    """Return the map of a list of Feature or dict, or of a FeatureMap."""
    # Recognized by its attribute: producers do not load scikit-learn.
    listed = getattr(features, "features", features)
    if isinstance(listed, str | bytes | Mapping) or not isinstance(listed, Sequence):
        raise ValueError(f"features must be a list, or a FeatureMap, not {type(listed).__name__}")
    return RowMap([feature_of(each, place) for place, each in enumerate(listed)])


def feature_of(settings: Any, place: int) -> Feature:
    """Return the feature of a Feature or dict; ValueError is one line that names it."""
    if isinstance(settings, Feature):
        return settings
    if not isinstance(settings, Mapping):
        raise ValueError(f"feature {place} must be a Feature or a dict, not {type(settings).__name__}")
    name = settings.get("name", place)
    if not all(isinstance(setting, str) for setting in settings):
        raise ValueError(f"feature {name!r}: the names of its settings must be text")
    try:
        return Feature(**settings)
    except ValidationError as error:
        raise ValueError(f"feature {name!r}: {'; '.join(error_lines(error, Feature))}") from None


_NOUNS = {
    "number": "number",
    "category": "word of a category",
    "time": "time",
    "list": "list of numbers of its size",
}


def own_names(table: Any) -> list[Any] | None:
    """Return the names of a table's columns, of any type; None for a list of records, and for an array."""
    if isinstance(table, Mapping):
        return list(table)
    if hasattr(table, "collect_schema") and not hasattr(table, "__array__"):
        raise TypeError("a lazy frame holds no values: call its collect()")
    # Arrow's ``columns`` are the values. A data frame has each column as an attribute, but not of its class.
    names = getattr(table, "column_names" if hasattr(type(table), "column_names") else "columns", None)
    return None if names is None else list(names)


def column_names(table: Any) -> list[str] | None:
    """Return the texts of a table's :func:`own_names`."""
    names = own_names(table)
    return None if names is None else [str(name) for name in names]


def refuse_twins(names: Sequence[str], begin: str) -> None:
    """Raise ValueError for two columns of one name, with the message's beginning."""
    if len(set(names)) < len(names):
        twice = min(name for name, times in Counter(names).items() if times > 1)
        raise ValueError(f"{begin} {twice!r}: rename one")


def refuse_other_columns(table: Any, expected: Sequence[str], name: str, whose: str) -> None:
    """Raise ValueError if a table's column names are not ``expected``, in its order."""
    names = column_names(table)
    if names and names != list(expected):
        sides = {"missing": Counter(expected) - Counter(names), "extra": Counter(names) - Counter(expected)}
        faults = [f"{side} {shown(list(which), 200)}" for side, which in sides.items() if which]
        order = f"bring them into the order {shown(list(expected), 200)}"
        raise ValueError(f"the columns of {name} are not {whose}: {', '.join(faults) or order}")


def refuse_other_types(dtype: np.dtype[Any], kinds: str, table: Any, name: str) -> None:
    """Raise ValueError if a table's array has none of the ``kinds``; name the column without numbers."""
    if dtype.kind in kinds:
        return
    for each in own_names(table) or ():
        own = getattr(table[each], "dtype", getattr(table[each], "type", dtype))
        # pandas makes floats of a column with missing values of its own, but objects of the frame.
        if np.asarray(table[each]).dtype.kind not in "fiu" or hasattr(own, "na_value"):
            hint = f": convert it, as {name}.to_numpy(float) does" * hasattr(table, "iloc")
            raise ValueError(f"column {str(each)!r} of {name} must hold numbers, not {own}{hint}")
    raise ValueError(f"{name} must hold numbers, not {dtype}")


def is_list_of_records(table: Any) -> bool:
    return isinstance(table, Sequence) and all(isinstance(each, Mapping) for each in table)


def unnamed(table: Any, name: str, reader: str, columns: Sequence[str]) -> str:
    """Return the message about an argument without the column names that ``reader`` needs."""
    kind = "an array" if hasattr(table, "__array__") else f"of type {type(table).__name__},"
    some = ", ".join(map(repr, columns[:_MOST_NAMES])) + ", ..." * (len(columns) > _MOST_NAMES)
    return (
        f"{name} is {kind} without column names: {reader} needs a data frame, or a list of dicts, with {some}"
    )


def rows_of_table(rows: RowMap, table: Any, name: str = "X") -> NDArray[np.float64]:
    """Return the rows (m, d) of a table's records, an argument with this name.

    ValueError in one line, as of :func:`field_values`, or with the first record that the map refuses, and
    why, without its value. Only the holder of the records may see it.
    """
    values = field_values(table, rows.features, name)
    found = rows.rows(values, len(values[0]))
    wrong = np.flatnonzero(np.isnan(found).any(axis=1))
    if len(wrong):
        at = int(wrong[0])
        record = [None if _is_missing(column[at]) else column[at] for column in values]
        raise ValueError(f"record {at} of {len(found)}: {rows.fault(record, quotes=False)}")
    return found


def field_values(table: Any, features: Sequence[Feature], name: str = "X") -> list[Any]:
    """Return each feature's values in all records, None or NaN where one is missing.

    The table is a data frame of pandas or polars, an Arrow table, a mapping of columns, or a list of records,
    mappings whose fields may be nested. :func:`columns_of` names the columns that may hold a field.
    ValueError in one line for a missing column, columns of different lengths, or no table.
    """
    names = column_names(table)
    if names is None:
        if not is_list_of_records(table):
            raise ValueError(unnamed(table, name, "features", [feature.name for feature in features]))
        return [_listed(find(record, feature.place) for record in table) for feature in features]
    refuse_twins(names, "the table has two columns")
    found = [_values_in(table, names, feature) for feature in features]
    if len({len(column) for column in found}) > 1:
        raise ValueError("the table's columns have different lengths")
    return found


def named_column(table: Any, name: str) -> Any:
    return table[next(each for each in own_names(table) or () if str(each) == name)]


def _values_in(table: Any, names: Sequence[str], feature: Feature) -> Any:
    for name, below in columns_of(feature.place, feature.name):
        if name in names:
            column = named_column(table, name)
            if below:
                return _listed(find(value, below) for value in _listed(_plain(column)))
            return _plain(column) if feature.categories is None else _words(column, feature)
    raise ValueError(f"the table has no column {feature.name!r}")


def _words(column: Any, feature: Feature) -> Any:
    """Return a column of categories, each value with its own type.

    As an array of numbers, one missing value would make floats of all others, and round them: the row of a
    record would depend on other records.
    """
    dtype = getattr(column, "dtype", getattr(column, "type", None))
    # Arrow's dictionaries are categories too.
    dtype = getattr(getattr(dtype, "categories", None), "dtype", getattr(dtype, "value_type", dtype))
    kind, words = str(dtype).lower(), feature.categories or ()
    if kind.startswith("bool") and not {"true", "false"} & set(words):
        raise ValueError(f"{feature.name!r} is a column of booleans: its categories are 'true' and 'false'")
    if isinstance(dtype, np.dtype) and dtype.kind in "fiu":
        # The library may have made floats of it before. Decided by the settings, and by no value.
        large = next((each for each in words if _WHOLE.fullmatch(each) and abs(int(each)) >= 2**53), None)
        if large is not None:
            raise ValueError(
                f"{feature.name!r} is a column of numbers, which are rounded where one is missing, and its "
                f"category {large} has more digits than they keep: pass texts, or a nullable type of integers"
            )
    values = _listed(_converted(column, "to_list")) if hasattr(column, "to_list") else _plain(column)
    # Arrow's floats have other names: whole numbers stay whole where one is missing.
    if not kind.startswith(("float16", "float32", "float64")):
        return values
    listed = _listed(values)
    return [int(each) if isinstance(each, float) and each.is_integer() else each for each in listed]


def _plain(column: Any) -> Any:
    """Return a column as an array of numbers, or a list with None where missing."""
    if hasattr(column, "to_pylist"):
        values: Any = _converted(column, "to_pylist")
    elif hasattr(column, "to_numpy"):
        values = np.asarray(_converted(column, "to_numpy"))
        if (values.ndim != 1 or values.dtype == object) and hasattr(column, "to_list"):
            # A column of lists or structs: as an array, a list has NaN where its value is null.
            values = _converted(column, "to_list")
    elif isinstance(column, (str, bytes)) or not hasattr(column, "__len__"):
        raise ValueError("a column must be a list or an array: write records as a list of mappings")
    else:
        values = column if isinstance(column, np.ndarray) else list(column)
    if isinstance(values, np.ndarray):
        if values.ndim != 1:
            raise ValueError(f"a column has the shape {values.shape}: each must have one value per record")
        if values.dtype.kind == "m":
            raise ValueError("a column of durations is not numeric: divide it by a unit")
        if values.dtype.kind in "fiub":
            # Convert to float64 before stand-ins are put in.
            return values.astype(np.float64) if values.dtype.kind == "f" else values
        # Times keep their type: as a list they would be whole numbers.
        values = list(values) if values.dtype.kind == "M" else values.tolist()
    return _listed(values)


def _converted(column: Any, method: str) -> Any:
    """Return a column's values by its method; NOTHING for times and texts that Python cannot hold."""
    try:
        return getattr(column, method)()
    except Exception:  # Of several types; an item with another error raises it again.
        items = getattr(column, "array", column)
        values = [NOTHING] * len(items)
        for i in range(len(items)):
            with suppress(OverflowError, ValueError):
                values[i] = items[i].as_py() if hasattr(items[i], "as_py") else items[i]
        return values


def _listed(values: Iterable[Any]) -> list[Any]:
    return [None if _is_missing(value) else value for value in values]


def _is_missing(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    return type(value).__name__ in MISSING_TYPES
