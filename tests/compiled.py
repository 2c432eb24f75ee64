"""Compile kernels once for all processes of a test run, into numba's cache."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

QUICK = {"NUMBA_OPT": "1", "NUMBA_LOOP_VECTORIZE": "0", "NUMBA_SLP_VECTORIZE": "0"}
"""Variables that spare a third of the compiler's work: slower kernels with the same results."""

_ROOT = Path(__file__).parents[1]
_KINDS = ("factor", "matrix")
_COMMAND = [sys.executable, "-m", "streaming_pca.estimators.kernel_cache", *_KINDS]
_started: list[subprocess.Popen[bytes]] = []


def compile_ahead() -> None:
    """Start compiling while the processes of the run still collect its tests.

    The compiler inherits the lock, and its end releases it.
    """
    with open(__file__) as file, suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        silent = subprocess.DEVNULL
        _started.append(
            subprocess.Popen(
                _COMMAND, cwd=_ROOT, stdin=silent, stdout=silent, stderr=silent, pass_fds=(file.fileno(),)
            )
        )


def wait_until_compiled() -> None:
    """Wait until all kernels are in the cache; the first process that misses a kernel compiles them."""
    from streaming_pca.data.records import RecordKind
    from streaming_pca.estimators.kernel_cache import are_cached

    with open(__file__) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if not are_cached(map(RecordKind, _KINDS)):
            subprocess.run(_COMMAND, check=True, cwd=_ROOT)
