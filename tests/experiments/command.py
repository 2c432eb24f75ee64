"""`python -m experiments` in this process: the same entry point, without seconds of imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from experiments.__main__ import main


def call(capfd: pytest.CaptureFixture[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line; return its status and output."""
    capfd.readouterr()
    words = [str(argument) for argument in arguments]
    before, sys.argv = sys.argv, ["experiments", *words]
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(words, status, *capfd.readouterr())
