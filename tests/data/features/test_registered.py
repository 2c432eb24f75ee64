"""A registry's schema and its references become one schema, or are refused."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from google.protobuf import descriptor_pb2

from streaming_pca.data.features.avro.records import AvroRecords
from streaming_pca.data.features.protobuf_records import ProtobufRecords
from streaming_pca.data.features.registered import Registered, public_schema
from tests.data.features.formats import avro_record, in_avro, message_type
from tests.data.refusals import refuses


def avro(schema: Any, **references: Registered) -> Registered:
    return Registered(json.dumps(schema), tuple(references.items()))


def protobuf(file: Any, *references: tuple[str, Registered]) -> Registered:
    return Registered(base64.b64encode(file.SerializeToString()).decode(), references)


def a_file(name: str, message: str, *fields: tuple[Any, ...], imports: tuple[str, ...] = ()) -> Any:
    file = descriptor_pb2.FileDescriptorProto(name=name, package="t", syntax="proto3", dependency=imports)
    message_type(file, message, fields)
    return file


def test_a_schema_without_references_keeps_its_octets() -> None:
    text = '{"type": "record",  "name": "ü", "fields": []}'
    assert public_schema("avro", Registered(text), None).data == text.encode()


def test_definitions_stand_where_avro_needs_them() -> None:
    """The references form a diamond: two use a third one, and the root uses it before them."""
    unit = avro({"type": "fixed", "name": "Id", "namespace": "x", "size": 2})
    left = avro(avro_record({"id": "x.Id"}, "x.Left"), Id=unit)
    right = avro(avro_record({"id": "Id", "left": ["null", "Left"]}, "x.Right"), Id=unit, Left=left)
    fields = {
        "first": {"type": "map", "values": "x.Id"},
        "time": {"type": "long", "logicalType": "timestamp-millis"},
        "right": {"type": "array", "items": "x.Right"},
        "left": {"type": "x.Left"},
        "a": ["null", {"type": "double"}],
    }
    root = avro(avro_record(fields, "Root"), Right=right, Left=left)
    schema = public_schema("avro", root, None)
    record = {
        "first": {"k": b"ab"},
        "time": 5,
        "right": [{"id": b"cd", "left": {"id": b"ef"}}],
        "left": {"id": b"gh"},
        "a": 1.5,
    }
    records = AvroRecords(schema.data, [("a",)])
    assert records.getters[0](records.decode(in_avro(json.loads(schema.data), record))) == 1.5


def test_names_within_and_outside_of_namespaces_are_different_ones() -> None:
    outside = avro({"type": "fixed", "name": "Id", "size": 1})
    inside = avro({"type": "fixed", "name": "x.Id", "size": 2})
    fields = {"one": "Id", "two": "x.Id", "three": {"type": "array", "items": "Id"}}
    root = avro(avro_record(fields, "y.Root"), Id=outside, XId=inside)
    whole = json.loads(public_schema("avro", root, None).data)
    assert [field["type"]["size"] for field in whole["fields"][:2]] == [1, 2]
    assert whole["fields"][2]["type"]["items"] == "_.Id"
    root = avro(avro_record(fields, "x.Root"), Id=outside, XId=inside)
    whole = json.loads(public_schema("avro", root, None).data)
    assert whole["fields"][0]["type"]["size"] == 2


def test_many_paths_to_one_schema_take_no_time() -> None:
    schema = avro({"type": "fixed", "name": "T0", "size": 1})
    for number in range(1, 60):
        fields = {each: f"T{number - 1}" for each in "ab"}
        schema = avro(avro_record(fields, f"T{number}"), a=schema, b=schema)
    whole = json.loads(public_schema("avro", schema, None).data)
    assert whole["name"] == "_.T59"


def nested(levels: int) -> Any:
    type_: Any = "long"
    for _ in range(levels):
        type_ = {"type": "array", "items": type_}
    return type_


OTHER = avro({"type": "fixed", "name": "x.Id", "size": 1})
WRONG: list[tuple[Registered, str]] = [
    (avro(avro_record({"a": "x.Id"}, "x.Id"), a=OTHER), "two of the schemas define 'x.Id'"),
    (Registered("{", (("a", OTHER),)), "it is not an Avro schema"),
    (avro({"name": "A"}, a=OTHER), "it is not an Avro schema"),
    (avro(5, a=OTHER), "it is not an Avro schema"),
    (avro({"type": "record", "name": "A", "fields": [5]}, a=OTHER), "it is not an Avro schema"),
    (Registered("[" * 100_000, (("a", OTHER),)), "the schema nests too deeply"),
]


@pytest.mark.parametrize(("registered", "words"), WRONG, ids=range(len(WRONG)))
def test_avro_that_does_not_go_together_is_refused(registered: Registered, words: str) -> None:
    with pytest.raises(ValueError, match=words) as refused:
        public_schema("avro", registered, None)
    assert len(str(refused.value).splitlines()) == 1


def test_files_have_the_names_by_which_they_are_imported() -> None:
    part = protobuf(a_file("other/name.proto", "Part", ("b", 1)))
    outer = a_file("default", "Visit", ("a", 1), ("part", ".t.Part"), imports=("part.proto",))
    schema = public_schema("protobuf", protobuf(outer, ("part.proto", part)), None)
    made = descriptor_pb2.FileDescriptorSet.FromString(schema.data)
    assert [file.name for file in made.file] == ["part.proto", "registered.proto"]
    records = ProtobufRecords(schema.data, None, [("a",), ("part", "b")])
    value = b"\0\0\0\0\1\0" + b"\x09" + b"\0" * 6 + b"\xf0?"
    assert [get(records.decode(value)) for get in records.getters] == [1.0, None]


def test_protobuf_that_does_not_go_together_is_refused() -> None:
    one, two = protobuf(a_file("x", "A", ("b", 1))), protobuf(a_file("x", "B", ("b", 1)))
    root = protobuf(a_file("r", "R"), ("x", one), ("x", two))
    refuses("two of the schemas have the name 'x'", public_schema, "protobuf", root, None)
    with pytest.raises(ValueError, match=r"only the text of a \.proto file.*set stream\.schema_file"):
        public_schema("protobuf", Registered('syntax = "proto3";'), None)
    empty = public_schema("protobuf", protobuf(descriptor_pb2.FileDescriptorProto(name="e")), None)
    refuses("the schema has no message", ProtobufRecords, empty.data, None, [])
