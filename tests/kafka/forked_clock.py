"""The clock of a test's worker, forked from it: it need not start Python and import a client first.

Only the child is patched. A worker that starts its clock again starts it as it would anywhere.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Any

from streaming_pca.service.input import clock, end_offsets


class ForkedClock:
    """What the worker uses of `subprocess.Popen`, of a process that waits for its first line already."""

    def __init__(self) -> None:
        (read_in, write_in), (read_out, write_out) = os.pipe(), os.pipe()
        self.pid = os.fork()
        if not self.pid:
            _serve(read_in, write_out)
        os.close(read_in)
        os.close(write_out)
        self.stdin, self.stdout = os.fdopen(write_in, "wb"), os.fdopen(read_out, "rb")
        self._has_ended = False
        # Two threads wait for its end: the one that reads its output, and the one that closes it.
        self._lock = threading.Lock()

    def kill(self) -> None:
        """Kill the process, unless it was waited for: its id may be another's by now."""
        if not self._has_ended:
            # The other thread may wait for it just now.
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def wait(self) -> None:
        """Wait for its end."""
        with self._lock:
            if not self._has_ended:
                os.waitpid(self.pid, 0)
                self._has_ended = True


def _serve(read_in: int, write_out: int) -> None:
    """Be the clock until its worker has ended."""
    try:
        os.setpgid(0, 0)
        os.dup2(read_in, 0)
        os.dup2(write_out, 1)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        sys.stdin, sys.stdout = open(0, closefd=False), open(1, "w", closefd=False)  # noqa: SIM115
        # A worker that has refused its settings never writes a line.
        if sys.stdin.buffer.peek(1):
            clock.main()
    finally:
        os._exit(0)


def fork_clock() -> None:
    """Let this process start its first clock by a fork; call it before there are threads."""
    forked = [ForkedClock()]

    class Subprocess:
        """The module `subprocess`, as far as the clock's starter uses it."""

        PIPE = subprocess.PIPE

        @staticmethod
        def Popen(*args: Any, **kwargs: Any) -> Any:
            return forked.pop() if forked else subprocess.Popen(*args, **kwargs)

    end_offsets.subprocess = Subprocess  # type: ignore[assignment]
