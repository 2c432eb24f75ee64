"""Batches read by both readers: whole blocks, and one record at a time."""

from __future__ import annotations

import tracemalloc
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords
from kafka.structs import TopicPartition

from streaming_pca.service.kafka import inflating, patches
from streaming_pca.service.kafka.patches import RecordReader, to_batch
from streaming_pca.service.kafka.record_batches import Record
from streaming_pca.service.kafka.record_blocks import BlockReader, RecordBlock

TP = TopicPartition("t", 0)
LARGEST_TAKE = patches._POLL_BYTES + inflating._PIECE_BYTES + inflating._STEP


class Aborted(NamedTuple):
    """Aborted transaction, as a fetch lists it."""

    producer_id: int
    first_offset: int


def flat(found: Iterable[Any]) -> list[Record]:
    return [r for each in found for r in (each.records() if isinstance(each, RecordBlock) else [each])]


def takes(reader: RecordReader, most: int = 2000) -> list[list[Record]]:
    """Return the records of each poll, to the end."""
    found = []
    while reader:
        found.append(flat(reader.take(most)))
        assert reader.inflated <= LARGEST_TAKE
    return found


def read(data: bytes, start: int = 0, **how: Any) -> list[Record]:
    """Return the records that both readers read."""
    readers = [kind(start, TP, MemoryRecords(data), **how) for kind in (BlockReader, RecordReader)]
    found, same = ([r for some in takes(reader) for r in some] for reader in readers)
    assert found == same
    assert readers[0].next_fetch_offset == readers[1].next_fetch_offset
    return found


@contextmanager
def peak_below(most: float) -> Iterator[None]:
    """Check the peak of allocated memory."""
    tracemalloc.start()
    try:
        yield
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < most


def block_of(data: bytes) -> RecordBlock:
    return RecordBlock(to_batch(DefaultRecordBatch(data)))
