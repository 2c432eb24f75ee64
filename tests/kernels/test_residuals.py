"""Residuals about a centre against exact arithmetic: bounds in integers, accuracy in 60 digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.clipped_sums import _TightBlock, block_sum
from streaming_pca.estimators.common.residual_sums import FactorProducts, MatrixProducts
from streaming_pca.kernels.block.chunks import MOST_RECORDS
from streaming_pca.kernels.lattice import MATRIX_RADIUS, RADIUS
from streaming_pca.kernels.residuals import frobenius_norm
from tests.kernels.judge import (
    EXACT,
    basis_for,
    centres,
    clipped,
    decimals,
    distance,
    exact_product,
    factors,
    minus,
    norm,
    radius_for,
    squared,
    squared_total,
    symmetric,
    the_sum,
)

many = settings(deadline=None)


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
@many
@given(data=st.data())
def test_a_rounded_residual_is_within_the_radius_and_close_to_the_exact_one(
    kind: RecordKind, data: st.DataObject
) -> None:
    """R ranges from just below 0.05 |C| to far below float64's resolution of C."""
    x = data.draw(factors() if kind is RecordKind.FACTOR else symmetric())
    d = x.shape[1]
    basis = basis_for(d, data.draw(st.integers(0, 10**6)))
    with localcontext(EXACT):
        product = exact_product(x, basis, kind)
        centre = data.draw(centres(product))
        radius = data.draw(radius_for(centre, [0.0499, 1e-2, 1e-4, 1e-6, 1e-8, 1e-30]))
        assume(radius < 0.04999 * frobenius_norm(centre))
        s = the_sum(x, kind, basis, radius, centre)
        assert s.centre is not None
        assert np.array_equal(s.centre, centre)
        bound = RADIUS**2 if kind is RecordKind.FACTOR else MATRIX_RADIUS
        found = [[int(v) for v in row] for row in s.total]
        assert squared(found) <= bound**2
        residual = minus(product, centre)
        length = norm(residual)
        wanted = clipped(residual, Decimal(1 / s.unit), bound)
        weight = min(Decimal(1), Decimal(radius) / length) if length else Decimal(1)
        k = basis.shape[1]
        size = norm(decimals(x)) ** (1 if kind is RecordKind.MATRIX else 2)
        off = (d + len(x) + 4) * Decimal(k).sqrt() * Decimal(2) ** -53 * (size + norm(decimals(centre)))
        # Once in position and once in length; values below 2**-1022 are rounded to multiples of 2**-1074.
        allowed = 2 * weight * (off + Decimal(2) ** -1060) / Decimal(s.unit) + 2 * Decimal(d * k).sqrt() + 2
        allowed += bound * Decimal(d * k + 16) * Decimal(2) ** -50
        assert distance(found, wanted) <= allowed


@pytest.mark.parametrize("ratio", [1.0, 0.06, 0.04, 1e-3, 1e-6])
@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
def test_records_near_the_centre_keep_their_residuals(kind: RecordKind, ratio: float) -> None:
    """At R = 1e-6 |C|, 20 bits of a record would be 15 R."""
    rng = np.random.default_rng(2)
    d, k = 40, 3
    basis = np.linalg.qr(rng.standard_normal((d, k)))[0]
    x0 = basis @ rng.standard_normal(k)
    centre = x0[:, None] * (x0 @ basis)
    p = Preprocessing(dim=d, kind=kind, centering="none")
    steps = ratio * rng.standard_normal((20, d)) * np.linalg.norm(x0) / d**0.5
    batch: list[Any] = []
    for step in steps:
        f = (x0 + step)[None]
        batch.append(f if kind is RecordKind.FACTOR else (f.T @ f + f.T @ f) / 2)
    radius = ratio * frobenius_norm(centre)
    s = block_sum(ArrayBatch.of_records(batch, d, kind), p, basis, radius, centre)
    wanted = np.zeros((d, k))
    with localcontext(EXACT):
        for x in batch:
            residual = minus(exact_product(x, basis, kind), s.centre)
            wanted += np.array(clipped(residual, 1 / Decimal(radius), 1), dtype=float)
    error = np.linalg.norm(s.total * (s.unit / radius) - wanted)
    assert np.linalg.norm(wanted) > 1
    assert error <= (2e-2 if ratio >= 0.05 else 1e-5)


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
def test_the_way_is_chosen_by_public_numbers(kind: RecordKind, monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    for kernel in (FactorProducts, MatrixProducts, _TightBlock):

        def watched(self: Any, block: ArrayBatch, call: Any = kernel.__call__) -> Any:
            used.append(type(self).__name__)
            return call(self, block)

        monkeypatch.setattr(kernel, "__call__", watched)
    centre, basis = np.array([[3.0], [4.0]]), np.array([[0.6], [0.8]])
    near = np.array([[3.0, 4.0]]) / 5**0.5
    far = np.array([[1e300, 0.0]])
    wide = "FactorProducts" if kind is RecordKind.FACTOR else "MatrixProducts"
    for radius, name in ((0.25, wide), (math.nextafter(0.25, 0), "_TightBlock")):
        for x in (None, far, near):
            record = x if x is None or kind is RecordKind.FACTOR else np.repeat(x, 2, axis=0)
            the_sum(record, kind, basis, radius, centre)
        assert used == [name] * 3
        used.clear()


CANCELLING = np.array([[0.0, 1.0], [0.01, 0.0]])
"""F with |F| |F Q| a hundred times |A Q| for the first coordinate as Q."""


@pytest.mark.parametrize("ratio", [0.05, 1.0, 0.01])
def test_blocks_of_the_largest_products_are_exact(ratio: float) -> None:
    """Records of about 20 R lie close to the centre, and rows cancel: |u| is at its cap of 2**24.5."""
    p = Preprocessing(dim=2, centering="none")
    basis = np.array([[0.8], [0.6]])
    x = np.array([[1.3, 0.7]])
    centre = x.T @ (x @ basis)
    cases = [
        (x, basis, centre),
        (1.01 * x, basis, centre),
        (CANCELLING, np.eye(2)[:, :1], np.array([[1e-4], [0]])),
    ]
    for f, q, c in cases:
        radius = ratio * frobenius_norm(c)
        single = the_sum(f, RecordKind.FACTOR, q, radius, c)
        m = 20 * MOST_RECORDS + 3
        whole = block_sum(ArrayBatch.of_vectors(np.repeat(f[None], m, axis=0)), p, q, radius, c)
        assert whole.total.tolist() == [[m * int(v) for v in row] for row in single.total]
        assert whole.clipped == m * single.clipped


@pytest.mark.parametrize(("d", "k"), [(8192, 1), (1000, 130), (400, 400)])
@pytest.mark.parametrize("ratio", [1.0, 0.05, 0.01])
def test_long_records_stay_within_the_radius_and_are_not_dropped(d: int, k: int, ratio: float) -> None:
    """Every entry can be rounded up, so the second scaling is needed."""
    rng = np.random.default_rng(d)
    basis = np.linalg.qr(rng.standard_normal((d, k)))[0] if k < d else np.eye(d)
    centre = rng.standard_normal((d, k))
    for scale in (0.0, 1e-3, 1.0, 1e3, 1e150):
        x = scale * rng.standard_normal((1, d))
        s = the_sum(x, RecordKind.FACTOR, basis, ratio * frobenius_norm(centre), centre)
        size = squared_total(s.total)
        assert size <= RADIUS**4
        assert size >= 0.99 * RADIUS**4


def test_a_centre_of_any_magnitude_has_a_norm() -> None:
    for scale in (5e-324, 1e-200, 1.0, 1e200):
        assert frobenius_norm(np.array([[3.0, 0.0], [0.0, 4.0]]) * scale) == pytest.approx(
            5 * scale, rel=1e-15
        )
    assert frobenius_norm(np.full((2, 2), 1.7e308)) == math.inf
    assert frobenius_norm(np.zeros((2, 2))) == 0.0
