"""Fuzz targets: functions of bytes from outside, with their seeds and bounds."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache

__all__ = ["MIB", "TARGETS", "Broken", "Target", "limit_process", "run_bounded", "target"]

MIB = 2**20
SECONDS = 10
"""Maximum processor time of one input: other work on the machine does not count."""
HANG_SECONDS = 60
"""Time after which an input counts as hanging."""

Run = Callable[[bytes], None]


class Broken(AssertionError):
    """Violation of a promise by an input."""


@dataclass(frozen=True)
class Target:
    """Reader of bytes from outside.

    Attributes
    ----------
    name : str
    run : callable
        Reads an input, and raises unless it keeps its promise. Documented errors are not failures.
    make_seeds : callable
        Makes valid inputs, and handwritten ones.
    memory : callable
        Maximum growth of the process in bytes, by the input's length.
    inputs : int
        Inputs of the run in `make test-rest`, in addition to the seeds.
    """

    name: str
    run: Run
    make_seeds: Callable[[], Sequence[bytes]]
    memory: Callable[[int], int]
    inputs: int

    @property
    def seeds(self) -> Sequence[bytes]:
        """Inputs for mutation."""
        return _seeds(self.name)


@cache
def _seeds(name: str) -> Sequence[bytes]:
    return tuple(TARGETS[name].make_seeds())


TARGETS: dict[str, Target] = {}


def target(
    name: str,
    seeds: Callable[[], Sequence[bytes]],
    *,
    times: int = 16,
    allowance: int = 16 * MIB,
    inputs: int = 1000,
) -> Callable[[Run], Run]:
    """Register a target that may take ``beside`` bytes plus ``times`` its input's length."""

    def register(run: Run) -> Run:
        TARGETS[name] = Target(name, run, seeds, lambda length: allowance + times * length, inputs)
        return run

    return register


def limit_process(most: int) -> None:
    """End this process before it exhausts the machine's memory, or leaves a file there."""
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def run_bounded(target: Target, data: bytes) -> None:
    """Run one input; raise Broken unless it keeps its promise within its memory.

    A slow input ends the process by SIGPROF, and a hanging input by SIGALRM.
    """
    # The promise is about the process: memory allocated by C code counts, untouched memory does not.
    with suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    before = _status("VmRSS")
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.signal(signal.SIGPROF, signal.SIG_DFL)
    signal.alarm(HANG_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        target.run(data)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.alarm(0)
    taken, most = _status("VmHWM") - before, target.memory(len(data))
    if taken > most:
        raise Broken(f"{taken / MIB:.0f} MiB for {len(data)} bytes, {most / MIB:.0f} MiB allowed")


def _status(name: str) -> int:
    """Return a field of the process's status, in bytes."""
    with open("/proc/self/status", "rb") as file:
        found = file.read().partition(name.encode() + b":")[2].split(None, 1)[0]
    return int(found) * 1024


def address_space() -> int:
    """Return the size of this process's address space, in bytes."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * os.sysconf("SC_PAGESIZE")
