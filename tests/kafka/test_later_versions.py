"""Topics written by a later version stop a worker with one line, before it publishes."""

from __future__ import annotations

import hashlib
import json
from contextlib import closing

from streaming_pca.privacy.ledger.entries import Abandoned, encode_entry
from streaming_pca.service.kafka.clients import plain_producer
from tests.kafka.conftest import MakeStream
from tests.kafka.stream import Stream
from tests.waiting import LIMIT

BATCHES = {"options": {"n_records": 200, "n_batches": 2}}


def refusal(stream: Stream) -> str:
    """Run a worker on waiting records, and return its only error line."""
    topics = (stream.settings.stream.ledger_topic, stream.settings.stream.releases_topic)
    before = [[m.value for m in stream.messages(topic)] for topic in topics]
    stream.produce_vectors(stream.vectors(200))
    worker = stream.start()
    assert worker.ends() == 2, worker.log
    assert "Traceback" not in worker.log
    assert [[m.value for m in stream.messages(topic)] for topic in topics] == before
    (line,) = [line for line in worker.log.splitlines() if " ERROR " in line]
    return line


def test_a_later_ledger_entry(make_stream: MakeStream) -> None:
    stream = make_stream("later-ledger", **BATCHES)
    entry = Abandoned(
        topic_id=stream.topic_id,
        job=stream.settings.stream.name,
        batch=1,
        reason="of a later version",
        previous="0" * 64,
    )
    value = json.dumps(json.loads(encode_entry(entry)) | {"version": 3}, sort_keys=True)
    with closing(plain_producer(stream.settings.kafka)) as producer:
        producer.send(stream.settings.stream.ledger_topic, value.encode()).get(LIMIT)
    assert "or a newer version of this one does" in refusal(stream)


def test_a_later_state(make_stream: MakeStream) -> None:
    stream = make_stream("later-state", **BATCHES)
    stream.produce_vectors(stream.vectors(100))
    worker = stream.start()
    worker.logs("batch 1 released")
    worker.signal(15)
    assert worker.ends() == 0, worker.log

    (chunk,) = stream.messages(stream.settings.stream.state_topic)
    value = chunk.value.replace(b'"version": 1', b'"version": 2')
    assert value != chunk.value
    headers = dict(chunk.headers) | {"digest": hashlib.sha256(value).hexdigest().encode()}
    with closing(plain_producer(stream.settings.kafka)) as producer:
        producer.send(
            stream.settings.stream.state_topic, value, key=chunk.key, headers=list(headers.items())
        ).get(LIMIT)
    assert "it is of version 2, and this program reads version 1: update streaming-pca" in refusal(stream)
