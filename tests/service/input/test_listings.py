"""The clock's ticks and listings alone decide which schemas decode a record."""

from __future__ import annotations

import math
import tracemalloc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.reading import FieldReader
from streaming_pca.data.features.records import AVRO, Schemas, Subject
from streaming_pca.service.input import partition_reader as reader_module
from streaming_pca.service.input.cut import BatchCutter
from streaming_pca.service.input.end_offsets import EndOffsets, OffsetFeed
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.source import OffsetBatch, Source
from tests.data.features.formats import avro_record, in_avro
from tests.data.features.registered import framed, schema_of
from tests.service.input.test_source import FakeConsumer, Log, Message, plan, read_from

SUBJECT = Subject("t-value", "avro")
OLD = avro_record({"a": "double"})
NEW = avro_record({"b": "string", "a": "double"})
FIRST: Schemas = {1: schema_of(OLD)}
BOTH: Schemas = {**FIRST, 2: schema_of(NEW)}

Event = tuple[str, float, Any]


def feed_of() -> OffsetFeed:
    feed = OffsetFeed("t", lambda: None, subject=SUBJECT)
    feed.started = feed.ticked = 0.0
    return feed


def report(feed: OffsetFeed, event: Event) -> None:
    kind, at, what = event
    if kind == "tick":
        feed.add(at, what, at + 0.5)
    else:
        feed.add_listing(at, what)


def drain(feed: OffsetFeed) -> list[EndOffsets]:
    return list(iter(feed.next, None))


def test_a_tick_waits_for_a_listing_that_began_after_its_ends_were_known() -> None:
    feed = feed_of()
    feed.add(1.0, {0: 5}, 1.5)
    assert feed.peek() is None
    # This listing may have been answered before the last record below the ends was written.
    feed.add_listing(1.2, FIRST)
    assert feed.peek() is None
    assert feed.schemas is FIRST
    feed.add_listing(1.6, BOTH)
    assert drain(feed) == [EndOffsets(1.0, {0: 5}, BOTH)]
    assert feed.last == {0: 5}


def test_new_schemas_are_new_end_offsets_even_where_no_record_came() -> None:
    feed = feed_of()
    for event in [("tick", 1, {0: 5}), ("list", 2, FIRST), ("tick", 3, {0: 5}), ("list", 4, BOTH)]:
        report(feed, event)
    assert drain(feed) == [EndOffsets(1, {0: 5}, FIRST), EndOffsets(3, {0: 5}, BOTH)]


def test_an_hour_of_ticks_without_a_listing_takes_little_memory() -> None:
    """A dictionary for each tick's 100 end offsets would take 130 MB."""
    feed, ticks, partitions = feed_of(), 1800, 100
    tracemalloc.start()
    try:
        for at in range(1, ticks + 1):
            report(feed, ("tick", at, {p: 1000 * at + p for p in range(partitions)}))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held / ticks < 8 * partitions + 500
    report(feed, ("list", ticks + 1, FIRST))
    found = drain(feed)
    assert [each.time for each in found] == list(range(1, ticks + 1))
    assert found[-1].ends == {p: 1000 * ticks + p for p in range(partitions)}


def test_a_feed_without_a_subject_holds_nothing_back() -> None:
    feed = OffsetFeed("t", lambda: None)
    feed.add(1, {0: 5})
    assert drain(feed) == [EndOffsets(1, {0: 5}, None)]


def events_of(steps: Sequence[tuple[str, int]]) -> tuple[list[Event], list[Event]]:
    """Return ticks, and listings, some with a new schema; a step takes a second."""
    end, versions = 0, [dict(FIRST)]
    ticks: list[Event] = []
    listings: list[Event] = []
    for at, (kind, more) in enumerate(steps, 1):
        if kind == "tick":
            end += more
            ticks.append((kind, at, {0: end}))
        else:
            if more == 0:
                versions.append({**versions[-1], 100 + at: FIRST[1]})
            listings.append((kind, at, versions[-1]))
    return ticks, listings


schedules = st.lists(st.tuples(st.sampled_from(["tick", "list"]), st.integers(0, 3)), max_size=30)


@given(schedules, st.data())
def test_no_delay_of_an_answer_changes_what_is_valid_at_a_tick(
    steps: Sequence[tuple[str, int]], data: st.DataObject
) -> None:
    ticks, listings = events_of(steps)
    expected = []
    for _, at, ends in ticks:
        valid = next((what for _, began, what in listings if began >= at + 0.5), None)
        if valid is None:
            break
        if not expected or (ends, valid) != (expected[-1].ends, expected[-1].schemas):
            expected.append(EndOffsets(at, ends, valid))
    feed, found = feed_of(), []
    while ticks or listings:
        # Each of the clock's two threads keeps its own order; the two may interleave arbitrarily.
        from_ticks = data.draw(st.booleans()) if ticks and listings else bool(ticks)
        report(feed, (ticks if from_ticks else listings).pop(0))
        if data.draw(st.booleans()):
            found += drain(feed)
    assert found + drain(feed) == expected


@given(schedules, st.integers(1, 4), st.integers(1, 6), st.data())
def test_no_delay_changes_where_and_by_what_a_late_batch_is_cut(
    steps: Sequence[tuple[str, int]], planned: int, wait: int, data: st.DataObject
) -> None:
    ticks, listings = events_of(steps)

    def batches(slowly: bool) -> list[tuple[float, int, Schemas | None]]:
        feed, taken, found = feed_of(), 0, []
        cutter, left = BatchCutter(feed, float(wait)), (list(ticks), list(listings))
        looked: list[EndOffsets] = []

        def quotas_at(ends: EndOffsets, late: bool) -> list[int] | None:
            looked[:] = [ends]
            there = ends.ends[0] - taken
            return [there if late else planned] if there >= (1 if late else planned) else None

        while left[0] or left[1]:
            from_ticks = data.draw(st.booleans()) if slowly and left[0] and left[1] else bool(left[0])
            report(feed, left[0 if from_ticks else 1].pop(0))
            while (not slowly and not left[0] and not left[1]) or (slowly and data.draw(st.booleans())):
                quotas = cutter.next_quotas(quotas_at)
                if quotas is None:
                    break
                taken += quotas[0]
                found.append((cutter._last_cut, quotas[0], looked[0].schemas))
        while slowly and (quotas := cutter.next_quotas(quotas_at)) is not None:
            taken += quotas[0]
            found.append((cutter._last_cut, quotas[0], looked[0].schemas))
        return found

    assert batches(slowly=True) == batches(slowly=False)


def records(count: int, change: int) -> list[Message]:
    """Return records of the old schema and, from ``change`` on, of either schema."""
    made = []
    for i in range(count):
        new = i >= change and i % 3 != 0
        value = in_avro(NEW, {"a": float(i), "b": "x"}) if new else in_avro(OLD, {"a": float(i)})
        made.append(Message(i, framed(2 if new else 1, value)))
    return made


def codec_of(schemas: Schemas | None) -> PayloadCodec:
    assert schemas is not None
    fields = FieldReader([Feature(name="a")], None, None, schemas)
    return PayloadCodec(1, content_type=AVRO, fields=fields)


@pytest.mark.parametrize("ahead", [0.0, 1.0])
@pytest.mark.parametrize("cut_first", [True, False])
@pytest.mark.parametrize(("granularity", "skip"), [(1, False), (2, True)])
def test_a_record_is_decoded_by_the_schemas_of_the_tick_that_cuts_it(
    ahead: float, cut_first: bool, granularity: int, skip: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log({0: records(60, 30), 1: records(60, 30)})
    made: list[Schemas | None] = []
    read_from(log, monkeypatch)
    monkeypatch.setattr(FakeConsumer, "unsubscribe", lambda self: None, raising=False)
    monkeypatch.setattr(reader_module, "close_reader", lambda _: None)
    stream = StreamSettings(name="s", input="t", dim=1, rank=1, epsilon=1, delta=1e-6)
    feed = feed_of()
    reader = PartitionReader(KafkaSettings(), stream, codec_of(FIRST), 2, skip, feed.check)

    def make(schemas: Schemas | None) -> PayloadCodec:
        made.append(schemas)
        return codec_of(schemas)

    source = Source(reader, "t", [0, 1], {}, {}, feed, skip, None, ahead, FIRST, make)
    taken: list[OffsetBatch] = []

    def take() -> None:
        source.set_plan(plan(40, granularity))
        while (cut := source.poll()) is not None:
            taken.append(cut)
            while source.read_ahead():
                pass
            source.set_plan(plan(40, granularity))

    # The first tick knows only the old schema, though records of the new schema exist already.
    report(feed, ("tick", 1, {0: 40, 1: 40}))
    report(feed, ("list", 2, FIRST))
    if cut_first:
        take()
    report(feed, ("tick", 3, {0: 60, 1: 60}))
    report(feed, ("list", 4, BOTH))
    take()
    source.close()
    assert [cut.schemas for cut in taken] == [FIRST, FIRST, BOTH]
    assert made == [BOTH]
    found = [cut.batch.packed().rows[:, 0].tolist() for cut in taken]
    # Records of the new schema are null in the second batch.
    offsets = [range(20), [i for i in range(20, 40) if i < 30 or i % 3 == 0], range(40, 60)]
    assert [sorted(each) for each in found] == [sorted([*each, *each]) for each in offsets]
    assert [len(cut.batch) for cut in taken] == [40, 40, 40]
    assert not any(math.isnan(x) for each in found for x in each)
    np.testing.assert_equal(taken[-1].positions, {0: 60, 1: 60})
