"""JSON objects give the same releases as octets, with users by field and a contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka import KafkaProducer
from kafka.admin import NewTopic
from numpy.typing import NDArray

from streaming_pca.client import Producer
from streaming_pca.data.features.feature import Feature
from streaming_pca.data.features.row_map import RowMap
from streaming_pca.privacy.ledger.entries import Reserved
from tests.cli.command import call
from tests.docs.test_recipes import kafkajs, need
from tests.kafka.conftest import Capture, Make
from tests.kafka.stream import Stream, check_alike, check_books, run_together
from tests.waiting import run_to_success

FEATURES: list[dict[str, Any]] = [
    {"name": "age", "path": "user.age", "bounds": [0, 120], "missing": 40},
    {"name": "spent", "bounds": [0, 1000], "transform": "log1p"},
    {"name": "country", "categories": ["DE", "FR"]},
    {"name": "seen", "parts": ["hour"], "unit": "ms"},
]
COUNT = 60
ROWS = RowMap([Feature(**each) for each in FEATURES])


def visits(count: int = COUNT, seed: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    return [
        {
            "user": {"id": f"user-{i}", "age": None if i % 7 == 0 else int(rng.integers(18, 130))},
            "spent": round(float(rng.exponential(90)), 2),
            "country": str(rng.choice(["DE", "FR", "PL"])),
            "seen": int(rng.integers(0, 10**12)),
            "note": "x" * int(rng.integers(0, 50)),
        }
        for i in range(count)
    ]


def rows_of(records: list[dict[str, Any]]) -> NDArray[np.float64]:
    values = [
        [record["user"]["age"] for record in records],
        *([record[name] for record in records] for name in ("spent", "country", "seen")),
    ]
    return ROWS.rows(values, len(records))


def encoded(records: list[dict[str, Any]]) -> list[bytes]:
    return [json.dumps(record).encode() for record in records]


def plain(make_stream: Make, **how: Any) -> Stream:
    """Make a stream of the same rows as octets, with settings derived from the features."""
    derived = {"feature_names": ROWS.names, "bounds": ROWS.bounds, "scale": ROWS.scale, "dtype": "float64"}
    return make_stream(dim=ROWS.dim, **derived, **(BATCHES | how))


BATCHES: dict[str, Any] = {"options": {"n_records": COUNT, "n_batches": 2}, "partitions": 2}


def named(make_stream: Make, **how: Any) -> Stream:
    return make_stream(dim=ROWS.dim, features=FEATURES, **(BATCHES | how))


def run(*streams: Stream) -> None:
    run_together(*streams, noise=False)
    for stream in streams:
        check_books(stream)


def write_as_it_is(stream: Stream, values: list[bytes], compression: str) -> None:
    """Write a topic with the broker's default settings, as its producers do."""
    topic, how = stream.settings.stream.input, {"compression_type": compression, "linger_ms": 50}
    stream.delete("input")
    with stream.admin() as admin:
        admin.create_topics([NewTopic(topic, stream.partitions, 1)])
    with KafkaProducer(bootstrap_servers=stream.settings.kafka.bootstrap_servers, **how) as producer:
        for i, value in enumerate(values):
            producer.send(topic, value, partition=i % stream.partitions)
    stream.find()
    stream.open(("1", "1e-6"))


def test_objects_give_the_releases_of_their_rows(make_stream: Make) -> None:
    objects, octets = named(make_stream, cap=None), plain(make_stream)
    records = visits()
    # A hostile record is only null: its row is missing among the octets.
    values = encoded(records)
    values[5], values[6] = b'{"user": 7}', b"[" * 5000
    rows = rows_of(records)
    rows[5:7] = np.nan
    write_as_it_is(objects, values, "lz4")
    octets.produce([row.tobytes() for row in rows])
    run(objects, octets)
    for found, wanted in zip(objects.releases(), octets.releases(), strict=True):
        np.testing.assert_allclose(found.components, wanted.components, atol=1e-6)
        np.testing.assert_allclose(found.explained_variance, wanted.explained_variance)
        assert tuple(found.feature_names) == ROWS.names
        assert found.bounds == wanted.bounds
    contract = objects.own(Reserved)[0].promise
    assert contract["content_type"] == "application/json"
    assert contract["features"]["length"] == len(FEATURES)
    assert "features" not in octets.own(Reserved)[0].promise


def test_the_producer_of_a_stream_sends_the_same_rows(make_stream: Make) -> None:
    objects, mapped = named(make_stream, partitions=1), named(make_stream, partitions=1)
    records = visits()
    objects.produce(encoded(records), headers=())
    with Producer.for_stream(mapped.changed("stream", dtype="float64")) as producer:
        producer.send(records[0])
        producer.send(records[1:])
        with pytest.raises(ValueError, match="record 1 of 2: field 'spent' is missing"):
            producer.send([records[0], {"country": "DE", "seen": 0}])
    # Sent messages have a header with their format, so that one stream can read both.
    kinds = {dict(m.headers)["content-type"] for m in mapped.messages(mapped.settings.stream.input)}
    assert kinds == {b"application/octet-stream"}
    mapped.settings = mapped.changed("stream", dtype="float64")
    run_together(objects, mapped, noise=False)
    check_alike(objects.releases(), mapped.releases())


def test_a_field_names_the_users_that_keys_name_elsewhere(make_stream: Make) -> None:
    users: dict[str, Any] = {"privacy_unit": "user"}
    by_field = named(make_stream, user_field="user.id", **users)
    by_key = named(make_stream, **users)
    records = visits()
    for i in range(0, COUNT, 3):
        # Only one of a user's two records in a batch counts.
        records[i]["user"]["id"] = records[i + 1]["user"]["id"]
    keys = [record["user"]["id"].encode() for record in records]
    # Its keys differ from the users.
    by_field._send(((b"the key", value, ()) for value in encoded(records)), None)
    by_key._send(((key, value, ()) for key, value in zip(keys, encoded(records), strict=True)), None)
    run(by_field, by_key)
    check_alike(by_field.releases(), by_key.releases(), 1e-9)
    assert by_field.own(Reserved)[0].promise["user_field"] == ["user", "id"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"features": [FEATURES[0] | {"missing": 41}, *FEATURES[1:]]}, "features is not what the ledger has"),
        ({"format": "octets"}, "stream.format is"),
    ],
)
def test_another_map_is_another_stream(make_stream: Make, changes: dict[str, Any], words: str) -> None:
    stream = named(make_stream, options={"n_records": 2 * COUNT, "n_batches": 2})
    stream.produce(encoded(visits()), headers=())
    stream.run_until("batch 1 released", noise=False)
    assert words in stream.start(stream.changed(**changes)).refusal()


KAFKAJS = """
import { CompressionTypes, Kafka } from "kafkajs";
import { readFileSync } from "fs";

const [broker, topic, file] = process.argv.slice(2);
const producer = new Kafka({ brokers: [broker], logLevel: 1 }).producer();
const visits = JSON.parse(readFileSync(file));
await producer.connect();
await producer.send({
  topic,
  compression: CompressionTypes.GZIP,
  messages: visits.map((visit, i) => {
    return { key: visit.user.id, partition: i % 2, value: JSON.stringify(visit) };
  }),
});
await producer.disconnect();
"""


def test_what_kafkajs_writes_gives_the_releases_of_its_rows(make_stream: Make, tmp_path: Path) -> None:
    objects, octets = named(make_stream, privacy_unit="user"), plain(make_stream)
    records = visits()
    (tmp_path / "node_modules").symlink_to(kafkajs())
    (tmp_path / "produce.mjs").write_text(KAFKAJS)
    (tmp_path / "visits.json").write_text(json.dumps(records))
    topic = objects.settings.stream.input
    broker = str(objects.settings.kafka.bootstrap_servers)
    command = [need("node"), "produce.mjs", broker, topic, "visits.json"]
    run_to_success(command, tmp_path)
    octets.produce([row.tobytes() for row in rows_of(records)])
    run(objects, octets)
    check_alike(objects.releases(), octets.releases())


def test_a_file_of_objects_is_sent_as_it_stands(make_stream: Make, tmp_path: Path, capfd: Capture) -> None:
    stream = named(make_stream, privacy_unit="user", partitions=1)
    config = ("--config", stream.write_config())
    values = encoded(visits())
    values[3] = b'{"spent": "much"}'
    (tmp_path / "visits.jsonl").write_bytes(b"\n".join([*values, b"", b""]))
    sent = call(capfd, "produce", tmp_path / "visits.jsonl", *config, "--key", "user.id")
    assert sent.returncode == 0, sent.stderr
    assert f"{COUNT} records sent to" in sent.stdout
    assert "1 of 60 messages are null records: `streaming-pca features check` shows why" in sent.stderr
    assert "1 of 60 messages have no key" in sent.stderr
    messages = stream.messages(stream.settings.stream.input)
    assert sorted(m.value for m in messages) == sorted(values)
    by_value = {m.value: m.key for m in messages}
    assert (by_value[values[3]], by_value[values[5]]) == (None, b"user-5")
    for wrong, words in (
        ((), "makes messages without a key null: name the field of the users with --key"),
        (("--key", "user.name"), "no object has a text or a whole number at 'user.name': correct --key"),
        (("--rows-per-message", "2"), "leave out all options but --key"),
        (("--columns", "a"), "leave out all options but --key"),
    ):
        refused = call(capfd, "produce", tmp_path / "visits.jsonl", *config, *wrong)
        assert refused.returncode == 2
        assert words in refused.stderr
    for content, words in (
        (b"\n", "has no line"),
        (values[0] + b"\n\n{oops", "none.jsonl, line 3: is not a JSON object (JSON is malformed"),
        (values[0] + b"\n[1]", "none.jsonl, line 2: is not a JSON object"),
        (values[3] + b"\n{}", "no object makes a record: `streaming-pca features check` shows why"),
    ):
        (tmp_path / "none.jsonl").write_bytes(content)
        refused = call(capfd, "produce", tmp_path / "none.jsonl", *config, "--key", "user.id")
        assert (refused.returncode, words in refused.stderr) == (2, True), refused.stderr
    assert len(stream.messages(stream.settings.stream.input)) == COUNT
