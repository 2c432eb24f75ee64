"""Whole sums from an attacker's view: neighbours, other records, counts, the interpreter's bits."""

from __future__ import annotations

import hashlib
import importlib
import math
import os
import subprocess
import sys
from collections.abc import Callable
from decimal import Decimal, localcontext
from fractions import Fraction
from pathlib import Path
from typing import Any

import numba
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import streaming_pca
from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind, is_symmetric
from streaming_pca.estimators.common.clipped_sums import (
    block_residual_norms,
    block_sensitivity,
    block_sum,
    covariance_sensitivity,
    covariance_sum,
    record_norms,
)
from streaming_pca.kernels import factor_rows
from streaming_pca.kernels.lattice import MATRIX_RADIUS, MAX_RECORDS, RADIUS, LatticeSum
from streaming_pca.kernels.residuals import frobenius_norm
from streaming_pca.kernels.rounding import round_scaled, scale_down, sum_of_squares
from tests.kernels.judge import EXACT, Floats, basis_for, decimals, entries, norm

some = settings(deadline=None)

D = 3
PREPROCESSINGS: dict[str, dict[str, Any]] = {
    "none": {"centering": "none"},
    "pairs": {"centering": "pairs"},
    "vector": {"centering": (1.0, -2.0, 1e10)},
    "bounds and scale": {"centering": "none", "bounds": (-5.0, (1.0, 2.0, 1e5)), "scale": (0.1, 3.0, 1e-7)},
    "pairs with bounds": {"centering": "pairs", "bounds": (-1.0, 1.0)},
    "matrix": {"kind": RecordKind.MATRIX, "centering": "none"},
}
RADII = [1.0, 2.0, 1e-3, 1e-200, 1e200, 12345.678]
ABOVE = [0.05, math.nextafter(0.05, 1), 0.3, 1.0, 10.0]
BELOW = [0.0499, 1e-2, 1e-3, 1e-5, 1e-6, 1e-9, 1e-30]


def squared_distance(a: LatticeSum, b: LatticeSum) -> int:
    assert a.unit == b.unit
    return sum((int(x) - int(y)) ** 2 for x, y in zip(a.total.flat, b.total.flat, strict=True))


@st.composite
def records(draw: st.DrawFn, kind: RecordKind) -> Floats | None:
    """Draw null, a record of the radius' scale, or of any magnitude; matrices are symmetric to 1e-6 only."""
    top = draw(st.sampled_from([None, None, -3, 0, 0, 3]))
    if draw(st.integers(0, 9)) == 0:
        return None
    if kind is RecordKind.FACTOR:
        r = draw(st.integers(1, 2))
        return np.array(draw(entries(r * D, top))).reshape(r, D)
    a = np.array(draw(entries(D * D, top))).reshape(D, D)
    a = np.triu(a) + np.triu(a, 1).T
    return np.triu(a) + np.tril(a, -1) * (1 - draw(st.sampled_from([0.0, 1e-6])))


def product(x: Floats | None, p: Preprocessing, basis: Floats) -> Floats:
    """Return A Q of one record (twice, for pairs with zero), in floats; 0 where those overflow."""
    if x is None:
        return np.zeros(basis.shape)
    group = [x, np.zeros((1, D))][: p.units]
    rows = p.apply(ArrayBatch.of_records(group, D, p.kind)).rows
    with np.errstate(over="ignore", invalid="ignore"):
        out = rows @ basis if p.kind is RecordKind.MATRIX else rows.T @ (rows @ basis)
    if out.shape != basis.shape or not np.all(np.isfinite(out)):
        return np.zeros(basis.shape)
    return out


def size(centre: Floats) -> float:
    return math.hypot(*centre.ravel().tolist())


@st.composite
def sums(draw: st.DrawFn, p: Preprocessing, batch: list[Any]) -> dict[str, Callable[[list[Any]], LatticeSum]]:
    """Draw every sum, each with separate parameters; a centre is often the product of a record."""
    basis = basis_for(p.dim, draw(st.integers(0, 100)))
    top = draw(st.sampled_from([-400, -30, 0, 0, 30, 400]))
    drawn = np.array(draw(entries(basis.size, top))).reshape(basis.shape)
    of_record = product(batch[draw(st.integers(0, len(batch) - 1))], p, basis)
    centre = draw(st.sampled_from([drawn, of_record, of_record, of_record * (1 + 1e-7)]))
    scale = size(centre) if 1e-200 < size(centre) < 1e200 else 1.0
    if scale == 1.0:
        centre = np.where(np.abs(centre) < 1, centre, 1.0)
        scale = max(size(centre), 1e-3)
    radius = draw(st.sampled_from(RADII))
    above, below = (min(max(scale * draw(st.sampled_from(f)), 1e-250), 1e250) for f in (ABOVE, BELOW))

    def packed(records_: list[Any]) -> ArrayBatch:
        return ArrayBatch.of_records(records_, D, p.kind)

    return {
        "covariance": lambda records_: covariance_sum(packed(records_), p, radius),
        "block": lambda records_: block_sum(packed(records_), p, basis, radius),
        "about a centre": lambda records_: block_sum(packed(records_), p, basis, above, centre),
        "tightly about a centre": lambda records_: block_sum(packed(records_), p, basis, below, centre),
    }


@pytest.mark.parametrize("name", PREPROCESSINGS)
@some
@given(data=st.data())
def test_neighbours_differ_by_at_most_the_sensitivity_in_integers(name: str, data: st.DataObject) -> None:
    p = Preprocessing(dim=D, **PREPROCESSINGS[name])
    batch = [data.draw(records(p.kind)) for _ in range(4)]
    place = data.draw(st.integers(0, 3))
    neighbour = batch.copy()
    neighbour[place] = data.draw(records(p.kind))
    groups = range(0, 4, p.units)
    for sum_name, kernel in data.draw(sums(p, batch)).items():
        a, b = kernel(batch), kernel(neighbour)
        assert squared_distance(a, b) <= Fraction(a.sensitivity) ** 2, sum_name
        assert abs(a.clipped - b.clipped) <= 1, sum_name
        if sum_name == "covariance":
            assert a.sensitivity == covariance_sensitivity(p.kind)
            # The mechanism reads only the upper triangle.
            assert np.array_equal(a.total, a.total.T)
        else:
            assert a.sensitivity == block_sensitivity(p.kind)
        # Records do not influence each other's contributions: the sum equals that of the single records.
        alone = [kernel(batch[i : i + p.units]) for i in groups]
        assert np.array_equal(sum(s.total for s in alone), a.total), sum_name
        assert sum(s.clipped for s in alone) == a.clipped, sum_name
        # Each contribution is within half of the sensitivity; PSD ones are within R.
        bound = RADIUS**2 if sum_name == "covariance" and p.kind is RecordKind.FACTOR else a.sensitivity / 2
        for s in alone:
            assert sum(int(v) ** 2 for v in s.total.flat) <= Fraction(bound) ** 2, sum_name


@pytest.mark.parametrize("name", PREPROCESSINGS)
def test_picked_records_have_the_sum_of_packed_ones(name: str) -> None:
    p = Preprocessing(dim=D, **PREPROCESSINGS[name])
    rng = np.random.default_rng(4)
    records_: list[Any] = []
    for i in range(400):
        x = rng.standard_normal((D, D)) * 10.0 ** rng.uniform(-2, 2)
        rows = 1 if p.units == 2 else 1 + i % 3
        records_.append(None if i % 11 == 0 else x + x.T if p.kind is RecordKind.MATRIX else x[:rows])
    batch = ArrayBatch.of_records(records_, D, p.kind)
    chosen = np.repeat(rng.random(400 // p.units) < 0.5, p.units)
    basis = basis_for(p.dim, 7)
    centre = rng.standard_normal(basis.shape)
    for picked in (batch.only(chosen), batch.keeping(chosen), batch.only(~chosen)):
        of_both = []
        for b in (picked, picked.packed()):
            sums_ = (covariance_sum(b, p, 2.0), block_sum(b, p, basis, 2.0))
            sums_ += tuple(block_sum(b, p, basis, radius, centre) for radius in (2.0, 0.01))
            sizes = (record_norms(b, p), block_residual_norms(b, p, basis, centre))
            of_both.append([(s.total.tobytes(), s.clipped) for s in sums_])
            of_both[-1] += [value_array(size).tobytes() for size in sizes]
        assert of_both[0] == of_both[1]


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
def test_some_neighbours_reach_the_covariance_sensitivity(kind: RecordKind) -> None:
    p = Preprocessing(dim=2, kind=kind, centering="none")
    if kind is RecordKind.FACTOR:
        x, y = np.array([[7.0, 0.0]]), np.array([[0.0, 9.0]])
    else:
        x, y = np.diag([7.0, 0.0]), np.diag([-9.0, 0.0])
    a, b = (covariance_sum(ArrayBatch.of_records([r], 2, kind), p, 1.0) for r in (x, y))
    assert 0.9999 * a.sensitivity**2 <= squared_distance(a, b) <= Fraction(a.sensitivity) ** 2


@pytest.mark.parametrize("ratio", [None, 20.0, 1.0, 0.05, 0.01, 1e-6])
@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
def test_some_neighbours_reach_the_block_sensitivity(kind: RecordKind, ratio: float | None) -> None:
    """Two outliers on opposite sides of the centre attain it, for every R/|C|."""
    p = Preprocessing(dim=3, kind=kind, centering="none")
    far = 1e9
    if kind is RecordKind.FACTOR:
        # The rows are far outside the basis, with opposite first coordinates: x x^T Q changes sign.
        x, y = np.array([[1.0, 40.0, 0.0]]) * far, np.array([[-1.0, 40.0, 0.0]]) * far
    else:
        x, y = np.diag([7.0, 0.0, 0.0]) * far, np.diag([-9.0, 0.0, 0.0]) * far
    basis = np.eye(3)[:, :1]
    centre = None if ratio is None else np.array([[0.0], [0.0], [1 / ratio]])
    a, b = (block_sum(ArrayBatch.of_records([r], 3, kind), p, basis, 1.0, centre) for r in (x, y))
    assert 0.99 * a.sensitivity**2 <= squared_distance(a, b) <= Fraction(a.sensitivity) ** 2
    assert a.clipped == b.clipped == 1


@pytest.mark.parametrize("magnitude", [1e-200, 1e-100, 1.0, 1e100, 1e200])
@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
@pytest.mark.parametrize("sum_name", ["covariance", "block", "about a centre", "tightly about a centre"])
def test_sums_are_accurate_at_every_magnitude(sum_name: str, kind: RecordKind, magnitude: float) -> None:
    """Neither norms nor their squares overflow or underflow during the computation."""
    rng = np.random.default_rng(5)
    p = Preprocessing(dim=4, kind=kind, centering="none")
    x = rng.standard_normal((9, 4, 4))
    a = x + x.transpose(0, 2, 1) if kind is RecordKind.MATRIX else x[:, :1]
    moments = a if kind is RecordKind.MATRIX else a.transpose(0, 2, 1) @ a
    basis = basis_for(4, 1)
    scale = magnitude if kind is RecordKind.MATRIX else math.sqrt(magnitude)
    batch = ArrayBatch.of_records(list(a * scale), 4, kind)
    wanted = moments.sum(axis=0)
    if sum_name == "covariance":
        s = covariance_sum(batch, p, 100 * magnitude)
    else:
        wanted = wanted @ basis
        longer = {"block": 0, "about a centre": 10, "tightly about a centre": 10_000}[sum_name]
        centre = None if not longer else np.full(basis.shape, longer * magnitude)
        s = block_sum(batch, p, basis, 100 * magnitude, centre)
        if s.centre is not None:
            # Clipping would hide a far-off centre; here the count reveals whether it happened.
            assert s.clipped == (0 if sum_name == "about a centre" else 9)
            if s.clipped:
                assert np.linalg.norm(s.total * (s.unit / magnitude)) == pytest.approx(900, rel=1e-3)
                return
            wanted = wanted - 9 * s.centre / magnitude
    assert s.clipped == 0
    np.testing.assert_allclose(s.total * (s.unit / magnitude), wanted, atol=5e-3)


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
@pytest.mark.parametrize("ratio", [3.0, 0.05, 0.01, 1e-6])
def test_a_null_record_contributes_the_clipped_centre_turned_round(kind: RecordKind, ratio: float) -> None:
    p = Preprocessing(dim=3, kind=kind, centering="none")
    rng = np.random.default_rng(1)
    basis, centre = basis_for(3, 1), rng.standard_normal((3, basis_for(3, 1).shape[1]))
    radius = ratio * size(centre)
    zero = np.zeros((3, 3) if kind is RecordKind.MATRIX else (2, 3))
    poisoned = zero.copy()
    poisoned[0, 0] = math.nan
    one, two, three = (
        block_sum(ArrayBatch.of_records([r], 3, kind), p, basis, radius, centre)
        for r in (None, zero, 5e-324 * zero)
    )
    turned = -one.centre * min(1.0, ratio)
    np.testing.assert_allclose(one.total * one.unit, turned, rtol=1e-4, atol=1e-6 * radius)
    assert np.array_equal(one.total, two.total)
    assert np.array_equal(one.total, three.total)
    assert one.clipped == two.clipped == (ratio < 1)
    other, null = (
        block_sum(ArrayBatch.of_records([r], 3, kind), p, np.eye(3)[:, :1], radius, centre[:, :1])
        for r in (np.diag([0.0, 1e300, 0.0]), None)
    )
    assert np.array_equal(other.total, null.total)
    # The decoder makes such a record null; if it ever fails to, the kernels still do.
    batch = ArrayBatch(poisoned, np.array([0, len(poisoned)], dtype=np.int64), kind)
    assert np.array_equal(block_sum(batch, p, basis, radius, centre).total, one.total)


@pytest.mark.parametrize("rows", [(1, 2), (2, 4), (4, 5), (6, 0)])
def test_a_matrix_of_too_few_or_many_rows_is_null_and_spills_into_no_other(rows: tuple[int, int]) -> None:
    """Together they have as many rows as whole matrices."""
    p = Preprocessing(dim=3, kind=RecordKind.MATRIX, centering="none")
    whole = np.diag([1.0, 2.0, 3.0])
    first, last = (np.full((r, 3), 7.0) for r in rows)
    odd, null = (
        ArrayBatch.of_records(records_, 3, RecordKind.MATRIX)
        for records_ in ([first, whole, last, whole], [None, whole, None, whole])
    )
    basis = basis_for(3, 0)
    for kernel in (
        lambda batch: covariance_sum(batch, p, 5.0),
        lambda batch: block_sum(batch, p, basis, 5.0),
        lambda batch: block_sum(batch, p, basis, 5.0, np.ones(basis.shape)),
        lambda batch: block_sum(batch, p, basis, 5.0, 1e3 * np.ones(basis.shape)),
    ):
        assert np.array_equal(kernel(odd).total, kernel(null).total)
    assert value_array(record_norms(odd, p)).tolist() == [0.0, math.sqrt(14), 0.0, math.sqrt(14)]


@some
@given(data=st.data())
def test_the_count_of_clipped_records_is_exact(data: st.DataObject) -> None:
    """Counts are judged with 60 digits; norms within 1e-4 R and 2**-18 |A| of R may fall either way."""
    p = Preprocessing(dim=D, centering="none")
    batch = [data.draw(records(p.kind)) for _ in range(5)]
    basis = np.eye(D)[:, [2, 0]]
    top = data.draw(st.sampled_from([-40, 0, 0, 40]))
    centre = np.array(data.draw(entries(basis.size, top))).reshape(basis.shape)
    scale = max(size(centre), 1e-30)
    radius = scale * data.draw(st.sampled_from([10.0, 1.0, 0.06, 0.04, 1e-3]))
    packed = ArrayBatch.of_records(batch, D, p.kind)
    found = (
        covariance_sum(packed, p, radius),
        block_sum(packed, p, basis, radius),
        block_sum(packed, p, basis, radius, centre),
    )
    # The sum may use only part of the given centre.
    taken = found[2].centre
    assert frobenius_norm(taken - centre) <= radius * (0.125 + 1e-5)
    with localcontext(EXACT):
        traces, products, residuals = [], [], []
        for x in batch:
            rows = [] if x is None else decimals(x)
            a = [[sum((r[i] * r[j] for r in rows), Decimal(0)) for j in (2, 0)] for i in range(D)]
            traces.append(sum((v * v for r in rows for v in r), Decimal(0)))
            products.append(norm(a))
            pairs = (zip(r, c, strict=True) for r, c in zip(a, decimals(taken), strict=True))
            residuals.append(norm([[u - v for u, v in pair] for pair in pairs]))
        several = sum(x is not None and len(x) > 1 for x in batch)
        for s, sizes in zip(found, (traces, products, residuals), strict=True):
            off = [Decimal("1e-4") * Decimal(radius) + Decimal(2) ** -18 * trace for trace in traces]
            surely = sum(v - u > Decimal(radius) for u, v in zip(off, sizes, strict=True))
            perhaps = sum(u + v > Decimal(radius) for u, v in zip(off, sizes, strict=True))
            # Rows that cancel are held back further than R requires, and count as clipped.
            assert surely <= s.clipped <= perhaps + (0 if s is found[0] else several)


def test_records_of_norm_exactly_the_radius_are_not_counted_as_clipped() -> None:
    rng = np.random.default_rng(3)
    x = rng.standard_normal((500, 7))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    p = Preprocessing(dim=7, centering="none")
    assert covariance_sum(ArrayBatch.of_vectors(x), p, 1.0).clipped == 0
    assert covariance_sum(ArrayBatch.of_vectors(x * 1.001), p, 1.0).clipped == 500


def test_the_largest_centred_sum_leaves_room_for_noise() -> None:
    p = Preprocessing(dim=1, centering="none")
    nulls = ArrayBatch(np.zeros((0, 1)), np.zeros(MAX_RECORDS + 1, dtype=np.int64))
    total = block_sum(nulls, p, np.ones((1, 1)), 1.0, np.array([[15.0]])).total
    assert 0 <= 2**62 + int(total[0, 0]) <= 2**62 // 2**18


@pytest.mark.parametrize("where", ["nan", "inf", "shape"])
def test_a_centre_that_is_no_centre_is_refused(where: str) -> None:
    p = Preprocessing(dim=3, centering="none")
    centre = np.zeros((2, 2)) if where == "shape" else np.full((3, 2), float(where))
    with pytest.raises(ValueError, match="centre"):
        block_sum(ArrayBatch.of_vectors(np.ones((4, 3))), p, np.eye(3)[:, :2], 1.0, centre)


def add_gram_by_numpy(dsyrk: int, rows: NDArray[np.float64], count: int, total: NDArray[np.float64]) -> None:
    """Replace the intrinsic for an interpreter, which lacks them; exact for integers that float64 holds."""
    total += np.tril(rows[:count].T @ rows[:count])


def digest_of_all_sums() -> str:
    """Return totals and counts of a mixed batch, from every kernel that the interpreter runs."""
    rng = np.random.default_rng(11)
    digest = hashlib.sha256()
    if numba.config.DISABLE_JIT:
        factor_rows.add_gram = add_gram_by_numpy
    for kind in (RecordKind.FACTOR, RecordKind.MATRIX):
        p = Preprocessing(dim=9, kind=kind, centering="none")
        batch: list[Any] = [None]
        for i in range(12):
            x = rng.standard_normal((9, 9)) * 10.0 ** (i - 6)
            batch.append(x + x.T if kind is RecordKind.MATRIX else x[: 1 + i % 3])
        basis = basis_for(9, 1)
        packed = ArrayBatch.of_records(batch, 9, kind)
        centre = rng.standard_normal(basis.shape)
        # The other sums have vector instructions: tests/kernels/test_strips.py judges those.
        tight = block_sum(packed, p, basis, 1e-3 * size(centre), centre)
        for s in (covariance_sum(packed, p, 3.0), tight):
            digest.update(s.total.tobytes() + bytes([s.clipped]))
        digest.update(value_array(record_norms(packed, p)).tobytes())
    # Rounding to integers would hide most effects of a changed order on a float.
    for n in (7, 64, 1001):
        x = rng.standard_normal((3, n)) * 10.0 ** rng.uniform(-6, 6, n)
        out = np.empty_like(x)
        values = [scale_down(x, 20, out), sum_of_squares(x), round_scaled(x, 1e3 / 7, out), frobenius_norm(x)]
        digest.update(np.array(values).tobytes() + out.tobytes())
    return digest.hexdigest()


def test_compiled_kernels_give_the_bits_that_the_interpreter_gives() -> None:
    """No operation is fused or reordered for a processor; no compiled copy is out of date."""
    script = "from tests.estimators.common.test_clipped_sums import digest_of_all_sums as d; print(d())"
    interpreted = subprocess.run(
        [sys.executable, "-c", script],
        env=os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert interpreted.stdout.strip() == digest_of_all_sums()


KERNELS = {
    "kernels.residuals": 4,
    "kernels.blas": 3,
    "kernels.factor_rows": 3,
    "kernels.block.bounds": 2,
    "kernels.block.norms": 2,
    "kernels.block.sums": 4,
    "kernels.coordinates": 4,
    "kernels.block.chunks": 6,
    "kernels.block.matrix_sums": 2,
    "kernels.plain_records": 4,
    "kernels.reading": 4,
    "kernels.record_means": 4,
    "kernels.rounding": 14,
    "estimators.power.adaptive_power": 3,
    "estimators.power.noisy_power": 1,
    "estimators.tensor.private": 1,
}
"""The minimum number of compiled functions in each module whose results enter a sum."""


@pytest.mark.parametrize("name", KERNELS)
def test_no_kernel_may_reorder_or_fuse(name: str) -> None:
    module = importlib.import_module(f"streaming_pca.{name}")
    compiled = [f for f in vars(module).values() if hasattr(f, "targetoptions")]
    own = [f for f in compiled if f.py_func.__module__ == module.__name__]
    assert len(own) >= KERNELS[name]
    for kernel in compiled:
        assert not kernel.targetoptions.get("fastmath")
        assert not kernel.targetoptions.get("parallel")


def test_no_module_with_kernels_is_missing_above() -> None:
    folder = Path(streaming_pca.__file__).parent
    found = {
        ".".join(path.relative_to(folder).with_suffix("").parts)
        for room in ("kernels", "linalg", "estimators")
        for path in (folder / room).rglob("*.py")
        if "@njit" in path.read_text()
    }
    # The baseline without privacy computes no sums for a mechanism.
    assert found - set(KERNELS) <= {"kernels.sequential_oja"}


@pytest.mark.parametrize("kind", [RecordKind.FACTOR, RecordKind.MATRIX])
def test_sizes_are_traces_of_factors_and_norms_of_matrices(kind: RecordKind) -> None:
    p = Preprocessing(dim=2, kind=kind, centering="none")
    a = np.array([[1.0, 2.0], [2.0, -4.0]])
    sizes = value_array(record_norms(ArrayBatch.of_records([a, None, 1e200 * a], 2, kind), p))
    wanted: Any = 25.0 if kind is RecordKind.FACTOR else 5.0
    assert sizes.tolist() == [wanted, 0.0, math.inf]


def test_of_matrices_that_are_nearly_symmetric_the_upper_triangle_decides_what_is_clipped() -> None:
    d = 60
    a = np.triu(np.full((d, d), 1e-6), 1)
    a[0, 0] = 1.0
    assert is_symmetric(a)
    p = Preprocessing(dim=d, kind=RecordKind.MATRIX, centering="none")
    total = covariance_sum(ArrayBatch.of_records([a], d, RecordKind.MATRIX), p, 1e-3).total
    assert np.array_equal(total, total.T)
    assert total[0, 1] != 0
    # The noise of gaussian_on_symmetric is calibrated to this.
    assert sum(int(v) ** 2 for v in total.flat) <= MATRIX_RADIUS**2


def test_a_factor_that_its_map_takes_beyond_floats_is_null_in_sums_and_sizes() -> None:
    x = np.array([[1e300, 1.0], [1e200, 1e200], [3.0, 4.0], [-1e300, 2.0]])
    p = Preprocessing(dim=2, centering="none", scale=(1e10, 1.0))
    batch = ArrayBatch.of_vectors(x)
    assert value_array(record_norms(batch, p)).tolist() == [0.0, math.inf, 9e20 + 16, 0.0]
    alone = covariance_sum(batch.split([1, 2, 1])[1], p, 1.0)
    assert np.array_equal(covariance_sum(batch, p, 1.0).total, alone.total)
    pairs = Preprocessing(dim=2, centering="pairs", scale=(1e10, 1.0))
    assert value_array(record_norms(batch, pairs)).tolist()[0] == 0.0
