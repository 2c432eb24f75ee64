"""The worker's pool of noise, and what may be shown of it.

What a batch asks for can follow from answers of its own: a matrix of noise only where a
test passed. So how much is left shows nothing of a batch before it is committed, and if it
never is, the pool forgets that it was asked (rules 4 and 9 of privacy.md). How fast the pool is
filled and emptied is a duration, a channel that is not closed (README, limits).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from streaming_pca.privacy.noise_pool import Draws, NoisePool

__all__ = ["WorkerNoise"]


class WorkerNoise:
    """One pool for all streams of a process, or none.

    Parameters
    ----------
    mebibytes : int
        The most memory for noise that is drawn ahead; 0 for no pool.
    """

    def __init__(self, mebibytes: int) -> None:
        self._pool = NoisePool(mebibytes) if mebibytes else None
        self._lock = threading.Lock()
        self._uncommitted = 0
        self._shown = 0

    def depth(self) -> int:
        """Values that are ready: now, or when last no batch was between drawing and its commit."""
        with self._lock:
            if not self._uncommitted:
                self._shown = self._depth()
            return self._shown

    @contextmanager
    def uncommitted(self) -> Iterator[None]:
        """From before a batch draws until it is committed; an error says that it is not."""
        with self._lock:
            if not self._uncommitted:
                self._shown = self._depth()
            self._uncommitted += 1
        try:
            yield
        except BaseException:
            if self._pool is not None:
                self._pool.forget()
            raise
        finally:
            with self._lock:
                self._uncommitted -= 1

    @contextmanager
    def in_use(self) -> Iterator[Draws | None]:
        """Draw from the pool in this thread; yields how much was drawn, for after the commit."""
        if self._pool is None:
            yield None
            return
        with self._pool.in_use() as draws:
            yield draws

    def close(self) -> None:
        """Wipe it."""
        if self._pool is not None:
            self._pool.close()

    def _depth(self) -> int:
        return 0 if self._pool is None else self._pool.depth
