"""Record batches whose records one compiled pass locates, without creating objects.

The rules are those of :mod:`~streaming_pca.service.kafka.record_batches`, whose parser is the reference: a
block has the same records.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from kafka.record.default_records import DefaultRecordBatch
from kafka.record.memory_records import MemoryRecords
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
from streaming_pca.service.kafka.record_batches import Record, count_of, parse_batch, read_body
from streaming_pca.service.kafka.record_readers import RecordReader

_LEAST_RECORDS = 12
_LEAST_BYTES = 2**12
"""A batch with fewer records and fewer bytes is parsed faster record by record."""
_MOST_RECORDS = 2**16
"""A larger batch of mostly empty records would take several times its bytes."""


class RecordBlock:
    """Records of one batch, which share the bytes of the broker's response.

    Parameters
    ----------
    batch : DefaultRecordBatch
        In format 2, or a piece of a compressed batch, with bytes for its number of records.
    first : int
        Offset of the first requested record.

    Attributes
    ----------
    data : (n,) uint8
    parts : (m, 8) int32
        Places of the records' parts, from :func:`~streaming_pca.kernels.plain_records.find_records`.
    offsets : (m,) int64
    offset : int
        Last offset of all the batch's records.
    """

    __slots__ = ("data", "leader_epoch", "offset", "offsets", "parts")

    def __init__(self, batch: Any, first: int = 0) -> None:
        base, count, span = count_of(batch)
        self.data = np.frombuffer(batch._buffer, np.uint8)
        # Kernels are compiled for read-only arrays only.
        self.data.flags.writeable = False
        self.leader_epoch = batch.leader_epoch
        parts = np.empty((count, PARTS), np.int32)
        find_records(self.data, batch._pos, parts)
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
        """Yield the records' keys."""
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
        """Yield the records one by one, with their headers."""
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


class _View(DefaultRecordBatch):  # type: ignore[misc]
    """Batch that shares its bytes, while kafka-python would copy them."""

    def __init__(self, buffer: memoryview) -> None:
        self._buffer = buffer
        self._header_data = self.HEADER_STRUCT.unpack_from(buffer)
        self._pos = self.HEADER_STRUCT.size
        self._num_records = self._header_data[12]
        self._next_record_index = 0
        self._decompressed = False


class _Views(MemoryRecords):  # type: ignore[misc]
    def next_batch(self) -> Any:
        """Return the next batch, or None; do not copy a large one in format 2."""
        part = self._next_slice
        if part is None or len(part) < _LEAST_BYTES or part[self.MAGIC_OFFSET] != 2:
            return super().next_batch()
        view = _View(part)
        if view.is_control_batch:
            # kafka-python's own methods read its record; they need a copy.
            return super().next_batch()
        self._cache_next()
        return view


class BlockReader(RecordReader):
    """Reader of one partition's records in one response, in blocks for batches of several.

    The blocks replace records: their last offsets rise, and a poll counts each as one record.
    """

    def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Any]:
        return super()._unpack_records(tp, _Views(records._buffer), *deserializers)

    def _records(self, batch: Any) -> Iterator[Any]:
        count, room = batch.records_count, len(batch._buffer) - batch._pos
        is_small = count < _LEAST_RECORDS and room < _LEAST_BYTES
        # Do not allocate memory for a batch that claims more records than its bytes can contain.
        if is_small or not 1 <= count <= min(room // LEAST_RECORD_BYTES, _MOST_RECORDS):
            return parse_batch(batch)
        return iter([RecordBlock(batch, self.fetch_offset)])
