"""Features: the columns of each kind's values, and settings that contradict each other."""

from __future__ import annotations

import math
from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from streaming_pca.data.features.feature import Feature

NAN = math.nan


def columns(feature: Feature, *values: Any, beyond: bool = False) -> list[list[float]]:
    found = np.empty((len(values), len(feature.columns)))
    feature.fill(found, values, beyond)
    rows: list[list[float]] = found.tolist()
    return rows


def single(feature: Feature, value: Any, beyond: bool = False) -> float:
    ((number,),) = columns(feature, value, beyond=beyond)
    return number


NUMBER = Feature(name="x")
NUMBERS: list[tuple[Any, float]] = [
    *((1, 1.0), (-2.5, -2.5), (True, 1.0), (False, 0.0), (Decimal("1.5"), 1.5)),
    *((np.float32(0.25), 0.25), (np.int64(7), 7.0), (np.bool_(True), 1.0), (2**53 + 1, float(2**53))),
    *((2**63, 2.0**63), (10**400, NAN), (None, NAN), (NAN, NAN), ("1", NAN), (b"1", NAN)),
    *(([1], NAN), ({"x": 1}, NAN), (Decimal("sNaN"), NAN), (1j, NAN), (datetime(2024, 1, 1), NAN)),
]


@pytest.mark.parametrize(("value", "number"), NUMBERS, ids=lambda v: repr(v)[:20])
def test_a_number_is_read_alike_alone_and_among_others(value: Any, number: float) -> None:
    assert single(NUMBER, value) == pytest.approx(number, nan_ok=True)
    others = [0.5, 3, value, None, "text", 10**400, -1]
    found = columns(NUMBER, *others)
    assert found[2][0] == pytest.approx(number, nan_ok=True)
    assert [found[i][0] for i in (0, 1, 6)] == [0.5, 3.0, -1.0]


@pytest.mark.parametrize(
    ("text", "number"),
    [
        *(("1.5", 1.5), (" -3e2 ", -300.0), ("+.5", 0.5), ("7.", 7.0), ("nan", NAN), ("inf", NAN)),
        *(("1_000", NAN), ("0x10", NAN), ("", NAN), ("1,5", NAN), ("١", NAN), ("9" * 401, NAN)),
    ],
)
def test_texts_are_numbers_only_where_that_is_asked(text: str, number: float) -> None:
    assert single(Feature(name="x", parse=True), text) == pytest.approx(number, nan_ok=True)
    assert math.isnan(single(NUMBER, text))


TRANSFORMS = {
    "log1p": ((0.0, 100.0), math.log1p),
    "sqrt": ((0.0, 9.0), math.sqrt),
    "logit": ((0.01, 0.99), lambda p: math.log(p / (1 - p))),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@given(share=st.floats(-0.5, 1.5))
def test_a_transformed_value_lies_where_its_clamped_value_does(name: Any, share: float) -> None:
    (low, high), of = TRANSFORMS[name]
    feature = Feature(name="x", transform=name, bounds=(low, high))
    x = low + share * (high - low)
    inside = min(max(x, low), high)
    assert single(feature, x) == pytest.approx(of(inside))
    assert feature.column_bounds == pytest.approx((of(low), of(high)))
    # A later clamp can detect that it clamped.
    outside = single(feature, x, beyond=True)
    if not low <= x <= high:
        assert not of(low) <= outside <= of(high)
    assert min(max(outside, of(low)), of(high)) == pytest.approx(of(inside))


def test_bounds_clamp_plain_numbers_too() -> None:
    feature = Feature(name="x", bounds=(-1, 2))
    assert columns(feature, -5, 0.5, 7) == [[-1], [0.5], [2]]
    assert columns(feature, -5, 0.5, 7, beyond=True) == [[-5], [0.5], [7]]
    # A value beyond float64 is not a number, even where bounds would clamp it.
    for transform in ({}, {"transform": "log1p", "bounds": (0, 2)}):
        for wrong in (math.inf, -math.inf, 10**400, np.array([np.inf])):
            bounded = Feature(**{"name": "x", "bounds": (-1, 2)} | transform)
            values = wrong if isinstance(wrong, np.ndarray) else [wrong]
            assert np.isnan(columns(bounded, *values)).all()
    assert math.isnan(single(Feature(name="x", parse=True, bounds=(0, 1)), "1e999"))


def test_a_stand_in_takes_the_place_of_nothing_but_a_missing_value() -> None:
    feature = Feature(name="x", missing=40, bounds=(0, 120), transform="log1p")
    expected = [[math.log1p(40)], [math.log1p(3)], [NAN]]
    np.testing.assert_array_equal(columns(feature, None, 3, "x"), expected)


@pytest.mark.parametrize("time", [date(2026, 1, 1), datetime(2026, 1, 1, 5), pd.Timestamp("2026-01-01T05")])
def test_a_time_is_a_stand_in_by_its_text(time: Any) -> None:
    feature = Feature(name="t", parts=("hour",), missing=time)
    assert feature == Feature(name="t", parts=("hour",), missing=time.isoformat())


CATEGORIES = Feature(name="c", categories=("DE", "7", "true"), missing="DE")


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        *(("DE", [1, 0, 0]), ("7", [0, 1, 0]), (7, [0, 1, 0]), (np.int16(7), [0, 1, 0])),
        *((True, [0, 0, 1]), ("true", [0, 0, 1]), (np.bool_(True), [0, 0, 1]), (False, [0, 0, 0])),
        *(("unknown", [0, 0, 0]), ("", [0, 0, 0]), (None, [1, 0, 0]), (7.0, [NAN] * 3)),
        *((["DE"], [NAN] * 3), (b"DE", [NAN] * 3)),
    ],
    ids=repr,
)
def test_a_word_has_the_column_of_its_place(value: Any, expected: list[float]) -> None:
    (found,) = columns(CATEGORIES, value)
    assert found == pytest.approx(expected, nan_ok=True)


def test_other_words_may_have_a_column_of_their_own() -> None:
    feature = Feature(name="c", categories=("a", "b"), other=True, missing="other")
    assert feature.columns == ("c=a", "c=b", "c=other")
    assert columns(feature, "b", "z", None) == [[0, 1, 0], [0, 0, 1], [0, 0, 1]]
    assert feature.column_bounds == (0, 1)
    # Without a column for others and a stand-in, an unknown word gives zeros and a missing one is null.
    plain = Feature(name="c", categories=("a", "b"))
    assert columns(plain, "z") == [[0, 0]]
    assert math.isnan(columns(plain, None)[0][0])
    numbers = Feature(name="c", categories=(1, 2), missing=2.0)
    assert columns(numbers, 1, None) == [[1, 0], [0, 1]]
    assert np.isnan(columns(numbers, 2.0)).all()
    assert numbers == Feature(name="c", categories=("1", "2"), missing="2")


MOMENT = datetime(2024, 2, 29, 18, 0, tzinfo=UTC)
SAME: list[tuple[str, Any]] = [
    ("s", MOMENT.timestamp()),
    ("ms", int(MOMENT.timestamp() * 1000)),
    ("us", int(MOMENT.timestamp() * 10**6)),
    ("s", MOMENT),
    ("s", MOMENT.replace(tzinfo=None)),
    ("s", MOMENT.astimezone(timezone(timedelta(hours=5)))),
    ("s", "2024-02-29T18:00:00Z"),
    ("s", "2024-02-29 18:00"),
    ("s", "2024-02-29T23:00:00+05:00"),
    ("s", np.datetime64("2024-02-29T18:00")),
]


@pytest.mark.parametrize(("unit", "value"), SAME, ids=repr)
def test_a_time_has_the_same_parts_in_every_form(unit: Any, value: Any) -> None:
    feature = Feature(name="t", parts=("hour", "weekday", "day", "month"), unit=unit)
    assert feature.columns[:3] == ("t.hour.sin", "t.hour.cos", "t.weekday.sin")
    (found,) = columns(feature, value)
    turns = [18 / 24, 3 / 7, 28 / 29, 1 / 12]
    expected = [wave(2 * math.pi * turn) for turn in turns for wave in (math.sin, math.cos)]
    assert found == pytest.approx(expected)


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "US/Eastern"])
def test_nanoseconds_count_in_no_form(zone: str) -> None:
    # A column of pandas has a type for all its values: another record decides which form a time has.
    text = "2024-11-03T05:30:00.000000999"  # the second 1:30 of that day in New York
    feature = Feature(name="t", parts=("hour", "month"))
    aware = pd.Timestamp(text, tz="UTC").tz_convert(zone)
    forms = np.datetime64(text, "ns"), pd.Timestamp(text), aware, text + "Z"
    assert all(columns(feature, form) == columns(feature, text) for form in forms)


def test_a_date_is_its_first_second() -> None:
    feature = Feature(name="t", parts=("hour", "day"))
    assert columns(feature, date(2024, 3, 1)) == columns(feature, "2024-03-01T00:00:00")


@pytest.mark.parametrize(
    "value",
    [
        *(None, "", "soon", True, 1e300, -1e300, NAN, 10**400, [0], "2024-02-30", "x" * 10**6, datetime.max),
        # In microseconds, both would be 1970.
        *(np.datetime64(2**62, "s"), np.datetime64(-(2**62), "D"), np.datetime64("NaT"), pd.NaT),
    ],
    ids=lambda v: repr(v)[:20],
)
def test_anything_else_is_no_time(value: Any) -> None:
    assert np.isnan(columns(Feature(name="t", parts=("hour", "month")), value)).all()


def test_a_list_has_its_size_and_numbers() -> None:
    feature = Feature(name="e", size=2, bounds=(-1, 1))
    assert feature.columns == ("e.0", "e.1")
    good = [[0.5, -3], (1, 0), np.array([0.25, 0.5])]
    assert columns(feature, *good) == [[0.5, -1], [1, 0], [0.25, 0.5]]
    not_lists = (None, 5, "ab", {"0": 1, "1": 2}, np.array(NAN))
    for wrong in (*not_lists, [1], [1, 2, 3], ["a", 1], [None, 1], np.eye(2)):
        assert np.isnan(columns(feature, wrong)).any(), wrong
    filled = Feature(name="e", size=2, missing=0.5)
    assert columns(filled, None, [None, 2]) == [[0.5, 0.5], [0.5, 2]]
    # The stand-in alone is not a list.
    assert np.isnan(columns(filled, 0.5)).all()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"name": ""}, "at least 1 character"),
    ({"bounds": [2, 1]}, "the lower one first"),
    ({"bounds": [0, math.inf]}, "two finite numbers"),
    ({"bounds": [0, "1"]}, "must be two numbers"),
    ({"bounds": [False, True]}, "must be two numbers"),
    ({"bounds": [0, 5e-324]}, "too near to each other"),
    ({"bounds": [-1.7e308, 1.7e308]}, "too far apart"),
    ({"bounds": [1e16, 1.0000000000000004e16], "transform": "log1p"}, "too near to each other"),
    ({"name": "a..b"}, "none of them empty"),
    ({"path": ["a"] * 33}, "1 to 32 names"),
    ({"transform": "log1p"}, "needs bounds"),
    ({"transform": "log1p", "bounds": [-2, 1]}, "must lie within -1 and inf"),
    ({"transform": "log1p", "bounds": [-1, 1]}, "not finite at the bounds"),
    ({"transform": "logit", "bounds": [0, 1]}, "not finite at the bounds"),
    ({"transform": "exp", "bounds": [0, 1]}, "'none', 'log1p', 'sqrt' or 'logit'"),
    ({"missing": "x"}, "missing must be a finite number"),
    ({"missing": 3, "bounds": [0, 1]}, "missing must lie within bounds"),
    ({"missing": math.inf}, "missing must be a finite number"),
    ({"categories": ["a"], "missing": "b"}, 'one of the categories, or "other"'),
    ({"categories": []}, "distinct, and one at least"),
    ({"categories": ["a", "a"]}, "distinct"),
    ({"categories": [1, "1"]}, "distinct"),
    ({"categories": ["other"], "other": True}, "which categories has already"),
    ({"categories": ["a"], "bounds": [0, 1]}, "bounds is of numbers"),
    ({"categories": ["a"], "parts": ["hour"]}, "do not go together"),
    ({"parts": ["second"]}, "'hour', 'weekday', 'day' or 'month'"),
    ({"parts": ["hour"], "missing": "soon"}, "missing must be a time"),
    ({"parts": ["hour"], "missing": 10**12}, 'missing must be a time: ISO 8601, or a number in unit "s"'),
    ({"parts": ["hour"], "parse": True}, "parse is of numbers"),
    ({"other": True}, "other needs categories"),
    ({"unit": "ms"}, "unit needs parts"),
    ({"size": 0}, "greater than or equal to 1"),
    ({"scale": 0}, "greater than 0"),
    ({"colour": 1}, "Extra inputs"),
    ({"path": ["a", ""]}, "at least 1 character"),
]


@pytest.mark.parametrize(("settings", "words"), WRONG, ids=repr)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words.replace("(", r"\(")):
        Feature(**{"name": "x", **settings})
