"""Payload codecs, releases and checkpoints."""

from __future__ import annotations

import io
import json
import math
import pickle
import warnings
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.records import RecordKind
from streaming_pca.data.release import ACCURACY, Release
from streaming_pca.estimators.base import Outcome, Subspace
from streaming_pca.privacy.users import hash_users
from streaming_pca.service.commit.batch_result import make_release
from streaming_pca.service.commit.state_topic import (
    Checkpoint,
    MalformedCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)

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


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (message(X.astype("<f4").tobytes(), "application/octet-stream"), X[None]),
        (message(X.astype("<f4").tobytes()), X[None]),
        (message(X.astype("<f8").tobytes(), "application/octet-stream", dtype="float64"), X[None]),
        (message(F.astype("<f4").tobytes(), "application/octet-stream"), F),
        (message(npy(X), "application/x-npy"), X[None]),
        (message(npy(F.astype(">f8")), "application/x-npy"), F),
        (message(npy(F.astype("i4")), "application/x-npy"), F),
        (message(json.dumps({"x": X.tolist()}).encode(), "application/json"), X[None]),
        (message(json.dumps({"rows": F.tolist()}).encode(), "application/json; charset=utf-8"), F),
        (message(b'\xef\xbb\xbf {"rows" : [ [1, 2e0 ,3.0] ,\n[-4,5,6] ] } ', "application/json"), F_TEXT),
        (message(b'{"x":[1,2,' + b"9" * 60 + b"]}", "application/json"), np.array([[1, 2, 1e60]])),
        (message(X.astype("<f4").tobytes(), record_kind="factor"), X[None]),
    ],
)
def test_every_documented_payload_is_read(sent: Message, expected: np.ndarray) -> None:
    rows = CODEC.decode(sent)
    assert rows is not None
    np.testing.assert_array_equal(rows, expected)


def test_a_symmetric_matrix_is_read_where_the_stream_says_so() -> None:
    codec = PayloadCodec(DIM, RecordKind.MATRIX, "float64")
    rows = codec.decode(message(A.tobytes()))
    assert rows is not None
    np.testing.assert_array_equal(rows, A)
    assert codec.decode(message(np.triu(A).tobytes())) is None
    assert codec.decode(message(X.tobytes())) is None


REPORT = np.array([1.0, 2, 3, -4, 5, 6], "<f4")
REPORTS = PayloadCodec(DIM, RecordKind.LOCAL, privacy_contract=b"1.0,1e-06")


def report(value: bytes = REPORT.tobytes(), content_type: str | None = None, **headers: str) -> Message:
    said = {"record_kind": "local", "local_promise": "1.0,1e-06"} | headers
    return message(value, content_type, **{name: text for name, text in said.items() if text})


def test_a_report_is_one_row_that_keeps_its_bits() -> None:
    forged = np.array([1.0, np.float32(1e-40), -0.0, 3e38, 5, 6], "<f4")
    for numbers in (REPORT, forged):
        for content_type in (None, "application/octet-stream"):
            rows = REPORTS.decode(report(numbers.tobytes(), content_type))
            assert rows is not None
            assert (rows.dtype, rows.shape, rows.tobytes()) == (np.float32, (1, 6), numbers.tobytes())
    rows, lengths = REPORTS.decode_many([report(), message(REPORT.tobytes()), report()])
    assert (rows.shape, lengths.tolist()) == ((2, 6), [1, 0, 1])
    rows, lengths = REPORTS.decode_many([message(None)])
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
        report(npy(REPORT), "application/x-npy"),
        report(b""),
    ],
    ids=str,
)
def test_what_does_not_say_that_it_is_a_report_of_this_promise_is_null(sent: Message) -> None:
    """Most importantly a record without noise: reports are not charged."""
    assert REPORTS.decode(sent) is None
    assert REPORTS.decode_many([sent])[1].tolist() == [0]


def test_reports_have_a_promise_and_nothing_else_has() -> None:
    with pytest.raises(ValueError, match="records of kind local, and only these, need a privacy contract"):
        PayloadCodec(DIM, RecordKind.LOCAL)
    with pytest.raises(ValueError, match="records of kind local, and only these, need a privacy contract"):
        PayloadCodec(DIM, privacy_contract=b"1.0,1e-06")


NULL = {
    "nothing": message(None),
    "empty": message(b""),
    "a cut float": message(b"\0" * 13),
    "another length": message(np.zeros(4, "<f4").tobytes()),
    "too many rows": message(np.zeros((5, 3), "<f4").tobytes()),
    "oversized": message(b"\0" * 10**6),
    "NaN": message(np.array([1, np.nan, 2], "<f4").tobytes()),
    "infinity": message(np.array([1, np.inf, 2], "<f4").tobytes()),
    "unknown type": message(X.astype("<f4").tobytes(), "image/png"),
    "type that is no text": Message(X.astype("<f4").tobytes(), [("content-type", b"\xff\xfe")]),
    "unknown dtype": message(X.astype("<f4").tobytes(), dtype="float16"),
    "another kind": message(X.astype("<f4").tobytes(), record_kind="matrix"),
    "pickled npy": message(npy(np.array([{}], dtype=object), allow_pickle=True), "application/x-npy"),
    "pickle": message(pickle.dumps(X), "application/x-npy"),
    "complex npy": message(npy(X + 1j), "application/x-npy"),
    "text npy": message(npy(np.array(["a", "b", "c"])), "application/x-npy"),
    "cut npy": message(npy(X)[:-3], "application/x-npy"),
    "npy with a header no tokenizer reads": message(b"\x93NUMPY\x01\x00\x06\x00{'a':(", "application/x-npy"),
    "npy that claims a huge shape": message(
        npy(X).replace(b"(3,)", b"(10**9,)").replace(b"(3,), }", b"(9999999999,)"), "application/x-npy"
    ),
    "no JSON": message(b"{", "application/json"),
    "JSON list": message(b"[1,2,3]", "application/json"),
    "JSON with two keys": message(b'{"x":[1,2,3],"y":1}', "application/json"),
    "JSON with ragged rows": message(b'{"rows":[[1,2,3],[1]]}', "application/json"),
    "JSON with text": message(b'{"x":["1","2","3"]}', "application/json"),
    "JSON with booleans": message(b'{"x":[true,false,true]}', "application/json"),
    "JSON with null": message(b'{"x":[1,null,3]}', "application/json"),
    "JSON NaN": message(b'{"x":[1,NaN,3]}', "application/json"),
    "JSON with an integer above any float": message(b'{"x":[1,2,' + b"9" * 400 + b"]}", "application/json"),
    "JSON with an integer Python refuses": message(b'{"x":[1,2,' + b"9" * 5000 + b"]}", "application/json"),
    "JSON with a boolean among numbers": message(b'{"x":[1,true,3]}', "application/json"),
    "JSON with no rows": message(b'{"rows":[]}', "application/json"),
    "JSON with too many rows": message(
        b'{"rows":[' + b",".join([b"[1,2,3]"] * 5) + b"]}", "application/json"
    ),
    "JSON that goes on": message(b'{"x":[1,2,3]}{}', "application/json"),
    "JSON rows that are one row": message(b'{"rows":[1,2,3]}', "application/json"),
    "deep JSON": message(b"[" * 3000, "application/json"),
}


@pytest.mark.parametrize("name", NULL)
def test_anything_else_is_the_null_record(name: str) -> None:
    assert CODEC.decode(NULL[name]) is None


NOISY = {
    "npy of Python 2": message(npy(X).replace(b"(3,), }", b"(3L,),}"), "application/x-npy"),
    "signalling NaN of float16": message(npy(np.array([0x7D00] * 3, "<u2").view("<f2")), "application/x-npy"),
    "signalling NaN of big-endian": message(
        npy(np.array([0x7F800001] * 3, ">u4").view(">f4")), "application/x-npy"
    ),
    "infinity on casting": message(npy(np.array([1e300, 0, 0])), "application/x-npy"),
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
        rows = CODEC.decode(message(buffer.getvalue(), "application/x-npy"))
        assert rows is not None
        np.testing.assert_array_equal(rows, F)


def test_null_records_keep_their_places() -> None:
    good = [message(X.astype("<f4").tobytes()), message(F.astype("<f4").tobytes())]
    rows, lengths = CODEC.decode_many([NULL["NaN"], good[0], NULL["no JSON"], good[1], NULL["empty"]])
    assert lengths.tolist() == [0, 1, 0, 2, 0]
    np.testing.assert_array_equal(rows, np.concatenate([X[None], F]))


@given(
    st.binary(max_size=80),
    st.sampled_from(["application/octet-stream", "application/x-npy", "application/json"]),
)
def test_no_bytes_make_the_codec_raise(value: bytes, content_type: str) -> None:
    rows = CODEC.decode(message(value, content_type))
    assert rows is None or (rows.shape[1] == DIM and np.isfinite(rows).all())


@given(st.binary(max_size=60))
def test_no_npy_header_makes_the_codec_raise(value: bytes) -> None:
    start = b"\x93NUMPY\x01\x00" + len(value).to_bytes(2, "little")
    CODEC.decode(message(start + value, "application/x-npy"))


@given(
    st.lists(st.lists(st.sampled_from([1.0, -0.0, 5e-324, np.nan, np.inf]), max_size=16), max_size=8),
    st.sampled_from(["message", "row"]),
)
def test_the_fast_path_reads_what_the_slow_one_reads(values: list[list[float]], unit: Any) -> None:
    codec = PayloadCodec(DIM, max_rows=4, unit=unit)
    messages = [message(np.array(v, "<f4").tobytes(), "application/octet-stream") for v in values]
    rows, lengths = codec.decode_many([*messages, message(None)])
    slow, slow_lengths = codec.decode_many([*messages, NULL["no JSON"]])
    np.testing.assert_array_equal(lengths, slow_lengths)
    assert rows.tobytes() == slow.astype(np.float32).tobytes()


@pytest.mark.parametrize("headers", [[], [("content-type", b"application/octet-stream")]])
def test_factors_of_any_length_take_the_fast_path(
    headers: list[tuple[str, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PayloadCodec, "decode", None)
    sent = [Message(np.full((n, 3), n, "<f4").tobytes(), headers) for n in (1, 0, 4, 5, 2)]
    rows, lengths = CODEC.decode_many([*sent, Message(b"\0" * 13, headers)])
    assert lengths.tolist() == [1, 0, 4, 0, 2, 0]
    assert rows[:, 0].tolist() == [1, 4, 4, 4, 4, 2, 2]


def test_one_bad_row_makes_its_whole_factor_null_and_no_other() -> None:
    factors = np.ones((3, 2, 3), "<f4")
    factors[1, 1, 2] = np.nan
    rows, lengths = CODEC.decode_many([message(f.tobytes()) for f in factors])
    assert lengths.tolist() == [2, 0, 2]
    assert rows.tolist() == np.ones((4, 3)).tolist()


def a_checkpoint(**changes: Any) -> Checkpoint:
    values: dict[str, Any] = {
        "topic_id": "id",
        "stream": "s",
        "batch": 3,
        "positions": {0: 5, 2: 7},
        "salt": b"salt" * 8,
        "state": b"state bytes",
        "release": b"{}",
    }
    return Checkpoint(**(values | changes))


def test_a_checkpoint_round_trips() -> None:
    checkpoint = a_checkpoint()
    data, digest = encode_checkpoint(checkpoint)
    assert decode_checkpoint(data) == (checkpoint, digest)


def test_equal_states_have_unequal_digests_under_other_salts() -> None:
    assert encode_checkpoint(a_checkpoint())[1] != encode_checkpoint(a_checkpoint(salt=b"b" * 32))[1]


@pytest.mark.parametrize("data", [b"", b"\0\0\0\5hello", b"\0\0\0\2{}", b"\xff" * 40])
def test_what_is_no_checkpoint_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedCheckpoint):
        decode_checkpoint(data)


def test_a_release_round_trips_and_anything_else_is_refused() -> None:
    release = Release(
        stream="s",
        batch=1,
        records=10,
        dim=2,
        rank=1,
        estimator="analyze-gauss",
        components=[[0.1, 1e-300]],
        explained_variance=[1 / 3],
        mean=None,
        epsilon=1.0,
        delta=1e-6,
        adjacency="replace-one",
        privacy_unit="message",
        feature_names=["größe", "b"],
        created="2026-01-01T00:00:00.000+00:00",
    )
    assert Release.from_bytes(release.to_bytes()) == release
    assert (
        Release.from_bytes(release.model_copy(update={"feature_names": None}).to_bytes()).feature_names
        is None
    )
    with pytest.raises(ValueError, match="not a release"):
        Release.from_bytes(b'{"kind": "subspace"}')
    # A release omits a field that its stream does not use.
    assert b"contributions" not in release.to_bytes()
    of_users = release.model_copy(update={"privacy_unit": "user", "contributions_per_user": 3})
    assert Release.from_bytes(of_users.to_bytes()) == of_users
    assert b'"contributions_per_user":3' in of_users.to_bytes()


ACCURATE: dict[str, Any] = {
    "explained_variance_error": [0.25],
    "total_variance": -0.5,
    "total_variance_error": 1 / 3,
    "angle_bound": math.pi / 2,
}


def accurate(**changes: Any) -> dict[str, Any]:
    """Return a release with its accuracy, as plain data."""
    values: dict[str, Any] = {
        "version": 2,
        "stream": "s",
        "batch": 1,
        "records": 10,
        "dim": 2,
        "rank": 1,
        "estimator": "e",
        "components": [[0.6, 0.8]],
        "explained_variance": [2.0],
        "mean": None,
        "epsilon": 1.0,
        "delta": 1e-6,
        "adjacency": "replace-one",
        "privacy_unit": "message",
        "created": "2026-01-01T00:00:00.000+00:00",
    }
    return values | ACCURATE | changes


def test_a_release_that_says_how_exact_it_is_round_trips() -> None:
    release = Release(**accurate())
    assert Release.from_bytes(release.to_bytes()) == release
    assert {name: getattr(release, name) for name in ACCURACY} == ACCURATE
    assert release.accuracy == {"explained_variance": [2.0]} | ACCURATE


@pytest.mark.parametrize("name", ACCURACY)
def test_what_a_release_does_not_know_is_left_out(name: str) -> None:
    text = Release(**accurate(**{name: None})).to_bytes()
    assert name.encode() + b'"' not in text
    assert Release.from_bytes(text).accuracy[name] is None
    alone = Release(**accurate(**(dict.fromkeys(ACCURACY) | {name: ACCURATE[name]}))).to_bytes()
    assert {key for key in json.loads(alone) if key in ACCURACY} == {name}


def test_a_release_of_version_1_is_read_and_has_nothing_of_version_2() -> None:
    unsaid = accurate(version=1, **dict.fromkeys(ACCURACY))
    old = {key: value for key, value in unsaid.items() if key not in ACCURACY}
    release = Release.from_bytes(json.dumps(old).encode())
    assert release.version == 1
    assert set(json.loads(release.to_bytes())) == set(old) | {"schema_name", "kind", "feature_names"}
    for name in ACCURACY:
        with pytest.raises(
            ValueError, match=rf"not a release: .*{name} needs version 2 or later, but this is version 1"
        ):
            Release.from_bytes(json.dumps(old | {name: ACCURATE[name]}).encode())


@pytest.mark.parametrize(
    "changes",
    [
        {"explained_variance_error": [0.1, 0.1]},
        {"explained_variance_error": [-0.1]},
        {"explained_variance_error": [math.nan]},
        {"total_variance": math.inf},
        {"total_variance_error": -1.0},
        {"total_variance_error": math.inf},
        {"angle_bound": -0.1},
        {"angle_bound": 1.6},
        {"angle_bound": math.nan},
        {"version": 6},
    ],
)
def test_accuracy_that_cannot_be_is_no_release(changes: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a release"):
        Release.from_bytes(json.dumps(accurate(**changes)).encode())
    with pytest.raises(ValidationError):
        Release(**accurate(**changes))


def test_a_subspace_is_published_with_its_accuracy() -> None:
    stream = PLAIN
    plain = Subspace(np.array([[0.6, 0.8]]), np.array([2.0]), None)
    numbers = ACCURATE | {"angle_bound": 0.5}
    said = {name: np.array(v) if isinstance(v, list) else v for name, v in numbers.items()}
    release = Release.from_bytes(make_release(stream, replace(plain, **said), 1, 10))
    assert {name: getattr(release, name) for name in ACCURACY} == numbers
    # A numpy number counts as a number.
    bounded = Release.from_bytes(make_release(stream, replace(plain, angle_bound=np.float64(0.0)), 1, 10))
    assert (bounded.angle_bound, bounded.total_variance) == (0.0, None)
    # NaN is an error of the estimator: it must not become null in JSON, which means unknown.
    with pytest.raises(ValidationError):
        make_release(stream, replace(plain, total_variance=math.nan), 1, 10)


PLAIN = StreamSettings(name="s", input="in", dim=2, rank=1, epsilon=1.0, delta=1e-6, centering="pairs")
NOT_PRIVATE = StreamSettings(
    name="s",
    input="in",
    dim=2,
    rank=1,
    epsilon=math.inf,
    delta=math.inf,
    private=False,
    estimator="oja",
    centering="none",
)


def test_an_outcome_is_published_and_a_private_stream_says_nothing_of_it() -> None:
    plain = Subspace(np.array([[0.6, 0.8]]), np.array([2.0]), None)
    for outcome in Outcome:
        data = make_release(PLAIN, replace(plain, outcome=outcome), 1, 10)
        assert json.loads(data)["outcome"] == outcome.value
        assert "private" not in json.loads(data)
        release = Release.from_bytes(data)
        assert (release.outcome, release.private) == (outcome.value, True)
        assert release.to_bytes() == data
    exact = make_release(PLAIN, replace(plain, outcome=Outcome.LEARNT, angle_bound=0.5), 1, 10)
    assert Release.from_bytes(exact).angle_bound == 0.5


PRIVATE = '"epsilon":1.0,"delta":1e-6'


@pytest.mark.parametrize(
    ("version", "accuracy", "guarantee", "end"),
    [
        (1, "", "", ""),
        (2, '"angle_bound":0.5,', "", ""),
        (3, "", '"private":false,"epsilon":null,"delta":null', ',"outcome":"learnt"'),
        (4, "", '"local":true,"epsilon":1.0,"delta":1e-6', ""),
        (5, '"angle_bound":0.5,', "", ',"doubts":["not-resolved"]'),
    ],
)
def test_releases_of_earlier_versions_are_read_and_written_as_they_were(
    version: int, accuracy: str, guarantee: str, end: str
) -> None:
    data = (
        f'{{"schema_name":"streaming-pca.release","version":{version},"kind":"subspace","stream":"s","batch":1,'
        '"records":10,"dim":2,"rank":1,"estimator":"adaptive","components":[[0.6,0.8]],'
        f'"explained_variance":[2.0],{accuracy}"mean":null,{guarantee or PRIVATE},"adjacency":"replace-one",'
        f'"privacy_unit":"message","feature_names":null,"created":"2026-01-01T00:00:00.000+00:00"{end}}}'
    ).encode()
    release = Release.from_bytes(data)
    assert (release.version, release.centering, release.to_bytes()) == (version, None, data)


def test_a_stream_that_is_not_private_promises_nothing() -> None:
    data = make_release(NOT_PRIVATE, Subspace(np.array([[0.6, 0.8]]), np.array([2.0]), None), 1, 10)
    found = json.loads(data, parse_constant=pytest.fail)
    assert {name: found[name] for name in ("version", "private", "epsilon", "delta", "adjacency")} == {
        "version": 6,
        "private": False,
        "epsilon": None,
        "delta": None,
        "adjacency": "none",
    }
    assert "outcome" not in found
    assert Release.from_bytes(data).to_bytes() == data


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"version": 2, "outcome": "learnt"}, "outcome needs version 3 or later, but this is version 2"),
        (
            {"version": 1, "private": False, **dict.fromkeys(ACCURACY)},
            "private needs version 3 or later, but this is version 1",
        ),
        ({"version": 3, "private": False}, "epsilon and delta must be null"),
        ({"version": 3, "private": False, "epsilon": None}, "epsilon and delta must be null"),
        ({"version": 2, "delta": None}, "epsilon and delta must be null"),
        ({"version": 3, "outcome": "Learnt!"}, "match pattern"),
        ({"version": 3, "outcome": ""}, "match pattern"),
        ({"version": 3, "outcome": "x" * 65}, "match pattern"),
    ],
)
def test_a_release_that_contradicts_itself_is_none(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=f"not a release: .*{words}"):
        Release.from_bytes(json.dumps(accurate(**changes)).encode())


def test_an_outcome_of_times_to_come_is_read() -> None:
    data = json.dumps(accurate(version=3, outcome="no-such-word-yet")).encode()
    assert Release.from_bytes(data).outcome == "no-such-word-yet"


def test_a_message_key_leaves_the_codec_as_a_keyed_hash_only() -> None:
    secret = b"s" * 32
    codec = PayloadCodec(DIM, unit="user", user_key=secret)
    keys = [b"ada", None, b"bob", b"", b"ada"]
    messages = [replace(message(b""), key=key) for key in keys]
    keys = [message.key for message in messages]
    users = codec.user_hashes(keys)
    assert users is not None
    np.testing.assert_array_equal(users, hash_users(secret, keys))
    assert users.any(axis=1).tolist() == [True, False, True, False, True]
    other = PayloadCodec(DIM, unit="user", user_key=b"t" * 32).user_hashes(keys)
    assert other is not None
    assert not np.isin(users[users.any(axis=1)], other).any()
    assert PayloadCodec(DIM).user_hashes(keys) is None
    assert "ssss" not in repr(codec)


def of_a_tensor(**changes: Any) -> dict[str, Any]:
    """Return a tensor's release as plain data."""
    return accurate(version=4, kind="tensor", weights=[0.5], **dict.fromkeys(ACCURACY)) | changes


@pytest.mark.parametrize(
    "values",
    [
        of_a_tensor(),
        accurate(version=4, local=True, support=[0, 1]),
        accurate(version=4, support=[]),
    ],
)
def test_a_release_of_version_4_round_trips_and_older_ones_have_nothing_of_it(values: dict[str, Any]) -> None:
    release = Release(**values)
    assert Release.from_bytes(release.to_bytes()) == release
    told = {name for name in ("weights", "support", "local") if name in json.loads(release.to_bytes())}
    assert told == {name for name in ("weights", "support", "local") if values.get(name) is not None}
    for name in ("weights", "support"):
        assert (name in release.accuracy) == (name in told)
    for version in (1, 2, 3):
        with pytest.raises(ValidationError):
            Release(**values | {"version": version})


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"weights": None}, "a tensor must have weights, and a subspace must not"),
        ({"kind": "subspace"}, "a tensor must have weights, and a subspace must not"),
        ({"weights": [1.0, 2.0]}, "weights does not have 1 numbers"),
        ({"weights": [math.inf]}, "finite"),
        ({"support": [2]}, "support names a feature above 1"),
        ({"support": [-1]}, "greater than or equal to 0"),
        ({"kind": "matrix"}, "subspace"),
    ],
    ids=str,
)
def test_a_tensor_that_cannot_be_is_no_release(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        Release(**of_a_tensor(**changes))


def test_a_release_of_version_5_round_trips_and_older_ones_have_no_doubts() -> None:
    doubtful = Release(**accurate(version=5, doubts=("not-resolved", "no-such-word-yet")))
    assert json.loads(doubtful.to_bytes())["doubts"] == ["not-resolved", "no-such-word-yet"]
    assert Release.from_bytes(doubtful.to_bytes()) == doubtful
    for version in (1, 2, 3, 4):
        values = accurate(version=version, doubts=["not-resolved"], **dict.fromkeys(ACCURACY))
        with pytest.raises(
            ValueError,
            match=f"not a release: .*doubts needs version 5 or later, but this is version {version}",
        ):
            Release.from_bytes(json.dumps(values).encode())
    for wrong in (["Not resolved"], "not-resolved", [1], None):
        with pytest.raises(ValueError, match="not a release"):
            Release.from_bytes(json.dumps(accurate(version=5, doubts=wrong)).encode())


def test_doubts_are_published_and_without_them_nothing_is_said() -> None:
    plain = Subspace(np.array([[0.6, 0.8]]), np.array([2.0]), None, angle_bound=0.5)
    assert b"doubts" not in make_release(PLAIN, plain, 1, 10)
    data = make_release(PLAIN, replace(plain, angle_bound=math.pi / 2, outcome=Outcome.LEARNT), 1, 10)
    release = Release.from_bytes(data)
    assert (release.version, release.outcome, release.doubts) == (6, "learnt", ("not-resolved",))
    assert release.to_bytes() == data
    assert Release.from_bytes(make_release(PLAIN, plain, 1, 0)).doubts == ("no-records",)


def test_a_mean_that_was_not_found_is_null_and_a_doubt() -> None:
    stream = StreamSettings(name="s", input="in", dim=2, rank=1, epsilon=1.0, delta=1e-6)
    plain = Subspace(np.array([[0.6, 0.8]]), np.array([2.0]), np.array([1.0, 0.0]), angle_bound=0.5)
    known = Release.from_bytes(make_release(stream, plain, 1, 10))
    assert (known.mean, known.doubts) == ([1.0, 0.0], ())
    data = make_release(stream, replace(plain, mean=None), 1, 10)
    assert b'"mean":null' in data
    assert Release.from_bytes(data).doubts == ("mean-unknown",)


@pytest.mark.parametrize("kind", ["application/octet-stream", "application/x-npy", "application/json"])
def test_media_types_have_no_case(kind: str) -> None:
    payload = {"application/x-npy": npy(F), "application/json": b'{"x": [1, 2, 3]}'}.get(kind, X.tobytes())
    for spelled in (kind.upper(), kind.title(), f" {kind.upper()} ; charset=UTF-8"):
        assert CODEC.decode(message(payload, spelled)) is not None
        assert np.array_equal(CODEC.decode(message(payload, spelled)), CODEC.decode(message(payload, kind)))
