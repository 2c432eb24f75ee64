"""Targets of records with fields: JSON objects, Avro, Protobuf and Arrow's named columns, and schemas."""

from __future__ import annotations

import base64
import json
import struct
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from streaming_pca.data.codec import FORMATS, Format, PayloadCodec
from streaming_pca.data.features.avro.records import AvroRecords
from streaming_pca.data.features.protobuf_records import ProtobufRecords
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.registered import Registered, public_schema
from streaming_pca.data.features.schemas import RegisteredRecords
from streaming_pca.data.validation import explain_payload
from tests.data.features.formats import (
    AVRO_SCHEMA,
    ENCODERS,
    FEATURES,
    GOOD,
    PROTOBUF_SCHEMA,
    SCHEMAS,
    Message,
    as_arrow,
    codec_of,
    ipc,
)
from tests.data.features.registered import framed, schema_of
from tests.fuzz.records import check_line
from tests.fuzz.target import MIB, Broken, target

OTHER = GOOD | {"user": None, "items": [], "spent": 1e300}


def _readers(format_: Format) -> list[Any]:
    return [codec_of(format_), codec_of(format_, "row"), codec_of(format_, "user", "user.id")]


def check_beside_good(format_: Format, data: bytes) -> None:
    """Raise Broken if a payload harms neighbouring records; the first byte selects the unit."""
    if not data:
        return
    reader = READERS[format_][data[0] % 3]
    good, made = Message(ENCODERS[format_](GOOD)), Message(data[1:])
    wanted = reader.decode_all([good])[0]
    rows, lengths, users = reader.decode_all([good, made, good])
    own = int(lengths[1])
    if lengths[0] != 1 or lengths[2] != 1 or len(rows) != own + 2 or own > reader.max_rows:
        raise Broken("a record has moved")
    if not (np.array_equal(rows[:1], wanted) and np.array_equal(rows[-1:], wanted)):
        raise Broken("a good record has changed")
    if reader.unit != "row" and not np.isfinite(rows).all():
        raise Broken("a record holds what is not finite")
    alone, count, user = reader.decode_all([made])
    if int(count[0]) != own or not np.array_equal(alone, rows[1 : 1 + own], equal_nan=True):
        raise Broken("a record depends on its neighbours")
    if users is not None and user is not None and users[1].tolist() != user[0].tolist():
        raise Broken("a user depends on its neighbours")
    check_line(explain_payload(reader, made).reason or "none")


READERS = {format_: _readers(format_) for format_ in ENCODERS}


def _seeds(format_: Format, *more: bytes) -> Sequence[bytes]:
    values = [ENCODERS[format_](GOOD), ENCODERS[format_](OTHER), b"", bytes(1000), *more]
    return [bytes([unit]) + value for value in values for unit in range(3)]


def _json_seeds() -> Sequence[bytes]:
    text = json.dumps(GOOD).encode()
    listed = b"[" + text + b"," + text + b"]"
    return _seeds("json", listed, b"\0\0\0\0\1" + text, b'{"spent":' + b"[" * 100_000, b"[" * MIB)


@target("json-objects", _json_seeds, times=32)
def json_objects(data: bytes) -> None:
    """Decode JSON objects with fields."""
    check_beside_good("json", data)


def _avro_seeds() -> Sequence[bytes]:
    value = ENCODERS["avro"](GOOD)
    count = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
    return _seeds("avro", b"\0" + struct.pack(">I", 1) + value, count, b"\1" + count, b"\2" * MIB)


@target("avro", _avro_seeds, times=64)
def avro(data: bytes) -> None:
    """Decode Avro records."""
    check_beside_good("avro", data)


def _protobuf_seeds() -> Sequence[bytes]:
    value = ENCODERS["protobuf"](GOOD)
    framed = b"\0" + struct.pack(">I", 1) + b"\x02\x06" + value
    return _seeds(
        "protobuf", framed, b"\x2a\x00" * 2**19, b"\x3a\x80\x80\x80\x80\x08", b"\x12\x02\x12\x00" * 9
    )


@target("protobuf", _protobuf_seeds, times=64)
def protobuf(data: bytes) -> None:
    """Decode Protobuf messages."""
    check_beside_good("protobuf", data)


def _arrow_seeds() -> Sequence[bytes]:
    words = pa.table({"country": pa.array(["DE", "FR"]).dictionary_encode(), "spent": [1.0, 2.0]})
    lists = pa.table({"place": pa.array([[1.0, 2.0], None], pa.list_(pa.float64(), 2))})
    return _seeds(
        "arrow",
        as_arrow(GOOD, OTHER, GOOD),
        ipc(words),
        ipc(lists),
        ipc(lists, compression="zstd"),
        as_arrow(),
    )


@target("arrow-fields", _arrow_seeds, times=256, inputs=2000)
def arrow_fields(data: bytes) -> None:
    """Decode Arrow streams with named columns."""
    check_beside_good("arrow", data)


def _registered_reader(format_: Literal["avro", "protobuf"]) -> Any:
    schemas = {1: SCHEMAS[format_], 2: schema_of(AVRO_SCHEMA) if format_ == "avro" else SCHEMAS[format_]}
    fields = FieldReader(FEATURES, None, None, schemas)
    return PayloadCodec(fields.map.dim, content_type=FORMATS[format_], fields=fields)


REGISTERED = _registered_reader("avro"), _registered_reader("protobuf")


def _registered_seeds() -> Sequence[bytes]:
    avro, protobuf = framed(1, ENCODERS["avro"](GOOD)), framed(2, b"\x02\x06" + ENCODERS["protobuf"](GOOD))
    indexes = framed(1, b"\xfe\xff\xff\xff\x0f")
    return [bytes([i]) + each for each in (avro, protobuf, framed(3, b""), indexes, b"\0") for i in (0, 1)]


@target("registered-records", _registered_seeds, times=64)
def registered_records(data: bytes) -> None:
    """Decode records that name a schema; the first byte selects the format."""
    if not data:
        return
    reader, value = REGISTERED[data[0] % 2], data[1:]
    rows, lengths, _ = reader.decode_all([Message(value)])
    if int(lengths[0]) > 1 or not np.isfinite(rows).all():
        raise Broken("a record is no row")
    if lengths[0] and not (value[0] == 0 and int.from_bytes(value[1:5], "big") in (1, 2)):
        raise Broken("a record was read that names no known schema")
    check_line(explain_payload(reader, Message(value)).reason or "none")


def _joined_seeds() -> Sequence[bytes]:
    parts = ({"type": "enum", "name": "s.E", "symbols": ["A"]}, {"type": "record", "name": "R", "fields": []})
    user = {
        "type": "record",
        "name": "V",
        "fields": [{"name": "e", "type": "s.E"}, {"name": "r", "type": "R"}],
    }
    texts = b"\0".join(json.dumps(each).encode() for each in (user, *parts))
    files = b"\0".join([base64.b64encode(PROTOBUF_SCHEMA)] * 2)
    return [b"\0" + texts, b"\1" + files, b"\0" + b"[" * 50_000, b"\1CgA="]


@target("registered-schemas", _joined_seeds, times=256)
def registered_schemas(data: bytes) -> None:
    """Join a schema with the schemas that follow, separated by zeros; the first byte selects the format."""
    if not data:
        return
    format_: Literal["avro", "protobuf"] = "protobuf" if data[0] % 2 else "avro"
    root, *parts = data[1:].decode("utf-8", "replace").split("\0")[:8]
    references = tuple((f"r{i}", Registered(each)) for i, each in enumerate(parts))
    try:
        RegisteredRecords({1: public_schema(format_, Registered(root, references), None)}, PLACES)
    except ValueError as error:
        check_line(str(error))


PLACES = [("spent",), ("items", "1", "price"), ("before", "x", "0"), ("behind",)]


@target("avro-schema", lambda: [json.dumps(AVRO_SCHEMA).encode()], times=256)
def avro_schema(data: bytes) -> None:
    """Read a schema, and a record with it."""
    try:
        reader = AvroRecords(data, PLACES)
    except ValueError as error:
        check_line(str(error))
        return
    for value in (b"", ENCODERS["avro"](GOOD), b"\2" * 1000):
        try:
            reader.decode(value)
        except ValueError:
            continue


@target("protobuf-schema", lambda: [PROTOBUF_SCHEMA], times=256)
def protobuf_schema(data: bytes) -> None:
    """Read a set of descriptors, and a message with it."""
    try:
        reader = ProtobufRecords(data, "shop.Visit", PLACES)
    except ValueError as error:
        check_line(str(error))
        return
    for value in (b"", ENCODERS["protobuf"](GOOD), b"\x0a\x01a" * 300):
        try:
            reader.decode(value)
        except Exception:
            continue
