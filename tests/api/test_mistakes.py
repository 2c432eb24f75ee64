"""PrivatePCA refuses mistakes with a one-line message."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca import PrivatePCA
from streaming_pca.estimators.factory import MAX_FEATURES
from streaming_pca.estimators.warnings import DoubtfulResultWarning
from streaming_pca.kernels.lattice import MAX_RECORDS
from tests.api.samplers import spiked

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
    ({"estimator": "analyse-gauss"}, "no estimator 'analyse-gauss'; did you mean analyze-gauss?"),
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
    ({"scale": np.eye(4)}, "scale must be a number, or one number per feature"),
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
def test_a_mistake_is_one_line_that_names_the_parameter(
    parameters: dict[str, Any], words: str, method: str
) -> None:
    pca = PrivatePCA(**parameters)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        getattr(pca, method)(np.eye(4))
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not hasattr(pca, "privacy_spent_")


@pytest.mark.parametrize(
    ("X", "words"),
    [
        (np.zeros((2, 2, 2, 2)), r"vectors \(m, d\) or factors \(m, r, d\)"),
        (np.zeros((3, 0, 4)), r"vectors \(m, d\) or factors \(m, r, d\)"),
        (np.zeros(3), "Reshape your data"),
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
    with pytest.raises(ValueError, match=words):
        getattr(PrivatePCA(), method)(X)


def test_more_records_than_a_batch_can_hold_are_refused() -> None:
    X = np.zeros((MAX_RECORDS + 1, 1), dtype=np.float32)
    with pytest.raises(ValueError, match=f"a batch at most {MAX_RECORDS}: pass it in parts"):
        PrivatePCA(1).partial_fit(X)
    with pytest.raises(ValueError, match="raise n_batches"):
        PrivatePCA(1, options={"n_batches": 1}).fit(X)


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
def test_fewer_records_than_components_are_refused_before_a_charge(method: str) -> None:
    pca = PrivatePCA(5)
    with pytest.raises(ValueError, match="X has 3 records, fewer than n_components = 5: pass more"):
        getattr(pca, method)(np.eye(6)[:3])
    assert not hasattr(pca, "privacy_spent_")
    # Three records of two rows can span five dimensions.
    getattr(pca, method)(np.eye(6).reshape(3, 2, 6))


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("delta", "words"),
    [(0.1, "delta = 0.1 is not below 1/records = 0.05"), (0.01, "delta = 0.01 is above 0.001"), (1e-3, None)],
)
def test_a_delta_that_protects_too_little_is_a_warning(delta: float, words: str | None, method: str) -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        getattr(PrivatePCA(2, delta=delta), method)(spiked(20))
    found = [each for each in caught if "the guarantee is doubtful" in str(each.message)]
    assert [each.category for each in found] == [DoubtfulResultWarning] * (words is not None)
    for each in found:
        assert words is not None
        assert words in str(each.message)
        # The warning points at the user's line.
        assert each.filename == __file__


def test_pairs_need_two_records_of_one_row() -> None:
    pca = PrivatePCA(centering="pairs")
    with pytest.raises(ValueError, match="pairs"):
        pca.partial_fit(np.ones((6, 2, 4)))
    assert pca.partial_fit(np.ones((5, 4))).n_records_seen_ == 4


def test_coordinates_of_another_rank_are_refused() -> None:
    pca = PrivatePCA(2).fit(spiked(20))
    with pytest.raises(ValueError, match="X has 3 columns for 2 components"):
        pca.inverse_transform(np.zeros((5, 3)))


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
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"age": np.arange(100.0)} | columns)
    with pytest.raises(ValueError, match=part) as caught:
        PrivatePCA(1).fit(frame)
    assert "features=FeatureMap.from_frame(X, ...)" in str(caught.value)
    assert "\n" not in str(caught.value)
