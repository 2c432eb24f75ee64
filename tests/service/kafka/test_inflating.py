"""Compressed batches read the same as uncompressed batches, for any bytes."""

from __future__ import annotations

import gzip
import random
import struct
import subprocess
import sys
import zlib
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import lz4.frame
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch, DefaultRecordBatchBuilder
from kafka.record.memory_records import MemoryRecords

from streaming_pca.service.kafka import inflating
from streaming_pca.service.kafka.inflating import MOST_INFLATED, MOST_RECORD_BYTES, inflate, most_record_bytes
from streaming_pca.service.kafka.patches import RecordReader, to_batch, use_reader
from streaming_pca.service.kafka.record_batches import Record
from streaming_pca.service.kafka.record_blocks import BlockReader
from tests.kafka.security.codecs import CODECS, XERIAL, blocks, compressed, plain_snappy, xerial
from tests.kafka.security.hostile import Header, batch, record, varint
from tests.service.kafka.reading import LARGEST_TAKE, TP, Aborted, flat, peak_below, read, takes
from tests.service.kafka.test_record_batches import odd_batches

ROOT = Path(__file__).parents[3]
codecs = pytest.mark.parametrize("codec", CODECS)


def some_records(count: int, seed: int = 1) -> list[bytes]:
    """Return records; every third is incompressible."""
    drawn = random.Random(seed)
    made = []
    for i in range(count):
        value = drawn.randbytes(200) if i % 3 == 0 else b"value %d" % i * 20
        headers: list[Header] = [(b"content-type", b"x"), (b"a", None)]
        made.append(record(value, i, key=b"user %d" % (i % 50) if i % 7 else None, headers=headers[: i % 3]))
    return made


def check_places(found: list[Record], base: int, count: int) -> list[bytes | None]:
    """Check the number of records and their offsets, and return their values."""
    assert [each.offset for each in found] == list(range(base, base + count))
    return [each.value for each in found]


def is_null(found: Iterable[Record]) -> bool:
    return all((each.key, each.value, list(each.headers)) == (None, None, []) for each in found)


def of_bytes(number: int, data: bytes, count: int = 5, **how: Any) -> bytes:
    """Return a batch with the given compressed bytes."""
    return batch([data], count=count, attributes=number, **how)


# -- the same as an uncompressed batch --------------------------------------------


@codecs
@pytest.mark.parametrize("count", [1, 3, 40, 5000])
def test_records_are_those_of_the_batch_that_is_not_compressed(codec: str, count: int) -> None:
    records = some_records(count)
    wanted = read(batch(records, base=70))
    assert len({each.value for each in wanted}) == count
    assert read(compressed(codec, records, base=70)) == wanted


@codecs
def test_a_batch_is_read_from_where_the_fetch_begins(codec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inflating, "_PIECE_BYTES", 2**15)
    monkeypatch.setattr(inflating, "_PIECE_RECORDS", 70)
    records = some_records(1000)
    data = compressed(codec, records, base=100) + compressed(codec, records[:5], base=1100)
    plain = batch(records, base=100) + batch(records[:5], base=1100)
    for start in (0, 100, 101, 169, 170, 1099, 1100, 1104):
        assert read(data, start) == [each for each in read(plain) if each.offset >= start]


@codecs
def test_odd_records_are_those_of_the_batch_that_is_not_compressed(codec: str) -> None:
    for more in (0, 3):
        for records, data in odd_batches(400, seed=9 + more):
            how = {"base": 100, "count": len(records), "last_delta": len(records) - 1 + more}
            wanted = read(batch([data], **how))
            assert read(of_bytes(CODECS[codec][0], CODECS[codec][1](data), **how)) == wanted


@pytest.mark.parametrize("number", [1, 3, 4])
def test_batches_of_the_clients_own_encoder_are_read(number: int) -> None:
    """Snappy is not among them, because the client's needs another package."""
    builder = DefaultRecordBatchBuilder(2, number, False, -1, -1, -1, 2**20)
    wanted = []
    for i in range(300):
        key, value, headers = b"k%d" % i, b"%d" % i * 30, [("a", b"b"), ("c", None)]
        assert builder.append(i, 1_700_000_000_000, key, value, headers)
        wanted.append((i, key, value, headers))
    data = bytes(builder.build())
    assert DefaultRecordBatch(data).compression_type == number
    assert [(r.offset, r.key, r.value, list(r.headers)) for r in read(data)] == wanted


@codecs
@pytest.mark.parametrize("deltas", [(1, 4, 9), (4, 1, 9), (0, 0, 1), (-1, 3, 4), (0, 1, 10), (0, 1, 10**6)])
def test_a_compacted_batch_keeps_offsets_that_rise(codec: str, deltas: tuple[int, ...]) -> None:
    records = [record(b"v" * 2000, delta) for delta in deltas]
    wanted = read(batch(records, base=10, last_delta=9))
    assert read(compressed(codec, records, base=10, last_delta=9)) == wanted
    assert ([each.offset for each in wanted] == [11, 14, 19]) == (deltas == (1, 4, 9))


def test_a_compacted_batch_keeps_offsets_over_pieces() -> None:
    records = [record(b"v" * 1000, 2 * i) for i in range(6000)]
    found = read(compressed("zstd", records, last_delta=12_000))
    assert [each.offset for each in found] == list(range(0, 12_000, 2))
    for wrong in (5, 12_001):
        records[-1] = record(b"v", wrong)
        found = read(compressed("zstd", records, last_delta=12_000))
        assert [each.offset for each in found] == list(range(6000))


@codecs
def test_a_compacted_batch_without_its_end_has_all_its_records(codec: str) -> None:
    records = [record(b"v" * 2000, delta) for delta in (1, 4)]
    how = {"base": 10, "count": 3, "last_delta": 9}
    found = read(compressed(codec, records, **how))
    assert found == read(batch(records, **how))
    assert check_places(found, 10, 3)[2] is None


@codecs
def test_aborted_batches_are_hidden(codec: str) -> None:
    marker = record(b"\0\0\0\0\0\0", key=b"\0\0\0\0")
    data = compressed(codec, some_records(50), attributes=0x10, producer=(7, 0, 0))
    data += compressed(codec, some_records(50), base=50, attributes=0x10, producer=(8, 0, 0))
    data += batch([marker], base=100, attributes=0x30, producer=(7, 0, 0))
    end = record(b"\0\0\0\0\0\0", key=b"\0\0\0\1")
    data += batch([end], base=101, attributes=0x30, producer=(8, 0, 0))
    found = read(data, isolation_level=1, aborted_transactions=[Aborted(7, 0)])
    assert [each.offset for each in found] == list(range(50, 100))
    assert len(read(data)) == 100


def test_a_count_above_the_offsets_is_no_batch() -> None:
    with pytest.raises(CorruptRecordError, match="counts 3 records in 2 offsets"):
        RecordReader(0, TP, MemoryRecords(compressed("gzip", some_records(3), last_delta=1))).take()


# -- bytes that cannot be inflated ------------------------------------------------


@codecs
def test_what_a_cut_leaves_keeps_its_values(codec: str) -> None:
    records = some_records(60)
    wanted = [each.value for each in read(batch(records))]
    number, encode = CODECS[codec]
    data, kept = encode(b"".join(records)), set()
    for cut in range(0, len(data), 13):
        values = check_places(read(of_bytes(number, data[:cut], 60, base=5)), 5, 60)
        left = sum(value is not None for value in values)
        assert values == [*wanted[:left], *[None] * (60 - left)]
        kept.add(left)
    # A single block is read entirely or not at all.
    assert kept == {0} if codec == "snappy" else len(kept) > 1 or codec in ("xerial", "lz4", "zstd")


@pytest.mark.parametrize("codec", ["gzip", "xerial", "lz4", "zstd"])
def test_changed_bits_change_no_record_before_them(codec: str) -> None:
    records = some_records(3000)
    wanted = [each.value for each in read(batch(records))]
    number, encode = CODECS[codec]
    data = bytearray(encode(b"".join(records)))
    drawn, broken = random.Random(3), 0
    for _ in range(8):
        at = drawn.randrange(len(data) * 3 // 4, len(data))
        changed = bytearray(data)
        changed[at] ^= 1 << drawn.randrange(8)
        values = check_places(read(of_bytes(number, bytes(changed), 3000, base=2**40)), 2**40, 3000)
        assert values[:1700] == wanted[:1700]
        broken += values != wanted
    assert broken


@pytest.mark.parametrize(("codec", "trailer"), [("gzip", 8), ("gzip", 4), ("lz4", 4), ("xerial", 0)])
def test_a_break_loses_nothing_of_the_call_that_meets_it(codec: str, trailer: int) -> None:
    """A failing library returns nothing that it inflated in the same call."""
    number, encode = CODECS[codec]
    for count in (1, 400):
        records = some_records(count)
        data = encode(b"".join(records))
        data = data[: len(data) - trailer] + b"\xff" * 8
        values = check_places(read(of_bytes(number, data, count + 1)), 0, count + 1)
        assert values == [*(each.value for each in read(batch(records))), None]


def test_a_break_of_zstd_loses_one_record() -> None:
    records = some_records(400)
    data = zstandard.ZstdCompressor(write_checksum=True).compress(b"".join(records))
    values = check_places(read(of_bytes(4, data[:-1] + bytes([data[-1] ^ 1]), 400)), 0, 400)
    assert values[:399] == [each.value for each in read(batch(records))][:399]


@codecs
def test_a_count_above_the_records_makes_nulls_of_the_rest(codec: str) -> None:
    records = some_records(20)
    found = read(compressed(codec, records, base=3, count=30))
    assert found[:20] == read(batch(records, base=3))
    assert check_places(found, 3, 30)[20:] == [None] * 10
    assert is_null(found[20:])


@codecs
def test_what_follows_the_last_record_is_not_read(codec: str) -> None:
    records = some_records(20)
    wanted = read(batch(records[:10]))
    assert read(compressed(codec, records, count=10)) == wanted
    if codec != "snappy":
        number, encode = CODECS[codec]
        data = encode(b"".join(records[:10])) + b"garbage, and more of it"
        assert read(of_bytes(number, data, 10)) == wanted


def test_frames_that_follow_one_another_are_read_as_java_reads_them() -> None:
    records = some_records(40)
    parts = [b"".join(records[:20]), b"".join(records[20:])]
    wanted = read(batch(records))
    for number, encode in ((1, gzip.compress), (2, xerial), (4, zstandard.compress)):
        assert read(of_bytes(number, b"".join(map(encode, parts)), 40)) == wanted
    found = read(of_bytes(3, b"".join(map(lz4.frame.compress, parts)), 40))
    assert found[:20] == wanted[:20]
    assert is_null(found[20:])


def hostile_frames() -> Iterable[Any]:
    """Yield bytes of each codec that no client writes, named by their fault."""
    text = b"".join(some_records(5))
    sample = [bytes(range(i, i + 60)) * 9 for i in range(60)]
    dictionary = zstandard.train_dictionary(800, sample)
    yield pytest.param(4, zstandard.ZstdCompressor(dict_data=dictionary).compress(text), id="zstd dictionary")
    huge = zstandard.ZstdCompressionParameters(window_log=28, write_content_size=False)
    made = zstandard.ZstdCompressor(compression_params=huge).compressobj()
    yield pytest.param(4, made.compress(text) + made.flush(), id="zstd window")
    yield pytest.param(2, b"\xff\xff\xff\xff\x0f" + plain_snappy(text)[2:], id="snappy of 4 GiB")
    yield pytest.param(2, XERIAL + struct.pack(">i", 2**31 - 1) + text, id="snappy block of 2 GiB")
    yield pytest.param(2, XERIAL + struct.pack(">i", -1) + text, id="snappy block below 0")
    claim = blocks(text)
    claim = claim[:4] + b"\xff\xff\xff\xff\x0f" + claim[9:]
    yield pytest.param(2, XERIAL + claim, id="snappy claim in a block")
    yield pytest.param(3, b"\x04\x22\x4d\x18" + bytes(20), id="lz4 version")
    old = bytearray(lz4.frame.compress(text, store_size=False))
    old[6] ^= 0xFF
    yield pytest.param(3, bytes(old), id="lz4 checksum of Kafka's first format")
    yield pytest.param(1, zlib.compress(text), id="zlib")
    yield pytest.param(5, text, id="unknown codec 5")
    yield pytest.param(7, text, id="unknown codec 7")
    for number in (1, 2, 3, 4):
        yield pytest.param(number, b"", id=f"nothing {number}")
        yield pytest.param(number, text, id=f"not compressed {number}")


@pytest.mark.parametrize(("number", "data"), [*hostile_frames()])
def test_what_is_no_frame_makes_nulls_in_their_places(number: int, data: bytes) -> None:
    with peak_below(2**22):
        found = read(of_bytes(number, data, 5, base=8) + batch([record(b"next")], base=13))
    assert check_places(found, 8, 6) == [None] * 5 + [b"next"]
    assert is_null(found[:5])


def test_a_dictionary_of_lz4_is_refused() -> None:
    """One of these header checksums is right."""
    frame = lz4.frame.compress(b"".join(some_records(5)), store_size=False)
    for checksum in range(256):
        named = frame[:4] + bytes([frame[4] | 1, frame[5]]) + b"dict" + bytes([checksum]) + frame[7:]
        assert is_null(read(of_bytes(3, named, 5)))


def test_a_block_of_snappy_that_is_too_large_is_not_inflated() -> None:
    records = [record(bytes(2**20), i) for i in range(40)]
    assert MOST_INFLATED // 4 + MOST_RECORD_BYTES == 32 * 2**20
    assert is_null(read(compressed("snappy", records[:32])))
    assert not is_null(read(compressed("snappy", records[:31])))
    assert not is_null(read(compressed("snappy", records), most_bytes=2 * MOST_RECORD_BYTES))


def test_the_largest_window_of_javas_client_is_read() -> None:
    most = zstandard.ZstdCompressionParameters.from_level(22, window_log=27, write_content_size=False)
    made = zstandard.ZstdCompressor(compression_params=most).compressobj()
    records = some_records(5)
    data = made.compress(b"".join(records)) + made.flush()
    assert zstandard.get_frame_parameters(data).window_size == 2**27
    assert read(of_bytes(4, data, 5)) == read(batch(records))


@given(st.integers(1, 7), st.binary(max_size=200), st.integers(0, 6), st.integers(0, 3))
def test_any_bytes_are_as_many_records_as_are_counted(
    number: int, data: bytes, count: int, more: int
) -> None:
    found = read(of_bytes(number, data, count, base=9, last_delta=count - 1 + more))
    offsets = [each.offset for each in found]
    assert len(offsets) == count
    assert offsets == sorted(set(offsets))
    assert not offsets or 9 <= offsets[0] <= offsets[-1] < 9 + count + more


@given(st.sampled_from([*CODECS]), st.binary(max_size=200), st.integers(1, 6), st.data())
def test_any_inflated_bytes_are_what_they_are_uncompressed(
    codec: str, data: bytes, count: int, draw: st.DataObject
) -> None:
    number, encode = CODECS[codec]
    more = draw.draw(st.integers(0, 3))
    how = {"base": 9, "count": count, "last_delta": count - 1 + more}
    assert read(of_bytes(number, encode(data), **how)) == read(batch([data], **how))


# -- sizes ----------------------------------------------------------------------


@pytest.mark.parametrize("most", [100, 3 * 2**20])
@codecs
def test_a_record_that_is_too_long_keeps_its_place_and_its_key(codec: str, most: int) -> None:
    around = len(record(bytes(most), key=b"long")) - len(varint(most)) - most
    sizes = {"kept": most - around, "long": most - around + 1}
    kept, long = (record(bytes(size), i + 1, key=b"long") for i, size in enumerate(sizes.values()))
    records = [record(b"a"), kept, long, record(b"b", 3, key=b"user")]
    for last in (3, 7):
        found = read(compressed(codec, records, last_delta=last), most_bytes=most)
        values = check_places(found, 0, 4)
        assert [each.key for each in found] == [None, b"long", b"long", b"user"]
        assert values == [b"a", bytes(sizes["kept"]), None, b"b"]
        assert not found[2].headers


def test_a_long_record_that_is_cut_off_is_missing() -> None:
    data = record(b"a") + record(bytes(5 * 2**20), 1, key=b"long")[: 3 * 2**20]
    found = read(of_bytes(1, gzip.compress(data), 4), most_bytes=2**20)
    assert check_places(found, 0, 4) == [b"a", None, None, None]
    assert is_null(found[1:])


def test_a_key_that_is_longer_than_a_piece_is_not_kept() -> None:
    records = [record(bytes(100), 0, key=bytes(3 * 2**20)), record(b"b", 1, key=b"k")]
    found = read(of_bytes(4, CODECS["zstd"][1](b"".join(records)), 2), most_bytes=2**20)
    assert [(each.key, each.value) for each in found] == [(None, None), (b"k", b"b")]


def test_the_bound_leaves_room_for_keys_and_headers() -> None:
    assert most_record_bytes(1000) == MOST_RECORD_BYTES
    assert most_record_bytes(10**9) > 10**9 + 10**6


CHILD = """
import time
from kafka.record.memory_records import MemoryRecords
from streaming_pca.service.kafka.record_blocks import BlockReader
from tests.fuzz.target import _status
from tests.kafka.security.codecs import CODECS, bomb, plain_snappy, xerial
from tests.kafka.security.hostile import record
from tests.service.kafka.reading import TP, flat
from tests.service.kafka.test_inflating import of_bytes

BlockReader(0, TP, MemoryRecords(of_bytes(2, xerial(bytes(2**16)), 5000))).take()
next_ = record(b"next", 1)
batches = {codec: (bomb(codec, 300 * 2**20, next_), 2) for codec in ("gzip", "xerial", "lz4", "zstd")}
# One block of 31 MiB, of which most is a record that is kept.
batches["snappy"] = plain_snappy(record(bytes(15 * 2**20)) + record(bytes(2**16)) * 255), 256
for codec, (data, count) in batches.items():
    reader = BlockReader(0, TP, MemoryRecords(of_bytes(CODECS[codec][0], data, count)))
    open("/proc/self/clear_refs", "w").write("5")
    before, polls, values, most, slowest = _status("VmRSS"), 0, [], 0, 0
    while reader:
        began = time.process_time()
        found = flat(reader.take(2000))
        slowest, most = max(slowest, time.process_time() - began), max(most, reader.inflated)
        values += [None if r.value is None else len(r.value) for r in found]
        polls += 1
        assert reader.next_fetch_offset == len(values)
    wanted = [15 * 2**20, *[2**16] * 255] if codec == "snappy" else [None, 4]
    assert values == wanted, values
    print(codec, polls, most, _status("VmHWM") - before, slowest, flush=True)
"""


def test_bombs_take_bounded_memory_and_end_polls() -> None:
    child = [sys.executable, "-c", CHILD]
    run = subprocess.run(child, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr
    print(run.stdout)
    lines = [line.split() for line in run.stdout.splitlines()]
    assert [line[0] for line in lines] == ["gzip", "xerial", "lz4", "zstd", "snappy"]
    for codec, polls, most, grown, slowest in lines:
        assert int(polls) >= (300 // 11 if codec != "snappy" else 2), codec
        assert int(most) <= LARGEST_TAKE + (MOST_RECORD_BYTES if codec == "snappy" else 0), codec
        assert int(grown) < MOST_INFLATED + 2**22, codec
        assert float(slowest) < 2, codec


EMPTY_BLOCK = struct.pack(">i", 1) + plain_snappy(b"")


@pytest.mark.parametrize(
    ("number", "head", "unit", "encode"),
    [(1, b"", gzip.compress(b""), gzip.compress), (2, XERIAL, EMPTY_BLOCK, blocks)],
    ids=["gzip", "xerial"],
)
def test_empty_frames_end_polls_too(number: int, head: bytes, unit: bytes, encode: Any) -> None:
    records = some_records(5)
    data = head + unit * 300_000 + encode(b"".join(records))
    found = takes(BlockReader(0, TP, MemoryRecords(of_bytes(number, data, 5))))
    assert len(found) > 2
    assert [each for some in found for each in some] == read(batch(records))


def test_a_poll_holds_few_inflated_bytes() -> None:
    """A fetch of 4 MiB may inflate to gigabytes; a poll takes as many blocks as records."""
    records = [record(bytes(2**16), i) for i in range(40)]
    data = b"".join(compressed("zstd", records, base=40 * i) for i in range(20))
    assert len(data) < 2**17
    for kind in (BlockReader, RecordReader):
        found = takes(kind(0, TP, MemoryRecords(data)))
        assert len(found) >= 5
        assert all(sum(len(r.value or b"") for r in some) <= LARGEST_TAKE for some in found)
        assert [r.offset for some in found for r in some] == list(range(800))
    reader = BlockReader(0, TP, MemoryRecords(data))
    assert len(reader.take(1)) == 1
    assert reader.inflated < 2 * inflating._PIECE_BYTES


def test_a_large_record_is_held_once() -> None:
    data = compressed("zstd", [record(bytes(MOST_RECORD_BYTES - 100)), record(b"b", 1)] * 2)
    with peak_below(2.5 * MOST_RECORD_BYTES):
        for piece in inflate(to_batch(DefaultRecordBatch(data))):
            assert piece.count <= 2
            del piece


def test_the_client_ends_a_poll_with_what_was_inflated() -> None:
    """Otherwise it continues until it has as many records as a poll may return."""
    taken: list[Any] = []

    class Fetcher:
        def _append(self, drained: Any, part: Any, most: int, update: bool) -> int:
            taken.append(part.take(most))
            return len(taken[-1])

    fetcher = Fetcher()
    use_reader(SimpleNamespace(_fetcher=fetcher), partial(BlockReader, most_bytes=100))
    records = [record(b"a"), record(bytes(100), 1), record(b"b", 2)]
    for data, left in ((compressed("lz4", records), 2000), (batch(records), 3)):
        part = fetcher.PartitionRecords(0, TP, MemoryRecords(data))  # type: ignore[attr-defined]
        assert fetcher._append({}, part, 2000, True) == left
    found = [[r.value for r in some] for some in map(flat, taken)]
    assert found == [[b"a", None, b"b"], [b"a", bytes(100), b"b"]]
