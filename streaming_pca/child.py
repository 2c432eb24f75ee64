"""A child process that does not outlive this one, however this one ends."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

# Linux kills a child when the *thread* that made it ends, and code run between fork and exec is
# unsafe beside other threads. So a small program asks for the signal after exec and then becomes
# the command, keeping its process id. Python ignores SIGPIPE and SIGXFSZ, which exec would pass on.
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
    """A running command whose output goes to a file.

    On Linux the kernel kills it when this process dies, `kill -9` included. Elsewhere it ends only
    by `kill`. It has its own session, so that Ctrl-C in a terminal reaches this process
    alone, which can then finish its work with the child still there.

    Parameters
    ----------
    command : sequence of str
        Program and arguments.
    log : Path
        File that receives standard output and standard error.
    cwd : Path
        Working directory of the child.
    env : mapping of str to str, optional
        Its whole environment; this process's own when not given.

    Raises
    ------
    OSError
        The process could not be made.
    """

    def __init__(
        self, command: Sequence[str], *, log: Path, cwd: Path, env: Mapping[str, str] | None = None
    ) -> None:
        self.log = log
        self._killed = threading.Event()
        leash = (
            [sys.executable, "-I", "-S", "-c", _LEASH, str(os.getpid())] if sys.platform == "linux" else []
        )
        outcome: queue.SimpleQueue[subprocess.Popen[bytes] | OSError] = queue.SimpleQueue()

        def keep() -> None:
            # Lives as long as the child, because the kernel watches this thread (see _LEASH).
            try:
                with log.open("ab") as output:
                    process = subprocess.Popen(
                        [*leash, *command],
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
        """Process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Exit status, or None while it runs."""
        return self._process.poll()

    def kill(self) -> None:
        """End the process at once and collect its exit status; harmless when it has ended."""
        self._process.kill()
        self._process.wait()
        self._killed.set()

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines of its output."""
        try:
            text = self.log.read_text(errors="replace")
        except OSError:
            return "(no output)"
        return "\n".join(text.splitlines()[-lines:]) or "(no output)"
