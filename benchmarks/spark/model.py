"""Cost model of a batch on a cluster.

seconds = driver + jobs x job + tasks x (task / slots + dispatch) + rows x row / executors + tree

``row`` is the time of one executor: reads x (l0 + l1 d) + passes x (p0 + p1 d k). The constants of jobs,
tasks and rows are fitted to measured batches by nonnegative least squares of relative errors; an executor is
a machine like the measured one, with as many cores. ``driver`` (noise, eigenpairs, transactions),
``dispatch`` (the driver's cost of a task) and the driver's seconds per received byte are measured separately.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import astuple, dataclass
from itertools import pairwise
from typing import Any, Self

import numpy as np
from scipy.optimize import nnls

__all__ = ["Costs", "Driver", "Work", "helpful_executors", "predicted"]

_TASKS_OF_A_SLOT = 3
"""Tasks of a job per slot, as in the engine."""
_LOADS_OF_A_SLOT = 16
"""Largest number of tasks per slot of a reading job."""
_SEGMENT_BYTES = 2**26
"""Decoded bytes that a task reads."""
_CACHE_BYTES = 2**31
"""Bytes of decoded rows that a slot caches by default; each pass reads the rest from Kafka again."""
_LARGE = 2**20
"""Integers of a sum above which a slot has one task."""
_DIRECT_BYTES = 2**26
"""Bytes of partial sums that the driver adds itself; above this, executors add them."""
_OTHER_JOBS = 1
"""Jobs of a batch that do not process rows: one drops them."""
_GAIN = 0.1
"""Smallest gain that justifies twice as many executors."""


@dataclass(frozen=True)
class Work:
    """Work of executors for a batch or a part of it.

    Attributes
    ----------
    rows, dim, rank : int
    executors, cores : int
        Number of executors, and cores of each.
    jobs, tasks : int
        Number of jobs, and of tasks of all jobs together.
    reads, passes : int
        Jobs that read all rows from Kafka, and jobs that process rows already read.
    """

    rows: int
    dim: int
    rank: int
    executors: int
    cores: int
    jobs: float
    tasks: float
    reads: float
    passes: float

    def quantities(self) -> list[float]:
        """Return the factors of the costs, in the order of :class:`Costs`."""
        share = self.rows / self.executors
        return [
            self.jobs,
            self.tasks / (self.executors * self.cores),
            share * self.reads,
            share * self.reads * self.dim,
            share * self.passes,
            share * self.passes * self.dim * self.rank,
        ]


@dataclass(frozen=True)
class Costs:
    """Fitted seconds.

    Attributes
    ----------
    job, task : float
        Seconds per job, and per task on its slot, with any amount of work.
    read_row, read_feature : float
        Seconds to read a row, and each of its features, on one executor.
    pass_row, pass_product : float
        Seconds of a pass per row, and per each of its d k products, on one executor.
    """

    job: float
    task: float
    read_row: float
    read_feature: float
    pass_row: float
    pass_product: float

    @classmethod
    def fitted(cls, measured: Iterable[tuple[Work, float]]) -> Self:
        """Fit the costs to measured work and its seconds."""
        works, seconds = zip(*measured, strict=True)
        quantities = np.array([work.quantities() for work in works]) / np.array(seconds)[:, None]
        # Scale the columns, which differ by ten orders of magnitude.
        sizes = np.maximum(quantities.max(axis=0), 1e-300)
        found, _ = nnls(quantities / sizes, np.ones(len(works)))
        return cls(*(found / sizes).tolist())

    def seconds(self, work: Work) -> float:
        """Return the seconds of the executors' work."""
        return float(np.dot(work.quantities(), astuple(self)))


@dataclass(frozen=True)
class Driver:
    """Seconds of the driver alone.

    Attributes
    ----------
    batch : float
        Seconds per batch for noise, eigenpairs and transactions.
    task, byte : float
        Seconds per task that it starts, and per byte that it receives and adds.
    """

    batch: float
    task: float
    byte: float


def predicted(
    costs: Costs, driver: Driver, rows: int, dim: int, rank: int, executors: int, cores: int, passes: int = 1
) -> dict[str, Any]:
    """Predict the time of a batch on executors with a given number of cores.

    This assumes equal shares of rows per executor: enough partitions, and fast enough brokers.
    """
    slots, size = executors * cores, dim * rank + 1
    segments = math.ceil(rows * dim * 4 / _SEGMENT_BYTES)
    reading = min(max(segments, slots), _LOADS_OF_A_SLOT * slots)
    learning = min(slots if size >= _LARGE else _TASKS_OF_A_SLOT * slots, reading)
    jobs, tasks = 1 + passes + _OTHER_JOBS, reading + learning * passes + reading
    kept = min(slots * _CACHE_BYTES / (rows * dim * 4), 1.0)
    reads = 1 + passes * (1 - kept)
    work = Work(rows, dim, rank, executors, cores, jobs, tasks, reads, passes)
    moved = learning * size * 8
    # Above this limit, executors add first, and the driver receives one sum.
    tree = driver.byte * (moved if moved <= _DIRECT_BYTES else moved / executors + size * 8) * passes
    alone = driver.batch + driver.task * tasks + costs.job * jobs + tree
    seconds = costs.seconds(work) + driver.batch + driver.task * tasks + tree
    return {
        "executors": executors,
        "seconds": seconds,
        "rows_per_second": rows / seconds,
        "driver_share": alone / seconds,
        "reads": reads,
        "tasks": tasks,
        "bytes_of_sums": moved * passes,
    }


def helpful_executors(predictions: Sequence[dict[str, Any]]) -> int | None:
    """Return the number of executors where doubling gains less than a tenth, or None."""
    for some, more in pairwise(predictions):
        if some["seconds"] / more["seconds"] < 1 + _GAIN:
            return int(some["executors"])
    return None
