"""A row's contents cannot affect other rows or their number if rows are records."""

from __future__ import annotations

import json
import tracemalloc
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.payloads import MalformedPayload, rows_of_json
from streaming_pca.data.records import RecordKind
from tests.data.test_codec import JSON, NPY, OCTETS, Message, message, npy

DIM = 3
CODEC = PayloadCodec(DIM, max_rows=6, unit="row")
NAN = [np.nan] * DIM
GOOD = np.array([1.5, -2.0, 3.25])


def records_of(*messages: Message) -> tuple[list[bytes], list[int]]:
    """Return each record as the estimator receives it, and the number of rows per message."""
    rows, lengths = CODEC.decode_all(messages)[:2]
    batch = ArrayBatch.of_vectors(rows)
    ends = pairwise(batch.starts)
    records = [batch.rows[a:b].astype(np.float64).tobytes() for a, b in ends]
    return records, lengths.tolist()


def neighbours_differ_in_one_record(payload: Any, rows: list[Any], place: int, other: Any) -> None:
    """The claim also holds among messages of other types, and in the fast path."""
    place %= len(rows)
    replaced = [*rows[:place], other, *rows[place + 1 :]]
    octets = message(np.stack([GOOD, GOOD]).astype("<f4").tobytes(), OCTETS)
    text = message(b'{"x":[1,2,3]}', JSON)
    for before, after in (([], []), ([octets], [octets]), ([text], [octets])):
        records, counts = records_of(*before, payload(rows), *after)
        changed, same_counts = records_of(*before, payload(replaced), *after)
        first = sum(counts[: len(before)])
        assert counts == same_counts
        assert counts[len(before)] == len(rows)
        assert len(records) == len(changed) == sum(counts)
        assert [i for i in range(len(records)) if records[i] != changed[i]] in ([], [first + place])


def octet_rows(size: int) -> st.SearchStrategy[list[bytes]]:
    return st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=6)


places = st.integers(0, 5)


@given(octet_rows(12), places, st.binary(min_size=12, max_size=12))
@example([GOOD.astype("<f4").tobytes()] * 3, 1, np.full(3, np.inf, "<f4").tobytes())
def test_a_row_of_octets_touches_no_other(rows: list[bytes], place: int, other: bytes) -> None:
    neighbours_differ_in_one_record(lambda r: message(b"".join(r), OCTETS), rows, place, other)


@given(octet_rows(24), places, st.binary(min_size=24, max_size=24))
def test_a_row_of_float64_octets_touches_no_other(rows: list[bytes], place: int, other: bytes) -> None:
    neighbours_differ_in_one_record(lambda r: message(b"".join(r), dtype="float64"), rows, place, other)


@given(
    st.sampled_from(["<f2", "<f4", ">f8", "<i8", ">u8", "|i1"]), st.booleans(), st.integers(1, 6), st.data()
)
def test_a_row_of_npy_touches_no_other(dtype: str, fortran: bool, count: int, data: st.DataObject) -> None:
    size = DIM * np.dtype(dtype).itemsize
    row = st.binary(min_size=size, max_size=size)

    def payload(rows: list[bytes]) -> Message:
        array = np.frombuffer(b"".join(rows), dtype).reshape(-1, DIM)
        return message(npy(np.asfortranarray(array) if fortran else array), NPY)

    rows = data.draw(st.lists(row, min_size=count, max_size=count))
    neighbours_differ_in_one_record(payload, rows, data.draw(places), data.draw(row))


numbers = st.one_of(st.floats(), st.integers(), st.integers(-(10**400), 10**400))
values = st.recursive(
    st.one_of(st.none(), st.booleans(), numbers, st.text()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
json_rows = st.one_of(
    st.lists(numbers, min_size=DIM, max_size=DIM).map(json.dumps),
    values.map(json.dumps),
    values.map(lambda value: json.dumps(value, ensure_ascii=False)),
    values.map(lambda value: json.dumps(value, indent=2)),
).map(lambda text: text.encode("utf-8", "surrogatepass"))
HOSTILE_ROWS = {
    "infinity by an exponent": b"[1,1e999,3]",
    "an integer that Python refuses to parse": b"[1," + b"9" * 5000 + b",3]",
    "an integer above every machine integer": b"[1," + b"9" * 60 + b",3]",
    "integers taken for unsigned": b"[9223372036854775808,0,0]",
    "nesting too deep to parse": b"[" * 5000 + b"]" * 5000,
    "objects too deep to parse": b'{"a":' * 3000 + b"1" + b"}" * 3000,
    "too long a text": b'["' + b"x" * 10**6 + b'"]',
    "too many digits": b"[1,2,3." + b"0" * 10**6 + b"]",
    "too much room": b"[1,2," + b" " * 10**6 + b"3]",
    "too many numbers": b"[" + b"1," * 10**5 + b"1]",
    "text that looks like the end": b'["]}"]',
    "text with an escaped quote": b'["\\"]},[\\\\"]',
    "text that ends in backslashes": b'"\\\\\\\\"',
    "a key that looks like rows": b'{"rows":[[1,2,3]],"x":[1,2,3]}',
    **{"bytes that are no UTF-8": b'"\xff\xfe\xc3"', "a byte order mark": b'"\xef\xbb\xbf"'},
    **{"not even a value": b"nonsense", "booleans": b"[true,false,true]", "nothing": b"null"},
    **{"no list": b"17", "an empty list": b"[]", "a number too few": b"[1,2]"},
    **{"a number too many": b"[1,2,3,4]", "numbers one level deeper": b"[[1,2,3]]"},
    **{"numbers without commas": b"[1 2 3]", "a comma at the end": b"[1,2,3,]"},
    "NaN": b"[NaN,Infinity,-Infinity]",
}


def json_payload(rows: list[bytes]) -> Message:
    return message(b'{"rows":[' + b",".join(rows) + b"]}", JSON)


@settings(deadline=None)
@given(st.lists(json_rows, min_size=1, max_size=6), places, json_rows)
@example([b'"a"', b"[1,2,3]", b'"\\\\"'], 1, b'"\\""')
def test_a_row_of_json_touches_no_other(rows: list[bytes], place: int, other: bytes) -> None:
    neighbours_differ_in_one_record(json_payload, rows, place, other)


@given(json_rows, json_rows)
def test_x_is_one_row_whatever_it_holds(row: bytes, other: bytes) -> None:
    neighbours_differ_in_one_record(lambda r: message(b'{"x": ' + r[0] + b"}", JSON), [row], 0, other)


@pytest.mark.parametrize("name", HOSTILE_ROWS)
def test_a_hostile_row_of_json_is_null_or_a_number_and_leaves_the_others(name: str) -> None:
    good = [b"[1,2,3]", b"[4,5,6]"]
    rows, lengths = CODEC.decode_all([json_payload([good[0], HOSTILE_ROWS[name], good[1]])])[:2]
    assert lengths.tolist() == [3]
    assert rows[[0, 2]].tolist() == [[1, 2, 3], [4, 5, 6]]
    large = {"an integer above every machine integer": 1e60, "integers taken for unsigned": 2.0**63}
    if name in large:
        assert rows[1].max() == large[name]
    else:
        np.testing.assert_array_equal(rows[1], NAN)


def test_integers_of_json_are_read_like_floats() -> None:
    """Otherwise the contents of other rows would decide whether a row's integers are rounded."""
    text = b"[9007199254740993,1,2]"
    alone, _ = CODEC.decode_all([json_payload([text])])[:2]
    extra, _ = CODEC.decode_all([json_payload([text, b"[0.5,0,0]", b"[18446744073709551615,0,-1]"])])[:2]
    assert alone[0].tobytes() == extra[0].tobytes()
    assert alone.dtype == extra.dtype == np.float64


BROKEN = {
    **{"no object": b"[[1,2,3]]", "another key": b'{"row":[[1,2,3]]}'},
    "another key more": b'{"rows":[[1,2,3]],"y":1}',
    "no list": b'{"rows":[1,2,3}',
    "a row missing": b'{"rows":[[1,2,3],,[1,2,3]]}',
    **{"a comma at the end": b'{"rows":[[1,2,3],]}', "no end of the list": b'{"rows":[[1,2,3]}'},
    **{"no end of a text": b'{"rows":[[1,2,3],"a]}', "no end of the object": b'{"rows":[[1,2,3]]'},
    **{"something behind": b'{"rows":[[1,2,3]]}]', "x twice": b'{"x":[1,2,3],"x":[1,2,3]}'},
    **{"x without a value": b'{"x":}', "nothing": b""},
    "too many rows": b'{"rows":[' + b",".join([b"[1,2,3]"] * 7) + b"]}",
    "many more rows": b'{"rows":[' + b",".join([b'"a"'] * 10**5) + b"]}",
    **{"only brackets": b'{"rows":' + b"[" * 10**6, "only quotes": b'{"rows":[' + b'"' * 10**6},
    "only backslashes": b'{"rows":["' + b"\\" * 10**6,
    "only blanks": b'{"rows":[' + b" " * 10**6,
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_structure_of_json_has_no_rows(name: str) -> None:
    sent = message(BROKEN[name], JSON)
    rows, lengths = CODEC.decode_all([sent, message(GOOD.astype("<f4").tobytes())])[:2]
    assert lengths.tolist() == [0, 1]
    assert rows.tolist() == [GOOD.tolist()]
    with pytest.raises(MalformedPayload):
        rows_of_json(BROKEN[name], DIM, 6)


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_of_json_or_malformed(value: bytes) -> None:
    for text in (value, b'{"rows":[' + value, b'{"rows":[' + value + b"]}"):
        try:
            rows = rows_of_json(text, DIM, 6)
        except MalformedPayload:
            continue
        assert rows.shape[1] == DIM


@given(st.lists(values, max_size=6))
def test_json_has_as_many_rows_as_pythons_parser_finds(rows: list[Any]) -> None:
    text = json.dumps({"rows": rows})
    found = rows_of_json(text.encode(), DIM, 6)
    assert len(found) == len(json.loads(text)["rows"])
    for row, given_row in zip(found, rows, strict=True):
        plain = isinstance(given_row, list) and len(given_row) == DIM
        if plain and all(type(x) is float and np.isfinite(x) for x in given_row):
            assert row.tolist() == given_row


EMPTY = {
    "octets": message(b"", OCTETS),
    "npy": message(npy(np.zeros((0, DIM))), NPY),
    "JSON": message(b'{"rows":[ ]}', JSON),
}
NO_ROWS = {
    **{"no value": message(None), "a cut row": message(b"\0" * 13)},
    "too many rows": message(np.zeros((7, DIM), "<f4").tobytes()),
    "too many float64 rows": message(np.zeros((7, DIM), "<f8").tobytes(), dtype="float64"),
    "npy of too many rows": message(npy(np.zeros((7, DIM))), NPY),
    "npy of another width": message(npy(np.zeros((2, 4))), NPY),
    "npy of three axes": message(npy(np.zeros((1, 2, DIM))), NPY),
    "npy that is cut": message(npy(np.zeros((2, DIM)))[:-8], NPY),
    "npy of text": message(npy(np.array([["a", "b", "c"]])), NPY),
    "unknown type": message(b"\0" * 12, "image/png"),
    "unknown number type": message(b"\0" * 12, dtype="float16"),
    "another kind": message(b"\0" * 12, record_kind="matrix"),
}


@pytest.mark.parametrize("name", EMPTY | NO_ROWS)
def test_a_payload_without_rows_keeps_its_place_among_messages(name: str) -> None:
    good = message(GOOD.astype("<f4").tobytes())
    rows, lengths = CODEC.decode_all([good, (EMPTY | NO_ROWS)[name], good])[:2]
    assert lengths.tolist() == [1, 0, 1]
    assert rows.tolist() == [GOOD.tolist()] * 2


@pytest.mark.parametrize("headers", [{}, {"record_kind": "factor"}])
def test_a_null_row_keeps_its_place_as_a_row_of_nans(headers: dict[str, str]) -> None:
    """This holds for the fast path and the slow one."""
    x = np.arange(18, dtype="<f4").reshape(6, 3)
    x[1, 2], x[4, 0] = np.nan, -np.inf
    sent = [message(part.tobytes(), **headers) for part in np.split(x, [1, 4])]
    rows, lengths = CODEC.decode_all(sent)[:2]
    assert lengths.tolist() == [1, 3, 2]
    np.testing.assert_array_equal(rows[[1, 4]], [NAN, NAN])
    np.testing.assert_array_equal(rows[[0, 2, 3, 5]], x[[0, 2, 3, 5]])
    assert np.diff(ArrayBatch.of_vectors(rows).starts).tolist() == [1, 0, 1, 1, 0, 1]


def test_the_same_rows_are_one_record_or_many() -> None:
    x = np.arange(12, dtype="<f4").reshape(4, 3)
    x[2, 0] = np.nan
    sent = [message(x.tobytes()), json_payload([b"[1,2,3]", b"[1,2]"])]
    rows, lengths = PayloadCodec(DIM, max_rows=6).decode_all(sent)[:2]
    assert (len(rows), lengths.tolist()) == (0, [0, 0])
    rows, lengths = CODEC.decode_all(sent)[:2]
    assert (len(rows), lengths.tolist()) == (6, [4, 2])


def test_rows_are_no_matrices() -> None:
    with pytest.raises(ValueError, match="factor"):
        PayloadCodec(DIM, RecordKind.MATRIX, unit="row")


@pytest.mark.parametrize("tail", [b" ab" * 1000, b"\x0b", b", ", b"}", b"]]}", b""])
def test_what_follows_the_rows_must_end_the_object(tail: bytes) -> None:
    assert len(rows_of_json(b'{"rows": [[1, 2, 3]] }\n', 3, 5)) == 1
    with pytest.raises(MalformedPayload):
        rows_of_json(b'{"rows": [[1, 2, 3]' + tail, 3, 5)
    with pytest.raises(MalformedPayload):
        rows_of_json(b'{"rows": [[1, 2, 3]]}' + (tail or b"x"), 3, 5)


def test_a_long_tail_takes_no_memory() -> None:
    value = b'{"rows": [[1, 2, 3]]}' + b"ab " * 2_000_000
    tracemalloc.start()
    try:
        with pytest.raises(MalformedPayload):
            rows_of_json(value, 3, 5)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    # The text, its changes of depth and the depths take a few times its size; a list of words would take
    # more.
    assert peak < 12 * len(value)
