"""Places of fields in nested records."""

from __future__ import annotations

from typing import Annotated, Any

from annotated_types import MinLen

Path = Annotated[tuple[Annotated[str, MinLen(1)], ...], MinLen(1)]

NOTHING = object()
"""Marker for a place below a value without fields; every feature refuses it."""


def path_of(value: Any) -> Any:
    """Return ``"user.age"`` as ``("user", "age")``; a list has the names themselves."""
    return tuple(value.split(".")) if isinstance(value, str) else value


def find(record: Any, path: Path) -> Any:
    """Return the value at a path; None where some part of it is absent or null."""
    for name in path:
        if record is None:
            return None
        if isinstance(record, dict):
            record = record.get(name)
        elif isinstance(record, list) and is_index(name):
            place = int(name)
            record = record[place] if place < len(record) else None
        else:
            return NOTHING
    return record


def is_index(name: str) -> bool:
    """Return whether a part of a path can be a place in a list."""
    return name.isascii() and name.isdigit() and len(name) < 10
