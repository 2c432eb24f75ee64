"""Processes that read and learn the same messages: parts of a worker, and a driver with executors.

Each contender is a separate process that waits for its turns, so that contenders on different numbers of
cores can alternate: for each turn, ``python -m benchmarks.spark.contenders`` reads a line of JSON from its
standard input and answers with a line. Neither reserves, commits or publishes anything.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa

from benchmarks.kafka.running_worker import ONE_BLAS_THREAD
from benchmarks.spark.streams import PARTITIONS, Case
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.spark import SparkSettings
from streaming_pca.data.batch import Batch
from streaming_pca.estimators.base import Estimator, State
from streaming_pca.kernels.threads import use_threads
from streaming_pca.service.input.partition_reader import PartitionReader
from streaming_pca.service.input.reader import Reader
from streaming_pca.service.input.source import build_codec

__all__ = ["Contender", "Turn", "cpu_seconds"]

_TICKS_A_SECOND = 100
"""USER_HZ, which Linux fixes for /proc."""


@dataclass(frozen=True)
class Turn:
    """Time of one turn.

    Attributes
    ----------
    messages : int
    load_seconds : float
        Time until all messages are read and cut; for Spark, on the executors.
    learn_seconds : float
        Time of the estimator's whole update.
    release_seconds : float
        Time until the rows are dropped.
    cpu_seconds : float
        CPU time of the process and all its descendants, over all these phases.
    began, ended : float
        Seconds of the wall clock, as in Spark's log.
    received, sent : int
        Bytes that tasks returned to the driver, and bytes of partial sums that tasks sent to each other.
    """

    messages: int
    load_seconds: float
    learn_seconds: float
    release_seconds: float
    cpu_seconds: float
    began: float
    ended: float
    received: int = 0
    sent: int = 0

    @property
    def seconds(self) -> float:
        """Seconds of the whole turn."""
        return self.load_seconds + self.learn_seconds + self.release_seconds


def cpu_seconds(root: int) -> float:
    """Return the CPU time of a process and its descendants, including ended ones."""
    parents: dict[int, int] = {}
    spent: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            # A process may end between listing and reading.
            with suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                parents[int(entry.name)] = int(fields[1])
                spent[int(entry.name)] = sum(map(int, fields[11:15]))
    total = 0
    for process in spent:
        at = process
        while at != root and at in parents:
            at = parents[at]
        total += spent[process] if at == root else 0
    return total / _TICKS_A_SECOND


class _Learner(ABC):
    """Estimators with their states, and turns over messages from a reader."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self.kafka = kafka
        self._known: dict[Case, tuple[Reader, Estimator[Any, Any], State | None]] = {}

    @abstractmethod
    def reader(self, case: Case) -> Reader:
        """Return a new reader for a case's topic."""

    @abstractmethod
    def forget(self, reader: Reader) -> None:
        """Remove the partitions of a reader, so that it can restart."""

    def traffic(self, batch: Batch) -> tuple[int, int]:
        """Return the bytes received and sent so far."""
        return 0, 0

    def turn(self, case: Case, messages: int) -> Turn:
        """Read messages from the start of the topic and learn them."""
        if case not in self._known:
            estimator = case.stream().build_estimator()
            self._known[case] = (self.reader(case), estimator, None)
        reader, estimator, state = self._known[case]
        each = messages // PARTITIONS
        ends = dict.fromkeys(range(PARTITIONS), each)
        began, spent = time.time(), cpu_seconds(os.getpid())
        start = time.perf_counter()
        reader.add(dict.fromkeys(ends, 0), {})
        while short := {p: each for p in ends if reader.buffers[p].count_before(each) < each}:
            reader.fetch(short, ends)
        batch, _ = reader.take([each] * PARTITIONS, 1)
        loaded = time.perf_counter()
        before = self.traffic(batch)
        new = estimator.update(state or estimator.init(np.random.default_rng(0)), batch)
        learnt = time.perf_counter()
        after = self.traffic(batch)
        del batch
        reader.release_memory()
        self.forget(reader)
        released = time.perf_counter()
        spent = cpu_seconds(os.getpid()) - spent
        if state is None:
            # Later turns start from the state after one batch, because first batches are special.
            self._known[case] = (reader, estimator, new)
        moved = (b - a for a, b in zip(before, after, strict=True))
        return Turn(
            messages, loaded - start, learnt - loaded, released - learnt, spent, began, time.time(), *moved
        )

    def probe(self) -> dict[str, float]:
        """Return costs of a cluster that are independent of batches; empty for a service."""
        return {}


class _Service(_Learner):
    """Reader, decoder and kernels of one worker, in one process."""

    def reader(self, case: Case) -> Reader:
        stream = case.stream()
        return PartitionReader(self.kafka, stream, build_codec(stream, None), PARTITIONS, False, lambda: None)

    def forget(self, reader: Reader) -> None:
        assert isinstance(reader, PartitionReader)
        for p in range(PARTITIONS):
            reader.remove(p)


class _Spark(_Learner):
    """Driver and executors of a local Spark."""

    def __init__(self, kafka: KafkaSettings, cores: int, events: str) -> None:
        from streaming_pca.spark.driver import cluster_readers
        from streaming_pca.spark.session import start_spark

        super().__init__(kafka)
        conf = {
            "spark.eventLog.enabled": "true",
            "spark.eventLog.dir": Path(events).as_uri(),
            "spark.eventLog.rolling.enabled": "false",
            "spark.eventLog.compress": "false",
        }
        settings = SparkSettings(conf=conf)
        self.spark = start_spark(settings, f"local[{cores}]")
        self._readers = cluster_readers(self.spark, settings)

    def reader(self, case: Case) -> Reader:
        stream = case.stream()
        return self._readers(self.kafka, stream, build_codec(stream, None), PARTITIONS, False, lambda: None)

    def forget(self, reader: Reader) -> None:
        # Nothing to do: `add` restarts each partition.
        return

    def probe(self) -> dict[str, float]:
        """Measure the driver's cost of a task, and of a byte that a task returns.

        Both are upper bounds, because the tasks run on the driver's cores.
        """

        def run(tasks: int) -> None:
            self.spark.range(0, tasks, 1, tasks).count()

        def answer(size: int) -> None:
            rows = self.spark.range(0, 1, 1, 1).mapInArrow(partial(_answer, size), "data binary")
            rows.toArrow()

        return {"task_seconds": _slope(run, 20, 420), "byte_seconds": _slope(answer, 2**10, 2**26)}

    def traffic(self, batch: Batch) -> tuple[int, int]:
        from streaming_pca.spark.batch import SparkBatch

        assert isinstance(batch, SparkBatch)
        return batch.cluster.received, batch.cluster.sent


def _answer(size: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_arrays([pa.array([bytes(size)], pa.binary())], names=["data"])


def _slope(run: Callable[[int], None], few: int, many: int, repeats: int = 3) -> float:
    """Return the marginal seconds, from medians at two sizes that take turns."""
    times: dict[int, list[float]] = {few: [], many: []}
    for repeat in range(-1, repeats):
        for size, some in times.items():
            start = time.perf_counter()
            run(size)
            if repeat >= 0:
                some.append(time.perf_counter() - start)
    return max(statistics.median(times[many]) - statistics.median(times[few]), 0.0) / (many - few)


class Contender:
    """Process of one contender.

    Parameters
    ----------
    kind : {"service", "spark"}
    cores : int
        Threads of the service's kernels, or concurrent tasks.
    bootstrap : str
    folder : Path
        Folder for Spark's event log and the output of the process.
    """

    def __init__(self, kind: str, cores: int, bootstrap: str, folder: Path) -> None:
        self.kind, self.cores = kind, cores
        self.events = folder / f"{kind}-{cores}"
        self.events.mkdir()
        self._log = open(folder / f"{kind}-{cores}.log", "w+b")  # noqa: SIM115
        command = [sys.executable, "-m", "benchmarks.spark.contenders"]
        self._process = subprocess.Popen(
            [*command, kind, str(cores), bootstrap, str(self.events)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | ONE_BLAS_THREAD,
            text=True,
        )

    @property
    def name(self) -> str:
        """Name of the contender."""
        return f"{self.kind} on {self.cores}"

    def turn(self, case: Case, messages: int) -> Turn:
        """Run one turn in the process: read and learn messages."""
        return Turn(**self._ask({"case": case.as_dict(), "messages": messages}))

    def probe(self) -> dict[str, float]:
        """Return costs of a cluster that are independent of batches."""
        return self._ask({})

    def _ask(self, question: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with suppress(BrokenPipeError):
            print(json.dumps(question), file=self._process.stdin, flush=True)
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended: {self._last_line()}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _last_line(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "no output"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc_info: object) -> None:
        """End the process, and Spark with it."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(60)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._log.close()


def _main(kind: str, cores: str, bootstrap: str, events: str) -> None:
    use_threads(int(cores))
    kafka = KafkaSettings(bootstrap_servers=bootstrap)
    # Redirect all other output to standard error.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    learner = _Service(kafka) if kind == "service" else _Spark(kafka, int(cores), events)
    try:
        for line in sys.stdin:
            question = json.loads(line)
            turn = learner.turn(Case.of(question["case"]), question["messages"]) if question else None
            found = learner.probe() if turn is None else asdict(turn)
            print(json.dumps(found), file=answers, flush=True)
    finally:
        if isinstance(learner, _Spark):
            from streaming_pca.spark.session import stop_spark

            stop_spark(learner.spark)


if __name__ == "__main__":
    _main(*sys.argv[1:])
