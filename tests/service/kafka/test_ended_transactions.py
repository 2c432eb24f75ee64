"""Markers decide which batches are read, where a broker's list of aborted transactions is too short."""

from __future__ import annotations

import random
from bisect import bisect_right
from itertools import accumulate
from typing import Any

import pytest
from kafka.record.memory_records import MemoryRecords

from streaming_pca.service.kafka.patches import RecordReader
from streaming_pca.service.kafka.record_batches import ended_transactions
from streaming_pca.service.kafka.record_blocks import BlockReader
from tests.kafka.security.hostile import batch, record
from tests.service.kafka.reading import TP, Aborted

ABORT, COMMIT = 0, 1
_LONGEST = 8  # batches from a transaction's first one to its marker


def marker(base: int, producer: int, kind: int) -> bytes:
    key = b"\0\0\0" + bytes([kind])
    return batch([record(b"\0\0\0\0\0\0", key=key)], base=base, attributes=0x30, producer=(producer, 0, 0))


def emptied(producer: int) -> bytes:
    """Return a marker without its record, after its first offset, as a cleaner leaves data batches."""
    head = bytearray(marker(0, producer, ABORT)[8:61])
    head[:4] = (49).to_bytes(4, "big")
    return bytes(head)


def data(base: int, count: int, producer: int | None, size: int = 50) -> bytes:
    how: dict[str, Any] = {"attributes": 0x10, "producer": (producer, 0, 0)} if producer else {}
    return batch([record(b"v" * size, i) for i in range(count)], base=base, **how)


def some_log(dice: random.Random) -> tuple[list[bytes], list[int], set[int]]:
    """Return batches, the first offset of each, and the offsets of committed records."""
    log: list[bytes] = []
    bases: list[int] = []
    committed: set[int] = set()
    open_: dict[int, tuple[int, list[int]]] = {}  # first batch's number and offsets, by producer
    offset = 0

    def add(made: bytes, count: int) -> None:
        nonlocal offset
        log.append(made)
        bases.append(offset)
        offset += count

    def end(producer: int) -> None:
        kind = dice.choice((ABORT, COMMIT))
        if kind == COMMIT:
            committed.update(open_[producer][1])
        del open_[producer]
        add(marker(offset, producer, kind), 1)

    for _ in range(120):
        for producer in [p for p, (first, _) in open_.items() if len(log) - first >= _LONGEST - 3]:
            end(producer)
        producer, count = dice.randrange(4), dice.randrange(1, 15)
        offsets = list(range(offset, offset + count))
        if producer == 0:
            committed.update(offsets)
        elif producer in open_ and dice.random() < 0.3:
            end(producer)
            continue
        else:
            open_.setdefault(producer, (len(log), []))[1].extend(offsets)
        add(data(offset, count, producer, dice.choice((50, 600))), count)
    for producer in [*open_]:
        end(producer)
    return log, bases, committed


@pytest.mark.parametrize("reader", [RecordReader, BlockReader])
def test_records_of_transactions_within_a_response_need_no_list(reader: type[RecordReader]) -> None:
    """60 seeds: seven eighths of a response have room for any transaction, and the list is always empty."""
    for seed in range(60):
        dice = random.Random(seed)
        log, bases, committed = some_log(dice)
        ends = [0, *accumulate(map(len, log))]
        room = max(ends[min(i + _LONGEST + 1, len(log))] - ends[i] for i in range(len(log))) * 8 // 7
        whole, position, found = b"".join(log), 0, []
        while position < bases[-1] + 1:
            start = ends[bisect_right(bases, position) - 1]
            # The last batch may be cut.
            answer = whole[start : start + room + dice.randrange(800)]
            part = reader(position, TP, MemoryRecords(answer), isolation_level=1, aborted_transactions=[])
            for each in part.take():
                found += each.offsets.tolist() if hasattr(each, "offsets") else [each.offset]
            assert part.next_fetch_offset > position
            position = part.next_fetch_offset
        assert found == sorted(committed)


LARGE = 600
CASES = {
    "nothing": (b"", {}, None),
    "no transaction": (data(0, 3, None), {}, None),
    "ended": (data(0, 3, 7) + marker(3, 7, ABORT), {0: True}, None),
    "committed": (data(0, 3, 7) + marker(3, 7, COMMIT), {0: False}, None),
    "two of a producer": (
        data(0, 3, 7) + marker(3, 7, COMMIT) + data(4, 1, 7) + marker(5, 7, ABORT),
        {0: False, 4: True},
        None,
    ),
    "a marker alone": (marker(0, 7, ABORT) + marker(1, 7, ABORT), {}, None),
    "open after others": (data(0, 3, None) + data(3, 2, 7), {}, 3),
    "open from the start": (data(0, 3, 7) + data(3, 2, None), {}, None),
    "open from the start, and later": (data(0, 3, 7) + data(3, 3, 7), {}, None),
    "open from the start, another later": (data(0, 3, 7) + data(3, 3, 8), {}, 3),
    "an emptied marker": (data(0, 3, None) + marker(3, 7, ABORT)[:8] + emptied(7) + data(4, 3, 7), {}, 4),
    "open within the first eighth": (
        data(0, 1, None, 1) + data(1, 1, 7, 1) + data(2, 9, None, LARGE),
        {},
        None,
    ),
    "of another producer": (data(0, 3, 7) + data(3, 3, 8) + marker(6, 8, ABORT), {3: True}, None),
    "a marker that is cut": (data(0, 3, None) + data(3, 2, 7) + marker(5, 7, ABORT)[:65], {}, 3),
    "a last batch of a few bytes": (data(0, 3, None) + data(3, 1, 7, 0), {}, 3),
    "a head that is cut": (data(0, 3, None) + data(3, 2, 7)[:60], {}, None),
}


@pytest.mark.parametrize("case", CASES)
def test_what_markers_decide_and_where_a_response_ends(case: str) -> None:
    answer, aborted, stop = CASES[case]
    assert ended_transactions(answer) == (aborted, stop)
    assert ended_transactions(memoryview(answer)) == (aborted, stop)


def test_an_older_format_ends_the_search() -> None:
    old = bytearray(data(3, 2, 7))
    old[16] = 1
    assert ended_transactions(data(0, 3, 7) + bytes(old) + marker(5, 7, ABORT)) == ({}, None)


def test_the_list_decides_where_a_transaction_is_longer_than_a_response() -> None:
    answer = data(0, 3, 7) + data(3, 3, 8)
    for aborted, wanted in (([], [0, 1, 2]), ([Aborted(7, 0)], [])):
        part = RecordReader(0, TP, MemoryRecords(answer), isolation_level=1, aborted_transactions=aborted)
        assert [each.offset for each in part.take()] == wanted
        assert part.next_fetch_offset == 3
