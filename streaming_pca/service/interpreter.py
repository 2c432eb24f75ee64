"""How the interpreter is set for a process that decodes records beside kernels and commits."""

from __future__ import annotations

import gc
import sys

__all__ = ["prepare"]

_SWITCH_SECONDS = 0.0005
"""How long a thread that decodes may keep the interpreter's lock from one that has an answer to a commit,
or a kernel's next block: at Python's own 5 ms a batch waits for it dozens of times."""


def prepare() -> None:
    """Set it, once everything is imported.

    What is there now stays: the collector would look through all of the libraries' objects, hundreds of
    thousands, every few polls. That was a fifth of what a worker of small messages takes of a processor. It
    still runs as often: a fetch that was read is garbage that goes in circles, megabytes of it.
    """
    sys.setswitchinterval(_SWITCH_SECONDS)
    gc.collect()
    gc.freeze()
