"""Clipped products of single records: bounds in integers, accuracy in 60 digits."""

from __future__ import annotations

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.clipped_sums import block_sum
from streaming_pca.estimators.common.residual_sums import FactorProducts
from streaming_pca.kernels.block.bounds import MOST_PRODUCT
from streaming_pca.kernels.block.chunks import MOST_RECORDS
from streaming_pca.kernels.lattice import MATRIX_RADIUS, RADIUS, lattice_unit
from streaming_pca.kernels.residuals import frobenius_norm
from tests.kernels.judge import (
    EXACT,
    Floats,
    basis_for,
    centres,
    clipped,
    decimals,
    distance,
    exact_product,
    factors,
    norm,
    radii,
    radius_for,
    squared,
    symmetric,
    the_sum,
)

many = settings(deadline=None)
TINY = Decimal(2) ** -20
FACTOR, MATRIX = RecordKind.FACTOR, RecordKind.MATRIX


def product_error(d: int) -> Decimal:
    """Return the error of a column of products, relative to both lengths: the basis is rounded."""
    return Decimal(d).sqrt() * Decimal(2) ** -31


def cancelling(x: Floats, basis: Floats, size: Decimal, per_unit: Decimal, most: int) -> bool:
    """Return whether |F| |F Q| exceeds the radius enough to hold |u| back: smaller, never larger."""
    if len(x) == 1:
        return False
    seen = norm(exact_product(x, basis, MATRIX))
    return size * seen * per_unit > most * Decimal(RADIUS**2)


def roundings(x: Floats, basis: Floats, a: Decimal) -> Decimal:
    """Return how far rounding to integers may move a contribution, in radii.

    z is off by 1/2 an entry; the product by
    its stated error; u by 1/2 an entry, once where it is rounded and once where room is made for that.

    Parameters
    ----------
    a : Decimal
        Size of the record's matrix, after clipping, in radii.
    """
    d, k = basis.shape
    of_z = Decimal(x.size).sqrt() * Decimal("0.5001") * TINY
    of_y = product_error(d) * Decimal(k).sqrt()
    of_u = Decimal(len(x) * k).sqrt() * TINY * Decimal("1.01")
    # Lengths are overestimated by the possible error of their sums and of rounding to 23 bits.
    length = Decimal(len(x) * k).sqrt() * TINY + Decimal(2) ** -28
    return a * (2 * of_z + of_z * of_z + of_y) + of_u + length


@many
@given(st.data())
def test_a_clipped_product_is_within_the_radius_and_close_to_the_exact_one(data: st.DataObject) -> None:
    x = data.draw(factors())
    basis = basis_for(x.shape[1], data.draw(st.integers(0, 10**6)))
    with localcontext(EXACT):
        product = exact_product(x, basis, FACTOR)
        radius = data.draw(radii(norm(product)))
        s = the_sum(x, FACTOR, basis, radius)
        found = [[int(v) for v in row] for row in s.total]
        assert squared(found) <= RADIUS**4
        size = norm(decimals(x))
        per_unit = Decimal(1 / lattice_unit(radius, RADIUS**2))
        if cancelling(x, basis, size, per_unit, 4):
            return
        wanted = clipped(product, per_unit, RADIUS**2)
        whole = norm(product) * per_unit / RADIUS**2
        a = size * size * per_unit / RADIUS**2 / max(whole, Decimal(1))
        allowed = min(roundings(x, basis, a), Decimal(2)) * RADIUS**2
        assert distance(found, wanted) <= allowed


@many
@given(st.data())
def test_a_clipped_matrix_product_is_within_the_radius_and_close_to_the_exact_one(
    data: st.DataObject,
) -> None:
    a = data.draw(symmetric())
    basis = basis_for(len(a), data.draw(st.integers(0, 10**6)))
    d, k = basis.shape
    with localcontext(EXACT):
        product = exact_product(a, basis, MATRIX)
        centre = data.draw(st.one_of(st.none(), centres(product)))
        if centre is None:
            radius = data.draw(radii(norm(product)))
        else:
            radius = data.draw(radius_for(centre, [math.nextafter(0.05, 1), 0.3, 1.0, 3.0, 1e9]))
            assume(frobenius_norm(centre) <= 20 * radius)
        s = the_sum(a, MATRIX, basis, radius, centre)
        found = [[int(v) for v in row] for row in s.total]
        assert squared(found) <= MATRIX_RADIUS**2
        per_unit = Decimal(1 / s.unit)
        taken = decimals(np.zeros_like(basis) if centre is None else centre)
        residual = [[u - v for u, v in zip(r, c, strict=True)] for r, c in zip(product, taken, strict=True)]
        wanted = clipped(residual, per_unit, MATRIX_RADIUS)
        whole = norm(residual) * per_unit / MATRIX_RADIUS
        size = norm(decimals(a)) * per_unit / max(whole, Decimal(1))
        # ``matrix_sums`` states this error: once for the value, once for the length that clips it;
        # for the matrix, and for the basis.
        of_product = 2 * (d * Decimal(k).sqrt() + Decimal(d * k).sqrt()) * Decimal(2) ** -26 * size
        padded = -(-d // 8) * 8
        allowed = of_product + Decimal(d * k).sqrt() / 2 + Decimal(k * padded).sqrt() / 2 + 1
        # float64 products with the centre, of up to 20 radii.
        allowed += Decimal(20 * MATRIX_RADIUS) * Decimal(2) ** -50
        assert distance(found, wanted) <= min(allowed, Decimal(2 * MATRIX_RADIUS))


@many
@given(st.data())
def test_a_weighted_residual_is_within_the_radius_and_close_to_the_exact_one(data: st.DataObject) -> None:
    x = data.draw(factors())
    basis = basis_for(x.shape[1], data.draw(st.integers(0, 10**6)))
    with localcontext(EXACT):
        product = exact_product(x, basis, FACTOR)
        centre = data.draw(centres(product))
        radius = data.draw(radius_for(centre, [math.nextafter(0.05, 1), 0.0501, 0.3, 1.0, 3.0, 1e9]))
        assume(frobenius_norm(centre) <= 20 * radius)
        p = Preprocessing(dim=len(basis), centering="none")
        kernel = FactorProducts(p, basis, 1 / lattice_unit(radius, RADIUS**2), centre, radius)
        s = the_sum(x, FACTOR, basis, radius, centre)
        assert s.centre is not None
        assert kernel.centre is not None
        assert np.array_equal(s.centre, kernel.centre)
        found = [[int(v) for v in row] for row in s.total]
        assert squared(found) <= RADIUS**4
        per_unit, size = Decimal(1 / s.unit), norm(decimals(x))
        if cancelling(x, basis, size, per_unit, 16):
            return
        used = decimals(s.centre)
        residual = [[u - v for u, v in zip(r, c, strict=True)] for r, c in zip(product, used, strict=True)]
        length = norm(residual) * per_unit / RADIUS**2
        wanted = clipped(residual, per_unit, RADIUS**2)
        a = size * size * per_unit / RADIUS**2 / max(length, Decimal(1))
        reach = norm(used) * per_unit / RADIUS**2
        # The centre may be this far from the value implied by the products, in radii: public.
        e = Decimal(kernel.of_centre.error) * TINY
        allowed = roundings(x, basis, a)
        # The weight is rounded, and room was made for that; the length is uncertain by 2 |A| e / length.
        allowed += reach * TINY * Decimal("1.01") + 4 * (reach + 1) * e + 4 * TINY * TINY
        assert distance(found, wanted) <= min(allowed, Decimal(2)) * RADIUS**2


@many
@given(factors())
@example(np.full((1, 5), 5e-324))
@example(np.array([[1.7976931348623157e308] * 5] * 3))
@example(np.array([[1.7976931348623157e308, 5e-324, 1.0]]))
@example(np.array([[0.0], [0.0]]))
def test_a_record_of_any_magnitude_is_clipped_to_the_radius_and_no_less(x: Floats) -> None:
    """The full basis loses nothing, unless rows cancel."""
    s = the_sum(x, FACTOR, np.eye(x.shape[1]), 1e-250)
    found = squared([[int(v) for v in row] for row in s.total])
    assert found <= RADIUS**4
    size = norm(decimals(x))
    if size * size > Decimal("1e-240"):
        assert found >= (1 - 1e-4) * RADIUS**4
        assert s.clipped == 1


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("kind", [FACTOR, MATRIX])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_record_that_is_not_finite_contributes_what_null_does(
    kind: RecordKind, poison: float, dtype: type
) -> None:
    """The decoder makes such a record null; if it ever fails to, the kernels still do."""
    d = 33
    basis = basis_for(d, 1)[:, :2]
    p = Preprocessing(dim=d, kind=kind, centering="none")
    for r in (1, 3, d) if kind is FACTOR else (d,):
        x = np.ones((r, d), dtype=dtype)
        x[r // 2, 20] = poison
        batch = ArrayBatch(np.concatenate([x, x[:0]]), np.array([0, r]), kind)
        null = ArrayBatch.of_records([None], d, kind)
        for centre in (None, np.ones((d, 2))):
            a, b = (block_sum(y, p, basis, 3.0, centre) for y in (batch, null))
            assert np.array_equal(a.total, b.total)
            assert a.clipped == b.clipped


CANCELLING = np.array([[0.0, 1.0], [0.01, 0.0]])
"""F with |F| |F Q| a hundred times |A Q| for the first coordinate as Q."""


@pytest.mark.parametrize("about", [None, 1e-4])
def test_rows_that_cancel_are_held_back_where_a_sum_would_not_be_exact(about: float | None) -> None:
    basis = np.array([[1.0], [0.0]])
    centre = None if about is None else np.array([[about], [0.0]])
    radius = 1e-12 if about is None else 5.1e-6
    single = the_sum(CANCELLING, FACTOR, basis, radius, centre)
    assert single.clipped == 1
    if about is None:
        # |z^T u| = 0.01 |z| |u|.
        assert abs(int(single.total[0, 0])) == pytest.approx(0.01 * RADIUS * MOST_PRODUCT, rel=1e-3)
    most = (RADIUS + 2**10) * MOST_PRODUCT
    assert MOST_RECORDS * most <= 2**53
    m = 5 * MOST_RECORDS + 3
    p = Preprocessing(dim=2, centering="none")
    whole = block_sum(ArrayBatch.of_vectors(np.repeat(CANCELLING[None], m, axis=0)), p, basis, radius, centre)
    assert whole.total.tolist() == [[m * int(v) for v in row] for row in single.total]


@pytest.mark.parametrize("d", [1, 7, 64, 200, 5000])
def test_a_record_inside_the_radius_is_not_shrunk(d: int) -> None:
    rng = np.random.default_rng(d)
    x = rng.standard_normal((1, d))
    basis = np.linalg.qr(np.concatenate([x.T, rng.standard_normal((d, min(d - 1, 3)))], axis=1))[0]
    for room, wanted in ((1.001, False), (0.999, True)):
        radius = float(np.sum(x * x)) * room
        s = the_sum(x, FACTOR, basis, radius)
        assert s.clipped == wanted
        sizes = np.linalg.norm(s.total * s.unit) / min(radius, float(np.sum(x * x)))
        assert sizes == pytest.approx(1, abs=1e-5)
