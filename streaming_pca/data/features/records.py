"""Records with named fields: places of fields, formats, schemas, and the contract of their readers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal, NamedTuple

from annotated_types import MinLen

from streaming_pca.errors import LibraryMissing
from streaming_pca.text import install_command

JSON: Final = "application/json"
ARROW: Final = "application/vnd.apache.arrow.stream"
AVRO: Final = "application/avro"
PROTOBUF: Final = "application/x-protobuf"

REGISTERED_BYTES: Final = 5
"""Bytes of Confluent's wire format before a payload: a zero, and the schema's number."""

SchemaFormat = Literal["avro", "protobuf"]
SCHEMA_FORMATS: Final[dict[str, SchemaFormat]] = {"avro": "avro", "protobuf": "protobuf"}
"""Formats whose payloads cannot be read without a schema."""


def library(name: str, extra: str, load: Callable[[], Any]) -> Any:
    """Return the result of importing a module of an extra, or raise :class:`LibraryMissing`."""
    try:
        return load()
    except ImportError:
        raise LibraryMissing(f'stream.format = "{extra}" needs {name}: {install_command(extra)}') from None


@dataclass(frozen=True)
class PublicSchema:
    """Schema of the payloads of one stream."""

    format: SchemaFormat
    data: bytes = field(repr=False)
    """Avro's JSON, or a set of file descriptors."""
    message: str | None = None
    """Full name of a Protobuf message."""

    @property
    def digest(self) -> str:
        """SHA-256 of the schema, its name in a stream's contract."""
        return hashlib.sha256(self.data).hexdigest()


Schemas = Mapping[int, PublicSchema]
"""Schemas of one subject by their ids, which are a registry's own and never change."""


class Subject(NamedTuple):
    """Name of a schema in a registry; all of its versions share it.

    ``message`` is the full name of the records' message, of Protobuf; None for the first of its file.
    """

    name: str
    format: SchemaFormat
    message: str | None = None


Path = Annotated[tuple[Annotated[str, MinLen(1)], ...], MinLen(1)]

Columns = Sequence[tuple[str, tuple[str, ...]]]
"""Columns that may hold a field, in order, each with the field's path below its values."""

NOTHING = object()
"""Marker for a place below a value without fields, or a list too long; every feature refuses it."""


def split_path(value: Any) -> Any:
    """Return ``"user.age"`` as ``("user", "age")``; a list has the names themselves."""
    return tuple(value.split(".")) if isinstance(value, str) else value


def columns_of(place: Path, name: str) -> Columns:
    """Return the columns for a field at a place: named by all of it, by its beginning, and by the feature."""
    return [(".".join(place), ()), (place[0], place[1:]), (name, ())]


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


class Node:
    """Part of a record that is read: a value, at ``slot`` among all values, or the parts below it."""

    def __init__(self) -> None:
        self.slot: int | None = None
        self.below: dict[str, Node] = {}

    @property
    def slots(self) -> list[int]:
        own = [] if self.slot is None else [self.slot]
        return own + [slot for each in self.below.values() for slot in each.slots]


def path_tree(places: Iterable[Path]) -> tuple[Node, list[int]]:
    """Return the tree of some places, and the slot of each one's value; equal places share a slot."""
    root, slots, count = Node(), [], 0
    for place in places:
        node = root
        for name in place:
            node = node.below.setdefault(name, Node())
        if node.slot is None:
            node.slot, count = count, count + 1
        slots.append(node.slot)
    return root, slots
