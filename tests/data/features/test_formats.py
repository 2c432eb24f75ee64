"""Every format of records with fields gives JSON's rows, alone and mixed with others."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.codec import FORMATS, OCTETS, Format
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.validation import explain_payload
from streaming_pca.privacy.users import hash_users
from tests.data.features.formats import (
    ENCODERS,
    FEATURES,
    GOOD,
    KEY,
    ROW,
    Message,
    as_arrow,
    as_json,
    codec_of,
)

OTHERS: list[Format] = ["avro", "protobuf", "arrow"]
numbers = st.floats(allow_nan=False, allow_infinity=False) | st.sampled_from([0.0, -0.0, 1.0, 120.5, 9e9])
# Arrow's own writer refuses datetimes beyond year 9999, but takes their counts.
records = st.fixed_dictionaries(
    {
        "user": st.none()
        | st.fixed_dictionaries({"age": st.none() | numbers, "id": st.none() | st.text(max_size=3)}),
        "spent": st.none() | numbers,
        "country": st.none() | st.sampled_from(["DE", "FR", "", "ü"]) | st.text(max_size=3),
        "items": st.none() | st.lists(st.fixed_dictionaries({"price": st.none() | numbers}), max_size=3),
        "seen": st.none() | st.integers(-(10**15), 10**15),
        "place": st.none() | st.lists(numbers, max_size=3),
    }
)


def changed(**fields: Any) -> dict[str, Any]:
    return GOOD | fields


@pytest.mark.parametrize("format_", ENCODERS)
def test_a_record_is_a_row(format_: Format) -> None:
    value = ENCODERS[format_](GOOD)
    reader = codec_of(format_)
    for headers in ([], [("content-type", FORMATS[format_].encode())], [("traceparent", b"00-1")]):
        rows, lengths = reader.decode_all([Message(value, headers)])[:2]
        assert lengths.tolist() == [1]
        np.testing.assert_allclose(rows, [ROW], atol=1e-12)
        again = replace(reader, fields=pickle.loads(pickle.dumps(reader.fields)))
        np.testing.assert_array_equal(again.decode(Message(value, headers)), rows)
    assert explain_payload(reader, Message(value)).is_record


@pytest.mark.parametrize(
    ("name", "format_"), [("avro/binary", "avro"), ("application/protobuf; x=1", "protobuf")]
)
def test_other_names_of_a_format_are_known(name: str, format_: Format) -> None:
    reader = codec_of(format_)
    rows = reader.decode(Message(ENCODERS[format_](GOOD), [("content-type", name.encode())]))
    np.testing.assert_allclose(rows, [ROW], atol=1e-12)  # type: ignore[arg-type]


@pytest.mark.parametrize("format_", OTHERS)
@settings(max_examples=60)
@given(found=st.lists(records, max_size=6), unit=st.sampled_from(["message", "row"]))
def test_rows_are_those_of_json_alone_and_together(format_: Format, found: list[Any], unit: Any) -> None:
    encode, reader = ENCODERS[format_], codec_of(format_, unit)
    messages = [Message(encode(record)) for record in found]
    together, lengths = reader.decode_all(messages)[:2]
    of_json = codec_of("json", unit).decode_all([Message(as_json(record)) for record in found])[:2]
    np.testing.assert_array_equal(together, of_json[0])
    assert lengths.tolist() == of_json[1].tolist()
    alone = [reader.decode_all([each])[:2] for each in messages]
    np.testing.assert_array_equal(together, np.concatenate([together[:0], *(rows for rows, _ in alone)]))
    for message in messages:
        explain_payload(reader, message)


REASONS = [
    (changed(spent=None), "field 'spent' is missing, and has no stand-in: set missing of its feature"),
    # Beyond year 9999; a time of the schema has no unit to set.
    (changed(seen=10**15), "field 'seen' is nan, which is not a time"),
    (changed(place=[1.0]), "field 'place' is [1.0], which is not a list of numbers of its size"),
    (changed(country=None), "field 'country' is missing"),
]


@pytest.mark.parametrize("format_", OTHERS)
@pytest.mark.parametrize(("record", "words"), REASONS, ids=[words for _, words in REASONS])
def test_a_verdict_names_the_field(format_: Format, record: Any, words: str) -> None:
    report = explain_payload(codec_of(format_), Message(ENCODERS[format_](record)))
    assert words in report.reason
    assert "set the unit" not in report.reason


@pytest.mark.parametrize("format_", ENCODERS)
def test_a_field_names_the_user(format_: Format) -> None:
    reader, encode = codec_of(format_, "user", "user.id"), ENCODERS[format_]
    found = [changed(user={"age": 1.0, "id": name}) for name in ("ann", "", None, "bob")]
    found.append(changed(user=None))
    messages = [Message(encode(each), [("x", b"y")], b"the key") for each in found]
    # Rows of numbers do not have fields.
    messages.append(Message(np.ones(9, "<f4").tobytes(), [("content-type", OCTETS.encode())], b"ann"))
    users = reader.decode_all(messages).users
    assert users.tolist() == hash_users(KEY, [b"ann", None, None, b"bob", None, None]).tolist()
    assert "no field 'user.id'" in explain_payload(reader, messages[1]).reason


@pytest.mark.parametrize("format_", ["avro", "protobuf"])
def test_a_message_of_rows_stays_one(format_: Format) -> None:
    octets = Message(np.arange(9, dtype="<f4").tobytes(), [("content-type", OCTETS.encode())])
    reader = codec_of(format_)
    rows, lengths = reader.decode_all([Message(ENCODERS[format_](GOOD)), octets, Message(None)])[:2]
    assert lengths.tolist() == [1, 1, 0]
    assert rows[1].tolist() == list(range(9))


def test_a_payload_without_a_schema_is_null() -> None:
    reader = codec_of("json")
    message = Message(ENCODERS["avro"](GOOD), [("content-type", b"application/avro")])
    assert reader.decode(message) is None
    assert "no schema" in explain_payload(reader, message).reason


def test_arrow_has_a_record_for_each_row() -> None:
    found, reader = [GOOD, changed(spent=None), changed(user=None)], codec_of("arrow", "row")
    rows, lengths = reader.decode_all([Message(as_arrow(*found)), Message(as_arrow(*[GOOD] * 5))])[:2]
    assert lengths.tolist() == [3, 0]
    of_json = codec_of("json", "row").decode_all([Message(as_json(record)) for record in found])[:2]
    np.testing.assert_array_equal(rows, of_json[0])
    assert np.isnan(rows[1]).all()
    reason = explain_payload(reader, Message(as_arrow(*found))).reason
    assert reason.startswith("row 1: field 'spent'")


@pytest.mark.parametrize("format_", ["avro", "protobuf"])
def test_a_schema_without_a_field_is_refused_where_that_has_no_stand_in(format_: Format) -> None:
    with pytest.raises(ValueError, match="schema has no value at 'tip', and feature 'tip' has no stand-in"):
        codec_of(format_, features=[*FEATURES, Feature(name="tip")])
    with pytest.raises(ValueError, match=r"no value at 'user\.name', the path in user_field"):
        codec_of(format_, "user", "user.name")
    reader = codec_of(format_, features=[*FEATURES, Feature(name="tip", missing=1.5)])
    rows, _ = reader.decode_all([Message(ENCODERS[format_](GOOD))])[:2]
    assert rows[0, 9] == 1.5


SEEDS: dict[Format, bytes] = {name: encode(GOOD) for name, encode in ENCODERS.items()}
SEEDS["arrow"] = as_arrow(GOOD, GOOD)


@pytest.mark.parametrize("format_", ENCODERS)
@given(data=st.data())
def test_any_bytes_are_judged(format_: Format, data: st.DataObject) -> None:
    seed = SEEDS[format_]
    at, piece = data.draw(st.integers(0, len(seed))), data.draw(st.binary(max_size=80))
    for unit in ("message", "row", "user"):
        reader = codec_of(format_, unit, "user.id" if unit == "user" else None)  # type: ignore[arg-type]
        for value in (piece, seed[:at] + piece, seed[:at] + piece + seed[at + len(piece) :]):
            explain_payload(reader, Message(value))
