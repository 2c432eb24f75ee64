"""Full or closed standard output gives one line, a status, and no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.waiting import LIMIT

COMMANDS = [
    ["--help"],
    ["--version"],
    ["estimators"],
    ["estimators", "--json"],
    ["plan", "--help"],
    ["plan", "--records", "100000", "--dim", "10", "--rank", "2", "--epsilon", "1", "--delta", "1e-6"],
]


def run(command: list[str], redirection: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell that redirects its output."""
    line = f'"$0" -P -m streaming_pca "$@" {redirection}'
    return subprocess.run(
        ["bash", "-c", line, sys.executable, *command],
        capture_output=True,
        encoding="utf-8",
        env=os.environ | environment,
        timeout=LIMIT,
    )


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_full_device_is_one_line(command: list[str]) -> None:
    done = run(command, "> /dev/full")
    assert done.returncode == 1
    assert done.stderr == "error: standard output cannot be written: No space left on device\n"


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_reader_that_is_gone_is_silence(command: list[str]) -> None:
    for redirection in ("| true", ">&-"):
        assert run(command, redirection).stderr == ""


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_characters_that_an_encoding_lacks_are_escaped(command: list[str]) -> None:
    """Every character that another encoding lacks is one that ASCII lacks too."""
    done = run(command, PYTHONIOENCODING="ascii")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(done.stdout) > 10
    assert done.stdout.isascii()


def test_a_full_standard_error_leaves_the_status(tmp_path: Path) -> None:
    missing = ["config", "check", "--config", str(tmp_path / "none.toml")]
    assert run(missing).returncode == 2
    assert run(missing, "2> /dev/full").returncode == 2
    assert run(missing, "2>&-").returncode == 2
