"""A shown secret fails the whole run, whose search reports its extent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.security.needles import MARK
from tests.security.whole_run import HOLDERS, is_searched

CONFTEST = """
from tests.conftest import pytest_make_parametrize_id
from tests.security.whole_run import WholeRun
def pytest_configure(config):
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(WholeRun(config))
"""
TESTS = """
import logging
import pytest
from tests.security.needles import ROW, secret

def test_prints():
    print("the password is " + secret("printed"))

def test_logs():
    logging.getLogger().warning("%s", [0.0, *ROW])

def test_writes(tmp_path):
    (tmp_path / "a.log").write_bytes(secret("written").encode())
    (tmp_path / "password").write_text(secret("of-file"))

@pytest.mark.parametrize("text", [secret("parameter")])
def test_is_silent(tmp_path, text):
    (tmp_path / "a.log").write_text("a record was delivered")
"""


def run(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_them.py").write_text(TESTS)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--basetemp", folder / "base"]
    env = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "PYTEST_ADDOPTS": ""}
    how: dict[str, Any] = {"capture_output": True, "text": True, "timeout": 120, "check": False}
    return subprocess.run([*command, *words], cwd=folder, env=env, **how)


def test_a_run_that_shows_secrets_or_records_fails(tmp_path: Path) -> None:
    done = run(tmp_path, "-n", "1")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "4 passed" in done.stdout
    found = [line.removeprefix("FOUND ") for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    places = [re.split(r", |: ", line)[0].rpartition("/")[2] for line in found[:1] + found[-1:]]
    assert places == ["test_them.py::test_prints", "a.log"]
    assert any("a record's 1.739" in line for line in found)
    assert not any(line.startswith("the name of a test") for line in found)
    assert not any("/password" in line for line in found)
    assert re.search(r"secrets and records: \d+ found, in \d+ encodings", done.stdout)


def test_a_run_that_shows_none_passes(tmp_path: Path) -> None:
    done = run(tmp_path, "-k", "silent")
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"0 found, .* that 1 tests printed, and in 1 files of 22 octets", done.stdout)


def test_only_named_files_are_left_out() -> None:
    assert all(HOLDERS.values())
    assert not is_searched("test_it_0/password")
    assert not is_searched("popen-gw3/test_it_0/token")
    for path in ("test_it_0/a/password", "test_it_0/password.log", "worker/log", MARK):
        assert is_searched(path)


def test_every_password_of_the_tests_can_be_found() -> None:
    """The search of the run would not know a secret in clear text."""
    literal = re.compile(
        r"""(?i)^\s*(?:PASSWORD|TOKEN|OTHER)\s*=\s*["']|(?:sasl_password|\btoken)=["']\w{8}"""
    )
    found = [
        f"{path.name}:{number}: {line.strip()}"
        for path in sorted(Path(__file__).parents[1].rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if literal.search(line)
    ]
    assert not found, "use tests.security.needles.secret:\n" + "\n".join(found)
