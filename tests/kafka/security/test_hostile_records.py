"""Records made to exhaust a worker become null records in place, and memory stays bounded."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np

from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.service.input.partition_reader import _FETCH_BYTES
from tests.kafka.conftest import Make
from tests.kafka.security import hostile
from tests.kafka.stream import OCTETS, Stream, check_books

HUGE = 100_000_000
"""Octets of the largest message: its response exceeds the client's own limit of 100,000,000."""
INVALID_RECORD = 87
COUNT = 400
TWO: dict[str, Any] = {"partitions": 1, "options": {"n_records": COUNT, "n_batches": 2}}
PLAIN = [(name.encode(), value) for name, value in OCTETS]


def write(stream: Stream, *records: bytes) -> int:
    """Write records unchanged, in one batch, and return the broker's error."""
    kafka, name = stream.settings.kafka, stream.settings.stream.input
    error, _ = hostile.send(kafka.bootstrap_servers, name, hostile.batch(records))
    return error


def typed(content_type: str) -> list[hostile.Header]:
    return [(b"content-type", content_type.encode())]


def nulls(value: bytes) -> dict[str, bytes]:
    """Return records that are read as null, by name; ``value`` belongs to a good record."""
    shape = b"{'descr': '<f8', 'fortran_order': False, 'shape': (1099511627776, 5), }\n"
    npy = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(shape)) + shape
    return {
        "a huge value": hostile.record(bytes(HUGE), headers=PLAIN),
        "a huge header": hostile.record(b"", headers=[*PLAIN, (b"x", bytes(HUGE // 2))]),
        "half a million headers": hostile.record(value, headers=[(b"", b"")] * 500_000),
        "five thousand headers": hostile.record(
            value, headers=[(b"h%d" % i, b"x" * 100) for i in range(5000)]
        ),
        "a value without its last octet": hostile.record(value[:-1], headers=PLAIN),
        "one more octet": hostile.record(value + b"\0", headers=PLAIN),
        "an infinity": hostile.record(np.full(5, np.inf, "<f4").tobytes(), headers=PLAIN),
        "nested lists": hostile.record(
            b'{"x": ' + b"[" * 400 + b"]" * 400 + b"}", headers=typed("application/json")
        ),
        "a long integer": hostile.record(
            b'{"x": [' + b"9" * 600 + b", 1, 1, 1, 1]}", headers=typed("application/json")
        ),
        "an array of a terabyte": hostile.record(npy, headers=typed("application/x-npy")),
        "another program's": hostile.record(
            b"\0\0\0\0\x07" + json.dumps({"a": 1}).encode(), headers=typed("avro/binary")
        ),
    }


def refused(value: bytes) -> list[bytes]:
    """Return records that the broker itself refuses."""
    start = b"\0\0\0\x01"
    bodies = [b"", start + hostile.varint(2**30) + value, start + hostile.varint(-(2**31)) + value]
    return [hostile.record(None, body=body) for body in bodies]


def test_hostile_records_are_null_in_their_places_within_bounded_memory(make_stream: Make) -> None:
    """A stream with plain null records there has the same releases, and uses less memory."""
    attacked, plain = make_stream(**TWO), make_stream(**TWO)
    attacked.set_configs(attacked.settings.stream.input, max_message_bytes=HUGE + 2**20)
    x = attacked.vectors(COUNT)
    bad = list(nulls(x[0].tobytes()).items())
    places = dict(zip(np.linspace(3, COUNT - 1, len(bad)).astype(int).tolist(), bad, strict=True))
    assert all(write(attacked, record) == INVALID_RECORD for record in refused(x[0].tobytes()))
    good = [hostile.record(row.tobytes(), headers=PLAIN) for row in x]
    # A record with a large key is valid.
    assert 5 not in places
    good[5] = hostile.record(x[5].tobytes(), key=bytes(2**20), headers=PLAIN)
    done = 0
    for place, (_, record) in places.items():
        assert write(attacked, *good[done:place]) == write(attacked, record) == 0
        done = place + 1
    assert done == COUNT
    plain.produce(b"null" if i in places else row.tobytes() for i, row in enumerate(x))

    peaks = []
    for stream in (plain, attacked):
        peaks.append(stream.run(noise=False).peak)
        check_books(stream)
        ranges = [(r.start, r.end, r.count) for e in stream.own(Reserved) for r in e.ranges]
        assert ranges == [(0, COUNT // 2, COUNT // 2), (COUNT // 2, COUNT, COUNT // 2)]
    assert attacked.results() == plain.results()
    used = peaks[1] - peaks[0]
    print(f"{used / 2**20:.0f} MiB over {peaks[0] / 2**20:.0f}")
    # Three copies, and a margin for library pages, which one of the workers may share and the other not.
    assert used < 3 * HUGE + 6 * _FETCH_BYTES + 64 * 2**20
