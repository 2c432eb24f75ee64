"""JSON objects as rows: nested fields, users, hostile texts, and the same rows alone and together."""

from __future__ import annotations

import json
import math
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.data.codec import OCTETS, PayloadCodec, PrivacyUnit
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import MOST_OBJECT_BYTES, FieldReader
from streaming_pca.data.features.records import JSON
from streaming_pca.data.features.row_map import RowMap
from streaming_pca.data.validation import explain_payload
from streaming_pca.privacy.users import hash_users
from tests.data.features.formats import FEATURES, KEY, ROW, Message, codec_of
from tests.data.features.formats import GOOD as KNOWN
from tests.data.refusals import refuses

GOOD = KNOWN | {"other": {"deep": [[[]]]}}


def codec(unit: PrivacyUnit = "message", user: str | None = None) -> PayloadCodec:
    return codec_of("json", unit, user)


def sent(*records: Any) -> Message:
    """Build a message of one object, or a list of objects."""
    return Message(json.dumps(records[0] if len(records) == 1 else records).encode())


def changed(**fields: Any) -> dict[str, Any]:
    return GOOD | fields


def test_columns_bounds_and_factors_follow_from_the_features() -> None:
    rows = RowMap(FEATURES)
    assert rows.dim == 9
    assert rows.names[2:5] == ("country=DE", "country=FR", "price")
    assert rows.bounds == (
        pytest.approx((0, 0, 0, 0, 0, -1, -1, -90, -90)),
        pytest.approx((120, math.log1p(10_000), 1, 1, 10, 1, 1, 180, 180)),
    )
    assert rows.scale == pytest.approx(tuple(2 / (b - a) for a, b in zip(*rows.bounds, strict=True)))
    own = RowMap([*FEATURES, Feature(name="free", scale=3.0)])
    assert own.bounds is None
    assert own.scale == (1.0,) * 9 + (3.0,)
    assert RowMap([Feature(name="free")]).scale is None


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([], "one feature"),
        ([Feature(name="a"), Feature(name="a", path="b")], "two columns have the name 'a'"),
        ([Feature(name="a.0"), Feature(name="a", size=2)], "'a.0'"),
        ([Feature(name="user"), Feature(name="user.age")], "'user' cannot be a value"),
        ([Feature(name="user.age"), Feature(name="x"), Feature(name="user")], "'user' cannot be a value"),
    ],
)
def test_features_that_do_not_go_together_are_refused(features: list[Feature], words: str) -> None:
    refuses(words, RowMap, features)


def test_an_object_is_a_row() -> None:
    rows, lengths = codec().decode_all([sent(GOOD)])[:2]
    assert lengths.tolist() == [1]
    np.testing.assert_allclose(rows, [ROW], atol=1e-12)
    bom = b"\xef\xbb\xbf \n" + json.dumps(GOOD).encode()
    registered = b"\0\0\0\0\7" + json.dumps(GOOD).encode()
    pretty = json.dumps(GOOD, indent=2).encode() + b"\n"
    rows, lengths = codec().decode_all([Message(bom), Message(registered), Message(pretty)])[:2]
    assert lengths.tolist() == [1, 1, 1]
    np.testing.assert_allclose(rows, [ROW] * 3, atol=1e-12)


def test_a_list_of_objects_is_a_factor_or_many_records() -> None:
    bad = changed(spent="much")
    lists = [sent(GOOD, GOOD), sent(GOOD, bad), sent(*[GOOD] * 5), Message(b"[]")]
    rows, lengths = codec().decode_all(lists)[:2]
    assert lengths.tolist() == [2, 0, 0, 0]
    rows, lengths = codec("row").decode_all([sent(GOOD, bad, GOOD), sent(*[GOOD] * 5)])[:2]
    assert lengths.tolist() == [3, 0]
    assert np.isnan(rows).all(axis=1).tolist() == [False, True, False]


NESTED = b"[" * 10**6


@pytest.mark.parametrize("depth", [10, 97, 98, 99, 500, 900, 990])
def test_how_deep_a_record_nests_decides_and_not_who_calls(depth: int) -> None:
    text = b'{"spent": 1, "country": "DE", "seen": 0, "place": [1, 2], "x": '
    deep = Message(text + b"[" * depth + b'"[[["' + b"]" * depth + b"}")

    def from_far(frames: int) -> int:
        return from_far(frames - 1) if frames else int(codec().decode_all([deep])[1][0])

    assert [from_far(frames) for frames in (0, 100, 400)] == [int(depth < 100)] * 3
    assert bool(explain_payload(codec(), deep).reason) == (depth >= 100)


HOSTILE = {
    **{"nothing": b"", "no JSON": b"\xff\x00\x01", "a number": b"5", "a text": b'"x"', "null": b"null"},
    **{"cut": b'{"user":{"age":3', "more behind": b'{"spent":1} {}', "no end": b'[{"spent":1}'},
    "more behind the list": b'[{"spent":1}] 5',
    "deep": b'{"spent":' + NESTED + b"]" * 10**6 + b"}",
    "deep elsewhere": b'{"elsewhere":' + NESTED + b"]" * 10**6 + b"}",
    **{"deep and open": NESTED, "digits": b'{"spent":' + b"9" * 10**5 + b"}"},
    **{"an exponent": b'{"spent":1e999}', "NaN": b'{"spent":NaN}', "NaN as text": b'{"spent":"NaN"}'},
    **{"a wrong nest": b'{"user":[1]}', "no UTF-8": b'{"country":"\xff"}'},
    "a lone surrogate": b'{"country":"\\ud800"}',
    "too long": b'{"x":"' + b"a" * MOST_OBJECT_BYTES + b'"}',
    **{"a list of lists": b"[[1,2,3]]", "an open list": b"["},
    **{"an empty object, framed": b"\0\0\0\0\0[{}]", "many lists": b"[" + b"[]," * 10**5 + b"[]]"},
}


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("unit", ["message", "row", "user"])
def test_a_hostile_text_is_null_and_disturbs_no_other(name: str, unit: Any) -> None:
    reader = codec(unit)
    among = [sent(GOOD), Message(HOSTILE[name]), sent(GOOD)]
    rows, lengths = reader.decode_all(among)[:2]
    assert lengths[[0, 2]].tolist() == [1, 1]
    good = rows[~np.isnan(rows).any(axis=1)]
    np.testing.assert_allclose(good, [ROW] * 2, atol=1e-12)
    report = explain_payload(reader, Message(HOSTILE[name], key=b"u"))
    assert report.reason
    assert "\n" not in report.reason
    assert len(report.reason) < 300


REASONS = [
    (changed(spent="much"), "field 'spent' is 'much', which is not a number"),
    (changed(spent=None), "field 'spent' is missing, and has no stand-in: set missing of its feature"),
    (changed(seen="x" * 99), "which is not a time"),
    (changed(seen=10**15), "field 'seen' is 1000000000000000, which is not a time in unit \"ms\": set the"),
    (changed(place=[1]), "field 'place' is [1], which is not a list of numbers of its size"),
    (changed(country=1.5), "which is not a word of a category"),
    (changed(items=[{}, {"price": "x"}]), "field 'items.1.price'"),
    (changed(user=7), "$.user"),
]


@pytest.mark.parametrize(("record", "words"), REASONS, ids=[words for _, words in REASONS])
def test_a_verdict_names_the_field(record: Any, words: str) -> None:
    report = explain_payload(codec(), sent(record))
    assert words in report.reason
    assert not explain_payload(codec(), sent(GOOD)).reason
    # Where each row is a record, the reason also names the row.
    reason = explain_payload(codec("row"), sent(GOOD, record)).reason
    assert reason.startswith("row 1: ")
    assert words in reason


def test_what_may_be_missing_is() -> None:
    rows, lengths = codec().decode_all(
        [
            sent(changed(user=None, items=None)),
            sent({k: v for k, v in GOOD.items() if k not in ("user", "items")}),
            sent(changed(user={}, items=[{"price": 3}])),
            sent(changed(items={"1": {"price": 2.5}})),
        ]
    )[:2]
    assert lengths.tolist() == [1, 1, 1, 1]
    assert rows[:, 0].tolist() == [40, 40, 40, 33]
    assert rows[:, 4].tolist() == [0, 0, 0, 2.5]


def test_of_two_members_of_one_name_the_last_counts() -> None:
    twice = json.dumps(GOOD)[:-1] + ', "country": "DE"}'
    rows, _ = codec().decode_all([Message(twice.encode())])[:2]
    assert rows[0, 2:4].tolist() == [1, 0]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["age", "price", "0"]), inner)
    ),
    max_leaves=6,
)
records = st.dictionaries(
    st.sampled_from(["user", "spent", "country", "items", "seen", "place", "x"]), values
).map(lambda part: GOOD | part)


@given(st.lists(st.lists(records, min_size=1, max_size=3), max_size=6), st.sampled_from(["message", "row"]))
def test_rows_are_the_same_alone_and_together(payloads: list[list[Any]], unit: Any) -> None:
    reader = codec(unit)
    messages = [sent(*payload) for payload in payloads]
    together, lengths = reader.decode_all(messages)[:2]
    alone = [reader.decode_all([each])[:2] for each in messages]
    assert lengths.tolist() == [int(count[0]) for _, count in alone]
    np.testing.assert_array_equal(together, np.concatenate([np.zeros((0, 9)), *(rows for rows, _ in alone)]))
    for message in messages:
        single = reader.decode(message)
        other = reader.decode(Message(message.value, [("content-type", JSON.encode())]))
        assert (single is None) == (other is None)
        if single is not None and other is not None:
            np.testing.assert_array_equal(single, other)
        explain_payload(reader, message)


def test_other_formats_and_kinds_are_not_read_as_objects() -> None:
    text = json.dumps(GOOD).encode()
    for headers in (
        [("content-type", OCTETS.encode())],
        [("content-type", b"")],
        [("record-kind", b"matrix")],
        [("content-type", JSON.encode()), ("record-kind", b"local")],
    ):
        assert codec().decode_all([Message(text, headers)])[1].tolist() == [0]
    octets = PayloadCodec(9, fields=FieldReader(FEATURES))
    assert octets.decode_all([Message(text)])[1].tolist() == [0]
    assert octets.decode_all([Message(text, [("content-type", JSON.encode())])])[1].tolist() == [1]


def hashed(*users: bytes | None) -> Any:
    return hash_users(KEY, users).tolist()


def test_a_field_names_the_user() -> None:
    reader = codec("user", "user.id")

    def of(user: Any) -> dict[str, Any]:
        return changed(user={"age": 1, "id": user})

    messages = [
        sent(of("ann")),
        sent(of(17)),
        sent(of(None)),
        sent(of("")),
        sent(of(True)),
        sent(of(1.0)),
        sent(changed(user=None)),
        sent(of("ann"), of("ann")),
        sent(of("ann"), of("bob")),
        Message(b"no JSON", key=b"ann"),
        Message(np.zeros(9, "<f4").tobytes(), [("content-type", OCTETS.encode())], key=b"ann"),
        sent(of("ünï")),
        sent(of(2**70)),
    ]
    for message in messages:
        message.key = message.key or b"the key"
    _, _, users = reader.decode_all(messages)
    assert users is not None
    nobody = [None] * 5
    expected = [b"ann", b"17", *nobody, b"ann", None, None, None, "ünï".encode(), None]
    assert users.tolist() == hashed(*expected)
    # A field with the text of a number is the same user as the number, as documented in the reference.
    assert reader.decode_all([sent(of("17"))]).users.tolist() == hashed(b"17")  # type: ignore[union-attr]
    assert "no field 'user.id'" in explain_payload(reader, sent(of(None))).reason
    # A message of plain rows has no field, and is never copied with its key as the user.
    assert reader.plain_headers == []


def test_the_key_names_the_user_where_no_field_does() -> None:
    reader = codec("user")
    keyed = sent(GOOD)
    keyed.key = b"ann"
    octets = Message(np.arange(9, dtype="<f4").tobytes(), [("content-type", OCTETS.encode())], b"bob")
    rows, lengths, users = reader.decode_all([keyed, octets, sent(GOOD)])
    assert lengths.tolist() == [1, 1, 1]
    assert rows[1].tolist() == list(range(9))
    assert users.tolist() == hashed(b"ann", b"bob", None)
    assert reader.decode_all([]).users.tolist() == []  # type: ignore[union-attr]


def test_a_name_that_no_struct_can_have_is_read_too() -> None:
    odd = FieldReader([Feature(name='a"b', path=['a"b']), Feature(name="user.age"), Feature(name="l.0")])
    record = {'a"b': 1, "user": {"age": 2}, "l": [3]}
    assert odd.rows(odd.json_records(json.dumps(record).encode(), 1)).tolist() == [[1, 2, 3]]
    dotted = FieldReader([Feature(name="x", path=["a.b"])])
    assert dotted.rows(dotted.json_records(b'{"a.b": 4, "a": {"b": 5}}', 1)).tolist() == [[4]]


def test_a_reader_goes_to_other_processes() -> None:
    copy = pickle.loads(pickle.dumps(FieldReader(FEATURES, ("user", "id"))))
    assert copy.map.features == FEATURES
    assert copy.user_field == ("user", "id")


def test_a_user_cannot_be_above_a_feature_or_below_one() -> None:
    for user in ("user", "spent.by"):
        refuses("cannot be a value", codec, "user", user)


def test_a_map_of_thousands_of_features_is_made_at_once() -> None:
    # Comparing all pairs took a quarter of a minute.
    many = RowMap([Feature(name=f"a.b{i}", bounds=(0, 1)) for i in range(8000)])
    assert many.dim == 8000
