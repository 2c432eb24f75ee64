"""Doubts follow from the released numbers, and from nothing else."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.warnings import ReleaseWarning as W
from streaming_pca.estimators.warnings import find_warnings, resolved_components

D = 4
GOOD = Subspace(
    np.eye(2, D),
    np.array([8.0, 4.0]),
    np.full(D, 0.5),
    explained_variance_error=np.array([0.2, 0.1]),
    total_variance=14.0,
    total_variance_error=0.5,
    angle_bound=0.1,
)
RIGHT = math.pi / 2


def found(centering: Any = "auto", records: int = 100, **changes: Any) -> list[str]:
    return [*find_warnings(replace(GOOD, **changes), Preprocessing(dim=D, centering=centering), records)]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, []),
        ({"angle_bound": None}, []),
        ({"angle_bound": RIGHT}, ["not-resolved"]),
        ({"angle_bound": math.nextafter(RIGHT, 0)}, []),
        ({"explained_variance": np.array([8.0, 0.2])}, ["variance-lost"]),
        ({"explained_variance": np.array([8.0, 0.21])}, []),
        ({"explained_variance": np.array([8.0, 0.0]), "explained_variance_error": None}, ["variance-lost"]),
        ({"explained_variance": np.array([8.0, 1e-9]), "explained_variance_error": None}, []),
        # A mean of 10 in each feature: 400 against 14.
        ({"mean": np.full(D, 10.0)}, []),
        ({"mean_error": 10.0}, ["mean-swamps"]),
        ({"mean": None, "mean_error": 0.01}, []),
        ({"mean": np.full(D, 10.0), "angle_bound": None, "total_variance": None}, []),
        # Both are noise.
        ({"mean": np.full(D, 10.0), "angle_bound": None, "total_variance_error": 500.0}, []),
        ({"mean": None}, ["mean-unknown"]),
        ({"records": 0, "angle_bound": RIGHT, "mean": None}, ["no-records"]),
        # A tensor has neither variances nor a centre.
        ({"weights": np.ones(2), "mean": None, "explained_variance": np.zeros(2)}, []),
    ],
)  # fmt: skip
def test_doubts_are_those_that_the_numbers_imply(changes: dict[str, Any], expected: list[str]) -> None:
    assert found(**changes) == expected


@pytest.mark.parametrize(
    ("centering", "changes", "expected"),
    [
        # A mean that was removed beforehand does no harm.
        ("auto", {"mean": np.full(D, 10.0), "angle_bound": None}, []),
        ("auto", {"mean": None}, ["mean-unknown"]),
        ("pairs", {"mean": None, "explained_variance": np.array([13.9, 1.0])}, []),
        ((0.0,) * D, {"mean": None, "explained_variance": np.array([13.9, 1.0])}, []),
        ("none", {"mean": None}, []),
        ("none", {"mean": None, "explained_variance": np.array([100.0, 4.0]), "total_variance": 106.0},
         ["mean-unknown"]),
        ("none", {"mean": None, "explained_variance": np.array([100.0, 4.0]), "total_variance": None}, []),
        # Clipping makes both numbers uncertain by equal amounts.
        ("none", {"mean": None, "explained_variance": np.array([100.0, 4.0]), "total_variance": 106.0,
                  "explained_variance_error": np.array([5.0, 1.0]), "total_variance_error": 5.0},
         ["mean-unknown"]),
        # The difference is within the noise.
        ("none", {"mean": None, "explained_variance": np.array([100.0, 4.0]), "total_variance": 106.0,
                  "explained_variance_error": np.array([25.0, 1.0])}, []),
    ],
)  # fmt: skip
def test_what_is_said_of_the_mean_depends_on_the_centring(
    centering: Any, changes: dict[str, Any], expected: list[str]
) -> None:
    assert found(centering, **changes) == expected


def test_matrices_have_no_mean() -> None:
    matrices = Preprocessing(dim=D, kind=RecordKind.MATRIX, centering="none")
    leading = replace(GOOD, mean=None, explained_variance=np.array([100.0, 4.0]), total_variance=101.0)
    assert find_warnings(leading, matrices, 10) == ()


@pytest.mark.parametrize("number", [math.nan, math.inf, 1e308])
def test_numbers_that_overflow_raise_nothing(number: float) -> None:
    values = np.full(2, number)
    for centering in ("auto", "none"):
        for angle_bound in (None, number, RIGHT):
            changes = dict.fromkeys(("explained_variance", "explained_variance_error"), values)
            changes |= dict.fromkeys(("total_variance", "total_variance_error"), number)
            changes |= {"mean": np.full(D, number), "angle_bound": angle_bound}
            found(centering, **changes)
            resolved_components(replace(GOOD, **changes))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 2),
        ({"angle_bound": None}, None),
        ({"angle_bound": RIGHT, "explained_variance_error": None}, None),
        ({"angle_bound": RIGHT}, 1),
        ({"angle_bound": RIGHT, "explained_variance": np.array([4.1, 4.0])}, 0),
        ({"angle_bound": RIGHT, "explained_variance_error": np.array([2.0, 2.0])}, 0),
    ],
)
def test_resolved_components_are_counted(changes: dict[str, Any], expected: int | None) -> None:
    assert resolved_components(replace(GOOD, **changes)) == expected


def test_components_of_noise_are_not_counted_among_the_resolved() -> None:
    """Two of five components are real; in 200 draws, each may count too many with probability 0.05."""
    rng, truth = np.random.default_rng(3), np.diag([25.0, 9.0, *[1.0] * 18])
    counts = []
    for _ in range(200):
        g = rng.standard_normal((20, 20))
        values, vectors = np.linalg.eigh(truth + 0.2 * (g + g.T) / 2)
        noisy = replace(GOOD, explained_variance=values[::-1][:5], explained_variance_error=np.full(5, 0.2))
        counts.append(
            resolved_components(replace(noisy, components=vectors[:, ::-1][:, :5].T, angle_bound=RIGHT))
        )
    assert set(counts) == {2}


def test_every_doubt_has_an_id_and_an_explanation_in_one_line() -> None:
    ids = (
        "no-records not-resolved variance-lost mean-swamps mean-unknown clipped dominated unsettled restarted"
    )
    assert " ".join(doubt.value for doubt in W) == f"{ids} clamped range-ends"
    for doubt in W:
        assert doubt.explanation
        assert "\n" not in doubt.explanation


def test_a_dominant_feature_is_named_where_the_components_are_in_doubt_for_it() -> None:
    preprocessing = Preprocessing(dim=D, centering=np.zeros(D))
    dominated = replace(GOOD, dominant_feature=2)
    assert find_warnings(dominated, preprocessing, 100) == ()
    for trouble in ({"angle_bound": RIGHT}, {"known_warnings": ("clipped",)}):
        assert W.DOMINATED in find_warnings(replace(dominated, **trouble), preprocessing, 100)
        assert W.DOMINATED not in find_warnings(replace(GOOD, **trouble), preprocessing, 100)


def test_records_at_the_end_of_a_public_range_are_doubted() -> None:
    for end, expected in ((14.0 / 0.2, ["range-ends"]), (14.1 / 0.2, []), (math.inf, [])):
        for bounds in (None, (-1.0, 1.0)):
            public = Preprocessing(dim=D, centering="auto", bounds=bounds)
            assert [*find_warnings(GOOD, public, 100, end)] == expected
