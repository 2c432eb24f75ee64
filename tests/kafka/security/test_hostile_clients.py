"""Records that no library would write neither move a position nor end a stream."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import numpy as np

from streaming_pca.privacy.ledger.entries import Reserved
from streaming_pca.service.topics.find import create_topics
from tests.kafka.child import Strike
from tests.kafka.conftest import Make
from tests.kafka.security import hostile
from tests.kafka.security.codecs import CODECS, bomb
from tests.kafka.stream import Stream, run_together
from tests.waiting import LIMIT

TWO: dict[str, Any] = {"partitions": 1, "options": {"n_records": 400, "n_batches": 2}}


def write(stream: Stream, records: list[bytes]) -> int:
    """Write a hand-made batch to the only partition, and return its base offset."""
    kafka, topic = stream.settings.kafka, stream.settings.stream.input
    error, offset = hostile.send(kafka.bootstrap_servers, topic, hostile.batch(records))
    assert error == 0
    return offset


def ranges(stream: Stream) -> list[tuple[int, int, int]]:
    """Return each batch's range on partition 0, with its count."""
    return [(r.start, r.end, r.count) for e in stream.own(Reserved) for r in e.ranges]


def test_a_position_is_none_that_a_record_names(make_stream: Make) -> None:
    """150 aborted records, 199 honest records, and a record with an offset delta of -100."""
    stream = make_stream(**TWO)
    with closing(stream.transactional()) as producer:
        producer.begin_transaction()
        for _ in range(150):
            producer.send(stream.settings.stream.input, b"never", partition=0)
        producer.flush(LIMIT)
        producer.abort_transaction()
    x = stream.vectors(400)
    stream.produce_vectors(x[:199])
    assert write(stream, [hostile.record(x[199].tobytes(), -100)]) == 350
    stream.produce_vectors(x[200:])
    stream.crash(Strike("publish.5 read back"))
    stream.run()
    assert ranges(stream) == [(0, 351, 200), (351, 551, 200)]


DELTAS = [(0, 1, 10**6), (0, 1, 2**31 - 1), (0, 1, -50), (0, 0, 0)]


def test_offsets_that_do_not_exist_are_not_charged(make_stream: Make) -> None:
    """The last records of a batch have forged offset deltas."""
    streams = {deltas: make_stream(**TWO) for deltas in DELTAS}
    for deltas, stream in streams.items():
        x = stream.vectors(400)
        stream.produce_vectors(x[:197])
        last = [hostile.record(row.tobytes(), d) for row, d in zip(x[197:200], deltas, strict=True)]
        assert write(stream, last) == 197
        stream.produce_vectors(x[200:])
    run_together(*streams.values())
    found = {deltas: ranges(stream) for deltas, stream in streams.items()}
    assert found == {deltas: [(0, 200, 200), (200, 400, 200)] for deltas in DELTAS}


def test_what_a_client_cannot_parse_is_a_record_in_its_place(make_stream: Make) -> None:
    stream = make_stream(**TWO)
    x = stream.vectors(400)
    long = b"\0\0\0" + hostile.sized(None)
    value = x[1].tobytes()
    raw = (len(value) << 1) | 5 << 32
    odd = [
        hostile.record(value, attributes=0x80),
        hostile.record(None, body=long + hostile.unsigned(raw, 5) + value + b"\0"),
        hostile.record(value, headers=[(b"\xff\xfe", b"x"), (b"content-type", None)]),
    ]
    for each in odd:
        write(stream, [each])
    stream.produce_vectors(x[3:])
    stream.run()
    assert ranges(stream) == [(0, 200, 200), (200, 400, 200)]


def test_a_key_counts_whatever_the_headers_are(make_stream: Make) -> None:
    """A user counted with a header that is not text does not count again."""
    stream = make_stream(
        partitions=1, privacy_unit="user", options={"n_records": 400, "n_batches": 2, "clip_radius": 1e6}
    )
    x = stream.vectors(400)
    names = [b"user %d" % (i % 200) for i in range(400)]
    for i in range(200):
        write(stream, [hostile.record(x[i].tobytes(), key=names[i], headers=[(b"\xff", b"1")])])
    stream.produce_keyed((names[i], x[i].tobytes()) for i in range(200, 400))
    stream.run()
    deltas = {
        m.key: np.frombuffer(m.value, "<u8").reshape(-1, 2)
        for m in stream.messages(stream.settings.stream.state_topic)
        if m.key.startswith(b"users.delta")
    }
    counted = [int(d.any(axis=1).sum()) for _, d in sorted(deltas.items())]
    assert counted == [200, 0]


def test_batches_that_inflate_to_any_size_are_null_records_in_bounded_memory(make_stream: Make) -> None:
    """Each of four 300 MiB records has a successor in its batch, which counts."""
    attacked, plain = make_stream(**TWO), make_stream(**TWO)
    name, bootstrap = attacked.settings.stream.input, attacked.settings.kafka.bootstrap_servers
    attacked.set_configs(name, compression_type="producer", max_message_bytes=2**25)
    x = attacked.vectors(400)
    attacked.produce_vectors(x[:100])
    for i, codec in enumerate(("gzip", "xerial", "lz4", "zstd")):
        other = hostile.record(x[101 + 2 * i].tobytes(), 1)
        data = bomb(codec, 300 * 2**20, other)
        sent = hostile.batch([data], count=2, attributes=CODECS[codec][0])
        assert hostile.send(bootstrap, name, sent) == (0, 100 + 2 * i)
    # The broker rejects data that cannot be inflated.
    broken = hostile.batch([b"not inflated"], count=2, attributes=4)
    assert hostile.send(bootstrap, name, broken)[0] != 0
    attacked.produce_vectors(x[108:])
    plain.produce(b"null" if 100 <= i < 108 and i % 2 == 0 else row.tobytes() for i, row in enumerate(x))
    peaks = []
    for stream in (plain, attacked):
        peaks.append(stream.run(noise=False).peak)
        assert ranges(stream) == [(0, 200, 200), (200, 400, 200)]
    assert [r.components for r in attacked.releases()] == [r.components for r in plain.releases()]
    print(f"{(peaks[1] - peaks[0]) / 2**20:.0f} MiB over {peaks[0] / 2**20:.0f}")
    assert peaks[1] - peaks[0] < 128 * 2**20


# -- retention, and recreated topics ---------------------------------------------------


def test_a_crash_in_the_first_batch_beside_a_quiet_partition(make_stream: Make) -> None:
    stream = make_stream(partitions=2, options={"n_records": 200, "n_batches": 2})
    x = stream.vectors(250)
    stream.produce_vectors(x[:50], to=lambda i: 1)
    stream.delete_before({1: 50})
    stream.produce_vectors(x[50:], to=lambda i: 0)
    stream.crash(Strike("reserve.5 read back"))
    stream.run()
    assert ranges(stream) == [(0, 100, 100), (100, 200, 100)]


def test_an_input_that_is_made_anew_is_noticed_at_the_next_tick(make_stream: Make) -> None:
    """It has the same end offset, and the next search for partitions is far away."""
    stream = make_stream(**TWO, worker={"partitions_seconds": 600.0})
    x = stream.vectors(400)
    stream.produce_vectors(x[:250])
    worker = stream.start()
    worker.logs("batch 1 released")
    stream.delete("input")
    create_topics(stream.settings.kafka, stream.settings.stream, stream.partitions, 1)
    stream.produce_vectors(x[:250])
    assert "was deleted and created again" in worker.refusal()
