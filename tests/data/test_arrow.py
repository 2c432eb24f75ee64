"""Arrow IPC streams as payloads: valid ones are read, harmful ones are refused first."""

from __future__ import annotations

import struct
import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.data.arrow import (
    find_pyarrow,
    is_big_endian,
    is_compressed,
    need_pyarrow,
    rows_of_arrow,
    stream_of_rows,
)
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.records import ARROW
from streaming_pca.data.payloads import MalformedPayload
from streaming_pca.data.records import RecordKind
from streaming_pca.errors import LibraryMissing
from tests.data.features.formats import ipc
from tests.data.refusals import refuses
from tests.data.test_codec import Message, message
from tests.data.test_payloads import DIM, NAN, neighbours_differ_in_one_record, places

CODEC = PayloadCodec(DIM, max_rows=6)
BY_ROW = PayloadCodec(DIM, max_rows=6, unit="row")
F = np.arange(6.0).reshape(2, 3)
NUMBERS = [
    *(getattr(pa, f"{sign}int{bits}")() for sign in ("", "u") for bits in (8, 16, 32, 64)),
    *(pa.float16(), pa.float32(), pa.float64()),
]


def columns(rows: Any, kind: Any = None, names: str = "abc") -> Any:
    return pa.table({n: pa.array(list(c), kind) for n, c in zip(names, zip(*rows, strict=True), strict=True)})


def lists(rows: Any, kind: Any = None, dim: int = DIM) -> Any:
    return pa.table({"anything": pa.array(rows, pa.list_(kind or pa.float64(), dim))})


def sent(value: Any, **options: Any) -> Message:
    return message(value if isinstance(value, bytes) else ipc(value, **options), ARROW)


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
@pytest.mark.parametrize("form", [columns, lists])
def test_columns_and_lists_of_every_number_type_are_rows(form: Any, kind: Any) -> None:
    of_kind = F.astype(kind.to_pandas_dtype())
    table = form(of_kind.tolist() if kind != pa.float16() else [list(map(np.float16, r)) for r in F], kind)
    rows = CODEC.decode(sent(table))
    np.testing.assert_array_equal(rows, F)
    assert rows.dtype == (np.float32 if kind == pa.float32() else np.float64)


def test_rows_of_all_batches_follow_one_another() -> None:
    x = np.random.default_rng(0).standard_normal((6, 3))
    for per_batch in (1, 2, 4, 6):
        rows = CODEC.decode(sent(lists(x.tolist()), rows_per_batch=per_batch))
        np.testing.assert_array_equal(rows, x)


def test_names_of_columns_say_nothing() -> None:
    rows = CODEC.decode(sent(columns(F.tolist(), names="ccc"[:1] + "ba")))
    np.testing.assert_array_equal(rows, F)


def test_what_pandas_writes_beside_the_numbers_is_ignored() -> None:
    table = columns(F.tolist()).replace_schema_metadata({"pandas": "{" + "x" * 2000 + "}"})
    assert CODEC.decode(sent(table)) is not None


def test_symmetric_matrices_are_read() -> None:
    a = [[1.0, 2, 3], [2, -4, 5], [3, 5, 6]]
    codec = PayloadCodec(DIM, RecordKind.MATRIX)
    for form in (columns, lists):
        rows = codec.decode(sent(form(a)))
        assert rows.tolist() == a
    assert codec.decode(sent(columns(F.tolist()))) is None


@pytest.mark.parametrize("table", [columns([[1.0, None, 3], [4, 5, 6]]), lists([None, [4, 5, 6]])])
def test_a_null_makes_its_record_null(table: Any) -> None:
    assert CODEC.decode(sent(table)) is None
    rows = BY_ROW.decode(sent(table))
    np.testing.assert_array_equal(rows, [NAN, [4, 5, 6]])


def test_a_null_within_a_list_is_its_rows() -> None:
    rows = BY_ROW.decode(sent(lists([[1, 2, 3], [4, None, 6], [7, 8, 9]])))
    np.testing.assert_array_equal(rows, [[1, 2, 3], NAN, [7, 8, 9]])


def test_a_stream_of_no_rows_has_none() -> None:
    for form in (columns, lists):
        table = form(F.tolist()).slice(0, 0)
        rows = BY_ROW.decode(sent(table))
        assert rows.shape == (0, DIM)
        assert CODEC.decode(sent(table)) is None


words = pa.array(["a", "b"])
REFUSED = {
    "text": pa.table({"a": words, "b": words, "c": words}),
    "a dictionary": columns(F.tolist()).set_column(0, "a", pa.array([1.0, 2.0]).dictionary_encode()),
    "booleans": columns([[True, False, True]]),
    "decimals": columns(F.astype(int).tolist(), pa.decimal128(20, 1)),
    "times": columns(F.astype(int).tolist(), pa.timestamp("us")),
    "nulls without a type": columns([[None, None, None]], pa.null()),
    "lists of any length": pa.table({"a": pa.array([[1.0, 2, 3]])}),
    "longer lists": lists([[1, 2, 3, 4]], dim=4),
    "lists of lists": pa.table({"a": pa.array([[[1.0]] * 3], pa.list_(pa.list_(pa.float64(), 1), 3))}),
    "lists beside numbers": pa.table({"a": lists(F.tolist())[0], "b": pa.array([1.0, 2.0])}),
    "a struct": pa.table({"a": pa.array([{"a": 1.0, "b": 2.0, "c": 3.0}])}),
    "a column too few": columns([[1.0, 2]], names="ab"),
    "a column too many": columns([[1.0, 2, 3, 4]], names="abcd"),
    **{"no columns": pa.table({}), "too many rows": lists([[1, 2, 3]] * 7)},
    "too much metadata": columns(F.tolist()).replace_schema_metadata({"a": "b" * 10**5}),
}


@pytest.mark.parametrize("unit", ["message", "row"])
@pytest.mark.parametrize("name", REFUSED)
def test_any_other_table_has_no_rows(name: str, unit: Any) -> None:
    assert PayloadCodec(DIM, max_rows=6, unit=unit).decode(sent(REFUSED[name])) is None


def test_more_batches_than_rows_are_refused() -> None:
    schema = columns(F.tolist()).schema
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, schema) as writer:
        for _ in range(7):
            writer.write_batch(pa.record_batch([pa.array([], pa.float64())] * 3, schema=schema))
    assert BY_ROW.decode(sent(bytes(sink.getvalue().to_pybytes()))) is None


@pytest.mark.parametrize("options", [{"compression": "lz4"}, {"compression": "zstd"}], ids=str)
@pytest.mark.parametrize("form", [columns, lists])
def test_a_compressed_body_is_refused_before_it_is_inflated(form: Any, options: dict[str, Any]) -> None:
    read: list[Any] = []

    def read_record_batch(*given: Any) -> Any:
        read.append(given)
        return pa.ipc.read_record_batch(*given)

    watched = SimpleNamespace(
        py_buffer=pa.py_buffer,
        types=pa.types,
        ipc=SimpleNamespace(
            MessageReader=pa.ipc.MessageReader,
            MetadataVersion=pa.ipc.MetadataVersion,
            read_schema=pa.ipc.read_schema,
            read_record_batch=read_record_batch,
        ),
    )
    table = form(F.tolist())
    np.testing.assert_array_equal(rows_of_arrow(watched, ipc(table), DIM, 6), F)
    assert len(read) == 1
    refuses("plain", rows_of_arrow, watched, ipc(table, **options), DIM, 6, error=MalformedPayload)
    assert len(read) == 1
    assert CODEC.decode(sent(table, **options)) is None


_INFLATED = 256 * 2**20
_BOMB = f"""
import resource, sys
from streaming_pca.data.codec import PayloadCodec
from tests.data.test_codec import message
value = sys.stdin.buffer.read()
codec = PayloadCodec(1, max_rows=2**16, unit="row")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
assert codec.arrow
assert codec.decode(message(value, "{ARROW}")) is None
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


@pytest.mark.parametrize("codec", ["lz4", "zstd"])
def test_a_bomb_takes_no_memory(codec: str) -> None:
    value = ipc(pa.table({"a": np.zeros(_INFLATED // 8)}), compression=codec)
    assert len(value) < _INFLATED // 100
    command = [sys.executable, "-c", _BOMB]
    found = subprocess.run(command, input=value, capture_output=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr
    assert int(found.stdout) * 1024 < _INFLATED // 8


def test_what_was_written_before_arrow_1_is_refused() -> None:
    """Such metadata can name a compression elsewhere."""
    version = pa.ipc.MetadataVersion.V4
    assert CODEC.decode(sent(columns(F.tolist()), metadata_version=version)) is None


def flatbuffer(field: int, value: bytes | None) -> bytes:
    """Build a message whose header has at most one field."""
    offset = 4 + 2 * (field + 1)  # of a field after its table's own vtable
    header_vtable = struct.pack("<HH", offset, 8) + b"\0\0" * field + struct.pack("<H", 4 if value else 0)
    message_vtable = struct.pack("<HHHHH", 10, 8, 0, 0, 4)
    root = struct.pack("<I", 4 + len(message_vtable))
    message_at = 4 + len(message_vtable)
    header_at = message_at + 8 + len(header_vtable)
    own = struct.pack("<iI", len(message_vtable), header_at - (message_at + 4))
    header = struct.pack("<i", len(header_vtable)) + (value or b"").ljust(4, b"\0")
    return root + message_vtable + own + header_vtable + header


def test_a_schema_tells_whether_its_numbers_are_big_endian() -> None:
    assert is_big_endian(flatbuffer(0, b"\1\0"))
    assert not is_big_endian(flatbuffer(0, b"\0\0"))
    assert not is_big_endian(flatbuffer(0, None))
    assert is_compressed(flatbuffer(3, b"\4\0\0\0"))
    assert not is_compressed(flatbuffer(3, None))


@given(st.binary(max_size=40), st.integers(0, 40))
def test_no_metadata_leads_the_reader_out_of_the_message(other: bytes, at: int) -> None:
    whole = flatbuffer(3, b"\4\0\0\0")
    for data in (other, whole[:at], whole[:at] + other, whole[:at] + other + whole[at + len(other) :]):
        try:
            is_compressed(data)
        except MalformedPayload:
            continue


def payloads() -> list[bytes]:
    return [
        ipc(columns([[1.0, None, 3], [4, 5, 6]])),
        ipc(lists([[1.0, 2, 3], None, [4, 5, None]])),
        ipc(columns([[1, 2, 3]], pa.int16()), compression="zstd"),
        stream_of_rows(pa, F),
    ]


@given(st.sampled_from(payloads()), st.data())
def test_no_bytes_make_the_codec_raise(value: bytes, data: st.DataObject) -> None:
    broken = bytearray(value)
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(broken) - 4))
        broken[at : at + 4] = data.draw(
            st.sampled_from([b"\0" * 4, b"\xff" * 4, b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\1\0\0\0", b""])
        )
    rows = CODEC.decode(sent(bytes(broken)))
    assert rows is None or (rows.shape[1] == DIM and np.isfinite(rows).all())
    by_row = BY_ROW.decode(sent(bytes(broken)))
    assert by_row is None or by_row.shape[1] == DIM


@given(st.sampled_from(NUMBERS), st.booleans(), st.integers(1, 6), st.integers(1, 6), st.data())
def test_a_row_of_arrow_touches_no_other(kind: Any, in_lists: Any, count: int, size: int, data: Any) -> None:
    dtype = np.dtype(kind.to_pandas_dtype())
    octets = st.binary(min_size=dtype.itemsize, max_size=dtype.itemsize)
    number = octets.map(lambda raw: np.frombuffer(raw, dtype)[0])
    row = st.lists(st.none() | number, min_size=DIM, max_size=DIM)
    if in_lists:
        row = st.none() | row

    def payload(rows: list[Any]) -> Message:
        return sent((lists if in_lists else columns)(rows, kind), rows_per_batch=size)

    rows = data.draw(st.lists(row, min_size=count, max_size=count))
    neighbours_differ_in_one_record(payload, rows, data.draw(places), data.draw(row))


def test_what_is_written_is_read() -> None:
    for dtype in ("<f4", "<f8"):
        rows = CODEC.decode(sent(stream_of_rows(pa, F.astype(dtype))))
        assert rows.dtype == dtype
        np.testing.assert_array_equal(rows, F)


def test_pyarrow_is_imported_by_the_first_codec_and_not_before() -> None:
    script = (
        "import sys, streaming_pca.data.codec as w; assert 'pyarrow' not in sys.modules; "
        "assert w.PayloadCodec(3).arrow; assert 'pyarrow' in sys.modules"
    )
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, timeout=120, check=False)
    assert found.returncode == 0, found.stderr


def test_without_pyarrow_the_payload_is_null_and_the_codec_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    value = sent(columns(F.tolist()))
    assert CODEC.arrow
    assert CODEC.decode(value) is not None
    monkeypatch.setitem(sys.modules, "pyarrow.ipc", None)
    assert find_pyarrow() is None
    without = PayloadCodec(DIM, max_rows=6)
    assert not without.arrow
    assert without.decode(value) is None
    refuses(r"pip install '\.\[arrow\]' in the checkout", need_pyarrow, "this", error=LibraryMissing)
