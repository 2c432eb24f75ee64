"""The summary of the utility benchmark counts the right cells, and summarises them correctly."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from benchmarks import utility
from benchmarks.accuracy.comparison import DEFAULT, default_methods
from benchmarks.accuracy.settings import EPSILONS, TABLE, gaussian, select
from benchmarks.accuracy.summary import summarise, summary_lines


def cell(name: str, ours: float, oracle: float, peer: float | None = None, **more: Any) -> dict[str, Any]:
    return {
        "setting": name,
        "source": "real",
        "epsilon": 1.0,
        "random_error": 1.0,
        "results": [
            {
                "method": DEFAULT,
                "mean": ours,
                "captured": 0.9,
                "ratio_to_oracle": ours / oracle,
                "ratio_to_peer": None if peer is None else ours / peer,
            },
            {"method": "oracle", "mean": oracle, "captured": 1.0},
        ],
    } | more


def test_geometric_means_are_of_the_cells_that_can_be_solved() -> None:
    summary = summarise(
        [
            cell("a", 0.4, 0.1, 0.2),
            cell("b", 0.1, 0.1, 0.2, source="synthetic"),
            cell("c", 0.2, 0.2, epsilon=4.0),
            cell("hopeless", 1.0, 0.61),
        ]
    )
    assert summary is not None
    groups = summary["groups"]
    assert list(groups) == ["all", "real", "synthetic", "epsilon 1", "epsilon 4"]
    assert [group["cells"] for group in groups.values()] == [3, 2, 1, 2, 1]
    assert groups["all"]["over_oracle"] == pytest.approx(4 ** (1 / 3))
    assert groups["all"]["over_peer"] == pytest.approx(1.0)
    assert groups["real"]["over_oracle"] == pytest.approx(math.sqrt(4))
    assert groups["epsilon 4"]["over_peer"] is None
    assert groups["all"]["short"] == 3
    assert summary["worst"] == {"setting": "a", "over_oracle": pytest.approx(4.0)}
    assert summary["left_out"] == 1
    lines = summary_lines(summary)
    assert any(line.startswith("worst cell: a, 4 x oracle") for line in lines)


def test_settings_without_an_oracle_make_no_summary() -> None:
    without = cell("a", 0.4, 0.1)
    assert summarise([]) is None
    assert summarise([without | {"results": without["results"][:1]}]) is None


def test_settings_beside_peers_are_named_by_data_rank_and_epsilon() -> None:
    other = [setting for setting in TABLE.values() if setting.beside_peers]
    assert {setting.epsilon for setting in other} == set(EPSILONS)
    for setting in other:
        assert setting.name == f"{setting.family}-k{setting.k}-e{setting.epsilon:g}"
        assert (setting.delta, setting.centering) == (1e-6, "none")
        against = "clean records" if setting.family.startswith("contam") else "records"
        assert setting.judged_against == against
        assert (setting.data is not None) == (setting.source == "real")
        assert setting.seeds == 5
    assert [setting.name for setting in select(["diamonds-k2-e*"])] == [
        f"diamonds-k2-e{epsilon:g}" for epsilon in EPSILONS
    ]


def test_peers_are_measured_where_they_belong_unless_methods_are_named() -> None:
    methods = default_methods(TABLE["diamonds-k2-e1"])
    assert methods == (DEFAULT, "coinpress", "adaptive-cov", "separate-cov", "largest-norm", "oracle")
    assert "opendp" in default_methods(gaussian(100, 4, 1, 1e-2))


def test_one_table_shows_ours_and_the_peers_and_the_summary_comes_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    utility.main(["--setting", "spike-10-2k-k1-e4", "--seeds", "2", "--first-seed", "7"])
    printed = capsys.readouterr().out
    assert "2 seeds from 7" in printed
    table = printed.split("geometric means")[0]
    for word in ("captured", "x oracle", "x peer", DEFAULT, "coinpress, t = ", "oracle, quantile 0."):
        assert word in table
    assert "worst cell: spike-10-2k-k1-e4" in printed


def test_json_ends_with_the_summary(capsys: pytest.CaptureFixture[str]) -> None:
    utility.main(["--json", "--setting", "spike-10-2k-k1-e4", "--seeds", "1"])
    found, last = (json.loads(line) for line in capsys.readouterr().out.splitlines())
    rows = {row["method"]: row for row in found["results"]}
    assert rows["floor"]["captured"] == 1.0
    assert all(0 < row["captured"] <= 1 + 1e-9 for row in rows.values())
    assert found["seeds"] == [1000]
    assert last["summary"]["groups"]["all"]["cells"] == 1


def test_records_that_are_factors_have_no_peers(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    utility.main(["--setting", "spiked-n100k-k2-s0.5-d1e-2", "--seeds", "1", "--estimator", "oracle"])
    assert "skipped: takes vectors only" in capsys.readouterr().out
