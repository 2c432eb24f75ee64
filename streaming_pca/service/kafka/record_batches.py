"""Parser of record batches that keeps records from stopping or moving other records.

A record's bytes are private contents, and brokers do not check the offset that it claims. Here the records
of a batch have consecutive offsets from its base offset on. A batch with fewer records than offsets was
compacted by a broker's cleaner: its records keep their own offsets if these rise within the batch. An
unreadable record, or a record with more than a thousand headers, keeps its place, loses its value, and
keeps its key if that can be read, so it still counts for its user.

Reference: `DefaultRecord.readFrom` and `ByteUtils` of Apache Kafka 4.1. Differences of kafka-python:
docs/explanation/kafka-client.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from struct import Struct
from typing import NamedTuple

from kafka.errors import CorruptRecordError, KafkaError

from streaming_pca.text import offsets_text

_FormatError = (IndexError, ValueError)
_MOST_HEADERS = 1000
"""Most headers of a non-null record.

A message can contain half a million headers, which take a third of a second.
"""

_LARGE_BYTES = 2**16


class UnreadableBatch(KafkaError):  # type: ignore[misc]
    """Batch in an unsupported message format, of the known offsets [first, end)."""

    def __init__(self, what: str, first: int, end: int) -> None:
        super().__init__(f"the records at {offsets_text(first, end)} {what}")
        self.what, self.first, self.end = what, first, end


@dataclass(slots=True)
class RecordBatch:
    """Batch of unread records in format 2, or a piece of a compressed one.

    - ``data``: the records, from ``start`` on.
    - ``count`` and ``last_delta``: number of records, and the last one's offset after ``base``; a piece
      without records is a pause.
    - ``compression_type``: 0 for uncompressed records.
    - ``inflated``: bytes that were inflated for a piece.
    """

    data: Octets
    base: int
    count: int
    last_delta: int
    leader_epoch: int
    start: int = 0
    compression_type: int = 0
    inflated: int = 0


class Record(NamedTuple):
    """Message as seen by the service's consumers.

    The same offset under another epoch of the partition's leader may be another record.
    """

    offset: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes | None]]
    leader_epoch: int


def parse_batch(batch: RecordBatch) -> Iterator[Record]:
    """Yield an uncompressed batch's records, at strictly rising offsets.

    Raises CorruptRecordError for more records than offsets, which brokers never store.
    """
    base, count, span = count_of(batch)
    epoch = batch.leader_epoch
    if count == span:
        for index, (_, key, value, headers) in enumerate(bodies(batch, count)):
            yield Record(base + index, key, value, headers, epoch)
        return
    found = list(bodies(batch, count))
    deltas = [delta for delta, *_ in found]
    if not all(a < b for a, b in zip([-1, *deltas], [*deltas, span], strict=True)):
        deltas = list(range(count))
    for delta, (_, key, value, headers) in zip(deltas, found, strict=True):
        yield Record(base + delta, key, value, headers, epoch)


def count_of(batch: RecordBatch) -> tuple[int, int, int]:
    """Return a batch's first offset, number of records and number of offsets, or raise CorruptRecordError."""
    base, count, span = batch.base, batch.count, batch.last_delta + 1
    if not 0 <= count <= span:
        raise CorruptRecordError(f"the batch at offset {base} counts {count} records in {span} offsets")
    return base, count, span


Octets = bytes | bytearray | memoryview
_HEAD = Struct(">qi4xb4xh20xq")  # of a batch: first offset, bytes after these, format, attributes, producer
_HEAD_BYTES, _IS_TRANSACTIONAL, _IS_CONTROL = 61, 0x10, 0x20
_MARKER_AT, _COMMIT = 69, 1  # place and value of a marker's type: the lengths before it take a byte each


def ended_transactions(data: Octets) -> tuple[dict[int, bool], int | None]:
    """Return which batches of a response are aborted, and the offset to stop at.

    The keys are first offsets of transactional batches with the marker of their end in the response. A reader
    stops before the first other transaction: a response from there on has more room for its marker. Those
    that begin in the first eighth of the bytes do not count, so that a reader of long ones advances.
    """
    aborted: dict[int, bool] = {}
    unended: dict[int, tuple[int, list[int]]] = {}  # place and batches' first offsets, by producer
    at, size = 0, len(data)
    while at + _HEAD_BYTES <= size:
        first, length, magic, attributes, producer = _HEAD.unpack_from(data, at)
        if magic != 2 or length < 0:
            break
        if attributes & _IS_CONTROL:
            if _MARKER_AT < min(12 + length, size - at):
                _, offsets = unended.pop(producer, (at, []))
                aborted.update(dict.fromkeys(offsets, data[at + _MARKER_AT] != _COMMIT))
        elif attributes & _IS_TRANSACTIONAL:
            unended.setdefault(producer, (at, []))[1].append(first)
        at += 12 + length
    late = (offsets[0] for place, offsets in unended.values() if 8 * place >= size)
    return aborted, min(late, default=None)


_Body = tuple[int, bytes | None, bytes | None, Sequence[tuple[str, bytes | None]]]
_NULL: _Body = (-1, None, None, ())


def bodies(batch: RecordBatch, count: int) -> Iterator[_Body]:
    """Yield the offset delta, key, value and headers of each record."""
    buffer = batch.data
    position, end = batch.start, len(buffer)
    for index in range(count):
        try:
            length, start = varint(buffer, position)
            if not 0 <= length <= end - start:
                raise ValueError
        except _FormatError:
            # The starts of the following records are unknown.
            for _ in range(index, count):
                yield _NULL
            return
        position = start + length
        yield read_body(buffer, start, position)


def read_body(buffer: Octets, start: int, end: int) -> _Body:
    """Read a record between its length and its end; return offset delta, key, value and headers."""
    delta, key = -1, None
    try:
        # Skip one byte of attributes, which are unused.
        position = start + 2 if buffer[start + 1] < 0x80 else _skip_varlong(buffer, start + 1)
        delta, position = varint(buffer, position)
        key, position = _bytes(buffer, position, end)
        value, position = _bytes(buffer, position, end)
        n_headers = buffer[position]
        if n_headers == 0 and position + 1 == end:
            return delta, key, value, ()
        n_headers, position = varint(buffer, position)
        if not 0 <= n_headers <= _MOST_HEADERS:
            raise ValueError
        headers = []
        for _ in range(n_headers):
            name, position = _bytes(buffer, position, end)
            if name is None:
                raise ValueError
            item, position = _bytes(buffer, position, end)
            # Like Java: a name that is not UTF-8 does not match any known header.
            headers.append((name.decode("utf-8", "replace"), item))
        if position != end:
            raise ValueError
    except _FormatError:
        return delta, key, None, ()
    return delta, key, value, headers


def varint(buffer: Octets, position: int) -> tuple[int, int]:
    """Read a zig-zag integer of 32 bits in at most five bytes; return it and its end."""
    byte = buffer[position]
    if byte < 0x80:
        return (byte >> 1) ^ -(byte & 1), position + 1
    raw = byte & 0x7F
    for i in range(1, 5):
        byte = buffer[position + i]
        raw |= (byte & 0x7F) << 7 * i
        if byte < 0x80:
            # Drop bits beyond 32 in the fifth byte, like Java.
            raw &= 0xFFFFFFFF
            return (raw >> 1) ^ -(raw & 1), position + i + 1
    raise ValueError


def _skip_varlong(buffer: Octets, position: int) -> int:
    """Return the end of an integer of 64 bits, which takes at most ten bytes."""
    for i in range(10):
        if buffer[position + i] < 0x80:
            return position + i + 1
    raise ValueError


def _bytes(buffer: Octets, position: int, end: int) -> tuple[bytes | None, int]:
    """Read bytes after their length; return them (None for a negative length) and their end."""
    length, position = varint(buffer, position)
    if length < 0:
        return None, position
    if length > end - position:
        raise ValueError
    if length < _LARGE_BYTES:
        return bytes(buffer[position : position + length]), position + length
    # A view avoids the copy of a slice; for few bytes a slice is faster.
    return bytes(memoryview(buffer)[position : position + length]), position + length
