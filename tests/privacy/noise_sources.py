"""Sources of noise for tests of the pool: run as ``python -m tests.privacy.noise_sources NAME``.

Their values tell which draws they are: of each scale the next number, above 2**32 times the
id of the process that drew it.
"""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy import noise_source


class CountingDoor:
    """Each draw of a scale is the next number."""

    def __init__(self) -> None:
        self._next: dict[float, int] = {}

    def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
        start = self._next.get(scale, os.getpid() << 32)
        self._next[scale] = start + size
        return np.arange(start, start + size, dtype=np.int64)

    discrete_laplace = discrete_gaussian

    def noisy_max(self, scores: NDArray[np.int64], scale: float) -> int:
        raise NotImplementedError

    def permutation(self, n: int) -> NDArray[np.int64]:
        raise NotImplementedError


class SlowDoor(CountingDoor):
    """The same, but takes its time."""

    def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
        time.sleep(0.05)
        return super().discrete_gaussian(size, scale)


class GatedDoor(CountingDoor):
    """The same, each time after a signal."""

    def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
        signal.sigwait({signal.SIGUSR1})
        return super().discrete_gaussian(size, scale)


def tear() -> None:
    """Answer the first command whole, and the half of the second; then wait to be killed."""
    door, command = CountingDoor(), bytearray(noise_source.COMMAND.size)
    noise_source.write_all(1, memoryview(noise_source.ANSWER.pack(0, 0)))
    for part in (1.0, 0.5):
        if not noise_source.read_into(0, memoryview(command)):
            return
        number, _, size, scale = noise_source.COMMAND.unpack(command)
        values = door.discrete_gaussian(size, scale).tobytes()
        noise_source.write_all(1, memoryview(noise_source.ANSWER.pack(number, size)))
        # Not at the end of a value, either.
        noise_source.write_all(1, memoryview(values)[: int(part * len(values)) - int(part < 1) * 3])
    time.sleep(3600)


def main() -> None:
    match sys.argv[1]:
        case "counting":
            noise_source.serve(CountingDoor(), 0, 1)
        case "slow":
            noise_source.serve(SlowDoor(), 0, 1)
        case "gated":
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
            noise_source.serve(GatedDoor(), 0, 1)
        case "torn":
            tear()
        case "silent":
            noise_source.write_all(1, memoryview(noise_source.ANSWER.pack(0, 0)))
            time.sleep(3600)
        case "failing":
            sys.exit(1)


if __name__ == "__main__":
    main()
