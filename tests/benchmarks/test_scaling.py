"""Exponents match the costs, and the benchmark reports them on its last line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import scaling

ROOT = Path(__file__).parents[2]
TINY = ["--base", "40x8x2", "--factors", "1", "2", "--streams", "1", "3", "--repeats", "1"]


def test_a_power_law_has_its_exponent() -> None:
    exponent, r_squared = scaling.fit({n: 0.3 * n**1.5 for n in (10, 20, 80, 100)})
    assert exponent == pytest.approx(1.5)
    assert r_squared == pytest.approx(1.0)


def test_what_does_not_vary_has_an_exponent_of_0_and_nothing_to_explain() -> None:
    assert scaling.fit({1: 2.0, 2: 2.0, 4: 2.0}) == (pytest.approx(0.0), None)


def test_scatter_lowers_r_squared() -> None:
    exponent, r_squared = scaling.fit({1: 1.0, 2: 8.0, 4: 4.0, 8: 32.0})
    assert 1 < exponent < 2
    assert r_squared is not None
    assert 0.5 < r_squared < 0.95


def test_the_last_line_has_every_variable_with_its_points() -> None:
    command = [sys.executable, "-m", "benchmarks.scaling", "--json", *TINY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    rows = {(row["variable"], row["of"]): row for row in found["rows"]}
    assert list(rows) == [(v, of) for v in "mdk" for of in ("block_sum", "update")] + [("streams", "update")]
    values = {"m": [40, 80], "d": [8, 16], "k": [2, 4], "streams": [1, 3]}
    for (variable, _), row in rows.items():
        assert {"exponent", "r_squared"} <= row.keys()
        assert [point["value"] for point in row["points"]] == values[variable]
        assert all(point[row["cost"]] > 0 and point["rows_per_second"] > 0 for point in row["points"])
    assert found["base"]["m"] == 40


def test_without_json_there_is_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    scaling.main(TINY)
    heads, *rows = capsys.readouterr().out.splitlines()
    assert heads.split()[:3] == ["against", "exponent", "R²"]
    assert [row.split()[0] for row in rows] == ["m", "m", "d", "d", "k", "k", "streams"]
    assert "seconds a row of update" in rows[-1]
