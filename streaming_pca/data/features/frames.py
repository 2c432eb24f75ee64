"""Fields of tables: data frames, Arrow tables, mappings of columns, and lists of records."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.paths import find
from streaming_pca.data.features.row_map import RowMap


def column_names(table: Any) -> list[str] | None:
    """Return the names of a table's columns; None for a list of records, and for an array."""
    if isinstance(table, Mapping):
        return [str(name) for name in table]
    names = getattr(table, "column_names", getattr(table, "columns", None))
    return None if names is None else [str(name) for name in names]


def rows_of_table(rows: RowMap, table: Any) -> NDArray[np.float64]:
    """Return the rows (m, d) of a table's records.

    Raises
    ------
    ValueError
        One line, as of :func:`values_of`; or the first record that the map refuses, and why. Only
        the holder of the records may see it.
    """
    values = values_of(table, rows.features)
    found = rows.rows(values, len(values[0]))
    wrong = np.flatnonzero(np.isnan(found).any(axis=1))
    if len(wrong):
        at = int(wrong[0])
        record = [None if _is_missing(column[at]) else column[at] for column in values]
        raise ValueError(f"record {at} of {len(found)}: {rows.fault(record)}")
    return found


def values_of(table: Any, features: Sequence[Feature]) -> list[Any]:
    """Return each feature's values in all records, None or NaN where one is missing.

    Parameters
    ----------
    table : data frame of pandas or polars, Arrow table, mapping of columns, or list of records
        A record is a mapping, whose fields may be nested. A column has the name of the field's place,
        or of its feature.

    Raises
    ------
    ValueError
        One line: a missing column, columns of different lengths, or no table.
    """
    names = column_names(table)
    if names is None:
        if not isinstance(table, Sequence) or not all(isinstance(each, Mapping) for each in table):
            raise ValueError("features need a table with named columns, or a list of records")
        return [_listed(find(record, feature.place) for record in table) for feature in features]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"the table has two columns {twice[0]!r}")
    found = [_values_in(table, names, feature) for feature in features]
    if len({len(column) for column in found}) > 1:
        raise ValueError("the table's columns have different lengths")
    return found


def column_of(table: Any, name: str) -> Any:
    """Return a table's column by the text of its name."""
    if isinstance(table, Mapping):
        return table[next(each for each in table if str(each) == name)]
    names = getattr(table, "column_names", None)
    return table[name if names is not None else next(each for each in table.columns if str(each) == name)]


def _values_in(table: Any, names: Sequence[str], feature: Feature) -> Any:
    for name in (".".join(feature.place), feature.name):
        if name in names:
            return _plain(column_of(table, name))
    if feature.place[0] in names:
        # A column of structs.
        inner = _plain(column_of(table, feature.place[0]))
        return _listed(find(value, feature.place[1:]) for value in inner)
    raise ValueError(f"the table has no column {feature.name!r}")


def _plain(column: Any) -> Any:
    """Return a column as an array of numbers, or a list with None where missing."""
    if hasattr(column, "to_pylist"):
        values: Any = column.to_pylist()
    elif hasattr(column, "to_numpy"):
        values = column.to_numpy()
        if values.ndim != 1 and hasattr(column, "to_list"):
            # A column of lists or structs.
            values = column.to_list()
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


def _listed(values: Iterable[Any]) -> list[Any]:
    return [None if _is_missing(value) else value for value in values]


def _is_missing(value: Any) -> bool:
    if isinstance(value, (float, np.floating)):
        return math.isnan(value)
    if isinstance(value, np.datetime64):
        return bool(np.isnat(value))
    # pandas' marks of a missing value.
    return type(value).__name__ in ("NAType", "NaTType")
