"""JSON Schemas of releases, ledger entries and JSON payloads, made from their models."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from pydantic.json_schema import GenerateJsonSchema

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.records import Path, is_index
from streaming_pca.data.release import SINCE, Release
from streaming_pca.privacy.ledger.entries import LedgerEntry
from streaming_pca.text import one_line

Schema = dict[str, Any]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_LARGEST = 1.7976931348623157e308
_ROLE = re.compile(r":\w+:`~?(?:[\w.]*\.)?(\w+)`")

Number = Annotated[float, Field(ge=-_LARGEST, le=_LARGEST)]


class VectorPayload(BaseModel):
    """Vector of d numbers: one record, or one row."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    x: list[Number] = Field(min_length=1)
    """The d numbers."""


class RowsPayload(BaseModel):
    """Factor of r rows, a symmetric matrix of d rows, or r records; ``stream.record_kind`` and
    ``stream.privacy_unit`` say which."""

    model_config = ConfigDict(extra="forbid", use_attribute_docstrings=True)

    rows: list[Annotated[list[Number], Field(min_length=1)]] = Field(min_length=1)
    """Rows of d numbers each, at most ``stream.max_rows``."""


class _Generator(GenerateJsonSchema):
    """Generator without a title for each field and without null as a default."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False

    def default_schema(self, schema: Any) -> Schema:
        made = super().default_schema(schema)
        if made.get("default", ...) is None:
            del made["default"]
        return made


def release_schema() -> Schema:
    """Return the schema of a release of any version."""
    schema = Release.model_json_schema(schema_generator=_Generator)
    rules: list[Schema] = []
    for version in sorted({since for since, _ in SINCE.values()}):
        former = {
            name: {"const": list(value) if isinstance(value, tuple) else value}
            for name, (since, value) in SINCE.items()
            if since == version
        }
        # A release without a version is one of version 1.
        rules.append({"if": _version(maximum=version - 1), "then": {"properties": former}})
    present, null, number = {"not": {"type": "null"}}, {"type": "null"}, {"type": "number"}
    rules += [
        {
            "if": {"required": ["version"], **_version(minimum=SINCE["centering"][0])},
            "then": {"required": ["centering"], "properties": {"centering": present}},
        },
        {
            "if": {"required": ["kind"], "properties": {"kind": {"const": "tensor"}}},
            "then": {"required": ["weights"], "properties": {"weights": present}},
            "else": {"properties": {"weights": null}},
        },
        {
            "if": {"required": ["private"], "properties": {"private": {"const": False}}},
            "then": {"properties": {"epsilon": null, "delta": null}},
            "else": {"properties": {"epsilon": number, "delta": number}},
        },
    ]
    return _document("release", "Release", schema | {"allOf": rules})


def _version(**limits: int) -> Schema:
    return {"properties": {"version": limits}}


def ledger_schema() -> Schema:
    """Return the schema of a ledger entry."""
    adapter: TypeAdapter[Any] = TypeAdapter(Annotated[LedgerEntry, Field(discriminator="kind")])
    schema = adapter.json_schema(mode="serialization", schema_generator=_Generator)
    for entry in schema["$defs"].values():
        if "version" in entry["properties"] and entry["properties"]["kind"]["const"] != "RESERVED":
            entry["properties"]["version"] |= {"enum": [1]}
    unit = {"required": ["privacy_unit"], "properties": {"privacy_unit": {"const": "user"}}}
    schema["$defs"]["Reserved"] |= {
        "if": {"properties": {"promise": unit}},
        "then": _version(const=2),
        "else": _version(const=1),
    }
    text = (
        "Entry of the ledger of an input topic, in canonical form: sorted keys, no spaces, ASCII. "
        "Readers refuse what they do not know."
    )
    return _document("ledger", "Ledger entry", {"description": text} | schema)


def payload_schema(dim: int | None = None, most_rows: int | None = None) -> Schema:
    """Return the schema of a JSON payload, perhaps of given numbers of features and rows."""
    adapter: TypeAdapter[Any] = TypeAdapter(VectorPayload | RowsPayload)
    schema = adapter.json_schema(schema_generator=_Generator)
    vector = schema["$defs"]["VectorPayload"]["properties"]["x"]
    rows = schema["$defs"]["RowsPayload"]["properties"]["rows"]
    if dim is not None:
        for row in (vector, rows["items"]):
            row |= {"minItems": dim, "maxItems": dim}
    if most_rows is not None:
        rows["maxItems"] = most_rows
    text = "Record as a message of content type application/json. A record that does not follow it is null."
    return _document("payload", "JSON payload", {"description": text} | schema)


def objects_schema(features: Sequence[Feature], most: int, user_field: Path | None = None) -> Schema:
    """Return the schema of JSON objects, or of lists of at most ``most``. ``user_field`` names the user."""
    one: Schema = {"type": "object", "properties": {}, "required": []}
    fields = [(each.place, _field_schema(each), each.missing is None) for each in features]
    if user_field is not None:
        fields.append(
            (user_field, {"type": ["string", "integer"], "description": "The record's user."}, True)
        )
    for place, schema, is_needed in fields:
        node = one
        for depth, name in enumerate(place, start=1):
            if is_needed and name not in node["required"]:
                node["required"].append(name)
            if depth == len(place):
                node["properties"][name] = schema
            elif is_index(place[depth]):
                # Only some places of a list matter.
                node["properties"].setdefault(name, {"type": ["array", "object"]})
                break
            else:
                types = "object" if is_needed else ["object", "null"]
                node = node["properties"].setdefault(name, {"type": types, "properties": {}, "required": []})
    objects = {"type": "array", "items": {"$ref": "#/$defs/Record"}, "minItems": 1, "maxItems": most}
    text = (
        "Record as an object with named fields, or a list of them. A record that does not follow it is null."
    )
    either = {"anyOf": [{"$ref": "#/$defs/Record"}, objects], "$defs": {"Record": one}}
    return _document("payload", "JSON payload", {"description": text, **either})


def _field_schema(feature: Feature) -> Schema:
    """Return the schema of a feature's field."""
    null = [] if feature.missing is None else ["null"]
    texts = ["string"] if feature.parse else []
    kinds = {
        "number": ["number", "boolean", *texts],
        "category": ["string", "integer", "boolean"],
        "time": ["string", "number"],
        "list": ["array"],
    }
    schema: Schema = {"type": [*kinds[feature.kind], *null]}
    if feature.kind == "list":
        items = {"type": [*kinds["number"], *null]}
        schema |= {"items": items, "minItems": feature.size, "maxItems": feature.size}
    if feature.kind == "category":
        schema["description"] = f"One of {', '.join(feature.categories or ())}; others count as none of them."
    elif feature.bounds is not None:
        schema["description"] = f"Clamped to {feature.bounds[0]:g} and {feature.bounds[1]:g}."
    return schema


def _document(name: str, title: str, schema: Schema) -> Schema:
    plain: Schema = _plain(schema)
    return {
        "$schema": _DIALECT,
        "$id": f"urn:streaming-pca:schema:{name}",
        "title": title,
        "description": plain.pop("description"),
        **{key: value for key, value in plain.items() if key != "title"},
    }


def _plain(node: Any) -> Any:
    """Return a schema with descriptions as plain text, each one line."""
    if isinstance(node, list):
        return [_plain(item) for item in node]
    if not isinstance(node, dict):
        return node
    plain = {key: _plain(value) for key, value in node.items()}
    if isinstance(text := node.get("description"), str):
        plain["description"] = _ROLE.sub(r"\1", one_line(text)).replace("``", "")
    return plain
