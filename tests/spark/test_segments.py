"""Segments keep a batch's records in the order of the service's merged partitions."""

from __future__ import annotations

from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.service.input.buffer import Chunk, batch_of, interleave
from streaming_pca.service.input.source import build_codec
from streaming_pca.spark.reader import ClusterReader
from streaming_pca.spark.reading import Piece, Structure
from streaming_pca.spark.segments import Layout, Order, Range, Segment, Strip, packed_structure, segment_of


@st.composite
def partitions(draw: st.DrawFn) -> tuple[list[list[Strip]], list[list[Chunk]], int, bool]:
    """Draw partitions with gaps between offsets, as segments and as the service's chunks."""
    granularity = draw(st.sampled_from([1, 2]))
    by_row = granularity == 1 and draw(st.booleans())
    strips: list[list[Strip]] = []
    chunks: list[list[Chunk]] = []
    place = 0
    for partition in range(draw(st.integers(1, 4))):
        count = draw(st.integers(0, 12)) * granularity
        steps = draw(st.lists(st.integers(1, 3), min_size=count, max_size=count))
        rows = np.array(draw(st.lists(st.integers(0, 3), min_size=count, max_size=count)), dtype=np.int64)
        offsets = np.cumsum(np.array(steps, dtype=np.int64))
        cuts = sorted(draw(st.sets(st.integers(0, count), max_size=3)) | {0, count})
        some = []
        for a, b in pairwise(cuts):
            # A batch may begin and end within a segment.
            spare = draw(st.integers(0, 2)) if b == count else 0
            more = offsets[b - 1] + 1 + np.arange(spare)
            known = np.concatenate([offsets[a:b], more]).astype(np.int64)
            shown = np.concatenate([rows[a:b], np.ones(spare, dtype=np.int64)])
            wanted = Range(len(some), partition, int(known[0]), int(known[-1]) + 1)
            data = packed_structure(known, np.full(len(known), 3), shown if by_row else shown[:0])
            some.append(Strip(segment_of(wanted, data, by_row), 0, b - a))
        strips.append(some)
        places = place + np.cumsum(rows) - rows
        place += int(rows.sum())
        chunks.append([Chunk(offsets, places, rows)] if count else [])
    return strips, chunks, granularity, by_row


@given(partitions())
def test_places_are_those_of_the_service(
    drawn: tuple[list[list[Strip]], list[list[Chunk]], int, bool],
) -> None:
    strips, chunks, granularity, by_row = drawn
    layout = Layout(strips, granularity)
    total = int(sum(chunk.lengths.sum() for some in chunks for chunk in some))
    # A unique number for each row; the rows of a partition are consecutive.
    rows = np.arange(total, dtype=np.float64)[:, None]
    merged = batch_of(rows, interleave(chunks, granularity), RecordKind.FACTOR, by_row)
    assert layout.records == len(merged)
    begins = merged.places()
    for p, some in enumerate(chunks):
        lengths = np.concatenate([np.zeros(0, dtype=np.int64), *(chunk.lengths for chunk in some)])
        first = np.concatenate([np.zeros(0, dtype=np.int64), *(chunk.places for chunk in some)])
        records = int(lengths.sum()) if by_row else len(lengths)
        places = layout.places(p, 0, records)
        assert sorted(places.tolist()) == places.tolist()
        expected = np.arange(first[0], first[0] + records) if by_row and records else first
        filled = np.diff(merged.starts)[places] > 0
        assert begins[places][filled].tolist() == expected[filled].tolist()
        for place in range(layout.records + 1):
            assert layout.records_before(p, place) == int(np.count_nonzero(places < place))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=30), st.integers(0, 90))
def test_offsets_and_counts_of_a_segment(steps: list[int], end: int) -> None:
    offsets = np.cumsum(np.array(steps, dtype=np.int64))
    epochs = np.arange(len(steps), dtype=np.int64) // 4
    wanted = Range(0, 0, 0, int(offsets[-1]) + 1)
    segment = segment_of(wanted, packed_structure(offsets, epochs, offsets[:0]), False)
    assert [segment.offset(i) for i in range(len(steps))] == offsets.tolist()
    assert [segment.epoch(i) for i in range(len(steps))] == epochs.tolist()
    assert segment.count == len(steps)
    assert segment.count_before(end) == int(np.count_nonzero(offsets < end))


def test_records_of_messages_with_rows() -> None:
    offsets, rows = np.arange(4, dtype=np.int64), np.array([2, 0, 3, 1], dtype=np.int64)
    data = packed_structure(offsets, np.zeros(4, dtype=np.int64), rows)
    segment = segment_of(Range(0, 0, 0, 4), data, True)
    assert [segment.records_before(i) for i in range(5)] == [0, 2, 2, 5, 6]
    assert [segment.message_of(i) for i in range(6)] == [0, 0, 2, 2, 2, 3]


def test_incomplete_groups_are_refused() -> None:
    with pytest.raises(ValueError, match="incomplete"):
        Order(np.array([3, 2]), 2)


class NoExecutors:
    """Cluster that notes the ranges of each load, and reports messages of some size."""

    slots = 1

    def __init__(self, size: int) -> None:
        self.size = size
        self.loads: list[list[Range]] = []
        self.feed = SimpleNamespace(session="s")
        self.settings = SparkSettings()

    def range(self, partition: int, start: int, end: int, epoch: int) -> Range:
        return Range(0, partition, start, end, epoch)

    def load(self, ranges: list[Range], group: str) -> list[Any]:
        self.loads.append(ranges)
        loaded = []
        for each in ranges:
            offsets = np.arange(each.start, each.end)
            rows = np.full(len(offsets), 3)
            segment = segment_of(each, packed_structure(offsets, offsets * 0, rows), False)
            loaded.append(SimpleNamespace(segment=segment, size=self.size * segment.count))
        return loaded


def test_the_ranges_of_tasks_do_not_depend_on_what_messages_hold() -> None:
    """Spark's web page shows the number of tasks, and a payload of float64 widens the rows of its piece."""
    stream = StreamSettings(name="s", input="t", dim=2**13, rank=1, epsilon=1, delta=1e-6)
    loads = []
    for size in (2**12, 2**16, 2**17):
        cluster: Any = NoExecutors(size)
        given: Any = (lambda *_, own=cluster: own, KafkaSettings(), stream, build_codec(stream, None))
        reader = ClusterReader(*given, 1, False, lambda: None)
        reader.add({0: 0}, {})
        for end in (10_000, 50_000):
            reader.fetch({0: 50_000}, {0: end})
        loads.append(cluster.loads)
    assert loads[0] == loads[1] == loads[2]
    # 2048 of 32 KiB are 64 MiB, the target of a task.
    assert [each.end - each.start for each in loads[0][0]] == [2000] * 5


def test_an_empty_segment_has_no_messages() -> None:
    none = np.zeros(0, dtype=np.int64)
    segment: Segment = segment_of(Range(0, 0, 5, 9), packed_structure(none, none, none), False)
    assert segment.count_before(7) == 0


def test_null_records_and_those_of_several_rows_are_counted_apart() -> None:
    """Pairs read both as null; other estimators read only the former so."""
    structure = Structure(False)
    one, two = np.ones((1, 3)), np.ones((2, 3))
    for records in ([one, two, None], [], [two, two, one, None]):
        batch = ArrayBatch.of_records(records, 3)
        lengths = np.diff(batch.starts)
        structure.add(Piece(batch, lengths, lengths, lengths, None))
    assert (structure.nulls, structure.longer) == (2, 3)
