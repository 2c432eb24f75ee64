"""Sums of clipped, centred means are exact integers, and no record moves one beyond its sensitivity."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.common.centre import clipped_mean_sum, mean_start
from streaming_pca.kernels.record_means import MEAN_RADIUS

D = 4


def total(records: list[Any], radius: float = 1.0, **more: Any) -> list[int]:
    about = Preprocessing(dim=D, centering="auto", **more).about(np.full(D, 0.25))
    return [int(v) for v in clipped_mean_sum(ArrayBatch.of_records(records, D), about, radius)]


def distance_squared(a: list[int], b: list[int]) -> int:
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


EXTREME = [
    None,
    np.zeros((1, D)),
    np.full((1, D), 0.25),
    np.full((1, D), 1e308),
    np.full((1, D), -1.7e308),
    np.full((1, D), 5e-324),
    np.array([[1e308, 5e-324, -1e-300, 1.0]]),
    np.array([[1.7e308] * D, [1.7e308] * D, [-1.7e308] * D]),
    np.full((3, D), 1e308),
    np.array([[3.0, 0.0, 0.0, 0.0]]),
    np.array([[-3.0, 0.0, 0.0, 0.0]]),
]


@pytest.mark.parametrize("radius", [1e-90, 1e-3, 1.0, 0.7, 1e90])
@pytest.mark.parametrize("more", [{}, {"scale": 3.0}, {"bounds": (-1.0, 2.0)}], ids=str)
def test_no_record_adds_more_than_the_radius_and_no_replacement_moves_more_than_twice_it(
    radius: float, more: dict[str, Any]
) -> None:
    rng = np.random.default_rng(0)
    records = [*EXTREME, *(rng.standard_normal((r, D)) * 10.0**e for r in (1, 5) for e in range(-9, 10, 3))]
    alone = [total([r], radius, **more) for r in records]
    for a in alone:
        assert distance_squared(a, [0] * D) <= MEAN_RADIUS**2
    for i in range(0, len(records), 3):
        others = [records[(i + 7 * j) % len(records)] for j in range(20)]
        for j in range(len(records)):
            first, second = (total([*others, r], radius, **more) for r in (records[i], records[j]))
            assert distance_squared(first, second) <= (2 * MEAN_RADIUS) ** 2
            assert np.array_equal(np.subtract(first, second), np.subtract(alone[i], alone[j]))


def test_opposite_records_are_as_far_apart_as_the_sensitivity_says() -> None:
    """Otherwise the noise would be too large; the check's margin is some units of 2**40."""
    a, b = (total([np.array([[s * 1e6, 0.25, 0.25, 0.25]])]) for s in (1, -1))
    assert distance_squared(a, b) >= (2 * (MEAN_RADIUS - 10)) ** 2


def test_rounding_never_takes_a_record_above_the_radius() -> None:
    """Norms equal the radius up to rounding, checked in integers of any size."""
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((3000, 7))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    about = Preprocessing(dim=7, centering=np.zeros(7))
    out = np.array([clipped_mean_sum(ArrayBatch.of_vectors(row[None]), about, 1.0) for row in rows])
    norms = [sum(int(v) ** 2 for v in row) for row in out]
    assert max(norms) <= MEAN_RADIUS**2
    assert min(norms) >= (MEAN_RADIUS - 10) ** 2
    np.testing.assert_allclose(out / MEAN_RADIUS, rows, atol=1e-11)


def test_a_record_adds_the_mean_of_its_rows_and_a_null_record_nothing() -> None:
    x = np.random.default_rng(2).standard_normal((5, D)) * 0.1
    unit = 2.0**-40
    np.testing.assert_allclose(np.array(total([x])) * unit, x.mean(axis=0) - 0.25, atol=1e-11)
    assert total([None, None]) == [0] * D
    assert total([x, None, x, None]) == [2 * v for v in total([x])]


def test_the_cut_into_blocks_changes_nothing() -> None:
    """2**13 records of the radius fill the 53 bits of a float64."""
    x = np.random.default_rng(3).standard_normal((20_000, D))
    x[:9000] = [1e9, 0, 0, 0]
    about = Preprocessing(dim=D).about(np.zeros(D))
    whole = clipped_mean_sum(ArrayBatch.of_vectors(x), about, 1.0)
    parts = ArrayBatch.of_vectors(x).split([777] * 25 + [575])
    assert np.array_equal(whole, np.sum([clipped_mean_sum(part, about, 1.0) for part in parts], axis=0))


def test_pairs_have_no_mean() -> None:
    with pytest.raises(ValueError, match="pairs have no mean"):
        clipped_mean_sum(ArrayBatch.of_vectors(np.ones((4, D))), Preprocessing(dim=D, centering="pairs"), 1.0)


@pytest.mark.parametrize("bound", [1e-200, 1e-3, 1e200])
def test_the_first_centre_is_the_middle_of_the_bounds(bound: float) -> None:
    bounds = (-bound, (bound, 2 * bound, bound, bound))
    assert mean_start(Preprocessing(dim=D, bounds=bounds)).tolist() == [0.0, bound / 2, 0.0, 0.0]
    assert mean_start(Preprocessing(dim=D)).tolist() == [0.0] * D
