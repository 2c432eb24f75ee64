"""Files of records (.npy, .csv, .parquet and Arrow IPC), read in blocks."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice, pairwise, repeat
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.arrow import NUMBER_TYPES, ArrowMissing, need_pyarrow

__all__ = ["RecordFile", "RecordFileError", "open_records"]

Numbers = NDArray[Any]
_BLOCK_ENTRIES = 2**16
"""Numbers of a Parquet file that are decoded at once; a column of lists counts as one number a row."""


class RecordFileError(Exception):
    """Error of a file that cannot be read or sent; one line that names the file and the remedy."""


@dataclass(frozen=True)
class RecordFile:
    """Records in their order, from a file or from memory.

    Attributes
    ----------
    path : str
        Name of the records in error messages.
    shape : (m, d) or (m, r, d)
        m vectors of d features, or m factors of r rows.
    array : callable
        Returns all rows, for reading in another order; may load the whole file.
    parts : callable or None
        Iterates over all rows in order, in pieces of any size; None if ``array``
        does not load the file.
    feature_names : tuple of str or None
    columns : tuple of int or None
        Column of each feature; None if features are in the file's order.
    row_keys : callable or None
        Iterates over the keys of the file's rows, in order; None without a key column.
    """

    path: str
    shape: tuple[int, ...]
    array: Callable[[], Numbers]
    parts: Callable[[], Iterator[Numbers]] | None = None
    feature_names: tuple[str, ...] | None = None
    columns: tuple[int, ...] | None = None
    row_keys: Callable[[], Iterator[bytes | None]] | None = None

    @classmethod
    def of_array(cls, array: Numbers, path: str = "array") -> RecordFile:
        """Wrap records in memory, (m, d) or (m, r, d)."""
        if array.dtype.kind not in "fiu" or array.ndim not in (2, 3) or not array.size:
            raise RecordFileError(
                f"{path}: holds {array.dtype} of shape {array.shape}; "
                "expected numbers of shape (records, features) or (records, rows, features)"
            )
        return cls(path, array.shape, lambda: array)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dim(self) -> int:
        """Number of features d."""
        return self.shape[-1]

    def grouped(self, rows: int) -> RecordFile:
        """Return the same rows as factors of ``rows`` consecutive rows each."""
        if len(self.shape) == 3:
            raise RecordFileError(f"{self.path}: holds factors of {self.shape[1]} rows already")
        if len(self) % rows:
            raise RecordFileError(
                f"{self.path}: {len(self)} rows are no whole number of records of {rows} rows"
            )
        return replace(self, shape=(len(self) // rows, rows, self.dim))

    def keys(self, order: NDArray[np.int64] | None = None) -> Iterator[bytes | None]:
        """Iterate over the records' keys, in the file's order or another; None for no key.

        Raises
        ------
        RecordFileError
            If rows of one record have different keys.
        """
        if self.row_keys is None:
            return repeat(None, len(self))
        keys = self._record_keys(self.row_keys())
        if order is None:
            return keys
        known = list(keys)
        return (known[i] for i in order)

    def _record_keys(self, keys: Iterator[bytes | None]) -> Iterator[bytes | None]:
        rows = self.shape[1] if len(self.shape) == 3 else 1
        for number in range(len(self)):
            own = set(islice(keys, rows))
            if len(own) != 1:
                raise RecordFileError(
                    f"{self.path}: the rows {number * rows + 1} to {(number + 1) * rows} are one record, "
                    "and have different keys: sort the rows, or send each by itself"
                )
            yield own.pop()

    def with_features(self, names: Sequence[str]) -> RecordFile:
        """Return the records with features in the order of ``names``.

        A file without names is returned unchanged.

        Raises
        ------
        RecordFileError
            If the file has other names; the message has the first difference.
        """
        own = self.feature_names
        if own is None or own == tuple(names):
            return self
        if len(set(own)) == len(own) and set(own) == set(names):
            return replace(self, feature_names=tuple(names), columns=tuple(own.index(name) for name in names))
        first = next(i for i, (a, b) in enumerate(zip(own, names, strict=True)) if a != b)
        raise RecordFileError(
            f"{self.path}: column {first + 1} is {own[first]!r}, where stream.feature_names has "
            f"{names[first]!r}: rename the columns, or the features"
        )

    def blocks(self, size: int, order: NDArray[np.int64] | None = None) -> Iterator[Numbers]:
        """Iterate over blocks of ``size`` consecutive records, in the file's order or another."""
        for block in self._blocks(size, order):
            yield block if self.columns is None else block[..., list(self.columns)]

    def _blocks(self, size: int, order: NDArray[np.int64] | None) -> Iterator[Numbers]:
        if order is None and self.parts is not None:
            rows = self.shape[1] if len(self.shape) == 3 else 1
            for part in _of_size(self.parts(), size * rows):
                yield part.reshape(-1, *self.shape[1:])
            return
        array = self.array()
        records = array if array.ndim == len(self.shape) else array.reshape(self.shape)
        for first in range(0, len(self), size):
            index = slice(first, first + size)
            yield records[index] if order is None else records[order[index]]


def _of_size(parts: Iterator[Numbers], size: int) -> Iterator[Numbers]:
    """Cut pieces of any length into blocks of ``size`` rows; the last may be shorter."""
    held: list[Numbers] = []
    count = 0
    for part in parts:
        held.append(part)
        count += len(part)
        if count >= size:
            rows = np.concatenate(held)
            whole = count // size * size
            for first, last in pairwise(range(0, whole + 1, size)):
                yield rows[first:last]
            held, count = [rows[whole:]], count - whole
    if count:
        yield np.concatenate(held)


def open_records(path: Path, key: str | None = None) -> RecordFile:
    """Open vectors (m, d) or factors (m, r, d).

    Parameters
    ----------
    path : Path
        ``.npy`` (memory-mapped; never unpickled), ``.csv`` (numbers, one record
        a line; a first line with text is a header of names), ``.parquet`` or
        ``.arrow`` (IPC stream or file). The last two have columns of numbers, or
        one column of fixed-size lists; a null is a NaN.
    key : str, optional
        Column of the messages' keys, text or whole numbers, which is not a
        feature. Not for ``.npy``, which has no names.

    Raises
    ------
    RecordFileError
        If the file cannot be read, or holds anything else.
    """
    with _reading(path):
        match path.suffix.lower():
            case ".npy":
                if key is not None:
                    raise RecordFileError(
                        f"{path}: has no column {key!r}: keys come from a .csv with names, "
                        "a .parquet or an .arrow file"
                    )
                return RecordFile.of_array(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
            case ".csv":
                rows, names, keys = _read_csv(path, key)
                row_keys = None if key is None else lambda: iter(keys)
                return replace(RecordFile.of_array(rows, str(path)), feature_names=names, row_keys=row_keys)
            case ".parquet":
                return _open_tables(path, _Parquet(path, need_pyarrow(".parquet")), key)
            case ".arrow":
                return _open_tables(path, _Ipc(path, need_pyarrow(".arrow")), key)
            case other:
                raise RecordFileError(
                    f"{path}: {other or 'no ending'}: expected a .npy, .csv, .parquet or .arrow file"
                )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn all errors of reading into one line that names the file."""
    try:
        yield
    except ArrowMissing as error:
        raise RecordFileError(f"{path}: {error}") from None
    except OSError as error:
        raise RecordFileError(f"{path}: {error.strerror or _one_line(error)}") from None
    except (ValueError, NotImplementedError) as error:  # pyarrow's own are ValueErrors too
        raise RecordFileError(f"{path}: cannot be read as numbers: {_one_line(error)}") from None


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _place_of(path: Path, key: str, names: Sequence[str]) -> int:
    """Return the number of the column that holds the keys."""
    if names.count(key) != 1:
        raise RecordFileError(
            f"{path}: expected one column {key!r}, of the keys, and found {names.count(key)}"
        )
    return names.index(key)


def _read_csv(
    path: Path, key: str | None
) -> tuple[NDArray[np.float64], tuple[str, ...] | None, list[bytes | None]]:
    rows: list[NDArray[np.float64]] = []
    keys: list[bytes | None] = []
    names, place = None, None
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, line in enumerate(csv.reader(file), start=1):
            if not line:
                continue
            if key is not None and place is None:
                place = _place_of(path, key, [name.strip() for name in line])
                del line[place]
                names = tuple(name.strip() for name in line)
                continue
            if place is not None:
                if place >= len(line):
                    raise RecordFileError(f"{path}, line {number}: ends before the column of the keys")
                keys.append(line.pop(place).encode() or None)
            try:
                row = np.array(line, dtype=np.float64)
            except ValueError:
                # A first line of numbers and empty cells is a record, not names of columns.
                if number == 1 and any(_is_text(cell) for cell in line):
                    names = tuple(name.strip() for name in line)
                    continue
                raise RecordFileError(f"{path}, line {number}: is no list of numbers") from None
            width = len(rows[0]) if rows else len(names or row)
            if len(row) != width:
                raise RecordFileError(
                    f"{path}, line {number}: has {len(row)} numbers, the lines before have {width}"
                )
            rows.append(row)
    if not rows:
        raise RecordFileError(f"{path}: holds no records")
    return np.stack(rows), names, keys


def _is_text(cell: str) -> bool:
    """Return whether a cell is neither empty nor a number."""
    try:
        float(cell.strip() or 0)
    except ValueError:
        return True
    return False


class _Parquet:
    """Parquet file, read by row groups."""

    def __init__(self, path: Path, pyarrow: Any) -> None:
        self.pyarrow = pyarrow
        self._file = import_module("pyarrow.parquet").ParquetFile(path)
        self.schema = self._file.schema_arrow
        self.count = int(self._file.metadata.num_rows)

    def batches(self) -> Iterator[Any]:
        """Iterate over the rows in order."""
        rows = max(1, _BLOCK_ENTRIES // self._file.metadata.num_columns)
        for group in range(self._file.num_row_groups):
            # One group at a time: asked for all of them, pyarrow reads most of the file ahead.
            yield from self._file.iter_batches(rows, row_groups=[group], use_threads=False)


class _Ipc:
    """Arrow IPC stream or file, read by record batches."""

    def __init__(self, path: Path, pyarrow: Any) -> None:
        self.pyarrow, self._path = pyarrow, path
        with path.open("rb") as file:
            self._is_file = file.read(6) == b"ARROW1"
        self.count = 0
        with self._opened() as reader:
            self.schema = reader.schema
        for batch in self.batches():
            self.count += batch.num_rows

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        ipc = self.pyarrow.ipc
        opened = ipc.open_file if self._is_file else ipc.open_stream
        with self.pyarrow.memory_map(str(self._path)) as source, opened(source) as reader:
            yield reader

    def batches(self) -> Iterator[Any]:
        """Iterate over the rows in order."""
        with self._opened() as reader:
            if self._is_file:
                yield from map(reader.get_batch, range(reader.num_record_batches))
            else:
                yield from reader


def _open_tables(path: Path, tables: _Parquet | _Ipc, key: str | None) -> RecordFile:
    types = tables.pyarrow.types
    fields = list(tables.schema)
    place = None if key is None else _place_of(path, key, [field.name for field in fields])
    if place is not None:
        _check_key(path, types, fields.pop(place))
    lists = len(fields) == 1 and types.is_fixed_size_list(fields[0].type)
    for field in fields:
        if str(field.type.value_type if lists else field.type) not in NUMBER_TYPES:
            raise RecordFileError(
                f"{path}: column {field.name!r} is of type {field.type}: expected numbers in every column, "
                "or one column of fixed-size lists of numbers"
            )
    dim = fields[0].type.list_size if lists else len(fields)
    if not tables.count or not dim:
        raise RecordFileError(f"{path}: holds no records")

    def parts() -> Iterator[Numbers]:
        with _reading(path):
            for batch in tables.batches():
                if batch.num_rows:
                    columns = [c for i, c in enumerate(batch.columns) if i != place]
                    yield _rows_of_lists(columns[0], dim) if lists else _rows_of_columns(columns)

    def keys() -> Iterator[bytes | None]:
        with _reading(path):
            for batch in tables.batches():
                yield from map(_key_of, batch.column(place).to_pylist())

    return RecordFile(
        str(path),
        (tables.count, dim),
        lambda: np.concatenate(list(parts())),
        parts,
        None if lists else tuple(field.name for field in fields),
        row_keys=None if place is None else keys,
    )


def _check_key(path: Path, types: Any, field: Any) -> None:
    kind = field.type.value_type if types.is_dictionary(field.type) else field.type
    known = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary, types.is_integer)
    if not any(is_known(kind) for is_known in known):
        raise RecordFileError(
            f"{path}: column {field.name!r} is of type {field.type}: keys are text or whole numbers"
        )


def _key_of(value: str | bytes | int | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value or None
    return str(value).encode() or None


def _rows_of_columns(columns: Sequence[Any]) -> Numbers:
    return np.stack([column.to_numpy(zero_copy_only=False) for column in columns], axis=1)


def _rows_of_lists(column: Any, dim: int) -> Numbers:
    numbers = column.values.slice(column.offset * dim, len(column) * dim)
    rows = numbers.to_numpy(zero_copy_only=False).reshape(-1, dim)
    null = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(null[:, None], np.nan, rows) if null.any() else rows
