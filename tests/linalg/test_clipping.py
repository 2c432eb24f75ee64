"""Clipped contributions against exact arithmetic: bounds in integers, accuracy in 60 digits."""

from __future__ import annotations

import math
import os
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from streaming_pca.linalg import _drop_stale_kernels
from streaming_pca.linalg.clipping import (
    quantise_factors,
    quantise_images,
    quantise_matrices,
    quantise_matrix_images,
)
from streaming_pca.linalg.lattice import MATRIX_RADIUS, RADIUS, lattice_unit, quantise_basis
from tests.linalg.judge import (
    EPS,
    EXACT,
    Floats,
    basis_for,
    clipped,
    decimals,
    distance,
    factors,
    ints,
    norm,
    one,
    product,
    radii,
    squared,
    symmetric,
)

many = settings(max_examples=300, deadline=None)
some = settings(max_examples=120, deadline=None)


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


def test_kernels_older_than_any_source_are_compiled_anew(tmp_path: Path) -> None:
    cache = tmp_path / "__pycache__"
    cache.mkdir()
    source, old, new = tmp_path / "rounding.py", cache / "old.nbi", cache / "new.nbi"
    for path, at in ((old, 100), (source, 200), (new, 300)):
        path.touch()
        os.utime(path, (at, at))
    _drop_stale_kernels(tmp_path)
    assert not old.exists()
    assert new.exists()
    assert source.exists()
