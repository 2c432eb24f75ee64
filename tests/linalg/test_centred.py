"""Residuals about a centre against exact arithmetic: bounds in integers, accuracy in 60 digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from streaming_pca.estimators.contributions import _CentredBlock, _TightBlock, block_sum
from streaming_pca.linalg import centred
from streaming_pca.linalg.centred import frobenius_norm, weigh_residuals
from streaming_pca.linalg.clipping import quantise_factors
from streaming_pca.linalg.lattice import (
    MATRIX_RADIUS,
    RADIUS,
    LatticeSum,
    lattice_unit,
    quantise_basis,
    quantise_centre,
)
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.records import Batch, RecordKind
from tests.linalg.judge import (
    EXACT,
    Floats,
    basis_for,
    clipped,
    decimals,
    distance,
    entries,
    factors,
    ints,
    norm,
    one,
    product,
    squared,
    symmetric,
)

many = settings(max_examples=300, deadline=None)
Exact = list[list[Decimal]]


def exact_image(x: Floats, basis: Floats, kind: RecordKind) -> Exact:
    rows, q = decimals(x), decimals(basis)
    seen = [
        [sum((u * v for u, v in zip(r, c, strict=True)), Decimal(0)) for c in zip(*q, strict=True)]
        for r in rows
    ]
    if kind is RecordKind.MATRIX:
        return seen
    return [
        [sum((rows[i][j] * seen[i][c] for i in range(len(rows))), Decimal(0)) for c in range(len(q[0]))]
        for j in range(len(q))
    ]


def minus(a: Exact, b: Floats) -> Exact:
    return [[u - v for u, v in zip(r, s, strict=True)] for r, s in zip(a, decimals(b), strict=True)]


@st.composite
def centres(draw: st.DrawFn, image: Exact) -> Floats:
    """Anywhere, or so near to a record's image that nearly all digits cancel."""
    d, k = len(image), len(image[0])
    if draw(st.booleans()) and norm(image) < Decimal("1e300"):
        near = np.array([[float(v) for v in row] for row in image])
        return near * (1 + draw(st.sampled_from([0.0, 1e-15, 1e-9, -1e-6, 1e-3])))
    return np.array(draw(entries(d * k))).reshape(d, k)


@st.composite
def radius_for(draw: st.DrawFn, centre: Floats, ratios: list[float]) -> float:
    scale = frobenius_norm(centre) * draw(st.sampled_from(ratios))
    return min(max(scale, 1e-250), 1e250)


def the_sum(x: Floats | None, kind: RecordKind, basis: Floats, radius: float, centre: Floats) -> LatticeSum:
    p = Preprocessing(dim=len(basis), kind=kind, centering="none")
    return block_sum(Batch.of_records([x], len(basis), kind), p, basis, radius, centre)


@many
@given(st.data())
def test_a_weighted_residual_is_within_the_radius_and_close_to_the_exact_one(data: st.DataObject) -> None:
    x = data.draw(factors())
    basis = basis_for(x.shape[1], data.draw(st.integers(0, 10**6)))
    q = quantise_basis(basis)
    with localcontext(EXACT):
        image = exact_image(x, np.ldexp(q, -20), RecordKind.FACTOR)
        centre = data.draw(centres(image))
        radius = data.draw(radius_for(centre, [0.05, math.nextafter(0.05, 1), 0.0501, 0.3, 1.0, 3.0, 1e9]))
        assume(frobenius_norm(centre) <= 20 * radius)
        unit = lattice_unit(radius, RADIUS**2)
        c = quantise_centre(centre, radius)
        z = np.empty_like(x)
        quantise_factors(x, one(x), math.inf, z)
        y, weights = z @ q, np.zeros(1, dtype=np.int64)
        size = squared(ints(c))
        weigh_residuals(x, z, y, z @ c, one(x), 1 / unit, math.nextafter(float(size), math.inf), weights)
        w = int(weights[0])
        zy = product(ints(z), ints(y))
        found = [[u - w * v for u, v in zip(r, s, strict=True)] for r, s in zip(zy, ints(c), strict=True)]
        assert squared(found) <= RADIUS**4
        # What keeps the sum of a block exact.
        assert 0 <= w <= 2**20
        assert squared(ints(y)) <= 2**50
        if len(x) > 1 and squared(ints(y)) > 2**48:
            return  # Rows that cancel, held back by the cap on |y|: smaller, never larger.
        per_unit = Decimal(1 / unit)
        used = [[Decimal(v) * 2**20 for v in r] for r in ints(c)]
        residual = [
            [u * per_unit - v for u, v in zip(r, s, strict=True)] for r, s in zip(image, used, strict=True)
        ]
        wanted = clipped(residual, Decimal(1), RADIUS**2)
        # The docstring's bound; a is the record's matrix after clipping, in units of R.
        length = norm(residual)
        weight = min(Decimal(1), Decimal(RADIUS**2) / length) if length else Decimal(1)
        a = weight * norm(decimals(x)) ** 2 * per_unit / RADIUS**2
        root = [Decimal(v).sqrt() for v in (x.size, c.size, y.size)]
        weighing = (weight < 1) * norm(used) / RADIUS**2 / 2
        allowed = Decimal(2) ** -20 * ((root[0] + root[1] + 4) * a + 2 * root[2] + weighing + 4)
        # Clipping once more to keep the radius costs as much as the rounding did.
        assert distance(found, wanted) <= 2 * allowed * RADIUS**2


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
@many
@given(data=st.data())
def test_a_rounded_residual_is_within_the_radius_and_close_to_the_exact_one(
    kind: RecordKind, data: st.DataObject
) -> None:
    """From R just below 0.05 |C| to far below what float64 can tell from C."""
    x = data.draw(factors() if kind is RecordKind.FACTOR else symmetric())
    d = x.shape[1]
    basis = basis_for(d, data.draw(st.integers(0, 10**6)))
    with localcontext(EXACT):
        image = exact_image(x, basis, kind)
        centre = data.draw(centres(image))
        radius = data.draw(radius_for(centre, [0.0499, 1e-2, 1e-4, 1e-6, 1e-8, 1e-30]))
        assume(radius < 0.04999 * frobenius_norm(centre))
        s = the_sum(x, kind, basis, radius, centre)
        assert s.centre is not None
        assert np.array_equal(s.centre, centre)
        bound = RADIUS**2 if kind is RecordKind.FACTOR else MATRIX_RADIUS
        found = [[int(v) for v in row] for row in s.total]
        assert squared(found) <= bound**2
        residual = minus(image, centre)
        length = norm(residual)
        wanted = clipped(residual, Decimal(1 / s.unit), bound)
        weight = min(Decimal(1), Decimal(radius) / length) if length else Decimal(1)
        k = basis.shape[1]
        size = norm(decimals(x)) ** (1 if kind is RecordKind.MATRIX else 2)
        off = (d + len(x) + 4) * Decimal(k).sqrt() * Decimal(2) ** -53 * (size + norm(decimals(centre)))
        # Once in place and once in length; values below 2**-1022 are rounded to multiples of 2**-1074.
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
    s = block_sum(Batch.of_records(batch, d, kind), p, basis, radius, centre)
    wanted = np.zeros((d, k))
    with localcontext(EXACT):
        for x in batch:
            residual = minus(exact_image(x, basis, kind), s.centre)
            wanted += np.array(clipped(residual, 1 / Decimal(radius), 1), dtype=float)
    error = np.linalg.norm(s.total * (s.unit / radius) - wanted)
    assert np.linalg.norm(wanted) > 1
    assert error <= (2e-2 if ratio >= 0.05 else 1e-5)


def test_the_way_is_chosen_by_public_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []
    for kernel in (_CentredBlock, _TightBlock):

        def watched(self: Any, block: Batch, call: Any = kernel.__call__) -> Any:
            used.append(type(self).__name__)
            return call(self, block)

        monkeypatch.setattr(kernel, "__call__", watched)
    centre, basis = np.array([[3.0], [4.0]]), np.array([[0.6], [0.8]])
    for radius, name in ((0.25, "_CentredBlock"), (math.nextafter(0.25, 0), "_TightBlock")):
        for x in (None, np.array([[1e300, 0.0]]), np.array([[3.0, 4.0]]) / 5**0.5):
            the_sum(x, RecordKind.FACTOR, basis, radius, centre)
        assert used == [name] * 3
        used.clear()


CANCELLING = np.array([[0.0, 1.0], [0.01, 0.0]])
"""F with |F| |F Q| a hundred times |A Q| for the first coordinate as Q."""


def test_rows_that_cancel_are_held_back_where_a_block_would_not_be_exact() -> None:
    basis, centre, radius = np.array([[1.0], [0.0]]), np.array([[1e-4], [0.0]]), 5e-6
    q, c = quantise_basis(basis), quantise_centre(centre, radius)
    z = np.empty_like(CANCELLING)
    quantise_factors(CANCELLING, one(z), math.inf, z)
    y, weights = z @ q, np.zeros(1, dtype=np.int64)
    per_unit = 1 / lattice_unit(radius, RADIUS**2)
    size = float(squared(ints(c)))
    clipped_ = weigh_residuals(CANCELLING, z, y, z @ c, one(z), per_unit, size, weights)
    assert clipped_ == 1
    assert 0.99 * 2**50 <= squared(ints(y)) <= 2**50
    assert centred.BLOCK_OF_WEIGHTED * RADIUS * 2**25 == 2**53


@pytest.mark.parametrize("ratio", [0.05, 1.0, 0.01])
def test_blocks_of_the_largest_products_are_exact(ratio: float) -> None:
    """Records as large as 20 R beside the centre, and rows that cancel: |y| at its cap of 2**25."""
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
        m = 20 * centred.BLOCK_OF_WEIGHTED + 3
        whole = block_sum(Batch.of_vectors(np.repeat(f[None], m, axis=0)), p, q, radius, c)
        assert whole.total.tolist() == [[m * int(v) for v in row] for row in single.total]
        assert whole.clipped == m * single.clipped


@pytest.mark.parametrize(("d", "k"), [(8192, 1), (1000, 130), (400, 400)])
@pytest.mark.parametrize("ratio", [1.0, 0.05, 0.01])
def test_long_records_stay_within_the_radius_and_are_not_dropped(d: int, k: int, ratio: float) -> None:
    """Everything rounds up somewhere: the second scaling has work to do."""
    rng = np.random.default_rng(d)
    basis = np.linalg.qr(rng.standard_normal((d, k)))[0] if k < d else np.eye(d)
    centre = rng.standard_normal((d, k))
    for scale in (0.0, 1e-3, 1.0, 1e3, 1e150):
        x = scale * rng.standard_normal((1, d))
        s = the_sum(x, RecordKind.FACTOR, basis, ratio * frobenius_norm(centre), centre)
        size = sum(int(v) ** 2 for v in s.total.flat)
        assert size <= RADIUS**4
        assert size >= 0.99 * RADIUS**4


def test_a_centre_of_any_magnitude_has_a_norm() -> None:
    for scale in (5e-324, 1e-200, 1.0, 1e200):
        assert frobenius_norm(np.array([[3.0, 0.0], [0.0, 4.0]]) * scale) == pytest.approx(
            5 * scale, rel=1e-15
        )
    assert frobenius_norm(np.full((2, 2), 1.7e308)) == math.inf
    assert frobenius_norm(np.zeros((2, 2))) == 0.0
