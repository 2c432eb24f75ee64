"""From decoded records by partition to a batch: shares, buffers, and the order of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streaming_pca.records import Batch, RecordKind

__all__ = ["Buffer", "Chunk", "interleave", "interleave_users", "share"]


def share(available: Sequence[int], closed: Sequence[bool], units: int) -> tuple[int, list[int] | None]:
    """Round-robin shares of ``units`` over partitions.

    Parameters
    ----------
    available : units known to be there, by partition
    closed : whether that is all that the snapshot covers
    units : how many to take

    Returns
    -------
    level : int
        Units that every partition that is not closed must show before the
        shares are certain; -1 if the snapshot cannot cover ``units``.
    shares : list of int, or None while they are not certain
    """
    level = 0
    while True:
        reached = sum(min(a, level) if c else level for a, c in zip(available, closed, strict=True))
        if reached >= units:
            break
        growing = [i for i, c in enumerate(closed) if not c or available[i] > level]
        if not growing:
            return -1, None
        level += max(1, (units - reached) // len(growing))
    # The step above can overshoot the smallest sufficient level only by what
    # closed partitions lack; walk back to it.
    while level > 0:
        lower = sum(min(a, level - 1) if c else level - 1 for a, c in zip(available, closed, strict=True))
        if lower < units:
            break
        level -= 1
    if any(not c and a < level for a, c in zip(available, closed, strict=True)):
        return level, None
    shares = [min(a, level - 1) if level else 0 for a in available]
    for i, a in enumerate(available):
        if sum(shares) == units:
            break
        if a >= level:
            shares[i] += 1
    return level, shares


@dataclass
class Chunk:
    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    rows: NDArray[np.floating]
    users: NDArray[np.uint64] | None = None
    """(n, 2) keyed hashes of the messages' keys, where the user is the unit of privacy."""

    def split(self, count: int) -> tuple[Chunk, Chunk]:
        """The first ``count`` records, and a copy of the rest."""
        rows = int(self.lengths[:count].sum())
        users, more = (None, None) if self.users is None else (self.users[:count], self.users[count:])
        return (
            Chunk(self.offsets[:count], self.lengths[:count], self.rows[:rows], users),
            Chunk(self.offsets[count:], self.lengths[count:], self.rows[rows:].copy(), more),
        )


@dataclass
class Buffer:
    """Decoded records of one partition, in offset order."""

    position: int
    """Offset of the first record not taken yet, or anything between it and the last taken."""
    chunks: deque[Chunk] = field(default_factory=deque)
    count: int = 0

    def append(self, chunk: Chunk) -> None:
        self.chunks.append(chunk)
        self.count += len(chunk.offsets)

    def below(self, end: int) -> int:
        """Records before an offset."""
        if not self.chunks:
            return 0
        if self.chunks[-1].offsets[-1] < end:
            return self.count
        return sum(int(np.searchsorted(c.offsets, end)) for c in self.chunks)

    def take(self, count: int) -> list[Chunk]:
        """Remove the first ``count`` records."""
        taken: list[Chunk] = []
        self.count -= count
        while count:
            chunk = self.chunks.popleft()
            if len(chunk.offsets) > count:
                chunk, rest = chunk.split(count)
                self.chunks.appendleft(rest)
            taken.append(chunk)
            count -= len(chunk.offsets)
        if taken:
            self.position = int(taken[-1].offsets[-1]) + 1
        return taken


def _order(parts: list[list[Chunk]], granularity: int) -> NDArray[np.int64]:
    """Which record, counted over partition after partition, is at each position of the batch."""
    counts = [sum(len(c.offsets) for c in part) for part in parts]
    turn = np.concatenate([np.arange(c) // granularity for c in counts])
    return np.lexsort((np.repeat(np.arange(len(counts)), counts), turn))


def interleave_users(parts: list[list[Chunk]], granularity: int) -> NDArray[np.uint64]:
    """Users (m, 2) of the batch's records, in its order; before :func:`interleave`."""
    users = [c.users for part in parts for c in part if c.users is not None]
    return np.concatenate([np.zeros((0, 2), np.uint64), *users])[_order(parts, granularity)]


def interleave(parts: list[list[Chunk]], granularity: int, dim: int, kind: RecordKind) -> Batch:
    """Round-robin over partitions, ``granularity`` records at a time.

    Empties ``parts``: a chunk is freed once it is copied, so the peak is one
    batch and a chunk, as far as chunks are not slices of larger ones.
    """
    chunks = [c for part in parts for c in part]
    lengths = np.concatenate([c.lengths for c in chunks] or [np.zeros(0, np.int64)])
    dtype = np.result_type(np.float32, *(c.rows.dtype for c in chunks))
    del chunks
    order = _order(parts, granularity)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths[order], out=starts[1:])
    places = np.empty(len(lengths), dtype=np.int64)
    places[order] = starts[:-1]
    rows: NDArray[np.floating] = np.empty((int(starts[-1]), kind.width(dim)), dtype=dtype)
    done = 0
    for part in parts:
        while part:
            chunk = part.pop(0)
            own = np.cumsum(chunk.lengths) - chunk.lengths
            there = places[done : done + len(own)]
            rows[np.repeat(there - own, chunk.lengths) + np.arange(len(chunk.rows))] = chunk.rows
            done += len(own)
            del chunk
    return Batch(rows, starts, kind)
