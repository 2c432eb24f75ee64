"""Batches share memory that others use after them: none of them ever sees another's records."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from streaming_pca.records import Batch
from streaming_pca.service import row_store
from streaming_pca.service.assembly import Buffer
from streaming_pca.service.gathering import Gathering, _pieces
from streaming_pca.service.row_store import RowStore
from streaming_pca.wire import PayloadCodec

DIM = 3


@dataclass
class Message:
    offset: int
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    key: bytes | None = None
    leader_epoch: int = 0


def a_message(number: int, rows: int, double: bool = False) -> Message:
    """Rows that hold the message's number; none: nothing that can be read."""
    if rows == 0:
        return Message(number, b"?")
    values = np.full((rows, DIM), number, dtype="<f8" if double else "<f4")
    values[:, 1] = np.arange(rows)
    headers = (("content-type", b"application/octet-stream"), ("dtype", b"float64")) if double else ()
    return Message(number, values.tobytes(), headers)


def records_of(batch: Batch) -> list[list[list[float]]]:
    places, lengths = batch.places(), np.diff(batch.starts)
    return [batch.rows[a : a + n].tolist() for a, n in zip(places, lengths, strict=True)]


def expected_of(message: tuple[int, int], unit: str) -> list[list[list[float]]]:
    number, rows = message
    of_rows = [[float(number), float(j), float(number)] for j in range(rows)]
    return [[row] for row in of_rows] if unit == "row" else [of_rows]


@given(st.data(), st.sampled_from(["message", "row"]), st.integers(1, 3))
def test_every_batch_keeps_its_records_until_it_is_given_back(
    data: st.DataObject, unit: str, partitions: int
) -> None:
    """Polls, takes and returns in any order, against lists."""
    gathering = Gathering(PayloadCodec(DIM, unit=unit, max_rows=4))
    gathering.buffers.update({p: Buffer(0) for p in range(partitions)})
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(partitions)]
    kept: list[tuple[Batch, list[list[list[float]]]]] = []
    number = 0
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            partition = data.draw(st.integers(0, partitions - 1))
            messages = []
            for rows in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12)):
                number += 1
                messages.append(a_message(number, rows, data.draw(st.integers(0, 9)) == 9))
                waiting[partition].append((number, rows))
            gathering.append(partition, messages)
            continue
        counts = [data.draw(st.integers(0, len(w))) for w in waiting]
        if not sum(counts):
            continue
        batch, users = gathering.take(counts, 1)
        assert users is None
        turns = [(i, p, w[i]) for p, (w, c) in enumerate(zip(waiting, counts, strict=True)) for i in range(c)]
        wanted = [r for _, _, message in sorted(turns) for r in expected_of(message, unit)]
        assert records_of(batch) == wanted
        for w, c in zip(waiting, counts, strict=True):
            del w[:c]
        if data.draw(st.booleans()):
            gathering.give_back()
        else:
            kept.append((batch, wanted))
    for batch, wanted in kept:
        assert records_of(batch) == wanted
    assert [b.count for b in gathering.buffers.values()] == [len(w) for w in waiting]


def taken_after(gathering: Gathering, first: int, count: int) -> Batch:
    gathering.append(0, [a_message(first + i, 1) for i in range(count)])
    batch, _ = gathering.take([count], 1)
    return batch


def owner(batch: Batch) -> NDArray[np.floating]:
    base = batch.rows.base
    assert isinstance(base, np.ndarray)
    return base


def test_two_arrays_serve_all_batches() -> None:
    gathering = Gathering(PayloadCodec(DIM))
    gathering.buffers[0] = Buffer(0)
    found = set()
    for i in range(10):
        batch = taken_after(gathering, 100 * i, 100)
        found.add(owner(batch).__array_interface__["data"][0])
        gathering.give_back()
    assert len(found) == 2


def test_a_small_batch_is_copied_rather_than_the_rest() -> None:
    gathering = Gathering(PayloadCodec(DIM))
    gathering.buffers[0] = Buffer(0)
    gathering.append(0, [a_message(i, 1) for i in range(100)])
    store = gathering._store
    batch, _ = gathering.take([10], 1)
    assert gathering._store is store
    assert not np.shares_memory(batch.rows, store.rows)
    # Once half of a store was taken, the rest moves: it does not grow for ever.
    sizes = []
    for i in range(60):
        gathering.append(0, [a_message(100 + 10 * i + j, 1) for j in range(10)])
        batch, _ = gathering.take([10], 1)
        assert records_of(batch)[0][0][0] == 10 * (i + 1)
        gathering.give_back()
        sizes.append(gathering._store.size)
    assert max(sizes) <= 200


def test_rows_of_double_precision_are_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(row_store, "_PIECE_BYTES", 50)
    store = RowStore(2)
    third = float(np.float32(1 / 3))
    single = np.full((2, 2), 1 / 3, dtype=np.float32) * np.arange(1, 3, dtype=np.float32)[:, None]
    for _ in range(20):
        store.append(single)
    assert store.append(np.full((1, 2), 1 / 3)) == 40
    assert store.append(single) == 41
    assert store.rows.dtype == np.float64
    assert store.rows[:, 1].tolist() == [third, 2 * third] * 20 + [1 / 3, third, 2 * third]
    # What comes after is not widened by what was here.
    store.clear()
    store.append(single)
    assert store.rows.dtype == np.float32
    assert store.rows.tolist() == single.tolist()


def test_a_store_takes_little_more_than_its_rows() -> None:
    """No record decides how much: those that come first may be much longer than the rest."""
    store = RowStore(1000)
    first = store.append(np.ones((64, 1000), dtype=np.float32))
    for i in range(1, 300):
        store.append(np.full((100, 1000), i, dtype=np.float32))
        held = store.size * 4000
        assert store._memory.nbytes <= held + max(held / 64, 2**20)
    assert first == 0
    assert store.rows[::100, 0].tolist()[1:] == [float(i) for i in range(1, 300)]
    # It grows where it is, or is moved by the system, without a copy; then it has what it needs.
    at = store._memory.__array_interface__["data"][0]
    for _ in range(3):
        store.clear()
        for i in range(300):
            store.append(np.full((99, 1000), i, dtype=np.float32))
        assert store._memory.__array_interface__["data"][0] == at


def test_a_store_that_somebody_looks_at_grows_elsewhere() -> None:
    store = RowStore(4)
    store.append(np.ones((10, 4), dtype=np.float32))
    seen = store.rows
    store.append(np.full((10**6, 4), 2, dtype=np.float32))
    assert seen.tolist() == np.ones((10, 4)).tolist()
    assert store.rows[9:11].tolist() == [[1.0] * 4, [2.0] * 4]


def test_what_was_not_read_counts_as_much_as_a_row() -> None:
    gathering = Gathering(PayloadCodec(DIM))
    gathering.buffers[0] = Buffer(0)
    gathering.append(0, [a_message(i, 0) for i in range(7)])
    assert gathering.bytes == 7 * DIM * 4


@given(st.lists(st.integers(0, 3 * 2**20), max_size=8))
def test_pieces_are_all_messages_in_order(sizes: list[int]) -> None:
    messages = [Message(i, bytes(n)) for i, n in enumerate(sizes)]
    pieces = list(_pieces(messages))
    assert [m for piece in pieces for m in piece] == messages
    # No piece goes on once it is large enough.
    for piece in pieces:
        assert sum(len(m.value or b"") for m in piece[:-1]) < 2**20


def test_where_the_leader_changed_is_known_of_every_position() -> None:
    gathering = Gathering(PayloadCodec(DIM))
    gathering.buffers[0] = Buffer(0)
    messages = [a_message(i, 1) for i in range(9)]
    for message in messages:
        message.leader_epoch = message.offset // 3
    gathering.append(0, messages)
    found = []
    for _ in range(9):
        gathering.take([1], 1)
        found.append(gathering.buffers[0].epoch)
    assert found == [0, 0, 0, 1, 1, 1, 2, 2, 2]
