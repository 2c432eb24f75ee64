"""Batches are cut on counts alone: the arithmetic, without a broker."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.records import Batch, RecordKind
from streaming_pca.service.assembly import Buffer, Chunk, batch_of, interleave, places_of_rows, share


def naive_shares(available: list[int], units: int) -> list[int] | None:
    """Deal one unit to each partition in turn."""
    if sum(available) < units:
        return None
    shares = [0] * len(available)
    while units:
        for i, a in enumerate(available):
            if units and shares[i] < a:
                shares[i] += 1
                units -= 1
    return shares


partitions = st.lists(st.integers(0, 30), min_size=1, max_size=6)


@given(partitions, st.integers(0, 120))
def test_shares_are_those_of_dealing_in_turn(available: list[int], units: int) -> None:
    _, shares = share(available, [True] * len(available), units)
    assert shares == naive_shares(available, units)


@given(partitions, st.integers(0, 100), st.data())
def test_what_was_fetched_so_far_never_changes_the_shares(
    whole: list[int], units: int, data: st.DataObject
) -> None:
    fetched = [data.draw(st.integers(0, a)) for a in whole]
    for _ in range(300):
        closed = [f == a for f, a in zip(fetched, whole, strict=True)]
        level, shares = share(fetched, closed, units)
        if shares is not None or level < 0:
            break
        lacking = [i for i, f in enumerate(fetched) if not closed[i] and f < level]
        assert lacking, "nothing to fetch, nothing decided"
        for i in lacking:
            fetched[i] = min(whole[i], fetched[i] + data.draw(st.integers(1, 7)))
    assert shares == naive_shares(whole, units)


@given(partitions, st.integers(1, 100))
def test_a_partition_is_asked_for_no_more_than_its_share_and_one(whole: list[int], units: int) -> None:
    expected = naive_shares(whole, units)
    fetched = [0] * len(whole)
    while True:
        closed = [f == a for f, a in zip(fetched, whole, strict=True)]
        level, shares = share(fetched, closed, units)
        if shares is not None or level < 0:
            break
        for i, f in enumerate(fetched):
            if not closed[i] and f < level:
                fetched[i] = f + 1
    if expected is not None:
        assert all(f <= e + 1 for f, e in zip(fetched, expected, strict=True))


def a_chunk(first_offset: int, lengths: list[int], place: int) -> Chunk:
    """Messages whose rows begin at a place, one after the other."""
    of = np.array(lengths, dtype=np.int64)
    return Chunk(np.arange(first_offset, first_offset + len(lengths)), place + np.cumsum(of) - of, of)


ROWS = np.arange(300, dtype=np.float64)[:, None]
"""Each holds its place."""


def batch(parts: list[list[Chunk]], granularity: int = 1, by_row: bool = False) -> Batch:
    return batch_of(ROWS, interleave(parts, granularity), RecordKind.FACTOR, by_row)


def test_records_are_dealt_in_turn_and_in_offset_order() -> None:
    parts = [[a_chunk(0, [1, 1, 1], 0)], [a_chunk(0, [1, 0], 100)], [a_chunk(5, [2], 200)]]
    found = batch(parts)
    assert found.packed().rows[:, 0].tolist() == [0, 100, 200, 201, 1, 2]
    assert np.diff(found.starts).tolist() == [1, 1, 2, 1, 0, 1]


def test_rows_are_records_in_the_order_of_their_messages() -> None:
    found = batch([[a_chunk(0, [2, 0, 1], 0)], [a_chunk(0, [3], 100)]], by_row=True)
    assert found.packed().rows[:, 0].tolist() == [0, 1, 100, 101, 102, 2]
    assert np.diff(found.starts).tolist() == [1] * 6


def test_a_row_of_nans_is_a_null_record_in_its_place() -> None:
    rows = ROWS.copy()
    rows[[1, 2]] = np.nan
    found = batch_of(rows, a_chunk(0, [2, 3], 0), RecordKind.FACTOR, True)
    assert np.diff(found.starts).tolist() == [1, 0, 0, 1, 1]
    assert found.packed().rows[:, 0].tolist() == [0, 3, 4]


def test_rows_that_follow_one_another_are_not_copied() -> None:
    found = batch([[a_chunk(0, [1, 0, 2], 7), a_chunk(3, [0, 1], 10)]])
    assert found.begins is None
    assert np.shares_memory(found.rows, ROWS)
    assert found.rows[:, 0].tolist() == [7, 8, 9, 10]
    assert np.diff(found.starts).tolist() == [1, 0, 2, 0, 1]


def test_a_batch_may_be_of_null_records_alone() -> None:
    found = batch([[a_chunk(0, [0, 0], 5)], [a_chunk(0, [0], 9)]])
    assert found.packed().rows.shape == (0, 1)
    assert found.starts.tolist() == [0] * 4


def test_pairs_stay_within_one_partition() -> None:
    parts = [[a_chunk(0, [1, 1, 1, 1], 0)], [a_chunk(0, [1, 1], 100)]]
    assert batch(parts, 2).packed().rows[:, 0].tolist() == [0, 1, 100, 101, 2, 3]


def of_users(chunk: Chunk, first: int) -> Chunk:
    """The chunk, its records of the users ``first`` and following."""
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
    """A record's rows hold its number, and so does its user, wherever buffers were cut."""
    parts, number = [], 0
    owners_of_rows: list[int] = []
    for chunks in partitions:
        buffer = Buffer(0, deque())
        for lengths in chunks:
            buffer.append(of_users(a_chunk(number, lengths, len(owners_of_rows)), number))
            owners_of_rows += np.repeat(np.arange(number, number + len(lengths)), lengths).tolist()
            number += len(lengths)
        taken: list[Chunk] = []
        while buffer.count:
            taken += buffer.take(data.draw(st.integers(1, buffer.count)))
        parts.append(taken)
    found = interleave(parts, granularity)
    if not number:
        assert not len(found.offsets)
        return
    assert found.users is not None
    assert found.users.dtype == np.uint64
    assert len(found.users) == number
    assert (found.users[:, 1] - found.users[:, 0] == 1000).all()
    rows = np.array(owners_of_rows, dtype=np.float64)[:, None]
    owners = np.repeat(found.users[:, 0], found.lengths)
    of = batch_of(rows, found, RecordKind.FACTOR, False)
    np.testing.assert_array_equal(owners.astype(np.float64), of.packed().rows[:, 0])


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_a_buffer_gives_back_what_it_was_given(chunks: list[list[int]], data: st.DataObject) -> None:
    buffer = Buffer(0, deque())
    offset = value = 0
    for lengths in chunks:
        offset += data.draw(st.integers(0, 3))  # transaction markers take offsets
        buffer.append(a_chunk(offset, lengths, value))
        offset += len(lengths)
        value += sum(lengths)
    whole = np.concatenate([places_of_rows(c) for c in buffer.chunks]).tolist()
    assert buffer.rows == len(whole)
    offsets = np.concatenate([c.offsets for c in buffer.chunks]).tolist()
    for end in range(offset + 2):
        assert buffer.below(end) == sum(o < end for o in offsets)
    got: list[int] = []
    while buffer.count:
        count = data.draw(st.integers(1, buffer.count))
        taken = buffer.take(count)
        assert sum(len(c.offsets) for c in taken) == count
        got += [v for c in taken for v in places_of_rows(c).tolist()]
        assert buffer.position == taken[-1].offsets[-1] + 1
    assert got == whole
