"""Turns of all contenders over cases and sizes, with costs per row, batch and byte."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.spark.contenders import Contender, Turn
from benchmarks.spark.event_log import Job, jobs_between, read_jobs
from benchmarks.spark.streams import ROWS, Case

__all__ = ["Measured", "constant_rows", "overhead_rows", "take_turns", "traffic_rows"]


@dataclass(frozen=True)
class Measured:
    """One turn of one contender.

    Attributes
    ----------
    kind : {"service", "spark"}
    cores : int
    case : Case
    turn : Turn
    """

    kind: str
    cores: int
    case: Case
    turn: Turn

    @property
    def rows(self) -> int:
        """Rows of the turn."""
        return self.turn.messages * ROWS


def take_turns(
    contenders: Sequence[Contender],
    cases: Sequence[Case],
    sizes: Sequence[float],
    repeats: int,
    warm_up: int,
    say: Callable[[str], None],
) -> list[Measured]:
    """Run contenders on each case at each size (MiB), in turns.

    The first ``warm_up`` rounds of the first case, and the first round of each other case, do not count: in
    the former, Java compiles; in all of them, kernels are compiled and memory is allocated for the shape.
    """
    found = []
    for case in cases:
        for repeat in range(-(warm_up if case == cases[0] else 1), repeats):
            for size in sizes:
                for contender in contenders:
                    turn = contender.turn(case, case.messages(size))
                    if repeat >= 0:
                        found.append(Measured(contender.kind, contender.cores, case, turn))
        say(f"{case}: done")
    return found


Key = tuple[str, int, Case]


def _by_size(measured: Sequence[Measured]) -> Mapping[Key, Mapping[int, list[Turn]]]:
    found: dict[Key, dict[int, list[Turn]]] = defaultdict(lambda: defaultdict(list))
    for each in measured:
        found[each.kind, each.cores, each.case][each.rows].append(each.turn)
    return found


def _line(turns: Mapping[int, Sequence[Turn]], of: Callable[[Turn], float]) -> tuple[float, float]:
    """Return slope and intercept of the medians, from the smallest and the largest size."""
    few, many = min(turns), max(turns)
    low, high = (statistics.median(map(of, turns[rows])) for rows in (few, many))
    slope = (high - low) / (many - few)
    return slope, low - slope * few


def _over(spark: float, service: float) -> float | None:
    """Return the relative excess of Spark; None if the batches were too small to measure it."""
    return spark / service - 1 if spark > 0 and service > 0 else None


def overhead_rows(measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Return rows per second of both kinds, and the extra cost per row on Spark."""
    found, rows = _by_size(measured), []
    for (kind, cores, case), turns in found.items():
        if kind != "spark":
            continue
        service = found["service", cores, case]
        wall, spent = (
            {name: _line(its, of)[0] for name, its in (("service", service), ("spark", turns))}
            for of in (lambda turn: turn.seconds, lambda turn: turn.cpu_seconds)
        )
        rows.append(
            {
                "dim": case.dim,
                "rank": case.rank,
                "estimator": case.estimator,
                "cores": cores,
                "rows_per_second": {name: 1 / slope if slope > 0 else None for name, slope in wall.items()},
                "microseconds_a_row": {name: slope * 1e6 for name, slope in wall.items()},
                "overhead": _over(wall["spark"], wall["service"]),
                "cpu_microseconds_a_row": {name: slope * 1e6 for name, slope in spent.items()},
                "cpu_overhead": _over(spent["spark"], spent["service"]),
                "repeats": len(turns[max(turns)]),
            }
        )
    return rows


def jobs_of(folders: Mapping[int, Path]) -> Mapping[int, list[Job]]:
    """Return the jobs of each Spark, by its number of cores."""
    return {cores: read_jobs(folder) for cores, folder in folders.items()}


def traffic_rows(measured: Sequence[Measured], jobs: Mapping[int, list[Job]]) -> list[dict[str, Any]]:
    """Return bytes between tasks and to the driver, at the smallest and the largest size."""
    rows = []
    for (kind, cores, case), turns in _by_size(measured).items():
        if kind != "spark":
            continue
        for size in (min(turns), max(turns)):
            its = [jobs_between(jobs[cores], turn.began, turn.ended) for turn in turns[size]]
            rows.append(
                {
                    "dim": case.dim,
                    "rank": case.rank,
                    "estimator": case.estimator,
                    "cores": cores,
                    "rows": size,
                    "row_bytes": size * case.dim * 4,
                    "jobs": statistics.median(len(some) for some in its),
                    "tasks": statistics.median(sum(job.tasks for job in some) for some in its),
                    "result_bytes": statistics.median(sum(job.result_bytes for job in some) for some in its),
                    "shuffle_bytes": statistics.median(
                        sum(job.shuffle_bytes for job in some) for some in its
                    ),
                    "received_by_driver": statistics.median(turn.received for turn in turns[size]),
                    "between_tasks": statistics.median(turn.sent for turn in turns[size]),
                    "bytes_of_a_sum": case.dim * case.rank * 8,
                }
            )
    return rows


def constant_rows(measured: Sequence[Measured], jobs: Mapping[int, list[Job]]) -> list[dict[str, Any]]:
    """Return the seconds of a batch that do not depend on its rows, by job."""
    rows = []
    for (kind, cores, case), turns in _by_size(measured).items():
        if kind != "spark":
            continue
        least = turns[min(turns)]
        its = [jobs_between(jobs[cores], turn.began, turn.ended) for turn in least]
        of_jobs = [sum(job.seconds for job in some) for some in its]
        by_group: dict[str, list[float]] = defaultdict(list)
        for some in its:
            for job in some:
                by_group[job.group].append(job.seconds)
        rows.append(
            {
                "dim": case.dim,
                "rank": case.rank,
                "estimator": case.estimator,
                "cores": cores,
                "seconds": _line(turns, lambda turn: turn.seconds)[1],
                "jobs": statistics.median(len(some) for some in its),
                "tasks": statistics.median(sum(job.tasks for job in some) for some in its),
                "seconds_of_small_jobs": {name: statistics.median(some) for name, some in by_group.items()},
                # Planning of jobs, the estimator's own work and its noise.
                "driver_seconds": float(
                    np.median([turn.seconds - spent for turn, spent in zip(least, of_jobs, strict=True)])
                ),
            }
        )
    return rows
