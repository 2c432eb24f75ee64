"""Reading ahead is bounded, and changes no batch, since end and record offsets determine it."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from kafka import TopicPartition

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.estimators.base import Plan
from streaming_pca.privacy.ledger.entries import OffsetRange
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.errors import RecordsLost, SessionLost
from streaming_pca.service.input import partition_reader as reader_module
from streaming_pca.service.input import reader as protocol_module
from streaming_pca.service.input import source as source_module
from streaming_pca.service.input.buffer import Chunk, PartitionBuffer
from streaming_pca.service.input.end_offsets import OffsetFeed
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.source import OffsetBatch, Source

Reading = Callable[..., tuple[Source, OffsetFeed]]
DIM = 3
STREAM = StreamSettings(name="s", input="t", dim=DIM, rank=1, epsilon=1, delta=1e-6)
AT_ONCE = 7
"""Largest number of records in a poll."""


@dataclass
class Message:
    offset: int
    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    leader_epoch: int = -1


@dataclass
class Log:
    """Partitions of a topic, the end of each with open transactions, and how often each was polled."""

    partitions: dict[int, list[Message]]
    end: int = 199
    polls: dict[int, int] = field(default_factory=dict)
    rng: random.Random = field(default_factory=lambda: random.Random(0))


class FakeConsumer:
    """Reader of one partition of a log, some records at a time."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._partition = -1
        self._position = 0

    def assign(self, partitions: list[TopicPartition]) -> None:
        self._partition = partitions[0].partition

    def seek(self, partition: TopicPartition, position: int) -> None:
        self._position = position

    def beginning_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, 0)

    def end_offsets(self, partitions: list[TopicPartition], timeout_ms: int) -> dict[Any, int]:
        return dict.fromkeys(partitions, self._log.end)

    def position(self, partition: TopicPartition, timeout_ms: int) -> int:
        return self._position

    def poll(self, timeout_ms: int) -> dict[TopicPartition, list[Message]]:
        self._log.polls[self._partition] = self._log.polls.get(self._partition, 0) + 1
        there = [m for m in self._log.partitions[self._partition] if m.offset >= self._position]
        found = there[: self._log.rng.randint(1, AT_ONCE)]
        if not found:
            return {}
        self._position = found[-1].offset + 1
        return {TopicPartition("t", self._partition): found}

    def close(self, autocommit: bool = True) -> None:
        pass


def records(partition: int, count: int, gap: int = 2) -> list[Message]:
    """Return records at offsets with gaps; every fifth record is null."""
    made = []
    for i in range(count):
        vector = np.array([partition, i, 1], dtype="<f4")
        made.append(Message(gap * i, b"broken" if i % 5 == 4 else vector.tobytes()))
    return made


def plan(count: int, granularity: int = 1) -> Plan:
    return Plan(count, granularity, granularity, Charge(epsilon="1", delta="0"), {})


def read_from(log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reader_module, "reading_consumer", lambda *_, **__: FakeConsumer(log))
    monkeypatch.setattr(reader_module, "seek", lambda consumer, tp, at, _: consumer.seek(tp, at))


@pytest.fixture
def reading(monkeypatch: pytest.MonkeyPatch) -> Reading:
    """Return ``reading(log, ahead, seed=0, least=0, last=199)``, which makes a source and its feed.

    At least ``least`` bytes are read ahead; the last offset of each partition is ``last``.
    """

    def make(
        log: Log,
        ahead: float,
        seed: int = 0,
        least: int = 0,
        last: int = 199,
        skip: bool = False,
        kind: type[PartitionReader] = PartitionReader,
        max_wait: float | None = None,
        named: Sequence[int] | None = None,
        positions: dict[int, int] | None = None,
    ) -> tuple[Source, OffsetFeed]:
        log.rng, log.polls, log.end = random.Random(seed), {}, last
        monkeypatch.setattr(source_module, "_READ_AHEAD_BYTES", least)
        read_from(log, monkeypatch)
        feed = OffsetFeed("t", lambda: None)
        partitions = sorted(log.partitions) if named is None else named
        reader = kind(KafkaSettings(), STREAM, PayloadCodec(DIM), len(partitions), skip, feed.check)
        return Source(reader, "t", partitions, positions or {}, {}, feed, skip, max_wait, ahead), feed

    return make


def begun(
    reading: Reading, log: Log, planned: Plan, ahead: float = 1.0, **how: Any
) -> tuple[Source, OffsetFeed]:
    """Return a source that knows the ends of all partitions, and its plan."""
    source, feed = reading(log, ahead, **how)
    feed.add(feed.started + 1, ends_of(log))
    source.set_plan(planned)
    return source, feed


def ends_of(log: Log, share: float = 1.0) -> dict[int, int]:
    # The end of the last record itself: a position cannot exceed it.
    return {p: int((2 * len(ms) - 1) * share) for p, ms in log.partitions.items()}


def read_all_ahead(source: Source) -> int:
    steps = 0
    while source.read_ahead():
        steps += 1
        assert steps < 10_000
    return steps


def take_all(source: Source, count: int, granularity: int, ahead: bool) -> list[OffsetBatch]:
    taken = []
    while True:
        source.set_plan(plan(count, granularity))
        found = source.poll()
        if found is None:
            return taken
        taken.append(found)
        if ahead:
            read_all_ahead(source)


@pytest.mark.parametrize("granularity", [1, 2])
@pytest.mark.parametrize("sizes", [(200,), (120, 120, 120), (30, 150, 4)])
@pytest.mark.parametrize("least", [0, 2**20])
def test_reading_ahead_changes_no_bit_of_any_batch(
    reading: Reading, sizes: tuple[int, ...], granularity: int, least: int
) -> None:
    log = Log({p: records(p, n) for p, n in enumerate(sizes)})
    found = []
    for seed, ahead in ((1, False), (2, True), (3, True)):
        source, feed = reading(log, 1.0, seed, least=least)
        for i, share in enumerate((0.3, 0.6, 1.0)):
            feed.add(feed.started + 1 + i, ends_of(log, share))
        found.append(take_all(source, 40, granularity, ahead))
    plain, *others = found
    assert len(plain) == sum(sizes) // 40
    for other in others:
        assert len(other) == len(plain)
        for a, b in zip(plain, other, strict=True):
            assert a.ranges == b.ranges
            assert a.positions == b.positions
            np.testing.assert_array_equal(a.batch.packed().rows, b.batch.packed().rows)
            np.testing.assert_array_equal(a.batch.starts, b.batch.starts)


def buffered(source: Source) -> int:
    """Return the number of records that were read but not cut yet."""
    return sum(buffer.count for buffer in source._buffers.values())


def test_what_is_read_ahead_is_bounded_by_a_batch_and_a_poll_of_each_partition(reading: Reading) -> None:
    source, _ = begun(reading, Log({p: records(p, 500) for p in range(3)}), plan(40))
    for _ in range(10):
        assert read_all_ahead(source) > 0
        assert 40 <= buffered(source) < 40 + 3 * AT_ONCE
        source.set_plan(plan(40))
        assert source.poll() is not None
        assert buffered(source) < 3 * AT_ONCE


@pytest.mark.parametrize(
    ("ahead", "least", "count", "messages", "wanted"),
    [
        *((ahead, 0, 100, 500, int(100 * ahead)) for ahead in (0.0, 0.25, 1.0)),
        # Some bytes are read ahead however small a batch is, but only up to a number of messages.
        (1.0, 100 * 12, 2, 500, 100),
        (1.0, 2**24, 2, 60, 60),
    ],
)
# A null record counts as one row; otherwise there would be no bound.
@pytest.mark.parametrize("value", [np.ones(3, "<f4").tobytes(), b"broken"], ids=["row", "null"])
def test_a_share_of_a_batch_is_read_ahead(
    *,
    reading: Reading,
    monkeypatch: pytest.MonkeyPatch,
    value: bytes,
    ahead: float,
    least: int,
    count: int,
    messages: int,
    wanted: int,
) -> None:
    log = Log({0: [Message(2 * i, value) for i in range(500)]})
    source, _ = begun(reading, log, plan(count), ahead, least=least)
    monkeypatch.setattr(source_module, "_READ_AHEAD_MESSAGES", messages)
    read_all_ahead(source)
    assert wanted <= buffered(source) < wanted + AT_ONCE


def test_a_consumer_is_not_polled_while_its_buffer_is_full(reading: Reading) -> None:
    log = Log({p: records(p, 500) for p in range(3)})
    source, feed = begun(reading, log, plan(40))
    read_all_ahead(source)
    polls = dict(log.polls)
    assert not source.read_ahead()
    # Newer records do not empty a full buffer.
    feed.add(feed.started + 2, ends_of(log))
    assert not source.read_ahead()
    assert log.polls == polls
    # A batch that is already complete does not need a poll either.
    assert source.poll() is not None
    assert log.polls == polls


def test_nothing_is_read_ahead_behind_the_newest_ends(reading: Reading) -> None:
    log = Log({0: records(0, 100)})
    source, feed = reading(log, 1.0)
    source.set_plan(plan(1000))
    assert not source.read_ahead()
    assert log.polls == {}
    feed.add(feed.started + 1, {0: 20})
    read_all_ahead(source)
    assert 10 <= buffered(source) < 10 + AT_ONCE


def test_a_source_that_is_stopped_reads_no_further(reading: Reading) -> None:
    log = Log({0: records(0, 100)})
    source, _ = begun(reading, log, plan(1000))
    assert source.read_ahead()
    source.stop()
    polls = dict(log.polls)
    assert not source.read_ahead()
    assert log.polls == polls


# -- a reader that does not read ahead -----------------------------------------------


class LazyReader(PartitionReader):
    """Reader that reads in one call when records are needed, as a cluster would."""

    ahead = False
    calls = 0

    def fetch(self, wanted: Mapping[int, int], ends: Mapping[int, int]) -> None:
        self.calls += 1
        for p, count in wanted.items():
            while self.buffers[p].count_before(ends[p]) < count and self.position(p) < ends[p]:
                super().fetch({p: count}, ends)


@pytest.mark.parametrize(
    ("count", "max_wait", "noted"),
    [(14, None, True), (12, None, False), (16, None, False), (14, 60.0, False)],
)
def test_a_batch_that_waits_for_partners_of_records_is_noted_once(
    reading: Reading, caplog: pytest.LogCaptureFixture, count: int, max_wait: float | None, noted: bool
) -> None:
    log = Log({p: records(p, n) for p, n in enumerate((3, 5, 7))})
    source, feed = reading(log, 1.0, max_wait=max_wait)
    source.set_plan(plan(count, granularity=2))
    for i in range(2):
        feed.add(feed.started + 1 + i, ends_of(log))
        if source.poll() is not None:
            assert count == 12
            break
    lines = [
        f"t: 15 records wait for a batch of {count}, which takes whole pairs of a partition's records "
        '(centering = "pairs"): if no others come, lower options.n_records, or set max_wait_seconds'
    ]
    assert caplog.messages == lines * noted


@pytest.mark.parametrize("granularity", [1, 2])
@pytest.mark.parametrize("sizes", [(200,), (120, 120, 120), (30, 150, 4), (3, 5, 7)])
@pytest.mark.parametrize("max_wait", [None, 2.5])
def test_reading_late_changes_no_batch(
    reading: Reading, sizes: tuple[int, ...], granularity: int, max_wait: float | None
) -> None:
    log = Log({p: records(p, n) for p, n in enumerate(sizes)})
    found = []
    for seed, kind in enumerate((PartitionReader, LazyReader)):
        source, feed = reading(log, 1.0, seed, kind=kind, max_wait=max_wait)
        for i in range(20):
            feed.add(feed.started + 1 + i, ends_of(log, (i + 1) / 20))
        found.append([(a.ranges, a.positions) for a in take_all(source, 40, granularity, True)])
    assert found[0] == found[1]
    assert len(found[0]) >= sum(sizes) // 40


@pytest.mark.parametrize("sizes", [(200, 200, 200), (7, 500, 93), (600,)])
def test_a_batch_is_wanted_at_once_and_not_before_its_offsets_are_there(
    reading: Reading, sizes: tuple[int, ...]
) -> None:
    log = Log({p: records(p, n, gap=1) for p, n in enumerate(sizes)})
    source, feed = reading(log, 1.0, kind=LazyReader)
    reader: Any = source._reader
    for batch in range(1, 4):
        source.set_plan(plan(200))
        assert not source.read_ahead()
        # Each third of all records is a batch, or one record less.
        before, after = ([math.ceil(n * thirds / 3) for n in sizes] for thirds in (batch - 1, batch))
        for share in (0.2, 0.7, 0.95):
            ends = [a + int((b - a) * share) for a, b in zip(before, after, strict=True)]
            feed.add(feed.started + batch + share / 2, dict(enumerate(ends)))
        assert source.poll() is None
        assert reader.calls == batch - 1
        feed.add(feed.started + batch + 0.9, dict(enumerate(after)))
        assert source.poll() is not None
        assert reader.calls == batch


def test_a_late_cut_has_all_that_its_offsets_cover(reading: Reading) -> None:
    log = Log({p: records(p, 50, gap=1) for p in range(2)})
    source, feed = reading(log, 1.0, kind=LazyReader, max_wait=2.0)
    source.set_plan(plan(1000))
    feed.add(feed.started + 1, {0: 20, 1: 0})
    assert source.poll() is None
    assert log.polls == {}
    feed.add(feed.started + 1.9, {0: 31, 1: 9})
    feed.add(feed.started + 3, {0: 40, 1: 50})
    taken = source.poll()
    assert taken is not None
    assert [(r.partition, r.count) for r in taken.ranges] == [(0, 31), (1, 9)]


# -- a reservation that is read again ------------------------------------------------


def test_a_reservation_is_read_again_whatever_is_read_first(reading: Reading) -> None:
    log = Log({p: records(p, 100) for p in range(3)})
    first = begun(reading, log, plan(50, 2), 0.0)[0].poll()
    assert first is not None
    for seed in range(5):
        again = reading(log, 0.0, seed)[0].read_reserved(first.ranges[::-1], 2)
        assert again is not None
        assert (again.ranges, again.positions) == (first.ranges, first.positions)
        np.testing.assert_array_equal(again.batch.packed().rows, first.batch.packed().rows)


@pytest.mark.parametrize(
    ("start", "count", "last", "same"),
    [(0, 20, 199, True), (0, 21, 199, False), (2, 19, 199, False), (0, 20, 38, False)],
)
def test_a_reservation_whose_records_are_not_the_same_is_none(
    reading: Reading, start: int, count: int, last: int, same: bool
) -> None:
    source, _ = reading(Log({0: records(0, 100)}), 0.0, last=last)
    reserved = OffsetRange(partition=0, start=start, end=39, count=count)
    assert (source.read_reserved([reserved]) is not None) == same


@pytest.mark.parametrize("gone", [0, 7, 19], ids=["first", "midst", "last"])
@pytest.mark.parametrize("came", [False, True], ids=["none-came", "another-came"])
def test_a_reservation_of_which_a_record_has_vanished_is_none(
    reading: Reading, gone: int, came: bool
) -> None:
    """A transaction may count as committed when its records are reserved, and as aborted later.

    Another record at a formerly empty offset keeps the count. The successor does not know the counted offsets
    otherwise: it answers for the present records within the charged range, or not at all.
    """
    log = Log({0: records(0, 100)})
    reserved = OffsetRange(partition=0, start=0, end=39, count=20)
    del log.partitions[0][gone]
    if came:
        # The odd offset had no record before.
        log.partitions[0].insert(3, Message(log.partitions[0][2].offset + 1, b"new"))
    again = reading(log, 0.0)[0].read_reserved([reserved])
    if not came or gone == 19:
        assert again is None
    else:
        assert again is not None
        assert (again.ranges, len(again.batch), again.positions) == ((reserved,), 20, {0: 39})


def test_a_reservation_that_is_not_delivered_loses_the_session(
    reading: Reading, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log({0: records(0, 10), 1: records(1, 100)})
    monkeypatch.setattr(protocol_module, "_STALL_SECONDS", 0.05)
    ranges = [OffsetRange(partition=p, start=0, end=39, count=20) for p in range(2)]
    with pytest.raises(SessionLost, match="t-0 cannot be read to 39: it stops at 19"):
        reading(log, 0.0)[0].read_reserved(ranges)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_fetch_that_a_stop_interrupts_ends_reading(reading: Reading, lazy: bool) -> None:
    class Stopped(LazyReader if lazy else PartitionReader):  # type: ignore[misc]
        def fetch(self, wanted: Mapping[int, int], ends: Mapping[int, int]) -> None:
            made[0].stop()

    made: list[Source] = []
    log = Log({0: records(0, 100)})
    ranges = [OffsetRange(partition=0, start=0, end=39, count=20)]
    for act, *given in (("poll",), ("read_ahead",), ("read_reserved", ranges)):
        source, _ = begun(reading, log, plan(10), kind=Stopped)
        made[:] = [source]
        assert not getattr(source, act)(*given)
    assert log.polls == {}


# -- a topic that loses its tail -----------------------------------------------------


def after_a_batch(reading: Reading, log: Log, count: int, **how: int) -> tuple[Source, OffsetFeed]:
    """Return a source after 40 records that needs newer end offsets for ``count`` more."""
    source, feed = reading(log, 0.0, **how)
    feed.add(feed.started + 1, ends_of(log, 0.5))
    source.set_plan(plan(40))
    assert source.poll() is not None
    source.set_plan(plan(count))
    return source, feed


def test_an_end_below_the_position_stops_the_stream(reading: Reading) -> None:
    log = Log({p: records(p, 100) for p in range(2)})
    source, feed = after_a_batch(reading, log, 100, last=30)
    feed.add(feed.started + 2, {0: 30, 1: 199})
    lost = "'t', partition 0: the records at offsets 30 to 38, which the stream has passed, are lost"
    with pytest.raises(RecordsLost, match=lost):
        source.poll()


def test_a_stable_offset_that_falls_for_a_moment_is_waited_for(reading: Reading) -> None:
    source, feed = after_a_batch(reading, Log({p: records(p, 100) for p in range(2)}), 100)
    feed.add(feed.started + 2, {0: 0, 1: 199})
    feed.add(feed.started + 3, {0: 199, 1: 199})
    taken = source.poll()
    assert taken is not None
    assert [r.start for r in taken.ranges] == [39, 39]


def test_a_stream_that_may_skip_goes_on_behind_what_was_lost(reading: Reading) -> None:
    log = Log({0: records(0, 100)})
    source, feed = after_a_batch(reading, log, 60, skip=True)
    position = source.positions[0]
    feed.add(feed.started + 2, {0: 30})
    assert source.poll() is None
    feed.add(feed.started + 3, ends_of(log))
    taken = source.poll()
    assert taken is not None
    assert [r.start for r in taken.ranges] == [position]


def test_a_partition_that_the_broker_names_later_begins_at_its_position(reading: Reading) -> None:
    """Brokers with old metadata omit partitions for a moment: from the first offset records would repeat."""
    log = Log({p: records(p, 100) for p in range(2)})
    source, feed = reading(log, 0.0, named=[0], positions={0: 10, 1: 50})
    feed.add(feed.started + 1, ends_of(log))
    source.set_plan(plan(20))
    taken = source.poll()
    assert taken is not None
    assert [r.start for r in taken.ranges] == [10, 50]


@pytest.mark.parametrize("offsets", [[5, 7, 7], [5, 6, 4], [4, 5, 6]])
def test_offsets_that_do_not_rise_are_refused(offsets: list[int]) -> None:
    buffer, one = PartitionBuffer(5), np.ones(3, dtype=np.int64)
    for good, wrong in (([], offsets), ([5, 6, 9], [9, 10, 11])):
        if good:
            buffer.append(Chunk(np.array(good), one, one))
        with pytest.raises(ValueError, match="do not rise"):
            buffer.append(Chunk(np.array(wrong), one, one))
