"""A second stream on a used topic begins after spent records, also after crashes."""

from __future__ import annotations

import json
import signal

import pytest

from streaming_pca.admin.broker_status import describe_status
from streaming_pca.admin.ledger import describe_ledger
from streaming_pca.admin.pause import pause, resume
from streaming_pca.admin.topics import check_streams
from streaming_pca.privacy.ledger.entries import OffsetPosition, Reserved, Started, encode_entry
from streaming_pca.service.commit.verification import verify_ledger
from tests.kafka.child import Strike
from tests.kafka.conftest import Make
from tests.kafka.stream import Stream, check_books, ranges_of, start_together
from tests.waiting import wait_for

HOW = {"partitions": 2, "options": {"n_records": 60, "n_batches": 1}}


def second_on(first: Stream, make_stream: Make, **how: object) -> Stream:
    """Make another stream on the input of a first, whose ledger is open."""
    return make_stream("second", input=first.settings.stream.input, cap=None, **HOW | how)


def starts_of(stream: Stream) -> dict[int, int]:
    (entry,) = stream.own(Started)
    return {p.partition: p.offset for p in entry.positions}


def test_a_stream_on_spent_records_is_told_of_the_way_out_and_takes_it(make_stream: Make) -> None:
    first = make_stream(**HOW)
    first.produce_vectors(first.vectors(60))
    first.run()
    stuck = second_on(first, make_stream)
    refused = stuck.start().refusal(3)
    assert 'stream.start = "latest" starts it after the records that exist now' in refused
    # The remedy from the message: the same stream, which has not reserved a batch.
    worker = stuck.start(stuck.changed(start="latest"))
    worker.logs("the stream begins at the latest records")
    stuck.produce_vectors(stuck.vectors(60, seed=1))
    worker.ends_well()
    ends = {p: offsets[29] + 1 for p, offsets in stuck.input_offsets().items()}
    assert starts_of(stuck) == ends
    assert {r.partition: r.start for r in ranges_of(stuck)[0]} == ends
    check_books(stuck)
    check_books(first)
    assert check_streams([first.settings]) == []
    assert check_streams([stuck.changed(start="latest")]) == [stuck.settings.stream.name]
    # Now that it has begun, both settings give the same stream.
    for start in ("earliest", "latest"):
        assert stuck.run(stuck.changed(start=start)).status() == 0
    assert len(stuck.own(Started)) == len(stuck.own(Reserved)) == 1
    kafka, topic = stuck.settings.kafka, stuck.settings.stream.input
    assert verify_ledger(kafka, topic).ok
    shown = [e for e in describe_ledger(kafka, topic)["entries"] if e["kind"] == "STARTED"]
    assert [{p["partition"]: p["offset"] for p in e["positions"]} for e in shown] == [ends]


@pytest.mark.parametrize(
    "strike", ["start.2 STARTED", "start.4 read back", "reserve.5 read back", "commit.1 begin"]
)
def test_a_kill_before_the_first_commit_neither_skips_nor_rereads(make_stream: Make, strike: str) -> None:
    stream = make_stream(start="latest", **HOW)
    stream.produce_vectors(stream.vectors(40))
    old = {p: offsets[-1] + 1 for p, offsets in stream.input_offsets().items()}
    worker = stream.start(strike=Strike(strike))
    if strike.startswith(("reserve", "commit")):
        worker.logs("the stream begins at the latest records")
        # To one partition only: the other has no reservation, and must not be read from its first record.
        stream.produce_vectors(stream.vectors(60, seed=1), to=lambda i: 0)
    assert worker.ends() == -signal.SIGKILL, worker.log
    begun = bool(stream.own(Started))
    # If the kill came before STARTED was committed, the next worker begins again.
    assert begun == (strike != "start.2 STARTED")
    if strike == "start.4 read back":
        # They arrive while no worker runs, and are not skipped.
        stream.produce_vectors(stream.vectors(60, seed=1), to=lambda i: 0)
    worker = stream.start(stream.changed(start="earliest") if begun else None)
    if not begun:
        worker.logs("the stream begins at the latest records")
        stream.produce_vectors(stream.vectors(60, seed=1), to=lambda i: 0)
    worker.ends_well()
    assert starts_of(stream) == old
    found = [(r.partition, r.start, r.count) for batch in ranges_of(stream) for r in batch]
    assert found == [(0, old[0], 60)]
    check_books(stream)
    (facts,) = describe_status([stream.settings])
    assert facts["lag"]["total"] <= 1  # possibly the marker of a transaction
    assert json.loads(stream.release_values()[0])["batch_records"] == 60


def test_pairs_and_users_begin_at_the_latest_records_too(make_stream: Make) -> None:
    pairs = make_stream(start="latest", centering="pairs", **HOW)
    users = make_stream(start="latest", privacy_unit="user", **HOW)
    streams = (pairs, users)
    for stream in streams:
        # An odd number: pairs are counted from the start, not from the first record.
        stream.produce_vectors(stream.vectors(41), to=lambda i: i % 2)
    worker = start_together(*streams)
    worker.until("both starts", lambda: worker.log.count("the stream begins at the latest records") == 2)
    for stream in streams:
        rows = enumerate(stream.vectors(60, seed=1))
        stream.produce_keyed((str(i).encode(), row.tobytes()) for i, row in rows)
    worker.ends_well()
    for stream in streams:
        assert starts_of(stream) == {0: 21, 1: 20}
        assert sum(r.count for r in ranges_of(stream)[0]) == 60
        check_books(stream)


def test_a_new_stream_that_is_paused_before_it_begins_begins_when_it_is_resumed(make_stream: Make) -> None:
    stream = make_stream(start="latest", **HOW)
    stream.produce_vectors(stream.vectors(40))
    pause(stream.settings.kafka, stream.settings.stream, "a test")
    worker = stream.start()
    worker.logs("the stream is paused")
    assert not stream.own(Started)
    stream.produce_vectors(stream.vectors(20))
    resume(stream.settings.kafka, stream.settings.stream, "a test")
    worker.logs("the stream begins at the latest records")
    (facts,) = wait_for("status", lambda: describe_status([stream.settings]))
    assert facts["lag"]["total"] == 0
    stream.produce_vectors(stream.vectors(60, seed=1))
    worker.ends_well()
    assert sum(starts_of(stream).values()) == 60


def test_a_start_that_another_writer_was_faster_with_leaves_the_chain_whole(make_stream: Make) -> None:
    stream = make_stream(start="latest", **HOW)
    stream.produce_vectors(stream.vectors(40))
    worker = stream.start(strike=Strike("start.1 begin", when="before", what="wait"))
    worker.strikes()
    # An import writes without a fence, after fencing the earlier workers.
    earlier = Started(
        topic_id=stream.topic_id,
        job=stream.settings.stream.name,
        previous=stream.replay().job(stream.settings.stream.name).head,
        positions=(OffsetPosition(partition=0, offset=3), OffsetPosition(partition=1, offset=4)),
    )
    stream.write(stream.settings.stream.ledger_topic, encode_entry(earlier))
    worker.let_go()
    stream.produce_vectors(stream.vectors(60, seed=1))
    worker.ends_well()
    assert starts_of(stream) == {0: 3, 1: 4}
    assert {r.partition: r.start for r in ranges_of(stream)[0]} == {0: 3, 1: 4}
    assert verify_ledger(stream.settings.kafka, stream.settings.stream.input).ok


def test_a_stream_whose_first_records_another_spends_is_told_of_a_new_name(make_stream: Make) -> None:
    first = make_stream(**HOW)
    second = second_on(first, make_stream, start="latest")
    begun = second.start()
    begun.logs("the stream begins at the latest records")
    begun.destroy()
    first.produce_vectors(first.vectors(60))
    first.run()
    assert "once that stream has ended, choose a new stream.name" in second.start().refusal(3)
