"""Parser of record batches in which no record can stop or move another.

A record's bytes are private contents. Brokers check that a batch can be read as Java reads it, and that
it has as many offsets as records; they do not check the offset that a record of an uncompressed batch
claims. kafka-python 3.0.12 believes that claim, reads attributes and lengths otherwise than Java, and
raises from `poll`, at every attempt, for an unreadable record.

Here the records of a batch have consecutive offsets from its base offset on. A batch with fewer records
than offsets was compacted by a broker's cleaner (a broker refuses such a batch from a client): the
remaining records keep their own offsets if these rise within the batch. An unreadable record, or a record
of more than a thousand headers, keeps its place, has no value, and keeps its key if that can be read, so it
still counts for its user.

Reference: `DefaultRecord.readFrom` and `ByteUtils` of Apache Kafka 4.1.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kafka.consumer.fetcher import Fetcher
from kafka.errors import CorruptRecordError, KafkaError

__all__ = ["InflatingReader", "MalformedRecord", "Record", "RecordReader", "UnreadableBatch"]
__all__ += ["count_of", "parse_batch", "read_body"]

_CODECS = {1: "gzip", 2: "snappy", 3: "lz4", 4: "zstd"}
_FormatError = (IndexError, ValueError)
_MOST_HEADERS = 1000
"""Limit above which a record is null.

A message holds half a million headers, which take a third of a second.
"""

_LARGE_BYTES = 2**16


class UnreadableBatch(KafkaError):  # type: ignore[misc]
    """Batch from before its topic had its present settings: compressed, or of an old format.

    Attributes
    ----------
    what : str
        The fault of its records.
    first, end : int
        Its offsets [first, end); only the first one's where the format is old.
    """

    def __init__(self, what: str, first: int, end: int) -> None:
        super().__init__(f"records {first} to {end - 1} {what}")
        self.what, self.first, self.end = what, first, end


class MalformedRecord(ValueError):
    """Bytes that Java does not read as a record either."""


class Record(NamedTuple):
    """Message as consumers of the service see it.

    Attributes
    ----------
    offset : int
    key, value : bytes or None
    headers : sequence of (str, bytes or None)
    leader_epoch : int
        Epoch of the partition's leader that took it: the same offset under another epoch may be another
        record.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    leader_epoch: int


def parse_batch(batch: Any) -> Iterator[Record]:
    """Yield the records that an uncompressed batch counts, at strictly rising offsets.

    Parameters
    ----------
    batch : DefaultRecordBatch
        Format 2, its records not read yet.

    Raises
    ------
    CorruptRecordError
        If the batch counts more records than it has offsets: no broker stores that.
    """
    base, count, span = count_of(batch)
    epoch = batch.leader_epoch
    if count == span:
        for index, (_, key, value, headers) in enumerate(_bodies(batch, count)):
            yield Record(base + index, key, value, headers, epoch)
        return
    bodies = list(_bodies(batch, count))
    deltas = [delta for delta, *_ in bodies]
    if not all(a < b for a, b in zip([-1, *deltas], [*deltas, span], strict=True)):
        deltas = list(range(count))
    for delta, (_, key, value, headers) in zip(deltas, bodies, strict=True):
        yield Record(base + delta, key, value, headers, epoch)


def count_of(batch: Any) -> tuple[int, int, int]:
    """Return a batch's first offset, and its numbers of records and of offsets.

    Raises
    ------
    CorruptRecordError
        As of :func:`parse_batch`.
    """
    base, count, span = batch.base_offset, batch.records_count, batch.last_offset_delta + 1
    if not 0 <= count <= span:
        raise CorruptRecordError(f"the batch at offset {base} counts {count} records in {span} offsets")
    return base, count, span


_Body = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
_NULL: _Body = (-1, None, None, ())


def _bodies(batch: Any, count: int) -> Iterator[_Body]:
    """Yield the offset delta, key, value and headers of each record."""
    buffer: bytearray = batch._buffer
    position, end = batch._pos, len(buffer)
    for index in range(count):
        try:
            length, start = _varint(buffer, position)
            if not 0 <= length <= end - start:
                raise MalformedRecord
        except _FormatError:
            # The starts of the others are not known.
            for _ in range(index, count):
                yield _NULL
            return
        position = start + length
        yield read_body(buffer, start, position)


def read_body(buffer: bytearray, start: int, end: int) -> _Body:
    """Read a record between its length and its end; return offset delta, key, value and headers."""
    delta, key = -1, None
    try:
        # One byte of attributes, which mean nothing.
        position = start + 2 if buffer[start + 1] < 0x80 else _skip_varlong(buffer, start + 1)
        delta, position = _varint(buffer, position)
        key, position = _bytes(buffer, position, end)
        value, position = _bytes(buffer, position, end)
        n_headers = buffer[position]
        if n_headers == 0 and position + 1 == end:
            return delta, key, value, ()
        n_headers, position = _varint(buffer, position)
        if not 0 <= n_headers <= _MOST_HEADERS:
            raise MalformedRecord
        headers = []
        for _ in range(n_headers):
            name, position = _bytes(buffer, position, end)
            if name is None:
                raise MalformedRecord
            item, position = _bytes(buffer, position, end)
            # As in Java: a name that is not UTF-8 means nothing.
            headers.append((name.decode("utf-8", "replace"), item))
        if position != end:
            raise MalformedRecord
    except _FormatError:
        return delta, key, None, ()
    return delta, key, value, headers


def _varint(buffer: bytearray, position: int) -> tuple[int, int]:
    """Read a zig-zag integer of 32 bits in at most five bytes; return it and its end."""
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    raw = byte & 0x7F
    for i in range(1, 5):
        byte = buffer[position + i]
        raw |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            # Bits beyond 32 in the fifth byte are dropped, as in Java.
            raw &= 0xFFFFFFFF
            return (raw >> 1) ^ -(raw & 1), position + i + 1
    raise MalformedRecord


def _skip_varlong(buffer: bytearray, position: int) -> int:
    """Return the end of an integer of 64 bits, which takes at most ten bytes."""
    for i in range(10):
        if buffer[position + i] < 0x80:
            return position + i + 1
    raise MalformedRecord


def _bytes(buffer: bytearray, position: int, end: int) -> tuple[bytes | None, int]:
    """Read bytes behind their length; return them, None for a negative length, and their end."""
    length, position = _varint(buffer, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise MalformedRecord
    if length < _LARGE_BYTES:
        return bytes(buffer[position : position + length]), position + length
    # A slice would be another copy, which a view is not; of few bytes it takes less time.
    return bytes(memoryview(buffer)[position : position + length]), position + length


class RecordReader(Fetcher.PartitionRecords):  # type: ignore[misc]
    """Reader of one partition's records in one answer, in place of `Fetcher.PartitionRecords`.

    Compressed batches are not inflated: kafka-python has no bound on their inflated size.
    """

    def _unpack_records(self, tp: Any, records: Any, *deserializers: Any) -> Iterator[Record]:
        """Yield the records of all batches that were not aborted.

        Keeps the contract of the overridden method: after each record, and at the end behind the last batch,
        `next_fetch_offset` is the offset from which to go on.
        """
        while (batch := records.next_batch()) is not None:
            if self.check_crcs and not batch.validate_crc():
                raise CorruptRecordError(f"{tp}: the batch at offset {batch.base_offset} fails its checksum")
            if batch.magic != 2:
                what = f"are of message format {batch.magic}, of Kafka before 0.11"
                raise UnreadableBatch(what, batch.base_offset, batch.base_offset + 1)
            self.leader_epoch = batch.leader_epoch
            if not self._is_hidden(batch):
                for record in self._parse(batch):
                    self.records_read += 1
                    self.next_fetch_offset = record.offset + 1
                    yield record
            # A batch keeps its offsets where its last records were compacted away.
            self.next_fetch_offset = batch.next_offset
        # Any number above 0 lets the fetcher serve the partitions in turn.
        self.bytes_read = self.records_read
        self.drain()

    def _is_hidden(self, batch: Any) -> bool:
        """Return whether a batch is a marker or, under read_committed, aborted."""
        if self.isolation_level and batch.has_producer_id():
            self._consume_aborted_transactions_up_to(batch.last_offset)
            if self._contains_abort_marker(batch):
                self.aborted_producer_ids.discard(batch.producer_id)
            elif self._is_batch_aborted(batch):
                return True
        return bool(batch.is_control_batch)

    def _parse(self, batch: Any) -> Iterator[Record]:
        if batch.compression_type:
            codec = _CODECS.get(batch.compression_type, "an unknown codec")
            raise UnreadableBatch(f"are compressed ({codec})", batch.base_offset, batch.next_offset)
        return parse_batch(batch)


class InflatingReader(RecordReader):
    """Reader of the service's own topics, which a broker may compress."""

    def _parse(self, batch: Any) -> Iterator[Record]:
        batch._maybe_uncompress()
        return parse_batch(batch)
