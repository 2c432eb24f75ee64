"""Batches have an order, a public length, and null records in their places."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from streaming_pca.data import array_batch as array_module
from streaming_pca.data.array_batch import ArrayBatch, value_array
from streaming_pca.data.records import RecordKind, is_symmetric
from tests.data.refusals import refuses


def taken_apart(batch: ArrayBatch) -> list[list[list[float]]]:
    packed = batch.packed()
    return [packed.rows[a:b].tolist() for a, b in zip(packed.starts[:-1], packed.starts[1:], strict=True)]


def mixed() -> ArrayBatch:
    """Build records 0 to 9 of 0 to 3 rows; entries are the record's number."""
    records = [np.full((i % 4, 2), float(i)) if i % 4 else None for i in range(10)]
    return ArrayBatch.of_records(records, 2)


def test_a_null_record_keeps_its_place() -> None:
    batch = ArrayBatch.of_records([np.ones((1, 2)), None, np.full((2, 2), 3.0), None], 2)
    assert len(batch) == 4
    assert taken_apart(batch) == [[[1.0, 1.0]], [], [[3.0, 3.0], [3.0, 3.0]], []]


def test_records_that_do_not_count_are_null_and_the_others_are_as_they_were() -> None:
    whole = mixed()
    for counted in (np.arange(10) % 3 == 0, np.zeros(10, np.bool_), np.ones(10, np.bool_)):
        kept = whole.keeping(counted)
        assert len(kept) == 10
        assert kept.kind is whole.kind
        expected = [record if c else [] for record, c in zip(taken_apart(whole), counted, strict=True)]
        assert taken_apart(kept) == expected
    none = ArrayBatch.of_records([], 2)
    assert len(none.keeping(np.zeros(0, np.bool_))) == 0


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_a_vector_that_is_not_finite_is_null_and_keeps_its_place(poison: float) -> None:
    x = np.arange(6.0).reshape(3, 2)
    x[1, 0] = poison
    assert taken_apart(ArrayBatch.of_vectors(x)) == [[[0.0, 1.0]], [], [[4.0, 5.0]]]


def test_a_factor_with_one_bad_row_is_null_as_a_whole() -> None:
    f = np.ones((2, 3, 4))
    f[0, 2, 1] = np.nan
    assert [len(r) for r in taken_apart(ArrayBatch.of_vectors(f))] == [0, 3]


@pytest.mark.parametrize(
    ("given", "kept"),
    [(np.float32, np.float32), *((kind, np.float64) for kind in (np.float64, np.float16, np.int32, ">f8"))],
)
def test_vectors_are_float32_or_float64(given: Any, kept: Any) -> None:
    batch = ArrayBatch.of_vectors(np.ones((2, 3), dtype=given))
    assert batch.rows.dtype == kept
    assert batch.rows.dtype.isnative


@pytest.mark.parametrize("shape", [(0, 3), (0, 2, 3), (2, 0, 3)])
def test_batches_without_rows_have_a_length_and_a_dimension(shape: tuple[int, ...]) -> None:
    batch = ArrayBatch.of_vectors(np.zeros(shape))
    assert (len(batch), batch.dim) == (shape[0], 3)
    assert (len(ArrayBatch.of_records([], 3)), ArrayBatch.of_records([None], 3).dim) == (0, 3)


@pytest.mark.parametrize("shape", [(3,), (1, 1, 1, 1), ()])
def test_other_shapes_are_refused(shape: tuple[int, ...]) -> None:
    refuses("axes", ArrayBatch.of_vectors, np.zeros(shape))


def test_parts_are_disjoint_cover_the_batch_and_share_its_memory() -> None:
    batch = mixed()
    parts = batch.split([3, 0, 4, 3])
    assert [len(p) for p in parts] == [3, 0, 4, 3]
    assert [r for p in parts for r in taken_apart(p)] == taken_apart(batch)
    assert all(np.shares_memory(p.rows, batch.rows) for p in parts if len(p.rows))


@pytest.mark.parametrize("counts", [[9], [11], [-1, 11], []])
def test_parts_that_do_not_add_up_are_refused(counts: list[int]) -> None:
    refuses("add up", mixed().split, counts)


def test_parts_keep_the_kind() -> None:
    batch = ArrayBatch.of_records([np.eye(2)] * 3, 2, RecordKind.MATRIX)
    parts = [*batch.split([1, 2]), *batch.blocks(2)]
    assert {p.kind for p in parts} == {RecordKind.MATRIX}


@pytest.mark.parametrize("limit", [2, 4, 6, 100])
@pytest.mark.parametrize("n_entries", [1, 7, 16, 10**6])
def test_blocks_cover_the_batch_and_all_but_the_last_are_even(
    limit: int, n_entries: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pair is never split."""
    monkeypatch.setattr(array_module, "_BLOCK_ENTRIES", n_entries)
    monkeypatch.setattr(array_module, "_LEAST_ROWS", 0)
    batch = ArrayBatch.of_records([*([None] * 5), *(np.ones((i % 5, 2)) * i for i in range(1, 47))], 2)
    blocks = list(batch.blocks(limit))
    assert [r for b in blocks for r in taken_apart(b)] == taken_apart(batch)
    assert all(len(b) % 2 == 0 for b in blocks[:-1])
    assert all(0 < len(b) <= limit for b in blocks)
    assert all(len(b) <= 2 or b.rows.size <= n_entries for b in blocks)


class _RowSum:
    shape: tuple[int, ...] = (2,)
    limit = 4
    whole = False

    def __call__(self, block: ArrayBatch) -> NDArray[np.int64]:
        return np.asarray(block.rows.sum(axis=0), dtype=np.int64)


def test_a_batch_is_summed_and_mapped_over_its_blocks() -> None:
    batch = mixed()
    assert batch.sum(_RowSum()).tolist() == batch.rows.sum(axis=0).tolist()
    counts = value_array(batch.map(lambda b: np.diff(b.starts).astype(np.float64)))
    assert counts.tolist() == np.diff(batch.starts).tolist()
    assert ArrayBatch.of_records([], 2).sum(_RowSum()).tolist() == [0, 0]
    assert len(ArrayBatch.of_records([], 2).map(lambda b: np.ones(len(b)))) == 0


def test_symmetry_is_judged_relative_to_the_largest_entry() -> None:
    a = np.array([[1e6, 1.0], [1.5, 0.0]])
    assert is_symmetric(a)
    assert not is_symmetric(a / [[1e6, 1.0], [1.0, 1.0]])
    assert is_symmetric(np.zeros((3, 3)))


@pytest.mark.parametrize("entry", [np.nan, np.inf, 1.7e308])
def test_symmetry_of_extreme_matrices_is_judged_without_a_warning(entry: float) -> None:
    """pytest turns every warning into an error."""
    assert not is_symmetric(np.array([[0.0, entry], [-entry, 0.0]]))


def test_picked_records_share_the_rows_that_they_were_picked_from() -> None:
    batch = mixed()
    chosen = np.arange(10) % 3 != 0
    for picked in (batch.only(chosen), batch.keeping(chosen)):
        assert picked.rows is batch.rows
        assert picked.packed().begins is None
        assert len(picked.packed().rows) == picked.starts[-1]
    assert batch.packed() is batch
    assert batch.keeping(np.ones(10, dtype=bool)) is batch


def test_picking_from_picked_records_is_picking_from_lists() -> None:
    rng = np.random.default_rng(0)
    batch, wanted = mixed(), taken_apart(mixed())
    for _ in range(200):
        match rng.integers(4):
            case 0:
                chosen = rng.random(len(batch)) < 0.8
                batch, wanted = batch.only(chosen), [r for r, c in zip(wanted, chosen, strict=True) if c]
            case 1:
                chosen = rng.random(len(batch)) < 0.9
                batch = batch.keeping(chosen)
                wanted = [r if c else [] for r, c in zip(wanted, chosen, strict=True)]
            case 2:
                first = int(rng.integers(len(batch) // 3 + 1))
                batch, wanted = batch.split([first, len(batch) - first])[1], wanted[first:]
            case _:
                assert [r for b in batch.blocks(2) for r in taken_apart(b)] == wanted
        assert taken_apart(batch) == wanted
        assert all(b.begins is None for b in batch.blocks(4))
        if len(batch) < 4:
            batch, wanted = mixed(), taken_apart(mixed())
