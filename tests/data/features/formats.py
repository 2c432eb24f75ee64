"""The same records in every format of records with fields: schemas, encoders and codecs."""

from __future__ import annotations

import io
import json
import math
import time
import tracemalloc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

from streaming_pca.data.codec import FORMATS, Format, PayloadCodec, PrivacyUnit
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import PublicSchema
from streaming_pca.data.validation import explain_payload
from tests.data.test_codec import Message

KEY = b"k" * 32
FEATURES = (
    Feature(name="age", path="user.age", bounds=(0, 120), missing=40),
    Feature(name="spent", transform="log1p", bounds=(0, 10_000)),
    Feature(name="country", categories=("DE", "FR")),
    Feature(name="price", path="items.1.price", bounds=(0, 10), missing=0),
    Feature(name="seen", parts=("hour",), unit="ms"),
    Feature(name="place", size=2, bounds=(-90, 180)),
)
GOOD: dict[str, Any] = {
    "user": {"age": 33.0, "id": "ann"},
    "spent": 99.0,
    "country": "FR",
    "items": [{"price": 1.0}, {"price": 2.5}],
    "seen": 6 * 3600 * 1000,
    "place": [48.5, 2.0],
}
ROW = [33, math.log1p(99), 0, 1, 2.5, 1, 0, 48.5, 2]


def optional(type_: Any) -> list[Any]:
    return ["null", type_]


def avro_record(fields: dict[str, Any], name: str = "V") -> dict[str, Any]:
    made = [{"name": each, "type": type_} for each, type_ in fields.items()]
    return {"type": "record", "name": name, "fields": made}


AVRO_SCHEMA = avro_record(
    {
        "before": {"type": "map", "values": optional({"type": "array", "items": "string"})},
        "user": optional(avro_record({"age": optional("double"), "id": optional("string")}, "User")),
        "spent": optional("double"),
        "country": optional("string"),
        "items": optional({"type": "array", "items": avro_record({"price": optional("double")}, "Item")}),
        "seen": optional({"type": "long", "logicalType": "timestamp-millis"}),
        "place": optional({"type": "array", "items": "double"}),
        "behind": optional("Item"),
    },
    "shop.Visit",
)
_PARSED = fastavro.parse_schema(AVRO_SCHEMA)


def in_avro(schema: Any, value: Any) -> bytes:
    out = io.BytesIO()
    fastavro.schemaless_writer(out, schema, value)
    return out.getvalue()


def as_avro(record: dict[str, Any]) -> bytes:
    return in_avro(_PARSED, record | {"before": {"x": ["ü"]}, "behind": {"price": 1.0}})


def message_type(outer: Any, name: str, fields: Sequence[tuple[Any, ...]]) -> Any:
    """Add a message with fields (name, type, extra settings); an optional scalar has presence."""
    made = getattr(outer, "message_type" if hasattr(outer, "message_type") else "nested_type").add(name=name)
    for number, (each, kind, *more) in enumerate(fields, 1):
        new = made.field.add(name=each, number=number, label=1)
        if isinstance(kind, str):
            new.type_name, new.type = kind, 11
        else:
            new.type = kind
        for setting in more:
            if setting == "repeated":
                new.label = 3
            elif setting == "optional":
                new.proto3_optional, new.oneof_index = True, len(made.oneof_decl)
                made.oneof_decl.add(name=f"_{each}")
            else:
                for key, value in setting.items():
                    setattr(new, key, value)
    return made


def _file() -> Any:
    file = descriptor_pb2.FileDescriptorProto(name="visit.proto", package="shop", syntax="proto3")
    file.dependency.append("google/protobuf/timestamp.proto")
    message_type(file, "Other", [])
    message_type(file, "User", [("age", 1, "optional"), ("id", 9, "optional")])
    message_type(file, "Item", [("price", 1, "optional")])
    fields = [
        ("before", 9),
        ("user", ".shop.User"),
        ("spent", 1, "optional"),
        ("country", 9, "optional"),
        ("items", ".shop.Item", "repeated"),
        ("seen", ".google.protobuf.Timestamp"),
        ("place", 1, "repeated"),
        ("behind", ".shop.Item", "repeated"),
    ]
    message_type(file, "Visit", fields)
    return file


def classes_of(file: Any) -> tuple[bytes, Callable[[str], Any]]:
    """Return a file's descriptor set, and its messages by their full names."""
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    described = descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString()
    return described, lambda name: message_factory.GetMessageClass(pool.FindMessageTypeByName(name))


PROTOBUF_SCHEMA, _class_of = classes_of(_file())
Visit = _class_of("shop.Visit")


def as_protobuf(record: dict[str, Any]) -> bytes:
    visit = Visit(before="ü")
    visit.behind.add(price=1.0)
    if record["user"] is not None:
        visit.user.SetInParent()
        for name, value in record["user"].items():
            if value is not None:
                setattr(visit.user, name, value)
    for name in ("spent", "country"):
        if record[name] is not None:
            setattr(visit, name, record[name])
    for item in record["items"] or ():
        visit.items.add(**{k: v for k, v in item.items() if v is not None})
    if record["seen"] is not None:
        seconds, millis = divmod(record["seen"], 1000)
        visit.seen.seconds, visit.seen.nanos = seconds, millis * 10**6
    visit.place.extend(record["place"] or ())
    return bytes(visit.SerializeToString())


ARROW_SCHEMA = pa.schema(
    [
        ("before", pa.list_(pa.struct([("x", pa.large_string())]))),
        ("user", pa.struct([("id", pa.string()), ("age", pa.float64())])),
        ("spent", pa.float64()),
        ("country", pa.string()),
        ("items", pa.list_(pa.struct([("price", pa.float64())]))),
        ("seen", pa.timestamp("ms", "UTC")),
        ("place", pa.large_list(pa.float64())),
    ]
)


def ipc(table: Any, rows_per_batch: int | None = None, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table, max_chunksize=rows_per_batch)
    return bytes(sink.getvalue().to_pybytes())


def as_arrow(*records: dict[str, Any]) -> bytes:
    return ipc(pa.Table.from_pylist(list(records), ARROW_SCHEMA))


def as_json(record: dict[str, Any]) -> bytes:
    return json.dumps(record).encode()


ENCODERS: dict[Format, Callable[[dict[str, Any]], bytes]] = {
    "json": as_json,
    "avro": as_avro,
    "protobuf": as_protobuf,
    "arrow": as_arrow,
}
SCHEMAS = {
    "avro": PublicSchema("avro", json.dumps(AVRO_SCHEMA).encode()),
    "protobuf": PublicSchema("protobuf", PROTOBUF_SCHEMA, "shop.Visit"),
}


def codec_of(
    format_: Format,
    unit: PrivacyUnit = "message",
    user: str | None = None,
    schema: PublicSchema | None = None,
    features: Sequence[Feature] = FEATURES,
    max_rows: int = 4,
) -> PayloadCodec:
    path = None if user is None else tuple(user.split("."))
    fields = FieldReader(features, path, schema or SCHEMAS.get(format_))
    secret = KEY if unit == "user" else None
    return PayloadCodec(
        fields.map.dim,
        unit=unit,
        user_key=secret,
        max_rows=max_rows,
        content_type=FORMATS[format_],
        fields=fields,
    )


def moment(milliseconds: int) -> datetime:
    return datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=milliseconds)


def check_null_among(reader: PayloadCodec, good: bytes, bad: bytes) -> str:
    """Assert that a payload is null, soon, and its neighbours' first numbers are 0.5; return the reason."""
    started = time.process_time()
    rows, lengths = reader.decode_all([Message(each) for each in (good, bad, good)])[:2]
    reason = explain_payload(reader, Message(bad)).reason
    assert time.process_time() - started < 2
    assert lengths.tolist() == [1, int(reader.unit == "row"), 1]
    assert rows[[0, -1], 0].tolist() == [0.5, 0.5]
    assert reason
    assert "\n" not in reason
    assert len(reason) < 300
    return reason


def costs(read: Callable[[bytes], Any], value: bytes, refused: Any = Exception) -> tuple[float, float]:
    """Return the seconds that reading takes, and the bytes of memory per byte of payload."""
    started = time.process_time()
    tracemalloc.start()
    try:
        read(value)
    except refused:
        pass
    finally:
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
    return time.process_time() - started, most / len(value)
