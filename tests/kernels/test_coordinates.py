"""Products of records, their bins and clipped sums agree with numpy, also at the edges."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.kernels.coordinates import (
    COORDINATE_RADIUS,
    bin_coordinates,
    products,
    sum_clamped,
    top_eigenvalue,
)
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.linalg.subspace import orthonormalise

Floats = NDArray[np.float64]
NOWHERE = -(2**31)
many = settings(deadline=None)
anything = st.floats(width=64, allow_nan=True, allow_infinity=True)


def products_of(
    rows: Floats, lengths: list[int], of_matrices: bool, basis: Floats, removed: Floats
) -> Floats:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    out = np.full((len(lengths), basis.shape[1], basis.shape[0]), np.nan)
    products(rows, starts, of_matrices, basis, removed, out)
    return out


@pytest.mark.parametrize("removed_columns", [0, 1, 3])
@pytest.mark.parametrize("of_matrices", [False, True])
def test_an_product_is_the_projected_product(of_matrices: bool, removed_columns: int) -> None:
    rng = np.random.default_rng(0)
    d, k = 6, 2
    basis = orthonormalise(rng.standard_normal((d, k)))
    removed = np.ascontiguousarray(orthonormalise(rng.standard_normal((d, 3)))[:, :removed_columns])
    lengths = [d] * 4 if of_matrices else [1, 3, 0, 2]
    rows = rng.standard_normal((sum(lengths), d))
    found = products_of(rows, lengths, of_matrices, basis, removed)
    first = 0
    for i, length in enumerate(lengths):
        x = rows[first : first + length]
        product = (x if of_matrices else x.T @ x) @ basis
        wanted = product - removed @ (removed.T @ product)
        np.testing.assert_allclose(found[i].T, wanted, atol=1e-13)
        first += length


def test_an_product_has_the_same_bits_in_any_company() -> None:
    rng = np.random.default_rng(1)
    basis = orthonormalise(rng.standard_normal((7, 3)))
    removed = orthonormalise(rng.standard_normal((7, 2)))
    rows = rng.standard_normal((40, 7))
    together = products_of(rows, [1] * 40, False, basis, removed)
    for i in (0, 7, 39):
        assert np.array_equal(products_of(rows[i : i + 1], [1], False, basis, removed)[0], together[i])
    assert np.array_equal(products_of(rows[::-1].copy(), [1] * 40, False, basis, removed)[::-1], together)


def test_overflow_goes_through_without_a_word() -> None:
    found = products_of(np.full((1, 3), 1e200), [1], False, np.eye(3, 1), np.zeros((3, 0)))
    assert np.isinf(found).all()


@many
@given(st.lists(anything, min_size=1, max_size=12), st.floats(1e-300, 1e300))
def test_a_bin_is_the_floor_of_the_quotient_or_nowhere(values: list[float], width: float) -> None:
    out = np.zeros((len(values), 1), dtype=np.int32)
    bin_coordinates(np.array([values]), width, out)
    for value, found in zip(values, out[:, 0].tolist(), strict=True):
        with np.errstate(over="ignore"):
            quotient = float(np.float64(value) / width)
        inside = math.isfinite(quotient) and abs(math.floor(quotient)) < 2**31
        assert found == (math.floor(quotient) if inside else NOWHERE)


def clamped(values: Any, centre: Any, radius: float) -> tuple[list[int], int]:
    values = np.atleast_2d(np.array(values, dtype=np.float64))
    total = np.zeros(values.shape[1], dtype=np.int64)
    changed = sum_clamped(values, np.array(centre, dtype=np.float64), radius, total)
    return [int(v) for v in total], changed


@many
@given(st.data())
def test_whatever_a_record_holds_its_integers_stay_in_the_box(data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 6))
    record = data.draw(st.lists(anything, min_size=n, max_size=n))
    finite = st.floats(-1e150, 1e150)
    centre = data.draw(st.lists(finite, min_size=n, max_size=n))
    radius = data.draw(st.floats(1e-150, 1e150))
    added, _ = clamped(record, centre, radius)
    assert all(abs(v) <= COORDINATE_RADIUS for v in added)
    # The sum over the largest batch fits into int64.
    assert COORDINATE_RADIUS * MAX_RECORDS < 2**62


def test_sums_are_of_rounded_and_clamped_coordinates() -> None:
    unit = 2.0 / COORDINATE_RADIUS
    assert clamped([[1.0, 5.0], [1.0 + 3 * unit, 3.0]], [1.0, 2.0], 2.0) == (
        [3, COORDINATE_RADIUS + COORDINATE_RADIUS // 2],
        1,
    )
    assert clamped([[math.nan, -math.inf]], [0.0, 0.0], 1.0) == ([0, -COORDINATE_RADIUS], 1)
    assert clamped([[0.4 * unit, -0.4 * unit]], [0.0, 0.0], 2.0) == ([0, 0], 0)


@pytest.mark.parametrize(("b", "d"), [(1, 1), (3, 9), (40, 5), (200, 30)])
def test_the_top_eigenvalue_is_found_from_below(b: int, d: int) -> None:
    columns = np.random.default_rng(b).standard_normal((b, d)) * np.geomspace(3, 0.3, d)
    exact = float(np.linalg.eigvalsh(columns.T @ columns / b)[-1])
    found = top_eigenvalue(columns, np.cos(np.arange(1.0, d + 1)), 60)
    assert exact * 0.98 < found < exact * (1 + 1e-12)


def test_no_rows_or_zeros_have_no_eigenvalue() -> None:
    assert top_eigenvalue(np.zeros((4, 3)), np.ones(3), 10) == 0.0
