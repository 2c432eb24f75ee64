"""A command that takes long has bars on a terminal, and elsewhere a line at regular times."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import IO

import pytest
from rich.console import Console

from streaming_pca import progress as module
from streaming_pca.progress import Progress
from tests.cli.command import call
from tests.waiting import wait_for


@pytest.fixture
def shortly(monkeypatch: pytest.MonkeyPatch) -> None:
    """Print a line every 20 ms, in place of 10 s."""
    monkeypatch.setattr(module, "_SECONDS", 0.02)


def lines_of(work: Callable[[Progress, io.StringIO], None], **environment: str) -> list[str]:
    """Return the lines that a piece of work prints into a file."""
    file = io.StringIO()
    with Progress(Console(file=file, width=20, _environ=environment)) as progress:
        work(progress, file)
    return file.getvalue().splitlines()


def wait_for_line(file: io.StringIO, text: str) -> None:
    wait_for(text, lambda: text in file.getvalue(), seen=file.getvalue)


@pytest.mark.usefixtures("shortly")
@pytest.mark.parametrize("environment", [{}, {"FORCE_COLOR": "1"}, {"TTY_COMPATIBLE": "1"}], ids=str)
def test_a_pipe_gets_whole_lines_with_amount_and_time(environment: dict[str, str]) -> None:
    def work(progress: Progress, file: io.StringIO) -> None:
        sending = progress.task("records sent", 30_000)
        progress.task("reading [the] file")
        wait_for_line(file, "records sent: 0 of 30,000 (0%), ")
        sending.advance(12_000)
        wait_for_line(file, "records sent: 12,000 of 30,000 (40%), ")
        sending.complete(30_000)

    lines = lines_of(work, **environment)
    assert {re.sub(r"\d+ s$", "N s", line) for line in lines} == {
        "records sent: 0 of 30,000 (0%), N s",
        "records sent: 12,000 of 30,000 (40%), N s",
        "reading [the] file, N s",
    }


@pytest.mark.usefixtures("shortly")
def test_a_finished_step_has_no_further_line() -> None:
    def work(progress: Progress, file: io.StringIO) -> None:
        compiling, counted = progress.task("compiling"), progress.task("counting", 1)
        counted.advance()
        wait_for_line(file, "compiling")
        compiling.finish()
        progress.task("learning")
        before = file.getvalue().count("compiling")
        wait_for_line(file, "learning")
        assert file.getvalue().count("compiling") <= before + 1

    assert not [line for line in lines_of(work) if "counting" in line]


def test_a_short_command_prints_nothing_and_leaves_no_thread() -> None:
    assert lines_of(lambda progress, _: progress.task("reading", 3).advance(2)) == []
    assert not [each for each in threading.enumerate() if each.name == "progress"]
    assert module._SECONDS == 10.0


def read(terminal: IO[bytes]) -> bytes:
    """Read from a terminal that has no writer; return b"" at the end."""
    try:
        return terminal.read(2**16)
    except OSError:
        return b""


def test_a_terminal_gets_bars_that_disappear(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_SECONDS", 0.001)
    master, slave = pty.openpty()
    with os.fdopen(slave, "w") as terminal:
        console = Console(file=terminal, width=100, _environ={"TERM": "xterm-256color"})
        with Progress(console) as progress:
            sending, reading = progress.task("sending", 3000), progress.task("reading [the] file")
            sending.advance(1200)
            reading.describe("reading [another] file")
            time.sleep(0.05)
            reading.finish()
    with os.fdopen(master, "rb", buffering=0) as reader:
        shown = b"".join(iter(lambda: read(reader), b"")).decode()
    assert "1200/3000" in shown
    assert "reading [another] file" in shown
    assert "━" in shown
    assert "of 3,000" not in shown
    # The last move is up, over erased lines.
    assert shown.rpartition("reading")[2].count("\x1b[1A\x1b[2K") == 2


class SlowInput:
    """Standard input that takes many intervals."""

    def read(self) -> bytes:
        time.sleep(0.5)
        return b'{"x": [1, 2, 3]}\n{"x": [1]}\n'


@pytest.mark.usefixtures("shortly")
def test_a_command_that_waits_keeps_its_standard_output_for_results(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=SlowInput()))
    how = "--lines --dim 3 --content-type json --json"
    done = call(capfd, "payload", "check", "-", *how.split())
    assert done.returncode == 1
    assert json.loads(done.stdout)["null"] == 1
    lines = done.stderr.splitlines()
    assert len(lines) >= 2
    assert all(re.fullmatch(r"(reading standard input|checking payloads: .*), \d+ s", line) for line in lines)
