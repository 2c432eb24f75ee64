"""The benchmark of the noise runs and says what it measured; how fast it was is not judged."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import noise

ROOT = Path(__file__).parents[1]
QUICK = ["--sizes", "16", "100", "--repeats", "1"]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.noise", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)


def test_every_mechanism_is_measured_at_every_size_and_progress_is_apart() -> None:
    done = run("--json", *QUICK)
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)["results"]
    assert {(row["mechanism"], row["values"]) for row in results} == {
        (name, n) for name in noise.MECHANISMS for n in (16, 100)
    }
    assert all(row["microseconds_per_value"] > 0 for row in results)
    assert "gaussian_on_vector, 16 values" in done.stderr


def test_without_json_a_table_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    noise.main(QUICK)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[-2:] == ["16", "100"]
    assert [line.split()[0] for line in lines[1:]] == list(noise.MECHANISMS)


def test_the_sizes_of_the_issue_are_the_default() -> None:
    assert noise.SIZES == (1_600, 16_000, 130_000)


def test_help_shows_an_example(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        noise.main(["--help"])
    assert stop.value.code == 0
    assert "example: python -m benchmarks.noise --json" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [["--sizes", "0"], ["--repeats", "-1"], ["--sizes", "x"], ["--fast"]])
def test_bad_arguments_get_one_line_and_a_status(arguments: list[str]) -> None:
    done = run(*arguments)
    assert done.returncode != 0
    assert len(done.stderr.splitlines()) == 1
    assert arguments[0] in done.stderr
    assert not done.stdout
