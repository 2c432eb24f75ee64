"""`streaming-pca plan` from a user's view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.estimators.forecast.batches import planned_batches
from streaming_pca.estimators.forecast.forecast import forecast
from tests.cli.command import call
from tests.cli.test_app import one_line

PLAN = ("plan", "--records", 100_000)
KNOWN = (*PLAN, "--dim", 50, "--rank", 2, "--epsilon", 1, "--delta", 1e-6)
CONFIG = """
[stream]
name = "s"
input = "in"
dim = 6
rank = 2
epsilon = 1.0
delta = 1e-6
privacy_unit = "user"
contributions_per_user = 2

[stream.options]
n_records = 100000
n_batches = 2
growth = 1.0
"""


def facts(capfd: pytest.CaptureFixture[str], *arguments: object) -> Any:
    result = call(capfd, *arguments, "--json")
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def write(tmp_path: Path) -> Path:
    path = tmp_path / "stream.toml"
    path.write_text(CONFIG)
    return path


def test_a_plan_is_a_table_that_fits_a_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    result = call(capfd, *KNOWN, "--gap", 0.1)
    assert result.returncode == 0, result.stderr
    assert max(map(len, result.stdout.splitlines())) <= 80
    for part in ("epsilon 1, delta 1e-06", "noise multiplier 4.2", "4,096 + 6,552", "gap needed", "30%"):
        assert part in result.stdout
    assert "with a gap of 10% the error is" in result.stdout
    assert "warning" not in result.stdout


def test_programs_get_the_same_numbers(capfd: pytest.CaptureFixture[str]) -> None:
    found = facts(capfd, *KNOWN, "--gap", 0.1)
    own = forecast(50, 2, 100_000, 1.0, 1e-6, batches=planned_batches(100_000))
    assert found["batches"] == list(own.batches)
    assert found["entry_noise"] == own.entry_noise
    assert found["charge"]["epsilon"] == "1"
    assert found["error"] == own.error_at(0.1)
    assert [target["error"] for target in found["targets"]] == [0.05, 0.1, 0.3]
    assert found["targets"][0]["records_needed"] == own.records_for(0.1, 0.05)
    equal = facts(capfd, *KNOWN, "--batches", 4, "--contributions", 4, "--tail", 2)
    assert equal["batches"] == [25_000] * 4
    assert (equal["contributions"], equal["tail"], equal["gap"], equal["error"]) == (4, 2.0, None, None)


def test_a_file_of_settings_tells_the_rest(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    config = write(tmp_path)
    found = facts(capfd, *PLAN, "--config", config)
    assert (found["dim"], found["rank"], found["contributions"]) == (6, 2, 2)
    assert found["batches"] == [50_000, 50_000]
    # The share of diagnostics is charged, and is missing from the sums.
    assert found["charge"]["epsilon"] == "1"
    assert found["epsilon"] == pytest.approx(0.98)
    assert facts(capfd, *PLAN, "--config", config, "--batches", 4)["batches"] == [25_000] * 4
    other = tmp_path / "other.toml"
    text = config.read_text().split("[stream.options]")[0]
    other.write_text(
        text.replace(
            "rank = 2", 'rank = 1\nestimator = "noisy-power"\noptions = { clip_l2 = 1.0 }\ncentering = "none"'
        )
    )
    one_line(call(capfd, *PLAN, "--config", other), 2, "forecasts exist for adaptive")


def test_a_large_delta_is_warned_of(capfd: pytest.CaptureFixture[str]) -> None:
    result = call(capfd, *KNOWN, "--delta", 1e-4)
    assert result.returncode == 0
    assert "warning: delta = 0.0001 is not below 1/records" in result.stdout
    assert facts(capfd, *KNOWN, "--delta", 1e-4)["warnings"]
