"""Blocks of records equal the records of the parser that reads one by one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from streaming_pca.service.kafka.patches import to_batch
from streaming_pca.service.kafka.record_batches import Record, parse_batch
from streaming_pca.service.kafka.record_blocks import BlockReader
from tests.kafka.security.hostile import batch, record, sized, varint
from tests.service.kafka.reading import TP, Aborted, block_of, peak_below, read
from tests.service.kafka.test_record_batches import odd_batches

LARGE = b"v" * 2000
"""Value so large that a few records make a batch which is not copied."""


def check(data: bytes) -> list[Record]:
    """Check that a block's records equal the model's, and return them."""
    block = block_of(data)
    wanted = list(parse_batch(to_batch(DefaultRecordBatch(data))))
    assert list(block.records()) == wanted
    assert list(block.keys()) == [each.key for each in wanted]
    assert block.offsets.tolist() == [each.offset for each in wanted]
    values = block.bare_values()
    if values is not None:
        assert not any(each.headers for each in wanted)
        # Java reads nothing of a record that is broken after its value.
        assert [None if each is None else bytes(each) for each in values] == [each.value for each in wanted]
    return wanted


@pytest.mark.parametrize("more", [0, 1, 50])
def test_odd_records_are_those_of_the_model(more: int) -> None:
    read_ = null = 0
    for records, data in odd_batches(10_000, seed=170 + more):
        last = len(records) - 1 + more
        found = check(batch([data], base=100, count=len(records), last_delta=last))
        null += sum(each.value is None for each in found)
        read_ += sum(each.value is not None for each in found)
    assert min(null, read_) > 4000


def test_values_without_headers_are_found_without_a_record() -> None:
    bare = [record(b"x", 0), record(None, 1), record(b"", 2, key=b"k")]
    with_header = [*bare, record(b"y", 3, headers=[(b"a", b"b")])]
    for records, values in ((bare, [b"x", None, b""]), (with_header, None)):
        assert block_of(batch(records)).bare_values() == values


@given(st.binary(max_size=120), st.integers(1, 6), st.integers(0, 3))
def test_any_bytes_are_what_the_model_reads(data: bytes, count: int, more: int) -> None:
    check(batch([data], base=9, count=count, last_delta=count - 1 + more))


def bodies() -> Iterator[bytes]:
    """Yield records on both sides of each rule."""
    start = b"\0" + varint(0) + varint(0) + sized(b"user")
    for stop in (b"", b"\0", varint(1), varint(-1), varint(1001), b"\x80" * 6, varint(-(2**31))):
        yield start + sized(b"x") + stop
        yield start + varint(-1) + stop
        yield start + stop
    yield b""
    yield b"\0"
    for size in range(9, 13):
        yield b"\0" + b"\x80" * size + b"\0" + varint(0) + sized(None) + sized(b"x") + b"\0"
    # A length with bits beyond 32, a key's length after the end of the record, and one below 0.
    yield b"\0" + varint(0) + varint(0) + sized(None) + b"\x82\x80\x80\x80\x70" + b"x" + varint(0)
    yield b"\0\0\0" + varint(2**31 - 1)
    yield b"\0\0\0" + varint(-(2**31)) + sized(b"x") + b"\0"
    yield b"\0\0\0\x01\x01"


@pytest.mark.parametrize("body", [*bodies()])
def test_each_rule_is_that_of_the_model(body: bytes) -> None:
    whole, cut = record(None, body=body), record(None, body=body, length=max(len(body) - 1, 0))
    for each in (whole, cut, whole[:-1]):
        check(batch([each], count=1))
        check(batch([record(b"a"), each, record(b"b", key=b"k")]))


@pytest.mark.parametrize("deltas", [(0, 1, 5, 6), (3, 2, 1, 0), (0, 0, 1, 2), (-1, 0, 1, 2), (0, 1, 2, 7)])
@pytest.mark.parametrize("last", [3, 6])
def test_offsets_are_those_of_the_model(deltas: tuple[int, ...], last: int) -> None:
    check(batch([record(LARGE, delta) for delta in deltas], base=2**40, last_delta=last))


def test_batches_are_read_from_where_the_fetch_begins() -> None:
    whole = [batch([record(LARGE)] * 6, base=base) for base in (0, 6, 12)]
    left = batch([record(LARGE, delta) for delta in (0, 3, 4, 8)], base=18, last_delta=11)
    for start in range(0, 30, 3):
        found = read(b"".join([*whole, batch([record(b"few")], base=18), left[:0]]), start)
        assert [each.offset for each in found] == list(range(start, 19))
        read(b"".join([*whole, left]), start)


def test_an_answer_is_not_copied_and_not_kept() -> None:
    data = bytearray(batch([record(LARGE)] * 6))
    (block,) = BlockReader(0, TP, MemoryRecords(data)).take()
    assert np.shares_memory(block.data, np.frombuffer(data, np.uint8))
    with pytest.raises(BufferError):
        data.clear()
    del block
    data.clear()


def test_aborted_and_control_batches_are_hidden() -> None:
    own, other = (7, 0, 0), (8, 0, 0)
    marker = record(b"\0\0\0\0\0\0", key=b"\0\0\0\0")
    data = batch([record(LARGE)] * 5, base=0, attributes=0x10, producer=own)
    data += batch([record(LARGE, key=b"k")] * 5, base=5, attributes=0x10, producer=other)
    data += batch([marker], base=10, attributes=0x30, producer=own)
    data += batch([record(LARGE)] * 5, base=11, attributes=0x10, producer=own)
    commit = record(b"\0\0\0\0\0\0", key=b"\0\0\0\1")
    data += batch([commit], base=16, attributes=0x30, producer=own)
    data += batch([commit], base=17, attributes=0x30, producer=other)
    found = read(data, isolation_level=1, aborted_transactions=[Aborted(7, 0)])
    assert [each.offset for each in found] == [*range(5, 10), *range(11, 16)]
    # No broker writes a large control batch, but it is hidden all the same.
    control = [record(LARGE, key=LARGE, headers=[(b"a", b"b")])] * 4
    data += batch(control, base=18, attributes=0x30, producer=own)
    assert [each.offset for each in read(data)] == [*range(10), *range(11, 16)]


def test_a_wrong_checksum_is_seen() -> None:
    data = bytearray(batch([record(LARGE)] * 5))
    data[-1] ^= 1
    with pytest.raises(CorruptRecordError, match="checksum"):
        BlockReader(0, TP, MemoryRecords(data)).take()


def test_a_batch_of_very_many_records_is_read_a_part_at_a_time() -> None:
    data = batch([record(None)] * (2**16 + 1))
    (first, *rest) = BlockReader(0, TP, MemoryRecords(data)).take(5)
    assert [each.offset for each in (first, *rest)] == list(range(5))
    assert isinstance(first, Record)


def test_a_count_beyond_the_bytes_takes_no_memory() -> None:
    reader = BlockReader(0, TP, MemoryRecords(batch([record(LARGE)] * 4, count=2**31 - 1)))
    with peak_below(2**20):
        found = reader.take(100)
    assert [each.offset for each in found] == list(range(100))
    more = batch([record(LARGE)] * 4, count=5, last_delta=3)
    with pytest.raises(CorruptRecordError, match="counts 5 records in 4 offsets"):
        BlockReader(0, TP, MemoryRecords(more)).take()
