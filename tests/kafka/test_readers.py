"""One reader serves range after range; a worker learns the same from any reader of its input."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import numpy as np
import pytest
from kafka import TopicPartition

from streaming_pca.privacy.ledger.entries import Abandoned, Reserved
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.input import partition_reader
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.reader import read_to
from streaming_pca.service.input.source import build_codec
from streaming_pca.service.kafka.clients import reading_consumer
from tests.kafka.conftest import Make, Patch
from tests.kafka.stream import STEADY_MS, Stream, check_books, ranges_of
from tests.waiting import wait_for

EACH = 3000
"""Records of a partition: more than one poll returns."""


@pytest.fixture
def opened(monkeypatch: Patch) -> list[Any]:
    """Return the consumers that readers have opened."""
    made: list[Any] = []

    def counted(*args: Any, **kwargs: Any) -> Any:
        made.append(reading_consumer(*args, **kwargs))
        return made[-1]

    monkeypatch.setattr(partition_reader, "reading_consumer", counted)
    return made


def reader_of(stream: Stream, skip_lost: bool = False) -> PartitionReader:
    settings = stream.settings
    codec = build_codec(settings.stream, None)
    return PartitionReader(settings.kafka, settings.stream, codec, 1, skip_lost, lambda: None)


@pytest.fixture
def filled(make_stream: Make) -> Stream:
    """Return a stream of three partitions; each record's first number is its place."""
    stream = make_stream(partitions=3)
    x = stream.vectors(3 * EACH)
    x[:, 0] = np.arange(len(x))
    stream.produce_vectors(x)
    return stream


class Known:
    """Object that a consumer's caller holds."""


def test_a_poll_in_vain_keeps_nothing_of_its_caller(no_collector: None, make_stream: Make) -> None:
    """kafka-python itself would keep it until garbage collection: a cut batch, and its memory."""

    def poll(consumer: Any) -> weakref.ref[Known]:
        known = Known()
        assert consumer.poll(timeout_ms=20) == {}
        return weakref.ref(known)

    stream = make_stream(partitions=1)
    with closing(reading_consumer(stream.settings.kafka, io="records")) as consumer:
        partition = TopicPartition(stream.settings.stream.input, 0)
        consumer.assign([partition])
        consumer.seek(partition, 0)
        known = [poll(consumer) for _ in range(20)]
        # The client's thread, and the fetch that the poll did not wait for, release an error.
        wait_for("the end of what the polls knew", lambda: not any(each() for each in known))


def test_a_closed_reader_keeps_nothing_that_it_has_read(no_collector: None, filled: Stream) -> None:
    """Neither decoded records nor further records fetched by the client stay in memory."""
    reader = reader_of(filled)
    with closing(reader):
        reader.add({0: 0}, {})
        wait_for("a poll's records", lambda: reader.fetch({0: 1}, {0: EACH}) or reader.buffers[0].count)
        (consumer,) = reader._consumers.values()
        fetched = consumer._fetcher._next_partition_records
        assert fetched is not None
        assert reader.bytes >= 2000 * 4 * filled.settings.stream.dim
        fetched = weakref.ref(fetched)
        del consumer
    assert reader.bytes == 0
    assert reader.buffers[0].position == 0, "any thread may look at it"
    reader._consumers.clear()
    assert fetched() is None


def test_a_reader_knows_the_leader_of_its_topic_from_the_start(filled: Stream) -> None:
    """Otherwise each of a take-over's dozen consumers would wait a tenth of a second."""
    kafka, topic = filled.settings.kafka, filled.settings.stream.input
    for topics in ((), (topic,)):
        with closing(reading_consumer(kafka, topics=topics)) as consumer:
            known = consumer._cluster.leader_for_partition(TopicPartition(topic, 0)) is not None
            assert known == bool(topics)


def read_range(reader: PartitionReader, stream: Stream, partition: int, start: int, end: int) -> list[float]:
    """Read a range, and return its records' first numbers."""
    reader.add({partition: start}, {})
    assert read_to(reader, stream.settings.stream.input, {partition: end}, lambda: False)
    batch, _ = reader.take([reader.buffers[partition].count_before(end)], 1)
    assert reader.buffers[partition].position == end
    found = [float(row[0]) for row in batch.packed().rows]
    reader.release_memory()
    reader.remove(partition)
    return found


def ranges() -> Iterator[tuple[int, int, int]]:
    """Yield ranges in mixed order: backward, repeated, overlapping, and each after its predecessor."""
    yield from [(0, 0, 10), (1, 2500, 2600), (1, 0, 2100), (1, 0, 2100), (2, 7, 8), (1, 100, 200)]
    yield from [(0, at, at + 500) for at in range(0, EACH, 500)]
    yield from [(at % 3, EACH - at - 100, EACH - at) for at in range(0, 1000, 100)]


def test_ranges_are_read_one_after_another_by_one_consumer(filled: Stream, opened: list[Any]) -> None:
    with closing(reader_of(filled)) as reader:
        assert opened == []
        for partition, start, end in ranges():
            found = read_range(reader, filled, partition, start, end)
            assert found == [3.0 * offset + partition for offset in range(start, end)]
            assert opened[0].assignment() == set()
            # Records read beyond a range do not stay in memory.
            assert reader.buffers == {}
            assert reader.bytes == 0
        assert len(opened) == 1


def test_partitions_at_a_time_have_a_consumer_each_which_others_inherit(
    filled: Stream, opened: list[Any]
) -> None:
    with closing(reader_of(filled)) as reader:
        assert reader.first_offsets([0, 1, 2]) == {0: 0, 1: 0, 2: 0}
        reader.add({0: 0, 1: 5}, {})
        assert len(opened) == 2
        with pytest.raises(ValueError, match="partition 1 is being read"):
            reader.add({1: 7}, {})
        reader.remove(0)
        reader.add({2: 11}, {})
        assert len(opened) == 2
        assert read_to(reader, filled.settings.stream.input, {1: 2500, 2: 2600}, lambda: False)
        counts = [reader.buffers[p].count_before(end) for p, end in ((1, 2500), (2, 2600))]
        assert counts == [2495, 2589]


def test_a_reader_that_is_stopped_reads_no_further(filled: Stream) -> None:
    with closing(reader_of(filled)) as reader:
        reader.add({0: 0}, {})
        reader.stop()
        reader.fetch({0: 1}, {0: EACH})
        assert reader.buffers[0].count == 0
        assert not read_to(reader, filled.settings.stream.input, {0: EACH}, lambda: True)


@pytest.mark.parametrize(("skip_lost", "error"), [(False, RecordsLost), (True, SessionLost)])
def test_a_range_that_retention_has_taken_is_missed(
    filled: Stream, skip_lost: bool, error: type[Exception]
) -> None:
    with closing(reader_of(filled, skip_lost)) as reader:
        filled.delete_before({0: 50})
        reader.add({0: 20}, {})
        with pytest.raises(error, match="deleted"):
            read_to(reader, filled.settings.stream.input, {0: 60}, lambda: False)
        # Other partitions, and the rest of this one, are not affected.
        reader.remove(0)
        assert read_range(reader, filled, 0, 50, 52) == [150.0, 153.0]
        assert read_range(reader, filled, 1, 0, 2) == [1.0, 4.0]


# -- a worker with another reader ------------------------------------------


def test_a_worker_learns_the_same_without_reading_ahead_and_under_one_charge_where_records_get_lost(
    make_stream: Make,
) -> None:
    options = {"n_records": 240, "n_batches": 3, "clip_radius": 400.0}
    usual, lazy, struck = streams = [make_stream(session_ms=STEADY_MS, options=options) for _ in range(3)]
    for stream in streams:
        stream.produce_vectors(stream.vectors(240))
    for stream, ahead, lost in ((usual, True, 0), (lazy, False, 0), (struck, True, 2)):
        stream.run(noise=False, ahead=ahead, lost_batches=lost)
        check_books(stream)
        assert ranges_of(stream) == ranges_of(usual)
        assert stream.results() == usual.results()
    log = struck.children[0].log
    assert log.count("session lost, recovering from the topics: an executor is gone") == 2
    # Before the second loss, a successor had read the batch for the first time.
    assert log.count("finishing a batch that was reserved before") == 2
    assert len(struck.own(Reserved)) == 3
    assert struck.own(Abandoned) == []
