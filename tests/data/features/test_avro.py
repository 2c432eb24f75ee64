"""Avro records: types, wire format, hostile payloads and schemas."""

from __future__ import annotations

import io
import json
import math
import struct
import time
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import fastavro
import numpy as np
import pytest
from fastavro.utils import generate_many
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.data.features.avro.records import AvroRecords
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.records import NOTHING, PublicSchema
from streaming_pca.data.validation import explain_payload
from tests.data.features.formats import (
    GOOD,
    ROW,
    Message,
    as_avro,
    avro_record,
    check_null_among,
    codec_of,
    costs,
    in_avro,
    optional,
)
from tests.data.refusals import refuses

MEGABYTE = 2**20


def reader_of(schema: Any, *paths: str) -> AvroRecords:
    return AvroRecords(json.dumps(schema).encode(), [tuple(path.split(".")) for path in paths])


def read(schema: Any, value: bytes, *paths: str) -> list[Any]:
    reader = reader_of(schema, *paths)
    record = reader.decode(value)
    return [get(record) for get in reader.getters]


def varint(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def of_type(type_: Any) -> dict[str, Any]:
    return avro_record({"before": "string", "x": type_, "behind": "long"})


MOMENT = datetime(2024, 2, 29, 18, 0, 0, 250_000, tzinfo=UTC)
VALUES: list[tuple[Any, Any, Any]] = [
    *(("int", -3, -3), ("long", 2**63 - 1, 2**63 - 1), ("long", -(2**63), -(2**63)), ("float", 0.5, 0.5)),
    *(("double", -1e300, -1e300), ("boolean", True, True), ("string", "ü", "ü")),
    *(("bytes", b"\xff", b"\xff"), ("null", None, None)),
    ({"type": "enum", "name": "E", "symbols": ["A", "B"]}, "B", "B"),
    ({"type": "fixed", "name": "F", "size": 3}, b"abc", b"abc"),
    ({"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 2}, Decimal("-12.34"), -12.34),
    ({"type": "bytes", "logicalType": "decimal", "precision": 30}, Decimal("7"), 7),
    (
        {"type": "fixed", "name": "D", "size": 9, "logicalType": "decimal", "precision": 20, "scale": 3},
        Decimal("1.001"),
        1.001,
    ),
    ({"type": "long", "logicalType": "timestamp-millis"}, MOMENT, MOMENT),
    ({"type": "long", "logicalType": "timestamp-micros"}, MOMENT, MOMENT),
    ({"type": "long", "logicalType": "local-timestamp-millis"}, MOMENT.replace(tzinfo=None), MOMENT),
    ({"type": "int", "logicalType": "date"}, date(2024, 2, 29), date(2024, 2, 29)),
    ({"type": "string", "logicalType": "uuid"}, UUID(int=5), str(UUID(int=5))),
    ({"type": "long", "logicalType": "nonsense"}, 5, 5),
    *((["null", "long", "string"], "a", "a"), (["string", "null"], None, None)),
    ({"type": "array", "items": optional("double")}, [0.5, None], [0.5, None]),
    ({"type": "array", "items": "float"}, [0.5, 1.0], [0.5, 1.0]),
    ({"type": "array", "items": {"type": "array", "items": "int"}}, [[1], []], [NOTHING, NOTHING]),
    ({"type": "map", "values": "int"}, {"a": 1}, NOTHING),
    (avro_record({"a": "int"}, "R"), {"a": 1}, NOTHING),
]


@pytest.mark.parametrize(("type_", "value", "expected"), VALUES, ids=[str(type_) for type_, *_ in VALUES])
def test_values_of_each_type_are_read_and_passed_over(type_: Any, value: Any, expected: Any) -> None:
    schema = of_type(type_)
    data = in_avro(schema, {"before": "b", "x": value, "behind": -77})
    assert read(schema, data, "x", "behind") == [expected, -77]
    assert read(schema, data, "behind") == [-77]
    found = read(schema, data, "x.deeper", "behind")[0]
    assert found is (None if value is None or isinstance(value, dict) else NOTHING)


def test_paths_lead_through_records_lists_maps_and_choices() -> None:
    item = avro_record({"n": "int", "price": optional("double")}, "Item")
    schema = avro_record(
        {
            "items": {"type": "array", "items": item},
            "more": {"type": "map", "values": optional("Item")},
            "either": ["null", "Item", {"type": "map", "values": "double"}, "long"],
            "numbers": {"type": "array", "items": "int"},
        }
    )
    paths = ["items.1.price", "more.a.price", "more.b.n", "either.price", "numbers.0", "items.x", "more.c.n"]

    def of(**fields: Any) -> list[Any]:
        good = {
            "items": [{"n": 1, "price": 0.5}, {"n": 2, "price": 1.5}, {"n": 3, "price": None}],
            "more": {"a": {"n": 1, "price": 2.5}, "b": {"n": 7, "price": None}, "": None},
            "either": None,
            "numbers": [5, 6],
        }
        return read(schema, in_avro(schema, good | fields), *paths)

    assert of() == [1.5, 2.5, 7, None, 5, NOTHING, None]
    assert of(items=[], numbers=[]) == [None, 2.5, 7, None, None, NOTHING, None]
    assert of(either={"n": 1, "price": 9.0})[3] == 9.0
    assert of(either=("map", {"price": 8.0}))[3] == 8.0
    assert of(either=5)[3] is NOTHING
    # A list and its first number can both be read.
    both = in_avro(schema, {"items": [], "more": {}, "either": None, "numbers": [5, 6]})
    assert read(schema, both, "numbers", "numbers.1", "numbers.2") == [[5, 6], 6, None]


def test_blocks_may_have_sizes_and_follow_one_another() -> None:
    schema = avro_record({"m": {"type": "map", "values": "int"}, "l": {"type": "array", "items": "int"}})
    pairs = b"\x02a" + varint(1) + b"\x02b" + varint(2)
    one = varint(-2) + varint(len(pairs)) + pairs
    again = varint(1) + b"\x02a" + varint(9) + varint(0)
    numbers = varint(-1) + varint(1) + varint(4) + varint(2) + varint(5) + varint(6) + varint(0)
    data = one + again + numbers
    # If a name occurs twice, the last value counts.
    assert read(schema, data, "m.a", "m.b", "l.0", "l.2", "l") == [9, 2, 4, 6, [4, 5, 6]]
    assert read(schema, data) == []
    lying = varint(-2) + varint(len(pairs) + 1) + pairs
    refuses("differs from its declared length", read, schema, lying + again + numbers, "m.a")


def test_confluent_s_wire_format_is_stripped() -> None:
    framed = b"\0" + struct.pack(">I", 77) + as_avro(GOOD)
    reader = codec_of("avro")
    rows, lengths = reader.decode_all([Message(framed), Message(as_avro(GOOD))])[:2]
    assert lengths.tolist() == [1, 1]
    np.testing.assert_allclose(rows, [ROW] * 2, atol=1e-12)
    # A record that begins with a zero octet is not taken for framing.
    schema = avro_record({"a": optional("double"), "b": "double"})
    assert read(schema, in_avro(schema, {"a": None, "b": 2.5}), "b") == [2.5]


HOSTILE_FIELDS = avro_record(
    {
        "x": "double",
        "text": "string",
        "list": {"type": "array", "items": "double"},
        "map": {"type": "map", "values": "int"},
        "enum": {"type": "enum", "name": "E", "symbols": ["A", "B"]},
        "either": optional("long"),
        "flag": "boolean",
        "amount": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2},
        "chain": avro_record({"next": optional("Chain")}, "Chain"),
    }
)
READ = ("x", "text", "list.0", "map.a", "enum", "either", "flag", "amount", "chain.next.next")


def hostile(**fields: bytes) -> bytes:
    good = {
        "x": struct.pack("<d", 0.5),
        "text": varint(1) + b"a",
        "list": varint(1) + struct.pack("<d", 0.5) + varint(0),
        "map": varint(1) + varint(1) + b"a" + varint(3) + varint(0),
        "enum": varint(1),
        "either": varint(1) + varint(4),
        "flag": b"\1",
        "amount": varint(1) + b"\x64",
        "chain": varint(0),
    }
    return b"".join((good | fields).values())


EXTREMES = [2**62, 2**63 - 1, -(2**63), -1, -(2**62), 10**9]
BROKEN = {
    **{"nothing": b"", "cut": hostile()[:-1], "more behind": hostile() + b"\0"},
    "no branch": hostile(either=varint(2)),
    "a branch below zero": hostile(either=varint(-1)),
    "no symbol": hostile(enum=varint(2)),
    "a symbol below zero": hostile(enum=varint(-1)),
    "a long number": hostile(either=varint(1) + b"\xff" * 10 + b"\1"),
    "a number of 65 bits": hostile(either=varint(1) + b"\xff" * 9 + b"\2"),
    **{"an endless number": b"\xff" * MEGABYTE, "a boolean of 2": hostile(flag=b"\2")},
    "no UTF-8": hostile(text=varint(1) + b"\xff"),
    "a lone surrogate": hostile(text=varint(3) + b"\xed\xa0\x80"),
    "chained": hostile(chain=varint(1) * (MEGABYTE - 100) + varint(0)),
    "a chain without end": hostile(chain=varint(1) * (MEGABYTE - 100)),
    "too long": hostile(text=varint(MEGABYTE) + b"a" * MEGABYTE),
    "zeros": bytes(MEGABYTE),
    **{f"a text of {n}": hostile(text=varint(n)) for n in EXTREMES},
    **{f"a list of {n}": hostile(list=varint(n)) for n in EXTREMES},
    **{f"a map of {n}": hostile(map=varint(n)) for n in EXTREMES},
    **{f"a block of {n} octets": hostile(list=varint(-1) + varint(n)) for n in EXTREMES},
    **{f"a skipped block of {n}": hostile(list=varint(n) + varint(n)) for n in EXTREMES},
}


@pytest.mark.parametrize("name", BROKEN)
@pytest.mark.parametrize("paths", [READ, ("x",)], ids=["read", "passed over"])
def test_a_hostile_payload_is_null_and_disturbs_no_other(name: str, paths: tuple[str, ...]) -> None:
    # Texts are not checked unless a feature reads them.
    if paths == ("x",) and name in ("no UTF-8", "a lone surrogate", "a boolean of 2"):
        return
    words = {"categories": ["A"], "missing": "A"}
    features = [
        Feature(name=path, **(words if path in ("text", "enum", "flag") else {"missing": 0}))  # type: ignore[arg-type]
        for path in paths
    ]
    schema = PublicSchema("avro", json.dumps(HOSTILE_FIELDS).encode())
    for unit in ("message", "row"):
        reader = codec_of("avro", unit, schema=schema, features=features)  # type: ignore[arg-type]
        check_null_among(reader, hostile(), BROKEN[name])


def test_numbers_that_are_none_make_their_record_null() -> None:
    schema = PublicSchema("avro", json.dumps(HOSTILE_FIELDS).encode())
    for name, value in [
        ("x", struct.pack("<d", math.nan)),
        ("x", struct.pack("<d", math.inf)),
        ("x", struct.pack("<Q", 0x7FF0000000000001)),
        ("amount", varint(MEGABYTE - 100) + b"\x7f" * (MEGABYTE - 100)),
        ("amount", varint(17) + b"\x7f" * 17),
    ]:
        reader = codec_of("avro", schema=schema, features=[Feature(name=name)])
        messages = [Message(hostile()), Message(hostile(**{name: value})), Message(hostile())]
        assert reader.decode_all(messages)[1].tolist() == [1, 0, 1]
        assert name in explain_payload(reader, messages[1]).reason
    millis = avro_record({"t": {"type": "long", "logicalType": "timestamp-millis"}, "x": "double"})
    far = varint(2**63 - 1) + struct.pack("<d", 0.5)
    schema = PublicSchema("avro", json.dumps(millis).encode())
    assert codec_of("avro", schema=schema, features=[Feature(name="x")]).decode(Message(far)) is not None
    timed = codec_of("avro", schema=schema, features=[Feature(name="t", parts=("hour",), missing=0)])
    assert timed.decode(Message(far)) is None


MANY = 2**17
EMPTY = avro_record({f"n{i}": "null" for i in range(5000)}, "Empty")
COSTLY: dict[str, tuple[Any, bytes]] = {
    "numbers": ({"type": "array", "items": "int"}, varint(MANY) + b"\2" * MANY),
    "texts": ({"type": "array", "items": "string"}, varint(MANY) + b"\0" * MANY),
    "lists": ({"type": "array", "items": {"type": "array", "items": "int"}}, varint(MANY) + b"\0" * MANY),
    "records": (
        {"type": "array", "items": avro_record({"e": "Empty", "f": ["int", "Empty"]}, "R")},
        varint(MANY // 2) + b"\2" * (MANY // 2),
    ),
    "maps": ({"type": "map", "values": "Empty"}, varint(MANY) + b"\0" * MANY),
    "one item a block": ({"type": "array", "items": "int"}, (varint(1) + b"\2") * (MANY // 2)),
}


@pytest.mark.parametrize("name", COSTLY)
@pytest.mark.parametrize("path", ["x", "x.0", "x.a", "x.0.a", "before"])
def test_time_and_memory_are_bounded_by_the_payload(name: str, path: str) -> None:
    type_, value = COSTLY[name]
    schema = avro_record({"empty": EMPTY, "before": "string", "x": type_})
    seconds, share = costs(reader_of(schema, path).decode, b"\0" + value + b"\0", ValueError)
    # The limit allows for a slow machine that traces memory.
    assert seconds < 15
    assert share < 64


ENDLESS: list[tuple[Any, str]] = [
    ({"type": "array", "items": "null"}, "array of null, whose values have no bytes"),
    ({"type": "array", "items": avro_record({}, "E")}, "array of E, whose"),
    ({"type": "array", "items": {"type": "fixed", "name": "Z", "size": 0}}, "array of Z, whose"),
    ({"type": "array", "items": avro_record({"a": "null", "b": avro_record({}, "C")}, "E")}, "array of E"),
    ({"type": "map", "values": {"type": "array", "items": "null"}}, "array of null"),
    (["null", {"type": "array", "items": "null"}], "array of null"),
    (avro_record({"r": "R"}, "R"), "cannot have a value"),
    ({"type": "array", "items": avro_record({"r": "R"}, "R")}, "cannot have a value"),
    ([], "cannot have a value"),
    ({"type": "enum", "name": "E", "symbols": ["A", "A"]}, "not an Avro schema"),
    ("nonsense", "not an Avro schema: UnknownType"),
    ({"type": "array"}, "not an Avro schema"),
    ({"type": "fixed", "name": "Z", "size": -1}, "."),
    ({"type": "bytes", "logicalType": "decimal", "precision": 10**9}, "precision beyond 1000"),
]


@pytest.mark.parametrize(("type_", "words"), ENDLESS, ids=str)
@pytest.mark.parametrize("path", ["x", "other"])
def test_a_schema_without_bounds_is_refused(type_: Any, words: str, path: str) -> None:
    if "precision" in words and path == "other":
        return
    refuses(words, reader_of, avro_record({"other": "int", "x": type_}), path)


@pytest.mark.parametrize("text", [b"", b"{", b"5", b"null", b'{"type": 5}', b"[" * 10**5, b"\xff"])
def test_what_is_no_schema_is_refused_in_a_line(text: bytes) -> None:
    refuses("schema", AvroRecords, text, [("x")])


def test_a_schema_that_is_marked_as_checked_is_checked() -> None:
    marked = avro_record({"x": "nonsense"}) | {"__fastavro_parsed": True, "__named_schemas": {}}
    refuses("not an Avro schema", reader_of, marked, "x")


def test_deep_and_wide_schemas_are_read_or_refused_quickly() -> None:
    wide = avro_record({f"f{i}": optional("double") for i in range(10_000)})
    data = in_avro(wide, {f"f{i}": float(i) for i in range(10_000)})
    started = time.process_time()
    assert read(wide, data, "f7", "f9999") == [7.0, 9999.0]
    assert time.process_time() - started < 5
    deep: Any = "int"
    for _ in range(100):
        deep = {"type": "array", "items": deep}
    refuses("too deeply", reader_of, of_type(deep), "x")
    # Each type holds the previous one twice: a value of the last would have 2**60 octets.
    doubled = {f"r{i}": avro_record({"a": f"R{i - 1}", "b": f"R{i - 1}"}, f"R{i}") for i in range(1, 60)}
    with pytest.raises(ValueError, match="ends"):
        read(avro_record({"r0": avro_record({"a": "boolean"}, "R0"), **doubled}), bytes(1000), "r59.a.a")


def test_recursive_records_are_read_to_a_depth() -> None:
    tree = avro_record({"value": "int", "children": {"type": "array", "items": "Tree"}}, "Tree")

    def nested(depth: int) -> bytes:
        return (varint(1) + varint(1)) * depth + varint(1) + varint(0) + varint(0) * depth

    assert read(tree, nested(50), "value", "children.0.children.0.value") == [1, 1]
    for depth in (10**3, 10**5):
        refuses("too deeply", read, tree, nested(depth), "value")


SCALARS = st.sampled_from(["int", "long", "float", "double", "boolean", "string", "bytes", "null"])


@st.composite
def schemas(draw: Any) -> Any:
    names = iter(range(1000))

    def record(fields: Any) -> Any:
        return avro_record({f"f{i}": each for i, each in enumerate(fields)}, f"R{next(names)}")

    types = st.recursive(
        SCALARS,
        lambda inner: (
            inner.map(lambda t: {"type": "map", "values": t})
            | inner.map(
                lambda t: {
                    "type": "array",
                    "items": [t, "null"]
                    if t not in ("null", ["null"]) and not isinstance(t, list)
                    else "int",
                }
            )
            | st.lists(inner, max_size=3).map(record)
        ),
        max_leaves=6,
    )
    return record(draw(st.lists(types, min_size=1, max_size=4)))


@given(schemas(), st.data())
def test_what_is_read_is_what_the_library_reads(schema: Any, data: Any) -> None:
    (value,) = generate_many(schema, 1)
    payload = in_avro(schema, value)
    names = [each["name"] for each in schema["fields"]]
    chosen = data.draw(st.lists(st.sampled_from(names), unique=True))
    found = read(schema, payload, *chosen)
    again = fastavro.schemaless_reader(io.BytesIO(payload), schema, None)
    for name, each in zip(chosen, found, strict=True):
        if each is not NOTHING and not isinstance(each, list):
            np.testing.assert_equal(each, again[name])
