"""Payload codecs: every documented payload is read, and anything else is null."""

from __future__ import annotations

import io
import json
import pickle
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.records import RecordKind
from streaming_pca.privacy.users import hash_users
from tests.data.refusals import refuses

DIM = 3
CODEC = PayloadCodec(DIM, max_rows=4)


@dataclass
class Message:
    value: bytes | None
    headers: list[tuple[str, bytes]] = field(default_factory=list)
    key: bytes | None = None


def message(value: bytes | None, content_type: str | None = None, **headers: str) -> Message:
    pairs = [] if content_type is None else [("content-type", content_type.encode())]
    return Message(value, pairs + [(k.replace("_", "-"), v.encode()) for k, v in headers.items()])


def npy(array: Any, **kwargs: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **kwargs)
    return buffer.getvalue()


X = np.array([1.5, -2.0, 3.25])
F = np.arange(6.0).reshape(2, 3)
F_TEXT = np.array([[1.0, 2, 3], [-4, 5, 6]])
A = np.array([[1.0, 2, 3], [2, -4, 5], [3, 5, 6]])


JSON, NPY, OCTETS = "application/json", "application/x-npy", "application/octet-stream"


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (message(X.astype("<f4").tobytes(), OCTETS), X[None]),
        (message(X.astype("<f4").tobytes()), X[None]),
        (message(X.astype("<f8").tobytes(), OCTETS, dtype="float64"), X[None]),
        (message(F.astype("<f4").tobytes(), OCTETS), F),
        (message(npy(X), NPY), X[None]),
        (message(npy(F.astype(">f8")), NPY), F),
        (message(npy(F.astype("i4")), NPY), F),
        (message(json.dumps({"x": X.tolist()}).encode(), JSON), X[None]),
        (message(json.dumps({"rows": F.tolist()}).encode(), "application/json; charset=utf-8"), F),
        (message(b'\xef\xbb\xbf {"rows" : [ [1, 2e0 ,3.0] ,\n[-4,5,6] ] } ', JSON), F_TEXT),
        (message(b'{"x":[1,2,' + b"9" * 60 + b"]}", JSON), np.array([[1, 2, 1e60]])),
        (message(X.astype("<f4").tobytes(), record_kind="factor"), X[None]),
    ],
)
def test_every_documented_payload_is_read(sent: Message, expected: np.ndarray) -> None:
    rows = CODEC.decode(sent)
    np.testing.assert_array_equal(rows, expected)


def test_a_symmetric_matrix_is_read_where_the_stream_says_so() -> None:
    codec = PayloadCodec(DIM, RecordKind.MATRIX, "float64")
    rows = codec.decode(message(A.tobytes()))
    np.testing.assert_array_equal(rows, A)
    assert codec.decode(message(np.triu(A).tobytes())) is None
    assert codec.decode(message(X.tobytes())) is None


REPORT = np.array([1.0, 2, 3, -4, 5, 6], "<f4")
REPORTS = PayloadCodec(DIM, RecordKind.LOCAL, privacy_contract=b"1.0,1e-06")


def report(value: bytes = REPORT.tobytes(), content_type: str | None = None, **headers: str) -> Message:
    printed = {"record_kind": "local", "local_promise": "1.0,1e-06"} | headers
    return message(value, content_type, **{name: text for name, text in printed.items() if text})


def test_a_report_is_one_row_that_keeps_its_bits() -> None:
    forged = np.array([1.0, np.float32(1e-40), -0.0, 3e38, 5, 6], "<f4")
    for numbers in (REPORT, forged):
        for content_type in (None, OCTETS):
            rows = REPORTS.decode(report(numbers.tobytes(), content_type))
            assert (rows.dtype, rows.shape, rows.tobytes()) == (np.float32, (1, 6), numbers.tobytes())
    rows, lengths = REPORTS.decode_all([report(), message(REPORT.tobytes()), report()])[:2]
    assert (rows.shape, lengths.tolist()) == ((2, 6), [1, 0, 1])
    rows, lengths = REPORTS.decode_all([message(None)])[:2]
    assert (rows.shape, lengths.tolist()) == ((0, 6), [0])


@pytest.mark.parametrize(
    "sent",
    [
        message(REPORT.tobytes()),
        report(record_kind=""),
        report(record_kind="factor"),
        report(local_promise=""),
        report(local_promise="1.0,1e-07"),
        report(local_promise="1,1e-06"),
        report(REPORT[:3].tobytes()),
        report(np.zeros(12, "<f4").tobytes()),
        report(REPORT.astype("<f8").tobytes(), dtype="float64"),
        report(np.array([1, 2, np.nan, 4, 5, 6], "<f4").tobytes()),
        report(npy(REPORT), NPY),
        report(b""),
    ],
    ids=str,
)
def test_what_does_not_say_that_it_is_a_report_of_this_promise_is_null(sent: Message) -> None:
    """Most importantly a record without noise: reports are not charged."""
    assert REPORTS.decode(sent) is None
    assert REPORTS.decode_all([sent])[1].tolist() == [0]


def test_reports_have_a_promise_and_nothing_else_has() -> None:
    for wrong in ({"kind": RecordKind.LOCAL}, {"privacy_contract": b"1.0,1e-06"}):
        refuses("kind local, and only these, need a privacy contract", PayloadCodec, DIM, **wrong)


NULL = {
    **{"nothing": message(None), "empty": message(b""), "a cut float": message(b"\0" * 13)},
    "another length": message(np.zeros(4, "<f4").tobytes()),
    "too many rows": message(np.zeros((5, 3), "<f4").tobytes()),
    "oversized": message(b"\0" * 10**6),
    "NaN": message(np.array([1, np.nan, 2], "<f4").tobytes()),
    "infinity": message(np.array([1, np.inf, 2], "<f4").tobytes()),
    "unknown type": message(X.astype("<f4").tobytes(), "image/png"),
    "type that is no text": Message(X.astype("<f4").tobytes(), [("content-type", b"\xff\xfe")]),
    "unknown dtype": message(X.astype("<f4").tobytes(), dtype="float16"),
    "another kind": message(X.astype("<f4").tobytes(), record_kind="matrix"),
    "pickled npy": message(npy(np.array([{}], dtype=object), allow_pickle=True), NPY),
    **{"pickle": message(pickle.dumps(X), NPY), "complex npy": message(npy(X + 1j), NPY)},
    "text npy": message(npy(np.array(["a", "b", "c"])), NPY),
    "cut npy": message(npy(X)[:-3], NPY),
    "npy with a header no tokenizer reads": message(b"\x93NUMPY\x01\x00\x06\x00{'a':(", NPY),
    "npy that claims a huge shape": message(
        npy(X).replace(b"(3,)", b"(10**9,)").replace(b"(3,), }", b"(9999999999,)"), NPY
    ),
    **{"no JSON": message(b"{", JSON), "JSON list": message(b"[1,2,3]", JSON)},
    "JSON with two keys": message(b'{"x":[1,2,3],"y":1}', JSON),
    "JSON with ragged rows": message(b'{"rows":[[1,2,3],[1]]}', JSON),
    "JSON with text": message(b'{"x":["1","2","3"]}', JSON),
    "JSON with booleans": message(b'{"x":[true,false,true]}', JSON),
    "JSON with null": message(b'{"x":[1,null,3]}', JSON),
    "JSON NaN": message(b'{"x":[1,NaN,3]}', JSON),
    "JSON with an integer above any float": message(b'{"x":[1,2,' + b"9" * 400 + b"]}", JSON),
    "JSON with an integer Python refuses": message(b'{"x":[1,2,' + b"9" * 5000 + b"]}", JSON),
    "JSON with a boolean among numbers": message(b'{"x":[1,true,3]}', JSON),
    "JSON with no rows": message(b'{"rows":[]}', JSON),
    "JSON with too many rows": message(b'{"rows":[' + b",".join([b"[1,2,3]"] * 5) + b"]}", JSON),
    "JSON that goes on": message(b'{"x":[1,2,3]}{}', JSON),
    "JSON rows that are one row": message(b'{"rows":[1,2,3]}', JSON),
    "deep JSON": message(b"[" * 3000, JSON),
}


@pytest.mark.parametrize("name", NULL)
def test_anything_else_is_the_null_record(name: str) -> None:
    assert CODEC.decode(NULL[name]) is None


NOISY = {
    "npy of Python 2": message(npy(X).replace(b"(3,), }", b"(3L,),}"), NPY),
    "signalling NaN of float16": message(npy(np.array([0x7D00] * 3, "<u2").view("<f2")), NPY),
    "signalling NaN of big-endian": message(npy(np.array([0x7F800001] * 3, ">u4").view(">f4")), NPY),
    "infinity on casting": message(npy(np.array([1e300, 0, 0])), NPY),
}


@pytest.mark.parametrize("name", NOISY)
def test_no_payload_makes_a_library_warn(name: str) -> None:
    """A warning on standard error would reveal something about one record. Warnings are errors here."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        CODEC.decode(NOISY[name])
    assert not caught


def test_all_npy_versions_and_orders_are_read() -> None:
    for version in ((1, 0), (2, 0), (3, 0)):
        buffer = io.BytesIO()
        np.lib.format.write_array(buffer, np.asfortranarray(F), version=version)
        rows = CODEC.decode(message(buffer.getvalue(), NPY))
        np.testing.assert_array_equal(rows, F)


def test_null_records_keep_their_places() -> None:
    good = [message(X.astype("<f4").tobytes()), message(F.astype("<f4").tobytes())]
    rows, lengths = CODEC.decode_all([NULL["NaN"], good[0], NULL["no JSON"], good[1], NULL["empty"]])[:2]
    assert lengths.tolist() == [0, 1, 0, 2, 0]
    np.testing.assert_array_equal(rows, np.concatenate([X[None], F]))


@given(st.binary(max_size=80), st.sampled_from([OCTETS, NPY, JSON]))
def test_no_bytes_make_the_codec_raise(value: bytes, content_type: str) -> None:
    rows = CODEC.decode(message(value, content_type))
    assert rows is None or (rows.shape[1] == DIM and np.isfinite(rows).all())


@given(st.binary(max_size=60))
def test_no_npy_header_makes_the_codec_raise(value: bytes) -> None:
    start = b"\x93NUMPY\x01\x00" + len(value).to_bytes(2, "little")
    CODEC.decode(message(start + value, NPY))


@given(
    st.lists(st.lists(st.sampled_from([1.0, -0.0, 5e-324, np.nan, np.inf]), max_size=16), max_size=8),
    st.sampled_from(["message", "row"]),
)
def test_the_fast_path_reads_what_the_slow_one_reads(values: list[list[float]], unit: Any) -> None:
    codec = PayloadCodec(DIM, max_rows=4, unit=unit)
    messages = [message(np.array(v, "<f4").tobytes(), OCTETS) for v in values]
    rows, lengths = codec.decode_all([*messages, message(None)])[:2]
    slow, slow_lengths = codec.decode_all([*messages, NULL["no JSON"]])[:2]
    np.testing.assert_array_equal(lengths, slow_lengths)
    assert rows.tobytes() == slow.astype(np.float32).tobytes()


@pytest.mark.parametrize("headers", [[], [("content-type", OCTETS.encode())]])
def test_factors_of_any_length_take_the_fast_path(headers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(PayloadCodec, "decode", None)
    sent = [Message(np.full((n, 3), n, "<f4").tobytes(), headers) for n in (1, 0, 4, 5, 2)]
    rows, lengths = CODEC.decode_all([*sent, Message(b"\0" * 13, headers)])[:2]
    assert lengths.tolist() == [1, 0, 4, 0, 2, 0]
    assert rows[:, 0].tolist() == [1, 4, 4, 4, 4, 2, 2]


def test_one_bad_row_makes_its_whole_factor_null_and_no_other() -> None:
    factors = np.ones((3, 2, 3), "<f4")
    factors[1, 1, 2] = np.nan
    rows, lengths = CODEC.decode_all([message(f.tobytes()) for f in factors])[:2]
    assert lengths.tolist() == [2, 0, 2]
    assert rows.tolist() == np.ones((4, 3)).tolist()


def test_a_message_key_leaves_the_codec_as_a_keyed_hash_only() -> None:
    secret = b"s" * 32
    codec = PayloadCodec(DIM, unit="user", user_key=secret)
    keys = [b"ada", None, b"bob", b"", b"ada"]
    messages = [replace(message(b""), key=key) for key in keys]
    keys = [message.key for message in messages]
    users = codec.user_hashes(keys)
    np.testing.assert_array_equal(users, hash_users(secret, keys))
    assert users.any(axis=1).tolist() == [True, False, True, False, True]
    other = PayloadCodec(DIM, unit="user", user_key=b"t" * 32).user_hashes(keys)
    assert other is not None
    assert not np.isin(users[users.any(axis=1)], other).any()
    assert PayloadCodec(DIM).user_hashes(keys) is None
    assert "ssss" not in repr(codec)


@pytest.mark.parametrize("kind", [OCTETS, NPY, JSON])
def test_media_types_have_no_case(kind: str) -> None:
    payload = {NPY: npy(F), JSON: b'{"x": [1, 2, 3]}'}.get(kind, X.tobytes())
    for spelled in (kind.upper(), kind.title(), f" {kind.upper()} ; charset=UTF-8"):
        assert CODEC.decode(message(payload, spelled)) is not None
        assert np.array_equal(CODEC.decode(message(payload, spelled)), CODEC.decode(message(payload, kind)))
