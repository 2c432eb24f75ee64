"""Record batches whose records one compiled pass locates, without creating objects.

The parser of :mod:`~streaming_pca.service.kafka.record_batches` is the reference, with the same records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels.plain_records import (
    DELTA,
    END,
    HEADERS,
    KEY,
    KEY_BYTES,
    LEAST_RECORD_BYTES,
    PARTS,
    START,
    VALUE,
    VALUE_BYTES,
    find_records,
)
from streaming_pca.service.kafka.patches import RecordReader
from streaming_pca.service.kafka.record_batches import Record, RecordBatch, count_of, parse_batch, read_body

_LEAST_RECORDS = 12
_LEAST_BYTES = 2**12  # a batch with fewer records and fewer bytes is parsed faster record by record
_MOST_RECORDS = 2**16  # a larger batch of mostly empty records would take several times its bytes


class RecordBlock:
    """Records of one batch, which share the bytes of the broker's response, (n,) uint8.

    ``batch`` has bytes for its number of records; ``first`` is the offset of the first requested record, and
    ``offset`` the last one of all. ``parts`` ((m, 8) int32) are places of the records' parts, from
    :func:`~streaming_pca.kernels.plain_records.find_records`; ``offsets`` is (m,) int64.
    """

    __slots__ = ("data", "leader_epoch", "offset", "offsets", "parts")

    def __init__(self, batch: RecordBatch, first: int = 0) -> None:
        base, count, span = count_of(batch)
        self.data = np.frombuffer(batch.data, np.uint8)
        # Kernels are compiled for read-only arrays only.
        self.data.flags.writeable = False
        self.leader_epoch = batch.leader_epoch
        parts = np.empty((count, PARTS), np.int32)
        find_records(self.data, batch.start, parts)
        deltas = np.arange(count)
        if count < span:
            claimed = parts[:, DELTA].astype(np.int64)
            if (np.diff(claimed, prepend=-1, append=span) > 0).all():
                deltas = claimed
        offsets = base + deltas
        self.offset = int(offsets[-1])
        wanted = int(np.searchsorted(offsets, first))
        self.parts: NDArray[np.int32] = parts[wanted:]
        self.offsets: NDArray[np.int64] = offsets[wanted:]

    def keys(self) -> Iterator[bytes | None]:
        view = self.data.data
        for at, size in self.parts[:, [KEY, KEY_BYTES]].tolist():
            yield bytes(view[at : at + size]) if size >= 0 else None

    def bare_values(self) -> list[memoryview | None] | None:
        """Return the records' values (None if missing); None if some record has headers."""
        places, ends = self.parts[:, HEADERS], self.parts[:, END]
        readable = places >= 0
        if (self.data[places[readable]] != 0).any():
            return None
        # Java rejects a record whose bytes continue after its headers.
        sizes = np.where(readable & (ends == places + 1), self.parts[:, VALUE_BYTES], -1)
        view = self.data.data
        pairs = zip(self.parts[:, VALUE].tolist(), sizes.tolist(), strict=True)
        return [view[at : at + size] if size >= 0 else None for at, size in pairs]

    def records(self) -> Iterator[Record]:
        # Reading single bytes is faster than from a view.
        buffer, epoch = bytearray(self.data), self.leader_epoch
        places = self.parts[:, [START, END, HEADERS]].tolist()
        for offset, key, (start, end, headers) in zip(
            self.offsets.tolist(), self.keys(), places, strict=True
        ):
            if headers < 0:
                yield Record(offset, key, None, (), epoch)
            else:
                yield Record(offset, *read_body(buffer, start, end)[1:], epoch)


class BlockReader(RecordReader):
    """Reader of one partition's records in one response, in blocks for batches of several.

    The blocks replace records: their last offsets rise, and a poll counts each as one record.
    """

    shares_bytes = True

    def records(self, batch: RecordBatch) -> Iterator[Any]:
        """Yield the batch as a block, or the records of a small or damaged one."""
        count, room = batch.count, len(batch.data) - batch.start
        is_small = count < _LEAST_RECORDS and room < _LEAST_BYTES
        # Do not allocate memory for a batch that claims more records than its bytes can contain.
        if is_small or not 1 <= count <= min(room // LEAST_RECORD_BYTES, _MOST_RECORDS):
            return parse_batch(batch)
        return iter([RecordBlock(batch, self.fetch_offset)])
