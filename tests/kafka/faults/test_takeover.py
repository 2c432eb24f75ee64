"""Standbys, zombies and clean stops, and batches that can no longer be finished."""

from __future__ import annotations

import json
import signal
import time
from typing import Any

import pytest

from streaming_pca.data.release import Release
from streaming_pca.privacy.ledger.entries import Abandoned, Committed, Reserved
from streaming_pca.privacy.ledger.protocol import BatchStatus
from tests.kafka.child import Strike
from tests.kafka.conftest import Make
from tests.kafka.stream import ENDLESS, Child, Stream, all_at_once, check_books, have_released, ranges_of
from tests.waiting import wait_for

SHORT = {"partitions": 2, "options": {"n_records": 120, "n_batches": 3}}


def written(stream: Stream) -> tuple[Any, ...]:
    """Return everything that a stream has written."""
    return stream.entries(), stream.release_values(), [d for _, d in stream.checkpoints()]


def stopped_at(stream: Stream, *strike: Any) -> Child:
    """Start a leader that stops itself at a step, and wait until it has stopped."""
    leader = stream.start(strike=Strike(*strike, what="SIGSTOP"))
    wait_for("the leader to stop itself", leader.is_stopped)
    return leader


# -- standbys --------------------------------------------------------------


@pytest.mark.parametrize(
    "step", ["reserve.5 read back", pytest.param("commit.4 offsets", marks=pytest.mark.soak)]
)
def test_a_hot_standby_waits_for_the_session_alone(make_stream: Make, step: str) -> None:
    """It does not wait for the leader's open transaction, because fencing aborts it."""
    stream = make_stream(**SHORT, session_ms=6000)  # the default
    stream.settings = stream.changed("kafka", transaction_timeout_ms=600_000)
    leader = stream.start(strike=Strike(step, "after", nth=2, what="wait"))
    leader.logs("leading stream")
    standby = stream.start()
    standby.logs("standing by")
    stream.produce_vectors(stream.vectors(120))
    leader.strikes()
    assert "leading" not in standby.log
    leader.signal(signal.SIGKILL)
    # 8 s on an idle machine; a fifth of the transaction timeout on any machine.
    standby.logs("batch 2 released")
    standby.ends_well()
    check_books(stream)


def test_a_joining_standby_takes_nothing_away(make_stream: Make) -> None:
    stream = make_stream(**ENDLESS, session_ms=300_000)
    stream.produce_vectors(stream.vectors(40))
    leader = stream.start()
    leader.logs("batch 1 released")
    standby = stream.start()
    standby.logs("standing by")
    time.sleep(2)
    stream.produce_vectors(stream.vectors(40, seed=1))
    leader.logs("batch 2 released")
    assert "leading" not in standby.log
    assert "no longer" not in leader.log
    # When the leader leaves properly, no standby waits for its session to end.
    leader.stop()
    standby.logs("leading stream", 200)  # its next heartbeat reports it, after 60 s at most
    standby.stop()
    check_books(stream)


def test_a_standby_ends_with_the_stream(make_stream: Make) -> None:
    stream = make_stream(**SHORT)
    workers = [stream.start(), stream.start()]
    stream.produce_vectors(stream.vectors(120))
    assert [w.ends() for w in workers] == [0, 0]
    check_books(stream)
    assert len(stream.releases()) == 3


# -- zombies ---------------------------------------------------------------


def test_a_zombie_leaves_no_trace(make_stream: Make) -> None:
    cases = [
        ("reserve.1 dry run", "after"),
        ("reserve.3 RESERVED", "after"),
        ("reserve.4 commit", "before"),
        ("reserve.4 commit", "after"),
        ("commit.1 begin", "before"),
        ("commit.4 offsets", "after"),
        ("commit.5 commit", "after"),
        ("publish.3 RELEASED", "after"),
    ]
    all_at_once(leave_no_trace, [(make_stream(**SHORT), *case) for case in cases])


def leave_no_trace(stream: Stream, step: str, when: str) -> None:
    stream.produce_vectors(stream.vectors(120))
    zombie = stopped_at(stream, step, when, 2)
    stream.run()
    check_books(stream)
    before = written(stream)
    zombie.signal(signal.SIGCONT)
    # Its transaction fails, it takes over properly, and finds everything done.
    zombie.ends()
    assert "Traceback" not in zombie.log
    assert written(stream) == before


def test_a_zombie_stands_by_while_its_successor_leads(make_stream: Make) -> None:
    # The default session timeout: if the machine stalls for longer, the successor's session ends too, and
    # the zombie may lead again before it notices that it had lost the lead.
    stream = make_stream(**ENDLESS, session_ms=6000)
    stream.produce_vectors(stream.vectors(80))
    zombie = stopped_at(stream, "commit.5 commit", "before", 2)
    successor = stream.start()
    successor.logs("batch 2 released")
    zombie.signal(signal.SIGCONT)
    zombie.logs("session lost, recovering from the topics")
    zombie.logs("no longer leading")
    stream.produce_vectors(stream.vectors(80, seed=1))
    wait_for("four releases", lambda: have_released([stream], 4), pause=0.2)
    for worker in (zombie, successor):
        worker.signal(signal.SIGTERM)
    for worker in (zombie, successor):
        worker.ends()
    check_books(stream)
    assert [r.batch for r in stream.releases()] == [1, 2, 3, 4]


# -- clean stops -----------------------------------------------------------


def test_a_batch_in_hand_is_finished_when_told_to_stop(make_stream: Make) -> None:
    cases = [
        ("take_over.2 ends", "after"),
        ("reserve.1 dry run", "before"),
        ("reserve.4 commit", "after"),
        ("commit.2 state", "after"),
        ("commit.6 read back", "after"),
        ("publish.4 commit", "before"),
    ]
    all_at_once(finish_when_told_to_stop, [(make_stream(**ENDLESS), *case) for case in cases])


def finish_when_told_to_stop(stream: Stream, step: str, when: str) -> None:
    stream.produce_vectors(stream.vectors(200))
    nth = 1 if step.startswith("take_over") else 2
    stream.run(strike=Strike(step, when, nth, "SIGTERM"))
    phase = stream.replay().job(stream.settings.stream.name).phase
    assert phase is (BatchStatus.NONE if nth == 1 else BatchStatus.RELEASED)
    assert len(stream.releases()) == (0 if nth == 1 else 2)
    if nth == 2:
        check_books(stream)


def test_records_that_do_not_fill_a_batch_are_dropped_when_told_to_stop(make_stream: Make) -> None:
    stream = make_stream(**ENDLESS)
    stream.produce_vectors(stream.vectors(39))
    worker = stream.start()
    worker.logs("leading stream")
    time.sleep(2)
    worker.stop()
    assert stream.own(Reserved) == []


# -- batches that cannot be finished ---------------------------------------


def left_open(stream: Stream) -> Reserved:
    """Kill a leader right after it reserves its second batch."""
    stream.crash(Strike("reserve.5 read back", "after", 2))
    return stream.own(Reserved)[-1]


def test_changed_parameters_abandon_the_open_batch(make_stream: Make) -> None:
    stream = make_stream(**SHORT)
    stream.produce_vectors(stream.vectors(160))
    reserved = left_open(stream)
    changed = stream.changed(options=stream.settings.stream.options | {"clip_quantile": 0.8})
    worker = stream.run(changed)
    assert "batch 2 abandoned: the mechanism's parameters changed" in worker.log
    expect_abandoned(stream, reserved)


@pytest.mark.parametrize("lost_records", ["stop", "skip"])
def test_deleted_records_abandon_the_open_batch(make_stream: Make, lost_records: str) -> None:
    stream = make_stream(**SHORT, lost_records=lost_records)
    stream.produce_vectors(stream.vectors(160))
    reserved = left_open(stream)
    first = reserved.ranges[0]
    stream.delete_before({first.partition: first.end - 1})
    worker = stream.run()
    assert "batch 2 abandoned: records are gone" in worker.log
    expect_abandoned(stream, reserved)


def expect_abandoned(stream: Stream, reserved: Reserved) -> None:
    """Check that the charge stays, and that the stream continued after the batch."""
    check_books(stream)
    assert [e.batch for e in stream.own(Abandoned)] == [2]
    assert [e.batch for e in stream.own(Committed)] == [1, 3, 4]
    ranges = ranges_of(stream)
    assert ranges[1] == reserved.ranges
    assert [r.start for r in ranges[2]] == [r.end for r in reserved.ranges]
    ledger = stream.replay()
    assert all(ledger.spent(r.partition, r.start) == reserved.charge for r in reserved.ranges)


def test_a_changed_batch_size_still_finishes_the_open_batch(make_stream: Make) -> None:
    stream = make_stream(**ENDLESS)
    stream.produce_vectors(stream.vectors(160))
    left_open(stream)
    options = stream.settings.stream.options | {"batch_size": 20}
    stream.run_until("batch 3 released", stream.changed(options=options))
    check_books(stream)
    assert [r.records for r in stream.releases()][:3] == [40, 80, 100]


def test_a_position_that_retention_deleted_is_an_error_with_nothing_charged(make_stream: Make) -> None:
    stream = make_stream(**ENDLESS)
    stream.produce_vectors(stream.vectors(60))
    stream.run_until("batch 1 released")
    stream.produce_vectors(stream.vectors(60, seed=1))
    stream.delete_before({0: 30})
    before = written(stream)

    line = stream.start().refusal()
    assert "the records at offsets 20 to 29 were deleted by retention before they were read" in line
    assert "nothing was charged" in line
    assert written(stream) == before

    stream.run_until("batch 2 released", stream.changed(lost_records="skip"))
    check_books(stream)
    assert [r.start for r in ranges_of(stream)[1]] == [30, 20]
    spent = stream.replay().spent(0, 25)
    assert spent.epsilon == 0


def with_newer_release(make_stream: Make) -> tuple[Stream, str, Release]:
    """Return a stream with one release, its topic of releases, and a release that no ledger has."""
    stream = make_stream(**ENDLESS)
    stream.produce_vectors(stream.vectors(60))
    stream.run_until("batch 1 released")
    newer = stream.releases()[0].model_copy(update={"batch": 7})
    return stream, stream.settings.stream.releases_topic, newer


def test_a_ledger_older_than_the_releases_is_refused(make_stream: Make) -> None:
    """Ledger and state agree when rolled back together, but the releases reveal it."""
    stream, topic, newer = with_newer_release(make_stream)
    stream.write(topic, newer.to_bytes())
    assert "batch 7 was released, but the ledger ends at batch 1" in stream.start().refusal()
    assert len(stream.own(Reserved)) == 1


def test_messages_of_other_programs_on_the_releases_topic_are_skipped(make_stream: Make) -> None:
    stream, topic, newer = with_newer_release(make_stream)
    stream.write(topic, newer.model_copy(update={"stream": "another"}).to_bytes())
    stream.write(topic, b'{"temperature": 21.5}')
    offset = stream.messages(topic)[-1].offset
    stream.produce_vectors(stream.vectors(60, seed=1))
    child = stream.run_until("batch 2 released")
    assert f"topic '{topic}', offset {offset}: not a release" in child.log

    # A release that cannot be read may be of any batch, and an older one does not make up for it.
    stream.write(topic, json.dumps(json.loads(newer.to_bytes()) | {"batch": "seven"}).encode())
    assert "cannot be read" in stream.start().refusal()


def test_a_newer_release_is_found_below_messages_of_other_programs(make_stream: Make) -> None:
    stream, topic, newer = with_newer_release(make_stream)
    stream.write(topic, newer.to_bytes())
    for _ in range(40):  # more than the first span
        stream.write(topic, newer.model_copy(update={"stream": "another"}).to_bytes())
    assert "batch 7 was released, but the ledger ends at batch 1" in stream.start().refusal()
