"""Programs without a Python package."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import NoBroker, kafka_is_required

ROOT = Path(__file__).resolve().parents[2]


def missing(reason: str, detail: str = "") -> BaseException:
    """Return the exception for a missing program: a failure if all are required, else a loud skip."""
    if kafka_is_required():
        return pytest.fail.Exception(f"REQUIRE_KAFKA is set, but {reason}. {detail}", pytrace=False)
    return NoBroker("deployment", reason, detail)


def tool(name: str) -> str:
    """Return the path of a program."""
    found = shutil.which(name)
    if found is None:
        raise missing(f"no {name} found", "As root, .ci/run installs it.")
    return found


def run_tool(*command: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, successful or not."""
    program, *arguments = map(str, command)
    return captured([tool(program), *arguments], cwd=cwd)


def captured(command: Sequence[object], **how: Any) -> subprocess.CompletedProcess[str]:
    """Run any command to its end, successful or not, and keep its output."""
    usual = {"stdin": subprocess.DEVNULL} if "input" not in how else {}
    usual |= {"capture_output": True, "text": True, "check": False, "timeout": 240}
    return subprocess.run([*map(str, command)], **(usual | how))
