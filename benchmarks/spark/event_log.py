"""Times, tasks and bytes of a Spark application's jobs, from its event log."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

__all__ = ["Job", "jobs_between", "read_jobs"]


@dataclass
class Job:
    """Job of a Spark application.

    Attributes
    ----------
    group : str
        First word of the group that the engine set, such as "learning".
    began, ended : float
        Seconds of the wall clock.
    tasks : int
    task_seconds : float
        Total seconds of all tasks, from launch to end.
    result_bytes : int
        Bytes of the tasks' results, which the driver receives.
    shuffle_bytes : int
        Bytes that tasks wrote for tasks of the next stage.
    """

    group: str
    began: float
    ended: float = 0.0
    tasks: int = 0
    task_seconds: float = 0.0
    result_bytes: int = 0
    shuffle_bytes: int = 0
    stages: frozenset[int] = field(default_factory=frozenset)

    @property
    def seconds(self) -> float:
        """Seconds from submission to end."""
        return self.ended - self.began


def read_jobs(folder: Path) -> list[Job]:
    """Return the jobs of the application whose log is in the folder, in order."""
    (log,) = folder.iterdir()
    found: dict[int, Job] = {}
    for event in _events(log):
        kind = event["Event"]
        if kind == "SparkListenerJobStart":
            group = event["Properties"].get("spark.jobGroup.id", "").split()[0]
            stages = frozenset(event["Stage IDs"])
            found[event["Job ID"]] = Job(group, event["Submission Time"] / 1000, stages=stages)
        elif kind == "SparkListenerJobEnd":
            found[event["Job ID"]].ended = event["Completion Time"] / 1000
        elif kind == "SparkListenerTaskEnd":
            # Several jobs can contain the stage; the last one ran it, others skip it.
            job = [job for job in found.values() if event["Stage ID"] in job.stages][-1]
            info, metrics = event["Task Info"], event["Task Metrics"]
            job.tasks += 1
            job.task_seconds += (info["Finish Time"] - info["Launch Time"]) / 1000
            job.result_bytes += metrics["Result Size"]
            job.shuffle_bytes += metrics["Shuffle Write Metrics"]["Shuffle Bytes Written"]
    return [job for _, job in sorted(found.items())]


def _events(log: Path) -> Iterator[dict[str, Any]]:
    with open(log, encoding="utf-8") as lines:
        for line in lines:
            yield json.loads(line)


def jobs_between(jobs: Iterable[Job], began: float, ended: float) -> Sequence[Job]:
    """Return the jobs submitted within a time interval."""
    # Spark's timestamps have a resolution of milliseconds.
    return [job for job in jobs if began - 0.001 <= job.began <= ended]
