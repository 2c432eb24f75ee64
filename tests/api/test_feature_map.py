"""`FeatureMap` and `PrivatePCA` of tables: rows equal a stream's, and scikit-learn's contract holds."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from sklearn.base import clone
from sklearn.pipeline import make_pipeline

from streaming_pca import BudgetAccountant, BudgetError, FeatureMap, PrivatePCA
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.release import Release
from streaming_pca.service.commit.batch_result import make_release
from tests.data.refusals import refuses
from tests.data.tables import tables_of

RECORDS: list[dict[str, Any]] = [
    {"age": 30, "spent": 12.5, "country": "FR", "seen": "2024-03-01T06:00:00", "ok": True},
    {"age": None, "spent": 0.0, "country": "PL", "seen": "2024-03-02T12:30:00", "ok": False},
    {"age": 130, "spent": 9000.0, "country": "DE", "seen": "2024-03-03T18:00:00", "ok": True},
]
FEATURES: list[dict[str, Any]] = [
    {"name": "age", "bounds": [0, 120], "missing": 40},
    {"name": "spent", "bounds": [0, 1000], "transform": "log1p"},
    {"name": "country", "categories": ["DE", "FR"]},
    {"name": "seen", "parts": ["hour", "weekday"]},
    {"name": "ok", "bounds": [0, 1]},
]
COLUMNS = {name: [record[name] for record in RECORDS] for name in RECORDS[0]}
TIMES = COLUMNS | {"seen": [datetime.fromisoformat(text) for text in COLUMNS["seen"]]}
TABLES = {
    "records": RECORDS,
    "columns": COLUMNS,
    "columns of arrays": COLUMNS | {"spent": np.array(COLUMNS["spent"]), "ok": np.array(COLUMNS["ok"])},
    "pandas": pd.DataFrame(COLUMNS),
    "pandas with times": pd.DataFrame(TIMES),
    "pandas with a zone": pd.DataFrame(TIMES).assign(seen=lambda f: f["seen"].dt.tz_localize("UTC")),
    "pandas' own types": pd.DataFrame(COLUMNS).convert_dtypes(),
    "pandas with categories": pd.DataFrame(COLUMNS).astype({"country": "category"}),
    "polars": pl.DataFrame(TIMES),
    "polars of texts": pl.DataFrame(COLUMNS),
    "arrow": pa.table(TIMES),
}


def rows_of_stream(features: list[dict[str, Any]], records: list[dict[str, Any]]) -> Any:
    """Return the rows as a worker decodes them, clamped as its estimator clamps them."""
    reader = FieldReader([Feature(**each) for each in features])
    read = [reader.json_records(json.dumps(record).encode(), 1)[0] for record in records]
    assert reader.map.bounds is not None
    return np.clip(reader.rows(read), *reader.map.bounds)


@pytest.mark.parametrize("name", TABLES)
def test_every_table_has_the_rows_of_the_stream(name: str) -> None:
    found = FeatureMap(FEATURES, scale=False).fit_transform(TABLES[name])
    np.testing.assert_allclose(found, rows_of_stream(FEATURES, RECORDS), atol=1e-12)
    scaled = FeatureMap(FEATURES).transform(TABLES[name])
    assert np.abs(scaled).max() <= 1
    assert scaled[2, 0] == 1.0
    assert FeatureMap(FEATURES).bounds == (pytest.approx([-1] * 9), pytest.approx([1] * 9))


def test_a_missing_or_wrong_value_is_one_line_that_names_record_and_field() -> None:
    without = [FEATURES[0] | {"missing": None}, *FEATURES[1:]]
    for table in (RECORDS, pd.DataFrame(COLUMNS), pl.DataFrame(COLUMNS)):
        with pytest.raises(
            ValueError,
            match=r"^record 1 of 3: field 'age' is missing, and has no stand-in: set missing of its feature$",
        ):
            FeatureMap(without).transform(table)
    wrong = [*RECORDS, RECORDS[0] | {"spent": "much"}]
    of_type = r"^record 3 of 4: field 'spent' is a text, which is not a number$"
    refuses(of_type, FeatureMap(FEATURES).transform, wrong)
    with pytest.raises(ValueError, match=r"^the table has no column 'ok'$"):
        FeatureMap(FEATURES).transform(pd.DataFrame(COLUMNS).drop(columns="ok"))
    refuses("different lengths", FeatureMap(FEATURES).transform, COLUMNS | {"ok": [True]})
    for no_table, kind in ((np.eye(3), "an array"), ([[1, 2]], "of type list,"), (5, "of type int,")):
        text = f"^X is {kind} without column names: features needs a data frame, or a list of dicts, with 'a"
        refuses(text, FeatureMap(FEATURES).transform, no_table)
        refuses(text, PrivatePCA(1, features=FEATURES).fit, no_table)
        text = r"without column names: bounds=\{...\} needs .* with 'age'; or give bounds=\(lower, upper\)$"
        refuses(text, PrivatePCA(1, bounds={"age": (0, 120)}).fit, no_table)


@pytest.mark.parametrize(
    ("features", "words"),
    [
        ([{"name": "a", "bounds": [1, 0]}], "feature 'a': bounds must be"),
        ([{"name": "a", "colour": 1}], "feature 'a': colour: no such setting"),
        ([{"bounds": [0, 1]}], "feature 0: name: must be set"),
        (["a"], "feature 0 must be a Feature or a dict"),
        ("a", "must be a list"),
        ([], "one feature"),
    ],
)
def test_wrong_features_are_one_line(features: Any, words: str) -> None:
    refuses(words, FeatureMap(features).fit)


def test_it_keeps_the_contract_of_scikit_learn() -> None:
    made = FeatureMap(FEATURES)
    copy = clone(made)
    assert copy is not made
    assert copy.get_params() == {"features": FEATURES, "scale": True}
    names = list(made.get_feature_names_out())
    assert names[:4] == ["age", "spent", "country=DE", "country=FR"]
    frame = clone(made).set_output(transform="pandas").transform(pd.DataFrame(COLUMNS))
    assert list(frame.columns) == names
    other = clone(made).set_output(transform="polars").transform(RECORDS)
    assert other.columns == names
    again = pickle.loads(pickle.dumps(made))
    np.testing.assert_array_equal(again.transform(RECORDS), made.transform(RECORDS))
    assert made.set_params(scale=False).transform(RECORDS)[2, 0] == 120


def test_the_representation_shows_only_settings_that_are_not_defaults() -> None:
    frame = pd.DataFrame({"age": [1.0], "member": [True]})
    made = FeatureMap.from_frame(frame, bounds={"age": (0, 120)}, missing={"age": 40})
    age = "FeatureMap(features=[Feature(name='age', bounds=(0.0, 120.0), missing=40.0),"
    lines = [line.strip() for line in repr(made).splitlines()]
    assert lines == [age, "Feature(name='member', bounds=(0.0, 1.0))])"]
    assert "path" not in repr(PrivatePCA(features=made))
    many = FeatureMap([Feature(name=f"column {i}", bounds=(0, 1)) for i in range(500)])
    assert len(repr(many)) < 2000
    # The settings are those of the constructor.
    assert eval(repr(made.features), {"Feature": Feature}) == made.features


def test_a_frame_says_what_is_public_and_asks_for_the_rest() -> None:
    frame = pl.DataFrame(TIMES).with_columns(pl.col("country").cast(pl.Enum(["DE", "FR", "PL"])))
    refuses(r"^name public bounds or categories of 'age', 'spent'$", FeatureMap.from_frame, frame)
    for texts in (pd.DataFrame({"seen": ["2026-01-01"]}), pl.DataFrame({"seen": ["2026-01-01"]})):
        text = r"^name public bounds or categories of 'seen', or convert times: pandas.to_datetime$"
        refuses(text, FeatureMap.from_frame, texts)
    bounds = {"age": (0, 120), "spent": (0, 1000)}
    made = FeatureMap.from_frame(frame, bounds=bounds, missing={"age": 40})
    names = list(made.get_feature_names_out())
    assert names[2:6] == ["country=DE", "country=FR", "country=PL", "seen.hour.sin"]
    assert made.transform(frame).shape == (3, 12)
    # The map does not depend on any value.
    assert FeatureMap.from_frame(frame[:0], bounds=bounds, missing={"age": 40}).features == made.features
    # polars and pandas may infer categories from the values, so these are not public.
    for found in (
        pl.DataFrame(TIMES).with_columns(pl.col("country").cast(pl.Categorical)),
        pd.DataFrame(TIMES).astype({"country": "category"}),
        pd.DataFrame(TIMES).astype({"country": pd.CategoricalDtype(["DE", "FR", "PL"])}),
    ):
        refuses(r"of 'country'$", FeatureMap.from_frame, found, bounds=bounds)
        named = {"country": ["DE", "FR", "PL"]}
        of_names = FeatureMap.from_frame(found, bounds=bounds, categories=named, missing={"age": 40})
        assert of_names.features == made.features
    with pytest.raises(ValueError, match="bounds names 'height', which is not a column"):
        FeatureMap.from_frame(frame, bounds={"height": (0, 2)})
    refuses("must be a data frame", FeatureMap.from_frame, RECORDS)
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"bounds": (0, 120)}, "bounds must be a dict, {column: (lower, upper)}, not tuple"),
        ({"bounds": ()}, "bounds must be a dict, {column: (lower, upper)}, not tuple"),
        ({"categories": ["DE"]}, "categories must be a dict, {column: [word, ...]}, not list"),
        ({"missing": 40}, "missing must be a dict, {column: stand-in}, not int"),
        ({"missing": 0}, "missing must be a dict, {column: stand-in}, not int"),
    ]
    for given, text in wrong:
        refuses(f"^{re.escape(text)}$", FeatureMap.from_frame, frame, **given)
    twins = pd.DataFrame([[1.0, 2.0]], columns=["a", "a"])
    for limits in ({}, {"a": (0, 1)}):
        refuses(r"^frame has two columns 'a': rename one$", FeatureMap.from_frame, twins, bounds=limits)


@pytest.mark.parametrize("place", range(4))
def test_a_column_may_have_any_name(place: int) -> None:
    """Tables have attributes of these names."""
    columns = {"column_names": 1.0, "columns": 2.0, "schema": 3.0}
    made = FeatureMap([{"name": name} for name in columns])
    assert made.transform(tables_of(**columns)[place]).tolist() == [[1, 2, 3]]


def test_names_of_columns_may_be_whole_numbers() -> None:
    frame = pd.DataFrame([[0.0, "a", np.nan], [2.0, "b", 5.0]])
    of_columns: dict[str, Any] = {"categories": {1: ["a", "b"]}, "missing": {np.int64(2): 5}}
    made = FeatureMap.from_frame(frame, bounds={0: (0, 2), 2: (0, 10)}, **of_columns)
    assert made.transform(frame).tolist() == [[-1, 1, -1, 0], [1, -1, 1, 0]]
    with pytest.raises(ValueError, match="bounds names '7', which is not a column"):
        FeatureMap.from_frame(frame, bounds={0: (0, 2), 7: (0, 1)})


def test_a_number_that_is_no_time_is_told_its_unit() -> None:
    moment = 1_717_200_000
    of_unit = {"s": moment, "ms": moment * 10**3, "us": moment * 10**6}
    for count in of_unit.values():
        frame = pd.DataFrame({"at": [count]})
        for other in of_unit:
            made = FeatureMap([{"name": "at", "parts": ["hour"], "unit": other}])
            if of_unit[other] >= count:
                made.transform(frame)
                continue
            text = f'is of type int64?, which is not a time in unit "{other}": set the unit that it counts'
            refuses(f"^record 0 of 1: field 'at' {text}", made.transform, frame)
    with pytest.raises(ValueError, match=r"'at' is a text, which is not a time in ISO 8601$"):
        FeatureMap([{"name": "at", "parts": ["hour"]}]).transform([{"at": "soon"}])


def test_a_time_with_a_zone_is_utc_and_one_without_is_taken_as_it_is() -> None:
    made = FeatureMap([{"name": "at", "parts": ["hour"]}])
    here = pd.to_datetime(["2024-06-01 00:30"]).tz_localize("Europe/Berlin")
    local = made.transform(pd.DataFrame({"at": here.tz_localize(None)}))
    of_utc = made.transform([{"at": "2024-05-31T22:30"}])
    np.testing.assert_allclose(made.transform(pd.DataFrame({"at": here})), of_utc)
    np.testing.assert_allclose(local, made.transform([{"at": "2024-06-01T00:30"}]))
    assert np.abs(local - of_utc).max() > 0.3


def test_the_features_of_a_settings_file_are_the_same_object(tmp_path: Path) -> None:
    lines = ["[stream]", 'name = "s"', 'input = "in"', "rank = 2", "epsilon = 1.0", "delta = 1e-6"]
    for feature in FEATURES:
        lines.append("[[stream.features]]")
        lines += [f"{key} = {json.dumps(value)}" for key, value in feature.items()]
    (tmp_path / "s.toml").write_text("\n".join(lines))
    found = FeatureMap.from_toml(tmp_path / "s.toml")
    np.testing.assert_array_equal(found.transform(RECORDS), FeatureMap(FEATURES).transform(RECORDS))
    found = FeatureMap.from_toml(tmp_path / "s.toml", scale=False)
    expected = FeatureMap(FEATURES, scale=False).transform(RECORDS)
    np.testing.assert_array_equal(found.transform(RECORDS), expected)
    (tmp_path / "plain.toml").write_text("\n".join([*lines[:6], "dim = 3"]))
    refuses(r"no \[\[stream\.features\]\]", FeatureMap.from_toml, tmp_path / "plain.toml")
    refuses(r"none\.toml", FeatureMap.from_toml, tmp_path / "none.toml")


def people(n: int = 20_000) -> Any:
    rng = np.random.default_rng(3)
    tall = rng.normal(size=n)
    return pd.DataFrame(
        {
            "height": 170 + 10 * tall + rng.normal(size=n),
            "weight": 70 + 12 * tall + 3 * rng.normal(size=n),
            "sex": pd.Categorical(rng.choice(["f", "m"], n), categories=["f", "m"]),
        }
    )


BODY = {"height": (100.0, 250.0), "weight": (20.0, 200.0)}
SEX = {"sex": ["f", "m"]}


def test_a_model_of_features_is_the_model_of_its_rows(tmp_path: Path) -> None:
    frame = people()
    features = FeatureMap.from_frame(frame, bounds=BODY, categories=SEX)
    model = PrivatePCA(1, epsilon=1e6, features=features, random_state=0).fit(frame)
    assert list(model.feature_names_in_) == ["height", "weight", "sex=f", "sex=m"]
    assert model.n_features_in_ == 4
    rows = FeatureMap(features.features, scale=False).transform(frame)
    bounds = ([100, 20, 0, 0], [250, 200, 1, 1])
    scale = [2 / 150, 2 / 180, 2, 2]
    plain = PrivatePCA(1, epsilon=1e6, bounds=bounds, scale=scale, random_state=0).fit(rows)
    np.testing.assert_allclose(np.abs(model.components_), np.abs(plain.components_), atol=1e-3)
    np.testing.assert_allclose(model.mean_, plain.mean_, atol=0.01)
    np.testing.assert_allclose(np.abs(model.transform(frame)), np.abs(plain.transform(rows)), atol=0.01)
    # Maps of the same features count as equal parameters; the file contains them.
    model.save(tmp_path / "m.npz")
    loaded = PrivatePCA.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(loaded.transform(frame[:5]), model.transform(frame[:5]))
    loaded.partial_fit(people(3000))
    pickled = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(pickled.transform(frame[:5]), model.transform(frame[:5]))


def test_a_pipeline_needs_no_fitted_scaler() -> None:
    frame = people()
    features = FeatureMap.from_frame(frame, bounds=BODY, categories=SEX)
    pipeline = make_pipeline(features, PrivatePCA(1, epsilon=1e6, bounds=(-1, 1), random_state=0))
    model = PrivatePCA(1, epsilon=1e6, features=features, random_state=0)
    first, second = pipeline.fit(frame)[-1].components_, model.fit(frame).components_
    np.testing.assert_allclose(np.abs(first), np.abs(second), atol=1e-3)


def test_bounds_may_name_columns() -> None:
    frame = people()[["weight", "height"]]
    model = PrivatePCA(1, epsilon=1e6, bounds=BODY, random_state=0).fit(frame)
    assert list(model.feature_names_in_) == ["height", "weight"]
    plain = PrivatePCA(1, epsilon=1e6, bounds=([100, 20], [250, 200]), random_state=0)
    plain.fit(frame[["height", "weight"]].to_numpy())
    np.testing.assert_allclose(np.abs(model.components_), np.abs(plain.components_), atol=1e-3)
    assert model.plan(2, 1000).batches == plain.plan(2, 1000).batches
    # A model that has been fitted keeps its bounds: no others are advised.
    refuses("without column names: bounds={...} needs [^;]*$", model.transform, np.eye(2))


@pytest.mark.parametrize(
    ("parameters", "table", "words"),
    [
        ({"bounds": BODY}, people(10), r"bounds lacks columns of X: \['sex'\]"),
        (
            {"bounds": BODY | {"age": (0, 1)}},
            people(10)[["height", "weight"]],
            "bounds names 'age', which is",
        ),
        ({"bounds": {"hight": (1, 2)}}, people(10), "^bounds names 'hight', which is not a column of X$"),
        ({"bounds": BODY}, np.eye(2), "without column names"),
        ({"bounds": {}}, people(10), "bounds must name at least one column"),
        ({"bounds": {"height": (2, 1)}}, people(10)[["height"]], "the lower one first"),
        ({"bounds": BODY, "features": FEATURES}, people(10), "leave one of them out"),
        ({"features": FEATURES}, people(10), "no column 'age'"),
        ({"features": 5}, people(10), "must be a list"),
    ],
)
def test_a_table_that_does_not_fit_is_one_line(parameters: dict[str, Any], table: Any, words: str) -> None:
    refuses(words, PrivatePCA(1, **parameters).fit, table)


def test_a_changed_map_is_a_changed_model() -> None:
    frame = people()
    model = PrivatePCA(1, bounds=BODY, epsilon=10).partial_fit(frame[["height", "weight"]][:9000])
    model.set_params(bounds=BODY | {"weight": (20, 300)})
    refuses("bounds changed", model.partial_fit, frame[["height", "weight"]][9000:])
    refuses("n_features is 5", model.plan, 5, 1000)


def test_the_model_of_a_release_takes_records(tmp_path: Path) -> None:
    frame = people(2000)
    features = FeatureMap.from_frame(frame, bounds=BODY, categories=SEX)
    settings = {"name": "s", "input": "in", "rank": 1, "epsilon": 1.0, "delta": 1e-6}
    stream = StreamSettings(**settings, features=features.features)
    estimator = stream.build_estimator()
    state = estimator.init(np.random.default_rng(0))
    rows = FeatureMap(features.features, scale=False).transform(frame)
    batch = ArrayBatch.of_vectors(rows)
    state = estimator.update(state, batch)
    release = Release.from_bytes(make_release(stream, estimator.release(state), 1, len(frame)))
    model = PrivatePCA.from_release(release, features=features)
    records = frame[:5].to_dict("records")
    np.testing.assert_allclose(model.transform(records), model.transform(frame[:5]))
    np.testing.assert_allclose(model.transform(records), release.transform(rows[:5]))
    assert list(model.feature_names_in_) == list(features.get_feature_names_out())
    other = FeatureMap.from_frame(frame, bounds=BODY | {"height": (0, 250)}, categories=SEX)
    refuses("features are not those of the release", PrivatePCA.from_release, release, features=other)


def test_a_map_without_scale_comes_back_from_a_file(tmp_path: Path) -> None:
    frame = people(3000)
    features = FeatureMap(FeatureMap.from_frame(frame, bounds=BODY, categories=SEX).features, scale=False)
    model = PrivatePCA(1, epsilon=1e3, features=features).fit(frame)
    model.save(tmp_path / "m.npz")
    loaded = PrivatePCA.load(tmp_path / "m.npz")
    np.testing.assert_array_equal(loaded.components_, model.components_)
    np.testing.assert_array_equal(loaded.transform(frame[:9]), model.transform(frame[:9]))
    plain = PrivatePCA(1).fit(np.eye(50, 3))
    plain.save(tmp_path / "plain.npz")
    with np.load(tmp_path / "plain.npz") as arrays:
        header = json.loads(arrays["model"].tobytes())
    # Earlier releases can read a model without features.
    assert (header["version"], "features" in header["parameters"]) == (1, False)


def test_another_map_of_the_same_bounds_is_another_model() -> None:
    frame = people(9000)
    model = PrivatePCA(1, bounds=BODY, epsilon=10).partial_fit(frame[["height", "weight"]])
    swapped = {"a": BODY["height"], "b": BODY["weight"]}
    model.set_params(bounds=swapped)
    with pytest.raises(ValueError, match="bounds changed since the model was started"):
        model.partial_fit(frame[["height", "weight"]].set_axis(["a", "b"], axis=1))
    both = PrivatePCA(1, scale=1.0, features=[{"name": "height", "scale": 9.0}])
    refuses("scale is set for the model and for a feature", both.fit, frame)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"a": np.array([1, 2], "m8[s]")}, "a column of durations"),
        ({"a": "FR"}, "must be a list or an array"),
        ({"a": 5}, "must be a list or an array"),
        ({"a": np.eye(2)}, "one value per record"),
        (pd.DataFrame([[1, 2]], columns=["a", "a"]), "two columns 'a'"),
    ],
)
def test_tables_that_are_none_are_one_line(table: Any, words: str) -> None:
    refuses(words, FeatureMap([{"name": "a"}]).transform, table)


def test_columns_of_numbers_and_structs_and_marks_of_missing_values_are_read() -> None:
    numbered = pd.DataFrame([[1.0, 2.0], [3.0, 4.0]])
    made = FeatureMap([{"name": "1", "bounds": [0, 4]}], scale=False)
    assert made.transform(numbered).tolist() == [[2], [4]]
    assert PrivatePCA(1, epsilon=1e3, bounds={0: (0, 4), 1: (0, 4)}).fit(numbered).n_features_in_ == 2
    nested = FeatureMap([{"name": "u.a", "missing": 7}])
    for table in (
        pa.table({"u": [{"a": 1.0}, None]}),
        pl.DataFrame({"u": [{"a": 1.0}, {"a": None}]}),
        [{"u": {"a": 1.0}}, {"u": {"a": float("nan")}}],
        [{"u": {"a": 1.0}}, {"u": {"a": pd.NA}}],
    ):
        assert nested.transform(table).tolist() == [[1], [7]]
    small = pd.DataFrame({"x": np.array([1.0, np.nan], np.float32)})
    assert FeatureMap([{"name": "x", "missing": 0.1}]).transform(small).tolist() == [[1], [0.1]]


def test_a_column_of_codes_is_read_as_it_was_meant() -> None:
    """A missing value makes whole numbers floats, and booleans are words of their own."""
    frame = pd.DataFrame({"code": [1.0, np.nan, 2.0], "paid": [True, False, True]})
    codes = {"name": "code", "categories": [1, 2], "missing": "2"}
    assert FeatureMap([codes], scale=False).transform(frame).tolist() == [[1, 0], [0, 1], [0, 1]]
    paid = FeatureMap([{"name": "paid", "categories": [False, True]}], scale=False)
    assert paid.transform(frame).tolist() == [[0, 1], [1, 0], [0, 1]]
    with pytest.raises(ValueError, match="'paid' is a column of booleans: its categories are 'true' and"):
        FeatureMap([{"name": "paid", "categories": ["True", "False"]}]).transform(frame)
    with pytest.raises(ValueError, match="'code': categories: must have an order, which a set has not"):
        FeatureMap([{"name": "code", "categories": {1, 2}}]).transform(frame)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([True, False]),
        pa.chunked_array([[True, False]]),
        pa.array([True, False]).dictionary_encode(),
        pd.Series([True, False], dtype="bool[pyarrow]"),
        pl.Series([True, False]),
    ],
    ids=["Arrow", "chunks", "a dictionary", "pandas with Arrow", "polars"],
)
def test_booleans_are_not_the_categories_0_and_1_in_any_table(values: Any) -> None:
    codes = FeatureMap([{"name": "paid", "categories": [0, 1]}])
    refuses(
        "'paid' is a column of booleans: its categories are 'true' and", codes.transform, {"paid": values}
    )
    words = FeatureMap([{"name": "paid", "categories": [False, True]}], scale=False)
    assert words.transform({"paid": values}).tolist() == [[0, 1], [1, 0]]


@pytest.mark.parametrize("type_", [pa.float16(), pa.float32(), pa.float64()], ids=str)
def test_a_number_with_a_point_is_not_a_category_in_arrow(type_: Any) -> None:
    """Whole numbers keep their type there, also where one is missing; a worker refuses the same values."""
    table = pa.table({"x": pa.array([np.float16(1)], pa.float16()).cast(type_)})
    refuses(
        "is of type float, which is not a word",
        FeatureMap([{"name": "x", "categories": [1]}]).transform,
        table,
    )


@pytest.mark.parametrize("of", [float, int])
@pytest.mark.parametrize("kind", ["polars", "polars' arrays", "Arrow", "pandas", "pandas with Arrow"])
def test_a_null_in_a_list_is_a_missing_value(kind: str, of: Any) -> None:
    values = [[of(1), None], [of(1), of(2)], None]
    type_, own = (pa.float64(), pl.Float64) if of is float else (pa.int64(), pl.Int64)
    column = {
        "polars": lambda: pl.Series(values),
        "polars' arrays": lambda: pl.Series(values, dtype=pl.Array(own, 2)),
        "Arrow": lambda: pa.array(values),
        "pandas": lambda: pd.Series(values),
        "pandas with Arrow": lambda: pd.Series(values, dtype=pd.ArrowDtype(pa.list_(type_))),
    }[kind]()
    made = FeatureMap([{"name": "x", "size": 2, "missing": 7}])
    assert made.transform({"x": column}).tolist() == [[1, 7], [1, 2], [7, 7]]


LARGE = 1_700_000_000_000_000_001
CODES: list[dict[str, Any]] = [
    # As floats, both words are 1.7e18.
    {"name": "code", "categories": [LARGE, LARGE + 1], "missing": "other", "other": True},
    {"name": "at", "parts": ["hour"], "unit": "us", "missing": 0},
    {"name": "x", "bounds": [0, 2e18], "missing": 1},
]
COLUMN_TYPES: dict[str, Callable[[list[Any]], Any]] = {
    "polars": lambda values: pl.Series(values, dtype=pl.Int64),
    "pandas": lambda values: pd.Series(values, dtype="Int64"),
    "pandas with Arrow": lambda values: pd.Series(values, dtype="int64[pyarrow]"),
    "objects": lambda values: pd.Series(values, dtype=object),
    "Arrow": lambda values: pa.array(values, pa.int64()),
    "lists": lambda values: values,
}


def of_codes(kind: str, values: list[Any]) -> Any:
    times = [None if value is None else value // 1000 for value in values]
    columns = {name: COLUMN_TYPES[kind](times if name == "at" else values) for name in ("code", "at", "x")}
    frames: dict[str, Any] = {"polars": pl.DataFrame, "Arrow": pa.table, "lists": dict}
    return frames.get(kind, pd.DataFrame)(columns)


@pytest.mark.parametrize("kind", COLUMN_TYPES)
def test_a_missing_value_changes_the_row_of_its_record_alone(kind: str) -> None:
    """The column of the others must not become one of rounded numbers."""
    features = FeatureMap(CODES)
    values = [LARGE, LARGE + 1, 5, LARGE]
    whole, gap = (features.transform(of_codes(kind, each)) for each in (values, [*values[:3], None]))
    alone = np.concatenate([features.transform(of_codes(kind, [value])) for value in values])
    assert whole[:3].tolist() == gap[:3].tolist()
    assert whole.tolist() == alone.tolist()
    assert whole[0].tolist() != whole[1].tolist()


@pytest.mark.parametrize("values", [[LARGE, 5], [LARGE, None], pd.Categorical([LARGE, 5])])
def test_a_column_that_rounds_its_codes_is_refused_whatever_it_holds(values: Any) -> None:
    text = "^'code' is a column of numbers, which are rounded where one is missing, and its category 17"
    refuses(text, FeatureMap(CODES[:1]).transform, pd.DataFrame({"code": values}))


def other_maps() -> dict[str, tuple[Any, Any]]:
    """Return parameters of a model of height and weight, and others with the same bounds."""
    plain = [{"name": name, "bounds": limits} for name, limits in BODY.items()]
    turned = [{**each, "path": other} for each, other in zip(plain, ("weight", "height"), strict=True)]
    filled = [{**each, "missing": 150} for each in plain]
    named = {name: {"features": each} for name, each in (("path", turned), ("missing", filled))}
    plain_bounds = {"bounds": ([100, 20], [250, 200]), "scale": [2 / 150, 2 / 180]}
    return {
        **{name: ({"features": plain}, other) for name, other in named.items()},
        "no map": ({"features": plain}, {"features": None, **plain_bounds}),
        "a map": (plain_bounds, {"features": plain, "bounds": None, "scale": None}),
    }


@pytest.mark.parametrize("name", other_maps())
def test_a_model_keeps_its_map_when_another_is_set(name: str, tmp_path: Path) -> None:
    """``transform`` and ``save`` refuse the other one, also after a fit that a budget refused."""
    frame = people(3000)[["height", "weight"]]
    own, other = other_maps()[name]
    with BudgetAccountant(10, 1e-5) as budget:
        model = PrivatePCA(1, epsilon=9.0, random_state=0, **own).fit(frame)
        before = model.transform(frame)
        model.set_params(**other)
        with pytest.raises(BudgetError):
            model.fit(frame)
    assert budget.spent.epsilon == 9
    text = "^features changed since the model was started"
    refuses(text, model.transform, frame)
    refuses(text, model.partial_fit, frame)
    refuses(text, model.save, tmp_path / "m.npz")
    model.set_params(**{each: own.get(each) for each in ("features", "bounds", "scale")})
    np.testing.assert_array_equal(model.transform(frame), before)
    model.save(tmp_path / "m.npz")
    loaded = PrivatePCA.load(tmp_path / "m.npz").set_params(**other)
    refuses(text, loaded.transform, frame)


def test_the_model_of_a_release_keeps_its_map_too() -> None:
    frame = people(2000)[["height", "weight"]]
    own, other = other_maps()["path"]
    stream = StreamSettings(name="s", input="in", rank=1, epsilon=1.0, delta=1e-6, **own)
    estimator = stream.build_estimator()
    rows = FeatureMap(own["features"], scale=False).transform(frame)
    state = estimator.update(estimator.init(np.random.default_rng(0)), ArrayBatch.of_vectors(rows))
    release = Release.from_bytes(make_release(stream, estimator.release(state), 1, len(frame)))
    for features in (own["features"], None):
        model = PrivatePCA.from_release(release, features=features).set_params(bounds=None, **other)
        refuses("^features changed since the model was started", model.transform, frame)
