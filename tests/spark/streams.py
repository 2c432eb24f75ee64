"""Streams that service workers and Spark drivers run in turn, or concurrently on one topic."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from streaming_pca.config.settings import Settings
from streaming_pca.estimators.registry import ESTIMATORS
from streaming_pca.linalg.packed import packed_size
from streaming_pca.local import noise_sigma
from streaming_pca.privacy.ledger.entries import LedgerEntry, Reserved
from streaming_pca.service.commit.verification import verify_ledger
from tests.kafka.stream import Child, Stream, check_books
from tests.kafka.test_every_estimator import BATCH, DIM
from tests.spark import driver
from tests.spark.cluster import Process, descendants
from tests.spark.driver import Hold
from tests.spark.java import IN_CLUSTER, JAVA
from tests.waiting import LIMIT, wait_for

T = TypeVar("T")
PATIENCE = 3 * LIMIT
"""Seconds for what starts a JVM and several processes of Python first."""
Making = Callable[..., Stream]
"""Function that makes a stream, by a stem of its name and settings."""

LOCAL: dict[str, Any] = {"master": "local[2,4]", "conf": {"spark.driver.extraJavaOptions": JAVA}}
"""Spark in the driver's own process, which tries a task up to four times, as a cluster does."""
SELDOM: dict[str, Any] = {"tick_seconds": 0.5}
"""Settings of workers whose batches take seconds: each tick costs two requests to the broker."""
SHORT: dict[str, Any] = {
    **{"partitions": 2, "estimator": "analyze-gauss", "centering": "none", "diagnostics_share": 0.0},
    **{"options": {"n_records": 120, "n_batches": 3, "clip_radius": 20.0}, "seed": 5},
}
"""Stream of three batches with one sum each, for tests of the steps around a batch."""
PROMISE: dict[str, float] = {"epsilon": 20.0, "delta": 1e-3}
OF_REPORTS: dict[str, dict[str, Any]] = {
    name: {"options": {"batch_size": BATCH}, "record_kind": "local", **PROMISE}
    for name, estimator in ESTIMATORS.items()
    if estimator.info.local
}
"""Settings of the estimators that learn from local reports."""


def reports(count: int) -> list[bytes]:
    """Return reports of vectors near the first axis, with noise of the mechanism's scale."""
    dice = np.random.default_rng(3)
    sigma, at = noise_sigma(**PROMISE), np.triu_indices(DIM)
    truth = np.outer(*[np.eye(DIM)[0]] * 2)[at]
    assert truth.size == packed_size(DIM)
    return [(truth + sigma * dice.standard_normal(truth.size)).astype("<f4").tobytes() for _ in range(count)]


def read_all(reader: Any, ends: Mapping[int, int]) -> None:
    """Read a reader's partitions up to their ends."""
    while short := [p for p, end in ends.items() if reader.position(p) < end]:
        reader.fetch({p: reader.buffers[p].count + ends[p] - reader.position(p) for p in short}, ends)


def on_cluster(url: str) -> dict[str, Any]:
    """Return Spark's settings for a standalone cluster of this machine."""
    java = {"spark.driver.extraJavaOptions": JAVA, "spark.executor.extraJavaOptions": IN_CLUSTER}
    loopback = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    conf = {"spark.ui.enabled": False, "spark.executor.memory": "512m", **loopback}
    conf["spark.pyspark.python"] = sys.executable
    return {"master": url, "conf": java | conf}


class Runner(Child):
    """Process of streams: a worker of the service, or a driver if Spark's settings are given.

    In a new election ``group``, the session of a killed worker need not end first.
    """

    def __init__(
        self,
        streams: Sequence[Stream],
        directory: Path,
        *,
        spark: Mapping[str, Any] | None = None,
        holds: Mapping[str, Hold] | None = None,
        group: str | None = None,
        settings: Sequence[Settings] | None = None,
        **how: Any,
    ) -> None:
        chosen = [stream.settings for stream in streams] if settings is None else list(settings)
        if group is not None:
            worker = {"worker": chosen[0].worker.model_copy(update={"group": group})}
            chosen = [each.model_copy(update=worker) for each in chosen]
        self.holds = dict(holds or {})
        self._below: list[Process] = []
        super().__init__(chosen, directory, driver.main, spark=spark, holds=self.holds, **how)

    def wait_until_held(self, seconds: float = PATIENCE) -> None:
        """Wait until every stream that has a hold is held."""

        def missing() -> list[str]:
            return [f"{name}: {hold}" for name, hold in self.holds.items() if not self.has(f"held-{name}")]

        self.until(f"streams to be held: {missing()}", lambda: not missing(), seconds)

    def wait_for_job(self, number: int) -> None:
        """Wait until the process waits before the job with this number."""
        self.until(f"job {number}", lambda: self.has(f"job-{number}"), PATIENCE)

    def let_job_go(self, number: int) -> None:
        (self.directory / f"go-{number}").touch()

    def wait_for_tasks(self, number: int) -> None:
        """Wait until Spark has given tasks of a job to executors."""
        self.until(f"tasks of job {number}", lambda: self.has(f"tasks-{number}"), PATIENCE)

    def ends(self, seconds: float = PATIENCE) -> int:
        return super().ends(seconds)

    def kill(self) -> None:
        """Kill the process by SIGKILL, and wait until its descendants, including the JVM, have ended."""
        self._below = descendants(self.pid)
        self.signal(signal.SIGKILL)
        self.ends()

        def alive() -> list[str]:
            return [str(each) for each in self._below if each.is_alive]

        wait_for("a killed driver's processes to end", lambda: not alive(), seen=lambda: str(alive()))

    def stop(self, seconds: float = PATIENCE) -> None:
        """Stop the process by SIGTERM, unless it has ended, and check its status."""
        if self.status() is None:
            self.signal(signal.SIGTERM)
        assert self.ends(seconds) == 0, self.log

    def destroy(self) -> None:
        below = descendants(self.pid) if self.status() is None else []
        super().destroy()
        for each in [*below, *self._below]:
            each.signal(signal.SIGKILL)


class Runners:
    """Processes of a test, which end with it: a context manager."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self.all: list[Runner] = []

    def __enter__(self) -> Runners:
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.all:
            each.destroy()

    def start(self, streams: Sequence[Stream], name: str, **how: Any) -> Runner:
        """Start a process that is alone in its election."""
        group = how.pop("group", f"{streams[0].settings.stream.name}-{name}-{len(self.all)}")
        made = Runner(streams, self._directory / f"{len(self.all)}-{name}", group=group, **how)
        self.all.append(made)
        return made

    def hold_and_kill(
        self, streams: Sequence[Stream], name: str, holds: Sequence[Hold], **how: Any
    ) -> Runner:
        """Run streams until each is held, at the holds in turn, and kill the process."""
        names = [stream.settings.stream.name for stream in streams]
        mine = {each: holds[i % len(holds)] for i, each in enumerate(names)}
        made = self.start(streams, name, holds=mine, **how)
        made.wait_until_held()
        made.kill()
        return made

    def finish(self, streams: Sequence[Stream], name: str, batches: int, **how: Any) -> Runner:
        """Run streams until each has released ``batches`` batches, and stop the process."""
        made = self.start(streams, name, **how)
        wait_for_batches(made, streams, batches)
        made.stop()
        return made


def wait_for_batches(
    runner: Child, streams: Sequence[Stream], batches: int, seconds: float = PATIENCE
) -> None:
    """Wait until each stream has released ``batches`` batches."""
    names = [stream.settings.stream.name for stream in streams]

    def have_released() -> bool:
        log = runner.log
        return all(f"[{name}] batch {batches} released" in log for name in names)

    runner.until(f"batch {batches} of all streams", have_released, seconds)


# -- comparing two streams of one topic -------------------------------------


@dataclass(frozen=True)
class Facts:
    """A stream's data by batch, without names, times and random salts."""

    reserved: dict[int, Any]
    """Ranges, counts, parameters, promise and charge."""
    states: dict[int, Any]
    """Bytes of the state, positions and leader epochs, for the states that remain."""
    releases: dict[int, Any]


def facts_of(stream: Stream, entries: Sequence[LedgerEntry]) -> Facts:
    """Read what a stream has written; its ledger's entries are given."""
    reserved = {e.batch: (e.ranges, e.parameters, e.promise, e.charge) for e in stream.own(Reserved, entries)}
    kept = [c for c, _ in stream.checkpoints()]
    states = {c.batch: (c.state, c.positions, c.epochs, _anonymous(c.release)) for c in kept}
    found = [json.loads(value) for value in stream.release_values()]
    return Facts(reserved, states, {r["batch"]: _anonymous(r) for r in found})


def _anonymous(release: bytes | dict[str, Any]) -> dict[str, Any]:
    plain = release if isinstance(release, dict) else json.loads(release)
    return {name: value for name, value in plain.items() if name not in ("stream", "created")}


def check_same(expected: Stream, found: Stream, batches: int, entries: Sequence[LedgerEntry]) -> None:
    """Check that two streams have reserved, learnt and published the same, bit by bit."""
    ours, theirs = facts_of(expected, entries), facts_of(found, entries)
    name = found.settings.stream.name
    for batch in range(1, batches + 1):
        for what in ("reserved", "releases"):
            a, b = getattr(ours, what)[batch], getattr(theirs, what)[batch]
            assert a == b, f"{name}: {what} of batch {batch}\n{a}\n{b}"
    both = ours.states.keys() & theirs.states.keys()
    assert batches in both, f"{name}: states of batches {sorted(ours.states)} and {sorted(theirs.states)}"
    for batch in both:
        assert ours.states[batch] == theirs.states[batch], f"{name}: state of batch {batch}"


def check_sets(expected: Sequence[Stream], found: Sequence[Stream], batches: int) -> None:
    """Check that two sets of streams have learnt the same, and check each topic's ledger."""
    topics = {stream.settings.stream.input: stream for stream in expected}
    entries = {topic: stream.entries() for topic, stream in topics.items()}
    mine = [entries[stream.settings.stream.input] for stream in expected]
    at_once(check_same, expected, found, [batches] * len(expected), mine)
    at_once(check_ledger, topics.values())
    # It reads the releases of all jobs of a ledger, so one stream of each topic is enough.
    at_once(check_books, {stream.settings.stream.input: stream for stream in found}.values())


def check_ledger(stream: Stream) -> None:
    """Check that ``streaming-pca ledger verify`` accepts a stream's topic."""
    report = verify_ledger(stream.settings.kafka, stream.settings.stream.input)
    assert report.ok, report.problems


def at_once(function: Callable[..., T], *columns: Iterable[Any]) -> list[T]:
    """Call a function for each row of arguments, four at a time; return its results."""
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(function, *columns))
