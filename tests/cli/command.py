"""Commands in this process: the program's entry point, without seconds of imports."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from streaming_pca.cli import main


def call(capfd: pytest.CaptureFixture[str], *arguments: object) -> subprocess.CompletedProcess[str]:
    """Run a command line; return its status and output."""
    return call_program(main, "streaming-pca", capfd, *arguments)


def call_program(
    main: Callable[[], object], name: str, capfd: pytest.CaptureFixture[str], *arguments: object
) -> subprocess.CompletedProcess[str]:
    """Run a program's entry point under its name; return its status and output."""
    capfd.readouterr()
    words = [str(argument) for argument in arguments]
    before, sys.argv = sys.argv, [name, *words]
    try:
        main()
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    finally:
        sys.argv = before
    return subprocess.CompletedProcess(words, status, *capfd.readouterr())
