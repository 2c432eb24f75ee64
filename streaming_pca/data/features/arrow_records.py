"""Reader of Arrow streams with named columns: each row is a record.

Values are read from their own places in Arrow's buffers, and only for the needed columns: values of
other rows, and lengths that a payload states, do not affect a record.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.arrow import NUMBER_TYPES, read_stream, valid_bits
from streaming_pca.data.features.records import NOTHING, Columns, Path, is_index
from streaming_pca.data.features.values import quotient, utc_day, utc_time
from streaming_pca.data.payloads import MalformedPayload

Rows = NDArray[np.int64]
"""Places of values in an array, -1 where one is missing."""

_MOST_DIGITS = 100
_PER_SECOND = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}


class ArrowRecords:
    """Decoder of Arrow streams to records, and getters of their fields.

    ``places`` has for each field the columns that may hold it, and how many values it takes: a longer list,
    whose objects could fill the memory, is NOTHING.
    """

    def __init__(self, pyarrow: Any, places: Sequence[tuple[Columns, int]]) -> None:
        self._pyarrow = pyarrow
        self._places = list(places)
        self.getters: list[Callable[[Any], Any]] = [itemgetter(i) for i in range(len(self._places))]

    def read(self, value: bytes, most: int) -> list[Any]:
        """Return a payload's records, at most ``most``; an error of any kind if it cannot be read."""
        stream = read_stream(self._pyarrow, value, len(self._places), most)
        schema = next(stream)
        names = list(schema.names)
        records: list[Any] = []
        for batch in stream:
            # The library ends the process when it cuts a column of negative length.
            batch.validate()
            if batch.num_rows:
                columns = [self._column(batch, names, *place) for place in self._places]
                records += zip(*columns, strict=True)
        return records

    def _column(self, batch: Any, names: list[str], columns: Columns, size: int) -> list[Any]:
        for name, below in columns:
            if name in names:
                # The last of two columns of one name counts, as in JSON.
                last = batch.column(len(names) - 1 - names[::-1].index(name))
                return _values(self._pyarrow, last, np.arange(batch.num_rows), below, size)
        return [None] * batch.num_rows


def _values(pyarrow: Any, array: Any, rows: Rows, path: Path, size: int) -> list[Any]:
    """Return the values below some of an array's places."""
    if array.offset:
        raise MalformedPayload("a batch that starts within its buffers")
    types = pyarrow.types
    kind = array.type
    if types.is_null(kind):
        return [None] * len(rows)
    rows = _there(array, rows)
    if not path:
        return _leaves(pyarrow, array, rows, size)
    name = path[0]
    if types.is_struct(kind):
        at = kind.get_all_field_indices(name)
        if not at:
            return [None] * len(rows)
        return _values(pyarrow, array.field(at[-1]), rows, path[1:], size)
    spans = _spans(types, array, rows)
    if spans is None or not is_index(name):
        return [None if row < 0 else NOTHING for row in rows.tolist()]
    first, last = spans
    found = first + int(name)
    return _values(pyarrow, array.values, np.where(found < last, found, -1), path[1:], size)


def _there(array: Any, rows: Rows) -> Rows:
    """Return the places that have a value by the array's bitmap, -1 for the others."""
    bitmap = array.buffers()[0]
    if bitmap is None or not len(rows):
        return rows
    valid = valid_bits(bitmap, int(rows.max()) + 1)
    return np.where((rows >= 0) & valid[rows] if len(valid) else False, rows, -1)


def _spans(types: Any, array: Any, rows: Rows) -> tuple[Rows, Rows] | None:
    """Return the first and the last place of each list's items; None for other types."""
    if types.is_fixed_size_list(array.type):
        size = array.type.list_size
        if len(array) * size > len(array.values):
            raise MalformedPayload("lists longer than their column")
        return np.where(rows < 0, 0, rows * size), np.where(rows < 0, 0, (rows + 1) * size)
    if not (types.is_list(array.type) or types.is_large_list(array.type)):
        return None
    return _offsets(array, rows, types.is_large_list(array.type), len(array.values))


def _offsets(array: Any, rows: Rows, large: bool, length: int) -> tuple[Rows, Rows]:
    """Return where the items or octets of each place begin and end; both are 0 where it is missing.

    Overlapping values could represent more than the payload holds.
    """
    if not len(array):
        return np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    offsets = _numbers(array.buffers()[1], np.dtype("<i8" if large else "<i4"))[: len(array) + 1]
    if (offsets[1:] < offsets[:-1]).any() or offsets[0] < 0 or offsets[-1] > length:
        raise MalformedPayload("offsets that lead out of a column, or back")
    there = rows >= 0
    first, last = np.zeros(len(rows), np.int64), np.zeros(len(rows), np.int64)
    first[there], last[there] = offsets[rows[there]], offsets[rows[there] + 1]
    return first, last


def _numbers(buffer: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Return all numbers that a buffer has room for."""
    return np.frombuffer(buffer, dtype, buffer.size // dtype.itemsize)


def _leaves(pyarrow: Any, array: Any, rows: Rows, size: int) -> list[Any]:
    types = pyarrow.types
    spans = _spans(types, array, rows)
    if spans is None:
        found = _scalars(pyarrow, array, rows)
        if str(array.type) not in NUMBER_TYPES:
            return found
        # As in tables, where NaN is a missing value.
        return [None if isinstance(value, float) and math.isnan(value) else value for value in found]
    items = array.values
    is_scalar = str(items.type) in NUMBER_TYPES or types.is_boolean(items.type) or types.is_string(items.type)
    if not is_scalar or items.offset:
        return [None if row < 0 else NOTHING for row in rows.tolist()]
    buffer = items.buffers()[1]
    bits = 0 if buffer is None else 8 * buffer.size
    if len(items) * (1 if types.is_boolean(items.type) else 8) > bits:
        raise MalformedPayload("a column longer than its buffer")
    lists: list[Any] = []
    for row, first, last in zip(rows.tolist(), *(each.tolist() for each in spans), strict=True):
        if row < 0 or last - first > size:
            lists.append(None if row < 0 else NOTHING)
        else:
            lists.append(_scalars(pyarrow, items, _there(items, np.arange(first, last))))
    return lists


def _scalars(pyarrow: Any, array: Any, rows: Rows) -> list[Any]:
    """Return the single values at some places; NOTHING for other types and values."""
    types, kind, buffers = pyarrow.types, array.type, array.buffers()
    if types.is_string(kind) or types.is_large_string(kind):
        text = memoryview(b"" if buffers[2] is None else buffers[2])
        spans = _offsets(array, rows, types.is_large_string(kind), len(text))
        return [
            None if row < 0 else _text(text, first, last)
            for row, first, last in zip(rows.tolist(), *(each.tolist() for each in spans), strict=True)
        ]
    there = rows >= 0
    if types.is_boolean(kind):
        bits = valid_bits(buffers[1], int(rows.max(initial=-1)) + 1)
        return _with_gaps(bits[rows[there]].tolist(), there)
    number = NUMBER_TYPES.get(str(kind))
    if number is not None:
        return _with_gaps(_numbers(buffers[1], number)[rows[there]].tolist(), there)
    if types.is_timestamp(kind):
        unit = _PER_SECOND[kind.unit]
        moments = _numbers(buffers[1], np.dtype("<i8"))[rows[there]].tolist()
        return _with_gaps([utc_time(each, unit) for each in moments], there)
    if types.is_date(kind):
        days = types.is_date32(kind)
        counts = _numbers(buffers[1], np.dtype("<i4" if days else "<i8"))[rows[there]].tolist()
        return _with_gaps([utc_day(each) if days else utc_time(each, 1000) for each in counts], there)
    if types.is_decimal128(kind) and abs(kind.scale) <= _MOST_DIGITS:
        octets = [each.tobytes() for each in _numbers(buffers[1], np.dtype("V16"))[rows[there]]]
        numbers = [int.from_bytes(each, "little", signed=True) for each in octets]
        return _with_gaps([quotient(each, kind.scale) for each in numbers], there)
    return [None if row < 0 else NOTHING for row in rows.tolist()]


def _with_gaps(values: list[Any], there: NDArray[np.bool_]) -> list[Any]:
    if there.all():
        return values
    left = iter(values)
    return [next(left) if each else None for each in there.tolist()]


def _text(data: memoryview, first: int, last: int) -> Any:
    try:
        return str(data[first:last], "utf-8")
    except UnicodeDecodeError:
        return NOTHING
