"""Files of records: .npy, .csv, .parquet and Arrow IPC, read a block at a time."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.arrow import NUMBER_TYPES, ArrowMissing, need_pyarrow

__all__ = ["RecordFile", "RecordFileError", "open_records"]

Numbers = NDArray[Any]
_BLOCK_ENTRIES = 2**16
"""Numbers of a Parquet file that are decoded at once, but for one column of lists."""


class RecordFileError(Exception):
    """A file of records cannot be read or sent; one line that names the file and what to change."""


@dataclass(frozen=True)
class RecordFile:
    """Records in their order, from a file or from memory.

    Attributes
    ----------
    path : str
        For messages.
    shape : (m, d) or (m, r, d)
        m vectors of d features, or m factors of r rows.
    feature_names : tuple of str or None
    array : callable
        All rows, for reading in another order; may load the file.
    parts : callable or None
        All rows in order, in pieces of any size, where ``array`` would load them.
    columns : tuple of int or None
        Which column each feature is in, where not in the file's order.
    """

    path: str
    shape: tuple[int, ...]
    array: Callable[[], Numbers]
    parts: Callable[[], Iterator[Numbers]] | None = None
    feature_names: tuple[str, ...] | None = None
    columns: tuple[int, ...] | None = None

    @classmethod
    def of_array(cls, array: Numbers, path: str = "array") -> RecordFile:
        """Records in memory (m, d) or (m, r, d)."""
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
        """The same rows as factors of ``rows`` consecutive ones."""
        if len(self.shape) == 3:
            raise RecordFileError(f"{self.path}: holds factors of {self.shape[1]} rows already")
        if len(self) % rows:
            raise RecordFileError(
                f"{self.path}: {len(self)} rows are no whole number of records of {rows} rows"
            )
        return replace(self, shape=(len(self) // rows, rows, self.dim))

    def with_features(self, names: Sequence[str]) -> RecordFile:
        """The features in the order of ``names``; a file without names is taken as it is.

        Raises
        ------
        RecordFileError
            The file's names are others; the first difference.
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
        """Consecutive records, ``size`` at a time, in the file's order or another."""
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


def open_records(path: Path) -> RecordFile:
    """Open vectors (m, d) or factors (m, r, d).

    Parameters
    ----------
    path : Path
        ``.npy`` (memory-mapped; never unpickled), ``.csv`` (numbers, one record
        a line; a first line that is no numbers is a header of names),
        ``.parquet`` or ``.arrow`` (IPC stream or file; columns of numbers, or
        one of fixed-size lists; a null is a NaN).

    Raises
    ------
    RecordFileError
    """
    with _reading(path):
        match path.suffix.lower():
            case ".npy":
                return RecordFile.of_array(np.load(path, mmap_mode="r", allow_pickle=False), str(path))
            case ".csv":
                rows, names = _read_csv(path)
                return replace(RecordFile.of_array(rows, str(path)), feature_names=names)
            case ".parquet":
                return _open_tables(path, _Parquet(path, need_pyarrow(".parquet")))
            case ".arrow":
                return _open_tables(path, _Ipc(path, need_pyarrow(".arrow")))
            case other:
                raise RecordFileError(
                    f"{path}: {other or 'no ending'}: expected a .npy, .csv, .parquet or .arrow file"
                )


@contextmanager
def _reading(path: Path) -> Iterator[None]:
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


def _read_csv(path: Path) -> tuple[NDArray[np.float64], tuple[str, ...] | None]:
    rows: list[NDArray[np.float64]] = []
    names = None
    with path.open(newline="", encoding="utf-8-sig") as file:
        for number, line in enumerate(csv.reader(file), start=1):
            if not line:
                continue
            try:
                row = np.array(line, dtype=np.float64)
            except ValueError:
                if number == 1:
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
    return np.stack(rows), names


class _Parquet:
    """A Parquet file, a row group at a time."""

    def __init__(self, path: Path, pyarrow: Any) -> None:
        self.pyarrow = pyarrow
        self._file = import_module("pyarrow.parquet").ParquetFile(path)
        self.schema = self._file.schema_arrow
        self.count = int(self._file.metadata.num_rows)

    def batches(self) -> Iterator[Any]:
        """Its rows in order."""
        rows = max(1, _BLOCK_ENTRIES // self._file.metadata.num_columns)
        for group in range(self._file.num_row_groups):
            # Asked for all groups at once, pyarrow reads most of a file ahead.
            yield from self._file.iter_batches(rows, row_groups=[group], use_threads=False)


class _Ipc:
    """An Arrow IPC stream or file, a record batch at a time."""

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
        """Its rows in order."""
        with self._opened() as reader:
            if self._is_file:
                yield from map(reader.get_batch, range(reader.num_record_batches))
            else:
                yield from reader


def _open_tables(path: Path, tables: _Parquet | _Ipc) -> RecordFile:
    types = tables.pyarrow.types
    fields = list(tables.schema)
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
                    yield _rows_of_lists(batch.column(0), dim) if lists else _rows_of_columns(batch)

    return RecordFile(
        str(path),
        (tables.count, dim),
        lambda: np.concatenate(list(parts())),
        parts,
        None if lists else tuple(field.name for field in fields),
    )


def _rows_of_columns(batch: Any) -> Numbers:
    return np.stack([column.to_numpy(zero_copy_only=False) for column in batch.columns], axis=1)


def _rows_of_lists(column: Any, dim: int) -> Numbers:
    numbers = column.values.slice(column.offset * dim, len(column) * dim)
    rows = numbers.to_numpy(zero_copy_only=False).reshape(-1, dim)
    null = column.is_null().to_numpy(zero_copy_only=False)
    return np.where(null[:, None], np.nan, rows) if null.any() else rows
