"""Protobuf messages: types, presence, wire format, hostile payloads and descriptors."""

from __future__ import annotations

import struct
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, wrappers_pb2

from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.protobuf_records import ProtobufRecords
from streaming_pca.data.features.records import NOTHING, PublicSchema
from streaming_pca.data.validation import explain_payload
from tests.data.features.formats import (
    GOOD,
    PROTOBUF_SCHEMA,
    ROW,
    Message,
    as_protobuf,
    check_null_among,
    classes_of,
    codec_of,
    costs,
    message_type,
)
from tests.data.refusals import refuses

DOUBLE, INT64, INT32, BOOL, STRING, GROUP, MESSAGE, BYTES, ENUM, SINT64 = 1, 3, 5, 8, 9, 10, 11, 12, 14, 18
MEGABYTE = 2**20


def new_file(syntax: str = "proto3") -> Any:
    return descriptor_pb2.FileDescriptorProto(name="t.proto", package="t", syntax=syntax)


def enum_of(outer: Any, *words: str) -> None:
    made = outer.enum_type.add(name="Colour")
    for number, word in enumerate(words):
        made.value.add(name=word, number=number)


def map_of(outer: Any, name: str, number: int, key: int, value: Any) -> None:
    entry = message_type(outer, f"{name.title()}Entry", [("key", key), ("value", value)])
    entry.options.map_entry = True
    outer.field.add(name=name, number=number, type=MESSAGE, type_name=f".t.M.{entry.name}", label=3)


def everything() -> tuple[bytes, Callable[[str], Any]]:
    file = new_file()
    file.dependency.extend(["google/protobuf/timestamp.proto"])
    enum_of(file, "RED", "GREEN")
    message_type(file, "Item", [("price", DOUBLE, "optional"), ("n", INT64), ("self", ".t.Item")])
    fields = [
        ("d", DOUBLE),
        ("d_opt", DOUBLE, "optional"),
        ("l", SINT64),
        ("b", BOOL),
        ("s", STRING),
        ("s_opt", STRING, "optional"),
        ("raw", BYTES),
        ("colour", ENUM, {"type_name": ".t.Colour"}),
        ("colour_opt", ENUM, {"type_name": ".t.Colour"}, "optional"),
        ("item", ".t.Item"),
        ("items", ".t.Item", "repeated"),
        ("at", ".google.protobuf.Timestamp"),
        ("numbers", INT32, "repeated"),
        ("words", STRING, "repeated"),
        ("colours", ENUM, {"type_name": ".t.Colour"}, "repeated"),
    ]
    made = message_type(file, "M", fields)
    map_of(made, "byname", 20, STRING, DOUBLE)
    map_of(made, "bynumber", 21, INT64, ".t.Item")
    map_of(made, "bybool", 22, BOOL, DOUBLE)
    made.oneof_decl.insert(0, descriptor_pb2.OneofDescriptorProto(name="either"))
    for each in made.field:
        if each.proto3_optional:
            each.oneof_index += 1
    made.field.add(name="left", number=30, type=INT64, label=1, oneof_index=0)
    made.field.add(name="right", number=31, type=MESSAGE, type_name=".t.Item", label=1, oneof_index=0)
    return classes_of(file)


SCHEMA, class_of = everything()
M = class_of("t.M")


def read(value: Any, *paths: str, schema: bytes = SCHEMA, name: str = "t.M") -> list[Any]:
    reader = ProtobufRecords(schema, name, [tuple(path.split(".")) for path in paths])
    record = reader.decode(value if isinstance(value, bytes) else value.SerializeToString())
    return [get(record) for get in reader.getters]


MOMENT = datetime(2024, 2, 29, 18, tzinfo=UTC)


def full() -> Any:
    made = M(d=0.5, d_opt=0.0, l=-(2**63), b=True, s="ü", s_opt="", raw=b"\xff", colour=1, colour_opt=0)
    made.left, made.item.price = 7, 2.5
    made.item.self.n = 9
    made.items.add(n=1)
    made.items.add(price=3.5)
    made.at.FromDatetime(MOMENT)
    made.numbers.extend([1, -2])
    made.words.extend(["a", "ü"])
    made.colours.extend([1, 0, 5])
    made.byname["x"] = 1.5
    made.byname[""] = 2.5
    made.bynumber[-3].price = 4.5
    made.bybool[True] = 5.5
    return made


VALUES: list[tuple[str, Any, Any]] = [
    *(("d", 0.5, 0.0), ("d_opt", 0.0, None), ("l", -(2**63), 0), ("b", True, False), ("s", "ü", "")),
    *(("s_opt", "", None), ("raw", b"\xff", b""), ("colour", "GREEN", "RED")),
    *(("colour_opt", "RED", None), ("item.price", 2.5, None), ("item.n", 0, None)),
    *(("item.self.n", 9, None), ("item", NOTHING, None), ("items.0.n", 1, None)),
    *(("items.1.price", 3.5, None), ("items.2.price", None, None), ("items.0.self.n", None, None)),
    *(("items", NOTHING, None), ("items.x", NOTHING, None), ("at", MOMENT, None)),
    *(("at.seconds", int(MOMENT.timestamp()), None), ("numbers", [1, -2], None)),
    *(("numbers.1", -2, None), ("words", ["a", "ü"], None), ("words.0", "a", None)),
    *(("colours", ["GREEN", "RED", 5], None), ("byname.x", 1.5, None), ("byname.y", None, None)),
    *(("bynumber.-3.price", 4.5, None), ("bynumber.-3.n", 0, None), ("bynumber.x.n", None, None)),
    *(("bybool.true", 5.5, None), ("byname", NOTHING, None), ("left", 7, None)),
    *(("right.n", None, None), ("d.x", NOTHING, NOTHING), ("nowhere", None, None)),
]


@pytest.mark.parametrize(("path", "value", "absent"), VALUES, ids=[path for path, _, _ in VALUES])
def test_values_of_each_type_are_read(path: str, value: Any, absent: Any) -> None:
    assert read(full(), path) == [value]
    assert read(b"", path) == [absent]
    # It is also read correctly together with all other compatible paths.
    others = [each for each, *_ in VALUES if not f"{each}.".startswith(path + ".")]
    others = [each for each in others if not path.startswith(each)]
    assert read(full(), path, *others)[0] == value


def test_a_choice_holds_its_last_value() -> None:
    left, right = M(left=7).SerializeToString(), M(right={"n": 5}).SerializeToString()
    assert read(left + right, "left") == [None]
    assert read(left + right, "right.n") == [5]
    assert read(right + left, "left", "right.n") == [7, None]


def test_messages_are_merged_and_of_two_entries_the_last_counts() -> None:
    first, second = M(item={"n": 1}), M(item={"price": 2.0}, byname={"x": 3.0})
    joined = M(byname={"x": 1.0}).SerializeToString() + first.SerializeToString() + second.SerializeToString()
    assert read(joined, "item.n", "item.price", "byname.x") == [1, 2.0, 3.0]


def test_wrappers_are_values_or_missing() -> None:
    file = new_file()
    file.dependency.append("google/protobuf/wrappers.proto")
    fields = [("x", ".google.protobuf.DoubleValue"), ("s", ".google.protobuf.StringValue")]
    message_type(file, "M", [*fields, ("many", ".google.protobuf.Int64Value", "repeated")])
    schema = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    number = wrappers_pb2.DoubleValue(value=2.5).SerializeToString()
    value = b"\x0a" + bytes([len(number)]) + number + b"\x12\x00" + b"\x1a\x02\x08\x07"
    assert read(value, "x", "s", "many.0", schema=schema) == [2.5, "", 7]
    assert read(b"", "x", "s", "many.0", schema=schema) == [None, None, None]


def test_proto2_has_presence_closed_enumerations_and_groups() -> None:
    file = new_file("proto2")
    enum_of(file, "RED", "GREEN")
    made = message_type(file, "M", [("x", DOUBLE, {"label": 2}), ("c", ENUM, {"type_name": ".t.Colour"})])
    message_type(made, "G", [("n", INT64)])
    made.field.add(name="g", number=3, type=GROUP, type_name=".t.M.G", label=1)
    made.field.add(name="many", number=4, type=ENUM, type_name=".t.Colour", label=3)
    schema, _ = classes_of(file)
    value = b"\x10\x01\x1b\x08\x05\x1c\x20\x01\x20\x09"
    assert read(value, "x", "c", "g.n", "many", schema=schema) == [None, "GREEN", 5, ["GREEN"]]
    assert read(b"\x10\x09", "c", schema=schema) == [None]


def test_confluent_s_wire_format_is_stripped() -> None:
    reader, value = codec_of("protobuf"), as_protobuf(GOOD)
    # Visit is the fourth message of its file.
    framed = b"\0" + struct.pack(">I", 77) + b"\x02\x06" + value
    rows, lengths = reader.decode_all([Message(framed), Message(value)])[:2]
    assert lengths.tolist() == [1, 1]
    np.testing.assert_allclose(rows, [ROW] * 2, atol=1e-12)
    for other in (b"\0", b"\x02\x04", b"\x04\x06\x00", b"\x01", b"\xff" * 9, b"", b"\xc8\x01"):
        message = Message(b"\0" + struct.pack(">I", 77) + other + value)
        assert reader.decode(message) is None
        assert "message" in explain_payload(reader, message).reason
    file = new_file()
    message_type(file, "First", [])
    outer = message_type(file, "Outer", [])
    message_type(outer, "Inner", [("x", DOUBLE)])
    schema = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    inner = b"\0\0\0\0\1" + b"\x04\x02\x00" + b"\x09" + struct.pack("<d", 2.5)
    assert read(inner, "x", schema=schema, name="t.Outer.Inner") == [2.5]


def tag(number: int, kind: int) -> bytes:
    return length((number << 3) | kind)


def length(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def nested(number: int, depth: int) -> bytes:
    value = b""
    for _ in range(depth):
        value = tag(number, 2) + length(len(value)) + value
    return value


BROKEN = {
    **{"cut": M(d=0.5).SerializeToString()[:-1], "field zero": b"\0", "a long tag": b"\xff" * 20},
    "a length beyond the end": tag(5, 2) + length(2**31) + b"a",
    "a length beyond 64 bits": tag(5, 2) + b"\xff" * 10 + b"\1",
    **{"an end of no group": tag(5, 4), "a group without end": tag(50, 3)},
    "groups in groups": tag(50, 3) * 10**5 + tag(50, 4) * 10**5,
    "a wrong item": tag(10, 2) + length(3) + b"\xff\xff\xff",
    "a wrong item of a list": tag(11, 2) + length(3) + b"\xff\xff\xff",
    "a wrong entry of a map": tag(20, 2) + length(3) + b"\xff\xff\xff",
    "too long": M(raw=b"a" * MEGABYTE).SerializeToString(),
    "zeros": bytes(MEGABYTE),
}
READ = ("d", "items.0.n", "byname.x", "item.n")


@pytest.mark.parametrize("name", BROKEN)
def test_a_hostile_payload_is_null_and_disturbs_no_other(name: str) -> None:
    features = [Feature(name=path, missing=0) for path in READ]
    schema, good = PublicSchema("protobuf", SCHEMA, "t.M"), M(d=0.5).SerializeToString()
    for unit in ("message", "row"):
        reader = codec_of("protobuf", unit, schema=schema, features=features)  # type: ignore[arg-type]
        assert "not a record of the schema" in check_null_among(reader, good, BROKEN[name])


def test_values_that_are_none_make_their_record_null() -> None:
    double = tag(1, 1)
    text = tag(5, 2) + length(1) + b"\xff"
    cases: list[tuple[str, bytes, dict[str, Any]]] = [
        ("d", double + struct.pack("<d", np.nan), {}),
        ("d", double + struct.pack("<d", -np.inf), {}),
        ("s", text, {"categories": ["a"]}),
        ("at", tag(12, 2) + length(10) + tag(1, 0) + length(2**62), {"parts": ["hour"], "missing": 0}),
        ("at", tag(12, 2) + length(11) + tag(2, 0) + b"\xff" * 9 + b"\1", {"parts": ["hour"], "missing": 0}),
    ]
    for name, value, settings in cases:
        schema = PublicSchema("protobuf", SCHEMA, "t.M")
        reader = codec_of("protobuf", schema=schema, features=[Feature(name=name, **settings)])
        assert reader.decode_all([Message(value)])[1].tolist() == [0], name
        assert name in explain_payload(reader, Message(value)).reason
    # A text may be anything where no feature reads it.
    schema = PublicSchema("protobuf", SCHEMA, "t.M")
    assert codec_of("protobuf", schema=schema, features=[Feature(name="d")]).decode(Message(text)) is not None


@pytest.mark.parametrize("name", ["items", "numbers", "words", "byname", "bynumber", "nested"])
@pytest.mark.parametrize(
    "path", ["d", "items.1.price", "numbers", "words", "byname.x", "bynumber.1.n", "item.self.n"]
)
def test_time_and_memory_are_bounded_by_the_payload(name: str, path: str) -> None:
    many = 2**16
    value = {
        "items": (tag(11, 2) + b"\0") * many,
        "numbers": tag(13, 2) + length(many) + b"\1" * many,
        "words": (tag(14, 2) + b"\0") * many,
        "byname": (tag(20, 2) + b"\0") * many,
        "bynumber": (tag(21, 2) + b"\0") * many,
        "nested": tag(10, 2) + length(60_000) + nested(3, 17_000)[-60_000:],
    }[name]
    seconds, share = costs(ProtobufRecords(SCHEMA, "t.M", [tuple(path.split("."))]).decode, value)
    assert seconds < 15
    assert share < 64


def test_a_message_of_many_fields_takes_no_room_for_those_that_none_reads() -> None:
    file = new_file()
    message_type(file, "Wide", [(f"f{i}", DOUBLE) for i in range(8000)])
    message_type(file, "M", [("wide", ".t.Wide", "repeated"), ("one", ".t.Wide")])
    schema = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    value = (b"\x0a\x00") * 2**19 + b"\x12\x09\x09" + struct.pack("<d", 1.5)
    before = resident()
    started = time.process_time()
    assert read(value, "wide.7.f3", "one.f0", schema=schema) == [0.0, 1.5]
    assert time.process_time() - started < 3
    assert resident() - before < 128 * MEGABYTE


def resident() -> int:
    """Return the peak resident memory of this process."""
    with open("/proc/self/status", encoding="ascii") as file:
        return int(file.read().partition("VmHWM:")[2].split()[0]) * 1024


@pytest.mark.parametrize(
    ("schema", "name", "words"),
    [
        (b"", "t.M", "the schema has no message 't.M'"),
        (b"\xff", "t.M", "not a set of file descriptors"),
        (PROTOBUF_SCHEMA, "shop.Nothing", "no message 'shop.Nothing'"),
        (b"", "", "the schema has no message"),
        (PROTOBUF_SCHEMA[:-3], "shop.Visit", "not a set of file descriptors"),
    ],
)
def test_what_is_no_schema_is_refused_in_a_line(schema: bytes, name: str, words: str) -> None:
    refuses(words, ProtobufRecords, schema, name, [("spent")])


def test_a_file_that_lacks_what_it_imports_is_refused() -> None:
    file = new_file()
    file.dependency.append("other.proto")
    schema = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    refuses(r"other\.proto", ProtobufRecords, schema, "t.M", [("x")])
