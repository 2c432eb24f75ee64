"""The command line from a user's view."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import typer

from streaming_pca.cli.app import app
from streaming_pca.estimators.registry import ESTIMATORS
from tests.cli.command import call
from tests.ports import steady_port
from tests.waiting import without_progress

Capture = pytest.CaptureFixture[str]
Patch = pytest.MonkeyPatch
CONFIG = """
[kafka]
bootstrap_servers = "{bootstrap}"
bootstrap_timeout_ms = 60000
unchecked_topics = true  # where Apache Kafka cannot be had, these run on the embedded broker

[stream]
name = "{name}"
input = "{name}-in"
dim = 6
rank = 2
epsilon = 1.0
delta = 1e-6
bounds = [-6, 6]

[stream.options]
n_records = 3000
n_batches = 2

[worker]
group = "{name}"
stop_when_done = true

[http]
enabled = false
"""


def run(*arguments: object, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "streaming_pca", *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "COLUMNS": "160"},
    )


def last_json(result: subprocess.CompletedProcess[str]) -> Any:
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.strip().splitlines()[-1])


def write_config(tmp_path: Path, bootstrap: str, name: str, *changes: tuple[str, str]) -> Path:
    text = CONFIG.format(bootstrap=bootstrap, name=name)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    path = tmp_path / f"{name}.toml"
    path.write_text(text)
    return path


def one_line(result: subprocess.CompletedProcess[str], status: int, *expected: str) -> None:
    assert result.returncode == status, result.stderr
    assert "Traceback" not in result.stderr
    lines = [line for line in without_progress(result.stderr.strip()) if " INFO " not in line]
    assert len(lines) == 1, result.stderr
    for part in expected:
        assert part in lines[0]


def closed_port() -> int:
    return steady_port()


def test_estimators_are_listed_for_people_and_programs(capfd: Capture, monkeypatch: Patch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    infos = last_json(call(capfd, "estimators", "--json"))
    assert {info["id"] for info in infos} == ESTIMATORS.keys()
    for info in infos:
        assert info["private"] == (info["id"] not in {"oja", "tensor-online"})
        assert info["adjacency"] == ("replace-one" if info["private"] else "none")
        assert {"source", "needs", "summary", "local", "releases"} < info.keys()
        assert all(info[name] for name in ("source", "needs", "summary"))
    # The 16 of the design, and the part of the default that has its own id.
    assert len(infos) == 17
    shown = call(capfd, "estimators").stdout
    assert {info["id"] for info in infos} <= set(shown.split())


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Yield the words of each command of the program."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield path
        return
    for name, each in inner.items():
        yield from leaves(each, (*path, name))


COMMANDS = sorted(leaves(typer.main.get_command(app)))


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_explains_itself_with_an_example(
    command: tuple[str, ...], capfd: Capture, monkeypatch: Patch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    result = call(capfd, *command, "--help")
    assert result.returncode == 0
    # Every line of prose is full: the line breaks of the source do not remain.
    for line, following in pairwise(result.stdout.partition("╭")[0].splitlines()):
        if line.strip() and following.strip():
            assert len(line.strip()) + 1 + len(following.split()[0]) > 76, line
    shown = " ".join(result.stdout.replace("│", " ").split())
    assert "Usage" in shown
    assert f"streaming-pca {' '.join(command)}" in shown.partition("Options")[0].partition("Example")[2]
    # A flag is shown as a flag, not as an option that takes a value.
    assert "--help Show this message" in shown
    assert "<bool>" not in shown


def test_the_program_explains_itself() -> None:
    result = run("--help")
    assert result.returncode == 0
    assert {words[0] for words in COMMANDS} <= set(result.stdout.split())


def test_a_wrong_configuration_is_one_line(capfd: Capture, tmp_path: Path) -> None:
    config = write_config(tmp_path, "127.0.0.1:1", "s", ("rank = 2", "rank = 7"))
    one_line(call(capfd, "worker", "--config", config), 2, "rank = 7 is above dim = 6")


def test_an_unreachable_broker_is_one_line_in_bounded_time(capfd: Capture, tmp_path: Path) -> None:
    changes = ("delta = 1e-6", "delta = 0.1"), ("timeout_ms = 60000", "timeout_ms = 100")
    config = write_config(tmp_path, f"127.0.0.1:{closed_port()}", "s", *changes)
    worked = run("worker", "--config", config)
    # The worker's log also has a warning about its delta.
    (warning,) = (line for line in worked.stderr.splitlines() if " WARNING " in line)
    assert " WARNING delta = 0.1 is not below 1/records" in warning
    worked.stderr = worked.stderr.replace(f"{warning}\n", "")
    one_line(worked, 4, "no broker answers at kafka.bootstrap_servers")
    one_line(call(capfd, "ledger", "verify", "--config", config), 4, "no broker answers")


def test_a_stream_from_creation_to_verification(
    tmp_path: Path, broker_bootstrap: str, unique_name: Any, capfd: Capture
) -> None:
    name = unique_name("cli")
    config = write_config(tmp_path, broker_bootstrap, name)
    one_line(run("worker", "--config", config), 2, "is missing", "topics create")
    created = last_json(call(capfd, "topics", "create", "--config", config, "--cap", "1,1e-6", "--json"))
    assert len(created["created"]) == 4
    again = call(capfd, "topics", "create", "--config", config, "--cap", "2,1e-6")
    one_line(again, 2, "was opened with 1,1e-06")

    x = np.random.default_rng(5).standard_normal((3000, 6)) * [3, 2, 1, 0.1, 0.1, 0.1]
    np.savetxt(tmp_path / "x.csv", x, delimiter=",")
    sent = last_json(call(capfd, "produce", tmp_path / "x.csv", "--config", config, "--shuffle", 3, "--json"))
    assert sent["records"] == 3000
    worked = run("worker", "--config", config)
    assert worked.returncode == 0, worked.stderr

    shown = last_json(call(capfd, "ledger", "show", "--config", config, "--json"))
    assert shown["jobs"][name]["records_committed"] == 3000
    assert [e["kind"] for e in shown["entries"]] == [
        "OPENED", "RESERVED", "COMMITTED", "RELEASED", "RESERVED", "COMMITTED", "RELEASED",
    ]  # fmt: skip
    assert "RESERVED" in call(capfd, "ledger", "show", "--config", config).stdout
    verified = call(capfd, "ledger", "verify", "--config", config, "--json")
    assert last_json(verified)["ok"] is True
    by_name = ("--input", f"{name}-in", "--bootstrap", broker_bootstrap)
    assert f"verified: the ledger of {name}-in\n" in call(capfd, "ledger", "verify", *by_name).stdout
    spent = last_json(call(capfd, "ledger", "spent", *by_name, "--partition", 0, "--offset", 0, "--json"))
    assert spent["spent"] == {"epsilon": "1", "delta": "1/1000000"}
    assert spent["left"] == {"epsilon": "0", "delta": "0"}
    for partition, offset, *reported in (
        (0, 10**6, "--offset 1000000: partition 0 of topic", " 0 to "),
        (3, 0, "--partition 3: topic", " 0 to 2"),
    ):
        never = call(capfd, "ledger", "spent", *by_name, "--partition", partition, "--offset", offset)
        one_line(never, 2, *reported)

    other = write_config(tmp_path, broker_bootstrap, name, ("epsilon = 1.0", "epsilon = 0.5"))
    one_line(run("worker", "--config", other), 2, "stream.epsilon is 0.5", "the ledger has 1.0")
