"""The parser reads record batches as Java does, and gives null records for anything else."""

from __future__ import annotations

import itertools
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kafka.errors import CorruptRecordError
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords

from streaming_pca.dev.jars import fetch_jars
from streaming_pca.service.kafka.patches import RecordReader, to_batch
from streaming_pca.service.kafka.record_batches import Record, UnreadableBatch, parse_batch
from tests.kafka.security.hostile import batch, record, sized, unsigned, varint
from tests.service.kafka.reading import TP


def parsed(data: bytes) -> list[Record]:
    return list(parse_batch(to_batch(DefaultRecordBatch(data))))


def read(data: bytes, start: int = 0) -> list[Record]:
    reader = RecordReader(start, TP, MemoryRecords(data))
    return reader.take()


# -- offsets -----------------------------------------------------------------


@pytest.mark.parametrize("last", [2, 9])
@pytest.mark.parametrize(
    "deltas", [(0, 1, 10), (0, 1, 10**6), (0, 2**31 - 1, 2), (0, 1, -50), (-1, 0, 1), (0, 0, 0), (2, 1, 0)]
)
def test_what_a_record_says_of_its_offset_moves_nothing(deltas: tuple[int, ...], last: int) -> None:
    found = parsed(batch([record(b"x", d) for d in deltas], base=70, last_delta=last))
    assert [r.offset for r in found] == [70, 71, 72]


def test_a_delta_of_five_bytes_moves_nothing() -> None:
    body = b"\0" + varint(0) + b"\xfe\xff\xff\xff\x6f" + sized(None) + sized(b"x") + varint(0)
    reader = RecordReader(0, TP, MemoryRecords(batch([record(None, body=body)], base=3)))
    assert [(r.offset, r.value) for r in reader.take()] == [(3, b"x")]
    assert reader.next_fetch_offset == 4


def test_a_compacted_batch_keeps_the_offsets_that_its_records_had() -> None:
    left = batch([record(b"a", 1), record(b"b", 4)], base=10, last_delta=6)
    assert [r.offset for r in parsed(left)] == [11, 14]
    reader = RecordReader(10, TP, MemoryRecords(left))
    assert len(reader.take()) == 2
    assert reader.next_fetch_offset == 17


def test_more_records_than_offsets_are_no_batch() -> None:
    with pytest.raises(CorruptRecordError, match="counts 3 records in 2 offsets"):
        parsed(batch([record(b"x")] * 3, last_delta=1))


@given(st.lists(st.integers(-(2**31), 2**31 - 1), max_size=8), st.integers(0, 12), st.integers(0, 10**9))
def test_offsets_rise_within_their_batch(deltas: list[int], more: int, base: int) -> None:
    last = len(deltas) - 1 + more
    found = parsed(batch([record(b"x", d) for d in deltas], base=base, last_delta=last))
    offsets = [r.offset for r in found]
    assert len(offsets) == len(deltas)
    assert all(a < b for a, b in itertools.pairwise([base - 1, *offsets, base + last + 1]))


# -- records that cannot be read -----------------------------------------------


def test_attributes_are_one_byte() -> None:
    assert [r.value for r in parsed(batch([record(b"x", attributes=0x80)]))] == [b"x"]


def test_overflowing_bits_of_a_length_are_dropped() -> None:
    # Zig-zag 2 for the length 1, with bits of the fifth byte beyond 32.
    body = b"\0" + varint(0) + varint(0) + sized(None) + b"\x82\x80\x80\x80\x70" + b"x" + varint(0)
    assert [r.value for r in parsed(batch([record(None, body=body)]))] == [b"x"]


def test_the_key_of_a_record_that_cannot_be_read_is_kept() -> None:
    start = b"\0" + varint(0) + varint(0) + sized(b"user")
    bodies = [start + varint(10**6), start + sized(b"x") + varint(-1), start + sized(b"x") + varint(1)]
    found = parsed(batch([record(None, body=body) for body in bodies] + [record(b"y")]))
    assert [(r.key, r.value) for r in found] == [(b"user", None)] * 3 + [(None, b"y")]


def test_a_header_name_that_is_not_utf8_names_nothing() -> None:
    headers = [(b"\xff\xfe", b"1"), (b"content-type", b"2")]
    (found,) = parsed(batch([record(b"x", key=b"k", headers=headers)]))
    assert (found.key, found.value) == (b"k", b"x")
    assert found.headers[1] == ("content-type", b"2")
    assert found.headers[0][0] not in ("content-type", "")


@pytest.mark.parametrize(("count", "value"), [(1000, b"x"), (1001, None), (300_000, None)])
def test_headers_are_bounded(count: int, value: bytes | None) -> None:
    (found,) = parsed(batch([record(b"x", key=b"k", headers=[(b"", b"")] * count)]))
    assert (found.key, found.value) == (b"k", value)


def test_records_behind_a_length_that_leads_nowhere_are_null() -> None:
    found = parsed(batch([record(b"a"), record(b"b", length=10**6), record(b"c")], base=5))
    assert [(r.offset, r.value) for r in found] == [(5, b"a"), (6, None), (7, None)]


def test_every_batch_is_read_from_where_the_fetch_begins() -> None:
    data = batch([record(b"a"), record(b"b", -7)], base=5) + batch([record(b"c", 99)], base=7)
    assert [(r.offset, r.value) for r in read(data, 6)] == [(6, b"b"), (7, b"c")]


def test_a_batch_of_an_older_format_is_refused() -> None:
    old = bytearray(batch([record(b"b")], base=3))
    old[16] = 1
    reader = RecordReader(0, TP, MemoryRecords(batch([record(b"a")], base=2) + bytes(old)), check_crcs=False)
    assert [r.value for r in reader.take()] == [b"a"]
    with pytest.raises(UnreadableBatch, match=r"the records at offset 3 are of message format 1"):
        reader.take()


# -- the same as Java ------------------------------------------------------------

JavaBody = tuple[bytes | None, bytes | None, tuple[tuple[bytes, bytes | None], ...]]


class _Java:
    """`DefaultRecord.readFrom` of Apache Kafka 4.1, written from its source: one record at a time."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0

    def byte(self) -> int:
        if self.at >= len(self.data):
            raise ValueError("underflow")
        self.at += 1
        return self.data[self.at - 1]

    def bits(self, most: int, width: int) -> int:
        raw = 0
        for i in range(most):
            b = self.byte()
            raw |= (b & 127) << 7 * i
            if b < 128:
                raw &= 2**width - 1
                return (raw >> 1) ^ -(raw & 1)
        raise ValueError("illegal varint")

    def array(self) -> bytes | None:
        size = self.bits(5, 32)
        if size < 0:
            return None
        if size > len(self.data) - self.at:
            raise ValueError("underflow")
        self.at += size
        return self.data[self.at - size : self.at]

    def body(self) -> JavaBody:
        size = self.bits(5, 32)
        if len(self.data) - self.at < size:
            raise ValueError("size")
        start = self.at
        self.byte()
        self.bits(10, 64)
        self.bits(5, 32)
        key, value = self.array(), self.array()
        n = self.bits(5, 32)
        if not 0 <= n <= len(self.data) - self.at:
            raise ValueError("headers")
        headers = []
        for _ in range(n):
            name = self.array()
            if name is None:
                raise ValueError("header")
            headers.append((name, self.array()))
        if self.at - start != size:
            raise ValueError("size")
        return key, value, tuple(headers)


def java_reads(data: bytes, count: int) -> tuple[list[JavaBody], bool]:
    """Return the records that Java reads from a batch, and whether it accepts the batch."""
    java, found = _Java(data), []
    try:
        while len(found) < count:
            found += [java.body()]
    except ValueError:
        return found, False
    return found, java.at == len(data)


def odd_batches(n: int, seed: int) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield mostly correct records, some with overlong numbers, and their bytes with some changes."""
    random_ = random.Random(seed)
    for _ in range(n):
        records = [_odd_record(random_) for _ in range(random_.randrange(1, 5))]
        data = bytearray(b"".join(records))
        for _ in range(random_.choice([0, 0, 1, 1, 2, 3])):
            at = random_.randrange(len(data))
            data[at] = random_.choice([0, 1, 2, 0x7F, 0x80, 0xFF, random_.randrange(256)])
        yield records, bytes(data)


def _odd_record(random_: random.Random) -> bytes:
    def size() -> int:
        return random_.choice([1, 1, 1, 2, 4, 5])

    def some() -> bytes | None:
        return random_.choice([None, b"", random_.randbytes(random_.randrange(1, 200))])

    def number(value: int) -> bytes:
        raw = (value << 1) ^ (value >> 63)
        if random_.random() < 0.05:
            raw |= random_.randrange(8) << 32  # bits beyond 32
            return unsigned(raw, 5)
        return unsigned(raw, size())

    def array(data: bytes | None) -> bytes:
        return number(-1 if data is None else len(data)) + (data or b"")

    body = bytes([random_.choice([0, 0, 0x80, 0xFF])])
    body += varint(random_.choice([0, 5, -7, 2**62, -(2**63)]))
    body += number(random_.choice([0, 1, -50, 2**31 - 1]))
    body += array(some()) + array(some())
    headers = random_.choice([0, 0, 1, 3])
    body += number(headers)
    for _ in range(headers):
        body += array(random_.choice([b"a", b"dtype", b"\xff\xfe", b""])) + array(some())
    return number(len(body)) + body


def compare(found: list[Record], java: list[JavaBody], base: int) -> None:
    assert [r.offset for r in found] == [base + i for i in range(len(java))]
    for ours, (key, value, headers) in zip(found, java, strict=True):
        assert (ours.key, ours.value) == (key, value)
        expected = [(name.decode("utf-8", "replace"), item) for name, item in headers]
        assert list(ours.headers) == expected


def test_what_java_reads_is_read_as_java_reads_it() -> None:
    accepted = refused = 0
    for records, data in odd_batches(30_000, seed=17):
        found = parsed(batch([data], base=100, count=len(records)))
        assert [r.offset for r in found] == [100 + i for i in range(len(records))]
        java, taken = java_reads(data, len(records))
        compare(found[: len(java)], java, 100)
        if len(java) < len(records):
            assert (found[len(java)].value, len(found[len(java)].headers)) == (None, 0)
        accepted, refused = accepted + taken, refused + (not taken)
    assert accepted > 8_000
    assert refused > 4_000


@given(st.binary(max_size=120), st.integers(1, 6))
def test_no_bytes_at_all_raise(data: bytes, count: int) -> None:
    found = parsed(batch([data], base=9, count=count))
    assert [r.offset for r in found] == [9 + i for i in range(count)]


_PROGRAM = """
import java.io.*;
import java.nio.ByteBuffer;
import org.apache.kafka.common.header.Header;
import org.apache.kafka.common.record.*;

public class ReadBatches {
    static String hex(byte[] b) {
        return b == null ? "-" : "x" + java.util.HexFormat.of().formatHex(b);
    }
    static String hex(ByteBuffer b) {
        if (b == null) return "-";
        byte[] a = new byte[b.remaining()]; b.duplicate().get(a); return hex(a);
    }
    public static void main(String[] args) throws Exception {
        DataInputStream in = new DataInputStream(new BufferedInputStream(System.in));
        PrintStream out = new PrintStream(new BufferedOutputStream(System.out), false);
        while (true) {
            int n;
            try { n = in.readInt(); } catch (EOFException e) { break; }
            byte[] bytes = in.readNBytes(n);
            StringBuilder line = new StringBuilder();
            try {
                for (RecordBatch batch : MemoryRecords.readableRecords(ByteBuffer.wrap(bytes)).batches())
                    for (org.apache.kafka.common.record.Record r : batch) {
                        line.append(hex(r.key())).append(' ').append(hex(r.value()));
                        for (Header h : r.headers()) {
                            line.append(' ').append(hex(h.key().getBytes("UTF-8")));
                            line.append(' ').append(hex(h.value()));
                        }
                        line.append(';');
                    }
            } catch (Exception e) { line = new StringBuilder("refused"); }
            out.println(line);
        }
        out.flush();
    }
}
"""


@pytest.mark.kafka
def test_the_model_reads_what_the_java_client_reads(tmp_path: Path, kafka_bootstrap: str) -> None:
    """The model above agrees with Kafka's own jar; running a source file needs a JDK."""
    del kafka_bootstrap  # if Apache Kafka runs, Java and its jars exist
    if shutil.which("javac") is None:
        pytest.skip("no JDK: install openjdk-17-jdk-headless")
    source = tmp_path / "ReadBatches.java"
    source.write_text(_PROGRAM)
    cases = list(odd_batches(5_000, seed=18))
    batches = [batch([odd], count=len(records)) for records, odd in cases]
    stdin = b"".join(struct.pack(">i", len(data)) + data for data in batches)
    command = ["java", "-cp", f"{fetch_jars()}/*", str(source)]
    run = subprocess.run(command, input=stdin, capture_output=True, timeout=120)
    assert run.returncode == 0, run.stderr.decode()
    lines = run.stdout.decode().splitlines()
    assert len(lines) == len(cases)
    refused = 0
    for (records, data), line in zip(cases, lines, strict=True):
        model, taken = java_reads(data, len(records))
        assert taken == (line != "refused"), data.hex()
        if not taken:
            refused += 1
            continue
        assert line == "".join(f"{' '.join(_words(body))};" for body in model)
    assert 500 < refused < 2_500


def _words(body: JavaBody) -> list[str]:
    """Return a record as the program prints it: names of headers as Java reads them."""
    key, value, headers = body
    named = [x for name, item in headers for x in (name.decode("utf-8", "replace").encode(), item)]
    return ["-" if each is None else f"x{each.hex()}" for each in (key, value, *named)]
