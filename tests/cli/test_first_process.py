"""The first process of a container handles SIGTERM from its beginning."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests.cli.test_config import written
from tests.config.test_settings import GOOD
from tests.waiting import wait_for

_UNSHARE = ["unshare", "--pid", "--fork", "--kill-child", "--map-root-user"]


@pytest.fixture(scope="module")
def namespace() -> list[str]:
    """Return the command that runs another as the first process of a namespace."""
    if shutil.which("unshare") is None or subprocess.run([*_UNSHARE, "true"], capture_output=True).returncode:
        pytest.skip("this machine makes no namespaces of processes")
    return _UNSHARE


@pytest.mark.parametrize("after", [0.0, 0.3, 1.0, 2.5])
def test_a_worker_ends_however_early_it_is_told_to(
    namespace: list[str], tmp_path: Path, after: float
) -> None:
    """The system delivers only handled signals to the first process."""
    # The worker must not end by itself: another process may use the default port, and no broker answers.
    # It ends when its first look at the topics does.
    more = "bootstrap_timeout_ms = 5000\n[http]\nport = 0\n[stream]"
    config = written(tmp_path, GOOD.replace("[stream]", more))
    command = [*namespace, sys.executable, "-P", "-m", "streaming_pca", "worker", "--config", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as started:
        try:
            inner = wait_for("the worker", lambda: psutil.Process(started.pid).children())[0]
            # Python runs no handler before it has read the program's first lines.
            wait_for("its handler", lambda: _handles(inner.pid, signal.SIGTERM))
            time.sleep(after)
            os.kill(inner.pid, signal.SIGTERM)
            wait_for("its end", lambda: started.poll() is not None)
        finally:
            started.kill()


def _handles(pid: int, number: signal.Signals) -> bool:
    """Return whether a process has a handler of a signal."""
    status = Path(f"/proc/{pid}/status").read_text()
    caught = int(next(line.split()[1] for line in status.splitlines() if line.startswith("SigCgt")), 16)
    return bool(caught >> (number - 1) & 1)
