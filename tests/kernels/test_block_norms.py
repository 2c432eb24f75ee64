"""Norms of residuals agree with exact arithmetic, and depend on their record alone."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.kernels.residuals import residual_norms
from tests.kernels.judge import EXACT, Floats, basis_for, decimals, entries, factors, norm, one, symmetric

many = settings(deadline=None)


def norms(
    rows: Floats, starts: NDArray[np.int64], of_matrices: bool, basis: Floats, centre: Floats
) -> Floats:
    out = np.full(len(starts) - 1, -1.0)
    residual_norms(rows, starts, of_matrices, np.ascontiguousarray(basis), centre, out)
    return out


def exact(rows: Floats, of_matrices: bool, basis: Floats, centre: Floats) -> tuple[Decimal, Decimal]:
    """Return |A Q - C|_F, and the size of the terms in its sum."""
    x, q, c = decimals(rows), decimals(basis), decimals(centre)
    d, k = basis.shape
    seen = [[sum((u * q[j][i] for j, u in enumerate(row)), Decimal(0)) for i in range(k)] for row in x]
    product = seen
    if not of_matrices:
        product = [
            [sum((row[j] * y[i] for row, y in zip(x, seen, strict=True)), Decimal(0)) for i in range(k)]
            for j in range(d)
        ]
    residual = norm([[product[j][i] - c[j][i] for i in range(k)] for j in range(d)])
    size = norm(x) if of_matrices else norm(x) ** 2
    return residual, size + norm(c)


@many
@given(st.data())
@pytest.mark.parametrize("of_matrices", [False, True])
def test_a_norm_is_the_exact_one_but_for_roundings(of_matrices: bool, data: st.DataObject) -> None:
    """Each product and sum rounds by 2**-53 of its terms; at most 8 d follow each other."""
    # Fourth powers of these magnitudes neither overflow nor vanish.
    top = data.draw(st.integers(-120, 120))
    if of_matrices:
        d = data.draw(st.integers(1, 4))
        rows = np.array(data.draw(entries(d * d, top))).reshape(d, d)
        rows = np.triu(rows) + np.triu(rows, 1).T
    else:
        d, r = data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
        rows = np.array(data.draw(entries(r * d, top))).reshape(r, d)
    basis = basis_for(d, data.draw(st.integers(0, 10**6)))
    near = rows @ basis if of_matrices else rows.T @ (rows @ basis)
    centre = np.ascontiguousarray(near * data.draw(st.sampled_from([0.0, 0.5, 1.0, 1 + 1e-9, -3.0])))
    with localcontext(EXACT):
        wanted, size = exact(rows, of_matrices, basis, centre)
        found = Decimal(float(norms(rows, one(rows), of_matrices, basis, centre)[0]))
        # Squares of differences below 2**-530 vanish.
        assert abs(found - wanted) <= size * 16 * d * Decimal(2) ** -50 + Decimal(2) ** -520


def test_a_null_record_has_the_norm_of_the_centre() -> None:
    centre = np.array([[3.0], [0.0], [-4.0]])
    starts = np.array([0, 0, 1, 1], dtype=np.int64)
    found = norms(np.array([[1.0, 2.0, 3.0]]), starts, False, np.eye(3, 1), centre)
    assert found[[0, 2]].tolist() == [5.0, 5.0]
    assert found[1] == math.sqrt((1 - 3) ** 2 + 2**2 + (3 + 4) ** 2)
    nulls = np.zeros(3, dtype=np.int64)
    assert norms(np.zeros((0, 3)), nulls, True, np.eye(3, 1), centre).tolist() == [5.0, 5.0]


@many
@given(st.data())
def test_every_record_has_the_same_bits_in_any_company(data: st.DataObject) -> None:
    """A size is a function of its record alone: neighbours differ in at most one bin."""
    x = data.draw(factors())
    basis = basis_for(x.shape[1], data.draw(st.integers(0, 10**6)))
    centre = np.array(data.draw(entries(basis.size))).reshape(basis.shape)
    alone = norms(x, one(x), False, basis, centre)
    others = np.random.default_rng(0).standard_normal((3, x.shape[1]))
    rows = np.concatenate([others, x, others])
    starts = np.array([0, 1, 3, 3, 3 + len(x), 5 + len(x), 6 + len(x)], dtype=np.int64)
    found = norms(rows, starts, False, basis, centre)
    assert found[3:4].tobytes() == alone.tobytes()


@many
@given(symmetric())
def test_any_number_gives_a_size_and_no_error(a: Floats) -> None:
    """An overflow gives inf or NaN, never a negative size."""
    found = norms(a, one(a), True, np.eye(len(a)), np.zeros_like(a))[0]
    assert math.isnan(found) or found >= 0
    assert norms(a, one(a), False, np.eye(len(a)), np.zeros_like(a))[0] >= 0 or np.abs(a).max() > 1e70
