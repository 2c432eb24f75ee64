"""Commands in this process: the same entry point as the program's, without seconds of imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

from streaming_pca.cli import main


def call(capfd: pytest.CaptureFixture[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line; its status and what it printed."""
    capfd.readouterr()
    words = [str(argument) for argument in arguments]
    before, sys.argv = sys.argv, ["streaming-pca", *words]
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(words, status, *capfd.readouterr())
