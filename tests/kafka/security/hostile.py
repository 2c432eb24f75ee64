"""Hand-written client that builds record batches byte by byte, and sends them unchanged."""

from __future__ import annotations

import socket
import struct
import time
from collections.abc import Iterable, Sequence

from kafka.record.util import calc_crc32c

from tests.waiting import LIMIT

Header = tuple[bytes | None, bytes | None]


def varint(value: int, size: int = 1) -> bytes:
    """Encode in zig-zag, in at least ``size`` bytes: overlong encodings are the same number."""
    return unsigned((value << 1) ^ (value >> 63), size)


def unsigned(raw: int, size: int = 1) -> bytes:
    out = bytearray()
    while raw > 0x7F or size > 1:
        out.append(0x80 | raw & 0x7F)
        raw >>= 7
        size -= 1
    return bytes([*out, raw])


def sized(data: bytes | None, size: int = 1) -> bytes:
    return varint(-1, size) if data is None else varint(len(data), size) + data


def record(
    value: bytes | None,
    delta: int = 0,
    *,
    key: bytes | None = None,
    headers: Sequence[Header] = (),
    attributes: int = 0,
    body: bytes | None = None,
    length: int | None = None,
) -> bytes:
    """Return one record of format 2; ``body`` or ``length`` replace the computed values."""
    if body is None:
        parts = [bytes([attributes]), varint(0), varint(delta), sized(key), sized(value)]
        parts += [varint(len(headers)), *(sized(part) for pair in headers for part in pair)]
        body = b"".join(parts)
    return varint(len(body) if length is None else length) + body


def batch(
    records: Iterable[bytes],
    *,
    base: int = 0,
    last_delta: int | None = None,
    count: int | None = None,
    attributes: int = 0,
    producer: tuple[int, int, int] = (-1, -1, -1),
) -> bytes:
    """Return a batch of format 2 with the right checksum."""
    records = list(records)
    count = len(records) if count is None else count
    last_delta = count - 1 if last_delta is None else last_delta
    now = int(time.time() * 1000)
    checked = struct.pack(">hiqqqhii", attributes, last_delta, now, now, *producer, count) + b"".join(records)
    crc = calc_crc32c(memoryview(checked))
    return struct.pack(">qiibI", base, 9 + len(checked), -1, 2, crc) + checked


def send(bootstrap: str, topic: str, data: bytes, partition: int = 0) -> tuple[int, int]:
    """Produce a batch, and return its error code and base offset.

    The request has version 7, which zstd needs.
    """
    name, client = topic.encode(), b"hostile"
    body = struct.pack(">hhih", 0, 7, 1, len(client)) + client
    body += struct.pack(">hhi", -1, -1, 10_000)
    body += struct.pack(">ih", 1, len(name)) + name + struct.pack(">iii", 1, partition, len(data)) + data
    host, _, port = bootstrap.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT) as connection:
        connection.sendall(struct.pack(">i", len(body)) + body)
        answer = _exactly(connection, struct.unpack(">i", _exactly(connection, 4))[0])
    start = 4 + 4 + 2 + len(name) + 4
    _, error, offset = struct.unpack_from(">ihq", answer, start)
    return int(error), int(offset)


def _exactly(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        more = connection.recv(size - len(data))
        assert more, "the broker hung up"
        data += more
    return data
