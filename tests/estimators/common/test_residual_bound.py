"""Block sums under attack: the bound in integers, all kinds of centres, hard records, any company."""

from __future__ import annotations

import math
import os
import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators import record_reader
from streaming_pca.estimators.common.clipped_sums import block_residual_norms, block_sum
from streaming_pca.estimators.common.residual_sums import FactorProducts, MatrixProducts
from streaming_pca.kernels.blas import dgemm_address
from streaming_pca.kernels.block.bounds import MOST_PRODUCT, WEIGHT, Centre, is_within
from streaming_pca.kernels.block.chunks import MOST_RECORDS, chunk_rows, fill_chunk, new_chunk
from streaming_pca.kernels.lattice import MATRIX_RADIUS, MAX_RECORDS, RADIUS, LatticeSum, lattice_unit
from streaming_pca.kernels.reading import NO_MAP
from streaming_pca.kernels.residuals import frobenius_norm
from tests.kernels.judge import squared_total
from tests.threads import limited_threads

Floats = NDArray[np.float64]
Rng = np.random.Generator
R2 = RADIUS**2


def random_basis(rng: Rng, d: int, k: int) -> Floats:
    return np.eye(d)[:, :k] if rng.random() < 0.2 else np.linalg.qr(rng.standard_normal((d, k)))[0]


def product_of(x: Floats, basis: Floats) -> Floats:
    return np.outer(x, x @ basis)


CENTRES: dict[str, Callable[[Rng, Floats], Floats | None]] = {
    "none": lambda rng, q: None,
    "zero": lambda rng, q: np.zeros(q.shape),
    "in the span": lambda rng, q: q @ rng.standard_normal((q.shape[1],) * 2),
    "and a little outside": lambda rng, q: (
        q @ rng.standard_normal((q.shape[1],) * 2) + rng.standard_normal(q.shape) * 10.0 ** rng.uniform(-9, 0)
    ),
    "and rank 1 outside": lambda rng, q: (
        q @ rng.standard_normal((q.shape[1],) * 2)
        + np.outer(rng.standard_normal(len(q)), rng.standard_normal(q.shape[1])) * 10.0 ** rng.integers(-6, 3)
    ),
    "of full rank": lambda rng, q: rng.standard_normal(q.shape),
    "of one entry": lambda rng, q: np.eye(*q.shape),
    "a record's product": lambda rng, q: product_of(rng.standard_normal(len(q)), q),
}


def kernel_about(rng: Rng, name: str, d: int, k: int) -> tuple[FactorProducts, Floats, float]:
    """Return a kernel, its basis and its radius; the centre is at up to 20 R, often as far as that."""
    basis = random_basis(rng, d, k)
    scale = 10.0 ** rng.choice([0, 0, 0, -60, 60])
    centre = CENTRES[name](rng, basis)
    radius = scale
    if centre is not None and centre.any():
        centre = centre * scale
        radius = frobenius_norm(centre) / rng.choice([19.99999, 19.99999, 10, 3, 1, 0.3, 1e-3, 1e-8])
    p = Preprocessing(dim=d, centering="none")
    return FactorProducts(p, basis, 1 / lattice_unit(radius, R2), centre, radius), basis, radius


def error_matrix(kernel: FactorProducts) -> Floats:
    """Return C' - B M, for the columns as kernels have them."""
    return np.asarray(kernel.lattice_centre - kernel.columns @ kernel.of_centre.mix)


def worst_direction(matrix: Floats) -> Floats:
    return np.asarray(np.linalg.svd(matrix, full_matrices=False)[0][:, 0])


def hard_record(rng: Rng, kernel: FactorProducts, basis: Floats, r: int) -> Floats:
    """Return unscaled rows: random, aligned with sensitive directions, all alike, or cancelling."""
    d, k = basis.shape
    centre = kernel.lattice_centre
    centred = centre is not None and bool(centre.any())
    way = rng.integers(0, 9)
    if way == 0:
        return rng.standard_normal((r, d))
    if way == 1:
        return rng.standard_normal((r, k)) @ basis.T
    if way == 2:
        # Every entry is rounded alike.
        return rng.choice([-1.0, 1.0], (r, d)) * (0.5 + 2.0**-20)
    if way == 3:
        return np.exp(rng.uniform(-700, 700, (r, d))) * rng.choice([-1.0, 1.0], (r, d))
    if way == 4:
        return np.repeat(np.eye(d)[rng.integers(0, d)][None], r, axis=0)
    if way == 5:
        x = rng.standard_normal((r, d)) * np.where(np.arange(r) % 2, 0.01, 1)[:, None]
        x[0] -= basis @ (basis.T @ x[0]) * (1 - 1e-6)
        return x
    if way == 6 and centred:
        return np.outer(rng.choice([-1.0, 1.0], r), worst_direction(error_matrix(kernel)))
    if way == 7 and centred:
        # Towards the centre, or away from it: both roundings may point outwards.
        return np.outer(rng.choice([-1.0, 1.0], r) * rng.uniform(0.9, 1.1, r), worst_direction(kernel.centre))
    return rng.standard_normal((r, 1)) * np.ones(d)


def sized(rng: Rng, x: Floats, basis: Floats, radius: float, reach: float) -> Floats:
    """Scale the record: its product is near the radius or centre, at 20 radii, or of any size."""
    with np.errstate(over="ignore", under="ignore"):
        x = x / max(float(np.abs(x).max()), 1e-300)
        x = x / math.sqrt(float(np.sum(x * x)))
        product = float(np.linalg.norm(x.T @ (x @ basis)))
        factors = [
            10.0 ** rng.uniform(-3, 3),
            rng.uniform(0.9, 1.1),
            max(reach + rng.choice([-1.0, 0.0, 1.0]), 0.01) * rng.uniform(0.99, 1.01),
            rng.uniform(15, 25),
            10.0 ** rng.uniform(-40, 40),
        ]
        wanted = radius * factors[rng.integers(0, 5)]
        x = x * math.sqrt(wanted / (max(product, 1e-12) if rng.random() < 0.7 else 1.0))
        single = x.astype(np.float32)
        return single if rng.random() < 0.3 and np.isfinite(single).all() else x


def contribution(
    kernel: FactorProducts | MatrixProducts, x: Any, kind: RecordKind
) -> tuple[NDArray[np.int64], int]:
    out = kernel(ArrayBatch(np.ascontiguousarray(x), np.array([0, len(x)]), kind))
    return out[:-1], int(out[-1])


@pytest.mark.parametrize("name", CENTRES)
def test_thousands_of_hard_records_stay_within_the_radius_and_are_not_dropped(name: str) -> None:
    rng = np.random.default_rng(sum(name.encode()))
    worst, shortest, seen = 0, R2**2, 0
    for d in (1, 2, 3, 5, 15, 16, 17, 31, 64, 65, 257, 1000, 4096):
        for k in sorted({1, min(2, d), min(int(rng.integers(1, 41)), d)}):
            kernel, basis, radius = kernel_about(rng, name, d, k)
            reach = 0.0 if kernel.centre is None else frobenius_norm(kernel.centre) / radius
            for _ in range(30):
                r = int(rng.choice([1, 1, 1, 2, 3, 63, 65, 70, 300] if d < 100 else [1, 1, 2, 65]))
                x = sized(rng, hard_record(rng, kernel, basis, r), basis, radius, reach)
                found, clipped = contribution(kernel, x, RecordKind.FACTOR)
                size = squared_total(found)
                worst = max(worst, size)
                seen += 1
                if kernel.centre is not None and kernel.centre.any():
                    # The contribution is 0 only for a record that failed the last comparison.
                    assert size > 0
                if clipped and r == 1:
                    shortest = min(shortest, size)
    assert seen >= 1000
    assert worst <= R2**2
    # The bound is tight, within a few parts in 10**3 for a centre of 20 R; no record shrinks further.
    assert worst >= (1 - 1e-4) * R2**2 or name == "zero"
    assert shortest >= 0.98 * R2**2


@pytest.mark.parametrize("centred", [False, True])
def test_matrices_that_are_hard_stay_within_the_radius_and_are_not_dropped(centred: bool) -> None:
    rng = np.random.default_rng(7)
    for d in (1, 2, 7, 16, 31, 64, 100):
        for k in sorted({1, min(d, 3), min(d, 40)}):
            basis = random_basis(rng, d, k)
            p = Preprocessing(dim=d, kind=RecordKind.MATRIX, centering="none")
            centre = rng.standard_normal((d, k)) if centred else None
            radius = 1.0 if centre is None else frobenius_norm(centre) / rng.choice([19.999, 3, 1, 0.1])
            kernel = MatrixProducts(p, basis, 1 / lattice_unit(radius, MATRIX_RADIUS), centre)
            for _ in range(60):
                way = rng.integers(0, 4)
                a = rng.standard_normal((d, d))
                if way == 1:
                    a = np.exp(rng.uniform(-700, 700, (d, d)))
                if way == 2 and centre is not None:
                    # All entries round alike, near the radius.
                    a = (centre + radius * 0.51 / math.sqrt(d * k)) @ basis.T
                if way == 3:
                    a = np.full((d, d), 0.5 + 2.0**-20)
                scale = 1.0 if way == 2 else radius * 10.0 ** rng.uniform(-2, rng.choice([2, 40]))
                with np.errstate(over="ignore"):
                    a = np.nan_to_num(np.triu(a) + np.triu(a, 1).T) * scale
                    single = a.astype(np.float32)
                if rng.random() < 0.3 and np.isfinite(single).all():
                    a = single
                found, clipped = contribution(kernel, a, RecordKind.MATRIX)
                size = squared_total(found)
                assert size <= MATRIX_RADIUS**2
                if clipped:
                    assert size >= (MATRIX_RADIUS - math.sqrt(k * (d + 8)) - 1) ** 2


@pytest.mark.parametrize("name", [c for c in CENTRES if c not in ("none", "zero")])
def test_products_with_the_centre_are_within_the_stated_error(name: str) -> None:
    """|z C' - y M| <= |z| e even for the hardest records; |C'| is not understated."""
    rng = np.random.default_rng(1)
    for d in (1, 3, 16, 17, 100, 1000, 4096):
        for k in sorted({1, min(3, d), min(10, d)}):
            kernel, basis, _ = kernel_about(rng, name, d, k)
            about, lattice = kernel.of_centre, kernel.lattice_centre
            assert squared_total(lattice) <= about.squared <= squared_total(lattice) * (1 + 1e-6) + 1
            rows = [hard_record(rng, kernel, basis, 1)[0] for _ in range(20)]
            off = error_matrix(kernel)
            rows += [worst_direction(off), *rng.choice([-1.0, 1.0], (4, d)), *np.sign(off.T)[:3]]
            x = np.array([row / np.abs(row).max() for row in rows if np.abs(row).max() > 0])
            n = len(x)
            chunk = new_chunk(d, k, kernel.columns.shape[1], 1)
            read = kernel.records.read(ArrayBatch.of_vectors(x))
            done = fill_chunk(read, 0, n, NO_MAP, kernel.columns, about, 1.0, dgemm_address(), chunk)
            assert done == (n, n)
            z, y = chunk.z[:n], chunk.y[:n]
            # The integers are below 2**53: BLAS adds them exactly.
            away = np.linalg.norm(z @ lattice - y @ about.mix, axis=1)
            assert np.all(away <= np.linalg.norm(z, axis=1) * about.error)
            # A clipped record loses at most the stated amount.
            assert about.error <= 2.0**20 * 2e-3 * max(1.0, frobenius_norm(lattice * 1.0) * 2.0**-20 / 20)


def company(rng: Rng, d: int, kind: Any, longest: int) -> list[Any]:
    """Return records of one row, several or none; some exceed the limit for row products, or a chunk."""
    lengths = [1, 1, 0, 2, 64, 1, 65, 3, 0, 1, longest, 5, 1, 130, 1, 7]
    out: list[Any] = []
    for i, r in enumerate(lengths * 3):
        x = rng.standard_normal((r, d)) / math.sqrt(max(r, 1) * d) * 10.0 ** rng.uniform(-1, 1.5)
        out.append(None if r == 0 and i % 2 else x.astype(np.float32).astype(kind))
    return out


def equal(a: LatticeSum, b: LatticeSum) -> bool:
    return np.array_equal(a.total, b.total) and a.clipped == b.clipped and a.unit == b.unit


@pytest.mark.parametrize(("d", "k"), [(5, 1), (17, 12), (33, 13), (50, 24), (50, 25), (47, 40)])
def test_every_record_adds_what_it_adds_alone(d: int, k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Order, company, type and thread count do not matter; alone a record stays within the radius."""
    rng = np.random.default_rng(d)
    p = Preprocessing(dim=d, centering="none")
    basis = np.linalg.qr(rng.standard_normal((d, k)))[0]
    longest = 300
    assert longest > chunk_rows(d, 1)
    centre = basis @ np.diag(rng.uniform(0.1, 1, k)) + 0.01 * rng.standard_normal(basis.shape)
    records = company(rng, d, np.float64, longest)
    batch = ArrayBatch.of_records(records, d)
    single = ArrayBatch.of_records([None if x is None else x.astype(np.float32) for x in records], d)
    order = rng.permutation(len(records))
    shuffled = ArrayBatch.of_records([records[i] for i in order], d)
    monkeypatch.setattr(record_reader, "_LEAST_ENTRIES", 1)
    for radius, about in ((1.0, None), (1.0, centre), (frobenius_norm(centre) / 19, centre)):

        def total(y: ArrayBatch, radius: float = radius, about: Floats | None = about) -> LatticeSum:
            return block_sum(y, p, basis, radius, about)

        with limited_threads(1):
            whole = total(batch)
            alone = [total(ArrayBatch.of_records([x], d)) for x in records]
            assert np.array_equal(sum(s.total for s in alone), whole.total)
            assert sum(s.clipped for s in alone) == whole.clipped > 0
            assert all(squared_total(s.total) <= R2**2 for s in alone)
            assert equal(total(shuffled), whole)
            assert equal(total(single), whole)
        for n in (2, 3, 7):
            with limited_threads(n):
                assert equal(total(batch), whole)
        from_here = 0 * basis if about is None else about
        of_all = [block_residual_norms(y, p, basis, from_here) for y in (batch, shuffled, single)]
        sizes, of_shuffled, of_single = map(value_array, of_all)
        assert sizes[order].tobytes() == of_shuffled.tobytes()
        assert sizes.tobytes() == of_single.tobytes()


@pytest.mark.parametrize("kind", [np.float32, np.float64])
@pytest.mark.parametrize("record_kind", [RecordKind.FACTOR, RecordKind.MATRIX])
def test_rows_may_lie_anywhere_in_memory(kind: Any, record_kind: RecordKind) -> None:
    d = 19
    rng = np.random.default_rng(0)
    p = Preprocessing(dim=d, kind=record_kind, centering="none")
    rows = rng.standard_normal((20 * d, d)).astype(kind)
    starts = np.arange(0, 20 * d + 1, d)
    basis = np.linalg.qr(rng.standard_normal((d, 3)))[0]
    size = np.dtype(kind).itemsize
    unaligned = np.frombuffer(b"." + rows.tobytes(), dtype=kind, offset=1).reshape(rows.shape)
    assert not unaligned.flags.aligned
    swapped = rows.astype(np.dtype(kind).newbyteorder(">"))
    padded = np.pad(rows, ((0, 0), (0, 3)))
    strided = np.lib.stride_tricks.as_strided(padded, rows.shape, ((d + 3) * size, size))
    backwards = np.ascontiguousarray(rows[::-1])[::-1]
    for centre in (None, 0.3 * basis):
        whole = block_sum(ArrayBatch(rows, starts, record_kind), p, basis, 20.0, centre)
        for other in (unaligned, swapped, strided, np.asfortranarray(rows), backwards):
            found = block_sum(ArrayBatch(other, starts, record_kind), p, basis, 20.0, centre)
            assert equal(found, whole)


def test_sums_far_beyond_int64_on_the_way_are_exact() -> None:
    """2**22 records of 21 R about a centre of 20 R: their products pass 2**66, the difference 2**62."""
    p = Preprocessing(dim=1, centering="none")
    centre = np.array([[19.9999]])
    one, whole = (
        block_sum(ArrayBatch.of_vectors(rows), p, np.ones((1, 1)), 1.0, centre)
        for rows in (np.full((m, 1), math.sqrt(20.9998)) for m in (1, MAX_RECORDS))
    )
    assert int(one.total[0, 0]) == pytest.approx(R2, rel=1e-3)
    assert int(whole.total[0, 0]) == MAX_RECORDS * int(one.total[0, 0])
    assert 21 * 2**40 * MOST_RECORDS <= 2**53 < 21 * 2**40 * MAX_RECORDS


def test_a_long_record_beside_large_ones_makes_no_longer_sums_in_float64() -> None:
    """The chunk has room for 3000 rows; only 2**8 records of 2**44 units at a time are exact."""
    p = Preprocessing(dim=2, centering="none")
    basis = np.array([[0.8], [0.6]])
    centre = 19.9999 * basis
    large = [math.sqrt(20.3 + i * 1e-3) * basis.T for i in range(600)]
    records = [np.full((3000, 2), 1e-3), *large * 5]
    alone = [block_sum(ArrayBatch.of_records([x], 2), p, basis, 1.0, centre).total for x in records[:601]]
    assert sum(int(total[0, 0]) % 2 for total in alone) > 200
    with limited_threads(1):
        whole = block_sum(ArrayBatch.of_records(records, 2), p, basis, 1.0, centre)
    assert np.array_equal(whole.total, alone[0] + 5 * sum(alone[1:]))


def test_the_last_comparison_allows_for_all_that_may_be_off() -> None:
    """This is tested directly: scaling leaves room for the same errors, so no record reaches the limit."""
    bound = float(R2)

    def within(size: float, weight: float, error: float, poisoned: int = -1) -> bool:
        """Check a one-row record of norm 2**20 scaled so that its product has norm ``size``; centre 0."""
        values = [size * size, (size / 2.0**20) ** 2, 2.0**20, 0.0]
        if poisoned >= 0:
            values[poisoned] = math.nan
        return is_within(*values, weight, 1.0, Centre(np.zeros((1, 1)), 0.0, error))

    # Roundings may be 17 2**-52 of 2**80.
    assert within(bound - 2.0**10, 0.0, 0.0)
    assert not within(bound, 0.0, 0.0)
    assert not within(bound + 1, 0.0, 0.0)
    # 2**61 is left of 2**80, and an uncertain z C' takes 2 w |u| |z| e = 2**61 e.
    near = bound - 2.0**20
    assert within(near, WEIGHT, 0.9)
    assert not within(near, WEIGHT, 1.1)
    assert within(near, 0.0, 1.1)
    assert not any(within(near, WEIGHT, 0.9, place) for place in range(4))
    none = Centre(np.zeros((1, 1)), 0.0, 0.0)
    assert not is_within(0.0, (MOST_PRODUCT * 1.0001) ** 2, 0.0, 0.0, 0.0, 1.0, none)


def test_callers_at_once_have_each_their_own_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_reader, "_LEAST_ENTRIES", 1)
    rng = np.random.default_rng(3)
    tasks: list[Callable[[], LatticeSum]] = []
    for d in (5, 33, 64):
        p = Preprocessing(dim=d, centering="none")
        basis = np.linalg.qr(rng.standard_normal((d, 3)))[0]
        batch = ArrayBatch.of_records(company(rng, d, np.float64, 70), d)
        tasks += [partial(block_sum, batch, p, basis, 1.0, centre) for centre in (None, basis)]
    with limited_threads(1):
        wanted = [task() for task in tasks]
    wrong: list[int] = []

    def caller(first: int) -> None:
        turns = [i % len(tasks) for i in range(first, first + 30)]
        wrong.extend(i for i in turns if not equal(tasks[i](), wanted[i]))

    with limited_threads(4):
        callers = [threading.Thread(target=caller, args=(i,)) for i in range(6)]
        for c in callers:
            c.start()
        for c in callers:
            c.join()
    assert not wrong


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_fork_sums_as_its_parent_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_reader, "_LEAST_ENTRIES", 1)
    p = Preprocessing(dim=9, centering="none")
    batch = ArrayBatch.of_records(company(np.random.default_rng(4), 9, np.float64, 70), 9)
    with limited_threads(3):
        whole = block_sum(batch, p, np.eye(9)[:, :2], 1.0)
        child = os.fork()
        if child == 0:
            same = False
            try:
                same = equal(block_sum(batch, p, np.eye(9)[:, :2], 1.0), whole)
            finally:
                os._exit(0 if same else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
