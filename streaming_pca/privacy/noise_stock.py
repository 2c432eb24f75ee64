"""What a pool of noise keeps of one kind and scale: chunks of values, in the order of their commands."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

__all__ = ["Chunk", "Claim", "Stock"]

_DEPTH = 2
"""Requests that are kept ahead."""
_DEEPEST = 16
"""The same, where many came in a row."""


@dataclass(eq=False, slots=True)
class Chunk:
    """Values of one command to the source.

    Attributes
    ----------
    block : int or None
        Where they are; None once they are wiped.
    count : int
    claimed : int
        How many, from the first on, belong to a request.
    settled : int
        How many will be read no more.
    arrived, lost : bool
        Neither while they are on their way.
    """

    block: int | None
    count: int
    claimed: int = 0
    settled: int = 0
    arrived: bool = False
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Claim:
    """Values from ``start`` to ``stop`` of a chunk, that belong to one request."""

    chunk: Chunk
    start: int
    stop: int

    @property
    def size(self) -> int:
        """How many."""
        return self.stop - self.start


@dataclass(eq=False, slots=True)
class Stock:
    """Chunks that are not claimed whole.

    Parameters
    ----------
    largest : int
        The largest request so far.
    last_asked : int
        The number of the last request.
    """

    largest: int
    last_asked: int
    target: int = field(init=False)
    """Values to be held."""
    held: int = field(init=False, default=0)
    """Values that were ordered, and are nobody's yet."""
    chunks: deque[Chunk] = field(init=False, default_factory=deque)

    def __post_init__(self) -> None:
        self.target = _DEPTH * self.largest

    @property
    def ready(self) -> int:
        """Values that have arrived, and are nobody's yet."""
        return sum(chunk.count - chunk.claimed for chunk in self.chunks if chunk.arrived)

    def add(self, chunk: Chunk) -> None:
        """Append what has been ordered."""
        self.chunks.append(chunk)
        self.held += chunk.count

    def claim(self, size: int) -> list[Claim]:
        """Make the oldest values, arrived or not, a request's own; fewer where there are fewer."""
        claims, missing = [], size
        while missing and self.chunks:
            chunk = self.chunks[0]
            count = min(missing, chunk.count - chunk.claimed)
            claims.append(Claim(chunk, chunk.claimed, chunk.claimed + count))
            chunk.claimed += count
            missing -= count
            if chunk.claimed == chunk.count:
                self.chunks.popleft()
        self.held -= size - missing
        self.largest = max(self.largest, size)
        self.target = min(max(self.target, _DEPTH * size) + missing, _DEEPEST * self.largest)
        return claims

    def drop_lost(self) -> None:
        """Let go of chunks that will not come."""
        self.held -= sum(chunk.count - chunk.claimed for chunk in self.chunks if chunk.lost)
        self.chunks = deque(chunk for chunk in self.chunks if not chunk.lost)
