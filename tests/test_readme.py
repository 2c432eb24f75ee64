"""The README runs as printed."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from kafka import KafkaAdminClient

README = Path(__file__).parent.parent / "README.md"
TOUR_TOPICS = ("tour-records", "tour-records.ledger", "tour.state", "tour.releases")


def blocks(section: str, language: str) -> list[str]:
    """The code of a marked section."""
    text = README.read_text(encoding="utf-8")
    found = re.search(rf"<!-- {section}: begin -->\n(.*?)<!-- {section}: end -->", text, re.DOTALL)
    assert found is not None, section
    code = re.findall(rf"```{language}\n(.*?)```", found[1], re.DOTALL)
    assert code, section
    return code


def run(command: list[str], where: Path, **environment: str) -> str:
    # `streaming-pca` and `python` are those that run this test.
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        command,
        cwd=where,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
        stdin=subprocess.DEVNULL,
        env={**os.environ, "PATH": path, "COLUMNS": "120", **environment},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_tour_and_the_consumer_run_as_printed(kafka_bootstrap: str, tmp_path: Path) -> None:
    with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
        left = set(TOUR_TOPICS) & set(admin.list_topics())
        assert not left, f"an earlier tour left topics on this broker: {left}"
    try:
        script = "".join(blocks("tour", "sh"))
        out = run(["sh", "-e", "-c", script + "\nwait"], tmp_path, BROKER=kafka_bootstrap)
        assert "30000 records sent" in out
        assert out.rstrip().endswith("verified")
        assert "released" in (tmp_path / "worker.log").read_text()
        (code,) = blocks("consumer", "python")
        shown = run([sys.executable, "-c", code], tmp_path, BROKER=kafka_bootstrap)
        assert len(shown.splitlines()) == 3
    finally:
        with KafkaAdminClient(bootstrap_servers=kafka_bootstrap) as admin:
            admin.delete_topics(list(set(TOUR_TOPICS) & set(admin.list_topics())))


def test_the_library_example_runs_as_printed(tmp_path: Path) -> None:
    (code,) = blocks("example", "python")
    out = run([sys.executable, "-W", "error", "-c", code], tmp_path)
    assert "(2, 6)" in out
    assert "epsilon 1.0" in out


def test_every_command_that_is_printed_exists() -> None:
    text = README.read_text(encoding="utf-8")
    commands = set(re.findall(r"^streaming-pca ((?:[a-z]+ ?)+)", text, re.MULTILINE))
    assert len(commands) > 12
    help_of: Callable[[str], str] = lambda command: run(  # noqa: E731
        [sys.executable, "-c", _HELP, json.dumps(command.split())], Path.cwd()
    )
    for command in sorted(commands):
        assert "Usage" in help_of(command), command


_HELP = """
import json, sys
words = json.loads(sys.argv[1])
from streaming_pca.cli.app import app
import typer.main
found = typer.main.get_command(app)
while words and hasattr(found, "commands") and words[0] in found.commands:
    found = found.commands[words.pop(0)]
sys.exit("no such command: " + sys.argv[1]) if hasattr(found, "commands") else print("Usage")
"""
