"""The Spark benchmark runs in small, and its facts independent of speed hold."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ["--quick", "--shapes", "64x4", "--sizes", "1", "2", "4", "--repeats", "1", "--cores", "1"]


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.usefixtures("spark_java", "kafka_bootstrap")
def test_a_small_run_tells_everything() -> None:
    command = [sys.executable, "-m", "benchmarks.spark", "--json", *SMALL, "--simulated", "128", "1280"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])

    assert [row["estimator"] for row in found["overhead"]] == ["private-oja", "adaptive"]
    few, many = (row for row in found["traffic"] if row["estimator"] == "private-oja")
    assert many["rows"] == 4 * few["rows"]
    # A sum and one number for each task: nothing grows with the rows.
    assert few["received_by_driver"] == many["received_by_driver"]
    assert many["received_by_driver"] <= many["tasks"] * (2 * many["bytes_of_a_sum"] + 1024)
    assert few["tasks"] == many["tasks"]
    assert many["shuffle_bytes"] == many["between_tasks"] == 0

    (model,) = found["model"]
    assert [check["fitted"] for check in model["checks"]] == [True, False, True]
    (prediction,) = model["predictions"]
    assert [point["executors"] for point in prediction["points"]] == [2**i for i in range(9)]

    small, large = found["simulated"]
    assert small["sum_is_exact"]
    assert large["sum_is_exact"]
    assert large["rows"] == 10 * small["rows"]
    assert abs(large["reserved_bytes"] - small["reserved_bytes"]) < 2**10
    assert abs(large["state_bytes"] - small["state_bytes"]) < 2**7
    assert large["driver_peak_bytes"] < 1.2 * small["driver_peak_bytes"]
