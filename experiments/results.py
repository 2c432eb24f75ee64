"""Rows of an experiment in a CSV file, written as they arrive."""

from __future__ import annotations

import csv
import dataclasses
import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from experiments.experiment import KEY_DIGITS, Row

__all__ = ["ExperimentError", "ResultFile"]

_COLUMNS = [field.name for field in dataclasses.fields(Row)]


class ExperimentError(Exception):
    """Mistake that a user can correct, with a one-line message."""


class ResultFile:
    """Rows of one experiment.

    Parameters
    ----------
    path : Path
        The file is created if missing.

    Raises
    ------
    ExperimentError
        If the file cannot be written, or contains anything else.
    """

    def __init__(self, path: Path) -> None:
        self.path, self._lock = path, threading.Lock()
        with self._writing():
            path.parent.mkdir(parents=True, exist_ok=True)
            self.rows = list(_read(path)) if path.exists() else []
        self.replace(self.rows)

    def append(self, rows: Iterable[Row]) -> None:
        """Append rows immediately, so that they survive an interrupted run."""
        with self._lock, self._writing(), self.path.open("a", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            for row in rows:
                writer.writerow(_cells(row))
                self.rows.append(row)

    def replace(self, rows: Iterable[Row]) -> None:
        """Replace the file by these rows, atomically."""
        kept = list(rows)
        new = self.path.with_name(f"{self.path.name}.new")
        with self._writing():
            with new.open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(_COLUMNS)
                writer.writerows(_cells(row) for row in kept)
            os.replace(new, self.path)
        self.rows = kept

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise ExperimentError(f"--out: {self.path}: {error.strerror or error}") from None


def _cells(row: Row) -> list[object]:
    return ["" if value is None else value for value in dataclasses.astuple(row)]


def _read(path: Path) -> Iterable[Row]:
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file)
        if reader.fieldnames is not None and reader.fieldnames != _COLUMNS:
            raise ExperimentError(f"{path} is not an experiment's file: move it away, or name another --out")
        for number, cells in enumerate(reader, start=2):
            try:
                yield _row(cells)
            except (TypeError, ValueError):
                # Ignore an incomplete last line: the run was killed while writing it.
                if any(reader):
                    raise ExperimentError(f"{path}, line {number}: not an experiment's row") from None


def _row(cells: dict[str, str]) -> Row:
    def number(name: str) -> float | None:
        return float(cells[name]) if cells[name] else None

    if len(cells["key"]) != KEY_DIGITS:
        raise ValueError("torn")
    return Row(
        panel=cells["panel"],
        x=float(cells["x"]),
        method=cells["method"],
        seed=int(cells["seed"]),
        error=number("error"),
        seconds=number("seconds"),
        learnt=number("learnt"),
        batches=int(cells["batches"]) if cells["batches"] else None,
        key=cells["key"],
        note=cells["note"] or "",
        paper=number("paper"),
    )
