"""Targets of records with fields: JSON objects, Avro, Protobuf and Arrow's named columns, and schemas."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from streaming_pca.data.codec import Format
from streaming_pca.data.features.avro.records import AvroRecords
from streaming_pca.data.features.protobuf_records import ProtobufRecords
from streaming_pca.data.judging import judge_message
from tests.data.features.formats import (
    AVRO_SCHEMA,
    ENCODERS,
    GOOD,
    PROTOBUF_SCHEMA,
    Message,
    as_arrow,
    codec_of,
    ipc,
)
from tests.fuzz.records import check_line
from tests.fuzz.target import MIB, Broken, target

OTHER = GOOD | {"user": None, "items": [], "spent": 1e300}


def _readers(format_: Format) -> list[Any]:
    return [codec_of(format_), codec_of(format_, "row"), codec_of(format_, "user", "user.id")]


def check_beside_good(format_: Format, data: bytes) -> None:
    """Raise Broken if a payload harms the records beside it; the first byte names the unit."""
    if not data:
        return
    reader = READERS[format_][data[0] % 3]
    good, made = Message(ENCODERS[format_](GOOD)), Message(data[1:])
    wanted = reader.decode_many([good])[0]
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
    check_line(judge_message(reader, made).reason or "none")


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


PLACES = [("spent",), ("items", "1", "price"), ("before", "x", "0"), ("behind",)]


@target("avro-schema", lambda: [json.dumps(AVRO_SCHEMA).encode()], times=256)
def avro_schema(data: bytes) -> None:
    """Read a schema, and a record by it."""
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
    """Read a set of descriptors, and a message by it."""
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
