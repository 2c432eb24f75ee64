"""Child processes that end with this one, free ports, and a broker's identity."""

from __future__ import annotations

import os
import queue
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from kafka import KafkaAdminClient
from kafka.errors import KafkaError

# Code between fork and exec is unsafe with other threads. Therefore a small program requests the
# signal after exec, and then replaces itself by the command under the same process id. It restores
# SIGPIPE and SIGXFSZ, which Python ignores and the command would otherwise inherit as ignored.
_LEASH = """
import ctypes, os, signal, sys
parent, command = int(sys.argv[1]), sys.argv[2:]
PR_SET_PDEATHSIG = 1
ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
if os.getppid() != parent:
    sys.exit("the parent ended before the child began")
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
try:
    os.execvp(command[0], command)
except OSError as error:
    sys.exit(f"cannot run {command[0]}: {error}")
"""


class Child:
    """Running command whose output goes to a file.

    On Linux, the kernel kills the child when this process dies, even by `kill -9`. On other systems, only
    `kill` ends it. The child has its own session, so that Ctrl-C in a terminal reaches only this process,
    which can then finish its work while the child still runs. ``env`` is the child's complete environment.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._killed = threading.Event()
        leash = [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid())]
        outcome: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

        def keep() -> None:
            # This thread lives as long as the child: Linux kills a child when its starting *thread* ends.
            try:
                with log.open("ab") as output:
                    process = subprocess.Popen(  # nosec B603  # a program of ours
                        [*(leash if sys.platform == "linux" else ()), *command],
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        cwd=cwd,
                        env=env,
                        start_new_session=True,
                    )
            except OSError as error:
                outcome.put(error)
                return
            outcome.put(process)
            self._killed.wait()

        threading.Thread(target=keep, name=f"child {command[0]}", daemon=True).start()
        started = outcome.get()
        if isinstance(started, OSError):
            raise started
        self._process = started

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """Kill the process and collect its exit status; also works if it has ended."""
        self._process.kill()
        self._process.wait()
        self._killed.set()

    def stop(self, seconds: float) -> None:
        """Send SIGTERM, and SIGKILL after `seconds`."""
        self._process.terminate()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        self.kill()

    def log_tail(self, lines: int = 20) -> str:
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return "(no output)"
        return "\n".join(text.splitlines()[-lines:]) or "(no output)"


def free_port() -> int:
    """Return a loopback port that was free a moment ago."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def cluster_id(bootstrap: str, timeout: float = 3.0) -> str | None:
    """Return the cluster id of the broker at `bootstrap`; None after a timeout or error."""
    host, _, port = bootstrap.rpartition(":")
    try:
        # A plain connection first, because the client logs a warning for every refused one.
        socket.create_connection((host, int(port)), timeout=timeout).close()
        with KafkaAdminClient(
            bootstrap_servers=bootstrap,
            bootstrap_timeout_ms=int(timeout * 1000),
            request_timeout_ms=int(timeout * 1000),
        ) as admin:
            return str(admin.describe_cluster()["cluster_id"])
    except (OSError, KafkaError):
        return None
