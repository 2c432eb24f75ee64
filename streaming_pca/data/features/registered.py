"""Schemas of a registry, each joined with the schemas it refers to."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass
from typing import Any

from streaming_pca.data.features.records import PublicSchema, SchemaFormat

_PRIMITIVE = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
_NAMED = ("record", "error", "enum", "fixed")
_NO_SPACE = "_"  # namespace of names without one: they could not be used within another one
_ROOT = "registered.proto"
_SHOWN = 200  # characters of a name in a message


@dataclass(frozen=True)
class Registered:
    """Schema as it is registered."""

    text: str
    """Avro's JSON, or a Protobuf file's descriptor in base64."""
    references: tuple[tuple[str, Registered], ...] = ()
    """Other schemas by the names under which this one uses them."""


def public_schema(format: SchemaFormat, registered: Registered, message: str | None) -> PublicSchema:
    """Return a registered schema, joined with those it refers to. ValueError if they do not fit."""
    if format == "protobuf":
        return PublicSchema(format, _file_set(registered), message)
    data = registered.text
    if registered.references:
        try:
            data = json.dumps(_Avro().whole(registered))
        except RecursionError:
            raise ValueError("the schema nests too deeply") from None
        except (KeyError, TypeError, AttributeError, json.JSONDecodeError):
            raise ValueError("it is not an Avro schema") from None
    return PublicSchema(format, data.encode())


class _Avro:
    """Maker of one schema: each definition is at the first use of its name."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._definitions: dict[str, dict[str, Any]] = {}
        self._placed: set[str] = set()

    def whole(self, registered: Registered) -> Any:
        for _, each in _in_order(registered):
            root = self._take(json.loads(each.text), "")
        return self._place(root)

    def _take(self, type_: Any, space: str) -> Any:
        """Keep the definitions within a type; return it with their full names in their places."""
        if isinstance(type_, str):
            return type_ if type_ in _PRIMITIVE else self._resolved(type_, space)
        if isinstance(type_, list):
            return [self._take(each, space) for each in type_]
        kind = type_["type"]
        if kind in ("array", "map"):
            key = "items" if kind == "array" else "values"
            return type_ | {key: self._take(type_[key], space)}
        if kind in _PRIMITIVE:
            return type_
        if kind not in _NAMED:
            return self._take(kind, space)
        name, space = str(type_["name"]), str(type_.get("namespace", space) or "")
        full = _full(name, space)
        space = "" if full.startswith(f"{_NO_SPACE}.") else full.rpartition(".")[0]
        self._names.add(full)
        made = {key: value for key, value in type_.items() if key != "namespace"} | {"name": full}
        if "fields" in type_:
            made["fields"] = [each | {"type": self._take(each["type"], space)} for each in type_["fields"]]
        if self._definitions.setdefault(full, made) != made:
            raise ValueError(f"two of the schemas define {full[:_SHOWN]!r}")
        return full

    def _resolved(self, name: str, space: str) -> str:
        """Return the full name of a name within a namespace."""
        full = _full(name, space)
        # Java's library looks for names outside of all namespaces too.
        outside = _full(name, "")
        return outside if full not in self._names and outside in self._names else full

    def _place(self, type_: Any) -> Any:
        """Put definitions back, each where its name is used first."""
        if isinstance(type_, str):
            if type_ not in self._definitions or type_ in self._placed:
                return type_
            self._placed.add(type_)
            made = self._definitions[type_]
            if "fields" in made:
                made = made | {
                    "fields": [each | {"type": self._place(each["type"])} for each in made["fields"]]
                }
            return made
        if isinstance(type_, list):
            return [self._place(each) for each in type_]
        key = {"array": "items", "map": "values"}.get(type_["type"])
        return type_ if key is None else type_ | {key: self._place(type_[key])}


def _full(name: str, space: str) -> str:
    return name if "." in name else f"{space or _NO_SPACE}.{name}"


def _in_order(registered: Registered) -> list[tuple[str, Registered]]:
    """Return names and schemas, each once, and each after the schemas it refers to."""
    found: list[tuple[str, Registered]] = []
    seen: set[tuple[str, int]] = set()

    def walk(name: str, each: Registered) -> None:
        if (name, id(each)) not in seen:
            seen.add((name, id(each)))
            for of, other in each.references:
                walk(of, other)
            found.append((name, each))

    walk("", registered)
    return found


def _file_set(registered: Registered) -> bytes:
    """Return the files as a set of descriptors, the registered one last.

    Names of files in the registry are the names in others' imports, not their own.
    """
    files: dict[str, bytes] = {}
    for name, each in _in_order(registered):
        data = _descriptor(each.text)
        if files.setdefault(name or _ROOT, data) != data:
            raise ValueError(f"two of the schemas have the name {(name or _ROOT)[:_SHOWN]!r}")
    # If a field occurs twice, the last one counts.
    return b"".join(_sized(data + _sized(name.encode())) for name, data in files.items())


def _descriptor(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ValueError(
            "the registry has only the text of a .proto file, which is not read here: set stream.schema_file "
            "to what `protoc --include_imports --descriptor_set_out` writes"
        ) from None


def _sized(data: bytes) -> bytes:
    """Return the first field of a message, as Protobuf writes texts and messages."""
    size, head = len(data), bytearray(b"\x0a")
    while size > 127:
        head.append(size & 127 | 128)
        size >>= 7
    head.append(size)
    return bytes(head) + data
