"""Records that were read but not cut yet, and their assembly into a batch.

Messages are stored by partition; their rows lie in one of two arrays, which batches share.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby, islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.records import RecordKind
from streaming_pca.kernels.plain_records import VALUE_BYTES, copy_rows
from streaming_pca.service.kafka.record_blocks import RecordBlock

PIECE_BYTES = 2**20  # bytes copied at a time, few enough to stay in the CPU caches on their way to the store
_MAPPED_BYTES = 2**25 + 2**16
"""Smallest size of a store's memory; only the used part is resident.

Above 32 MiB glibc uses a separate mapping, which grows in place and is returned to the system. Smaller blocks
lie in a heap between other objects: a store that outgrew such a block, at 64 MiB, left a hole of that size.
"""

Rows = NDArray[np.floating]
Integers = NDArray[np.int64]
Users = NDArray[np.uint64]


class RowStore:
    """Growing array of rows of ``width`` numbers, in float32 as long as all rows are.

    The precision does not change any sum: kernels return the same bits for the same values
    (``tests/kernels/test_lattice.py``). Its memory is the most rows so far plus a 64th or a MiB (the larger),
    in at least 32 MiB of address space. It does not reserve more ahead of records, which could otherwise make
    a worker request more memory than the machine has.
    """

    def __init__(self, width: int) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._width = width
        self._dtype: np.dtype[Any] = np.dtype(np.float32)
        self.size = 0  # number of rows

    @property
    def rows(self) -> Rows:
        return self._view(self._dtype, 0, self.size)

    @property
    def row_bytes(self) -> int:
        return self._width * self._dtype.itemsize

    def append(self, rows: Rows) -> int:
        """Append a copy of rows (n, width), float32 or float64; return the first row's place."""
        dtype = np.result_type(self._dtype, rows.dtype) if self.size else rows.dtype
        first, size = self.size, self.size + len(rows)
        self._reserve(size * self._width * dtype.itemsize)
        if dtype != self._dtype:
            self._widen(dtype)
        self._view(dtype, first, size)[:] = rows
        self.size = size
        return first

    def room(self, count: int, dtype: np.dtype[Any]) -> Rows | None:
        """Return a view of ``count`` rows for :meth:`keep`; None if existing rows have another type."""
        if self.size and self._dtype != dtype:
            return None
        self._dtype = dtype
        self._reserve((self.size + count) * self.row_bytes)
        return self._view(dtype, self.size, self.size + count)

    def keep(self, count: int) -> int:
        """Keep the first ``count`` rows of the :meth:`room`; return the first row's place."""
        self.size += count
        return self.size - count

    def clear(self) -> None:
        """Drop all rows but keep the memory; :attr:`rows` must not be in use."""
        self.size = 0

    def _view(self, dtype: np.dtype[Any], first: int, last: int) -> Rows:
        """Return rows [first, last) as numbers of ``dtype``."""
        size = self._width * dtype.itemsize
        return self._memory[first * size : last * size].view(dtype).reshape(last - first, self._width)

    def _reserve(self, wanted: int) -> None:
        """Grow to ``wanted`` bytes, in place if possible, which avoids a second block."""
        if wanted <= self._memory.size:
            return
        wanted = max(wanted + max(wanted // 64, PIECE_BYTES), _MAPPED_BYTES)
        if not self._memory.size:
            # Not `resize`, which would write zeros.
            self._memory = np.empty(wanted, dtype=np.uint8)
            return
        try:
            self._memory.resize(wanted)
        except ValueError:
            # Another object, such as a debugger, holds a view of the memory.
            larger = np.empty(wanted, dtype=np.uint8)
            larger[: self._memory.size] = self._memory
            self._memory = larger

    def _widen(self, dtype: np.dtype[Any]) -> None:
        """Convert the rows to a larger type; last rows first, so none is overwritten before it is read."""
        some = max(PIECE_BYTES // max(self._width * dtype.itemsize, 1), 1)
        for last in range(self.size, 0, -some):
            first = max(last - some, 0)
            self._view(dtype, first, last)[:] = self._view(self._dtype, first, last).copy()
        self._dtype = dtype


_WORDS: dict[str, Any] = {"float32": np.uint32, "float64": np.uint64}


class PlainPayloads:
    """Copier of plain payloads, equivalent to ``PayloadCodec.decode_all``."""

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec
        self._headers = _forms(map(_encoded, codec.plain_headers))
        self._dtype, self._word = np.dtype(codec.dtype), _WORDS[codec.dtype]
        self._infinity, self._nan = np.array([np.inf, np.nan], self._dtype).view(self._word)

    def copy(self, block: RecordBlock, store: RowStore) -> tuple[int, NDArray[np.int64]] | None:
        """Copy the rows of a block's records to a store; return the first place and row counts (m,).

        Returns None, and the store keeps nothing, if a payload is not plain or the rows have another type.
        """
        codec, parts = self._codec, block.parts
        if codec.kind is not RecordKind.FACTOR or not len(self._headers):
            return None
        size = int(np.maximum(parts[:, VALUE_BYTES], 0).sum(dtype=np.int64))
        rows = store.room(size // (codec.dim * self._dtype.itemsize), self._dtype)
        if rows is None:
            return None
        lengths = np.empty(len(parts), np.int64)
        how = (codec.max_rows, codec.unit == "row", self._infinity, self._nan)
        count = copy_rows(block.data, parts, self._headers, *how, rows.view(self._word), lengths)
        return None if count < 0 else (store.keep(count), lengths)


def _encoded(headers: list[tuple[str, bytes]]) -> bytes:
    """Return the bytes of a record's headers as written by every client."""
    parts = [part for name, value in headers for part in (name.encode(), value)]
    if max([len(headers), *map(len, parts)]) >= 64:
        raise ValueError("a length takes one byte, of 63 at most")
    return bytes([2 * len(headers)]) + b"".join(bytes([2 * len(part)]) + part for part in parts)


def _forms(encoded: Iterable[bytes]) -> NDArray[np.uint8]:
    """Return a row for each form: its length, its bytes, and padding zeros."""
    every = list(encoded)
    forms = np.zeros((len(every), 1 + max(map(len, every), default=0)), np.uint8)
    for row, form in zip(forms, every, strict=True):
        row[: 1 + len(form)] = list(bytes([len(form)]) + form)
    return forms


_AT_ONCE = 2000  # records created from a block at a time
_MOST_MADE = 2**26
"""Most bytes of rows decoded from one poll's JSON objects before a batch needs them.

An object of twenty bytes can become thousands of columns, so objects beyond this limit wait undecoded.
"""


@dataclass
class Chunk:
    """Messages of one partition whose rows are in a store."""

    offsets: NDArray[np.int64]
    places: NDArray[np.int64]  # place of each message's first row in the store
    lengths: NDArray[np.int64]  # number of each message's rows
    users: NDArray[np.uint64] | None = None
    """(n, 2) keyed hashes of the messages' keys, if the user is the unit of privacy."""
    epoch: int = -1  # epoch of the leader that accepted the last message; -1 if unknown

    def part(self, some: slice | NDArray[np.int64]) -> Chunk:
        users = None if self.users is None else self.users[some]
        return Chunk(self.offsets[some], self.places[some], self.lengths[some], users, self.epoch)


@dataclass
class Waiting:
    """Messages that are decoded when a batch needs them."""

    offsets: NDArray[np.int64]
    values: Sequence[memoryview | None]
    keys: Sequence[bytes | None]
    epoch: int


@dataclass
class PartitionBuffer:
    """Messages of one partition, in offset order: decoded ones, then waiting ones."""

    position: int
    """Offset of the first message not taken yet, or an unused offset after the last taken message."""
    epoch: int = -1  # epoch of the leader that accepted the last message before ``position``; -1 if unknown
    chunks: deque[Chunk] = field(default_factory=deque)
    waiting: deque[Waiting] = field(default_factory=deque)
    count: int = 0  # number of all messages

    @property
    def decoded(self) -> int:
        return self.count - sum(len(each.offsets) for each in self.waiting)

    def append(self, chunk: Chunk) -> None:
        """Append messages; raise ValueError unless their offsets rise from the buffer's end."""
        if not len(chunk.offsets):
            return
        end = self.chunks[-1].offsets[-1] + 1 if self.chunks else self.position
        if chunk.offsets[0] < end or (np.diff(chunk.offsets) <= 0).any():
            raise ValueError("offsets do not rise")
        self.chunks.append(chunk)
        self.count += len(chunk.offsets)

    @property
    def rows(self) -> int:
        return sum(int(c.lengths.sum()) for c in self.chunks)

    def count_before(self, end: int) -> int:
        if not self.count:
            return 0
        if (self.waiting or self.chunks)[-1].offsets[-1] < end:
            return self.count
        offsets = [*(c.offsets for c in self.chunks), *(w.offsets for w in self.waiting)]
        return sum(int(np.searchsorted(each, end)) for each in offsets)

    def take(self, count: int) -> list[Chunk]:
        taken: list[Chunk] = []
        self.count -= count
        while count:
            chunk = self.chunks.popleft()
            if len(chunk.offsets) > count:
                self.chunks.appendleft(chunk.part(slice(count, None)))
                chunk = chunk.part(slice(count))
            taken.append(chunk)
            count -= len(chunk.offsets)
        if taken:
            self.position, self.epoch = int(taken[-1].offsets[-1]) + 1, taken[-1].epoch
        return taken


class RecordBuffer:
    """Buffers of partitions, and the store of their rows; not thread-safe.

    Two stores alternate, and keep their memory: a batch shares one, while later messages fill the other.
    """

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec, self._plain = codec, PlainPayloads(codec)
        self.buffers: dict[int, PartitionBuffer] = {}
        self._width = codec.kind.width(codec.dim)
        self._store = RowStore(self._width)
        self._spare: RowStore | None = None
        self._shared: RowStore | None = None

    def use(self, codec: PayloadCodec) -> None:
        """Decode with another codec, for rows of the same form, from now on."""
        self._codec, self._plain = codec, PlainPayloads(codec)

    @property
    def partitions(self) -> list[int]:
        return sorted(self.buffers)

    @property
    def bytes(self) -> int:
        messages = sum(buffer.count for buffer in self.buffers.values())
        return max(self._store.size, messages) * self._store.row_bytes

    def append(self, partition: int, messages: Sequence[Any]) -> None:
        """Decode messages, and blocks of messages, and append them to a partition's buffer.

        After an error the reader must end: otherwise messages would be missing before later ones.
        """
        buffer = self.buffers[partition]
        # Reading more means that the batch needs the waiting messages.
        self._make(buffer, buffer.count)
        enough = self._store.size * self._store.row_bytes + _MOST_MADE
        chunks: list[Chunk] = []
        for are_blocks, run in groupby(messages, lambda each: isinstance(each, RecordBlock)):
            if not are_blocks:
                self._make(buffer, buffer.count)
                chunks += self._decoded(list(run))
                continue
            for block in run:
                chunk = None if buffer.waiting else self._copied(block)
                if chunk is not None:
                    chunks.append(chunk)
                    continue
                if self._codec.reads_objects and (values := block.bare_values()) is not None:
                    for some in self._objects(block, values):
                        if buffer.waiting or self._store.size * self._store.row_bytes >= enough:
                            self._add(buffer, chunks)
                            chunks = []
                            buffer.waiting.append(some)
                            buffer.count += len(some.offsets)
                        else:
                            chunks.append(self._of_objects(some))
                    continue
                self._make(buffer, buffer.count)
                # In parts: the headers of all records could take many times the batch's size.
                records = block.records()
                while each := list(islice(records, _AT_ONCE)):
                    chunks += self._decoded(each)
        self._add(buffer, chunks)

    def _add(self, buffer: PartitionBuffer, chunks: Sequence[Chunk]) -> None:
        for _, same in groupby(chunks, lambda chunk: chunk.epoch):
            buffer.append(_joined(list(same)))

    def _make(self, buffer: PartitionBuffer, count: int) -> None:
        """Decode waiting messages until ``count`` messages of the partition are decoded."""
        while buffer.waiting and buffer.decoded < count:
            some = buffer.waiting.popleft()
            buffer.count -= len(some.offsets)
            buffer.append(self._of_objects(some))

    def _decoded(self, messages: Sequence[Any]) -> Iterator[Chunk]:
        for piece in _pieces(messages):
            rows, lengths, users = self._codec.decode_all(piece)
            offsets = np.fromiter((m.offset for m in piece), dtype=np.int64, count=len(piece))
            yield _chunk(offsets, self._store.append(rows), lengths, users, piece[-1].leader_epoch)

    def _objects(self, block: RecordBlock, values: Sequence[memoryview | None]) -> Iterator[Waiting]:
        """Yield a block's JSON objects in parts whose values stay in the CPU caches."""
        keys = list(block.keys()) if self._codec.user_key is not None else [None] * len(values)
        for first in range(0, len(values), _AT_ONCE):
            some = slice(first, first + _AT_ONCE)
            yield Waiting(block.offsets[some], values[some], keys[some], block.leader_epoch)

    def _of_objects(self, some: Waiting) -> Chunk:
        rows, lengths, users = self._codec.decode_objects(some.values, some.keys)
        return _chunk(some.offsets, self._store.append(rows), lengths, users, some.epoch)

    def _copied(self, block: RecordBlock) -> Chunk | None:
        """Copy a block's rows; return None if a payload is not plain."""
        copied = self._plain.copy(block, self._store)
        if copied is None:
            return None
        return _chunk(block.offsets, *copied, self._codec.user_hashes(block.keys()), block.leader_epoch)

    def prepare(self, counts: Mapping[int, int]) -> None:
        """Decode the first messages of partitions, if they wait."""
        for partition, count in counts.items():
            self._make(self.buffers[partition], count)

    def take(self, counts: Sequence[int], granularity: int) -> tuple[ArrayBatch, NDArray[np.uint64] | None]:
        """Remove and return first messages; their rows may be shared until :meth:`release_memory`."""
        # Memory that was not released by now belongs to the batch permanently.
        self._shared = None
        self.prepare(dict(zip(self.partitions, counts, strict=True)))
        parts = [self.buffers[p].take(count) for p, count in zip(self.partitions, counts, strict=True)]
        taken = interleave(parts, granularity)
        batch = batch_of(self._store.rows, taken, self._codec.kind, self._codec.unit == "row")
        left = sum(buffer.rows for buffer in self.buffers.values())
        if self._store.size - left < left:
            # Copy the smaller part: the batch here, the rest below.
            return batch.copy(), taken.users
        self._shared, before = self._store, self._store
        self._store, self._spare = self._spare or RowStore(self._width), None
        for buffer in self.buffers.values():
            for chunk in buffer.chunks:
                first = self._store.append(before.rows[row_places(chunk)])
                chunk.places = first + np.cumsum(chunk.lengths) - chunk.lengths
        return batch, taken.users

    def release_memory(self) -> None:
        if self._shared is not None:
            self._shared.clear()
            self._spare, self._shared = self._shared, None

    def clear(self) -> None:
        """Drop all messages and the memory; a taken batch keeps its rows."""
        for buffer in self.buffers.values():
            buffer.chunks.clear()
            buffer.waiting.clear()
            buffer.count = 0
        self._store, self._spare, self._shared = RowStore(self._width), None, None

    def remove(self, partition: int) -> None:
        del self.buffers[partition]
        if not any(buffer.count for buffer in self.buffers.values()):
            # The rows are unused; if other partitions have messages, they stay until the next batch.
            self._store.clear()


def _chunk(offsets: Integers, first: int, lengths: Integers, users: Users | None, epoch: int) -> Chunk:
    """Return messages whose rows are consecutive from ``first``."""
    return Chunk(offsets, first + np.cumsum(lengths) - lengths, lengths, users, epoch)


def _joined(chunks: list[Chunk]) -> Chunk:
    """Merge chunks, because each chunk costs time later; the epoch is the last one's."""
    if len(chunks) == 1:
        return chunks[0]
    users = [c.users for c in chunks if c.users is not None]
    none = np.zeros(0, dtype=np.int64)
    return Chunk(
        np.concatenate([none, *(c.offsets for c in chunks)]),
        np.concatenate([none, *(c.places for c in chunks)]),
        np.concatenate([none, *(c.lengths for c in chunks)]),
        np.concatenate(users) if users else None,
        chunks[-1].epoch if chunks else -1,
    )


def _pieces(messages: Sequence[Any]) -> Iterator[Sequence[Any]]:
    """Yield runs of messages of one leader, each of about a piece's size."""
    first = size = 0
    for i, message in enumerate(messages):
        if message.leader_epoch != messages[first].leader_epoch:
            yield messages[first:i]
            first, size = i, 0
        size += len(message.value or b"")
        if size >= PIECE_BYTES:
            yield messages[first : i + 1]
            first, size = i + 1, 0
    if first < len(messages):
        yield messages[first:]


def interleave(parts: list[list[Chunk]], granularity: int) -> Chunk:
    """Merge messages of all partitions in turn, ``granularity`` at a time."""
    counts = [sum(len(c.offsets) for c in part) for part in parts]
    turns = np.concatenate([np.arange(count) // granularity for count in counts])
    order = np.lexsort((np.repeat(np.arange(len(counts)), counts), turns))
    return _joined([c for part in parts for c in part]).part(order)


def row_places(messages: Chunk) -> NDArray[np.int64]:
    before = np.cumsum(messages.lengths) - messages.lengths
    return np.repeat(messages.places - before, messages.lengths) + np.arange(int(messages.lengths.sum()))


def batch_of(rows: NDArray[np.floating], messages: Chunk, kind: RecordKind, by_row: bool) -> ArrayBatch:
    """Return the batch of messages, sharing ``rows``, (n, width).

    With ``by_row`` each row, not each message, is a record; a row of NaNs is a null record.
    """
    places, lengths = messages.places, messages.lengths
    if by_row:
        places = row_places(messages)
        lengths = (~np.isnan(rows[places, 0])).astype(np.int64)
    starts = np.append(0, np.cumsum(lengths))
    there = np.flatnonzero(lengths)
    first = int(places[there[0]]) if len(there) else 0
    if np.array_equal(places[there] - first, starts[:-1][there]):
        # Consecutive rows, for example of a single partition: the batch need not store places.
        return ArrayBatch(rows[first : first + int(starts[-1])], starts, kind)
    return ArrayBatch(rows, starts, kind, places)
