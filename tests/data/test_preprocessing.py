"""Public transformations, record by record."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from tests.data.refusals import refuses

D = 3
VARIANTS: list[dict[str, Any]] = [
    {**c, "bounds": b, "scale": s}
    for c in (
        {"centering": "none"},
        {"centering": "pairs"},
        {"centering": "auto", "centre": (1.5, -1.0, 0.5)},
        {"centering": (1.0, -2.0, 0.5)},
    )
    for b in (None, (-1.0, 2.0), ((-1.0, -2.0, -3.0), 4.0))
    for s in (None, 0.5, (1.0, 2.0, 3.0))
]


def rows_of(batch: ArrayBatch, i: int) -> Any:
    return batch.rows[batch.starts[i] : batch.starts[i + 1]].tolist()


def one(p: Preprocessing, *records: Any) -> Any:
    arrays = [None if r is None else np.array(r) for r in records]
    return rows_of(p.apply(ArrayBatch.of_records(arrays, p.dim, p.kind)), 0)


def test_rows_are_clamped_then_centred_then_scaled() -> None:
    p = Preprocessing(dim=2, centering=(1.0, 2.0), bounds=(-5.0, (5.0, 6.0)), scale=(10.0, 0.5))
    assert one(p, [[100.0, -100.0], [0.0, 3.0]]) == [[40.0, -3.5], [-10.0, 0.5]]


def test_a_private_mean_is_taken_off_once_it_is_there() -> None:
    p = Preprocessing(dim=2, centering="auto", bounds=(-5.0, (5.0, 6.0)), scale=(10.0, 0.5))
    refuses(r"about\(mean\)", one, p, [[1.0, 2.0]])
    assert p.granularity == 1
    about = p.about(np.array([1.0, 2.0]))
    assert one(about, [[100.0, -100.0], [0.0, 3.0]]) == [[40.0, -3.5], [-10.0, 0.5]]
    assert about.about(np.zeros(2)).centre == (0.0, 0.0)
    assert about.largest_squared_norm == p.largest_squared_norm == 100.0**2 + 5.5**2


def test_pairs_are_scaled_differences_of_neighbours() -> None:
    p = Preprocessing(dim=2, centering="pairs", bounds=(-10.0, 10.0))
    assert (p.granularity, p.units) == (2, 2)
    np.testing.assert_allclose(one(p, [[3.0, 100.0]], [[1.0, -100.0]]), [[2**0.5, 20 / 2**0.5]])
    assert len(p.apply(ArrayBatch.of_vectors(np.zeros((10, 2))))) == 5


def test_the_covariance_of_pairs_is_that_of_the_records() -> None:
    x = np.random.default_rng(0).standard_normal((20_000, 2)) @ np.array([[2.0, 1.0], [0.0, 1.0]]) + 50
    t = Preprocessing(dim=2, centering="pairs").apply(ArrayBatch.of_vectors(x))
    np.testing.assert_allclose(t.rows.T @ t.rows / len(t), np.cov(x.T), atol=0.3)


@pytest.mark.parametrize("rows", [None, np.zeros((0, 2)), np.ones((2, 2))])
def test_a_pair_is_null_if_either_member_is_not_one_row(rows: Any) -> None:
    p = Preprocessing(dim=2, centering="pairs")
    vector = np.ones((1, 2))
    batch = p.apply(ArrayBatch.of_records([rows, vector, vector, rows, vector, 3 * vector], 2))
    assert [len(rows_of(batch, i)) for i in range(3)] == [0, 0, 1]


def test_an_odd_number_of_records_cannot_be_paired() -> None:
    refuses("even", Preprocessing(dim=2, centering="pairs").apply, ArrayBatch.of_vectors(np.zeros((3, 2))))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_null_records_stay_null_and_in_their_places(variant: dict[str, Any]) -> None:
    p = Preprocessing(dim=D, **variant)
    x = np.ones((1, D))
    t = p.apply(ArrayBatch.of_records([None, None, x, 2 * x, None, None], D))
    assert [len(rows_of(t, i)) > 0 for i in range(0, len(t), 2 // p.units)] == [False, True, False]
    assert len(t) == 6 // p.units
    assert t.rows.shape[1] == D
    assert t.rows.dtype == np.float64


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_a_transformed_record_depends_on_its_source_alone(variant: dict[str, Any]) -> None:
    p = Preprocessing(dim=D, **variant)
    x = np.random.default_rng(1).standard_normal((40, D)) * 5
    whole = p.apply(ArrayBatch.of_vectors(x))
    for i in range(0, 40, p.units):
        alone = p.apply(ArrayBatch.of_vectors(x[i : i + p.units]))
        assert rows_of(alone, 0) == rows_of(whole, i // p.units)


@pytest.mark.parametrize("variant", [v for v in VARIANTS if v["bounds"] is not None], ids=str)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_no_row_passes_the_public_bound(variant: dict[str, Any], seed: int) -> None:
    p = Preprocessing(dim=D, **variant)
    x = np.random.default_rng(seed).standard_cauchy((10, D)) * 10
    norms = np.sum(p.apply(ArrayBatch.of_vectors(x)).rows ** 2, axis=1)
    assert p.largest_squared_norm is not None
    assert norms.max() <= p.largest_squared_norm * (1 + 1e-12)


def test_without_bounds_there_is_no_public_bound() -> None:
    assert Preprocessing(dim=D).largest_squared_norm is None


@pytest.mark.parametrize("centering", ["none", "pairs", (-1.7e308,) * D])
def test_a_record_that_overflows_is_null_and_nothing_warns_of_it(centering: Any) -> None:
    """A warning would reveal that such a record exists; pytest turns warnings into errors."""
    p = Preprocessing(dim=D, centering=centering, scale=4.0)
    x = np.full((1, D), 1.7e308)
    t = p.apply(ArrayBatch.of_records([x, -x, np.ones((1, D)), np.ones((1, D))], D))
    lengths = np.diff(t.starts)
    assert lengths[0] == 0
    assert len(t) == 4 // p.units
    assert np.isfinite(t.rows).all()
    if centering == "none":
        assert lengths.tolist() == [0, 0, 1, 1]


def test_one_overflowing_row_makes_the_whole_factor_null() -> None:
    p = Preprocessing(dim=1, centering="none", scale=1e10)
    t = p.apply(ArrayBatch.of_records([np.array([[1.0], [1e300]]), np.array([[2.0]])], 1))
    assert t.starts.tolist() == [0, 0, 1]
    assert t.rows.tolist() == [[2e10]]


def test_float32_rows_are_transformed_as_the_float64_numbers_they_are() -> None:
    x = np.random.default_rng(2).standard_normal((10, D)).astype(np.float32)
    p = Preprocessing(dim=D, centering=(0.1, 0.2, 0.3), scale=1.1, bounds=(-1.1, 1.1))
    single, double = p.apply(ArrayBatch.of_vectors(x)), p.apply(ArrayBatch.of_vectors(x.astype(np.float64)))
    assert np.array_equal(single.rows, double.rows)


def test_the_source_is_left_alone() -> None:
    for variant in VARIANTS:
        x = np.random.default_rng(3).standard_normal((4, D)) * 9
        batch = ArrayBatch.of_vectors(x.copy())
        Preprocessing(dim=D, **variant).apply(batch)
        assert np.array_equal(batch.rows, x)


def test_a_matrix_becomes_symmetric_to_the_last_bit() -> None:
    """Otherwise the released triangle could be larger than the clipped norm."""
    p = Preprocessing(dim=2, kind=RecordKind.MATRIX, centering="none")
    assert one(p, [[1.0, 2.0], [4.0, -5.0]]) == [[1.0, 3.0], [3.0, -5.0]]
    assert one(p, [[1.7e308, 1.7e308], [1.7e308, -1.7e308]]) == [[1.7e308, 1.7e308], [1.7e308, -1.7e308]]
    nulls = p.apply(ArrayBatch.of_records([None, np.eye(2), None], 2, RecordKind.MATRIX))
    assert nulls.starts.tolist() == [0, 0, 2, 2]


@pytest.mark.parametrize(
    "settings_",
    [
        {"centering": "mean"},
        {"centering": (1.0, 2.0)},
        {"centering": (1.0, 2.0, float("nan"))},
        {"scale": 0.0},
        {"scale": (1.0, -1.0, 1.0)},
        {"scale": float("inf")},
        {"bounds": (1.0, 1.0)},
        {"bounds": (0.0, (1.0, 2.0))},
        {"bounds": (0.0, (1.0, 2.0, -3.0))},
        {"bounds": (float("-inf"), 1.0)},
        {"centering": "none", "centre": (0.0, 0.0, 0.0)},
        {"centering": "auto", "centre": (0.0, 0.0)},
        {"centering": "auto", "centre": (0.0, 0.0, float("inf"))},
        {"kind": RecordKind.MATRIX},
        {"kind": RecordKind.MATRIX, "centering": "auto"},
        {"kind": RecordKind.MATRIX, "centering": "none", "scale": 2.0},
        {"kind": RecordKind.MATRIX, "centering": "none", "bounds": (0.0, 1.0)},
        {"colour": 3},
    ],
    ids=str,
)
def test_settings_that_make_no_sense_are_refused(settings_: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="validation error"):
        Preprocessing(dim=D, **settings_)


def test_arrays_and_lists_are_read_as_numbers_and_written_as_json() -> None:
    p = Preprocessing(dim=D, centering=np.ones(D), bounds=[np.zeros(D), [1, 2, 3]], scale=np.full(D, 2.0))
    assert p.bounds == ((0.0, 0.0, 0.0), (1.0, 2.0, 3.0))
    assert Preprocessing.model_validate_json(p.model_dump_json()) == p
