"""From decoded records by partition to a batch: shares, buffers, and the order of a batch."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from streaming_pca.records import Batch, RecordKind

__all__ = ["Buffer", "Chunk", "batch_of", "interleave", "places_of_rows", "share"]


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
    """Messages of one partition whose rows are in a store."""

    offsets: NDArray[np.int64]
    places: NDArray[np.int64]
    """Where each one's rows begin."""
    lengths: NDArray[np.int64]
    """How many it has."""
    users: NDArray[np.uint64] | None = None
    """(n, 2) keyed hashes of the messages' keys, where the user is the unit of privacy."""
    epoch: int = -1
    """Of the leader that took the last one; -1 where it is not known."""

    def split(self, count: int) -> tuple[Chunk, Chunk]:
        """The first ``count`` messages, and the rest."""
        users, more = (None, None) if self.users is None else (self.users[:count], self.users[count:])
        return (
            Chunk(self.offsets[:count], self.places[:count], self.lengths[:count], users, self.epoch),
            Chunk(self.offsets[count:], self.places[count:], self.lengths[count:], more, self.epoch),
        )


@dataclass
class Buffer:
    """Decoded records of one partition, in offset order."""

    position: int
    """Offset of the first record not taken yet, or anything between it and the last taken."""
    epoch: int = -1
    """Of the leader that took the last record before ``position``; -1 where it is not known."""
    chunks: deque[Chunk] = field(default_factory=deque)
    count: int = 0

    def append(self, chunk: Chunk) -> None:
        """Take in records; ValueError unless their offsets rise from where the buffer ends."""
        end = self.chunks[-1].offsets[-1] + 1 if self.chunks else self.position
        if len(chunk.offsets) and (chunk.offsets[0] < end or (np.diff(chunk.offsets) <= 0).any()):
            raise ValueError("offsets do not rise")
        self.chunks.append(chunk)
        self.count += len(chunk.offsets)

    @property
    def rows(self) -> int:
        """Of all its messages."""
        return sum(int(c.lengths.sum()) for c in self.chunks)

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
            self.position, self.epoch = int(taken[-1].offsets[-1]) + 1, taken[-1].epoch
        return taken


def _order(parts: list[list[Chunk]], granularity: int) -> NDArray[np.int64]:
    """Which record, counted over partition after partition, is at each position of the batch."""
    counts = [sum(len(c.offsets) for c in part) for part in parts]
    turn = np.concatenate([np.arange(c) // granularity for c in counts])
    return np.lexsort((np.repeat(np.arange(len(counts)), counts), turn))


def interleave(parts: list[list[Chunk]], granularity: int) -> Chunk:
    """All messages, round-robin over partitions, ``granularity`` at a time."""
    chunks = [c for part in parts for c in part]
    order = _order(parts, granularity)
    none = np.zeros(0, dtype=np.int64)
    users = [c.users for c in chunks if c.users is not None]
    return Chunk(
        np.concatenate([none, *(c.offsets for c in chunks)])[order],
        np.concatenate([none, *(c.places for c in chunks)])[order],
        np.concatenate([none, *(c.lengths for c in chunks)])[order],
        np.concatenate(users)[order] if users else None,
    )


def places_of_rows(messages: Chunk) -> NDArray[np.int64]:
    """Where each row of each message is."""
    before = np.cumsum(messages.lengths) - messages.lengths
    return np.repeat(messages.places - before, messages.lengths) + np.arange(int(messages.lengths.sum()))


def batch_of(rows: NDArray[np.floating], messages: Chunk, kind: RecordKind, by_row: bool) -> Batch:
    """The batch of messages whose rows are among ``rows``, which it shares.

    Parameters
    ----------
    rows : (n, width)
    messages : Chunk
    kind : RecordKind
    by_row : bool
        Whether each row is a record, one of NaNs a null record; else each message is.
    """
    places, lengths = messages.places, messages.lengths
    if by_row:
        places = places_of_rows(messages)
        lengths = (~np.isnan(rows[places, 0])).astype(np.int64)
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    there = np.flatnonzero(lengths)
    first = int(places[there[0]]) if len(there) else 0
    if np.array_equal(places[there] - first, starts[:-1][there]):
        # One after the other, as those of one partition are: a batch need not say where.
        return Batch(rows[first : first + int(starts[-1])], starts, kind)
    return Batch(rows, starts, kind, places)
