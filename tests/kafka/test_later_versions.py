"""Topics written by a later version stop a worker with one line, before it publishes."""

from __future__ import annotations

import hashlib
import json

from streaming_pca.privacy.ledger.entries import Abandoned, encode_entry
from tests.kafka.conftest import Make
from tests.kafka.stream import Stream

BATCHES = {"options": {"n_records": 200, "n_batches": 2}}


def refusal(stream: Stream) -> str:
    """Run a worker on waiting records, and return its only error line."""
    topics = (stream.settings.stream.ledger_topic, stream.settings.stream.releases_topic)
    before = [[m.value for m in stream.messages(topic)] for topic in topics]
    stream.produce_vectors(stream.vectors(200))
    line = stream.start().refusal()
    assert [[m.value for m in stream.messages(topic)] for topic in topics] == before
    return line


def test_a_later_ledger_entry(make_stream: Make) -> None:
    stream = make_stream("later-ledger", **BATCHES)
    own = {"topic_id": stream.topic_id, "job": stream.settings.stream.name, "previous": "0" * 64}
    entry = Abandoned(**own, batch=1, reason="of a later version")
    value = json.dumps(json.loads(encode_entry(entry)) | {"version": 3}, sort_keys=True)
    stream.write(stream.settings.stream.ledger_topic, value.encode())
    assert "or a newer version of this one does" in refusal(stream)


def test_a_later_state(make_stream: Make) -> None:
    stream = make_stream("later-state", **BATCHES)
    stream.produce_vectors(stream.vectors(100))
    stream.run_until("batch 1 released")

    (chunk,) = stream.messages(stream.settings.stream.state_topic)
    value = chunk.value.replace(b'"version": 1', b'"version": 2')
    assert value != chunk.value
    headers = dict(chunk.headers) | {"digest": hashlib.sha256(value).hexdigest().encode()}
    stream.write(stream.settings.stream.state_topic, value, key=chunk.key, headers=list(headers.items()))
    assert "it is of version 2, and this program reads version 1: update streaming-pca" in refusal(stream)
