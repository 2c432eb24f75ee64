"""The worker's decoder judges a payload; the reason explains what to change."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.codec import CONTENT_TYPES, PayloadCodec
from streaming_pca.data.records import RecordKind
from streaming_pca.data.validation import explain_payload
from tests.data.test_codec import JSON, NPY, OCTETS, A, Message, message, npy

CODEC = PayloadCodec(3, max_rows=4)
ROWS = PayloadCodec(3, max_rows=4, unit="row")
MATRICES = PayloadCodec(3, RecordKind.MATRIX)
REPORTS = PayloadCodec(3, RecordKind.LOCAL, privacy_contract=b"1.0,1e-06")
OF_USERS = PayloadCodec(3, unit="user", user_key=bytes(32))
IN_JSON = PayloadCodec(3, content_type=JSON)
CODECS = (CODEC, ROWS, MATRICES, REPORTS, OF_USERS, IN_JSON)


def octets(*numbers: float, dtype: str = "<f4") -> bytes:
    return np.array(numbers, dtype).tobytes()


def report(epsilon: str, size: int) -> Message:
    return message(bytes(size), record_kind="local", local_promise=f"{epsilon},1e-06")


NO_MULTIPLE = "octets are not a multiple of"
REASONS: dict[str, tuple[PayloadCodec, Message, str]] = {
    "no value": (CODEC, message(None), "it has no value"),
    "empty": (CODEC, message(b""), "it has no rows"),
    "wrong length": (CODEC, message(bytes(20)), f"20 {NO_MULTIPLE} 12, the size of a row of 3 float32"),
    "float64 header": (CODEC, message(bytes(12), dtype="float64"), f"12 {NO_MULTIPLE} 24, the size of a row"),
    "other dtype": (CODEC, message(bytes(12), dtype="int8"), "header dtype is 'int8'"),
    "NaN": (CODEC, message(octets(1, 2, np.nan)), "NaN at position 2 (c)"),
    "infinity below": (CODEC, message(octets(1, 2, 3, 4, -np.inf, 6)), "row 1: infinity at position 1 (b)"),
    "too many rows": (CODEC, message(octets(*range(15))), "5 rows, but at most 4 are allowed"),
    "huge": (CODEC, message(bytes(2**14)), "16384 octets are more than 4 rows can take"),
    "kind": (CODEC, message(octets(1, 2, 3), record_kind="matrix"), "record-kind is b'matrix'"),
    "content type": (CODEC, message(octets(1, 2, 3), "text/csv"), "content-type is 'text/csv'"),
    "JSON of another length": (CODEC, message(b'{"x": [1, 2]}', JSON), "it has 2 numbers, but dim = 3"),
    "JSON of a text": (CODEC, message(b'{"x": ["1", 2, 3]}', JSON), "it is not one list of numbers"),
    "JSON with a null": (CODEC, message(b'{"x": [1, null, 3]}', JSON), "position 1 is not a number"),
    "JSON without its envelope": (CODEC, message(b"[1, 2, 3]", JSON), 'expected {"x": [numbers]}'),
    "JSON that ends early": (CODEC, message(b'{"x": [1, 2', JSON), "is not closed"),
    "npy of objects": (CODEC, message(b"\x93NUMPY\x01\x00", NPY), "not the header"),
    "npy of another shape": (CODEC, message(npy(np.ones(4)), NPY), "its shape is (1, 4)"),
    "no Arrow": (CODEC, message(b"", "application/vnd.apache.arrow.stream"), ""),
    "null rows": (
        ROWS,
        message(b'{"rows": [[1, 2, 3], [1, 2], [1, NaN, 3]]}', JSON),
        "row 1: it has 2 numbers, but dim = 3; row 2: NaN at position 1 (b)",
    ),
    "not symmetric": (MATRICES, message(octets(*range(9))), "the matrix is not symmetric"),
    "no matrix": (MATRICES, message(octets(1, 2, 3)), "but a matrix has dim = 3 rows"),
    "a record for a report": (REPORTS, message(bytes(24)), "record-kind is None, but must be b'local'"),
    "another promise": (REPORTS, report("2.0", 24), "local-promise is b'2.0,1e-06', but must be b'1.0,1e-0"),
    "a short report": (REPORTS, report("1.0", 12), "a report of dim = 3 takes 24"),
    "no key": (OF_USERS, message(octets(1, 2, 3)), "it has no key"),
    "an empty key": (OF_USERS, Message(octets(1, 2, 3), [], b""), "it has no key"),
    "octets where JSON is the default": (IN_JSON, message(octets(1, 2, 3)), 'expected {"x": [numbers]}'),
}


@pytest.mark.parametrize(("codec", "sent", "reason"), REASONS.values(), ids=REASONS)
def test_a_null_record_has_a_reason(codec: PayloadCodec, sent: Message, reason: str) -> None:
    report = explain_payload(codec, sent, ("a", "b", "c"))
    assert not report.is_record
    assert reason in report.reason
    assert "\n" not in report.reason


@pytest.mark.parametrize(
    ("codec", "sent", "rows"),
    [
        (CODEC, message(octets(1, 2, 3)), 1),
        (CODEC, message(b'{"rows": [[1, 2, 3], [4, 5, 6]]}', JSON), 2),
        (IN_JSON, message(b'{"x": [1, 2, 3]}'), 1),
        (IN_JSON, message(octets(1, 2, 3), OCTETS), 1),
        (ROWS, message(octets(*range(6))), 2),
        (MATRICES, message(A.astype("<f4").tobytes()), 3),
        (OF_USERS, Message(octets(1, 2, 3), [], b"ann"), 1),
    ],
)
def test_a_record_has_rows_and_no_reason(codec: PayloadCodec, sent: Message, rows: int) -> None:
    report = explain_payload(codec, sent)
    assert (report.is_record, report.reason, report.rows, report.hint) == (True, "", rows, "")
    numbers = codec.decode(sent)
    assert (report.least, report.largest) == (numbers.min(), numbers.max())


@pytest.mark.parametrize("codec", CODECS, ids=["factor", "row", "matrix", "report", "user", "json"])
def test_several_rows_are_null_for_pairs_only_where_they_are_one_record(codec: PayloadCodec) -> None:
    two = Message(octets(*range(6)), [("content-type", OCTETS.encode())], b"ann")
    one = Message(octets(1, 2, 3), two.headers, b"ann")
    assert explain_payload(codec, one, pairs=True) == explain_payload(codec, one)
    plain = explain_payload(codec, two)
    report = explain_payload(codec, two, pairs=True)
    if plain.is_record and codec.unit != "row":
        assert report.reason == 'it has 2 rows, but centering = "pairs" reads records of one row'
        assert report.rows == 0
    else:
        assert report == plain


def test_a_format_that_no_header_names_is_told() -> None:
    """JSON with the length of octets is read as a nonsense record, with a warning."""
    sent = b'{"x": [1, 2, 3]}'
    looks = "it looks like JSON, but has no header content-type"
    assert looks in explain_payload(CODEC, message(sent)).hint
    by_chance = explain_payload(CODEC, message(sent + b" " * 8))
    assert by_chance.is_record
    assert looks in by_chance.hint
    assert not explain_payload(CODEC, message(sent, JSON)).hint
    assert not explain_payload(IN_JSON, message(sent)).hint
    assert NPY in explain_payload(CODEC, message(npy(np.ones(3)))).hint
    # The first octet of a number can be a bracket.
    assert not explain_payload(CODEC, message(b"{\x00\x01\x80" * 3)).hint


others = st.sampled_from([None, "1", [], {}, True])
numbers = st.one_of(st.floats(width=32), st.integers(-(2**70), 2**70), others)
payloads = st.one_of(
    st.binary(max_size=60),
    st.lists(st.floats(width=32), max_size=16).map(lambda n: octets(*n)),
    st.lists(numbers, max_size=5).map(lambda n: json.dumps({"x": n}).encode()),
    st.lists(st.lists(numbers, min_size=2, max_size=4), max_size=6).map(
        lambda n: json.dumps({"rows": n}).encode()
    ),
    st.lists(st.floats(), max_size=9).map(lambda n: npy(np.array(n))),
    st.just(npy(A)),
    st.none(),
)
headers = st.fixed_dictionaries(
    {},
    optional={
        "content_type": st.sampled_from([*CONTENT_TYPES, "application/json; charset=utf-8", "text/csv"]),
        "dtype": st.sampled_from(["float32", "float64", "int8"]),
        "record_kind": st.sampled_from(["factor", "matrix", "local"]),
        "local_promise": st.just("1.0,1e-06"),
    },
)


@settings(deadline=None, max_examples=300)
@given(st.sampled_from(CODECS), payloads, headers, st.sampled_from([None, b"", b"k"]))
def test_the_verdict_is_always_the_decoder_s(
    codec: PayloadCodec, value: bytes | None, reported: dict[str, Any], key: bytes | None
) -> None:
    """Compare with the decoder as a worker calls it, among other messages and alone."""
    sent = message(value, **reported)
    sent.key = key
    report = explain_payload(codec, sent)
    keyless = codec.unit == "user" and not key
    single = codec.decode(sent)
    among = codec.decode_all([message(octets(1, 2, 3)), sent])[:2]
    for rows in (single, among[0][len(among[0]) - among[1][1] :]):
        taken = rows is not None and len(rows) > 0 and bool(np.isfinite(rows).all())
        assert report.is_record == (taken and not keyless)
