"""Wait for a thread, a process or a broker, with one limit for all tests."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from kafka import KafkaAdminClient

from streaming_pca.dev.cluster import Node

T = TypeVar("T")

LIMIT = 120.0
"""Upper limit in seconds for anything on a machine that is busy with other tests and compilers."""


def wait_for(
    what: str,
    probe: Callable[[], T | None],
    seconds: float = LIMIT,
    seen: Callable[[], str] = str,
    pause: float = 0.05,
) -> T:
    """Return the probe's first true value; on timeout, fail with the output of ``seen``."""
    deadline = time.monotonic() + seconds
    while not (found := probe()):
        assert time.monotonic() < deadline, f"waited {seconds:g} s for {what}\n{seen()}"
        time.sleep(pause)
    return found


def without_progress(errors: str) -> list[str]:
    """Return the lines of standard error without those of progress.

    A command prints them if it takes more than ten seconds, on a busy machine.
    """
    return [line for line in errors.splitlines() if not re.search(r", \d+ s$", line)]


def let_admin_clients_wait() -> None:
    """Give admin clients of tests, which name no limit, this module's limit for connections and answers.

    kafka-python gives a connection ten seconds, which a busy machine can exceed, and does not try again.
    """
    begin = KafkaAdminClient.__init__

    @wraps(begin)
    def begin_patiently(self: Any, **configs: Any) -> None:
        if "request_timeout_ms" in configs:
            begin(self, **configs)
            return
        begin(self, **configs, request_timeout_ms=int(1000 * LIMIT))
        for name in ("socket_connection_setup_timeout_ms", "socket_connection_setup_timeout_max_ms"):
            assert name in self._manager.config
            self._manager.config[name] = int(1000 * LIMIT)

    KafkaAdminClient.__init__ = begin_patiently


def serve_brokers_first() -> None:
    """Give brokers, which all tests wait for, the processor before other processes, where that is allowed.

    Each has a session of its own, and Linux shares processors by sessions: among 20 busy ones a broker had a
    tenth of a processor, and hung for longer than its clients wait.
    """
    start = Node.start

    @wraps(start)
    def start_first(node: Node) -> None:
        start(node)
        assert node.pid is not None
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, node.pid, -10)
            Path(f"/proc/{node.pid}/autogroup").write_text("-10", encoding="ascii")

    setattr(Node, "start", start_first)  # noqa: B010 # mypy takes a method for constant


def suspend(pid: int) -> None:
    """Stop a process by SIGSTOP and wait until it has: its threads run until each has taken the signal."""
    os.kill(pid, signal.SIGSTOP)
    tasks = Path(f"/proc/{pid}/task")
    wait_for(
        f"process {pid} to stop",
        lambda: all(
            (task / "stat").read_text().rpartition(")")[2].split()[0] == "T" for task in tasks.iterdir()
        ),
        pause=0.005,
    )


def run_to_success(command: Sequence[str | Path], folder: Path, limit: float = LIMIT) -> None:
    """Run a program in a folder; fail with the end of its output unless it exits with status 0."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=limit)
    assert done.returncode == 0, done.stdout[-10_000:] + done.stderr
