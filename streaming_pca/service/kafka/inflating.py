"""Compressed batches, inflated a piece at a time into batches that are not compressed.

Nothing is inflated whole and looked at afterwards: each library is asked for a few KiB, and
:func:`inflate` keeps whole records of two MiB, or one record. A record of more bytes than the stream's
largest is passed over: it keeps its place and its key, and has no value.

Where the bytes break off, the batch's header still counts its records, and a broker has checked the
header: each missing one is null, at its offset. Bytes behind the last record are not read.

The rules of each codec are those of Apache Kafka 4.1's Java client: members of gzip, frames of zstd and
blocks of snappy follow one another, and lz4 ends with its first frame. No codec has a dictionary.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import cramjam
import lz4.frame
import zstandard
from kafka.record.util import encode_varint

from streaming_pca.service.kafka.record_batches import MalformedRecord, bodies, count_of, read_body, varint

MOST_INFLATED = 64 * 2**20
"""Inflated bytes that a reader holds at most, where records are of :data:`MOST_RECORD_BYTES`."""
MOST_RECORD_BYTES = 16 * 2**20
"""Length up to which a record is kept, unless the stream's records may be longer."""
_PIECE_BYTES = 2**21
_PIECE_RECORDS = 2**16
_STEP = 2**14
"""Bytes asked for at a time."""
_INPUT = 2**10
"""Compressed bytes given at a time: libraries copy what is left over."""
_BARREN = 2**8
"""Steps without output, as of empty frames, after which there is a pause."""
_MOST_WINDOW = 2**27
"""Largest window of zstd, which the library holds beside the pieces.

It is the limit of Java's client, and the window of level 22. A batch that inflates to less takes less.
"""
_XERIAL = b"\x82SNAPPY\0"
_XERIAL_BYTES = 16
_CUT_OFF = 1
"""Length of a value that is not there."""


def most_record_bytes(payload: int) -> int:
    """Return the longest record that is kept, by a bound on payloads.

    The rest is for keys and headers, and for payloads whose form has no bound.
    """
    return max(MOST_RECORD_BYTES, payload + MOST_RECORD_BYTES // 16)


class _Broken(Exception):
    """Bytes that are not of their codec."""


_Errors = (_Broken, zlib.error, zstandard.ZstdError, cramjam.DecompressionError, RuntimeError)


@dataclass
class Piece:
    """Records of a compressed batch, read as if they were a batch that is not.

    Attributes
    ----------
    base_offset, records_count, last_offset_delta, leader_epoch : int
        As of a batch; a piece without records is a place to pause.
    inflated : int
        Bytes that were inflated for it.
    """

    _buffer: bytes | bytearray
    base_offset: int
    records_count: int
    last_offset_delta: int
    leader_epoch: int
    inflated: int
    _pos: int = 0


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes | None:
        """Return up to ``size`` bytes, none at the end; or None, for a pause."""


class _Fed:
    """Stream of a library's function that takes some input and returns some output."""

    def __init__(self, data: memoryview) -> None:
        self._data, self._at = data, 0
        self.step = _INPUT
        """Bytes given at a time."""

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
        """Return output, and the number of bytes that it took."""
        raise NotImplementedError


class _Gzip(_Fed):
    def __init__(self, data: memoryview) -> None:
        super().__init__(data)
        self._member = zlib.decompressobj(wbits=31)

    def _is_complete(self) -> bool:
        if not self._member.eof:
            return False
        # Java ignores what follows and is no member; here that ends the stream too.
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
    """Blocks as Java frames them, or a single one, as librdkafka writes it."""

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
            # The library makes room for as much as the block claims.
            if cramjam.snappy.decompress_raw_len(block) > self._most:
                raise _Broken
            self._block = memoryview(cramjam.snappy.decompress_raw(block))
        return None


def _opened(codec: int, data: memoryview, most_bytes: int) -> _Stream:
    match codec:
        case 1:
            return _Gzip(data)
        case 2:
            # A block of librdkafka is a whole batch.
            return _Snappy(data, MOST_INFLATED // 4 + most_bytes)
        case 3:
            return _Lz4(data)
        case 4:
            inflater = zstandard.ZstdDecompressor(max_window_size=_MOST_WINDOW)
            stream: _Stream = inflater.stream_reader(data, read_across_frames=True)
            return stream
    raise _Broken


def _chunks(codec: int, data: memoryview, most_bytes: int) -> Iterator[bytes]:
    """Yield the inflated bytes up to the end, or to where they break off; empty ones are pauses."""
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
    # The call that failed has kept its last bytes to itself: once more, with these one by one. (Of
    # zstd the last byte can be missing, with the record that it ends.)
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
    """Records of one batch, cut from its inflated bytes."""

    def __init__(self, batch: Any, most_bytes: int) -> None:
        data = memoryview(batch._buffer)[batch._pos :]
        self._chunks = _chunks(batch.compression_type, data, most_bytes)
        self._most = most_bytes
        self._left = batch.records_count
        self._buffer = bytearray()
        self._is_complete = False

    def __iter__(self) -> Iterator[tuple[bytes | bytearray, int, int]]:
        """Yield bytes of whole records, their number, and the bytes inflated for them.

        Without records it is a pause. It ends with the last record, or where the next cannot be found.
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
            except (IndexError, MalformedRecord):
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
        """Inflate until the buffer has a size, or all is there; yield pauses."""
        unseen = 0
        while len(self._buffer) < size and not self._is_complete:
            chunk = next(self._chunks, None)
            if chunk is None:
                self._is_complete = True
                return
            self._buffer += chunk
            unseen += 0 if chunk else _STEP
            if unseen >= _PIECE_BYTES:
                yield b"", 0, unseen
                unseen = 0

    def _count(self) -> tuple[int, int]:
        if not self._buffer:
            return 0, 0
        # Imported where records are read: a clock, which each worker starts, does without.
        import numpy as np

        from streaming_pca.kernels.plain_records import whole_records

        view = np.frombuffer(self._buffer, np.uint8)
        view.flags.writeable = False
        count, end = whole_records(view, min(self._left, _PIECE_RECORDS), self._most)
        return int(count), int(end)

    def _pass_over(self, start: int, end: int) -> Iterator[tuple[bytes, int, int]]:
        """Drop a record that is too long; yield one without value at the end."""
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
    """Return a record that ends where its value should begin."""
    body, record = bytearray(b"\0\0"), bytearray()
    encode_varint(delta, body.append)
    encode_varint(-1 if key is None else len(key), body.append)
    body += key or b""
    encode_varint(_CUT_OFF, body.append)
    encode_varint(len(body), record.append)
    return bytes(record + body)


def inflate(batch: Any, most_bytes: int = MOST_RECORD_BYTES) -> Iterator[Piece]:
    """Yield the records that a compressed batch counts, as batches that are not compressed.

    Parameters
    ----------
    batch : DefaultRecordBatch
        Format 2, its records not read yet.
    most_bytes : int
        Longest record that is kept.

    Raises
    ------
    CorruptRecordError
        As of :func:`~streaming_pca.service.kafka.record_batches.parse_batch`.
    """
    base, count, span = count_of(batch)
    epoch = batch.leader_epoch
    keep = False
    if count < span:
        # Whether a compacted batch's own offsets rise is known at its end: it is inflated twice.
        last, seen, keep = -1, 0, True
        for data, some, inflated in _Records(batch, most_bytes):
            piece = Piece(data, base, some, some - 1, epoch, inflated)
            deltas = [last, *(delta for delta, *_ in bodies(piece, some))]
            keep = keep and all(a < b for a, b in pairwise(deltas))
            last, seen = deltas[-1], seen + some
            yield Piece(b"", base, 0, -1, epoch, inflated)
        keep = keep and seen == count and last < span
    at = 0
    for data, some, inflated in _Records(batch, most_bytes):
        first, number = (base, span) if keep else (base + at, some)
        yield Piece(data, first, some, number - 1, epoch, inflated)
        at += some
    if at < count:
        yield Piece(b"", base + at, count - at, count - at - 1, epoch, 0)
