"""Encoders of compressed record batches, in the formats that clients write."""

from __future__ import annotations

import gzip
import struct
import zlib
from collections.abc import Callable, Iterable
from typing import Any

import cramjam
import lz4.frame
import zstandard

from tests.kafka.security import hostile

XERIAL = b"\x82SNAPPY\0" + struct.pack(">ii", 1, 1)


def plain_snappy(data: bytes) -> bytes:
    """Return one block, as librdkafka writes it."""
    return bytes(cramjam.snappy.compress_raw(data))


def blocks(data: bytes, size: int = 2**15) -> bytes:
    parts = [plain_snappy(data[i : i + size]) for i in range(0, len(data), size)]
    return b"".join(struct.pack(">i", len(part)) + part for part in parts)


def xerial(data: bytes) -> bytes:
    """Return blocks after a header, as Java writes them."""
    return XERIAL + blocks(data)


def zstd(data: bytes) -> bytes:
    """Return a frame without its size, as from a stream."""
    made = zstandard.ZstdCompressor().compressobj()
    return made.compress(data) + made.flush()


CODECS: dict[str, tuple[int, Callable[[bytes], bytes]]] = {
    "gzip": (1, gzip.compress),
    "snappy": (2, plain_snappy),
    "xerial": (2, xerial),
    "lz4": (3, lambda data: lz4.frame.compress(data, block_linked=False)),
    "zstd": (4, zstd),
}
"""Number and encoder of each codec, with both forms of snappy."""


def compressed(codec: str, records: Iterable[bytes], **how: Any) -> bytes:
    """Return a batch of compressed records."""
    records = list(records)
    number, encode = CODECS[codec]
    how = {"count": len(records)} | how
    how["attributes"] = how.get("attributes", 0) | number
    return hostile.batch([encode(b"".join(records))], **how)


def bomb(codec: str, size: int, other: bytes) -> bytes:
    """Return bytes that inflate to a record of zeros and another record, without inflating them."""
    body, zeros = b"\0\0\0\x02k" + hostile.varint(size), bytes(2**20)
    head = hostile.varint(len(body) + size + 1) + body
    pieces = [head, *[zeros] * (size // len(zeros)), b"\0" + other]
    if codec == "xerial":
        zero = blocks(zeros, len(zeros))
        return XERIAL + blocks(head) + zero * (size // len(zeros)) + blocks(b"\0" + other)
    if codec == "lz4":
        frame = lz4.frame.LZ4FrameCompressor(block_linked=False)
        return b"".join([frame.begin(), *map(frame.compress, pieces), frame.flush()])
    made = zstandard.ZstdCompressor().compressobj() if codec == "zstd" else zlib.compressobj(1, wbits=31)
    return b"".join([*map(made.compress, pieces), made.flush()])
