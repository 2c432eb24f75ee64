"""Batches share memory that later batches reuse, but no batch ever sees another's records."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.records import RecordKind
from streaming_pca.service.input import buffer as buffers
from streaming_pca.service.input.buffer import Chunk, PartitionBuffer, RecordBuffer, RowStore

DIM = 3


@dataclass
class Message:
    offset: int
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    key: bytes | None = None
    leader_epoch: int = 0


def a_message(number: int, rows: int, double: bool = False) -> Message:
    """Return a message of rows that contain its number; with 0 rows, an unreadable message."""
    if rows == 0:
        return Message(number, b"?")
    values = np.full((rows, DIM), number, dtype="<f8" if double else "<f4")
    values[:, 1] = np.arange(rows)
    headers = (("content-type", b"application/octet-stream"), ("dtype", b"float64")) if double else ()
    return Message(number, values.tobytes(), headers)


def records_of(batch: ArrayBatch) -> list[list[list[float]]]:
    places, lengths = batch.places(), np.diff(batch.starts)
    return [batch.rows[a : a + n].tolist() for a, n in zip(places, lengths, strict=True)]


def expected_of(message: tuple[int, int], unit: str) -> list[list[list[float]]]:
    number, rows = message
    of_rows = [[float(number), float(j), float(number)] for j in range(rows)]
    return [[row] for row in of_rows] if unit == "row" else [of_rows]


def a_buffer(codec: PayloadCodec | None = None, partitions: int = 1) -> RecordBuffer:
    buffer = RecordBuffer(codec or PayloadCodec(DIM))
    buffer.buffers.update({p: PartitionBuffer(0) for p in range(partitions)})
    return buffer


@given(st.data(), st.sampled_from(["message", "row"]), st.integers(1, 3))
def test_every_batch_keeps_its_records_until_it_is_given_back(
    data: st.DataObject, unit: str, partitions: int
) -> None:
    """Polls, takes and returns happen in any order, and lists predict the results."""
    buffer = a_buffer(PayloadCodec(DIM, unit=unit, max_rows=4), partitions)
    waiting: list[list[tuple[int, int]]] = [[] for _ in range(partitions)]
    kept: list[tuple[ArrayBatch, list[list[list[float]]]]] = []
    number = 0
    for _ in range(data.draw(st.integers(1, 12))):
        if data.draw(st.booleans()):
            partition = data.draw(st.integers(0, partitions - 1))
            messages = []
            for rows in data.draw(st.lists(st.integers(0, 4), min_size=1, max_size=12)):
                number += 1
                messages.append(a_message(number, rows, data.draw(st.integers(0, 9)) == 9))
                waiting[partition].append((number, rows))
            buffer.append(partition, messages)
            continue
        counts = [data.draw(st.integers(0, len(w))) for w in waiting]
        if not sum(counts):
            continue
        batch, users = buffer.take(counts, 1)
        assert users is None
        turns = [(i, p, w[i]) for p, (w, c) in enumerate(zip(waiting, counts, strict=True)) for i in range(c)]
        wanted = [r for _, _, message in sorted(turns) for r in expected_of(message, unit)]
        assert records_of(batch) == wanted
        for w, c in zip(waiting, counts, strict=True):
            del w[:c]
        if data.draw(st.booleans()):
            buffer.release_memory()
        else:
            kept.append((batch, wanted))
    for batch, wanted in kept:
        assert records_of(batch) == wanted
    assert [b.count for b in buffer.buffers.values()] == [len(w) for w in waiting]


def test_two_arrays_serve_all_batches() -> None:
    buffer, found = a_buffer(), set()
    for i in range(10):
        buffer.append(0, [a_message(100 * i + j, 1) for j in range(100)])
        base = buffer.take([100], 1)[0].rows.base
        assert isinstance(base, np.ndarray)
        found.add(base.__array_interface__["data"][0])
        buffer.release_memory()
    assert len(found) == 2


def test_a_small_batch_is_copied_rather_than_the_rest() -> None:
    buffer = a_buffer()
    buffer.append(0, [a_message(i, 1) for i in range(100)])
    store = buffer._store
    batch, _ = buffer.take([10], 1)
    assert buffer._store is store
    assert not np.shares_memory(batch.rows, store.rows)
    # Once half of a store has been taken, the rest moves, so it does not grow for ever.
    sizes = []
    for i in range(60):
        buffer.append(0, [a_message(100 + 10 * i + j, 1) for j in range(10)])
        batch, _ = buffer.take([10], 1)
        assert records_of(batch)[0][0][0] == 10 * (i + 1)
        buffer.release_memory()
        sizes.append(buffer._store.size)
    assert max(sizes) <= 200


def test_rows_of_double_precision_are_kept_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buffers, "PIECE_BYTES", 50)
    store = RowStore(2)
    third = float(np.float32(1 / 3))
    single = np.full((2, 2), 1 / 3, dtype=np.float32) * np.arange(1, 3, dtype=np.float32)[:, None]
    for _ in range(20):
        store.append(single)
    assert store.append(np.full((1, 2), 1 / 3)) == 40
    assert store.append(single) == 41
    assert store.rows.dtype == np.float64
    assert store.rows[:, 1].tolist() == [third, 2 * third] * 20 + [1 / 3, third, 2 * third]
    # Earlier rows do not widen later ones.
    store.clear()
    store.append(single)
    assert store.rows.dtype == np.float32
    assert store.rows.tolist() == single.tolist()


def test_a_store_takes_little_more_than_its_rows() -> None:
    """No record decides how much: the first records may be much longer than the rest."""
    store = RowStore(1000)
    first = store.append(np.ones((64, 1000), dtype=np.float32))
    for i in range(1, 300):
        store.append(np.full((100, 1000), i, dtype=np.float32))
        held = store.size * 4000
        assert store._memory.nbytes <= max(held + max(held / 64, 2**20), buffers._MAPPED_BYTES)
    assert first == 0
    assert store.rows[::100, 0].tolist()[1:] == [float(i) for i in range(1, 300)]
    # It grows in place, or the system moves it, without a copy; then it has enough memory.
    at = store._memory.__array_interface__["data"][0]
    for _ in range(3):
        store.clear()
        for i in range(300):
            store.append(np.full((99, 1000), i, dtype=np.float32))
        assert store._memory.__array_interface__["data"][0] == at


def test_stores_of_few_rows_are_addresses_and_no_memory() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    before = resident()
    stores = [RowStore(4) for _ in range(20)]
    for store in stores:
        store.append(np.ones((10, 4), dtype=np.float32))
    # A large page each at most.
    assert resident() - before < 20 * 2**21 + 2**24 < 20 * buffers._MAPPED_BYTES / 8


def test_a_store_that_somebody_looks_at_grows_elsewhere() -> None:
    store = RowStore(4)
    store.append(np.ones((10, 4), dtype=np.float32))
    seen = store.rows
    store.append(np.full((4 * 10**6, 4), 2, dtype=np.float32))
    assert seen.tolist() == np.ones((10, 4)).tolist()
    assert store.rows[9:11].tolist() == [[1.0] * 4, [2.0] * 4]


def test_what_was_not_read_counts_as_much_as_a_row() -> None:
    buffer = a_buffer()
    buffer.append(0, [a_message(i, 0) for i in range(7)])
    assert buffer.bytes == 7 * DIM * 4


@given(st.lists(st.integers(0, 3 * 2**20), max_size=8))
def test_pieces_are_all_messages_in_order(sizes: list[int]) -> None:
    messages = [Message(i, bytes(n)) for i, n in enumerate(sizes)]
    pieces = list(buffers._pieces(messages))
    assert [m for piece in pieces for m in piece] == messages
    # No piece continues once it is large enough.
    for piece in pieces:
        assert sum(len(m.value or b"") for m in piece[:-1]) < 2**20


def test_where_the_leader_changed_is_known_of_every_position() -> None:
    buffer = a_buffer()
    messages = [a_message(i, 1) for i in range(9)]
    for message in messages:
        message.leader_epoch = message.offset // 3
    buffer.append(0, messages)
    found = []
    for _ in range(9):
        buffer.take([1], 1)
        found.append(buffer.buffers[0].epoch)
    assert found == [0, 0, 0, 1, 1, 1, 2, 2, 2]


# -- the order of a batch --------------------------------------------------------------


def a_chunk(first_offset: int, lengths: list[int], place: int) -> Chunk:
    """Return a chunk of messages whose rows begin at a place, one after another."""
    of = np.array(lengths, dtype=np.int64)
    return Chunk(np.arange(first_offset, first_offset + len(lengths)), place + np.cumsum(of) - of, of)


ROWS = np.arange(300, dtype=np.float64)[:, None]
"""Rows that each contain their place."""


def batch_from(parts: list[list[Chunk]], granularity: int = 1, by_row: bool = False) -> ArrayBatch:
    return buffers.batch_of(ROWS, buffers.interleave(parts, granularity), RecordKind.FACTOR, by_row)


@pytest.mark.parametrize(
    ("parts", "how", "rows", "lengths"),
    [
        pytest.param(
            [[a_chunk(0, [1, 1, 1], 0)], [a_chunk(0, [1, 0], 100)], [a_chunk(5, [2], 200)]],
            {},
            [0, 100, 200, 201, 1, 2],
            [1, 1, 2, 1, 0, 1],
            id="records in turn and in offset order",
        ),
        pytest.param(
            [[a_chunk(0, [2, 0, 1], 0)], [a_chunk(0, [3], 100)]],
            {"by_row": True},
            [0, 1, 100, 101, 102, 2],
            [1] * 6,
            id="rows in the order of their messages",
        ),
        pytest.param(
            [[a_chunk(0, [1] * 4, 0)], [a_chunk(0, [1, 1], 100)]],
            {"granularity": 2},
            [0, 1, 100, 101, 2, 3],
            [1] * 6,
            id="pairs within one partition",
        ),
        pytest.param(
            [[a_chunk(0, [0, 0], 5)], [a_chunk(0, [0], 9)]], {}, [], [0] * 3, id="null records alone"
        ),
    ],
)
def test_records_are_dealt_in_turn(parts: Any, how: Any, rows: list[int], lengths: list[int]) -> None:
    found = batch_from(parts, **how)
    assert found.packed().rows[:, 0].tolist() == rows
    assert np.diff(found.starts).tolist() == lengths


def test_a_row_of_nans_is_a_null_record_in_its_place() -> None:
    rows = ROWS.copy()
    rows[[1, 2]] = np.nan
    found = buffers.batch_of(rows, a_chunk(0, [2, 3], 0), RecordKind.FACTOR, True)
    assert np.diff(found.starts).tolist() == [1, 0, 0, 1, 1]
    assert found.packed().rows[:, 0].tolist() == [0, 3, 4]


def test_rows_that_follow_one_another_are_not_copied() -> None:
    found = batch_from([[a_chunk(0, [1, 0, 2], 7), a_chunk(3, [0, 1], 10)]])
    assert found.begins is None
    assert np.shares_memory(found.rows, ROWS)
    assert found.rows[:, 0].tolist() == [7, 8, 9, 10]
    assert np.diff(found.starts).tolist() == [1, 0, 2, 0, 1]


def of_users(chunk: Chunk, first: int) -> Chunk:
    """Return the chunk with users ``first`` and following for its records."""
    ids = np.arange(first, first + len(chunk.offsets), dtype=np.uint64)
    return replace(chunk, users=np.stack([ids, ids + np.uint64(1000)], axis=1))


@given(
    st.lists(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=4), max_size=3), min_size=1),
    st.sampled_from([1, 2]),
    st.data(),
)
def test_users_stay_beside_their_records(
    partitions: list[list[list[int]]], granularity: int, data: st.DataObject
) -> None:
    """A record's rows contain its number, and so does its user, wherever buffers were cut."""
    parts, number = [], 0
    owners_of_rows: list[int] = []
    for chunks in partitions:
        buffer = PartitionBuffer(0)
        for lengths in chunks:
            buffer.append(of_users(a_chunk(number, lengths, len(owners_of_rows)), number))
            owners_of_rows += np.repeat(np.arange(number, number + len(lengths)), lengths).tolist()
            number += len(lengths)
        taken: list[Chunk] = []
        while buffer.count:
            taken += buffer.take(data.draw(st.integers(1, buffer.count)))
        parts.append(taken)
    found = buffers.interleave(parts, granularity)
    if not number:
        assert not len(found.offsets)
        return
    assert found.users is not None
    assert found.users.dtype == np.uint64
    assert len(found.users) == number
    assert (found.users[:, 1] - found.users[:, 0] == 1000).all()
    rows = np.array(owners_of_rows, dtype=np.float64)[:, None]
    owners = np.repeat(found.users[:, 0], found.lengths)
    of = buffers.batch_of(rows, found, RecordKind.FACTOR, False)
    np.testing.assert_array_equal(owners.astype(np.float64), of.packed().rows[:, 0])


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_a_buffer_gives_back_what_it_was_given(chunks: list[list[int]], data: st.DataObject) -> None:
    buffer = PartitionBuffer(0)
    offset = value = 0
    for lengths in chunks:
        offset += data.draw(st.integers(0, 3))  # transaction markers take offsets
        buffer.append(a_chunk(offset, lengths, value))
        offset += len(lengths)
        value += sum(lengths)
    whole = np.concatenate([buffers.row_places(c) for c in buffer.chunks]).tolist()
    assert buffer.rows == len(whole)
    offsets = np.concatenate([c.offsets for c in buffer.chunks]).tolist()
    for end in range(offset + 2):
        assert buffer.count_before(end) == sum(o < end for o in offsets)
    got: list[int] = []
    while buffer.count:
        count = data.draw(st.integers(1, buffer.count))
        taken = buffer.take(count)
        assert sum(len(c.offsets) for c in taken) == count
        got += [v for c in taken for v in buffers.row_places(c).tolist()]
        assert buffer.position == taken[-1].offsets[-1] + 1
    assert got == whole
