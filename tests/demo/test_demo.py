"""The demo from a user's view: it explains its actions, and leaves nothing running."""

from __future__ import annotations

import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from streaming_pca.cli import worker
from streaming_pca.demo import demo as module
from tests.waiting import LIMIT, wait_for

_LIMIT = 900
"""Seconds that a demo may take on a busy machine; it takes 45 on a quiet one."""


def demo(cwd: Path, *arguments: object, **variables: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "streaming_pca", "demo", *map(str, arguments)],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"COLUMNS": "80", "PYTHONPATH": os.pathsep.join(sys.path)} | variables,
    )


def test_next_steps_of_an_installed_wheel_name_commands_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_checkout = module._next("x")
    assert all(page in in_checkout for page in module._PAGES)
    monkeypatch.setattr(module, "_CHECKOUT", tmp_path)
    installed = module._next("x")
    assert installed.startswith("next: x\n      streaming-pca dev kafka starts")
    assert "docs/" not in installed


def test_a_file_gets_whole_lines_and_a_terminal_a_table_that_fits() -> None:
    release = SimpleNamespace(batch=1, records=5, explained_variance=[1.25] * 144)
    points: list[Any] = [SimpleNamespace(release=release, error=0.1, seconds=1.0)]
    for terminal in (False, True):
        file = io.StringIO()
        module._print_table(points, 3.0, Console(file=file, width=80, force_terminal=terminal))
        *table, explained = file.getvalue().splitlines()
        assert explained.startswith("The error is the distance ")
        assert explained.endswith("of all records: 0 for the same subspace, 3.00 for a random one.")
        assert (" ".join(["1.25"] * 144) in file.getvalue()) is not terminal
        if terminal:
            assert max(cell_len(Text.from_ansi(line).plain) for line in table) <= 80


def test_the_duration_of_a_demo_is_the_same_wherever_it_is_named() -> None:
    usual, first = module._SECONDS, module._FIRST_SECONDS
    readme = " ".join((Path(__file__).parents[2] / "README.md").read_text().split())
    assert (
        f"the demo takes some {first} seconds after its installation, and {usual} seconds on later" in readme
    )
    page = " ".join(str(worker.demo.__doc__).split())
    assert (
        f"takes about {usual} seconds on two cores; the first run, which compiles the kernels, takes {first}."
        in page
    )


def reported(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return a process's whole output; the process does not outlive the test."""
    with process:
        try:
            return process.communicate(timeout=_LIMIT)
        finally:
            process.kill()


def streams_at(url: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{url}/v1/streams", timeout=LIMIT) as answer:
        found: list[dict[str, Any]] = json.load(answer)["items"]
    return found


def address_in(process: subprocess.Popen[str]) -> tuple[str, list[str]]:
    """Return the address that a process prints, and the lines before."""
    assert process.stdout is not None
    message: list[str] = []
    for line in process.stdout:
        found = re.match(r"dashboard: (http://\S+)/", line)
        if found is not None:
            return found[1], message
        message.append(line)
    raise AssertionError("".join(message))


def learnt(url: str) -> dict[str, Any]:
    """Return the stream at an address, once the dashboard has read its topics."""
    (found,) = wait_for(
        "the last release", lambda: [s for s in streams_at(url) if s["last_release"] is not None]
    )
    return found


@pytest.mark.timeout(_LIMIT + 100)
def test_the_demo_learns_the_flights_and_explains_itself(tmp_path: Path) -> None:
    """The dashboard then shows them until it is stopped; test_wheel.py runs a demo without it."""
    picture = tmp_path / "demo.png"
    options = ("--dashboard", "--port", 0, "--plot", picture)
    with demo(tmp_path, *options, TMPDIR=str(tmp_path)) as process:
        url, (*lines, last) = address_in(process)
        facts = json.loads(last)
        assert facts["records"] == 336_776
        assert facts["error"] <= 0.05 * facts["random_error"]
        assert facts["ledger"] == "verified"
        assert facts["releases"] >= 5
        found = learnt(url)
        assert found["records"] == facts["records"]
        assert found["batches"]["released"] == facts["releases"]
        process.send_signal(signal.SIGINT)
        _, err = reported(process)
    assert process.returncode == 0
    assert "Traceback" not in err
    # The word of the dashboard's pages.
    assert "records processed: " in err
    assert "learnt" not in err
    assert re.search(r"takes about (20|45) seconds on two cores", err)
    assert picture.stat().st_size > 10_000
    assert list(tmp_path.iterdir()) == [picture]
    text = " ".join(" ".join(lines).split())
    (explained,) = (line for line in lines if line.startswith("The error is the distance |UU^T - VV^T|_F"))
    assert explained.rstrip().endswith("0 for the same subspace, 3.11 for a random one.")
    assert not [line for line in lines if line.startswith("error")]
    assert "the dashboard shows this stream until Ctrl-C; its address follows" in text
    # The pages that it recommends exist.
    pages = re.findall(r"docs/\S+\.md", text.partition("next: ")[2])
    assert len(pages) == 2
    assert all((Path(__file__).parents[2] / page).is_file() for page in pages)


@pytest.mark.timeout(_LIMIT + 100)
@pytest.mark.soak
def test_on_a_broker_of_ones_own_the_printed_lines_show_the_stream(
    kafka_bootstrap: str, tmp_path: Path
) -> None:
    out, err = reported(demo(tmp_path, "--bootstrap", kafka_bootstrap))
    found = re.search(
        r"^cat > (\S+) <<'END'\n(.*?)^END\n(streaming-pca dashboard --config \S+)$", out, re.M | re.S
    )
    assert found is not None, out + err
    name, text, command = found.groups()
    assert f"this stream stays on {kafka_bootstrap}" in out
    (tmp_path / name).write_text(text)
    words = [
        sys.executable,
        "-m",
        *command.replace("streaming-pca", "streaming_pca", 1).split(),
        "--port",
        "0",
    ]
    with subprocess.Popen(
        words,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    ) as process:
        try:
            assert learnt(address_in(process)[0])["records"] == 336_776
        finally:
            process.kill()


def test_a_first_demo_says_that_it_compiles_and_stops_when_told(tmp_path: Path) -> None:
    cache, cwd = tmp_path / "numba", tmp_path / "cwd"
    cwd.mkdir()
    # The width keeps the words in one line, as the progress display prints them too, at its end.
    with demo(cwd, NUMBA_CACHE_DIR=str(cache), TMPDIR=str(tmp_path), COLUMNS="120") as process:
        assert process.stderr is not None
        assert any("compiling kernels (first run)" in line for line in process.stderr)
        wait_for("the compiler", lambda: [each for each in psutil.process_iter() if compiles(each, cache)])
        process.send_signal(signal.SIGINT)
        _, err = reported(process)
    assert process.returncode != 0
    assert "Traceback" not in err
    assert not [each.pid for each in psutil.process_iter() if cache_of(each) == str(cache)]
    assert list(cwd.iterdir()) == []
    assert {path.name for path in tmp_path.iterdir()} == {"numba", "cwd"}


def compiles(process: psutil.Process, cache: Path) -> bool:
    try:
        command = process.cmdline()
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return False
    return "streaming_pca.estimators.kernel_cache" in command and cache_of(process) == str(cache)


def cache_of(process: psutil.Process) -> str | None:
    try:
        found: str | None = process.environ().get("NUMBA_CACHE_DIR")
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return None
    return found


def test_a_demo_that_cannot_finish_ends_before_it_reads_or_compiles(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    process = demo(tmp_path, "--bootstrap", f"127.0.0.1:{port}", NUMBA_CACHE_DIR=str(tmp_path / "numba"))
    _, err = reported(process)
    assert process.returncode == 4
    assert "no broker answers" in err
    assert "Traceback" not in err
    assert "reading the flights" not in err
    assert "compiling" not in err


def test_a_plot_into_no_folder_is_refused_at_once(tmp_path: Path) -> None:
    process = demo(tmp_path, "--plot", "no/demo.png")
    _, err = reported(process)
    assert process.returncode == 2
    (line,) = err.splitlines()
    assert "does not exist: create it" in line
