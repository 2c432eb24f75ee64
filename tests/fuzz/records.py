"""Targets of data from producers: payloads, reports, record batches, and files of records."""

from __future__ import annotations

import io
import json
import struct
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from kafka import TopicPartition
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from streaming_pca.client.encoding import payload_encoder
from streaming_pca.data.arrow import stream_of_rows
from streaming_pca.data.codec import CONTENT_TYPES, PayloadCodec
from streaming_pca.data.files import open_records
from streaming_pca.data.records import RecordKind
from streaming_pca.data.validation import explain_payload
from streaming_pca.errors import UserError
from streaming_pca.local.headers import contract_header, report_headers
from streaming_pca.privacy.users import hash_users
from streaming_pca.service.input.buffer import PartitionBuffer, RecordBuffer
from streaming_pca.service.kafka.patches import RecordReader, to_batch
from streaming_pca.service.kafka.record_batches import parse_batch
from streaming_pca.service.kafka.record_blocks import BlockReader, RecordBlock
from tests.fuzz.target import MIB, Broken, target
from tests.kafka.security import codecs, hostile

DIM = 4
X = np.linspace(-2, 2, 3 * DIM, dtype="<f8").reshape(3, DIM)
PROMISE = contract_header(1.0, 1e-6)
CODECS = [
    PayloadCodec(DIM, max_rows=6),
    PayloadCodec(DIM, max_rows=6, unit="row"),
    PayloadCodec(DIM, kind=RecordKind.MATRIX, dtype="float64"),
    PayloadCodec(DIM, max_rows=6, unit="user", user_key=b"k" * 32),
    PayloadCodec(DIM, kind=RecordKind.LOCAL, privacy_contract=PROMISE),
    PayloadCodec(DIM, max_rows=6, content_type="application/json"),
]
"""Codecs to choose from by an input's first byte."""


def message(value: bytes | None, content_type: str | None = None, **headers: bytes) -> Any:
    named = [] if content_type is None else [("content-type", content_type.encode("latin-1"))]
    named += [(name.replace("_", "-"), item) for name, item in headers.items()]
    return SimpleNamespace(key=b"u", value=value, headers=named, offset=0, leader_epoch=-1)


def good_messages(codec: PayloadCodec) -> list[Any]:
    """Return two records that each codec reads."""
    if codec.kind is RecordKind.LOCAL:
        value = np.arange(codec.kind.width(DIM), dtype="<f4").tobytes()
        report = message(value)
        report.headers = report_headers(1.0, 1e-6)
        return [report, report]
    if codec.kind is RecordKind.MATRIX:
        return [message(np.eye(DIM).tobytes(), CONTENT_TYPES[0])] * 2
    return [
        message(X[:1].astype("<f4").tobytes(), CONTENT_TYPES[0]),
        message(payload_encoder("json", "")(X), CONTENT_TYPES[2]),
    ]


def check_beside_good(codec: PayloadCodec, made: Any) -> None:
    """Raise Broken if a message harms neighbouring records, or decodes to a NaN."""
    first, last = good_messages(codec)
    wanted, counts = codec.decode_all([first, last])[:2]
    rows, lengths = codec.decode_all([first, made, last])[:2]
    own = int(lengths[1])
    if len(lengths) != 3 or (lengths[[0, 2]] != counts).any() or lengths.sum() != len(rows):
        raise Broken("a record has moved")
    around = np.concatenate([rows[: lengths[0]], rows[lengths[0] + own :]])
    # float32 next to float64 is widened, which changes no value.
    if not np.array_equal(around, wanted.astype(around.dtype)):
        raise Broken("a good record has changed")
    middle = rows[lengths[0] : lengths[0] + own]
    if codec.unit != "row" and not np.isfinite(middle).all():
        raise Broken("a record holds what is not finite")
    alone, count = codec.decode_all([made])[:2]
    if int(count[0]) != own or not np.array_equal(alone, middle.astype(alone.dtype), equal_nan=True):
        raise Broken("a record depends on its neighbours")
    if own > max(codec.max_rows, DIM):
        raise Broken(f"{own} rows")
    explain_payload(codec, made)


def _payload_seeds() -> Sequence[bytes]:
    lists = pa.array(X.tolist(), pa.list_(pa.float64(), DIM))
    table = pa.table({name: X[:, i] for i, name in enumerate("abcd")})
    holed = pa.table({"x": pa.array([[1.0] * DIM, None], pa.list_(pa.float64(), DIM))})
    values = [payload_encoder(name, "float64")(X) for name in ("octets", "npy", "json")]
    values += [
        payload_encoder("octets", "float32")(X[:1]),
        payload_encoder("json", "")(X[:1]),
        b'{"x": [1e308, -1e308, 5e-324, 1e309]}',
        b'{"rows": [[1,2,3,4], [1,2,{"a":[3]},4], "x]", [NaN, 1, 1, 1]]}',
        b'{"x": [' + b"1," * 5000 + b"1]}",
        b'{"x": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        b'{"rows": [' + b'"' * 9999,
        stream_of_rows(pa, X),
        ipc(table),
        ipc(table, compression="zstd"),
        ipc(
            pa.table({"x": pa.array([[0.0] * DIM] * 100_000, pa.list_(pa.float64(), DIM))}),
            compression="zstd",
        ),
        ipc(holed),
        ipc(pa.table({"x": pa.array(["a"])})),
        ipc(pa.table({"x": pa.DictionaryArray.from_arrays(pa.array([0, 0]), lists[:1])})),
        npy("<f8", "(1099511627776, 4)"),
        npy("<f8", "(0, 4)"),
        npy("|O", "(1, 4)"),
        npy("<c16", "(1, 4)"),
        npy(">f4", "(1, 4)"),
        npy("<f8", "(4, 1" + "0" * 5000 + ")"),
        b"\x93NUMPY\x02\x00" + struct.pack("<I", 2**32 - 1) + b"{",
        np.full((1, DIM), np.nan).tobytes(),
        np.array([0x7FF0000000000001] * DIM, "<u8").tobytes(),
        b"",
        bytes(2 * MIB),
        b"[" * MIB,
    ]
    variants = ((0, 0), (1, 1), (2, 2), (3, 3), (4, 0), (5, 2), (0, 3), (0, 2), (1, 2), (1, 3), (0, 1))
    return [bytes(variant) + value for value in values for variant in variants]


def ipc(table: Any, **options: Any) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue().to_pybytes())


def npy(descr: str, shape: str) -> bytes:
    header = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': {shape}, }}\n".encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(header) & 0xFFFF) + header + X.tobytes()


@target("payload", _payload_seeds, times=20, inputs=2000)
def payload(data: bytes) -> None:
    """Decode a value after two bytes that select the codec and the format."""
    if len(data) < 2:
        return
    codec, value = CODECS[data[0] % len(CODECS)], data[2:]
    name = [*CONTENT_TYPES[:4], None, "text/plain; charset=utf-8"][data[1] % 6]
    check_beside_good(codec, message(value, name))


def _header_seeds() -> Sequence[bytes]:
    reported = [
        {"content-type": CONTENT_TYPES[0], "dtype": "float64"},
        {"content-type": "application/json;x", "record-kind": "factor"},
        {"record-kind": "local", "local-promise": PROMISE.decode(), "content-type": CONTENT_TYPES[0]},
        {"dtype": "float16"},
        {"content-type": "x" * 5000},
    ]
    return [bytes([i]) + json.dumps(each).encode() for each in reported for i in range(len(CODECS))]


@target("headers", _header_seeds, times=64)
def headers(data: bytes) -> None:
    """Decode a record after arbitrary headers."""
    try:
        named = json.loads(data[1:])
    except (ValueError, RecursionError):
        named = {"content-type": data[1:].decode("latin-1")}
    if not isinstance(named, dict):
        return
    codec = CODECS[data[0] % len(CODECS)] if data else CODECS[0]
    made = message(X.tobytes())
    made.headers = [
        (key, None if item is None else str(item).encode("utf-8", "surrogatepass"))
        for key, item in named.items()
    ]
    check_beside_good(codec, made)


@target("keys", lambda: [b"", b"user", bytes(MIB)])
def keys(data: bytes) -> None:
    """Hash a message's key."""
    if hash_users(b"k" * 32, [data, None, data]).tolist()[1] != [0, 0]:
        raise Broken("no key is a user")


# -- batches of the client ------------------------------------------------------------------


def _batch_seeds() -> Sequence[bytes]:
    good = X.astype("<f4").tobytes()
    plain = [(b"content-type", CONTENT_TYPES[0].encode())]
    records = [
        hostile.record(good, 0, headers=plain),
        hostile.record(good, 1, key=b"k" * 300),
        hostile.record(None, 2),
        hostile.record(b"", 3, headers=[(b"\xff", None)] * 3),
        hostile.record(good, 4, headers=[(b"", b"")] * 2000),
        hostile.record(good, -5, attributes=0x80),
        hostile.record(good, 2**31 - 1),
        hostile.record(None, body=b""),
        hostile.record(None, length=2**31 - 1),
        hostile.record(None, length=-(2**31)),
        hostile.record(None, body=b"\0\0\0\x01" + hostile.varint(2**30)),
        hostile.record(None, body=b"\x80" * 12),
        hostile.record(None, body=b"\0\0\0\x01\x01" + hostile.varint(2**31 - 1)),
    ]
    # The compiler allocates memory once.
    RecordBlock(to_batch(DefaultRecordBatch(hostile.batch(records[:1]))))
    return [
        hostile.batch(records),
        hostile.batch(records[:3], base=2**62),
        hostile.batch(records[:3], last_delta=10),
        hostile.batch(records[:2], count=1000, last_delta=999),
        *(hostile.batch([each]) for each in records),
    ]


@target("record-batch", _batch_seeds, times=512, inputs=2000)
def record_batch(data: bytes) -> None:
    """Parse a batch and decode it: its count of records, at rising offsets."""
    try:
        batch = DefaultRecordBatch(data)
    except struct.error:
        return  # kafka-python's: a broker's answer that ends within a header
    # A broker refuses a batch with a wrong count of records; this bounds batches that it never sent.
    if batch.records_count > 10_000 or batch.base_offset > 2**62 or batch.base_offset < 0:
        return
    try:
        found = list(parse_batch(to_batch(batch)))
    except CorruptRecordError:
        return
    if found and list(RecordBlock(to_batch(DefaultRecordBatch(data))).records()) != found:
        raise Broken("a block has other records")
    offsets = [record.offset for record in found]
    if len(found) != max(batch.records_count, 0) or offsets != sorted(set(offsets)):
        raise Broken("a record has moved")
    if offsets and not batch.base_offset <= offsets[0] <= offsets[-1] <= batch.last_offset:
        raise Broken("a record is outside of its batch")
    if not found:
        return  # a batch is never cut to nothing
    buffer = RecordBuffer(CODECS[3])
    buffer.buffers[0] = PartitionBuffer(0)
    buffer.append(0, found)
    if buffer.buffers[0].count != len(found):
        raise Broken("a record is lost")
    taken, users = buffer.take([len(found)], 1)
    if len(taken) != len(found) or users is None or len(users) != len(found):
        raise Broken("a record is lost on its way to a batch")


# -- files ------------------------------------------------------------------------------------


def _compressed_seeds() -> Sequence[bytes]:
    records = [hostile.record(X[:1].astype("<f4").tobytes(), i, key=b"user %d" % i) for i in range(20)]
    data = b"".join(records)
    seeds = [bytes([number, 20]) + encode(data) for number, encode in codecs.CODECS.values()]
    seeds += [bytes([number, 40]) + encode(data) * 2 for number, encode in codecs.CODECS.values()]
    seeds += [
        bytes([codecs.CODECS[codec][0], 2]) + codecs.bomb(codec, 64 * MIB, records[1])
        for codec in ("gzip", "lz4", "xerial", "zstd")
    ]
    # Libraries and the compiler allocate memory once.
    for seed in seeds[:5]:
        compressed_batch(seed)
    return seeds


@target("compressed-batch", _compressed_seeds, times=512, allowance=96 * MIB, inputs=2000)
def compressed_batch(data: bytes) -> None:
    """Read a compressed batch in both ways; the first two bytes select its codec and count."""
    if len(data) < 2:
        return
    number, count = data[0] % 8, data[1]
    made = hostile.batch([data[2:]], count=count, last_delta=count - 1 + data[0] // 128, attributes=number)
    read = []
    for kind in (BlockReader, RecordReader):
        reader, found = kind(0, TopicPartition("t", 0), MemoryRecords(made)), []
        while reader:
            for each in reader.take(100):
                found += each.records() if isinstance(each, RecordBlock) else [each]
            if reader.inflated > 16 * MIB:
                raise Broken("a poll holds too much")
        read.append(found)
    if read[0] != read[1]:
        raise Broken("a block has other records")
    offsets = [record.offset for record in read[0]]
    if len(offsets) != count or offsets != sorted(set(offsets)) or not all(0 <= o <= count for o in offsets):
        raise Broken("a record has moved")


def _file_seeds() -> Sequence[bytes]:
    table = pa.table({name: X[:, i] for i, name in enumerate("abcd")})
    parquet, arrow_file, array = io.BytesIO(), io.BytesIO(), io.BytesIO()
    pq.write_table(table, parquet)
    with pa.ipc.new_file(arrow_file, table.schema) as writer:
        writer.write_table(table)
    np.save(array, X)
    text = b"a,b,c,d\n1,2,3,4\n5,6,7,8\n"
    nested = b"\x93NUMPY\x01\x00" + struct.pack("<H", 3000) + b"(" * 3000
    return [
        b"\0" + array.getvalue(),
        b"\0" + npy("<f8", "(1099511627776, 4)"),
        b"\0" + npy("|O", "(1, 4)"),
        b"\0" + nested,
        b"\1" + text,
        b"\1" + b'"a","b\n' * 100,
        b"\1" + b"1" * 200_000,
        b"\1a,b\n" + b"9" * 5000 + b",1e999\n",
        b"\2" + parquet.getvalue(),
        b"\3" + arrow_file.getvalue(),
        b"\3" + ipc(table),
    ]


@target("record-file", _file_seeds, times=64, allowance=64 * MIB, inputs=600)
def record_file(data: bytes) -> None:
    """Open and read a file of records; the first byte selects its ending."""
    if not data:
        return
    ending = (".npy", ".csv", ".parquet", ".arrow")[data[0] % 4]
    with tempfile.NamedTemporaryFile(suffix=ending) as file:
        file.write(data[1:])
        file.flush()
        try:
            records = open_records(Path(file.name))
            if len(records) < 10_000:
                for _ in records.parts() if records.parts else ():
                    pass
        except UserError as error:
            check_line(str(error))


def check_line(text: str, most: int = 2000) -> None:
    """Raise Broken unless an error is one short line that a log can hold."""
    if not text or not text.isprintable() or len(text) > most:
        raise Broken(f"an error is no line: {text[:200]!r}")
