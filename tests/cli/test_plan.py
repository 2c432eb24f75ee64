"""`streaming-pca plan` from a user's view."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.estimators.forecast.batches import planned_batches
from streaming_pca.estimators.forecast.forecast import forecast
from tests.cli.command import call

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


def one_line(capfd: pytest.CaptureFixture[str], said: str, *arguments: object) -> None:
    result = call(capfd, *arguments)
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    (line,) = result.stderr.strip().splitlines()
    assert said in line
    assert not result.stdout


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
    one_line(capfd, "--epsilon is given by --config", *PLAN, "--config", config, "--epsilon", 2)
    other = tmp_path / "other.toml"
    text = config.read_text().split("[stream.options]")[0]
    other.write_text(
        text.replace(
            "rank = 2", 'rank = 1\nestimator = "noisy-power"\noptions = { clip_l2 = 1.0 }\ncentering = "none"'
        )
    )
    one_line(capfd, "forecasts exist for adaptive", *PLAN, "--config", other)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("--rank", 51), "rank = 51 is above dim = 50"),
        (("--records", 1), "records = 1 are too few"),
        (("--records", 0), "records must lie between"),
        (("--records", -5), "records must lie between"),
        (("--batches", 60_000), "batches must be at most"),
        (("--epsilon", 0), "epsilon must be"),
        (("--epsilon", "nan"), "epsilon must be"),
        (("--delta", 0), "delta must"),
        (("--contributions", 0), "contributions must"),
        (("--gap", 0.6), "above 1/rank"),
        (("--gap", 0), "gap must be"),
        (("--stream", "s"), "--stream needs --config FILE"),
    ],
)
def test_a_wrong_parameter_is_one_line(
    capfd: pytest.CaptureFixture[str], change: tuple[object, ...], said: str
) -> None:
    one_line(capfd, said, *KNOWN, *change)
    one_line(capfd, said, *KNOWN, *change, "--json")


def test_what_is_missing_is_named(capfd: pytest.CaptureFixture[str]) -> None:
    one_line(capfd, "name --rank, --delta, or --config FILE", *PLAN, "--dim", 5, "--epsilon", 1)


def test_a_large_delta_is_warned_of(capfd: pytest.CaptureFixture[str]) -> None:
    result = call(capfd, *KNOWN, "--delta", 1e-4)
    assert result.returncode == 0
    assert "warning: delta = 0.0001 is not below 1/records" in result.stdout
    assert facts(capfd, *KNOWN, "--delta", 1e-4)["warnings"]


def test_its_help_has_examples(capfd: pytest.CaptureFixture[str]) -> None:
    result = call(capfd, "plan", "--help")
    assert result.returncode == 0
    shown = " ".join(result.stdout.replace("│", " ").split())
    assert "streaming-pca plan --dim 50 --rank 2 --records 100000" in shown
