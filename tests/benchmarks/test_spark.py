"""The cost model recovers its measurements' costs, and jobs are read from Spark's log."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pyspark", reason="pip install '.[spark]' in the checkout")

from benchmarks.spark import __main__ as benchmark
from benchmarks.spark.event_log import jobs_between, read_jobs
from benchmarks.spark.model import Costs, Driver, Work, helpful_executors, predicted

COSTS = Costs(0.1, 0.05, 1e-7, 7e-9, 1e-7, 5e-11)
DRIVER = Driver(0.5, 0.002, 1e-9)
EXECUTORS = [2**i for i in range(9)]


def parts(rows: int, dim: int, rank: int) -> list[Work]:
    """Return the work of reading a batch, and of everything else."""
    reading = max(rows * dim * 4 // 2**26, 2)
    return [
        Work(rows, dim, rank, 1, 2, 1, reading, 1, 0),
        Work(rows, dim, rank, 1, 2, 3, 3 * min(reading, 6), 0, 1),
    ]


def test_a_fit_finds_the_costs_that_made_the_seconds() -> None:
    works = [
        work
        for dim, rank in ((256, 8), (2048, 8), (1024, 16))
        for rows in (10**4, 10**5, 10**6)
        for work in parts(rows, dim, rank)
    ]
    found = Costs.fitted((work, COSTS.seconds(work)) for work in works)
    for work in works:
        assert found.seconds(work) == pytest.approx(COSTS.seconds(work), rel=1e-6)
    other = parts(10**7, 512, 32)
    assert sum(map(found.seconds, other)) == pytest.approx(sum(map(COSTS.seconds, other)), rel=1e-3)


def test_no_cost_is_below_0() -> None:
    works = parts(1000, 64, 4) + parts(2000, 64, 4)
    found = Costs.fitted(zip(works, [3.0, 1.0, 1.0, 2.0], strict=True))
    assert min(vars(found).values()) >= 0


def test_executors_help_until_the_driver_has_most_of_the_work() -> None:
    points = [predicted(COSTS, DRIVER, 10**9, 1024, 16, n, 2) for n in EXECUTORS]
    seconds = [point["seconds"] for point in points]
    shares = [point["driver_share"] for point in points]
    assert seconds[1] == pytest.approx(seconds[0] / 2, rel=0.02)
    # Executors keep a part of their rows each, and read the rest again in every pass.
    reads = [point["reads"] for point in points]
    assert reads == sorted(reads, reverse=True)
    assert reads[0] == pytest.approx(2, rel=0.01)
    assert predicted(COSTS, DRIVER, 10**6, 1024, 16, 1, 2)["reads"] == 1
    assert shares == sorted(shares)
    assert 0 < shares[0] < 0.01
    assert shares[-1] < 1
    small = [predicted(COSTS, DRIVER, 10**6, 1024, 16, n, 2) for n in EXECUTORS]
    end = helpful_executors(small)
    assert end is not None
    at = EXECUTORS.index(end)
    assert small[at]["seconds"] < 1.1 * small[at + 1]["seconds"]
    assert small[at - 1]["seconds"] >= 1.1 * small[at]["seconds"]


def test_sums_do_not_grow_with_rows() -> None:
    few, many = (predicted(COSTS, DRIVER, rows, 256, 8, 4, 2)["bytes_of_sums"] for rows in (10**9, 10**10))
    assert few == many


def task(stage: int, result: int, shuffled: int) -> dict[str, Any]:
    return {
        "Event": "SparkListenerTaskEnd",
        "Stage ID": stage,
        "Task Info": {"Launch Time": 1_000_200, "Finish Time": 1_000_700},
        "Task Metrics": {
            "Result Size": result,
            "Shuffle Write Metrics": {"Shuffle Bytes Written": shuffled},
        },
    }


def start(job: int, at: int, stages: list[int], group: str) -> dict[str, Any]:
    return {
        "Event": "SparkListenerJobStart",
        "Job ID": job,
        "Submission Time": at,
        "Stage IDs": stages,
        "Properties": {"spark.jobGroup.id": group},
    }


def test_jobs_have_the_bytes_and_seconds_of_their_own_tasks(tmp_path: Path) -> None:
    events = [
        {"Event": "SparkListenerApplicationStart"},
        start(0, 1_000_100, [0], "reading local-1.0"),
        task(0, 100, 0),
        task(0, 150, 0),
        {"Event": "SparkListenerJobEnd", "Job ID": 0, "Completion Time": 1_001_100},
        # A later job may name a stage that it skips.
        start(1, 1_002_000, [0, 1], "learning"),
        task(1, 7, 30),
        {"Event": "SparkListenerJobEnd", "Job ID": 1, "Completion Time": 1_002_500},
    ]
    (tmp_path / "local-1").write_text("\n".join(map(json.dumps, events)))
    reading, learning = read_jobs(tmp_path)
    assert (reading.group, reading.tasks, reading.result_bytes) == ("reading", 2, 250)
    assert reading.seconds == pytest.approx(1.0)
    assert reading.task_seconds == pytest.approx(1.0)
    assert (learning.group, learning.tasks, learning.shuffle_bytes) == ("learning", 1, 30)
    assert jobs_between([reading, learning], 1000.0, 1001.5) == [reading]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--shapes", "8x9"], "8x9: K must lie between 1 and D"),
        (["--shapes", "8"], "must be DxK, as in 1024x16, not 8"),
        (["--sizes", "3", "2", "4"], "--sizes: must increase"),
        (["--simulated", "64", "5000000"], "--simulated: a batch may hold 4194304 records at most"),
    ],
)
def test_bad_arguments_get_one_line_and_a_status(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stop:
        benchmark.main(arguments)
    assert stop.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
