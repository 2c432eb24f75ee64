"""Noise drawn ahead by a process of its own, so that no release waits for its sampler.

A discrete Gaussian costs 11 us a value, and 16,384 of them more than ten times what the
records' sums cost. Noise does not depend on the records: a scale in lattice units that
was asked for will be asked for again, so the next noise of that scale can be there already.

Why nothing changes for privacy:

- The values are those of the secret door: another process calls the same samplers of
  OpenDP, fed by the operating system's generator. Draws are independent of each other, of the
  records, and of when they are used.
- The i-th value asked for of a stock is the i-th that was ordered for it, and which of them
  the source draws and which the caller is settled before they are drawn. Taking whatever happens to
  be there, and drawing the rest, would be another law: the sampler tries again and again
  until it accepts, large values take longer, and so the ones that are there in time are the small
  ones. For the same reason what is on its way is waited for. Only where the process fails
  are values that it had begun replaced, as where a worker fails all noise of its batch is.
- Each value is handed out once, and its place wiped, under one lock. What is used no more
  is wiped too: on :meth:`NoisePool.close`, at exit, where a scale is forgotten, and in the child
  of a fork, which draws its own. Values of a torn message are never used. A pool cannot be
  pickled or copied.
- The noise is in memory of two processes and in a pipe between them, on no disk
  (:mod:`~streaming_pca.privacy.noise_memory`), and nobody has seen it before its release. Whoever
  can read that memory can read the records too.
- A dry pool weakens nothing: what is missing is drawn when it is asked for.

How much is kept follows from the scales and sizes of past requests alone. Those are public,
except where a mechanism draws for what the records happen to hold: such a request passes
by the pool (``public_size`` of :func:`~streaming_pca.privacy.randomness.noise_door`). Which
noise a batch asks for may follow from its own answers, though, so how much is left may be
shown only when the batch has been committed (:mod:`streaming_pca.service.noise`). Drawing
takes a time that depends on the draws, so a release whose noise was ready says less by its
timing than one whose noise was not.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import require_count
from streaming_pca.privacy.noise_memory import BLOCK_VALUES, NoiseMemory
from streaming_pca.privacy.noise_source import Kind
from streaming_pca.privacy.noise_stock import Chunk, Claim, Stock
from streaming_pca.privacy.noise_supply import Supply
from streaming_pca.privacy.randomness import noise_ahead, noise_door

__all__ = ["Draws", "NoisePool", "noise_pool"]

log = logging.getLogger(__name__)

_LEAST = 64
"""Values of a request that is worth the bother."""
_MOST_SCALES = 16
_FORGOTTEN_AFTER = 64
"""Requests for other scales."""
_ORDERED = 2
"""Commands on their way: the process works on one and has the next. Few and short: at the lowest
priority it may get little of a busy core, and a request waits for what it claimed of them."""
_PATIENCE_SECONDS = 30.0
"""A process that owes values and sends none for so long is ended."""
_LONGEST_PAUSE_SECONDS = 60.0
"""Between starts of a process that ends before it has drawn anything."""


class NoisePool:
    """Unused noise of the scales that are in use.

    A scale's first request is drawn at once; from then on twice as much is kept, and more where
    that was not enough, up to sixteen times. May be used from many threads.

    Parameters
    ----------
    mebibytes : int
        The most memory for values.

    Raises
    ------
    ParameterError
        If ``mebibytes`` is not an integer of at least 1.
    """

    def __init__(self, mebibytes: int = 32) -> None:
        require_count("mebibytes", mebibytes)
        self._memory = NoiseMemory(mebibytes * 2**20 // (8 * BLOCK_VALUES))
        self._changed = threading.Condition(threading.Lock())
        self._stocks: dict[tuple[Kind, float], Stock] = {}
        self._ordered: dict[int, Chunk] = {}
        self._orders = 0
        self._requests = 0
        self._supply: Supply | None = None
        self._greeted = False
        self._failures = 0
        self._start_at = 0.0
        self._closed = False
        _pools.add(self)

    def __repr__(self) -> str:
        return f"<NoisePool of {self.depth} values>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError("a pool of noise cannot be pickled or copied: each value is used once")

    @property
    def depth(self) -> int:
        """Values that are ready and nobody's."""
        with self._changed:
            return sum(stock.ready for stock in self._stocks.values())

    @property
    def full(self) -> bool:
        """Whether it holds all that it keeps ahead, as far as its memory goes."""
        with self._changed:
            return self._greeted and not self._ordered

    @contextmanager
    def in_use(self) -> Iterator[Draws]:
        """Let mechanisms draw from it, in this thread; yields how much they drew."""
        draws = Draws(self)
        with noise_ahead(draws):
            yield draws

    def take(self, kind: Kind, size: int, scale: float) -> tuple[NDArray[np.int64], int]:
        """Draws that nobody else has or gets, and how many of them were ready."""
        with self._changed:
            claims = self._claim((kind, scale), size)
            ready = sum(claim.size for claim in claims if claim.chunk.arrived)
            self._order()
        values = np.empty(size, dtype=np.int64)
        try:
            at = sum(claim.size for claim in claims)
            # First, so that what is on its way has time to arrive.
            if at < size:
                values[at:] = kind.draw(noise_door(), size - at, scale)
            at = 0
            while claims:
                mine = values[at : at + claims[0].size]
                if not self._collect(claims[0], mine):
                    mine[:] = kind.draw(noise_door(), mine.size, scale)
                del claims[0]
                at += mine.size
        except BaseException:
            with self._changed:
                for claim in claims:
                    self._settle(claim.chunk, claim.size)
            raise
        with self._changed:
            # Not before the sampler has taken the scale: what it refuses must not reach the process.
            self._begin((kind, scale), size)
            self._order()
        return values, ready

    def forget(self) -> None:
        """Wipe what is nobody's, and forget what was asked for."""
        with self._changed:
            for key in list(self._stocks):
                self._forget(key)

    def close(self) -> None:
        """End the process and wipe everything. Who still draws from it draws directly."""
        with self._changed:
            self._closed = True
            supply = self._supply
        if supply is not None:
            supply.close()
        with self._changed:
            self._stocks.clear()
            self._memory.wipe()

    # -- under the lock ----------------------------------------------------

    def _claim(self, key: tuple[Kind, float], size: int) -> list[Claim]:
        self._requests += 1
        stock = self._stocks.get(key)
        if stock is None:
            return []
        stock.last_asked = self._requests
        return stock.claim(size)

    def _begin(self, key: tuple[Kind, float], size: int) -> None:
        """Keep a scale from now on, if there is room among those that are in use."""
        if key in self._stocks or self._closed:
            return
        for other, stock in list(self._stocks.items()):
            if self._requests - stock.last_asked > _FORGOTTEN_AFTER:
                self._forget(other)
        if len(self._stocks) < _MOST_SCALES:
            self._stocks[key] = Stock(largest=size, last_asked=self._requests)

    def _forget(self, key: tuple[Kind, float]) -> None:
        stock = self._stocks.pop(key)
        for chunk in stock.chunks:
            left = chunk.count - chunk.claimed
            chunk.claimed = chunk.count
            self._settle(chunk, left)

    def _settle(self, chunk: Chunk, count: int) -> None:
        """So many of its values will be read no more; wipe it after the last."""
        chunk.settled += count
        if chunk.settled == chunk.count and chunk.arrived:
            self._give_back(chunk)

    def _give_back(self, chunk: Chunk) -> None:
        if chunk.block is not None:
            self._memory.give_back(chunk.block)
            chunk.block = None

    def _order(self) -> None:
        """Keep the process busy as long as a stock is below its target."""
        while len(self._ordered) < _ORDERED:
            wanting = [(s.held / s.target, key) for key, s in self._stocks.items() if s.held < s.target]
            if not wanting or not self._started():
                return
            block = self._memory.take()
            if block is None:
                return
            _, (kind, scale) = min(wanting)
            stock = self._stocks[kind, scale]
            chunk = Chunk(block, min(BLOCK_VALUES, stock.target - stock.held))
            stock.add(chunk)
            self._orders += 1
            self._ordered[self._orders] = chunk
            assert self._supply is not None
            self._supply.order(self._orders, kind, chunk.count, scale)

    def _started(self) -> bool:
        """Whether the process takes orders; starts one where there is none."""
        if self._supply is None and not self._closed and time.monotonic() >= self._start_at:
            try:
                self._supply = Supply(self)
            except OSError as error:
                log.warning("no process to draw noise ahead: %s; it is drawn when needed", error)
                self._pause()
        # Nothing is owed by a process that is still starting, so nobody waits for that.
        return self._supply is not None and self._greeted

    def _pause(self) -> None:
        """Let the next one start at once, but for one that has drawn nothing either."""
        seconds = min(2.0**self._failures, _LONGEST_PAUSE_SECONDS) if self._failures else 0.0
        self._start_at = time.monotonic() + seconds
        self._failures += 1

    # -- taking ------------------------------------------------------------

    def _collect(self, claim: Claim, values: NDArray[np.int64]) -> bool:
        """Move claimed values out, wiping their place; False where they are not to be had."""
        chunk = claim.chunk
        with self._changed:
            while not (chunk.arrived or chunk.lost or self._closed):
                if not self._changed.wait(_PATIENCE_SECONDS) and self._supply is not None:
                    self._supply.kill()
            # What was wiped must not pass for noise.
            if self._closed or not chunk.arrived or chunk.block is None:
                return False
            place = self._memory.values[chunk.block, claim.start : claim.stop]
            values[:] = place
            place.fill(0)
            self._settle(chunk, claim.size)
        return True

    # -- Receiver, called by the thread that reads --------------------------

    def place_of(self, supply: Supply, number: int, size: int) -> memoryview | None:
        """Where a command's values belong: nobody reads there before they have arrived."""
        with self._changed:
            chunk = self._ordered.get(number)
            if supply is not self._supply or chunk is None or chunk.count != size or chunk.block is None:
                return None
            return self._memory.values[chunk.block, :size].data.cast("B")

    def arrived(self, supply: Supply, number: int) -> None:
        """Let a command's values be used."""
        with self._changed:
            if supply is not self._supply:
                return
            if number:
                chunk = self._ordered.pop(number)
                chunk.arrived = True
                self._settle(chunk, 0)
                self._failures = 0
            else:
                self._greeted = True
            self._order()
            self._changed.notify_all()

    def ended(self, supply: Supply) -> None:
        """Replace what the process owed by nothing: who waits for it draws; then begin anew."""
        with self._changed:
            if supply is not self._supply:
                return
            self._supply, self._greeted = None, False
            for chunk in self._ordered.values():
                chunk.lost = True
                self._give_back(chunk)
            self._ordered.clear()
            for stock in self._stocks.values():
                stock.drop_lost()
            if not self._closed:
                log.warning("the process that draws noise ahead has ended: noise is drawn when needed")
                self._pause()
                self._order()
            self._changed.notify_all()

    def _after_fork(self) -> None:
        # In the child nobody else runs, and the lock may be held by a thread that is not there.
        self._changed = threading.Condition(threading.Lock())
        self._closed = True
        if self._supply is not None:
            self._supply.leave_to_parent()
            self._supply = None
        self._stocks.clear()
        self._ordered.clear()
        self._memory.wipe()


class Draws:
    """The door to a pool, for one use of it.

    Attributes
    ----------
    ahead, waited : int
        Values that were ready, and others, in requests that the pool keeps ahead for.
    """

    def __init__(self, pool: NoisePool) -> None:
        self._pool = pool
        self.ahead = 0
        self.waited = 0

    def discrete_gaussian(self, size: int, scale: float) -> NDArray[np.int64]:
        """Discrete Gaussian noise."""
        return self._take(Kind.GAUSSIAN, size, scale)

    def discrete_laplace(self, size: int, scale: float) -> NDArray[np.int64]:
        """Discrete Laplace noise."""
        return self._take(Kind.LAPLACE, size, scale)

    def noisy_max(self, scores: NDArray[np.int64], scale: float) -> int:
        """Not drawn ahead: it depends on the scores."""
        return noise_door().noisy_max(scores, scale)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """Not drawn ahead: it costs little."""
        return noise_door().permutation(n)

    def _take(self, kind: Kind, size: int, scale: float) -> NDArray[np.int64]:
        if size < _LEAST:
            return kind.draw(noise_door(), size, scale)
        values, ready = self._pool.take(kind, size, scale)
        self.ahead += ready
        self.waited += size - ready
        return values


@contextmanager
def noise_pool(mebibytes: int = 32) -> Iterator[NoisePool]:
    """Have noise drawn ahead, by another process, for what this thread does inside.

    Parameters
    ----------
    mebibytes : int
        The most memory for values.

    Examples
    --------
    >>> with noise_pool():  # doctest: +SKIP
    ...     for X in batches:
    ...         pca.partial_fit(X)
    """
    pool = NoisePool(mebibytes)
    try:
        with pool.in_use():
            yield pool
    finally:
        pool.close()


_pools: weakref.WeakSet[NoisePool] = weakref.WeakSet()


def _in_each(method: str) -> None:
    for pool in list(_pools):
        getattr(pool, method)()


atexit.register(_in_each, "close")
os.register_at_fork(after_in_child=lambda: _in_each("_after_fork"))
