"""Compressed batches, inflated piece by piece into uncompressed batches.

Each library returns a few KiB at a time, and :func:`inflate` keeps two MiB of whole records, or one record.
A record longer than the stream's largest is skipped: it keeps its place and key but loses its value. If the
bytes break off, each record that the batch's header counts but that is missing is null, at its offset. The
rules of each codec are those of Apache Kafka 4.1's Java client (docs/explanation/kafka-client.md).
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from itertools import pairwise
from typing import Protocol

import cramjam
import lz4.frame
import zstandard
from kafka.record.util import encode_varint

from streaming_pca.service.kafka.record_batches import RecordBatch, bodies, count_of, read_body, varint

MOST_INFLATED = 64 * 2**20  # most inflated bytes of a reader, for records of MOST_RECORD_BYTES
MOST_RECORD_BYTES = 16 * 2**20  # longest record that is kept, unless the stream's records may be longer
_PIECE_BYTES = 2**21
_PIECE_RECORDS = 2**16
_STEP = 2**14  # bytes requested at a time
_INPUT = 2**10  # compressed bytes passed at a time: libraries copy unused input
_BARREN = 2**8  # steps without output, for example of empty frames, before a pause
_MOST_WINDOW = 2**27
"""Largest window of zstd, which the library holds in addition to the pieces.

It is the limit of Java's client, and the window of level 22. A batch with less inflated data takes less.
"""
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_BYTES = 16
_CUT_OFF = 1  # length of a missing value


def most_record_bytes(payload: int) -> int:
    """Return the longest record to keep, with a margin for keys, headers and unbounded formats."""
    return max(MOST_RECORD_BYTES, payload + MOST_RECORD_BYTES // 16)


class _Broken(Exception):
    """Bytes that are invalid for their codec."""


_Errors = (_Broken, zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError)


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes, empty at the end, or None for a pause."""


class _Fed:
    """Stream from a library function that takes some input and returns some output."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0
        self.step = _INPUT  # bytes passed at a time

    def read(self, size: int) -> bytes | None:
        for _ in range(_BARREN):
            if self._is_complete():
                return b""
            found, used = self._inflate(self._data[self._at : self._at + self.step], size)
            self._at += used
            if found or not used:
                return found
        return None

    def _is_complete(self) -> bool:
        raise NotImplementedError

    def _inflate(self, given: memoryview, size: int) -> tuple[bytes, int]:
        """Return output and the number of bytes consumed."""
        raise NotImplementedError


class _Gzip(_Fed):
    def __init__(self, data: memoryview) -> None:
        super().__init__(data)
        self._member = zlib.decompressobj(wbits=31)

    def _is_complete(self) -> bool:
        if not self._member.eof:
            return False
        # Like Java, ignore a rest that is not a member: it ends the stream.
        self._member = zlib.decompressobj(wbits=31)
        return self._at == len(self._data)

    def _inflate(self, given: memoryview, size: int) -> tuple[bytes, int]:
        found = self._member.decompress(given, size)
        return found, len(given) - len(self._member.unconsumed_tail) - len(self._member.unused_data)


class _Lz4(_Fed):
    def __init__(self, data: memoryview) -> None:
        super().__init__(data)
        if len(data) > 4 and data[4] & 1:
            raise _Broken
        self._context = lz4.frame.create_decompression_context()
        self._ended = False

    def _is_complete(self) -> bool:
        return self._ended

    def _inflate(self, given: memoryview, size: int) -> tuple[bytes, int]:
        found, used, self._ended = lz4.frame.decompress_chunk(self._context, bytes(given), max_length=size)
        return found, used


class _Snappy:
    """Blocks framed like Java's, or a single block like librdkafka's."""

    def __init__(self, data: memoryview, most_block: int) -> None:
        self._most = most_block
        self._blocks = self._framed(data) if data[: len(_XERIAL)] == _XERIAL else iter([data])
        self._block, self._at = memoryview(b""), 0

    @staticmethod
    def _framed(data: memoryview) -> Iterator[memoryview]:
        at = _XERIAL_BYTES
        while len(data) - at >= 4:
            if data[at : at + len(_XERIAL)] == _XERIAL:
                at += _XERIAL_BYTES
                continue
            (size,) = struct.unpack_from(">i", data, at)
            at += 4
            if not 0 <= size <= len(data) - at:
                raise _Broken
            yield data[at : at + size]
            at += size

    def read(self, size: int) -> bytes | None:
        for _ in range(_BARREN):
            if self._at < len(self._block):
                start, self._at = self._at, min(self._at + size, len(self._block))
                return bytes(self._block[start : self._at])
            block = next(self._blocks, None)
            if block is None:
                return b""
            self._block, self._at = memoryview(b""), 0
            # The library allocates the size that the block claims.
            if cramjam.snappy.decompress_raw_len(block) > self._most:
                raise _Broken
            self._block = memoryview(cramjam.snappy.decompress_raw(block))
        return None


def _opened(codec: int, data: memoryview, most_bytes: int) -> _Stream:
    match codec:
        case 1:
            return _Gzip(data)
        case 2:
            # librdkafka writes a whole batch as one block.
            return _Snappy(data, MOST_INFLATED // 4 + most_bytes)
        case 3:
            return _Lz4(data)
        case 4:
            inflater = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
            stream: _Stream = inflater.stream_reader(data, read_across_frames=True)
            return stream
    raise _Broken


def _chunks(codec: int, data: memoryview, most_bytes: int) -> Iterator[bytes]:
    """Yield the inflated bytes up to their end or break; empty chunks are pauses."""
    done = 0
    try:
        stream = _opened(codec, data, most_bytes)
        while (chunk := stream.read(_STEP)) != b"":
            yield chunk or b""
            done += len(chunk or b"")
    except _Errors:
        pass
    else:
        return
    # The failed call did not return its last bytes, so repeat with single bytes at the end. (With zstd the
    # last byte can be missing, and with it the record that it ends.)
    try:
        stream = _opened(codec, data, most_bytes)
        while done and (again := stream.read(min(_STEP, done))) != b"":
            done -= len(again or b"")
            yield b""
        if isinstance(stream, _Fed):
            stream.step = 1
        while (byte := stream.read(1)) != b"":
            yield byte or b""
    except _Errors:
        return


class _Records:
    """Iterator over the records of one batch, cut from its inflated bytes."""

    def __init__(self, batch: RecordBatch, most_bytes: int) -> None:
        self._chunks = _chunks(batch.compression_type, memoryview(batch.data)[batch.start :], most_bytes)
        self._most = most_bytes
        self._left = batch.count
        self._buffer = bytearray()

    def __iter__(self) -> Iterator[tuple[bytes | bytearray, int, int]]:
        """Yield bytes of whole records, their number, and the bytes inflated for them.

        An item without records is a pause. It ends with the last record, or where the next cannot be found.
        """
        while self._left:
            yield from self._fill(_PIECE_BYTES)
            count, end = self._count()
            if count:
                self._left -= count
                rest = self._buffer[end:]
                del self._buffer[end:]
                found, self._buffer = self._buffer, rest
                yield found, count, end
                continue
            try:
                length, start = varint(self._buffer, 0)
            except (IndexError, ValueError):
                return
            if length < 0:
                return
            if length > self._most:
                yield from self._pass_over(start, start + length)
            else:
                yield from self._fill(start + length)
                if len(self._buffer) < start + length:
                    return

    def _fill(self, size: int) -> Iterator[tuple[bytes, int, int]]:
        """Inflate until the buffer has ``size`` bytes or the data ends; yield pauses."""
        unseen = 0
        while len(self._buffer) < size and (chunk := next(self._chunks, None)) is not None:
            self._buffer += chunk
            unseen += 0 if chunk else _STEP
            if unseen >= _PIECE_BYTES:
                yield b"", 0, unseen
                unseen = 0

    def _count(self) -> tuple[int, int]:
        if not self._buffer:
            return 0, 0
        # Imported here, where records are read: each worker's clock does not need it.
        import numpy as np

        from streaming_pca.kernels.plain_records import whole_records

        view = np.frombuffer(self._buffer, np.uint8)
        view.flags.writeable = False
        count, end = whole_records(view, min(self._left, _PIECE_RECORDS), self._most)
        return int(count), int(end)

    def _pass_over(self, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Drop an overlong record; finally yield it without a value."""
        delta, key, *_ = read_body(self._buffer, start, min(end, len(self._buffer)))
        passed, seen = 0, 0
        while passed + len(self._buffer) < end:
            passed += len(self._buffer)
            self._buffer.clear()
            yield b"", 0, passed - seen
            seen = passed
            yield from self._fill(min(_PIECE_BYTES, end - passed))
            if not self._buffer:
                self._left = 0
                return
        del self._buffer[: end - passed]
        self._left -= 1
        yield _without_value(delta, key), 1, end - seen


def _without_value(delta: int, key: bytes | None) -> bytes:
    """Return a record that ends before its value."""
    body, record = bytearray(b"\0\0"), bytearray()
    encode_varint(delta, body.append)
    encode_varint(-1 if key is None else len(key), body.append)
    body += key or b""
    encode_varint(_CUT_OFF, body.append)
    encode_varint(len(body), record.append)
    return bytes(record + body)


def inflate(batch: RecordBatch, most_bytes: int = MOST_RECORD_BYTES) -> Iterator[RecordBatch]:
    """Yield a compressed batch's records as uncompressed batches.

    Records above ``most_bytes`` lose their value. Raises CorruptRecordError like
    :func:`~streaming_pca.service.kafka.record_batches.parse_batch`.
    """
    base, count, span = count_of(batch)
    epoch = batch.leader_epoch
    keep = False
    if count < span:
        # Whether a compacted batch's own offsets rise is known only at its end, so it is inflated twice.
        last, seen, keep = -1, 0, True
        for data, some, inflated in _Records(batch, most_bytes):
            piece = RecordBatch(data, base, some, some - 1, epoch, inflated=inflated)
            deltas = [last, *(delta for delta, *_ in bodies(piece, some))]
            keep = keep and all(a < b for a, b in pairwise(deltas))
            last, seen = deltas[-1], seen + some
            yield RecordBatch(b"", base, 0, -1, epoch, inflated=inflated)
        keep = keep and seen == count and last < span
    at = 0
    for data, some, inflated in _Records(batch, most_bytes):
        first, number = (base, span) if keep else (base + at, some)
        yield RecordBatch(data, first, some, number - 1, epoch, inflated=inflated)
        at += some
    if at < count:
        yield RecordBatch(b"", base + at, count - at, count - at - 1, epoch)
