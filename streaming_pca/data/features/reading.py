"""Reader of records with named fields: from payloads to rows and users."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.arrow import find_pyarrow
from streaming_pca.data.features.arrow_records import ArrowRecords
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.records import (
    ARROW,
    AVRO,
    JSON,
    PROTOBUF,
    REGISTERED_BYTES,
    Node,
    Path,
    PublicSchema,
    SchemaFormat,
    Schemas,
    columns_of,
    find,
    is_index,
    path_tree,
)
from streaming_pca.data.features.row_map import RowMap, check_places
from streaming_pca.data.features.schemas import RegisteredRecords, SchemaRecords, schema_reader
from streaming_pca.data.payloads import MalformedPayload, nesting_depth, split_values
from streaming_pca.text import first_line

MOST_OBJECT_BYTES = 2**20
"""Longest text of one record."""

_MEDIA_TYPES = {"avro": AVRO, "protobuf": PROTOBUF}
_DEEPEST = 100  # most brackets within one another
_BLANK = b" \t\r\n"
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


_Getter = Callable[[Any], Any]


class _JsonObjects:
    """Decoder of JSON objects that skips other fields, and getters of the fields.

    ``decode`` raises for anything but one object, in UTF-8. The last of two members of one name counts.
    Getters return None for a field that is absent or null. Fields are read with any type: each feature
    refuses wrong ones itself.
    """

    def __init__(self, places: Sequence[Path]) -> None:
        root, _ = path_tree(places)
        try:
            record = _struct(root)
        except ValueError:
            # A name that no struct can have, with quotes for example.
            self.decode: Callable[[bytes], Any] = msgspec.json.Decoder(dict[str, Any]).decode
            self.getters: list[_Getter] = [partial(find, path=place) for place in places]
        else:
            self.decode = msgspec.json.Decoder(record).decode
            self.getters = [_getter(root, place) for place in places]


def _struct(node: Node) -> type[msgspec.Struct]:
    """Return a struct of optional fields f0, f1, ... for the names below a node."""
    fields: list[tuple[str, Any, Any]] = []
    renamed: dict[str, str] = {}
    for i, (name, below) in enumerate(node.below.items()):
        renamed[f"f{i}"] = name
        fields.append((f"f{i}", _struct(below) | None if _is_object(below) else Any, None))
    # Untracked by the garbage collector, which would list each of millions.
    return msgspec.defstruct("JsonRecord", fields, rename=renamed, gc=False)


def _is_object(node: Node) -> bool:
    """Return whether a field is an object, rather than a value or perhaps a list."""
    return bool(node.below) and not any(map(is_index, node.below))


def _getter(node: Node, place: Path) -> _Getter:
    attributes: list[str] = []
    for name in place:
        attributes.append(f"f{list(node.below).index(name)}")
        node = node.below[name]
        if not _is_object(node):
            break
    rest = place[len(attributes) :]
    if len(attributes) == 1 and not rest:
        return attrgetter(attributes[0])

    def get(record: Any) -> Any:
        for attribute in attributes:
            if record is None:
                return None
            record = getattr(record, attribute)
        return find(record, rest)

    return get


class FieldReader:
    """Reader of the fields that a map needs, and of the user's.

    ``user_field``: place of the user's name, a text or a whole number, where the message key is not the user.
    ``schema``: schema of Avro or Protobuf; neither can be read without one. ``registered``: schemas of a
    registry by their ids, all of one format, in place of ``schema``. Each record names its own.

    Raises ValueError with one line if the schema is invalid, cannot be bounded, or lacks a field that has no
    stand-in, and LibraryMissing.
    """

    def __init__(
        self,
        features: Sequence[Feature],
        user_field: Path | None = None,
        schema: PublicSchema | None = None,
        registered: Schemas | None = None,
    ) -> None:
        self.map = RowMap(features)
        self.user_field = user_field
        self._schema, self.schemas = schema, registered
        users = [] if user_field is None else [user_field]
        places = [*self.map.places, *users]
        check_places(places)
        self._json = _JsonObjects(places)
        self._readers: dict[str, Any] = {JSON: self._json}
        pyarrow = find_pyarrow()
        if pyarrow is not None:
            columns = [(columns_of(each.place, each.name), each.size or 0) for each in self.map.features]
            columns += [(columns_of(each, ".".join(each)), 0) for each in users]
            self._readers[ARROW] = ArrowRecords(pyarrow, columns)
        self.registered: RegisteredRecords | None = None
        if schema is not None:
            self._add(schema.format, schema_reader(schema, places))
        elif registered:
            self.registered = RegisteredRecords(registered, places)
            self._add(next(iter(registered.values())).format, self.registered)

    def _add(self, format: SchemaFormat, records: SchemaRecords | RegisteredRecords) -> None:
        """Add the reader of a schema; raise ValueError if every record of it would be null."""
        self._readers[_MEDIA_TYPES[format]], absent = records, records.absent
        for feature in self.map.features:
            if feature.place in absent and feature.missing is None:
                raise ValueError(
                    f"the schema has no value at {'.'.join(feature.place)!r}, "
                    f"and feature {feature.name!r} has no stand-in: set missing, or another path"
                )
        if self.user_field in absent:
            raise ValueError(
                f"the schema has no value at {'.'.join(self.user_field or ())!r}, the path in user_field"
            )

    @property
    def faults_of_schemas(self) -> list[str]:
        """Reasons why records of some of a registry's schemas are null, a line each."""
        if self.registered is None:
            return []
        lines = [
            f"schema {number} cannot be read, so its records are null: {fault}"
            for number, fault in self.registered.unreadable.items()
        ]
        for number, absent in self.registered.lacking.items():
            needed = [f.place for f in self.map.features if f.missing is None]
            lost = [place for place in absent if place in needed or place == self.user_field]
            if lost:
                names = ", ".join(repr(".".join(place)) for place in lost)
                lines.append(f"schema {number} has no value at {names}, so its records are null")
        return lines

    def __reduce__(self) -> Any:
        return FieldReader, (self.map.features, self.user_field, self._schema, self.schemas)

    def reads(self, content_type: str) -> bool:
        """Return whether payloads of a media type are records with fields."""
        return content_type in self._readers

    def records(
        self, content_type: str, value: bytes, most: int, faults: dict[int, str] | None = None
    ) -> list[Any]:
        """Return the records of a payload of a media type that it reads; None for records that are null.

        Each payload of Avro and Protobuf is one record, for any octets. ``faults`` receives the reason why
        a record is not a row of the map. An error of any kind is raised if the payload has no such
        structure, or more than ``most`` records.
        """
        if content_type == JSON:
            found = self.json_records(value, most, faults)
        elif content_type == ARROW:
            found = self._readers[ARROW].read(value, most)
        else:
            try:
                if len(value) > MOST_OBJECT_BYTES:
                    raise MalformedPayload(f"it is longer than {MOST_OBJECT_BYTES} octets")
                found = [self._readers[content_type].decode(value)]
            except Exception as error:
                # An error of a decoder must not end the worker, nor disturb other records.
                found = [None]
                if faults is not None:
                    faults[0] = f"it is not a record of the schema: {first_line(error)}"
        if faults is not None:
            read = [(i, record) for i, record in enumerate(found) if record is not None]
            of_rows = {i: self.map.fault(self._values(record, content_type)) for i, record in read}
            faults |= {i: fault for i, fault in of_rows.items() if fault}
        return found

    def _values(self, record: Any, content_type: str = JSON) -> list[Any]:
        return [get(record) for get in self._readers[content_type].getters[: len(self.map.features)]]

    def many_records(
        self, content_type: str, values: Sequence[bytes | memoryview | None], most: int, limit: float
    ) -> tuple[list[Any], list[int]]:
        """Return the records of all payloads in order, and the number of each one's; 0 for a null payload.

        A payload has at most ``limit`` bytes.
        """
        records: list[Any] = []
        counts: list[int] = []
        decode, is_json = self._decode, content_type == JSON
        for value in values:
            found: list[Any] = []
            if value is not None and len(value) <= limit:
                payload = bytes(value)
                try:
                    if is_json and len(payload) <= MOST_OBJECT_BYTES:
                        # Nearly all payloads are one object.
                        records.append(decode(payload))
                        counts.append(1)
                        continue
                except Exception:
                    found = []
                try:
                    found = self.records(content_type, payload, most)
                except Exception:
                    found = []
            records += found
            counts.append(len(found))
        return records, counts

    def json_records(self, value: bytes, most: int, faults: dict[int, str] | None = None) -> list[Any]:
        """Return the records of a JSON object, or of a list of them; None for other values.

        In a list no record's text disturbs another's: texts are separated before any is parsed. Errors are
        those of :meth:`records`; ``faults`` receives the reasons of texts that are not objects.
        """
        if value[:1] == b"\0":
            value = value[REGISTERED_BYTES:]
        text = value.removeprefix(_BYTE_ORDER_MARK).strip(_BLANK)
        if text[:1] != b"[":
            texts = [text]
        else:
            texts, end = split_values(text[1:], most)
            if text[1:][end:] != b"]":
                raise MalformedPayload("more follows its list of objects")
        return [self._json_record(each, i, faults) for i, each in enumerate(texts)]

    def _decode(self, text: bytes) -> Any:
        """Decode a JSON object, or raise an error of any kind.

        The decoder ends where the interpreter's stack does, which depends on the caller.
        """
        if text.count(b"[") + text.count(b"{") > _DEEPEST and nesting_depth(text) > _DEEPEST:
            raise MalformedPayload(f"it nests more than {_DEEPEST} levels deep")
        return self._json.decode(text)

    def _json_record(self, text: bytes, place: int = 0, faults: dict[int, str] | None = None) -> Any:
        fault = f"its text is longer than {MOST_OBJECT_BYTES} octets"
        if len(text) <= MOST_OBJECT_BYTES:
            try:
                return self._decode(text)
            except Exception as error:
                # An error of a decoder must not end the worker, nor disturb other records.
                fault = f"it is not a JSON object with these fields: {error}"
        if faults is not None:
            faults[place] = fault
        return None

    def json_values(self, text: bytes) -> list[Any] | None:
        """Return the values of a JSON object's fields; None for any other text."""
        record = self._json_record(text)
        return None if record is None else self._values(record)

    def rows(self, records: Sequence[Any], content_type: str = JSON) -> NDArray[np.float64]:
        """Return a row for each record (n, d); NaNs for None, and where the map refuses it."""
        has_null = any(record is None for record in records)
        there = [record for record in records if record is not None] if has_null else records
        getters = self._readers[content_type].getters[: len(self.map.features)]
        found = self.map.rows([list(map(get, there)) for get in getters], len(there))
        if not has_null:
            return found
        rows = np.full((len(records), self.map.dim), np.nan)
        rows[[record is not None for record in records]] = found
        return rows

    def users(self, records: Sequence[Any], content_type: str = JSON) -> list[bytes | None]:
        """Return the user of each record; None for a record without one."""
        if self.user_field is None:
            raise ValueError("no field names the user")
        get = self._readers[content_type].getters[-1]
        return [None if record is None else _user(get(record)) for record in records]


def _user(value: Any) -> bytes | None:
    """Return a user's name as bytes; None unless it is a text that is not empty, or a whole number."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogatepass") or None
    if isinstance(value, int) and not isinstance(value, bool):
        return b"%d" % value if abs(value) < 2**64 else None
    return None
