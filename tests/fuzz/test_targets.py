"""Readers of outside bytes keep their promises on hostile input: a bounded run of each target."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.fuzz.__main__ import REGRESSIONS, load_targets, outcome, reproduce
from tests.fuzz.target import MIB, TARGETS, Target

ROOT = Path(__file__).parents[2]
load_targets()


@pytest.fixture(scope="module")
def outcomes(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Run the selected tests' targets in one process."""
    chosen = {item.callspec.params["name"] for item in request.session.items if _is_of_a_target(item)}
    names = [name for name in TARGETS if name in chosen]
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "check", *names],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    found = [json.loads(line) for line in run.stdout.splitlines()]
    assert len(found) == len(names), run.stderr
    return {each["target"]: each for each in found}


def _is_of_a_target(item: Any) -> bool:
    return getattr(item, "originalname", "") == test_hostile_bytes_break_no_promise.__name__


@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TARGETS)
def test_hostile_bytes_break_no_promise(name: str, outcomes: dict[str, Any]) -> None:
    """Only documented errors occur, in bounded memory and time; neighbouring records stay unchanged."""
    found = outcomes[name]
    assert "failure" not in found, f"{found['failure']}\n{reproduce(name, found['file'])}"
    assert found["inputs"] >= TARGETS[name].inputs


def test_every_regression_has_a_target() -> None:
    assert {path.name for path in REGRESSIONS.iterdir()} <= set(TARGETS)


@pytest.mark.parametrize(
    ("run", "failure"),
    [
        (lambda data: [bytearray(b"x") * (400 * MIB)], "allowed"),
        (lambda data: bytearray(3 * 2**30), "MemoryError"),
        (lambda data: 1 // 0, "ZeroDivisionError"),
        (lambda data: os.kill(os.getpid(), signal.SIGKILL), "signal 9"),
    ],
    ids=["memory", "address space", "error", "crash"],
)
def test_a_broken_promise_is_found(
    run: Any, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    broken = Target("broken", run, lambda: [b"x"], lambda length: 16 * MIB, 1)
    found = outcome(broken, [b"an input"])
    assert failure in found["failure"]
    assert (tmp_path / found["file"]).read_bytes() == b"an input"
