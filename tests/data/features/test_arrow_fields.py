"""Arrow streams with named columns: types, missing values, nested columns, hostile buffers."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from streaming_pca.api.feature_map import FeatureMap
from streaming_pca.data.features.arrow_records import ArrowRecords
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.records import NOTHING, columns_of
from streaming_pca.data.validation import explain_payload
from tests.data.features.formats import Message, codec_of, costs, ipc
from tests.data.refusals import refuses

MEGABYTE = 2**20


def read(value: bytes, *paths: str, most: int = 100) -> list[list[Any]]:
    """Return the values of each path in all records."""
    reader = ArrowRecords(pa, [(columns_of(tuple(path.split(".")), path), 2) for path in paths])
    records = reader.read(value, most)
    return [list(map(get, records)) for get in reader.getters]


def column(values: Sequence[Any], type_: Any) -> bytes:
    return ipc(pa.table({"x": pa.array(values, type_)}))


MOMENT = datetime(2024, 2, 29, 18, tzinfo=UTC)
VALUES: list[tuple[Any, list[Any], list[Any]]] = [
    *((kind, [1, None, 3], [1, None, 3]) for kind in (pa.int8(), pa.uint64(), pa.int32())),
    (pa.float64(), [0.5, None, math.nan], [0.5, None, None]),
    (pa.float16(), [np.float16(0.5)], [0.5]),
    (pa.bool_(), [True, None, False], [True, None, False]),
    (pa.string(), ["a", None, "ü", ""], ["a", None, "ü", ""]),
    (pa.large_string(), ["a", None], ["a", None]),
    *((pa.timestamp(unit, "UTC"), [MOMENT, None], [MOMENT, None]) for unit in ("s", "ms", "us", "ns")),
    (pa.timestamp("ms"), [MOMENT.replace(tzinfo=None)], [MOMENT]),
    (pa.date32(), [date(2024, 2, 29)], [date(2024, 2, 29)]),
    (pa.date64(), [date(2024, 2, 29)], [datetime(2024, 2, 29, tzinfo=UTC)]),
    (pa.decimal128(20, 2), [Decimal("-12.34"), None], [-12.34, None]),
    *((pa.decimal128(20, 0), [Decimal(7)], [7]), (pa.null(), [None, None], [None, None])),
    (pa.list_(pa.float32()), [[0.5, None], [], None], [[0.5, None], [], None]),
    (pa.large_list(pa.int8()), [[1], [2, 3]], [[1], [2, 3]]),
    (pa.list_(pa.float64(), 2), [[1.0, 2.0], None], [[1.0, 2.0], None]),
    (pa.list_(pa.bool_()), [[True, False]], [[True, False]]),
    # Longer than the two values of its feature: the objects of its bits would be 152 times as large.
    (pa.list_(pa.bool_()), [[True] * 3, None, [False]], [NOTHING, None, [False]]),
    (pa.list_(pa.list_(pa.int8())), [[[1]], None], [NOTHING, None]),
    (pa.binary(), [b"a", None], [NOTHING, None]),
    (pa.struct([("a", pa.int8())]), [{"a": 1}, None], [NOTHING, None]),
    (pa.duration("s"), [timedelta(1), None], [NOTHING, None]),
]


@pytest.mark.parametrize(("type_", "values", "expected"), VALUES, ids=[str(each[0]) for each in VALUES])
def test_values_of_each_type_are_read(type_: Any, values: list[Any], expected: list[Any]) -> None:
    assert read(column(values, type_), "x", "y") == [expected, [None] * len(values)]
    # After other rows, and within a structure and a list.
    assert read(column([None, *values], type_), "x") == [[None, *expected]]
    inside = column([{"y": each} for each in values], pa.struct([("y", type_)]))
    assert read(inside, "x.y") == [expected]
    if not pa.types.is_null(type_):
        listed = column([[None, each] for each in values], pa.list_(type_))
        assert read(listed, "x.1") == [expected]


def test_a_missing_structure_has_no_fields() -> None:
    type_ = pa.struct([("a", pa.int8()), ("b", pa.list_(pa.struct([("c", pa.string())])))])
    values = [{"a": 1, "b": [{"c": "x"}, {"c": "y"}]}, None, {"a": None, "b": []}, {"a": 2, "b": None}]
    found = read(column(values, type_), "x.a", "x.b.1.c", "x.b.0.c", "x.z", "x.b.z", "x.a.z")
    assert found == [
        [1, None, None, 2],
        ["y", None, None, None],
        ["x", None, None, None],
        [None] * 4,
        [NOTHING, None, NOTHING, None],
        [NOTHING, None, None, NOTHING],
    ]


def test_a_column_may_have_the_name_of_the_path_or_of_the_feature() -> None:
    features = [Feature(name="age", path="user.age"), Feature(name="spent", path="paid.total")]
    reader = codec_of("arrow", features=features)
    for names in (["user.age", "spent"], ["age", "paid.total"]):
        rows = reader.decode(Message(ipc(pa.table({names[0]: [1.0], "else": ["x"], names[1]: [2.0]}))))
        assert rows.tolist() == [[1.0, 2.0]]
    twice = pa.Table.from_arrays([pa.array([1.0]), pa.array([2.0])], ["x", "x"])
    assert read(ipc(twice), "x") == [[2.0]]


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"price": 100.0, "item": {"price": 80.0}}, 80),
        ({"price": 100.0, "item": {"cost": 80.0}}, 7),
        ({"price": 100.0, "item": None}, 7),
        ({"price": 100.0, "item": 80.0}, math.nan),
    ],
)
def test_a_record_has_one_row_in_every_form(record: dict[str, Any], expected: float) -> None:
    """A column with the feature's name is not the field, where there is a column of structs."""
    features = [Feature(name="price", path="item.price", missing=7)]
    table = pa.Table.from_pylist([record])
    for codec, value in (
        (codec_of("arrow", "row", features=features), ipc(table)),
        (codec_of("json", "row", features=features), json.dumps(record).encode()),
    ):
        (row,), _ = codec.decode_all([Message(value)])[:2]
        np.testing.assert_array_equal(row, [expected])
    for each in ([record], table, pd.DataFrame([record]), pl.DataFrame([record])):
        if math.isnan(expected):
            refuses("field 'item.price' is of another type", FeatureMap(features).transform, each)
        else:
            assert FeatureMap(features).transform(each).tolist() == [[expected]]


def test_the_library_reads_the_same_table_alike() -> None:
    frame = pd.DataFrame(
        {
            "age": [30.0, math.nan, 50.0],
            "country": ["DE", "FR", None],
            "at": pd.to_datetime(["2024-02-29T18:00"] * 3),
        }
    )
    features = [
        Feature(name="age", bounds=(0, 120), missing=40),
        Feature(name="country", categories=["DE", "FR"], missing="DE"),
        Feature(name="at", parts=("hour", "day")),
    ]
    table = pa.Table.from_pandas(frame, preserve_index=False)
    rows, lengths = codec_of("arrow", "row", features=features).decode_all([Message(ipc(table))])[:2]
    assert lengths.tolist() == [3]
    for each in (frame, table):
        np.testing.assert_array_equal(rows, FeatureMap(features, scale=False).transform(each))


def test_rows_of_all_batches_follow_one_another() -> None:
    table = pa.concat_tables([pa.table({"x": [1.0, 2.0]}), pa.table({"x": [3.0]})])
    assert read(ipc(table), "x") == [[1.0, 2.0, 3.0]]
    assert read(ipc(pa.table({"x": pa.array([], pa.string())})), "x") == [[]]
    with pytest.raises(ValueError, match="too many"):
        read(ipc(table), "x", most=2)


def test_one_row_s_text_disturbs_no_other() -> None:
    value = column(["good", "WRONG", "fine"], pa.string()).replace(b"WRONG", b"\xff\xfe\xed\xa0\x80")
    assert read(value, "x") == [["good", NOTHING, "fine"]]
    reader = codec_of("arrow", "row", features=[Feature(name="x", categories=["good"])])
    rows, _ = reader.decode_all([Message(value)])[:2]
    np.testing.assert_array_equal(rows, [[1], [math.nan], [0]])
    far = ipc(pa.table({"x": pa.array([0, 2**62, 3600], pa.int64()).view(pa.timestamp("s"))}))
    timed = Feature(name="x", parts=("hour",), missing=0)
    rows, _ = codec_of("arrow", "row", features=[timed]).decode_all([Message(far)])[:2]
    assert np.isnan(rows).all(axis=1).tolist() == [False, True, False]


def with_buffer(value: bytes, old: bytes, new: bytes) -> bytes:
    assert value.count(old) == 1
    return value.replace(old, new)


TEXTS = column(["ab", "cd", "ef", "gh"], pa.string())
LISTS = column([[1, 2], [3, 4], [5, 6], [7, 8]], pa.list_(pa.int8()))
OFFSETS = struct.pack("<5i", 0, 2, 4, 6, 8)
HOSTILE = {
    **{"nothing": b"", "zeros": bytes(1000), "cut": TEXTS[:-40]},
    "no schema": TEXTS[8 + struct.unpack("<I", TEXTS[4:8])[0] :],
    "compressed": ipc(pa.table({"x": ["a" * 100]}), compression="zstd"),
    "a dictionary": ipc(pa.table({"x": pa.array(["a", "b"]).dictionary_encode()})),
    "many columns": ipc(pa.table({f"c{i}": [1.0] for i in range(5000)})),
    "many rows": ipc(pa.table({"x": ["ab"] * 100})),
    **{
        f"{name} with offsets {offsets}": with_buffer(value, OFFSETS, struct.pack("<5i", *offsets))
        for name, value in (("texts", TEXTS), ("lists", LISTS))
        for offsets in ((0, 8, 0, 8, 8), (-2, 2, 4, 6, 8), (0, 2, 4, 6, 2**31 - 1), (8, 6, 4, 2, 0))
    },
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_payload_is_null_and_disturbs_no_other(name: str) -> None:
    features = [Feature(name="x", categories=["ab"], missing="ab")]
    if name.startswith("lists"):
        features = [Feature(name="x", size=2, missing=0)]
    good = ipc(pa.table({"x": [[1, 2]]})) if name.startswith("lists") else TEXTS
    for unit in ("message", "row"):
        reader = codec_of("arrow", unit, features=features)  # type: ignore[arg-type]
        rows, lengths = reader.decode_all([Message(good), Message(HOSTILE[name]), Message(good)])[:2]
        assert lengths[1] == 0
        assert lengths[0] == lengths[2] > 0
        assert np.isfinite(rows).all()
        report = explain_payload(reader, Message(HOSTILE[name]))
        assert report.reason
        assert "\n" not in report.reason


def test_a_scale_beyond_all_numbers_is_no_number() -> None:
    for scale in (2**31 - 1, -(2**31) + 1, 10**6):
        array = pa.Array.from_buffers(pa.decimal128(20, scale), 1, [None, pa.py_buffer(bytes(15) + b"\1")])
        assert read(ipc(pa.table({"x": array})), "x") == [[NOTHING]]


def of_buffers(type_: Any, length: int, buffers: list[Any], children: Sequence[Any] = ()) -> bytes:
    found = [None if each is None else pa.py_buffer(each) for each in buffers]
    array = pa.Array.from_buffers(type_, length, found, children=list(children) or None)
    return ipc(pa.table({"x": array}))


COSTLY = {
    "bytes": lambda: column([1] * 2**16, pa.int8()),
    "texts": lambda: column(["a"] * 2**16, pa.string()),
    "nulls": lambda: column([None] * 2**16, pa.int8()),
    "lists": lambda: column([[]] * 2**16, pa.list_(pa.int8())),
    "one list": lambda: column([[1] * 2**18], pa.list_(pa.int8())),
    "one list of booleans": lambda: column([[True] * 2**18], pa.list_(pa.bool_())),
    "a list of nothing": lambda: of_buffers(
        pa.list_(pa.null()), 1, [None, struct.pack("<2i", 0, 2**31 - 1)], [pa.nulls(2**31 - 1)]
    ),
    "wide lists of nothing": lambda: of_buffers(pa.list_(pa.null(), 2**28), 4, [None], [pa.nulls(2**30)]),
}


@pytest.mark.parametrize("name", COSTLY)
@pytest.mark.parametrize("path", ["x", "x.0", "x.y"])
def test_time_and_memory_are_bounded_by_the_payload(name: str, path: str) -> None:
    value = COSTLY[name]()
    seconds, share = costs(lambda each: read(each, path, most=2**16), value)
    assert seconds < 15
    # A boolean takes one bit in the payload and a list entry here.
    assert share < 192 or share * len(value) < MEGABYTE
