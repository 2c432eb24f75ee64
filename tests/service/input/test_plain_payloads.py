"""Rows copied in one compiled pass equal the codec's rows, read message by message."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.codec import FORMATS, OCTETS, PayloadCodec
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import JSON, PublicSchema
from streaming_pca.data.records import RecordKind
from streaming_pca.service.input.buffer import RecordBuffer
from tests.data.features.formats import avro_record, in_avro
from tests.kafka.security.hostile import Header, batch, record
from tests.service.input.test_buffer import a_buffer
from tests.service.kafka.reading import block_of

DIM, MOST = 3, 4
PLAIN: list[Header] = [(b"content-type", OCTETS.encode())]


def described(dtype: str) -> list[Header]:
    return [*PLAIN, (b"dtype", dtype.encode()), (b"record-kind", b"factor")]


def value(random_: random.Random, dtype: str) -> bytes | None:
    """Return mostly rows; sometimes no rows, too many, half a row, or a number that is not finite."""
    rows = random_.choice([0, 1, 1, 1, 2, MOST, MOST + 1])
    x = np.arange(rows * DIM, dtype=dtype) + random_.randrange(100)
    if rows and random_.random() < 0.2:
        x[random_.randrange(len(x))] = random_.choice([np.inf, -np.inf, np.nan, 0.0, -0.0, 1e-45])
    data = x.tobytes()
    if rows and random_.random() < 0.05:
        # NaNs with any bits.
        data = b"\x01\x00\xf0\x7f" * (len(data) // 4)
    return random_.choice([data] * 8 + [None, b"", data[:-1], data + b"\0"])


def batches(dtype: str, headers: Callable[[random.Random], list[Header]], seed: int) -> list[bytes]:
    random_ = random.Random(seed)
    made, base = [], 0
    for _ in range(30):
        count, keys = random_.randrange(1, 12), [None, b"", b"ada", b"bob"]
        records = [
            record(value(random_, dtype), i, key=random_.choice(keys), headers=headers(random_))
            for i in range(count)
        ]
        if random_.random() < 0.1:
            records[-1] = record(None, body=b"\0\0\0\x06ada\x01")
        made.append(batch(records, base=base))
        base += count
    return made


def buffers(codec: PayloadCodec, made: list[bytes]) -> tuple[RecordBuffer, RecordBuffer]:
    """Return buffers filled from blocks, and from single records."""
    blocks = [block_of(each) for each in made]
    by_block, by_record = a_buffer(codec), a_buffer(codec)
    by_block.append(0, blocks)
    by_record.append(0, [each for block in blocks for each in block.records()])
    return by_block, by_record


def rows_of(batch_: ArrayBatch) -> list[bytes]:
    lengths = np.diff(batch_.starts)
    return [batch_.rows[at : at + n].tobytes() for at, n in zip(batch_.places(), lengths, strict=True)]


def check(codec: PayloadCodec, made: list[bytes]) -> None:
    by_block, by_record = buffers(codec, made)
    n = by_block.buffers[0].count
    assert n == by_record.buffers[0].count
    for count in (n // 3, n - n // 3):
        (ours, users), (theirs, wanted) = by_block.take([count], 1), by_record.take([count], 1)
        assert ours.rows.dtype == theirs.rows.dtype
        assert np.array_equal(ours.starts, theirs.starts)
        assert rows_of(ours) == rows_of(theirs)
        assert (users is None and wanted is None) or np.array_equal(users, wanted)


UNITS: list[dict[str, Any]] = [{"unit": "message"}, {"unit": "row"}, {"unit": "user", "user_key": b"k" * 32}]


@pytest.mark.parametrize(("unit", "dtype"), list(product(range(3), ["float32", "float64"])))
def test_plain_rows_are_those_of_the_codec(unit: int, dtype: Any) -> None:
    codec = PayloadCodec(DIM, dtype=dtype, max_rows=MOST, **UNITS[unit])
    kinds: list[list[Header]] = [[], PLAIN, described(dtype)]
    for seed in range(10):
        check(codec, batches(dtype, lambda r: r.choice(kinds), seed))


@pytest.mark.parametrize("unit", range(3))
def test_batches_with_other_headers_are_read_by_the_codec(unit: int) -> None:
    codec = PayloadCodec(DIM, max_rows=MOST, **UNITS[unit])
    in_json: list[Header] = [(b"content-type", JSON.encode())]
    other: list[list[Header]] = [described("float64"), in_json, [(b"a", b"b")], [(b"a", None)]]
    for seed in range(10):
        check(codec, batches("float32", lambda r: r.choice([[]] * 20 + other), seed))


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
def test_streams_of_other_formats_are_read_by_the_codec(kind: RecordKind) -> None:
    for seed in range(5):
        made = batches("float32", lambda r: r.choice([[], PLAIN]), seed)
        check(PayloadCodec(DIM, kind, max_rows=MOST, content_type=JSON), made)
        check(PayloadCodec(DIM, kind, max_rows=MOST), made)


OBJECTS = [
    b'{"a": 1, "user": "ada"}',
    b'{"a": 1.5, "more": [1]}',
    b'[{"a": 2, "user": 7}, {"a": 3, "user": 7}]',
    b'{"a": "x"}',
    b'{"a": 9, "user": "bob"',
    b"5",
    b"",
    None,
]
ROW = avro_record({"a": "double", "user": "string"})
"""Schema of the same objects in Avro."""
RECORDS = {
    "json": OBJECTS,
    "avro": [
        in_avro(ROW, {"a": 1, "user": "ada"}),
        in_avro(ROW, {"a": 2.5, "user": ""}),
        b"\0\0\0\0\1" + in_avro(ROW, {"a": 3, "user": "bob"}),
        in_avro(ROW, {"a": np.nan, "user": "ada"}),
        *OBJECTS[3:],
    ],
}


@pytest.mark.parametrize("unit", ["message", "row", "user", "user field"])
@pytest.mark.parametrize("with_headers", [False, True])
@pytest.mark.parametrize("form", ["json", "avro"])
def test_objects_of_a_block_are_those_of_its_records(unit: str, with_headers: bool, form: Any) -> None:
    named: Any = unit.split()[0]
    schema = PublicSchema("avro", json.dumps(ROW).encode()) if form == "avro" else None
    fields = FieldReader([Feature(name="a")], ("user",) if "field" in unit else None, schema)
    how: dict[str, Any] = {"unit": named, "user_key": b"k" * 32 if named == "user" else None}
    codec = PayloadCodec(1, max_rows=MOST, content_type=FORMATS[form], fields=fields, **how)
    random_, made, base = random.Random(5), [], 0
    for _ in range(30):
        headers = random_.choice([[], [(b"x", b"y")], PLAIN]) if with_headers else []
        records = [
            record(random_.choice(RECORDS[form]), i, key=random_.choice([None, b"ada"]), headers=headers)
            for i in range(random_.randrange(1, 12))
        ]
        if random_.random() < 0.2:
            records[-1] = record(None, body=b"\0\0\0\x06ada\x01")
        made.append(batch(records, base=base))
        base += len(records)
    check(codec, made)


def test_plain_rows_are_copied_without_a_record() -> None:
    buffer = RecordBuffer(PayloadCodec(DIM, max_rows=MOST))
    blocks = [block_of(each) for each in batches("float32", lambda r: PLAIN, 1)]
    for block in blocks:
        assert buffer._plain.copy(block, buffer._store) is not None
    # After a row of another type, rows are converted message by message.
    buffer._store.append(np.ones((1, DIM)))
    assert buffer._plain.copy(blocks[0], buffer._store) is None


def test_chunks_of_one_leader_are_one() -> None:
    buffer = a_buffer(PayloadCodec(DIM, max_rows=MOST))
    blocks = [block_of(each) for each in batches("float32", lambda r: [], 2)]
    for block in blocks[20:]:
        block.leader_epoch = 5
    buffer.append(0, blocks)
    assert [chunk.epoch for chunk in buffer.buffers[0].chunks] == [-1, 5]


def test_objects_beyond_a_bound_wait_for_their_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    columns, count = 1000, 4000
    words = [f"w{i}" for i in range(columns)]
    fields = FieldReader([Feature(name="c", categories=words)])
    codec = PayloadCodec(columns, content_type=JSON, fields=fields)
    made = [record(b'{"c":"w%d"}' % (i % columns), i) for i in range(count)]
    block = block_of(batch(made))
    monkeypatch.setattr("streaming_pca.service.input.buffer._MOST_MADE", 2**20)
    buffer = a_buffer(codec)
    buffer.append(0, [block])
    part = buffer.buffers[0]
    # One piece exceeds the bound.
    assert (part.count, part.decoded) == (count, 2000)
    assert [part.count_before(end) for end in (0, 1, 2500, count, count + 9)] == [0, 1, 2500, count, count]
    batch_, _ = buffer.take([100], 1)
    assert (len(batch_), part.count, part.decoded) == (100, count - 100, 1900)
    rest, _ = buffer.take([2500], 1)
    assert rest.rows.argmax(axis=1).tolist() == [(100 + i) % columns for i in range(2500)]
    assert (part.count, part.decoded) == (1400, 1400)
    # Later records follow them; their offsets must rise.
    with pytest.raises(ValueError, match="offsets do not rise"):
        buffer.append(0, [block])
