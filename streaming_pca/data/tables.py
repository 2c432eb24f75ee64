"""Tables of numbers in Parquet and Arrow files, read in parts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.arrow import need_pyarrow
from streaming_pca.errors import UserError

Numbers = NDArray[Any]
BLOCK_ENTRIES = 2**16
"""Numbers of a Parquet file that are decoded together; a column of lists counts as one number a row."""


class ParquetFiles:
    """Parquet file, or folder of such files of one schema; in the order of their names."""

    def __init__(self, path: Path, pyarrow: Any) -> None:
        self.pyarrow = pyarrow
        names = _names_in(path) if path.is_dir() else [Path()]
        self._files = [import_module("pyarrow.parquet").ParquetFile(path / each) for each in names]
        self.schema = self._files[0].schema_arrow
        for each, file in zip(names, self._files, strict=True):
            if not file.schema_arrow.equals(self.schema):
                raise UserError(f"{path}: {each} has other columns than {names[0]}, or other types")
        self.count = sum(int(file.metadata.num_rows) for file in self._files)

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        names = self.schema.names
        # Columns chosen by name are the only ones read. With dots, a name may mean several columns.
        plain = len(set(names)) == len(names) and not any("." in name for name in names)
        wanted = [names[i] for i in columns] if plain else None
        for file in self._files:
            rows = max(1, BLOCK_ENTRIES // file.metadata.num_columns)
            for group in range(file.num_row_groups):
                # One group at a time: asked for all of them, pyarrow reads most of the file ahead.
                for batch in file.iter_batches(rows, row_groups=[group], columns=wanted, use_threads=False):
                    yield batch.select(columns if wanted is None else wanted)


def _names_in(folder: Path) -> list[Path]:
    """Return the files' names in order; UserError without any, or for a folder that names a value."""
    names = sorted(each.relative_to(folder) for each in folder.rglob("*.parquet") if each.is_file())
    names = [each for each in names if not any(part.startswith(("_", ".")) for part in each.parts)]
    if not names:
        raise UserError(f"{folder}: is a folder without .parquet files")
    for each in names:
        if found := [part for part in each.parts[:-1] if "=" in part]:
            raise UserError(
                f"{folder}: the name of its folder {found[0]!r} is a column's value, which the files lack: "
                "write it into the files, or send each folder by itself"
            )
    return names


class IpcFile:
    """Arrow IPC stream or file, read by record batches."""

    def __init__(self, path: Path, pyarrow: Any) -> None:
        self.pyarrow, self._path = pyarrow, path
        with path.open("rb") as file:
            self._is_file = file.read(6) == b"ARROW1"
        with self._opened() as reader:
            self.schema = reader.schema
        self.count = sum(batch.num_rows for batch in self._all())

    @contextmanager
    def _opened(self) -> Iterator[Any]:
        ipc = self.pyarrow.ipc
        opened = ipc.open_file if self._is_file else ipc.open_stream
        with self.pyarrow.memory_map(str(self._path)) as source, opened(source) as reader:
            yield reader

    def batches(self, columns: Sequence[int]) -> Iterator[Any]:
        return (batch.select(columns) for batch in self._all())

    def _all(self) -> Iterator[Any]:
        with self._opened() as reader:
            if self._is_file:
                yield from map(reader.get_batch, range(reader.num_record_batches))
            else:
                yield from reader


def schema_of_file(path: Path) -> tuple[Any, Any]:
    """Return a file's schema, and pyarrow; reads no record. LibraryMissing, OSError or ValueError."""
    pyarrow = need_pyarrow(str(path))
    if path.suffix == ".parquet":
        return import_module("pyarrow.parquet").read_schema(path), pyarrow
    with pyarrow.memory_map(str(path)) as source:
        try:
            return pyarrow.ipc.open_file(source).schema, pyarrow
        except pyarrow.ArrowInvalid:
            source.seek(0)
            return pyarrow.ipc.open_stream(source).schema, pyarrow


def length_of_lists(batches: Iterable[Any]) -> int:
    """Return the length of the first list; 0 if all are null."""
    return next((len(each) for batch in batches for each in batch.column(0) if each.is_valid), 0)


def rows_of_lists(path: Path, column: Any, dim: int, strict: bool) -> Numbers:
    """Return lists as rows, NaN for a null; for another length NaN too, or UserError if ``strict``."""
    fits = column.is_valid().to_numpy(zero_copy_only=False)
    if hasattr(column, "offsets"):
        lengths = np.diff(column.offsets.to_numpy(zero_copy_only=False))
        wrong = (lengths != dim) & fits
        if strict and wrong.any():
            raise UserError(f"{path}: has a list of {lengths[wrong][0]} numbers, but the first has {dim}")
        fits = fits & ~wrong
    kept = column if fits.all() else column.take(np.flatnonzero(fits))
    found: Numbers = kept.flatten().to_numpy(zero_copy_only=False).reshape(-1, dim)
    if kept is column:
        return found
    rows = np.full((len(column), dim), np.nan)
    rows[fits] = found
    return rows
