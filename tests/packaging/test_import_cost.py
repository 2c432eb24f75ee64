"""Imports and light commands load only what they need: no client of Kafka, and no compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

# For a service, noise and kernels: not loaded by importing the package or reading settings.
LATER = {"fastapi", "kafka", "matplotlib", "numba", "opendp", "plotly", "prometheus_client", "sse_starlette"}
LATER |= {"opentelemetry", "requests", "starlette", "uvicorn", "uvloop"}
NUMERICS = {"numpy", "pydantic", "scipy", "sklearn"}

LIBRARY = """
def loaded():
    return sorted({name.partition(".")[0] for name in sys.modules})

import streaming_pca
first = loaded()
from streaming_pca import PrivatePCA
print(json.dumps([first, loaded()]))
"""

COMMANDS = """
def loaded(*words):
    sys.argv = ["streaming-pca", *words]
    try:
        with contextlib.redirect_stdout(io.StringIO()):
            main()
    except SystemExit as end:
        assert not end.code, end.code
    return sorted({name.partition(".")[0] for name in sys.modules})

from streaming_pca.cli import main
first = loaded("--help")
print(json.dumps([first, loaded("config", "check", "--config", "stream.toml")]))
"""

BEGINNING = "import contextlib, io, json, sys\n"

CONFIG = """
[stream]
name = "light"
input = "light-records"
dim = 8
rank = 2
epsilon = 1.0
delta = 1e-6
"""


@pytest.mark.parametrize(
    ("program", "never_at_first", "never"),
    [(LIBRARY, LATER | NUMERICS | {"typer"}, LATER | {"typer"}), (COMMANDS, LATER | NUMERICS, LATER)],
    ids=["library", "commands"],
)
def test_nothing_heavy_is_loaded_and_nothing_compiled(
    program: str, never_at_first: set[str], never: set[str], tmp_path: Path
) -> None:
    (tmp_path / "stream.toml").write_text(CONFIG)
    done = subprocess.run(
        [sys.executable, "-c", BEGINNING + program],
        cwd=tmp_path,
        env=os.environ
        | {"NUMBA_CACHE_DIR": str(tmp_path / "numba"), "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    first, later = json.loads(done.stdout)
    assert not {*first} & never_at_first
    assert not {*later} & never
    assert "numpy" in later
    assert not list(tmp_path.rglob("*.nb?"))
