"""Clipped contributions against exact arithmetic: bounds in integers, accuracy in 60 digits."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.estimators.contributions import (
    block_sum,
    covariance_sensitivity,
    covariance_sum,
    record_sizes,
)
from streaming_pca.linalg.clipping import (
    quantise_factors,
    quantise_images,
    quantise_matrices,
    quantise_matrix_images,
)
from streaming_pca.linalg.lattice import MATRIX_RADIUS, RADIUS, LatticeSum, lattice_unit, quantise_basis
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.records import Batch, RecordKind

Floats = NDArray[np.float64]
many = settings(max_examples=300, deadline=None)
some = settings(max_examples=120, deadline=None)

# 60 digits, and exponents that no product of floats leaves.
EXACT = Context(prec=60, Emin=-(10**6), Emax=10**6)
EPS = Decimal(2) ** -20

magnitudes = st.integers(-1074, 1023)
mantissas = st.one_of(
    st.sampled_from([1.0, 1.5, 2.0 - 2.0**-52, 1.0 + 2.0**-52]), st.floats(1.0, 2.0, exclude_max=True)
)


@st.composite
def entries(draw: st.DrawFn, size: int, top: int | None = None) -> list[float]:
    """Numbers near one magnitude, or spread over any of them; some zero."""
    top = draw(magnitudes) if top is None else top
    spread = draw(st.sampled_from([0, 3, 30, 600, 2100]))
    out = []
    for _ in range(size):
        e = max(top - draw(st.integers(0, spread)), -1074)
        sign = draw(st.sampled_from([1.0, -1.0, 1.0, -1.0, 0.0]))
        out.append(sign * math.ldexp(draw(mantissas), e))
    return out


@st.composite
def factors(draw: st.DrawFn, max_rows: int = 3, max_dim: int = 5) -> Floats:
    r, d = draw(st.integers(1, max_rows)), draw(st.integers(1, max_dim))
    return np.array(draw(entries(r * d))).reshape(r, d)


@st.composite
def symmetric(draw: st.DrawFn, max_dim: int = 4) -> Floats:
    d = draw(st.integers(1, max_dim))
    a = np.array(draw(entries(d * d))).reshape(d, d)
    return np.triu(a) + np.triu(a, 1).T


@st.composite
def radii(draw: st.DrawFn, size: Decimal) -> float:
    """A clip radius: anywhere, or within a few units in the last place of ``size``."""
    if draw(st.booleans()):
        e = draw(st.integers(-820, 820))
        return math.ldexp(draw(mantissas), e)
    near = float(min(max(size, Decimal("1e-250")), Decimal("1e250")))
    for _ in range(draw(st.integers(0, 4))):
        near = math.nextafter(near, draw(st.sampled_from([0.0, math.inf])))
    return min(max(near * draw(st.sampled_from([1.0, 1.0, 0.5, 2.0, 0.999])), 1e-250), 1e250)


def ints(values: Floats) -> list[list[int]]:
    """Entries as Python integers; fails on a fraction, a NaN or an infinity."""
    assert np.isfinite(values).all()
    assert (values == np.rint(values)).all()
    return [[int(v) for v in row] for row in values]


def squared(values: list[list[int]]) -> int:
    return sum(v * v for row in values for v in row)


def product(z: list[list[int]], y: list[list[int]]) -> list[list[int]]:
    """z^T y."""
    return [
        [sum(z[i][j] * y[i][c] for i in range(len(z))) for c in range(len(y[0]))] for j in range(len(z[0]))
    ]


def decimals(values: Floats) -> list[list[Decimal]]:
    return [[Decimal(float(v)) for v in row] for row in values]


def norm(values: list[list[Decimal]]) -> Decimal:
    return sum((v * v for row in values for v in row), Decimal(0)).sqrt()


def clipped(values: list[list[Decimal]], per_unit: Decimal, radius: int) -> list[list[Decimal]]:
    """Exact values in lattice units, clipped to a Frobenius norm."""
    size = norm(values)
    scale = per_unit if size * per_unit <= radius else Decimal(radius) / size
    return [[v * scale for v in row] for row in values]


def distance(a: list[list[int]], b: list[list[Decimal]]) -> Decimal:
    return norm([[Decimal(x) - y for x, y in zip(r, s, strict=True)] for r, s in zip(a, b, strict=True)])


def one(rows: Floats) -> NDArray[np.int64]:
    return np.array([0, len(rows)], dtype=np.int64)


def basis_for(d: int, seed: int) -> Floats:
    """Random columns, or coordinate ones."""
    rng = np.random.default_rng(seed)
    k = int(rng.integers(1, d + 1))
    if seed % 3 == 0:
        return np.eye(d)[:, rng.permutation(d)[:k]]
    return np.linalg.qr(rng.standard_normal((d, k)))[0]


@many
@given(st.data())
def test_a_clipped_factor_is_within_the_radius_and_close_to_the_exact_one(data: st.DataObject) -> None:
    x = data.draw(factors())
    with localcontext(EXACT):
        exact = decimals(x)
        size = norm(exact)
        radius = data.draw(radii(size * size))
        row_unit = lattice_unit(math.sqrt(radius), RADIUS)
        per_unit = 1 / row_unit
        z = np.full_like(x, np.nan)
        quantise_factors(x, one(x), per_unit, z)
        found = ints(z)
        assert squared(found) <= RADIUS**2
        # Half a cell of rounding, once more where the radius had to be kept, and one unit.
        allowed = Decimal(x.size).sqrt() + 2
        assert distance(found, clipped(exact, Decimal(per_unit), RADIUS)) <= allowed


@many
@given(factors())
@example(np.full((1, 5), 5e-324))
@example(np.array([[1.7976931348623157e308] * 5] * 3))
@example(np.array([[1.7976931348623157e308, 5e-324, 1.0]]))
def test_a_normalised_factor_has_the_radius_and_not_more(x: Floats) -> None:
    z = np.full_like(x, np.nan)
    quantise_factors(x, one(x), math.inf, z)
    size = squared(ints(z))
    assert size <= RADIUS**2
    assert size >= (RADIUS - 2 * math.isqrt(x.size) - 3) ** 2 or not x.any()


@many
@given(st.data())
def test_a_clipped_matrix_is_within_the_radius_and_close_to_the_exact_one(data: st.DataObject) -> None:
    a = data.draw(symmetric())
    with localcontext(EXACT):
        exact = decimals(a)
        radius = data.draw(radii(norm(exact)))
        per_unit = 1 / lattice_unit(radius, MATRIX_RADIUS)
        z = np.full_like(a, np.nan)
        quantise_matrices(a, one(a), per_unit, z)
        found = ints(z)
        assert squared(found) <= MATRIX_RADIUS**2
        assert (z == z.T).all()
        allowed = Decimal(a.size).sqrt() + 2
        assert distance(found, clipped(exact, Decimal(per_unit), MATRIX_RADIUS)) <= allowed


@many
@given(st.data())
def test_a_clipped_image_is_within_the_radius_and_close_to_the_exact_one(data: st.DataObject) -> None:
    x = data.draw(factors())
    basis = quantise_basis(basis_for(x.shape[1], data.draw(st.integers(0, 10**6))))
    with localcontext(EXACT):
        q = [[v * EPS for v in row] for row in decimals(basis)]
        exact = decimals(x)
        fq = [
            [sum((a * b for a, b in zip(row, col, strict=True)), Decimal(0)) for col in zip(*q, strict=True)]
            for row in exact
        ]
        size = norm(exact)
        image = [
            [sum((exact[i][j] * fq[i][c] for i in range(len(exact))), Decimal(0)) for c in range(len(q[0]))]
            for j in range(len(q))
        ]
        radius = data.draw(radii(norm(image)))
        unit = lattice_unit(radius, RADIUS**2)
        z = np.empty_like(x)
        quantise_factors(x, one(x), math.inf, z)
        y = z @ basis
        quantise_images(x, z, y, one(x), 1 / unit)
        found = product(ints(z), ints(y))
        assert squared(found) <= RADIUS**4
        assert squared(ints(y)) <= 2**46
        if len(x) > 1 and size * norm(fq) > 4 * Decimal(radius):
            # Held back by the cap on |y|, which keeps a block's sum exact: smaller, never larger.
            return
        wanted = clipped(image, Decimal(1 / unit), RADIUS**2)
        # z and y are each off by their roundings, 2**-20 of the record's and of the radius' size.
        roundings = 2 * (Decimal(x.size).sqrt() + Decimal(y.size).sqrt() + 4) * EPS
        allowed = roundings * (Decimal(RADIUS**2) + 2 * size * size / Decimal(unit))
        assert distance(found, wanted) <= min(allowed, Decimal(2 * RADIUS**2))


@many
@given(st.data())
def test_a_clipped_matrix_image_is_within_the_radius_and_close_to_the_exact_one(data: st.DataObject) -> None:
    a = data.draw(symmetric())
    basis = quantise_basis(basis_for(len(a), data.draw(st.integers(0, 10**6))))
    with localcontext(EXACT):
        q = [[v * EPS for v in row] for row in decimals(basis)]
        exact = decimals(a)
        image = [
            [sum((u * v for u, v in zip(row, col, strict=True)), Decimal(0)) for col in zip(*q, strict=True)]
            for row in exact
        ]
        radius = data.draw(radii(norm(image)))
        unit = lattice_unit(radius, MATRIX_RADIUS)
        m = np.empty_like(a)
        quantise_matrices(a, one(a), math.inf, m)
        y = m @ basis
        quantise_matrix_images(a, m, y, one(a), 1 / unit)
        found = ints(y)
        assert squared(found) <= MATRIX_RADIUS**2
        wanted = clipped(image, Decimal(1 / unit), MATRIX_RADIUS)
        roundings = (Decimal(a.size).sqrt() * Decimal(basis.shape[1]).sqrt() + 3) * Decimal(2) ** -25
        allowed = roundings * (MATRIX_RADIUS + norm(exact) / Decimal(unit)) + Decimal(y.size).sqrt() + 2
        assert distance(found, wanted) <= min(allowed, Decimal(2 * MATRIX_RADIUS))


@pytest.mark.parametrize("d", [1, 7, 200, 5000])
def test_a_record_inside_the_radius_is_not_shrunk(d: int) -> None:
    x = np.random.default_rng(d).standard_normal((1, d))
    radius = float(np.sum(x * x)) * 1.001
    per_unit = 1 / lattice_unit(math.sqrt(radius), RADIUS)
    z = np.empty_like(x)
    quantise_factors(x, one(x), per_unit, z)
    assert np.array_equal(z, np.rint(x * per_unit))


@pytest.mark.parametrize("d", [100, 5000, 8192])
def test_long_records_stay_within_the_radius_and_are_not_dropped(d: int) -> None:
    """Rounding up every entry adds sqrt(d)/2 units: the second scaling has work to do."""
    rng = np.random.default_rng(d)
    for scale in 1 + rng.random(20):
        x = np.full((1, d), scale)
        z = np.empty_like(x)
        quantise_factors(x, one(x), math.inf, z)
        size = squared(ints(z))
        assert (RADIUS - d**0.5 - 3) ** 2 <= size <= RADIUS**2


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_contributes_nothing(poison: float) -> None:
    """The decoder makes it null; should it ever fail to, the kernels still do."""
    x = np.array([[1.0, poison, 2.0]])
    basis = quantise_basis(np.eye(3)[:, :2])
    for per_unit in (1.0, math.inf):
        z = np.ones_like(x)
        quantise_factors(x, one(x), per_unit, z)
        assert not z.any()
        y = z @ basis
        quantise_images(x, z, y, one(x), 1.0)
        assert not y.any()
        a = np.repeat(x, 3, axis=0)
        m = np.ones_like(a)
        quantise_matrices(a, one(a), per_unit, m)
        assert not m.any()
        y = np.ones((3, 2))
        quantise_matrix_images(a, m, y, one(a), 1.0)
        assert not y.any()


# Neighbours: whole sums, every preprocessing, both kinds.

D = 3
PREPROCESSINGS = {
    "none": {"centering": "none"},
    "augment": {"centering": "augment"},
    "pairs": {"centering": "pairs"},
    "vector": {"centering": (1.0, -2.0, 1e10)},
    "bounds and scale": {
        "centering": "augment",
        "bounds": (-5.0, (1.0, 2.0, 1e5)),
        "scale": (0.1, 3.0, 1e-7),
    },
    "pairs with bounds": {"centering": "pairs", "bounds": (-1.0, 1.0)},
    "matrix": {"kind": RecordKind.MATRIX, "centering": "none"},
}
SUMS: dict[str, Callable[..., LatticeSum]] = {
    "covariance": lambda batch, p, radius, basis: covariance_sum(batch, p, radius),
    "block": lambda batch, p, radius, basis: block_sum(batch, p, basis, radius),
}


def squared_distance(a: LatticeSum, b: LatticeSum) -> int:
    assert a.unit == b.unit
    return sum((int(x) - int(y)) ** 2 for x, y in zip(a.total.flat, b.total.flat, strict=True))


@st.composite
def records(draw: st.DrawFn, kind: RecordKind) -> Floats | None:
    """Null, at the scale of the radius, or of any magnitude; a matrix is symmetric to 1e-6 only."""
    top = draw(st.sampled_from([None, None, -3, 0, 0, 3]))
    if draw(st.integers(0, 9)) == 0:
        return None
    if kind is RecordKind.FACTOR:
        r = draw(st.integers(1, 2))
        return np.array(draw(entries(r * D, top))).reshape(r, D)
    a = np.array(draw(entries(D * D, top))).reshape(D, D)
    a = np.triu(a) + np.triu(a, 1).T
    return np.triu(a) + np.tril(a, -1) * (1 - draw(st.sampled_from([0.0, 1e-6])))


@pytest.mark.parametrize("sum_name", SUMS)
@pytest.mark.parametrize("name", PREPROCESSINGS)
@some
@given(data=st.data())
def test_sums_of_neighbours_differ_by_at_most_the_sensitivity(
    name: str, sum_name: str, data: st.DataObject
) -> None:
    p = Preprocessing(dim=D, **PREPROCESSINGS[name])
    batch = [data.draw(records(p.kind)) for _ in range(4)]
    place = data.draw(st.integers(0, 3))
    neighbour = batch.copy()
    neighbour[place] = data.draw(records(p.kind))
    radius = data.draw(st.sampled_from([1.0, 2.0, 1e-3, 1e-200, 1e200, 12345.678]))
    basis = basis_for(p.output_dim, data.draw(st.integers(0, 100)))
    a, b = (
        SUMS[sum_name](Batch.of_records(records_, D, p.kind), p, radius, basis)
        for records_ in (batch, neighbour)
    )
    assert squared_distance(a, b) <= Fraction(a.sensitivity) ** 2
    if sum_name == "covariance":
        # The mechanism reads the upper triangle alone.
        assert np.array_equal(a.total, a.total.T)


@pytest.mark.parametrize("kind", RecordKind)
def test_some_neighbours_reach_the_covariance_sensitivity(kind: RecordKind) -> None:
    p = Preprocessing(dim=2, kind=kind, centering="none")
    if kind is RecordKind.FACTOR:
        x, y = np.array([[7.0, 0.0]]), np.array([[0.0, 9.0]])
    else:
        x, y = np.diag([7.0, 0.0]), np.diag([-9.0, 0.0])
    a, b = (covariance_sum(Batch.of_records([r], 2, kind), p, 1.0) for r in (x, y))
    assert 0.9999 * a.sensitivity**2 <= squared_distance(a, b) <= Fraction(a.sensitivity) ** 2
    assert a.sensitivity == covariance_sensitivity(kind)


@pytest.mark.parametrize("kind", RecordKind)
def test_some_neighbours_reach_the_block_sensitivity(kind: RecordKind) -> None:
    p = Preprocessing(dim=3, kind=kind, centering="none")
    if kind is RecordKind.FACTOR:
        # Far outside the basis, with opposite sides of the first coordinate: x x^T Q turns its sign.
        x, y = np.array([[1.0, 40.0, 0.0]]), np.array([[-1.0, 40.0, 0.0]])
    else:
        x, y = np.diag([7.0, 0.0, 0.0]), np.diag([-9.0, 0.0, 0.0])
    basis = np.eye(3)[:, :1]
    a, b = (block_sum(Batch.of_records([r], 3, kind), p, basis, 1.0) for r in (x, y))
    assert 0.99 * a.sensitivity**2 <= squared_distance(a, b) <= Fraction(a.sensitivity) ** 2


@pytest.mark.parametrize("magnitude", [1e-200, 1e-100, 1.0, 1e100, 1e200])
@pytest.mark.parametrize("kind", RecordKind)
@pytest.mark.parametrize("sum_name", SUMS)
def test_sums_are_accurate_at_every_magnitude(sum_name: str, kind: RecordKind, magnitude: float) -> None:
    """Neither norms nor their squares overflow or underflow on the way."""
    rng = np.random.default_rng(5)
    p = Preprocessing(dim=4, kind=kind, centering="none")
    x = rng.standard_normal((9, 4, 4))
    a = x + x.transpose(0, 2, 1) if kind is RecordKind.MATRIX else x[:, :1]
    moments = a if kind is RecordKind.MATRIX else a.transpose(0, 2, 1) @ a
    basis = basis_for(4, 1)
    scale = magnitude if kind is RecordKind.MATRIX else math.sqrt(magnitude)
    batch = Batch.of_records(list(a * scale), 4, kind)
    s = SUMS[sum_name](batch, p, 100 * magnitude, basis)
    wanted = moments.sum(axis=0)
    if sum_name == "block":
        wanted = wanted @ basis
    np.testing.assert_allclose(s.total * (s.unit / magnitude), wanted, atol=5e-3)


@pytest.mark.parametrize("kind", RecordKind)
def test_sizes_are_traces_of_factors_and_norms_of_matrices(kind: RecordKind) -> None:
    p = Preprocessing(dim=2, kind=kind, centering="none")
    a = np.array([[1.0, 2.0], [2.0, -4.0]])
    sizes = record_sizes(Batch.of_records([a, None, 1e200 * a], 2, kind), p)
    size: Any = 25.0 if kind is RecordKind.FACTOR else 5.0
    assert sizes.tolist() == [size, 0.0, math.inf]
