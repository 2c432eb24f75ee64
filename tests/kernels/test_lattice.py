"""Sums are the same integers, however the records are split, ordered, stored or added."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from streaming_pca.data import array_batch as array_module
from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.batch import BlockSum
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators import record_reader
from streaming_pca.estimators.common import clipped_sums
from streaming_pca.estimators.common import residual_sums as product_kernels
from streaming_pca.estimators.common.clipped_sums import block_residual_norms, block_sum, covariance_sum
from streaming_pca.estimators.power.noisy_power import BoundedRecords
from streaming_pca.kernels.block import chunks
from streaming_pca.kernels.lattice import (
    BLOCK,
    MATRIX_RADIUS,
    MAX_RECORDS,
    RADIUS,
    LatticeSum,
    lattice_unit,
    quantise_basis,
)
from tests.threads import limited_threads

D, K = 6, 2
BASIS = np.linalg.qr(np.random.default_rng(0).standard_normal((D, K)))[0]
CASES: dict[str, dict[str, Any]] = {
    "none": {"centering": "none"},
    "pairs": {"centering": "pairs"},
    "vector": {"centering": tuple(np.linspace(-1, 1, D)), "bounds": (-3.0, 3.0), "scale": 0.7},
    "matrix": {"kind": RecordKind.MATRIX, "centering": "none"},
    # Kernels cannot transform these records themselves.
    "bounded": {"centering": "none", "clip_l2": 2.0, "clip_l1": 3.0},
    "bounded pairs": {"centering": "pairs", "clip_l2": 2.0},
    "bounded matrix": {"kind": RecordKind.MATRIX, "centering": "none", "clip_l2": 2.0},
}


def sums(batch: ArrayBatch, p: Preprocessing) -> list[LatticeSum]:
    """Return all sums; the last two are about a centre, one for each way to handle it."""
    centre = np.linspace(-4, 5, BASIS.size).reshape(BASIS.shape)
    return [
        covariance_sum(batch, p, 5.0),
        block_sum(batch, p, BASIS, 3.0),
        block_sum(batch, p, BASIS, 3.0, centre),
        block_sum(batch, p, BASIS, 3.0, 100 * centre),
    ]


def same(a: list[LatticeSum], b: list[LatticeSum]) -> bool:
    return all(
        np.array_equal(x.total, y.total)
        and (x.unit, x.sensitivity, x.clipped) == (y.unit, y.sensitivity, y.clipped)
        for x, y in zip(a, b, strict=True)
    )


def stream(p: Preprocessing, m: int, dtype: Any = np.float64) -> list[Any]:
    """Return records of wildly differing sizes, some null, some of several rows."""
    rng = np.random.default_rng(1)
    out: list[Any] = []
    for _ in range(m):
        size = 10.0 ** rng.uniform(-4, 4)
        if rng.random() < 0.1:
            out.append(None)
        elif p.kind is RecordKind.MATRIX:
            a = rng.standard_normal((D, D)).astype(np.float32) * np.float32(size)
            out.append((a + a.T).astype(dtype))
        else:
            r = 1 if p.centering == "pairs" else int(rng.integers(1, 4))
            out.append((rng.standard_normal((r, D)).astype(np.float32) * np.float32(size)).astype(dtype))
    return out


@pytest.fixture(params=CASES)
def p(request: pytest.FixtureRequest) -> Preprocessing:
    case = CASES[request.param]
    return (BoundedRecords if "clip_l2" in case else Preprocessing)(dim=D, **case)


def test_any_order_gives_the_same_sum(p: Preprocessing) -> None:
    x = stream(p, 700)
    whole = sums(ArrayBatch.of_records(x, D, p.kind), p)
    together = [x[i : i + p.units] for i in range(0, len(x), p.units)]
    for seed in range(3):
        order = np.random.default_rng(seed).permutation(len(together))
        shuffled = [r for i in order for r in together[i]]
        assert same(sums(ArrayBatch.of_records(shuffled, D, p.kind), p), whole)


def test_any_size_of_block_gives_the_same_sum(p: Preprocessing, monkeypatch: pytest.MonkeyPatch) -> None:
    batch = ArrayBatch.of_records(stream(p, 700), D, p.kind)
    whole = sums(batch, p)
    for limit in (2, 6, 64, 1000):
        monkeypatch.setattr(clipped_sums, "BlockSum", partial(BlockSum, limit=limit))
        monkeypatch.setattr(clipped_sums._FactorCovariance, "limit", limit)
        monkeypatch.setattr(clipped_sums, "ROWS", max(limit // 3, 1))
        for kernel in (
            product_kernels.FactorProducts,
            product_kernels.MatrixProducts,
            clipped_sums._TightBlock,
        ):
            monkeypatch.setattr(kernel, "limit", limit)
        assert same(sums(batch, p), whole)
    for n_entries in (1, 40, 1000):
        monkeypatch.setattr(array_module, "_BLOCK_ENTRIES", n_entries)
        monkeypatch.setattr(array_module, "_LEAST_ROWS", 0)
        assert same(sums(batch, p), whole)


def sizes(batch: ArrayBatch, p: Preprocessing) -> list[bytes]:
    centre = np.linspace(-4, 5, BASIS.size).reshape(BASIS.shape)
    return [
        value_array(block_residual_norms(batch, p, BASIS, c)).tobytes()
        for c in (centre, 0 * centre, 1e4 * centre)
    ]


def test_any_chunk_gives_the_same_sums_and_sizes(p: Preprocessing, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither the place in a chunk nor the neighbouring records matter."""
    batch = ArrayBatch.of_records(stream(p, 700), D, p.kind)
    whole, lengths = sums(batch, p), sizes(batch, p)
    for least, most in ((1, 1), (8, 8), (8, 24), (64, 10_000)):
        monkeypatch.setattr(chunks, "_CHUNK_ENTRIES", most * D)
        monkeypatch.setattr(chunks, "_LEAST_ROWS", least)
        monkeypatch.setattr(chunks, "MOST_RECORDS", most)
        assert chunks.chunk_rows(D, 1) == most
        assert same(sums(batch, p), whole)
        assert sizes(batch, p) == lengths


def test_any_number_of_threads_gives_the_same_sum(p: Preprocessing, monkeypatch: pytest.MonkeyPatch) -> None:
    """This covers BLAS threads, and kernels made to use threads for few records."""
    batch = ArrayBatch.of_records(stream(p, 3000), D, p.kind)
    with threadpool_limits(1), limited_threads(1):
        whole, lengths = sums(batch, p), sizes(batch, p)
    for n in (2, 3, 8):
        with threadpool_limits(n):
            assert same(sums(batch, p), whole)
    parts: list[int] = []
    asked: list[int] = []

    def counted(*args: Any, shared_out: Any = record_reader.shared_out, **kwargs: Any) -> Any:
        found = shared_out(*args, **kwargs)
        parts.append(len(found))
        return found

    def all_at_once(work: Callable[[], Any], most: int) -> list[Any]:
        """Work like ``together``, but start every thread, at the same time."""
        asked.append(most)
        meeting, found = threading.Barrier(most), []

        def one() -> None:
            meeting.wait(120)
            found.append(work())

        others = [threading.Thread(target=one) for _ in range(most)]
        for other in others:
            other.start()
        for other in others:
            other.join()
        assert len(found) == most
        return found

    monkeypatch.setattr(record_reader, "_LEAST_ENTRIES", 1)
    monkeypatch.setattr(product_kernels, "_SHARE", 1)
    monkeypatch.setattr(chunks, "MOST_RECORDS", 8)
    monkeypatch.setattr(record_reader, "shared_out", counted)
    monkeypatch.setattr(product_kernels, "together", all_at_once)
    for n in (1, 2, 3, 7):
        parts.clear()
        asked.clear()
        with limited_threads(n):
            assert same(sums(batch, p), whole)
            assert sizes(batch, p) == lengths
        assert set(parts) == {n}
        assert set(asked) <= {n}
        assert asked or p.kind is RecordKind.MATRIX


@pytest.mark.parametrize("p", ["none", "pairs", "vector"], indirect=True)
def test_a_kernel_sums_what_no_other_has_taken(p: Preprocessing) -> None:
    kernel = product_kernels.FactorProducts(p, BASIS, 1.0)
    batch = ArrayBatch.of_records(stream(p, 96), D, p.kind)
    whole = kernel(batch)[:-1]
    records = kernel.records.read(batch)
    for first in (0, 8, 64, 96, 1000):
        counter = np.array([first], dtype=np.int64)
        total, _, _ = kernel._part(records, counter, 8)
        before = kernel(batch.split([min(first, 96), 96 - min(first, 96)])[0])[:-1]
        assert np.array_equal(total.ravel() + before, whole)
        assert counter[0] >= 96


def test_float32_and_float64_of_the_same_values_give_the_same_sum(p: Preprocessing) -> None:
    single, double = (
        ArrayBatch.of_records(stream(p, 500, dtype), D, p.kind) for dtype in (np.float32, np.float64)
    )
    assert (single.rows.dtype, double.rows.dtype) == (np.float32, np.float64)
    assert same(sums(single, p), sums(double, p))


def test_rows_that_cannot_be_written_or_are_strided_give_the_same_sum(p: Preprocessing) -> None:
    """Payloads are read-only buffers."""
    batch = ArrayBatch.of_records(stream(p, 100), D, p.kind)
    whole = sums(batch, p)
    frozen = np.frombuffer(batch.rows.tobytes(), dtype=np.float64).reshape(-1, D)
    strided = np.repeat(batch.rows, 2, axis=1)[:, ::2]
    for rows in (frozen, strided, np.asfortranarray(batch.rows)):
        assert same(sums(ArrayBatch(rows, batch.starts, p.kind), p), whole)


def test_summing_does_not_touch_the_records(p: Preprocessing) -> None:
    batch = ArrayBatch.of_records(stream(p, 100), D, p.kind)
    before = batch.rows.copy()
    sums(batch, p)
    assert np.array_equal(batch.rows, before)


def test_null_records_change_nothing_where_there_is_no_centre(p: Preprocessing) -> None:
    x = stream(p, 300)
    more: list[Any] = []
    for i in range(0, len(x), p.units):
        more += [None] * (2 * (i % 3)) + x[i : i + p.units]
    padded, plain = (sums(ArrayBatch.of_records(y, D, p.kind), p) for y in (more, x))
    assert same(padded[:2], plain[:2])


@pytest.mark.parametrize("d", [1, 3, 7])
def test_a_full_block_at_the_radius_in_one_direction_is_exact(d: int) -> None:
    p = Preprocessing(dim=d, centering="none")
    batch = ArrayBatch.of_vectors(np.full((BLOCK, d), 1e6))
    s = covariance_sum(batch, p, 1.0)
    one = int(covariance_sum(ArrayBatch.of_vectors(np.full((1, d), 1e6)), p, 1.0).total[0, 0])
    assert s.total.tolist() == [[BLOCK * one] * d] * d
    assert d * one <= RADIUS**2
    if d == 1:
        assert int(s.total[0, 0]) == 2**53


@pytest.mark.parametrize("which", [0, 1])
def test_more_than_a_block_near_the_radius_is_exact(which: int) -> None:
    """These are odd products whose sum passes 2**53: one float64 could not hold it."""
    p = Preprocessing(dim=2, centering="none")

    def total(angle: float, m: int) -> int:
        batch = ArrayBatch.of_vectors(np.repeat([[np.cos(angle), np.sin(angle)]], m, axis=0))
        sums_ = covariance_sum(batch, p, 1.0), block_sum(batch, p, np.eye(2)[:, :1], 1.0)
        return int(sums_[which].total[0, 0])

    angle = next(a for a in np.linspace(0.01, 0.3, 50) if total(a, 1) % 2)
    m = 16 * BLOCK + 3
    assert total(angle, m) == m * total(angle, 1) > 2**56


def test_the_largest_sum_leaves_room_for_noise() -> None:
    p = Preprocessing(dim=1, centering="none")
    batch = ArrayBatch.of_vectors(np.full((MAX_RECORDS, 1), 3.0, dtype=np.float32))
    assert covariance_sum(batch, p, 1.0).total.tolist() == [[MAX_RECORDS * RADIUS**2]] == [[2**62]]
    block = int(block_sum(batch, p, np.ones((1, 1)), 1.0).total[0, 0])
    assert 0 <= 2**62 - block <= 2**62 // 2**18
    with pytest.raises(ValueError, match="max_batch"):
        covariance_sum(ArrayBatch.of_vectors(np.ones((MAX_RECORDS + 1, 1))), p, 1.0)


def test_a_full_block_of_matrices_is_exact() -> None:
    p = Preprocessing(dim=2, kind=RecordKind.MATRIX, centering="none")
    batch = ArrayBatch.of_records([np.diag([1e300, 0.0])] * BLOCK, 2, RecordKind.MATRIX)
    assert covariance_sum(batch, p, 1.0).total.tolist() == [[BLOCK * MATRIX_RADIUS, 0], [0, 0]]
    # Room for the roundings of eight padded rows of two columns: two units.
    one = int(block_sum(batch.part(0, 1), p, np.eye(2), 1.0).total[0, 0])
    assert MATRIX_RADIUS - 4 <= one <= MATRIX_RADIUS
    assert block_sum(batch, p, np.eye(2), 1.0).total.tolist() == [[BLOCK * one, 0], [0, 0]]


def test_a_block_of_equal_records_is_a_multiple_of_one(p: Preprocessing) -> None:
    x = next(r for r in stream(p, 50) if r is not None)
    group = [x, 2 * x] if p.centering == "pairs" else [x]
    single = sums(ArrayBatch.of_records(group, D, p.kind), p)
    whole = sums(ArrayBatch.of_records(group * 5000, D, p.kind), p)
    for a, b in zip(single, whole, strict=True):
        assert (5000 * a.total == b.total).all()


@pytest.mark.parametrize("radius", [0.0, -1.0, float("nan"), float("inf"), 1e-260, 1e260])
def test_a_radius_that_is_no_positive_number_is_refused(radius: float) -> None:
    with pytest.raises(ValueError, match="clip radius"):
        lattice_unit(radius, RADIUS)


@pytest.mark.parametrize("entry", [2.0, float("nan"), float("inf"), 0.9])
def test_a_basis_that_is_not_orthonormal_is_refused(entry: float) -> None:
    basis = np.eye(3)[:, :2]
    basis[0, :] = entry
    with pytest.raises(ValueError, match="orthonormal"):
        quantise_basis(basis)
