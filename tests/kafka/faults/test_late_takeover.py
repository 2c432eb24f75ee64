"""A worker sleeps in the middle of its take-over, while its successor continues.

It then reads data of two different moments. It has been fenced, so it must not refuse the stream for that.
"""

from __future__ import annotations

import signal
from contextlib import closing, suppress

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.commit import checkpoint
from streaming_pca.service.commit.checkpoint import CheckpointWriter
from streaming_pca.service.errors import SessionLost
from tests.kafka.child import Strike
from tests.kafka.conftest import Make, Patch
from tests.kafka.faults.test_crashes import STEPS
from tests.kafka.stream import ENDLESS, Stream, all_at_once, check_books
from tests.waiting import wait_for

MOMENTS = [step for step in STEPS if step.startswith("take_over.")]


def test_one_that_sleeps_while_it_takes_over_refuses_nothing(make_stream: Make) -> None:
    """A worker of each stream sleeps, after another step."""
    all_at_once(sleep_and_continue, [(make_stream(**ENDLESS), step) for step in MOMENTS])


def sleep_and_continue(stream: Stream, step: str) -> None:
    """Let a worker sleep after a step of its take-over while a successor leads."""
    stream.produce_vectors(stream.vectors(40))
    stream.run_until("batch 1 released")
    sleeper = stream.start(strike=Strike(step, "after", what="SIGSTOP"))
    wait_for(f"the sleeper to stop itself after {step}", sleeper.is_stopped)
    stream.produce_vectors(stream.vectors(40, seed=1))
    successor = stream.start()
    successor.logs("batch 2 released")
    sleeper.signal(signal.SIGCONT)
    wait_for(
        "the sleeper to notice",
        lambda: "no longer leading" in sleeper.log or sleeper.status() is not None,
        seen=lambda: sleeper.log,
    )
    for worker in (sleeper, successor):
        if worker.status() is None:
            worker.signal(signal.SIGTERM)
    # 4: stopped while its lost session still ends. Not 2, which would be a refusal.
    assert sleeper.ends() in (0, 4), sleeper.log
    assert successor.ends() == 0, successor.log
    check_books(stream)


def test_a_state_newer_than_the_ledgers_end_is_no_reason_to_refuse(
    make_stream: Make, monkeypatch: Patch
) -> None:
    """A successor may commit between the reads of the two ends."""
    stream = make_stream(**ENDLESS)
    stream.produce_vectors(stream.vectors(40))
    stream.run_until("batch 1 released")
    stream.produce_vectors(stream.vectors(40, seed=1))
    original, runs = checkpoint.high_watermark, 0

    def high_watermark(kafka: KafkaSettings, topic: str) -> int:
        nonlocal runs
        if topic == stream.settings.stream.state_topic:
            runs += 1
            if runs == 1:
                stream.run_until("batch 2 released")
        return original(kafka, topic)

    monkeypatch.setattr(checkpoint, "high_watermark", high_watermark)
    writer = CheckpointWriter(stream.settings.kafka, stream.settings.stream, stream.topic_id)
    # It has been fenced, so nothing that it finds may make it refuse the stream.
    with closing(writer), suppress(SessionLost):
        writer.take_over()
    assert runs


def test_one_that_sleeps_before_it_reserves_is_not_refused_for_what_its_successor_has_charged(
    make_stream: Make,
) -> None:
    """Its own stream has already charged the records that it is about to reserve."""
    stream = make_stream(**ENDLESS)
    stream.produce_vectors(stream.vectors(40))
    sleeper = stream.start(strike=Strike("reserve.1 dry run", "before", nth=2, what="SIGSTOP"))
    sleeper.logs("batch 1 released")
    stream.produce_vectors(stream.vectors(40, seed=1))
    wait_for("the sleeper to stop itself", sleeper.is_stopped)
    stream.crash(Strike("reserve.5 read back"))
    sleeper.signal(signal.SIGCONT)
    sleeper.logs("batch 2 released")
    sleeper.stop()
    check_books(stream)
