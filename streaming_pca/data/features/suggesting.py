"""Features suggested by a schema: never by values, which are records."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from streaming_pca.data.features.protobuf_records import WRAPPERS

_DEEPEST = 8
_NUMBERS = ("int", "long", "float", "double")
_NO_BOUNDS = "bounds = []  # least and largest"
_NUMBER_TEXTS = "parse = true  # instead of categories, if the texts are numbers"
_TIME_TEXTS = 'parts = ["hour", "weekday"]  # instead of categories, if the texts are times of ISO 8601'


@dataclass(frozen=True)
class Suggestion:
    """Field of a schema, as a feature."""

    path: tuple[str, ...]
    kind: str
    """{"number", "boolean", "category", "time", "date", "list", "text", "other"}: texts and others become no
    feature by themselves."""
    words: tuple[str, ...] = ()
    """Vocabulary that the schema declares."""
    bounds: tuple[float, float] | None = None
    """Least and largest value that the schema declares."""
    size: int | None = None
    """Length of a list, where the schema declares it."""
    optional: bool = False
    """True if the field may be absent or null."""


def fields_of_json_schema(schema: Mapping[str, Any]) -> list[Suggestion]:
    """Return the fields of a JSON Schema of objects, nested ones too; ValueError for another schema."""
    root = _resolved(schema, schema)
    if not isinstance(root.get("properties"), Mapping):
        raise ValueError("it is not a JSON Schema of objects: it has no properties")
    return list(_json_fields(root, schema, (), False, (root,)))


def _json_fields(
    node: Mapping[str, Any],
    root: Mapping[str, Any],
    path: tuple[str, ...],
    optional: bool,
    above: tuple[Mapping[str, Any], ...],
) -> Iterator[Suggestion]:
    needed = node.get("required", [])
    for name, raw in node["properties"].items():
        own = _resolved(raw, root)
        here, lacks = (*path, name), optional or name not in needed
        types = own.get("type", [])
        types = [types] if isinstance(types, str) else list(types)
        for choice in (*own.get("anyOf", ()), *own.get("oneOf", ())):
            option = _resolved(choice, root)
            types += [option["type"]] if isinstance(option.get("type"), str) else []
            own = own if option.get("type") == "null" else {**own, **option}
        lacks |= "null" in types
        kind = next((each for each in types if each != "null"), None)
        if "enum" in own:
            words = [each for each in own["enum"] if each is not None]
            fits = all(isinstance(each, (str, int)) for each in words)
            # A number and its text are one word.
            known = tuple(dict.fromkeys(map(_word, words))) if fits else ()
            yield Suggestion(here, "category" if known else "other", words=known, optional=lacks)
        elif kind == "object" and isinstance(own.get("properties"), Mapping) and _may_enter(own, above):
            yield from _json_fields(own, root, here, lacks, (*above, own))
        elif kind in ("number", "integer"):
            limits = own.get("minimum"), own.get("maximum")
            yield Suggestion(here, "number", bounds=_bounds(*limits), optional=lacks)
        elif kind == "boolean":
            yield Suggestion(here, "boolean", optional=lacks)
        elif kind == "string" and own.get("format") in ("date-time", "date"):
            yield Suggestion(here, "time" if own["format"] == "date-time" else "date", optional=lacks)
        elif kind == "array" and _resolved(own.get("items", {}), root).get("type") in ("number", "integer"):
            size = own.get("maxItems") if own.get("maxItems") == own.get("minItems") else None
            yield Suggestion(here, "list", size=size, optional=lacks)
        else:
            yield Suggestion(here, "text" if kind == "string" else "other", optional=lacks)


def _may_enter(own: Mapping[str, Any], above: tuple[Mapping[str, Any], ...]) -> bool:
    """Return whether the fields of an object become features: not within itself, nor very deep."""
    return own not in above and len(above) < _DEEPEST


def _resolved(node: Any, root: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a schema, or the part of the same document that it refers to."""
    for _ in range(_DEEPEST):
        reference = node.get("$ref") if isinstance(node, Mapping) else None
        if not isinstance(reference, str) or not reference.startswith("#/"):
            break
        node = root
        for part in reference[2:].split("/"):
            name = part.replace("~1", "/").replace("~0", "~")
            node = node.get(name, {}) if isinstance(node, Mapping) else {}
    return node if isinstance(node, Mapping) else {}


_AVRO_TIMES = {"date", *(f"{local}timestamp-{u}s" for local in ("", "local-") for u in ("milli", "micro"))}


def fields_of_avro(schema: Any) -> list[Suggestion]:
    """Return the fields of an Avro schema of records, nested ones too; ValueError for another schema."""
    if not isinstance(schema, Mapping) or schema.get("type") != "record":
        raise ValueError("it is not an Avro schema of records")
    return list(_avro_fields(schema, {}, (), False, (schema,)))


def _avro_fields(
    record: Mapping[str, Any],
    named: dict[str, Any],
    path: tuple[str, ...],
    optional: bool,
    above: tuple[Mapping[str, Any], ...],
) -> Iterator[Suggestion]:
    named[str(record.get("name"))] = record
    for each in record.get("fields", ()):
        own, here = each["type"], (*path, str(each["name"]))
        branches = own if isinstance(own, list) else [own]
        lacks = optional or "null" in branches
        own = next((branch for branch in branches if branch != "null"), "null")
        own = named.get(own, own) if isinstance(own, str) else own
        kind = own.get("type") if isinstance(own, Mapping) else own
        logical = own.get("logicalType") if isinstance(own, Mapping) else None
        if isinstance(own, Mapping) and kind in ("record", "enum"):
            named[str(own.get("name"))] = own
        if logical in _AVRO_TIMES:
            # A decoder makes moments of them: the unit is the schema's.
            yield Suggestion(here, "date" if logical == "date" else "time", optional=lacks)
        elif kind in _NUMBERS or logical == "decimal":
            yield Suggestion(here, "number", optional=lacks)
        elif kind == "boolean":
            yield Suggestion(here, "boolean", optional=lacks)
        elif kind == "enum" and isinstance(own, Mapping):
            yield Suggestion(here, "category", words=tuple(map(str, own.get("symbols", ()))), optional=lacks)
        elif kind == "record" and isinstance(own, Mapping) and _may_enter(own, above):
            yield from _avro_fields(own, named, here, lacks, (*above, own))
        elif kind == "array" and isinstance(own, Mapping) and own.get("items") in _NUMBERS:
            yield Suggestion(here, "list", optional=lacks)
        else:
            yield Suggestion(here, "text" if kind == "string" else "other", optional=lacks)


def fields_of_arrow(schema: Any, pyarrow: Any) -> list[Suggestion]:
    """Return the fields of an Arrow schema, with those of structs."""
    return [each for own in schema for each in _arrow_fields(own, pyarrow.types, ())]


def _arrow_fields(own: Any, types: Any, path: tuple[str, ...]) -> Iterator[Suggestion]:
    here, kind, lacks = (*path, own.name), own.type, own.nullable
    if types.is_struct(kind) and len(here) < _DEEPEST:
        for inner in kind:
            yield from _arrow_fields(inner, types, here)
    elif types.is_boolean(kind):
        yield Suggestion(here, "boolean", optional=lacks)
    elif types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind):
        yield Suggestion(here, "number", optional=lacks)
    elif types.is_timestamp(kind) or types.is_date(kind):
        yield Suggestion(here, "date" if types.is_date(kind) else "time", optional=lacks)
    elif types.is_fixed_size_list(kind):
        yield Suggestion(here, "list", size=kind.list_size, optional=lacks)
    elif types.is_list(kind) or types.is_large_list(kind):
        yield Suggestion(here, "list", optional=lacks)
    else:
        is_text = types.is_string(kind) or types.is_large_string(kind) or types.is_dictionary(kind)
        yield Suggestion(here, "text" if is_text else "other", optional=lacks)


_PROTOBUF_NUMBERS = {1, 2, 3, 4, 5, 6, 7, 13, 15, 16, 17, 18}
_PROTOBUF_KINDS = {**dict.fromkeys(_PROTOBUF_NUMBERS, "number"), 8: "boolean", 9: "text", 12: "other"}
_PROTOBUF_ENUM, _PROTOBUF_MESSAGE = 14, 11
_PROTOBUF_TIME = "google.protobuf.Timestamp"


def fields_of_protobuf(message: Any) -> list[Suggestion]:
    """Return the fields of a Protobuf message, with those of the messages in it."""
    return list(_protobuf_fields(message, (), False, (message.full_name,)))


def _protobuf_fields(
    message: Any, path: tuple[str, ...], optional: bool, above: tuple[str, ...]
) -> Iterator[Suggestion]:
    for own in message.fields:
        here = (*path, str(own.name))
        # A field without presence is never missing.
        lacks = optional or (own.has_presence and not own.is_required)
        inner = own.message_type if own.type == _PROTOBUF_MESSAGE else None
        kind = _PROTOBUF_KINDS.get(own.type, "other")
        if own.is_repeated:
            yield Suggestion(here, "list" if kind == "number" else "other", optional=optional)
        elif own.type == _PROTOBUF_ENUM:
            words = tuple(dict.fromkeys(str(each.name) for each in own.enum_type.values))
            yield Suggestion(here, "category", words=words, optional=lacks)
        elif inner is None:
            yield Suggestion(here, kind, optional=lacks)
        elif inner.full_name == _PROTOBUF_TIME:
            yield Suggestion(here, "time", optional=lacks)
        elif inner.full_name in WRAPPERS:
            value = inner.fields_by_name["value"]
            yield Suggestion(here, _PROTOBUF_KINDS.get(value.type, "other"), optional=lacks)
        elif inner.full_name not in above and len(above) < _DEEPEST:
            yield from _protobuf_fields(inner, here, lacks, (*above, inner.full_name))
        else:
            yield Suggestion(here, "other", optional=lacks)


def features_toml(suggestions: Sequence[Suggestion]) -> str:
    """Return the features as TOML, with a comment wherever a person has to decide.

    Empty lists, which settings refuse, are placeholders for what only a person knows.
    """
    return "\n".join(_table(each) for each in suggestions)


def _table(each: Suggestion) -> str:
    dotted = ".".join(each.path)
    lines = [f"name = {_text(dotted)}"]
    if any("." in part for part in each.path):
        lines.append(f"path = {_text(list(each.path))}")
    if each.kind == "number":
        lines.append(f"bounds = {_text(list(each.bounds))}" if each.bounds else _NO_BOUNDS)
    elif each.kind == "boolean":
        lines.append("bounds = [0, 1]")
    elif each.kind == "category":
        lines.append(f"categories = {_text(list(each.words))}")
    elif each.kind in ("time", "date"):
        parts = ["weekday", "month"] if each.kind == "date" else ["hour", "weekday", "month"]
        lines.append(f"parts = {_text(parts)}")
    elif each.kind == "list":
        lines.append(f"size = {each.size}" if each.size else "size = 0  # numbers in each list")
        lines.append(_NO_BOUNDS)
    elif each.kind == "text":
        lines.append("categories = []  # words that matter; or leave the feature out")
        lines.append(_NUMBER_TEXTS)
        lines.append(_TIME_TEXTS)
    if each.optional:
        lines.append("# missing = ...  # public stand-in; without it, a record that lacks the field is null")
    if each.kind == "other":
        return f"# {_text(dotted)}: its type cannot be converted to numbers\n"
    head = "[[stream.features]]"
    if each.kind == "text":
        return "".join(f"# {line}\n" for line in (head, *lines))
    return "".join(f"{line}\n" for line in (head, *lines))


def _bounds(least: Any, most: Any) -> tuple[float, float] | None:
    if any(isinstance(each, bool) or not isinstance(each, (int, float)) for each in (least, most)):
        return None
    if not (math.isfinite(least) and math.isfinite(most)):
        return None
    return (least, most) if least < most else None


def _word(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _text(value: Any) -> str:
    # JSON's texts and lists of them are TOML's too, but for one character.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
