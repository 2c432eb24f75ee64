"""What was read and not taken yet: messages by partition, their rows in memory that batches share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.records import Batch
from streaming_pca.service.assembly import Buffer, Chunk, batch_of, interleave, places_of_rows
from streaming_pca.service.row_store import RowStore
from streaming_pca.wire import PayloadCodec

__all__ = ["Gathering"]

_PIECE_BYTES = 2**20
"""Decoded at once: as much as stays in the nearer caches on its way to the store."""


class Gathering:
    """Buffers of partitions, and the store of their rows; not thread-safe.

    Two stores take turns: one is a batch's, which shares its rows, while what
    comes next is put into the other. Both keep their memory.

    Parameters
    ----------
    codec : PayloadCodec
    """

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec
        self.buffers: dict[int, Buffer] = {}
        self._width = codec.kind.width(codec.dim)
        self._store = RowStore(self._width)
        self._spare: RowStore | None = None
        self._lent: RowStore | None = None

    @property
    def partitions(self) -> list[int]:
        """Those that have a buffer, in order."""
        return sorted(self.buffers)

    @property
    def bytes(self) -> int:
        """Of what was not taken yet, at least: no message counts for less than a row."""
        messages = sum(buffer.count for buffer in self.buffers.values())
        return max(self._store.size, messages) * self._store.row_bytes

    def append(self, partition: int, messages: Sequence[Any]) -> None:
        """Decode messages that follow those of a partition's buffer."""
        for piece in _pieces(messages):
            rows, lengths = self._codec.decode_many(piece)
            first = self._store.append(rows)
            places = first + np.cumsum(lengths) - lengths
            offsets = np.fromiter((m.offset for m in piece), dtype=np.int64, count=len(piece))
            users, epoch = self._codec.users_of(piece), piece[-1].leader_epoch
            self.buffers[partition].append(Chunk(offsets, places, lengths, users, epoch))

    def take(self, counts: Sequence[int], granularity: int) -> tuple[Batch, NDArray[np.uint64] | None]:
        """Remove the first messages of each partition: the batch that they are, and whose they are.

        The batch may share a store's rows until :meth:`give_back`.
        """
        # One that was not given back by now never is: its rows stay the batch's.
        self._lent = None
        parts = [self.buffers[p].take(count) for p, count in zip(self.partitions, counts, strict=True)]
        taken = interleave(parts, granularity)
        batch = batch_of(self._store.rows, taken, self._codec.kind, self._codec.unit == "row")
        left = sum(buffer.rows for buffer in self.buffers.values())
        if self._store.size - left < left:
            # The smaller part of the store: it is copied, and its room used again with the rest's.
            return batch.copy(), taken.users
        self._lent, before = self._store, self._store
        self._store, self._spare = self._spare or RowStore(self._width), None
        for buffer in self.buffers.values():
            for chunk in buffer.chunks:
                rows = before.rows[places_of_rows(chunk)]
                first = self._store.append(rows)
                chunk.places = first + np.cumsum(chunk.lengths) - chunk.lengths
        return batch, taken.users

    def give_back(self) -> None:
        """Nobody reads the batch that was taken last, or will: its memory may be used again."""
        if self._lent is not None:
            self._lent.clear()
            self._spare, self._lent = self._lent, None


def _pieces(messages: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Consecutive messages of one leader and of a piece's size together, at least one of them."""
    first = size = 0
    for i, message in enumerate(messages):
        if message.leader_epoch != messages[first].leader_epoch:
            yield messages[first:i]
            first, size = i, 0
        size += len(message.value or b"")
        if size >= _PIECE_BYTES:
            yield messages[first : i + 1]
            first, size = i + 1, 0
    if first < len(messages):
        yield messages[first:]
