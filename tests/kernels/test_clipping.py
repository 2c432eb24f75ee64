"""Clipped contributions against exact arithmetic: bounds in integers, accuracy in 60 digits."""

from __future__ import annotations

import importlib
import inspect
import math
import os
import shutil
import subprocess
import sys
from decimal import Decimal, localcontext
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import streaming_pca
from streaming_pca.kernels import _drop_stale_kernels
from streaming_pca.kernels.lattice import MATRIX_RADIUS, RADIUS, lattice_unit
from streaming_pca.kernels.rounding import quantise_records
from tests.kernels.judge import (
    EXACT,
    Floats,
    clipped,
    decimals,
    distance,
    factors,
    ints,
    norm,
    one,
    radii,
    squared,
    symmetric,
)

many = settings(deadline=None)


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
        quantise_records(x, one(x), per_unit, float(RADIUS), z)
        found = ints(z)
        assert squared(found) <= RADIUS**2
        # Half a cell for rounding, again where the radius had to be kept, and one unit.
        allowed = Decimal(x.size).sqrt() + 2
        assert distance(found, clipped(exact, Decimal(per_unit), RADIUS)) <= allowed


@many
@given(factors())
@example(np.full((1, 5), 5e-324))
@example(np.array([[1.7976931348623157e308] * 5] * 3))
@example(np.array([[1.7976931348623157e308, 5e-324, 1.0]]))
def test_a_normalised_factor_has_the_radius_and_not_more(x: Floats) -> None:
    z = np.full_like(x, np.nan)
    quantise_records(x, one(x), math.inf, float(RADIUS), z)
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
        quantise_records(a, one(a), per_unit, float(MATRIX_RADIUS), z)
        found = ints(z)
        assert squared(found) <= MATRIX_RADIUS**2
        assert (z == z.T).all()
        allowed = Decimal(a.size).sqrt() + 2
        assert distance(found, clipped(exact, Decimal(per_unit), MATRIX_RADIUS)) <= allowed


@pytest.mark.parametrize("d", [1, 7, 200, 5000])
def test_a_record_inside_the_radius_is_not_shrunk(d: int) -> None:
    x = np.random.default_rng(d).standard_normal((1, d))
    radius = float(np.sum(x * x)) * 1.001
    per_unit = 1 / lattice_unit(math.sqrt(radius), RADIUS)
    z = np.empty_like(x)
    quantise_records(x, one(x), per_unit, float(RADIUS), z)
    assert np.array_equal(z, np.rint(x * per_unit))


@pytest.mark.parametrize("d", [100, 5000, 8192])
def test_long_records_stay_within_the_radius_and_are_not_dropped(d: int) -> None:
    """Rounding up every entry adds sqrt(d)/2 units, so the second scaling is needed."""
    rng = np.random.default_rng(d)
    for scale in 1 + rng.random(20):
        x = np.full((1, d), scale)
        z = np.empty_like(x)
        quantise_records(x, one(x), math.inf, float(RADIUS), z)
        size = squared(ints(z))
        assert (RADIUS - d**0.5 - 3) ** 2 <= size <= RADIUS**2


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_record_that_is_not_finite_contributes_nothing(poison: float) -> None:
    """The decoder makes such a record null; if it ever fails to, the kernels still do."""
    x = np.array([[1.0, poison, 2.0]])
    for per_unit in (1.0, math.inf):
        z = np.ones_like(x)
        quantise_records(x, one(x), per_unit, float(RADIUS), z)
        assert not z.any()
        a = np.repeat(x, 3, axis=0)
        m = np.ones_like(a)
        quantise_records(a, one(a), per_unit, float(MATRIX_RADIUS), m)
        assert not m.any()


def test_kernels_older_than_any_source_are_compiled_anew(tmp_path: Path) -> None:
    folder, called = tmp_path / "kernels", tmp_path / "called"
    # A source in any sub-folder counts, and so does the cache there.
    cache = folder / "block" / "__pycache__"
    cache.mkdir(parents=True)
    called.mkdir()
    source, old, new = folder / "rounding.py", cache / "old.nbi", cache / "new.nbi"
    for path, at in ((old, 100), (source, 200), (new, 300), (called / "clipping.py", 400)):
        path.touch()
        os.utime(path, (at, at))
    _drop_stale_kernels(folder)
    assert not old.exists()
    assert new.exists()
    assert source.exists()
    _drop_stale_kernels(folder, called)
    assert not new.exists()


def test_kernels_of_estimators_that_call_these_are_compiled_anew(tmp_path: Path) -> None:
    """An index older than its sources is deleted on import of the package."""
    for name in ("power.noisy_power", "tensor.private", "power.adaptive_power"):
        source = inspect.getsource(importlib.import_module(f"streaming_pca.estimators.{name}"))
        assert "from streaming_pca.kernels.rounding import" in source
    package = tmp_path / "streaming_pca"
    for folder in ("kernels", "estimators"):
        shutil.copytree(
            Path(streaming_pca.__file__).parent / folder,
            package / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    cache = package / "estimators" / "power" / "__pycache__"
    cache.mkdir()
    stale = cache / "noisy_power.scale_records-35.py312.nbi"
    stale.touch()
    os.utime(stale, (100, 100))
    subprocess.run(
        [sys.executable, "-c", "import streaming_pca.kernels"],
        env=os.environ | {"PYTHONPATH": str(tmp_path), "PYTHONSAFEPATH": "1"},
        check=True,
    )
    assert not stale.exists()
