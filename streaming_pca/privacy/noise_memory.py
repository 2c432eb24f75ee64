"""Memory for noise that nobody has seen: bounded, anonymous, kept off disks and out of other processes."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import sys

import numpy as np
from numpy.typing import NDArray

__all__ = ["BLOCK_VALUES", "NoiseMemory"]

BLOCK_VALUES = 256
"""Values of a block: 3 ms of drawing, which is what a request may have to wait for."""
_MADV_WIPEONFORK = 18  # the mmap module has no name for it


class NoiseMemory:
    """Blocks of int64 that are zero whenever they hold no unused noise.

    It is one anonymous mapping, whose pages cost nothing before they are used. Where the
    system can, a child of a fork finds zeros in it, it is in no core dump, and it is
    locked, so that it is not swapped to a disk. A lock may be refused above RLIMIT_MEMLOCK;
    what is beyond it is as safe as the rest of the process, records included.

    Parameters
    ----------
    blocks : int
        The bound: no more is ever held.
    """

    def __init__(self, blocks: int) -> None:
        pages = mmap.mmap(-1, blocks * BLOCK_VALUES * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if sys.platform == "linux":
            for advice in (mmap.MADV_DONTDUMP, _MADV_WIPEONFORK):
                with contextlib.suppress(OSError):
                    pages.madvise(advice)
        self.values: NDArray[np.int64] = np.frombuffer(pages, dtype=np.int64).reshape(blocks, BLOCK_VALUES)
        """All of it, (blocks, BLOCK_VALUES)."""
        # The lowest comes first, so that few pages are ever touched.
        self._free = list(range(blocks - 1, -1, -1))
        self._touched = 0

    def take(self) -> int | None:
        """A block that is zero, by its number; None where all are in use."""
        if not self._free:
            return None
        block = self._free.pop()
        if block >= self._touched:
            self._touched = block + 1
            _lock_in_memory(self.values[block])
        return block

    def give_back(self, block: int) -> None:
        """Wipe a block."""
        self.values[block] = 0
        self._free.append(block)

    def wipe(self) -> None:
        """Wipe everything; blocks that are in use stay so."""
        self.values[: self._touched] = 0


def _lock_in_memory(values: NDArray[np.int64]) -> None:
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mlock(ctypes.c_void_p(values.ctypes.data), ctypes.c_size_t(values.nbytes))
