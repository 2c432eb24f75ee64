"""The benchmark of variances: its measurements, and its message for a wrong name."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import variances


def test_it_prints_cells_a_summary_and_the_worst(capsys: pytest.CaptureFixture[str]) -> None:
    assert variances.main(["--set", "normal-500", "--fits", "1", "--json"]) == 0
    *cells, summary = map(json.loads, capsys.readouterr().out.splitlines())
    assert {cell["route"] for cell in cells} == {"chosen", "block"}
    assert summary["covered"] == pytest.approx(np.mean([cell["covered"] for cell in cells]))
    assert variances.main(["--set", "normal-500", "--fits", "1"]) == 0
    assert "worst:" in capsys.readouterr().out


def test_each_set_has_the_records_of_its_name() -> None:
    for name, make in variances.SETS.items():
        x = make(np.random.default_rng(0))
        assert len(x) == int(name.rpartition("-")[2])
        assert np.isfinite(x).all()
