"""Batches are cut on counts alone: the arithmetic, without a broker."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.records import RecordKind
from streaming_pca.service.assembly import Buffer, Chunk, interleave, interleave_users, share


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


def a_chunk(first_offset: int, lengths: list[int], value: int) -> Chunk:
    n = sum(lengths)
    return Chunk(
        np.arange(first_offset, first_offset + len(lengths)),
        np.array(lengths, dtype=np.int64),
        np.arange(value, value + n, dtype=np.float64)[:, None],
    )


def test_records_are_dealt_in_turn_and_in_offset_order() -> None:
    parts = [[a_chunk(0, [1, 1, 1], 0)], [a_chunk(0, [1, 0], 100)], [a_chunk(5, [2], 200)]]
    batch = interleave(parts, 1, 1, RecordKind.FACTOR)
    assert batch.rows[:, 0].tolist() == [0, 100, 200, 201, 1, 2]
    assert np.diff(batch.starts).tolist() == [1, 1, 2, 1, 0, 1]


def test_pairs_stay_within_one_partition() -> None:
    parts = [[a_chunk(0, [1, 1, 1, 1], 0)], [a_chunk(0, [1, 1], 100)]]
    batch = interleave(parts, 2, 1, RecordKind.FACTOR)
    assert batch.rows[:, 0].tolist() == [0, 1, 100, 101, 2, 3]


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
    for chunks in partitions:
        buffer = Buffer(0, deque())
        for lengths in chunks:
            numbers = np.arange(number, number + len(lengths))
            rows = np.repeat(numbers, lengths).astype(np.float64)[:, None]
            buffer.append(of_users(Chunk(numbers, np.array(lengths, dtype=np.int64), rows), number))
            number += len(lengths)
        taken: list[Chunk] = []
        while buffer.count:
            taken += buffer.take(data.draw(st.integers(1, buffer.count)))
        parts.append(taken)
    users = interleave_users(parts, granularity)
    batch = interleave(parts, granularity, 1, RecordKind.FACTOR)
    assert users.dtype == np.uint64
    assert len(users) == len(batch) == number
    assert (users[:, 1] - users[:, 0] == 1000).all()
    owners = np.repeat(users[:, 0], np.diff(batch.starts))
    np.testing.assert_array_equal(owners.astype(np.float64), batch.rows[:, 0])


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=5), st.data())
def test_a_buffer_gives_back_what_it_was_given(chunks: list[list[int]], data: st.DataObject) -> None:
    buffer = Buffer(0, deque())
    offset = value = 0
    for lengths in chunks:
        offset += data.draw(st.integers(0, 3))  # transaction markers take offsets
        buffer.append(a_chunk(offset, lengths, value))
        offset += len(lengths)
        value += sum(lengths)
    whole = np.concatenate([c.rows for c in buffer.chunks])[:, 0].tolist()
    offsets = np.concatenate([c.offsets for c in buffer.chunks]).tolist()
    for end in range(offset + 2):
        assert buffer.below(end) == sum(o < end for o in offsets)
    got: list[float] = []
    while buffer.count:
        count = data.draw(st.integers(1, buffer.count))
        taken = buffer.take(count)
        assert sum(len(c.offsets) for c in taken) == count
        got += [v for c in taken for v in c.rows[:, 0].tolist()]
        assert buffer.position == taken[-1].offsets[-1] + 1
    assert got == whole
