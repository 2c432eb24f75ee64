"""`python -m experiments` from a user's view."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from experiments.experiment import Experiment, JointMethod
from experiments.methods import METHODS, OURS, REFERENCES
from experiments.papers import EXPERIMENTS
from experiments.papers.wang_xu import LOCAL_METHODS
from experiments.running import _configured
from streaming_pca.estimators.registry import ESTIMATORS
from tests.experiments.command import call, call_quickly, rows

# Experiments with tensors have separate tests.
SUBSPACES = [name for name in EXPERIMENTS if not name.startswith(("tensor-", "topics"))]

AGAIN = ("adaptive-power-epsilon", "ldp-fig2", "ldp-table1")
"""Experiments that run twice, with the usual seeds: without notes, with a method in another's place, with
printed numbers. The others have one seed.
"""


def always_there(experiment: Experiment) -> tuple[str, ...]:
    """Return the methods in every figure of its model."""
    if all(isinstance(method, JointMethod) for method in experiment.methods):
        return ("local-gaussian",)
    return (*OURS, *REFERENCES)


@pytest.mark.parametrize("name", SUBSPACES)
def test_a_quick_experiment_gives_rows_a_picture_and_a_verdict(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, name: str
) -> None:
    seeds = 2 if name in AGAIN else 1
    facts, found = call_quickly(capfd, name, tmp_path, *(() if name in AGAIN else ("--seeds", seeds)))
    experiment = EXPERIMENTS[name](True)
    places = sum(len(panel.points) for panel in experiment.panels)
    # A refused method has its rows too, without an error.
    for method in experiment.methods:
        of_it = [row for row in found if row["method"] == method.key]
        most = seeds * places
        assert len(of_it) == most or (method.most_seeds and 1 <= len(of_it) < most)
    for ours in always_there(experiment):
        assert sum(bool(row["error"]) for row in found if row["method"] == ours) == seeds * places
    assert {row["method"] for row in found if not row["error"]} == set(facts["refused"])

    if name not in AGAIN:
        return
    again = call(capfd, name, "--quick", "--out", tmp_path)
    assert again.returncode == 0, again.stderr
    assert again.stdout.startswith(f"{name} (quick: too small to judge): {facts['verdict']}: ")
    printed = sum(len(panel.printed) for panel in experiment.panels)
    assert len(again.stdout.strip().splitlines()) == 1 + bool(experiment.replaced) + bool(printed) + printed
    assert rows(tmp_path / f"{name}-quick.csv") == found


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_is_whole(name: str, quick: bool) -> None:
    experiment = EXPERIMENTS[name](quick)
    assert experiment.name == name
    keys = [panel.key for panel in experiment.panels]
    assert len(set(keys)) == len(keys)
    for setting in experiment.settings():
        # README.md promises this memory for each of two simultaneous draws.
        assert setting.bytes < 0.7e9
    for panel in experiment.panels:
        xs = [x for x, _ in panel.points]
        assert xs == sorted(set(xs))
        assert len(xs) >= 2


@pytest.mark.parametrize("quick", [True, False])
@pytest.mark.parametrize("name", SUBSPACES)
def test_methods_can_be_configured(name: str, quick: bool) -> None:
    experiment = EXPERIMENTS[name](quick)
    methods = {method.key for method in experiment.methods}
    assert methods >= set(always_there(experiment))
    for setting in experiment.settings():
        for method in experiment.methods:
            if isinstance(method, JointMethod):
                # A joint method receives the same input as its estimator.
                assert method.id in ESTIMATORS or not method.private
            elif method.runs_on(setting, 0) and method.id in ESTIMATORS:
                _configured(method, setting)


def test_every_method_is_an_estimator() -> None:
    ours = [method for method in LOCAL_METHODS.values() if method.private]
    assert {method.id for method in (*METHODS.values(), *ours)} <= set(ESTIMATORS)


def test_the_list_has_every_experiment_and_its_paper(capfd: pytest.CaptureFixture[str]) -> None:
    result = call(capfd, "--list")
    assert result.returncode == 0
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines] == list(EXPERIMENTS)
    assert all(re.search(r"\[[A-Z][A-Za-z]+20\d\d\]", line) for line in lines)


def test_its_help_has_examples(capfd: pytest.CaptureFixture[str]) -> None:
    result = call(capfd, "--help")
    assert result.returncode == 0
    assert "python -m experiments adadpo-fig1 --quick" in " ".join(result.stdout.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fig1"], "no experiment 'fig1'; known: adadpo-fig1, adadpo-fig2, "),
        (["adadpo-fig1", "--seeds", 0], "--seeds: must be a whole number of at least 1, not '0'"),
        (["adadpo-fig1", "--jobs", -1], "--jobs: must be a whole number of at least 1, not '-1'"),
        ([], "NAME is missing: --list prints all experiments"),
        (["adadpo-fig1", "--lots"], "unrecognized arguments: --lots"),
        (["adadpo-fig1", "--seeds", "many"], "--seeds: must be a whole number of at least 1, not 'many'"),
    ],
)
def test_bad_input_is_one_line(
    capfd: pytest.CaptureFixture[str], arguments: list[Any], expected: str
) -> None:
    result = call(capfd, *arguments)
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert line.startswith("error: ")
    assert expected in line
    assert result.stdout == ""


def test_a_folder_that_cannot_be_written_is_one_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    result = call(capfd, "adadpo-fig2", "--quick", "--out", tmp_path / "file")
    assert result.returncode == 2
    (line,) = result.stderr.strip().splitlines()
    assert "error: --out" in line


def test_without_matplotlib_the_error_names_the_extra_before_any_work(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = call(capfd, "adadpo-fig2", "--quick", "--out", tmp_path)
    assert result.returncode == 2
    assert "pip install '.[experiments]' in the checkout" in result.stderr
    assert list(tmp_path.iterdir()) == []
