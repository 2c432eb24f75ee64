"""Foreign messages on a stream's own topics are refused with one line, before any release."""

from __future__ import annotations

import hashlib
import json
import zipfile
from typing import Any

from tests.kafka.admin.test_backup import export, refused
from tests.kafka.child import Strike
from tests.kafka.conftest import Capture, Make
from tests.kafka.security import hostile
from tests.kafka.stream import Stream

TWO: dict[str, Any] = {"partitions": 1, "options": {"n_records": 400, "n_batches": 2}}


def write(stream: Stream, topic: str, value: bytes, *headers: hostile.Header) -> None:
    """Write a message under the key of a state's first chunk."""
    record = hostile.record(value, key=b"0", headers=headers)
    error, _ = hostile.send(stream.settings.kafka.bootstrap_servers, topic, hostile.batch([record]))
    assert error == 0


def write_state(stream: Stream, header: bytes, chunks: bytes = b"1", has_digest: bool = True) -> None:
    """Write a state of one chunk with the right digest."""
    value = len(header).to_bytes(4, "big") + header
    digest = hashlib.sha256(value).hexdigest().encode() if has_digest else None
    headers = [(b"batch", b"1"), (b"chunks", chunks), (b"digest", digest)]
    write(stream, stream.settings.stream.state_topic, value, *headers)


def is_refused(stream: Stream, reported: str) -> None:
    """Check that a worker ends with one line, and writes nothing."""
    names = (stream.settings.stream.ledger_topic, stream.settings.stream.releases_topic)
    before = [len(stream.messages(name)) for name in names]
    assert reported in stream.start().refusal()
    assert [len(stream.messages(name)) for name in names] == before


NESTED = b'{"a":' * 50_000
FORGED = json.dumps({"topic_id": "t", "stream": "s", "batch": 1e308, "positions": {}, "salt": ""}).encode()


def test_hostile_states_and_entries_are_refused_with_one_line(make_stream: Make) -> None:
    """A worker, killed after its first of two batches, restarts over each state and entry."""
    stream = make_stream(**TWO)
    stream.produce_vectors(stream.vectors(400))
    stream.crash(Strike("publish.5 read back"))
    write_state(stream, NESTED)
    is_refused(stream, "state message cannot be read: maximum recursion depth exceeded")
    write_state(stream, FORGED, has_digest=False)
    is_refused(stream, "cannot be read")
    write_state(stream, FORGED, chunks=b"9" * 15)
    is_refused(stream, "cannot be read")
    # A text that would clear a terminal.
    write(stream, stream.settings.stream.ledger_topic, b'{"kind":"\\u001b[2J\\n' + b"x" * 5000 + b'"}')
    is_refused(stream, "not a ledger entry")
    assert "\x1b" not in stream.children[-1].log


def test_a_hostile_backup_is_refused_with_one_line(make_stream: Make, capfd: Capture) -> None:
    """A file of 300 KB that would expand to 300 MB."""
    stream = make_stream(**TWO)
    path = export(capfd, stream)
    with zipfile.ZipFile(path) as archive:
        manifest = json.loads(archive.read("manifest.json"))
    manifest["ledger"]["size"] = 300 * 2**20
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("manifest.json", json.dumps(manifest))
        archive.writestr("ledger.jsonl", bytes(300 * 2**20))
    refused(capfd, stream, path, 2, "would decompress to more than 100 times its size")
