"""Cost model, fitted to batches of some sizes and shapes and checked on others."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.spark.event_log import Job, jobs_between
from benchmarks.spark.model import Costs, Driver, Work, helpful_executors, predicted
from benchmarks.spark.overhead import Measured
from benchmarks.spark.streams import Case

__all__ = ["BILLION", "EXECUTORS", "TOLERANCE", "model_rows"]

BILLION = 10**9
EXECUTORS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
TOLERANCE = 0.2
"""Largest relative error of a prediction."""

Observed = tuple[tuple[Work, float], ...]
"""Work and seconds of reading a batch, and of everything else."""


def observed(case: Case, cores: int, rows: int, its: Sequence[Measured], jobs: Sequence[Job]) -> Observed:
    """Return the median work and seconds of one case and size."""
    parts = []
    for reading in (True, False):
        counts, tasks, passes, seconds = [], [], [], []
        for each in its:
            turn = each.turn
            some = [
                job
                for job in jobs_between(jobs, turn.began, turn.ended)
                if (job.group == "reading") is reading
            ]
            counts.append(len(some))
            tasks.append(sum(job.tasks for job in some))
            passes.append(sum(job.group == "learning" for job in some))
            seconds.append(turn.load_seconds if reading else turn.learn_seconds + turn.release_seconds)
        middle = [float(statistics.median(numbers)) for numbers in (counts, tasks, passes, seconds)]
        work = Work(rows, case.dim, case.rank, 1, cores, middle[0], middle[1], int(reading), middle[2])
        parts.append((work, middle[3]))
    return tuple(parts)


def model_rows(
    measured: Sequence[Measured],
    jobs: Mapping[int, list[Job]],
    probes: Mapping[int, Mapping[str, float]],
    commits: Mapping[Case, float],
) -> list[dict[str, Any]]:
    """Return a model for each number of cores, with errors on other turns and predictions.

    The model is fitted to the outer sizes of the outer shapes, and checked on all other turns of private Oja.
    With fewer than three shapes, it is fitted to the outer sizes of all shapes.
    """
    groups: dict[int, dict[tuple[Case, int], list[Measured]]] = defaultdict(lambda: defaultdict(list))
    for each in measured:
        if each.kind == "spark" and each.case in commits:
            groups[each.cores][each.case, each.rows].append(each)
    found = []
    for cores, group in groups.items():
        known = {key: observed(key[0], cores, key[1], its, jobs[cores]) for key, its in group.items()}
        cases = list(dict.fromkeys(case for case, _ in known))
        outer = {cases[0], cases[-1]} if len(cases) > 2 else set(cases)
        sizes = {case: [rows for its, rows in known if its == case] for case in cases}
        inside = {
            key for key in known if key[0] in outer and key[1] in (min(sizes[key[0]]), max(sizes[key[0]]))
        }
        costs = Costs.fitted(part for key in inside for part in known[key])
        checks = [_check(costs, case, rows, parts) for (case, rows), parts in known.items()]
        for check, key in zip(checks, known, strict=True):
            check["fitted"] = key in inside
        held_out = [abs(check["error"]) for check in checks if not check["fitted"]]
        found.append(
            {
                "cores": cores,
                "costs": asdict(costs),
                "checks": checks,
                "largest_error": max(held_out),
                "within_tolerance": max(held_out) <= TOLERANCE,
                "predictions": [
                    _predictions(costs, cores, case, probes[cores], seconds)
                    for case, seconds in commits.items()
                ],
            }
        )
    return found


def _check(costs: Costs, case: Case, rows: int, parts: Observed) -> dict[str, Any]:
    seconds = sum(spent for _, spent in parts)
    by_model = sum(costs.seconds(work) for work, _ in parts)
    return {
        "dim": case.dim,
        "rank": case.rank,
        "rows": rows,
        "seconds": seconds,
        "predicted_seconds": by_model,
        "error": by_model / seconds - 1,
    }


def _predictions(
    costs: Costs, cores: int, case: Case, probe: Mapping[str, float], seconds: float
) -> dict[str, Any]:
    driver = Driver(seconds, probe["task_seconds"], probe["byte_seconds"])
    points = [predicted(costs, driver, BILLION, case.dim, case.rank, n, cores) for n in EXECUTORS]
    return {
        "dim": case.dim,
        "rank": case.rank,
        "rows": BILLION,
        "driver_seconds": seconds,
        "points": points,
        "no_gain_from": helpful_executors(points),
    }
