"""Schemas of Avro records: their types, and how few bytes a value of each can take."""

from __future__ import annotations

import json
import math
from importlib import import_module
from typing import Any

from streaming_pca.data.features.records import library
from streaming_pca.text import first_line

_MOST_BYTES = 2**22
_DEEPEST = 64  # most types within one another, where a definition is written
_FEWEST = {"null": 0, "boolean": 1, "int": 1, "long": 1, "float": 4, "double": 8, "bytes": 1, "string": 1}
_WIDTHS = {"null": 0, "boolean": 1, "float": 4, "double": 8}
_NAMED = ("record", "error", "enum", "fixed")


def type_name(type_: Any) -> str:
    """Return the name of a type, or of its definition: "union", "array", "record", "long"."""
    if isinstance(type_, list):
        return "union"
    return str(type_["type"]) if isinstance(type_, dict) else str(type_)


class AvroSchema:
    """Schema, Avro's JSON, that does not let few bytes represent many values.

    Names in its ``root`` are full names. Raises LibraryMissing, or ValueError in one line if it is not a
    schema, or if its payloads cannot be bounded: an array of items without bytes, whose number would have no
    limit, or a record that always contains itself.
    """

    def __init__(self, data: bytes) -> None:
        fastavro = library("fastavro", "avro", lambda: import_module("fastavro.schema"))
        if len(data) > _MOST_BYTES:
            raise ValueError(f"the schema is longer than {_MOST_BYTES} octets")
        self._named: dict[str, Any] = {}
        try:
            found = json.loads(data)
            if isinstance(found, dict):
                # With this mark the library would skip its checks.
                found.pop("__fastavro_parsed", None)
            self.root: Any = fastavro.parse_schema(found, named_schemas=self._named)
            self._fewest = dict.fromkeys(self._named, math.inf)
            self._measure()
            self._widths: dict[str, int | None] = {}
            self._check(self.root)
        except RecursionError:
            raise ValueError("the schema nests too deeply") from None
        except _Unbounded as error:
            raise ValueError(first_line(error)) from None
        except Exception as error:
            # Of many kinds: from JSON, from the library, and from its own faults on schemas that it accepts.
            raise ValueError(f"not an Avro schema: {type(error).__name__}: {first_line(error)}") from None

    def definition(self, type_: Any) -> Any:
        """Return the definition that a type names, or the type itself."""
        return self._named.get(type_, type_) if isinstance(type_, str) else type_

    def _measure(self) -> None:
        """Find the fewest bytes of all definitions, which may name one another in a circle."""
        changed = True
        while changed:
            changed = False
            for name, type_ in reversed(self._named.items()):
                fewest = self._of_definition(type_)
                if fewest < self._fewest[name]:
                    self._fewest[name], changed = fewest, True

    def fewest(self, type_: Any) -> float:
        """Return the fewest bytes of a value; infinity if it can have no value."""
        name = type_["name"] if type_name(type_) in _NAMED else type_
        if isinstance(name, str) and name in self._fewest:
            return self._fewest[name]
        return self._of_definition(type_)

    def _of_definition(self, type_: Any) -> float:
        kind = type_name(type_)
        if kind == "union":
            return 1 + min(map(self.fewest, type_), default=math.inf)
        if kind in ("record", "error"):
            return sum(self.fewest(field["type"]) for field in type_["fields"])
        if kind == "fixed":
            return int(type_["size"])
        return 1 if kind in ("array", "map", "enum") else _FEWEST[kind]

    def width(self, type_: Any) -> int | None:
        """Return the bytes of every value of a type; None if they differ."""
        type_ = self.definition(type_)
        kind = type_name(type_)
        if kind == "fixed":
            return int(type_["size"])
        if kind not in ("record", "error"):
            return _WIDTHS.get(kind)
        name = type_["name"]
        if name not in self._widths:
            widths = [self.width(field["type"]) for field in type_["fields"]]
            self._widths[name] = None if None in widths else sum(width or 0 for width in widths)
        return self._widths[name]

    def _check(self, type_: Any, deep: int = 0) -> None:
        """Check all types within this one; definitions are within the place of their first use."""
        if deep > _DEEPEST:
            raise RecursionError
        kind = type_name(type_)
        if self.fewest(type_) == math.inf:
            raise _Unbounded(f"{_shown(type_)} of the schema cannot have a value")
        if kind == "array" and self.fewest(type_["items"]) == 0:
            raise _Unbounded(
                f"an array of {_shown(type_['items'])}, whose values have no bytes: its length has no limit"
            )
        if kind == "fixed" and int(type_["size"]) < 0:
            raise _Unbounded("a fixed value has a negative size")
        inner: list[Any] = type_ if kind == "union" else []
        if kind in ("record", "error"):
            inner = [field["type"] for field in type_["fields"]]
        elif kind in ("array", "map"):
            inner = [type_["items" if kind == "array" else "values"]]
        for each in inner:
            self._check(each, deep + 1)


class _Unbounded(Exception):
    pass


def _shown(type_: Any) -> str:
    return str(type_["name"]) if isinstance(type_, dict) and "name" in type_ else type_name(type_)
