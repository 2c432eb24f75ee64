"""PrivatePCA refuses mistakes with a one-line message."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from scipy.sparse import csr_array
from sklearn.base import clone

from streaming_pca import PrivatePCA
from streaming_pca.estimators.factory import MAX_FEATURES
from streaming_pca.estimators.warnings import DoubtfulResultWarning
from streaming_pca.kernels.lattice import MAX_RECORDS
from tests.api.samplers import spiked
from tests.data.refusals import refuses

FITTED = PrivatePCA(1).fit(spiked(20))

MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"n_components": 0}, "n_components must be a whole number of at least 1, not 0"),
    ({"n_components": 1.5}, "n_components must be"),
    ({"n_components": True}, "n_components must be"),
    ({"n_components": 9}, "n_components = 9 is above the number of features, 4"),
    ({"epsilon": 0}, "epsilon must be a finite number above 0"),
    ({"epsilon": "1"}, "epsilon must be a number, not '1'"),
    ({"epsilon": 1e13}, "epsilon and delta must be at most 1e12"),
    ({"epsilon": 1e-300}, "raise epsilon"),
    ({"delta": 0}, "delta must lie between 0 and 1"),
    ({"delta": None}, "delta must be a number"),
    ({"epsilon": 1e-9}, "raise epsilon"),
    ({"estimator": "analyse-gauss"}, "(the default is adaptive); did you mean analyze-gauss?"),
    ({"estimator": "pca"}, "no estimator 'pca' (the default is adaptive); did you mean dp-pca?"),
    ({"estimator": "dp-pca"}, "dp-pca finds one component, not 2: ask for 1, or take k-dp-pca"),
    ({"estimator": "local-sparse"}, "local-sparse learns from reports that producers have made private"),
    # Each is refused for its reason: no message leads to settings that are refused too.
    ({"estimator": "tensor-online"}, "tensor-online finds components of a tensor, not of a subspace: take"),
    ({"estimator": "tensor-private"}, "tensor-private finds components of a tensor, not of a subspace: take"),
    ({"estimator": ["analyze-gauss"]}, "estimator must be the id of an estimator"),
    ({"estimator": "private-oja"}, "options of private-oja: clip_radius: must be set"),
    ({"estimator": "oja"}, "estimator 'oja' is not private: it runs only with private = false"),
    ({"private": False}, "private = false is not for estimator 'adaptive', which is private"),
    ({"private": None}, "private must be True or False, not None"),
    ({"private": 0}, "private must be True or False, not 0"),
    ({"centering": "median"}, 'centering must be "auto", "pairs", "none", or one number'),
    ({"centering": "augment"}, 'centering = "augment" is now "auto"'),
    ({"centering": 3.0}, "centering must be"),
    ({"centering": None}, "centering must be"),
    ({"centering": False}, 'centering must be "auto", "pairs", "none", or one number'),
    ({"centering": [1, 2]}, "centering has 2 numbers for 4 features"),
    ({"centering": [1, 2, 3, np.nan]}, "centering must be finite"),
    ({"centering": [[1, 2], [3]]}, "centering must be"),
    ({"bounds": 3}, "bounds must be a pair"),
    ({"bounds": (1, 2, 3)}, "bounds must be a pair"),
    ({"bounds": ("a", "b")}, "bounds must be a number, or one number per feature, not 'a'"),
    ({"bounds": (1, 1)}, "bounds must have lower below upper"),
    ({"bounds": ([1, 2], 3)}, "bounds has 2 numbers for 4 features"),
    ({"bounds": (0, np.inf)}, "bounds must be finite"),
    ({"scale": 0}, "scale must be above 0"),
    ({"scale": "bounds"}, 'scale = "bounds" needs bounds'),
    ({"scale": "standard"}, 'scale must be "bounds", None, a number, or one number per feature, not '),
    ({"scale": np.eye(4)}, 'scale must be "bounds", None, a number, or one number per feature'),
    ({"random_state": -1}, "random_state must be"),
    ({"random_state": "seven"}, "random_state must be"),
    ({"random_state": np.random.RandomState}, "random_state must be"),
    ({"options": [1]}, "options must be a dict"),
    ({"options": {1: 2}}, "options must be a dict"),
    ({"options": {"grow": 2}}, "options of adaptive: grow: no such setting"),
    (
        {"options": {"growht": 2, "clip_quantil": 0.5, "max_batch": 1}},
        "options of adaptive: growht: no such setting; did you mean growth?; "
        "clip_quantil: no such setting; did you mean clip_quantile?; max_batch: must be at least 2, not 1",
    ),
    ({"epsilon": -1, "delta": 2}, "above 0, not -1; delta must lie between 0 and 1, not 2"),
    ({"options": {"growth": 0.5}}, "options of adaptive: growth: "),
    ({"options": {"n_records": 1}}, "options of adaptive: n_records: "),
    ({"options": {"radius_range": (2, 1)}}, "options of adaptive: radius_range must increase"),
]


@pytest.mark.parametrize(("parameters", "words"), MISTAKES, ids=str)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_a_mistake_is_a_line_of_its_parameter(parameters: dict[str, Any], words: str, method: str) -> None:
    pca = PrivatePCA(**parameters)
    refuses(re.escape(words), getattr(pca, method), np.eye(4))
    assert not hasattr(pca, "privacy_spent_")


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.zeros((2, 2, 2, 2)), r"vectors \(m, d\) or factors \(m, r, d\)"),
        (np.zeros((3, 0, 4)), r"vectors \(m, d\) or factors \(m, r, d\)"),
        (np.zeros(3), r"not of shape \(3,\). Reshape your data to \(-1, 1\) if it has one feature"),
        (np.zeros((0, 3)), "0 sample"),
        (np.zeros((1, 3)), "a minimum of 2 is required"),
        (np.zeros((3, 2, MAX_FEATURES + 1)), "at most 8192 are possible"),
        (np.zeros((2, MAX_FEATURES + 1)), "at most 8192 are possible"),
        (np.ones((2, 3)) * 1j, "Complex data not supported"),
    ],
    ids=lambda value: value if isinstance(value, str) else str(value.shape),
)
@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_records_of_another_shape_are_refused(X: NDArray[Any], words: str, method: str) -> None:
    refuses(words, getattr(PrivatePCA(), method), X)


SECRET = 0.123456789
WORD = "confidential"
WRONG: dict[str, tuple[Any, str]] = {
    "one dimension": (np.full(9, SECRET), "X must be vectors (m, d) or factors (m, r, d), not of shape (9,)"),
    "a list of numbers": ([SECRET, 1, 2], "not of shape (3,). Reshape your data"),
    "a series": (pd.Series([SECRET, 1.0]), "not of shape (2,). Reshape your data"),
    "a number": (SECRET, "X must be vectors (m, d) or factors (m, r, d), not float"),
    "nothing": (None, "not NoneType"),
    "complex numbers": (np.full((200, 2), SECRET * 1j), "Complex data not supported: X must be real numbers"),
    "complex objects": ([[SECRET * 1j, 1.0]] * 3, "X must hold numbers: float() argument must be"),
    "objects": (np.full((3, 2), SECRET * 1j).astype(object), "X must hold numbers: float() argument must be"),
    "dicts": ([{"a": SECRET}, {"a": 1.0}], "X must hold numbers: float() argument must be"),
    "texts": ([[WORD, "1"], ["2", "3"]], "X holds texts: pass a table and features=FeatureMap(...)"),
    "octets": ([[WORD.encode(), b"1"]] * 3, "X holds texts"),
    "one text": (WORD, "X holds texts"),
    "texts of pandas": (pd.DataFrame({"a": [WORD] * 3}), "X has columns of texts ('a')"),
    "texts of polars": (pl.DataFrame({"b": [1.0], "a": [WORD]}), "X has columns of texts ('a')"),
    "texts of Arrow": (
        pa.table({"b": [1.0], "a": [WORD]}),
        "X has columns of texts ('a'): give features=FeatureMap(...)",
    ),
    "twins": (pd.DataFrame([[SECRET] * 3], columns=list("aba")), "X has two columns 'a': rename one"),
    "twins of Arrow": (pa.table([[SECRET], [1.0]], names=["b", "b"]), "X has two columns 'b': rename one"),
    "times": (np.full((3, 2), "2021-02-03", "M8[D]"), "X holds times"),
    "durations": (pd.DataFrame({"a": np.ones(3, "m8[s]")}), "X has columns of durations ('a'): divide them"),
    "durations of Arrow": (pa.table({"a": pa.array([1], pa.duration("s"))}), "X has columns of durations"),
    "periods": (pd.DataFrame({"a": pd.period_range("2021", periods=3)}), "X has columns of times ('a')"),
    "lazy frame": (pl.LazyFrame({"a": [1.0] * 3}), "a lazy frame holds no values: call its collect()"),
    "times of polars": (pl.DataFrame({"a": [date(2021, 2, 3)] * 3}), "X has columns of times ('a')"),
    "lengths": ([[SECRET, 1.0], [2.0]], "its rows have different lengths"),
    "a missing value": ([[SECRET, np.nan]] * 3, "X contains NaN: name public stand-ins"),
    "an infinity": ([[SECRET, np.inf]] * 3, "Input X contains infinity"),
    "a huge number": ([[SECRET, 10**400]] * 3, "cannot be converted to an array of numbers (OverflowError)"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("method", ["fit", "partial_fit", "transform"])
def test_a_message_about_records_is_one_line_without_their_values(name: str, method: str) -> None:
    X, words = WRONG[name]
    with pytest.raises((TypeError, ValueError)) as caught:
        getattr(FITTED if method == "transform" else PrivatePCA(1), method)(X)
    text = str(caught.value)
    assert words in text
    assert "\n" not in text
    for secret in ("0.12", "123456", WORD, "2021", "e+400"):
        assert secret not in text
    # Nor does a traceback show the message of numpy or scikit-learn.
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


@pytest.mark.parametrize(
    ("X", "words"),
    [
        ([SECRET, 1.0], "X must be of shape (m, k) or (m, r, k), not of shape (2,). Reshape"),
        (np.array([[SECRET * 1j]]), "Complex data not supported"),
        ([[WORD]], "X holds texts, which are not numbers"),
        (pd.DataFrame([[SECRET] * 2], columns=["a", "a"]), "X has two columns 'a': rename one"),
    ],
)
def test_a_message_about_coordinates_is_one_line_without_their_values(X: Any, words: str) -> None:
    text = refuses(re.escape(words), FITTED.inverse_transform, X)
    assert WORD not in text
    assert "123" not in text


AMBIGUOUS = "has two meanings"
INSTEAD = "write bounds=([-4, -5], [4, 5])"


@pytest.mark.parametrize(
    ("bounds", "read"),
    [
        # The documented form, a tuple of two lists or arrays, has one meaning.
        (([0, 5], [10, 20]), ((0, 5), (10, 20))),
        ((np.array([0, 5]), np.array([10, 20])), ((0, 5), (10, 20))),
        # The other reading of these is impossible, or the same.
        (((0, 0), (10, 20)), ((0, 0), (10, 20))),
        ([[0, -1], [10, 20]], ((0, -1), (10, 20))),
        (((0, 5), (5, 20)), ((0, 5), (5, 20))),
        ((-1, [10, 20]), (-1, (10, 20))),
        ([-1, 1], (-1, 1)),
        ([(0, 5), (10, 20)], AMBIGUOUS),
        (((0, 5), (10, 20)), AMBIGUOUS),
        ([[0, 5], [10, 20]], AMBIGUOUS),
        (np.array([[0, 5], [10, 20]]), AMBIGUOUS),
        ([np.array([0, 5]), np.array([10, 20])], AMBIGUOUS),
        ([(-4, 4), (-5, 5)], INSTEAD),
        (((-4, 4), (-5, 5)), INSTEAD),
        (([-4, 4], [-5, 5]), INSTEAD),
        (np.array([(-4, 4), (-5, 5)]), INSTEAD),
        (([5, 0], [1, 2]), "bounds must have lower below upper for every feature: first all lower bounds"),
        (([5, 0], [9, 0]), "all upper bounds; equal or reversed, counted from 0: [1]"),
    ],
    ids=repr,
)
def test_bounds_of_two_features_have_one_meaning_or_are_refused(bounds: Any, read: Any) -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (50, 2))
    pca = PrivatePCA(1, bounds=bounds)
    if isinstance(read, str):
        text = refuses(re.escape(read), pca.fit, X)
        if read == AMBIGUOUS:
            assert "of one feature and of the other, write bounds=([0, 10], [5, 20])" in text
            assert "lower and the upper bounds, write bounds=([0, 5], [10, 20])" in text
    else:
        assert pca.fit(X)._estimator.preprocessing.bounds == read


@pytest.mark.parametrize("d", [1, 3, 4])
def test_pairs_of_more_or_fewer_features_are_refused_with_the_right_form(d: int) -> None:
    pairs = [(-i - 0.5, i + 1) for i in range(d)]
    text = refuses("for one pair for each feature, write", PrivatePCA(1, bounds=pairs).fit, np.zeros((20, d)))
    lower, upper = ast.literal_eval(text.partition("write bounds=")[2])
    assert list(zip(lower, upper, strict=True)) == pairs
    PrivatePCA(1, bounds=(lower, upper)).fit(np.zeros((20, d)))


def test_bounds_keep_their_meaning_in_files_and_releases(tmp_path: Path) -> None:
    bounds = ([0, 5], [10, 20])
    X = np.random.default_rng(0).uniform(*bounds, (50, 2))
    PrivatePCA(1, bounds=bounds).fit(X).save(tmp_path / "m.npz")
    loaded = PrivatePCA.load(tmp_path / "m.npz")
    assert clone(loaded).fit(X)._estimator.preprocessing.bounds == ((0, 5), (10, 20))
    named = {"a": (0, 5), "b": (10, 20)}
    table = pd.DataFrame({"a": X[:, 0], "b": X[:, 1]})
    assert PrivatePCA(1, bounds=named).fit(table)._estimator.preprocessing.bounds == ((0, 10), (5, 20))


def test_scale_may_follow_the_bounds() -> None:
    X = np.random.default_rng(0).uniform(-1, 1, (50, 4))
    lower, upper = [0, 5, 0, 0], [10, 20, 1, 4]
    pca = PrivatePCA(1, bounds=(lower, upper), scale="bounds").fit(X)
    assert pca._estimator.preprocessing.scale == (0.2, 2 / 15, 2, 0.5)
    table = pd.DataFrame(X, columns=list("abcd"))
    named = {name: (low, high) for name, low, high in zip("abcd", lower, upper, strict=True)}
    for bounds, records, scale in ((named, table, (0.2, 2 / 15, 2, 0.5)), ((-2, 2), X, 0.5)):
        other = PrivatePCA(1, bounds=bounds, scale="bounds").fit(records)
        assert other._estimator.preprocessing.scale == scale


VECTORS = np.random.default_rng(0).standard_normal((40, 3))
FACTORS = np.random.default_rng(1).standard_normal((40, 2, 3))


@pytest.mark.parametrize(
    ("first", "second", "words"),
    [
        (VECTORS, FACTORS, "factors of 2 rows, each a record, but the records of this model are vectors"),
        (csr_array(VECTORS), FACTORS, "but the records of this model are vectors"),
        (FACTORS, VECTORS, "X has vectors, each row a record, but the records of this model are factors"),
        (FACTORS, csr_array(VECTORS), "pass factors (m, r, d), or X[:, None, :] for records of one row"),
        # One kind of record, or a form with an explicit number of rows.
        (VECTORS, VECTORS[:, None, :], None),
        (VECTORS[:, None, :], VECTORS, None),
        (FACTORS, VECTORS[:, None, :], None),
        (VECTORS[:, None, :], FACTORS, None),
        (FACTORS, np.concatenate([FACTORS, FACTORS], axis=1), None),
    ],
)
@pytest.mark.parametrize("is_saved", [False, True])
def test_rows_and_factors_do_not_mix_in_silence(
    first: Any, second: Any, words: str | None, is_saved: bool, tmp_path: Path
) -> None:
    """The unit of privacy is a row in one call and a factor of several rows in the other."""
    pca = PrivatePCA(1).partial_fit(first)
    if is_saved:
        pca.save(tmp_path / "m.npz")
        pca = PrivatePCA.load(tmp_path / "m.npz")
    if words is None:
        assert pca.partial_fit(second).n_records_seen_ == 80
        return
    refuses(re.escape(words), pca.partial_fit, second)
    # The call is refused before it is charged, and fit starts a new model.
    assert pca.n_records_seen_ == 40
    pca.fit(second)


def test_more_records_than_a_batch_can_hold_are_refused() -> None:
    X = np.zeros((MAX_RECORDS + 1, 1), dtype=np.float32)
    refuses(f"a batch at most {MAX_RECORDS}: pass it in parts", PrivatePCA(1).partial_fit, X)
    refuses("raise n_batches", PrivatePCA(1, options={"n_batches": 1}).fit, X)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_fewer_records_than_components_are_refused_before_a_charge(method: str) -> None:
    pca = PrivatePCA(5)
    refuses("X has 3 records, fewer than n_components = 5: pass more", getattr(pca, method), np.eye(6)[:3])
    assert not hasattr(pca, "privacy_spent_")
    # Three records of two rows can span five dimensions.
    getattr(pca, method)(np.eye(6).reshape(3, 2, 6))


def doubted(fit: Callable[[], Any]) -> tuple[Any, list[str]]:
    """Fit, and return the model and each warning of a doubtful guarantee, which points at the user's line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = fit()
    found = [each for each in caught if "the guarantee is doubtful" in str(each.message)]
    assert all((each.category, each.filename) == (DoubtfulResultWarning, __file__) for each in found)
    return model, [str(each.message) for each in found]


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("delta", "words"),
    [(0.1, "delta = 0.1 is not below 1/records = 0.05"), (0.01, "delta = 0.01 is above 0.001"), (1e-3, None)],
)
def test_a_delta_that_protects_too_little_is_a_warning(delta: float, words: str | None, method: str) -> None:
    _, found = doubted(lambda: getattr(PrivatePCA(2, delta=delta), method)(spiked(20)))
    assert len(found) == (words is not None)
    assert all((words or "") in each for each in found)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(("epsilon", "is_doubtful"), [(1000, True), (20.5, True), (20, False), (1, False)])
def test_an_epsilon_that_hardly_protects_is_a_warning(epsilon: float, is_doubtful: bool, method: str) -> None:
    pca, found = doubted(lambda: getattr(PrivatePCA(2, epsilon=epsilon), method)(spiked(20)))
    assert len(found) == is_doubtful
    for text in found:
        assert text.startswith(f"the guarantee is doubtful: epsilon = {epsilon:g} is above 20: ")
        assert "\n" not in text
    # It is a warning, not a refusal.
    assert float(pca.privacy_spent_.epsilon) == epsilon
    forecast = PrivatePCA(2, epsilon=epsilon).plan(8, 20)
    assert any("hardly any protection" in line for line in forecast.warnings) == is_doubtful


def test_an_estimator_without_privacy_has_no_doubtful_epsilon() -> None:
    pca = PrivatePCA(2, epsilon=1000, private=False, estimator="oja", centering="none")
    assert not doubted(lambda: pca.fit(spiked(20)))[1]


def test_pairs_need_two_records_of_one_row() -> None:
    pca = PrivatePCA(centering="pairs")
    refuses("pairs", pca.partial_fit, np.ones((6, 2, 4)))
    assert pca.partial_fit(np.ones((5, 4))).n_records_seen_ == 4


def test_coordinates_of_another_rank_are_refused() -> None:
    pca = PrivatePCA(2).fit(spiked(20))
    refuses("X has 3 columns for 2 components", pca.inverse_transform, np.zeros((5, 3)))


@pytest.mark.parametrize(
    ("columns", "part"),
    [
        ({"colour": ["red", "blue"] * 50}, r"columns of texts \('colour'\)"),
        ({"when": np.array(["2020-01-01"] * 100, "M8[s]")}, r"columns of times \('when'\)"),
        ({"colour": ["red"] * 100, "when": np.array(["2020-01-01"] * 100, "M8[s]")}, "columns of times"),
    ],
    ids=["texts", "times", "both"],
)
def test_a_frame_of_texts_or_times_is_sent_to_a_feature_map(columns: dict[str, Any], part: str) -> None:
    frame = pd.DataFrame({"age": np.arange(100.0)} | columns)
    assert "features=FeatureMap.from_frame(X, ...)" in refuses(part, PrivatePCA(1).fit, frame)
