"""Every message has a projected payload, which depends on no other message."""

from __future__ import annotations

import json
from typing import Any, Literal, NamedTuple

import numpy as np
import pytest

from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.projection import Projection
from streaming_pca.service.projection.encoding import Encoder, headers_of, project

D, K = 3, 2
COMPONENTS = np.linalg.qr(np.random.default_rng(0).standard_normal((D, K)))[0].T
PROJECTION = Projection(COMPONENTS, np.array([1.0, 2.0, 3.0]), 0.5, (-5.0, 5.0))
JSON = [("content-type", b"application/json")]


class _Message(NamedTuple):
    value: bytes | None
    headers: list[tuple[str, bytes]] = []  # noqa: RUF012
    key: bytes | None = None


def _octets(rows: Any, dtype: str = "<f4") -> _Message:
    return _Message(np.asarray(rows, dtype).tobytes())


def _json(value: Any) -> _Message:
    return _Message(json.dumps(value).encode(), JSON)


GOOD = [[1.0, -2.0, 9.0], [0.25, 0.5, -7.0]]
BROKEN = [
    _Message(None),
    _Message(b"123"),
    _octets([[1, 2, np.nan]]),
    _Message(b"no JSON", JSON),
    _json({"x": [1, 2]}),
    _Message(b"\0" * 12, [("record-kind", b"matrix")]),
    _Message(b"\0" * 12, [("content-type", b"text/plain")]),
]


def _expected(rows: Any) -> np.ndarray[Any, Any]:
    x = np.clip(np.asarray(rows, np.float64), -5, 5)
    return np.asarray((x - [1, 2, 3]) * 0.5 @ COMPONENTS.T)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_octets_hold_the_rows_that_are_projected(dtype: Literal["float32", "float64"]) -> None:
    numbers = {"float32": "<f4", "float64": "<f8"}[dtype]
    codec, encoder = PayloadCodec(D, dtype=dtype), Encoder("octets", dtype)
    messages = [_octets(GOOD[:1], numbers), *BROKEN, _octets(GOOD, numbers), _json({"rows": GOOD})]
    values = project(codec, PROJECTION, encoder, messages)
    assert values[1:-2] == [b""] * len(BROKEN)
    for value, rows in ((values[0], GOOD[:1]), (values[-2], GOOD), (values[-1], GOOD)):
        got = np.frombuffer(value, numbers).reshape(-1, K)
        np.testing.assert_allclose(got, _expected(rows).astype(numbers), rtol=1e-6)
    assert dict(encoder.headers) == {"content-type": b"application/octet-stream", "dtype": dtype.encode()}


def test_json_holds_one_row_or_several() -> None:
    codec, encoder = PayloadCodec(D, dtype="float64"), Encoder("json", "float64")
    messages = [_octets(GOOD[0], "<f8"), *BROKEN, _json({"rows": GOOD})]
    first, *broken, last = (json.loads(value) for value in project(codec, PROJECTION, encoder, messages))
    np.testing.assert_allclose(first["x"], _expected(GOOD[0]), rtol=1e-14)
    np.testing.assert_allclose(last["rows"], _expected(GOOD), rtol=1e-14)
    assert broken == [{"rows": []}] * len(BROKEN)


def test_a_null_row_keeps_its_place_where_rows_are_records() -> None:
    codec = PayloadCodec(D, unit="row")
    rows = [GOOD[0], [np.nan, 0, 0], GOOD[1]]
    (value,) = project(codec, PROJECTION, Encoder("octets", "float32"), [_octets(rows)])
    got = np.frombuffer(value, "<f4").reshape(3, K)
    np.testing.assert_allclose(got[[0, 2]], _expected(GOOD), rtol=1e-6)
    assert np.isnan(got[1]).all()
    (value,) = project(codec, PROJECTION, Encoder("json", "float32"), [_octets(rows)])
    assert [row is None for row in json.loads(value)["rows"]] == [False, True, False]


@pytest.mark.filterwarnings("error")
def test_what_overflows_is_null_and_spoils_no_other() -> None:
    steep = Projection(COMPONENTS, 0.0, 1e30)
    huge, small = [[3e38, 3e38, 3e38]], [[1e-30, 0.0, 0.0]]
    message = PayloadCodec(D)
    octets = Encoder("octets", "float32")
    alone = project(message, steep, octets, [_octets(small)])
    first, second = project(message, steep, octets, [_octets(huge), _octets(small)])
    assert first == b""
    np.testing.assert_allclose(np.frombuffer(second, "<f4"), np.frombuffer(alone[0], "<f4"), rtol=1e-6)
    assert project(message, steep, octets, [_octets(huge + small)]) == [b""]
    (value,) = project(PayloadCodec(D, unit="row"), steep, octets, [_octets(huge + small)])
    got = np.frombuffer(value, "<f4").reshape(2, K)
    assert np.isnan(got[0]).all()
    np.testing.assert_allclose(got[1], np.frombuffer(alone[0], "<f4"), rtol=1e-6)


def test_a_message_is_projected_alike_beside_any_others() -> None:
    codec, encoder = PayloadCodec(D), Encoder("octets", "float64")
    other = [_json({"x": [0.1, 0.2, 0.3]}), _octets(GOOD), _Message(b"")]
    together, alone = (project(codec, PROJECTION, encoder, each) for each in (other, other[1:2]))
    np.testing.assert_allclose(np.frombuffer(together[1]), np.frombuffer(alone[0]), rtol=1e-12)
    assert project(codec, PROJECTION, encoder, []) == []


def test_headers_name_the_release_and_the_secrecy() -> None:
    plain = {"content-type": b"application/json", "release-batch": b"12", "privacy": b"as-input"}
    doubts = {"release-doubts": b"not-resolved,mean-unknown"}
    for given, expected in ((("not-resolved", "mean-unknown"), plain | doubts), ((), plain)):
        assert dict(headers_of(12, given, Encoder("json", "float32"))) == expected
