"""Killed drivers, executors and Python workers lose nothing, charge once and learn the same."""

from __future__ import annotations

import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.privacy.ledger.entries import Abandoned, Committed, Reserved, Started
from tests.kafka.faults.test_crashes import STEPS
from tests.kafka.stream import Stream, check_books
from tests.spark.cluster import Process, SparkCluster, descendants, python_workers
from tests.spark.driver import Hold
from tests.spark.streams import (
    LOCAL,
    PATIENCE,
    SHORT,
    Making,
    Runner,
    Runners,
    at_once,
    check_same,
    on_cluster,
    wait_for_batches,
)
from tests.waiting import wait_for

pytestmark = pytest.mark.timeout(1500)

WORKER: dict[str, Any] = {"stop_when_done": True, "step_deadline_seconds": 300}


# -- the driver, at numbered steps -------------------------------------------------


@dataclass
class Crash:
    """Stream whose driver is killed at a step; at batch steps, in its second batch."""

    step: str
    stream: Stream
    before: list[Any] | None = None

    @property
    def method(self) -> str:
        return self.step.split(".")[0]

    @property
    def hold(self) -> Hold:
        return Hold(self.step, "after", 2 if self.method in ("reserve", "commit", "publish") else 1)


def change_settings(crash: Crash) -> None:
    """Change the stream's settings so that its driver reaches the step."""
    settings = crash.stream.settings
    if crash.method == "start":
        crash.stream.settings = crash.stream.changed(start="latest")
    if crash.method == "abandon":
        options = settings.stream.options | {"clip_radius": 30.0}
        crash.stream.settings = crash.stream.changed(options=options)


@pytest.mark.parametrize("first", [1, pytest.param(0, marks=pytest.mark.soak)])
def test_a_kill_of_the_driver_at_a_step_costs_nothing(
    make_stream: Making, tmp_path: Path, first: int
) -> None:
    """The killed driver has a stream at every second step; test_crashes.py kills the service at each."""
    crashes = at_once(lambda step: Crash(step, make_stream("crash", worker=WORKER, **SHORT)), STEPS[first::2])
    at_once(lambda crash: crash.stream.produce_vectors(crash.stream.vectors(160)), crashes)
    open_first = [crash for crash in crashes if crash.method in ("take_over", "abandon")]
    with Runners(tmp_path) as run:
        # These must have something to find: an open reservation of the service.
        streams = [crash.stream for crash in open_first]
        run.hold_and_kill(streams, "service", [Hold("reserve.5 read back", "after", 2)])
        for crash in crashes:
            change_settings(crash)
        holds = [crash.hold for crash in crashes]
        run.hold_and_kill([crash.stream for crash in crashes], "driver", holds, spark=LOCAL)
        for crash in crashes:
            crash.before = crash.stream.entries()
        finish(run, crashes)
    at_once(check_crash, crashes)


def finish(run: Runners, crashes: list[Crash]) -> None:
    """Finish half of the streams with a driver, half with the service, concurrently."""
    halves = crashes[::2], crashes[1::2]
    runners = [
        run.start([crash.stream for crash in half], name, spark=how)
        for half, name, how in zip(halves, ("driver", "service"), (LOCAL, None), strict=True)
    ]
    starting = [crash.stream for crash in crashes if crash.method == "start"]
    for stream in starting:
        # Its records arrive after either process has fixed the beginning.
        wait_for("STARTED", lambda stream=stream: stream.own(Started), PATIENCE)  # type: ignore[misc]
        stream.produce_vectors(stream.vectors(160, seed=1))
    for runner in runners:
        runner.ends_well()


def check_crash(crash: Crash) -> None:
    """Check a stream's books, and that no entry was lost or written twice."""
    stream = crash.stream
    check_books(stream)
    after = stream.entries()
    assert crash.before is not None
    assert after[: len(crash.before)] == crash.before, crash.step
    # Three batches are learnt; an abandoned batch is not taken again.
    abandoned = crash.method == "abandon"
    assert len(stream.own(Committed, after)) == 3, crash.step
    assert len(stream.own(Abandoned, after)) == abandoned, crash.step
    assert len(stream.own(Reserved, after)) == 3 + abandoned, crash.step
    started = stream.own(Started, after)
    assert [p.offset for e in started for p in e.positions] == [80, 80] * (crash.method == "start")


# -- executors and their Python, in the middle of a batch -----------------------------------

MANY_JOBS: dict[str, Any] = {
    **{"partitions": 2, "estimator": "adaptive-power", "centering": "none", "epsilon": 10.0, "delta": 1e-3},
    "options": {"batch_size": 200, "clip_radius": 20.0, "rounds": 2},
    **{"seed": 5, "worker": {"stop_when_done": False}},
}
"""Settings of an estimator that reads a batch several times."""
TASK_SECONDS = 2.0
"""Time for tasks that Spark has given away to reach stopped executors."""


def two_of_a_topic(make_stream: Making, batches: int) -> tuple[Stream, Stream]:
    """Make two streams of one topic with records for ``batches`` batches: one undisturbed, one to strike."""
    alone = make_stream("alone", cap=("30", "1e-2"), **MANY_JOBS)
    struck = make_stream("struck", cap=None, input=alone.settings.stream.input, **MANY_JOBS)
    alone.produce_vectors(alone.vectors(200 * batches))
    return alone, struck


def strike(runner: Runner, number: int, victims: list[Process], *, tasks: bool = True) -> None:
    """Kill processes that have tasks of a job, after stopping them before the job begins.

    Without ``tasks`` they are what gives tasks away.
    """
    assert victims, "nothing to strike"
    for each in victims:
        assert each.signal(signal.SIGSTOP)
    runner.let_job_go(number)
    if tasks:
        runner.wait_for_tasks(number)
    time.sleep(TASK_SECONDS)
    for each in victims:
        assert each.signal(signal.SIGKILL)


def check_struck(alone: Stream, struck: Stream, batches: int) -> None:
    """Check that a struck stream equals an undisturbed one, with one charge a batch."""
    check_same(alone, struck, batches, alone.entries())
    check_books(struck)
    assert [entry.batch for entry in struck.own(Reserved)] == list(range(1, batches + 1))
    assert struck.own(Abandoned) == []


def test_executors_that_are_killed_in_a_batch_change_nothing(
    make_stream: Making, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """One dies while it sums, one while it reads, and then the Python of both: other tasks replace theirs."""
    batches = 3
    alone, struck = two_of_a_topic(make_stream, batches)
    jobs = [(1, "learning", 2), (2, "reading", 1), (3, "learning", 2)]
    with Runners(tmp_path) as run:
        cluster = on_cluster(spark_cluster.url)
        driver = run.start([struck], "driver", spark=cluster, small=True, jobs=jobs)
        driver.wait_for_job(0)
        before = spark_cluster.wait_for_executors()
        strike(driver, 0, before[:1])
        driver.wait_for_job(1)
        strike(driver, 1, before[1:])
        driver.wait_for_job(2)
        spark_cluster.wait_for_executors()
        strike(driver, 2, spark_cluster.python_workers())
        wait_for_batches(driver, [struck], batches)
        after = spark_cluster.wait_for_executors()
        driver.stop()
        assert {each.pid for each in before}.isdisjoint(each.pid for each in after)
        assert driver.log.count("Lost executor") >= 2, driver.log
        assert "Python worker exited unexpectedly" in driver.log
        assert "session lost" not in driver.log
        run.finish([alone], "alone", batches)
    check_struck(alone, struck, batches)


@pytest.mark.soak
def test_where_no_task_is_tried_again_the_reserved_batch_is(make_stream: Making, tmp_path: Path) -> None:
    """``local[2]`` tries a task once: its job fails, and the next session finishes the batch."""
    batches = 3
    alone, struck = two_of_a_topic(make_stream, batches)
    jobs = [(1, "learning", 2), (3, "learning", 2)]
    with Runners(tmp_path) as run:
        driver = run.start([struck], "driver", spark=LOCAL | {"master": "local[2]"}, jobs=jobs)
        driver.wait_for_job(0)
        strike(driver, 0, python_workers(driver.pid))
        driver.wait_for_job(1)
        # Without Java, no session exists, and the process ends so that another can continue.
        (java,) = [each for each in descendants(driver.pid) if "org.apache.spark.deploy" in each.command]
        strike(driver, 1, [java], tasks=False)
        assert driver.ends() == 4, driver.log
        assert "session lost, recovering from the topics" in driver.log
        assert "finishing a batch that was reserved before" in driver.log
        assert "Traceback" not in driver.log, driver.log
        assert [entry.batch for entry in struck.own(Committed)] != list(range(1, batches + 1))
        run.finish([struck], "driver", batches, spark=LOCAL)
        run.finish([alone], "alone", batches)
    check_struck(alone, struck, batches)
