"""The process that draws noise ahead for a :mod:`~streaming_pca.privacy.noise_pool`, and nothing else.

It is run as ``python -m streaming_pca.privacy.noise_source``. It says that it is there by an
empty answer, then answers each command on its standard input with so many draws of the
secret door on its standard output. Both are pipes of the one process that started it: no
file and no shared memory has a name that could be left behind. It ends when either pipe
does, however the other process ended.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import signal
import sys
from enum import IntEnum
from struct import Struct

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.randomness import NoiseDoor, noise_door

__all__ = ["ANSWER", "COMMAND", "Kind", "main", "read_into", "serve", "write_all"]

COMMAND = Struct("=QQQd")
"""Number of the command, kind, how many values, scale."""
ANSWER = Struct("=QQ")
"""Number of the command, how many values follow, as int64. Number 0 says that the process is there."""

_LOWEST_PRIORITY = 19
_PR_SET_DUMPABLE = 4


class Kind(IntEnum):
    """A law that noise is drawn from."""

    GAUSSIAN = 0
    LAPLACE = 1

    def draw(self, door: NoiseDoor, size: int, scale: float) -> NDArray[np.int64]:
        """Draw from a door at once."""
        draw = door.discrete_gaussian if self is Kind.GAUSSIAN else door.discrete_laplace
        return draw(size, scale)


def read_into(descriptor: int, target: memoryview) -> bool:
    """Fill ``target``, which is of bytes; False if the pipe ended before it was full."""
    while target:
        count = os.readv(descriptor, [target])
        if not count:
            return False
        target = target[count:]
    return True


def write_all(descriptor: int, data: memoryview) -> None:
    """Write all of it, however much the pipe takes at once."""
    while data:
        data = data[os.write(descriptor, data) :]


def serve(door: NoiseDoor, commands: int, answers: int) -> None:
    """Answer until the pipe of commands ends.

    Parameters
    ----------
    door : NoiseDoor
    commands, answers : int
        File descriptors.
    """
    write_all(answers, memoryview(ANSWER.pack(0, 0)))
    command = bytearray(COMMAND.size)
    while read_into(commands, memoryview(command)):
        number, kind, size, scale = COMMAND.unpack(command)
        values = np.ascontiguousarray(Kind(kind).draw(door, size, scale))
        write_all(answers, memoryview(ANSWER.pack(number, size)))
        write_all(answers, values.data.cast("B"))
        values.fill(0)


def _keep_out_of_core_dumps() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # A core that is piped to a program has no limit; a process that is not dumpable has no core.
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0)


def main() -> None:
    """Serve the process that started this one."""
    # Some send it to all processes: a worker finishes its batch first, and this one ends with it.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    _keep_out_of_core_dumps()
    # Noise that is not needed yet may not take a shared core from the kernels.
    os.nice(_LOWEST_PRIORITY)
    try:
        serve(noise_door(), sys.stdin.fileno(), sys.stdout.fileno())
    except BrokenPipeError:
        pass
    except Exception as error:
        # Its type only: a message or a traceback could hold values.
        print(f"the source of noise failed: {type(error).__name__}", file=sys.stderr, flush=True)
        os._exit(1)
    # Nothing here is worth a clean end.
    os._exit(0)


if __name__ == "__main__":
    main()
