"""Process of a driver or service worker that can hold streams at numbered steps.

Only this process is patched: production code has no hook. Each stream is held at its own step, so that
killing the process once is like killing many drivers, each at another step.
"""

from __future__ import annotations

import asyncio
import faulthandler
import logging
import os
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, Literal, NamedTuple

from streaming_pca.config.settings import Settings
from streaming_pca.privacy.randomness import replace_noise_sampler
from streaming_pca.service import executors
from streaming_pca.service.commit.checkpoint import CheckpointWriter
from streaming_pca.service.executors import Executors, Pool
from streaming_pca.service.worker import run_worker
from tests.kafka.child import peak_memory
from tests.spark.noise import HashedSampler


class Hold(NamedTuple):
    """Moment to hold a stream, until the file ``go`` appears or the process is killed.

    It is the ``nth`` occurrence of a step of ``CheckpointWriter``, for this stream in this process.
    """

    step: str
    when: Literal["before", "after"] = "after"
    nth: int = 1


def hold_streams(holds: Mapping[str, Hold], directory: Path) -> None:
    """Patch ``CheckpointWriter._step`` of this process; ``holds`` has streams' names as keys."""
    # A held stream keeps a thread and, in a take-over, the semaphore that only one stream can have.
    executors._COUNTS[Pool.COMMITS] += len(holds)
    make, call, original = Executors.__init__, Executors.call, CheckpointWriter._step
    reached: Counter[str] = Counter()
    lock = threading.Lock()

    def init(self: Executors) -> None:
        make(self)
        self.long_exchange = asyncio.Semaphore(1 + len(holds))

    async def patient(self: Executors, *args: Any, deadline: float = 0.0) -> Any:
        # After a long stop, a stream would find its time limits passed, and end before it does anything.
        return await call(self, *args)

    def wait(name: str) -> None:
        (directory / f"held-{name}").touch()
        while not (directory / "go").exists():
            time.sleep(0.02)

    @contextmanager
    def step(self: CheckpointWriter, step: str) -> Iterator[None]:
        hold = holds.get(self._stream.name)
        with original(self, step):
            mine = hold is not None and step == hold.step
            if mine:
                with lock:
                    reached[self._stream.name] += 1
                    mine = hold is not None and reached[self._stream.name] == hold.nth
            if mine and hold is not None and hold.when == "before":
                wait(self._stream.name)
            yield
            if mine and hold is not None and hold.when == "after":
                wait(self._stream.name)

    Executors.__init__, Executors.call = init, patient  # type: ignore[method-assign]
    CheckpointWriter._step = step  # type: ignore[method-assign]


def main(
    settings: list[dict[str, Any]],
    directory: str,
    spark: Mapping[str, Any] | None = None,
    holds: Mapping[str, Hold] | None = None,
    noise: bool = False,
    small: bool = False,
    jobs: Sequence[tuple[int, str, int]] = (),
) -> None:
    """Run streams to their end, on Spark if its settings are given; log to ``directory``."""
    log = os.open(Path(directory, "log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)
    # Show the stacks when a test waits in vain (Child.ends).
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    shown = logging.StreamHandler()
    line = "%(asctime)s %(levelname)s %(name)s [%(stream)s] %(message)s"
    shown.setFormatter(logging.Formatter(line, defaults={"stream": ""}))
    logging.basicConfig(level=logging.INFO, handlers=[shown])
    for name in ("kafka", "py4j"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    if holds:
        hold_streams(holds, Path(directory))
    if small:
        divide_finely()
    if jobs:
        hold_jobs(jobs, Path(directory))
    Path(directory, "started").touch()
    streams = [Settings(**each) for each in settings]
    with nullcontext() if noise else replace_noise_sampler(HashedSampler()):
        status = run_worker(streams) if spark is None else run_on_spark(streams, spark)
    Path(directory, "peak").write_text(str(peak_memory()))
    sys.exit(status)


def run_on_spark(streams: list[Settings], spark: Mapping[str, Any]) -> int:
    """Run streams as ``streaming-pca spark`` does."""
    from streaming_pca.config.spark import SparkSettings
    from streaming_pca.spark.driver import run_spark

    return run_spark(streams, SparkSettings(**spark))


def divide_finely() -> None:
    """Split few records into several tasks, and let executors add the tasks' results."""
    from streaming_pca.spark.jobs import Cluster
    from streaming_pca.spark.reader import ClusterReader

    ClusterReader._offsets_of_a_task = lambda self, offsets: 48  # type: ignore[method-assign]
    Cluster.direct_bytes = 0


def hold_jobs(jobs: Sequence[tuple[int, str, int]], directory: Path) -> None:
    """Wait before the given jobs (batch, kind, n-th), until a file for each appears; mark when it has tasks.

    Each batch here begins with one job that reads. The kind of a job is the first word of its group.
    """
    from streaming_pca.spark.jobs import Cluster

    original = Cluster._run
    reached: Counter[str] = Counter()
    batch = 0

    def run(self: Cluster, rows: Any, group: str) -> list[dict[str, Any]]:
        nonlocal batch
        kind = group.split()[0]
        if kind == "reading":
            batch += 1
            reached.clear()
        reached[kind] += 1
        job = (batch, kind, reached[kind])
        if job in jobs:
            number = jobs.index(job)
            (directory / f"job-{number}").touch()
            while not (directory / f"go-{number}").exists():
                time.sleep(0.02)
            threading.Thread(target=mark, args=(self, directory / f"tasks-{number}"), daemon=True).start()
        return original(self, rows, group)

    def mark(cluster: Cluster, file: Path) -> None:
        tracker = cluster._spark.sparkContext.statusTracker()
        while not any(
            stage.numActiveTasks
            for number in tracker.getActiveStageIds()
            if (stage := tracker.getStageInfo(number)) is not None
        ):
            time.sleep(0.05)
        file.touch()

    Cluster._run = run  # type: ignore[method-assign]
