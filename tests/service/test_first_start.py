"""A worker starts for the first time on a machine, where no kernel is compiled."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil

from tests.config.test_settings import GOOD
from tests.waiting import wait_for

CONFIG = (
    GOOD.replace('"127.0.0.1:9092"', '"127.0.0.1:1"\nbootstrap_timeout_ms = 3000')
    + "[http]\nenabled = false\n"
)


def test_a_dead_broker_ends_a_worker_that_compiles(tmp_path: Path) -> None:
    config, cache = tmp_path / "first.toml", tmp_path / "numba"
    config.write_text(CONFIG)
    command = [sys.executable, "-m", "streaming_pca", "worker", "--config", config]
    environment = os.environ | {"NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 4, done.stderr
    assert "compiling kernels (first run)" in done.stderr
    (error,) = [line for line in done.stderr.splitlines() if " ERROR " in line]
    assert "no broker answers" in error
    assert "Traceback" not in done.stderr
    wait_for("the end of the compilers", lambda: not compilers(cache))
    # The last kernel takes a multiple of the broker's three seconds: nothing waited for it or continued.
    assert not list(cache.rglob("*sum_products*.nbi"))


def compilers(cache: Path) -> list[int]:
    """Return the processes that fill a cache."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("NUMBA_CACHE_DIR") == str(cache):
                found.append(process.pid)
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
    return found
