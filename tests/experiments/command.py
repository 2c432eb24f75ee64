"""`python -m experiments` in this process: the same entry point, without seconds of imports."""

from __future__ import annotations

import csv
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import main
from tests.cli.command import call_program

call = partial(call_program, main, "experiments")


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def call_quickly(
    capfd: pytest.CaptureFixture[str], name: str, folder: Path, *more: object
) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Run a quick experiment, which must draw a picture; return its facts and its rows."""
    result = call(capfd, name, "--quick", "--out", folder, *more, "--json")
    assert result.returncode == 0, result.stderr
    facts = json.loads(result.stdout)
    assert facts["verdict"] in ("reproduced", "partly", "not reproduced", "not judged")
    picture = (folder / f"{name}-quick.png").read_bytes()
    assert picture[:8] == b"\x89PNG\r\n\x1a\n"
    assert 5_000 < len(picture) < 100_000
    return facts, rows(folder / f"{name}-quick.csv")
