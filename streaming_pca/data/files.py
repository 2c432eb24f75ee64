"""Files of records (.npy, .csv, .parquet and Arrow IPC), read in blocks."""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain, islice, pairwise, repeat
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.arrow import NUMBER_TYPES, need_pyarrow
from streaming_pca.data.tables import IpcFile, ParquetFiles, length_of_lists, rows_of_lists
from streaming_pca.errors import LibraryMissing, UserError
from streaming_pca.text import is_number, one_line, printable

Numbers = NDArray[Any]


@dataclass(frozen=True)
class ColumnChoice:
    """Columns of a file that are features, by name or by number.

    Numbers count from 1, and ``3-5`` is three of them. A number that is another column's name is
    refused; ``3-3`` is always a number unless a column is called so.
    """

    keep: tuple[str, ...] | None = None
    """Columns in the order of the features; None for all."""
    drop: tuple[str, ...] = ()
    """Columns that are not features."""
    header: bool | None = None
    """True if a .csv file begins with names; None to guess."""

    @classmethod
    def parse(cls, keep: str | None, drop: str | None, header: bool | None = None) -> ColumnChoice:
        """Read lists separated by commas, with names perhaps quoted."""
        return cls(None if keep is None else _split(keep), () if drop is None else _split(drop), header)

    def find(self, path: Path, width: int, names: Sequence[str] | None, key: int | None) -> list[int]:
        """Return the chosen columns of a file, from 0, without the column of the keys.

        UserError if a column does not exist, or is chosen twice, or none is left.
        """
        dropped = {i for text in self.drop for i in _find(path, text, width, names)} | {key}
        if self.keep is None:
            found = [i for i in range(width) if i not in dropped]
        else:
            kept = [i for text in self.keep for i in _find(path, text, width, names)]
            if key in kept:
                raise UserError(f"{path}: column {key + 1} holds the keys: leave it out of --columns")
            twice = next((i for i in kept if kept.count(i) > 1), None)
            if twice is not None:
                raise UserError(f"{path}: --columns names column {twice + 1} twice")
            found = [i for i in kept if i not in dropped]
        if not found:
            raise UserError(f"{path}: no column is left: change --columns, or --drop")
        return found


_RANGE = re.compile(r"([1-9][0-9]{0,8})(?:-([1-9][0-9]{0,8}))?")
ALL = ColumnChoice()


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in next(csv.reader([text], skipinitialspace=True), []))


def _find(path: Path, text: str, width: int, names: Sequence[str] | None) -> list[int]:
    """Return the columns, from 0, that one item of a list names."""
    if names is not None and text in names:
        if names.count(text) > 1:
            raise UserError(f"{path}: has {names.count(text)} columns {text!r}: give their numbers")
        named = names.index(text) + 1
        # A table without names is often saved with 0, 1, 2, ... for them.
        if text.isdecimal() and text != str(named) and _RANGE.fullmatch(text):
            raise UserError(
                f"{path}: {text} is the number of one column and the name of column {named}: "
                f"write {text}-{text} for the number, or {named}-{named} for the name"
            )
        return [named - 1]
    numbers = _RANGE.fullmatch(text)
    if numbers is None:
        has = "has no names of columns: give numbers, from 1" if names is None else f"it has {_listed(names)}"
        raise UserError(f"{path}: has no column {text!r}; {has}")
    first, last = int(numbers[1]), int(numbers[2] or numbers[1])
    if not first <= last <= width:
        raise UserError(f"{path}: has no column {text}; it has {width} columns")
    return list(range(first - 1, last))


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:20]))
    return shown if len(names) <= 20 else f"{shown} and {len(names) - 20} more"


@dataclass(frozen=True)
class RecordFile:
    """Records in their order, from a file or from memory."""

    path: str
    """Name of the records in error messages."""
    shape: tuple[int, ...]
    """(m, d) for vectors of d features, (m, r, d) for factors of r rows."""
    array: Callable[[], Numbers]
    """Returns all rows, for reading in another order; may load the whole file."""
    parts: Callable[[], Iterator[Numbers]] | None = None
    """Iterates over all rows in order, in pieces of any size; None if ``array`` does not load the file."""
    feature_names: tuple[str, ...] | None = None
    columns: tuple[int, ...] | None = None
    """Column of each feature; None if features are in the file's order."""
    row_keys: Callable[[], Iterator[bytes | None]] | None = None
    """Iterates over the keys of the file's rows, in order; None without a key column."""
    guessed_header: bool = False
    """True if the first line counts as names because no cell of it is a number."""

    @classmethod
    def of_array(cls, array: Numbers, path: str = "array") -> RecordFile:
        """Wrap records in memory, (m, d) or (m, r, d)."""
        if array.dtype.kind not in "fiu" or array.ndim not in (2, 3) or not array.size:
            raise UserError(
                f"{path}: holds {array.dtype} of shape {array.shape}; "
                "expected at least one record, of shape (records, features) or (records, rows, features)"
            )
        return cls(path, array.shape, lambda: array)

    def __len__(self) -> int:
        return self.shape[0]

    @property
    def dim(self) -> int:
        return self.shape[-1]

    def grouped(self, rows: int) -> RecordFile:
        """Return the same rows as factors of ``rows`` consecutive rows each."""
        if len(self.shape) == 3:
            raise UserError(f"{self.path}: already holds factors of {self.shape[1]} rows")
        if len(self) % rows:
            raise UserError(f"{self.path}: {len(self)} rows do not divide into records of {rows} rows")
        return replace(self, shape=(len(self) // rows, rows, self.dim))

    def keys(self, order: NDArray[np.int64] | None = None) -> Iterator[bytes | None]:
        """Iterate over the records' keys, in the file's order or another; None for no key.

        UserError if rows of one record have different keys.
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
                raise UserError(
                    f"{self.path}: the rows {number * rows + 1} to {(number + 1) * rows} are one record, "
                    "and have different keys: sort the rows, or send each by itself"
                )
            yield own.pop()

    def with_columns(self, columns: Sequence[int]) -> RecordFile:
        """Return the records with these features, in this order."""
        if list(columns) == list(range(self.dim)):
            return self
        own, names = self.columns or range(self.dim), self.feature_names
        return replace(
            self,
            shape=(*self.shape[:-1], len(columns)),
            columns=tuple(own[i] for i in columns),
            feature_names=None if names is None else tuple(names[i] for i in columns),
        )

    def with_features(self, names: Sequence[str]) -> RecordFile:
        """Return the records with features in the order of ``names``.

        A file without names is returned unchanged; with other names it is a UserError.
        """
        own = self.feature_names
        if own is None or own == tuple(names):
            return self
        if len(set(own)) == len(own) and set(own) == set(names):
            return self.with_columns([own.index(name) for name in names])
        first = next(i for i, (a, b) in enumerate(zip(own, names, strict=True)) if a != b)
        raise UserError(
            f"{self.path}: column {first + 1} is {own[first]!r}, but stream.feature_names has "
            f"{names[first]!r}: rename the columns or the features, or choose columns with --columns"
        )

    def blocks(self, size: int, order: NDArray[np.int64] | None = None) -> Iterator[Numbers]:
        """Iterate over blocks of ``size`` consecutive records, in the file's order or another."""
        for block in self._blocks(size, order):
            yield block if self.columns is None else block[..., list(self.columns)]

    def _blocks(self, size: int, order: NDArray[np.int64] | None) -> Iterator[Numbers]:
        if order is None and self.parts is not None:
            rows = self.shape[1] if len(self.shape) == 3 else 1
            for part in _of_size(self.parts(), size * rows):
                yield part.reshape(-1, *self.shape[1:-1], part.shape[-1])
            return
        array = self.array()
        # Grouped into records, and with the columns that blocks() leaves out.
        records = array if array.ndim == len(self.shape) else array.reshape(*self.shape[:-1], -1)
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


def open_records(
    path: Path, key: str | None = None, choice: ColumnChoice = ALL, *, reports_dim: int | None = None
) -> RecordFile:
    """Open vectors (m, d) or factors (m, r, d).

    ``path``: ``.npy`` (memory-mapped; never unpickled), ``.csv`` (numbers, one record a line), ``.parquet``,
    a folder of ``.parquet`` files, or ``.arrow`` (IPC stream or file). The last three have columns of
    numbers, or one column of lists of one length; a null is a NaN. ``key``: column of the messages' keys,
    text or whole numbers, which is not a feature. Not for ``.npy``, which has no names. ``choice``: features
    among the other columns; unused columns may hold anything. ``reports_dim``: features of a record of the
    local model. Records that cannot be read are then NaN: an error would hold reports back.

    Raises UserError if the file cannot be read, or holds anything else.
    """
    with _reading(path):
        ending = "folder" if path.is_dir() else path.suffix.lower()
        if choice.header is not None and ending != ".csv":
            raise UserError(f"{path}: --header and --no-header are about .csv files: leave them out")
        match ending:
            case ".npy":
                if key is not None:
                    raise UserError(
                        f"{path}: has no column {key!r}: keys come from a .csv with names, "
                        "a .parquet or an .arrow file"
                    )
                array = _load_array(path)
                if not isinstance(array, np.ndarray):
                    raise UserError(f"{path}: is an archive of arrays (.npz): save one with numpy.save")
                records = RecordFile.of_array(array, str(path))
                return records.with_columns(choice.find(path, records.dim, None, None))
            case ".csv":
                return _read_csv(path, key, choice, reports_dim is not None)
            case ".parquet" | "folder":
                tables = ParquetFiles(path, need_pyarrow(".parquet"))
                return _open_tables(path, tables, key, choice, reports_dim)
            case ".arrow":
                return _open_tables(path, IpcFile(path, need_pyarrow(".arrow")), key, choice, reports_dim)
            case other:
                raise UserError(
                    f"{path}: {other or 'no ending'}: expected a .npy, .csv, .jsonl, .parquet or .arrow file"
                )


def _load_array(path: Path) -> Any:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        # numpy takes any other file for a pickle, and advises to load it, which would run its code.
        objects = "Python objects" in str(error)
        reason = "holds Python objects" if objects else "is not numpy.save's, is damaged or is cut off"
        raise UserError(f"{path}: cannot be read as numbers: the file {reason}") from None


_UNREADABLE = (ValueError, NotImplementedError, EOFError, RecursionError, MemoryError, csv.Error, TokenError)
"""Errors of readers. pyarrow's own are ValueErrors too, and quote raw bytes of the file. TokenError is from
numpy's reader, for the header of an array."""


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn all errors of reading into one line that names the file."""
    try:
        yield
    except LibraryMissing as error:
        raise UserError(f"{path}: {error}") from None
    except OSError as error:
        raise UserError(f"{path}: {error.strerror or printable(one_line(error, 500))}") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: is not UTF-8 text: save it as UTF-8") from None
    except _UNREADABLE as error:
        raise UserError(f"{path}: cannot be read as numbers: {printable(one_line(error, 500))}") from None


def _key_column(path: Path, key: str, width: int, names: Sequence[str] | None) -> int:
    """Return the number of the column that holds the keys, from 0."""
    found = _find(path, key, width, names)
    if len(found) != 1:
        raise UserError(f"{path}: --key {key} names {len(found)} columns, but must name one")
    return found[0]


def _read_csv(path: Path, key: str | None, choice: ColumnChoice, reports: bool) -> RecordFile:
    with path.open(newline="", encoding="utf-8-sig") as file:
        # Strict: a quote that is never closed would swallow all lines after it.
        lines = csv.reader(file, strict=True)
        first = next(filter(None, lines), None)
        if first is None:
            raise UserError(f"{path}: holds no records")
        width, number = len(first), lines.line_num
        stripped = tuple(cell.strip() for cell in first)
        chosen = (*(choice.keep or ()), *choice.drop, *([] if key is None else [key]))
        header = True if choice.header is None and not all(map(_RANGE.fullmatch, chosen)) else choice.header
        guessed = header is None
        if guessed and reports:
            raise UserError(f"{path}: pass --header or --no-header: a guess would depend on the first record")
        names = stripped if header else None
        place = None if key is None else _key_column(path, key, width, names)
        columns = choice.find(path, width, names, place)
        if header is None and _begins_with_names(path, number, stripped, columns):
            header, names = True, stripped
        own = None if names is None else tuple(names[i] for i in columns)
        rows: list[NDArray[np.float64]] = []
        keys: list[bytes | None] = []
        for line in lines if header else chain([first], lines):
            if not line:
                continue
            number = lines.line_num if rows or header else number
            if len(line) != width and (place is not None or not reports):
                raise UserError(
                    f"{path}, line {number}: has {len(line)} cells, but the first line has {width}"
                )
            cells = [line[i] if len(line) == width else "nan" for i in columns]
            try:
                rows.append(np.array(cells, dtype=np.float64))
            except ValueError:
                if not reports:
                    bad = next((i for i in columns if not is_number(line[i])), columns[0])
                    raise UserError(_describe_cell(path, number, bad, names, line[bad])) from None
                rows.append(np.full(len(columns), np.nan))
            if place is not None:
                keys.append(_message_key(line[place]))
    if not rows:
        raise UserError(f"{path}: holds no records")
    if reports and len(rows) > 1 and not np.isfinite(rows).all(axis=1).any():
        raise UserError(f"{path}: no line has numbers alone: check its cells, or leave columns out by --drop")
    return replace(
        RecordFile.of_array(np.stack(rows), str(path)),
        feature_names=own,
        row_keys=None if place is None else lambda: iter(keys),
        guessed_header=guessed and names is not None,
    )


def _begins_with_names(path: Path, number: int, cells: Sequence[str], columns: Sequence[int]) -> bool:
    """Return whether a first line has text and no number; an error if it has both."""
    text = [i for i in columns if cells[i] and not is_number(cells[i])]
    if text and any(is_number(cells[i]) for i in columns):
        raise UserError(
            f"{_cell(path, number, text[0], None)} is {cells[text[0]][:40]!r}, but other cells are numbers: "
            "pass --header if the line has names, or correct the cell and pass --no-header"
        )
    filled = cells[1:] if not cells[0] else cells
    if not text and len(cells) > 2 and list(filled) == [str(i) for i in range(len(filled))]:
        raise UserError(
            f"{path}, line {number}: 0, 1, 2, ... may be names or a record: pass --header or --no-header"
        )
    return bool(text)


def _cell(path: Path, line: int, column: int, names: Sequence[str] | None) -> str:
    name = "" if names is None else f" ({names[column]!r})"
    return f"{path}, line {line}: column {column + 1}{name}"


def _describe_cell(path: Path, line: int, column: int, names: Sequence[str] | None, cell: str) -> str:
    where = _cell(path, line, column, names)
    drop = f"leave the column out with --drop {column + 1}"
    if not cell.strip():
        return f"{where} is empty: fill it in, write nan for a record that counts as null, or {drop}"
    remedy = "separate cells by commas" if re.search("[;\t]", cell) else f"correct it, or {drop}"
    return f"{where} is {cell[:40]!r}, which is not a number: {remedy}"


def _open_tables(
    path: Path, tables: ParquetFiles | IpcFile, key: str | None, choice: ColumnChoice, reports_dim: int | None
) -> RecordFile:
    types = tables.pyarrow.types
    schema = list(tables.schema)
    names = [field.name for field in schema]
    place = None if key is None else _key_column(path, key, len(names), names)
    if place is not None:
        key_type = schema[place].type
        kind = key_type.value_type if types.is_dictionary(key_type) else key_type
        texts = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
        if not any(is_known(kind) for is_known in (*texts, types.is_integer)):
            raise UserError(
                f"{path}: column {names[place]!r} is of type {key_type}: keys are text or whole numbers"
            )
    columns = choice.find(path, len(names), names, place)
    fields = [schema[i] for i in columns]
    of = fields[0].type
    fixed = types.is_fixed_size_list(of)
    lists = len(fields) == 1 and (fixed or types.is_list(of) or types.is_large_list(of))
    for field in fields:
        if str(field.type.value_type if lists else field.type) not in NUMBER_TYPES:
            raise UserError(
                f"{path}: column {field.name!r} is of type {field.type}: expected numbers in every column, "
                "or one column of lists of numbers, all of one length; --columns or --drop leave columns out"
            )
    dim, strict = len(fields), reports_dim is None
    if lists:
        dim = of.list_size if fixed else reports_dim or length_of_lists(tables.batches(columns))
    if not tables.count or not dim:
        raise UserError(f"{path}: holds no records")

    def parts() -> Iterator[Numbers]:
        with _reading(path):
            for batch in tables.batches(columns):
                if batch.num_rows:
                    if lists:
                        yield rows_of_lists(path, batch.column(0), dim, strict)
                    else:
                        yield np.stack([each.to_numpy(zero_copy_only=False) for each in batch], axis=1)

    def keys() -> Iterator[bytes | None]:
        assert place is not None
        with _reading(path):
            for batch in tables.batches([place]):
                yield from map(_message_key, batch.column(0).to_pylist())

    return RecordFile(
        str(path),
        (tables.count, dim),
        lambda: np.concatenate(list(parts())),
        parts,
        None if lists else tuple(field.name for field in fields),
        row_keys=None if place is None else keys,
    )


def _message_key(value: str | bytes | int | None) -> bytes | None:
    if value is None or isinstance(value, bytes):
        return value or None
    # Spaces next to a comma are not part of a key.
    return str(value).strip().encode() or None
