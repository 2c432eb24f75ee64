"""Full or closed standard output gives one line, a status, and no traceback."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
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

PROGRAM = """
import json, os, sys
from streaming_pca import api
from streaming_pca.cli import main, plan
from streaming_pca.estimators import forecast, registry
answers = os.fdopen(os.dup(1), "w")
for line in sys.stdin:
    if not (child := os.fork()):
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), file=answers, flush=True)
else:
    sys.exit()
words, output, errors, encoding = json.loads(line)
if output == "gone":
    reader, writer = os.pipe()
    os.close(reader)
else:
    writer = os.open(output, os.O_WRONLY | os.O_CREAT)
os.dup2(writer, 1)
os.dup2(os.open(errors, os.O_WRONLY | os.O_CREAT), 2)
sys.stdout.reconfigure(encoding=encoding)
sys.argv = ["streaming-pca", *words]
main()
"""
"""Server that runs each line's command in a fork of itself, and writes the exit statuses.

Importing the program takes a second, so a command is a fork of a process that has done that.
"""

Server = subprocess.Popen[str]


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """Start the server of forks for this module."""
    command = [sys.executable, "-P", "-c", PROGRAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield process
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(LIMIT) == 0


def fork(
    server: Server, command: list[str], output: Path | str, errors: Path | str, encoding: str = "utf-8"
) -> int:
    """Run a command in a process with redirected output, "gone" for a closed pipe; return the status."""
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps([command, str(output), str(errors), encoding]) + "\n")
    server.stdin.flush()
    return int(server.stdout.readline())


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
def test_a_full_device_is_one_line(server: Server, tmp_path: Path, command: list[str]) -> None:
    assert fork(server, command, "/dev/full", tmp_path / "errors") == 1
    expected = "error: standard output cannot be written: No space left on device\n"
    assert (tmp_path / "errors").read_text() == expected


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_a_reader_that_is_gone_is_silence(server: Server, tmp_path: Path, command: list[str]) -> None:
    fork(server, command, "gone", tmp_path / "errors")
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.parametrize("command", [["--help"], ["estimators", "--json"]], ids=" ".join)
def test_a_closed_output_is_silence(command: list[str]) -> None:
    """Python itself starts without it: what is printed does not matter."""
    assert run(command, ">&-").stderr == ""


def test_a_closed_input_is_an_empty_one() -> None:
    done = run(["payload", "check", "-", "--dim", "3"], "<&-")
    assert (done.stdout, done.stderr) == ("null record: it has no rows\n", "")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_characters_that_an_encoding_lacks_are_escaped(
    server: Server, tmp_path: Path, command: list[str]
) -> None:
    """Every character that another encoding lacks is one that ASCII lacks too."""
    output, errors = tmp_path / "output", tmp_path / "errors"
    assert fork(server, command, output, errors, "ascii") == 0, errors.read_text()
    assert errors.read_text() == ""
    assert len(output.read_bytes()) > 10
    assert output.read_bytes().isascii()


def test_the_encoding_can_come_from_the_environment() -> None:
    done = run(["estimators"], PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout) > 10
    assert done.stdout.isascii()


def test_a_full_standard_error_leaves_the_status(server: Server, tmp_path: Path) -> None:
    missing = ["config", "check", "--config", str(tmp_path / "none.toml")]
    assert fork(server, missing, "/dev/null", tmp_path / "errors") == 2
    assert (tmp_path / "errors").read_text() != ""
    assert fork(server, missing, "/dev/null", "/dev/full") == 2
    assert run(missing, "2>&-").returncode == 2
