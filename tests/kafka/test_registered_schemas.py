"""Streams read records with schemas of a real registry, which adds versions and fails."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Sequence
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.release import Release
from streaming_pca.privacy.ledger.entries import Abandoned, Reserved
from tests.cli.test_app import closed_port
from tests.data.features.formats import message_type
from tests.kafka.child import Strike
from tests.kafka.conftest import Make, Name
from tests.kafka.stream import Child, Stream, check_alike, check_books, run_together
from tests.service.registry.apicurio import Apicurio
from tests.service.registry.faults import FaultyServer, answer
from tests.service.registry.java_producer import produce_avro
from tests.service.registry.producers import Producer, id_of, record_type

COUNT = 60
"""Records per batch."""
NAMES = ("a", "b", "c")
FEATURES: list[dict[str, Any]] = [{"name": name, "bounds": [-9, 9]} for name in NAMES]
BATCHES: dict[str, Any] = {"options": {"n_records": 3 * COUNT, "n_batches": 3}, "partitions": 2}
OLD = record_type("V", a="double", b="double", c="double")
# As long as OLD: with the wrong schema, its numbers would silently be read as other features.
NEW = record_type("V", c="double", b="double", a="double")
SHORT = record_type("V", a="double", b="double")


ROWS = np.random.default_rng(0).normal(size=(3 * COUNT, 3)).clip(-9, 9)


@pytest.fixture(scope="module")
def plain_releases(
    fork_server: None,
    kafka_bootstrap: str,
    unique_name: Name,
    tmp_path_factory: pytest.TempPathFactory,
    session_ms: int,
) -> list[Release]:
    """Return the releases of a stream of the same rows as octets, without noise."""
    described = StreamSettings(
        name="described", input="in", dim=3, rank=2, epsilon=1, delta=1e-6, features=FEATURES, format="avro"
    )
    stream = Stream.make(
        kafka_bootstrap,
        unique_name("plain"),
        tmp_path_factory.mktemp("plain"),
        session_ms=session_ms,
        dim=3,
        feature_names=NAMES,
        bounds=described.bounds,
        scale=described.scale,
        dtype="float64",
        **BATCHES,
    )
    stream.produce([row.tobytes() for row in ROWS])
    try:
        stream.run(noise=False)
    finally:
        stream.destroy()
    check_books(stream)
    return stream.releases()


class Scene:
    """Stream of a registry's records."""

    def __init__(
        self, make_stream: Make, apicurio: Apicurio, url: str | None = None, plain: Sequence[Release] = ()
    ) -> None:
        self.stream, self.plain = make_stream(dim=3, features=FEATURES, format="avro", **BATCHES), plain
        self.apicurio = apicurio
        self.producer = Producer(apicurio, self.stream.settings.stream.input)
        self.set_registry(url or apicurio.url)

    def set_registry(self, url: str) -> None:
        """Set the address of the registry in the settings of the stream."""
        registry = RegistrySettings(url=url, seconds=0.5, timeout_seconds=2)
        self.stream.settings = self.stream.settings.model_copy(update={"registry": registry})

    def produce(self, batch: int, schema: Any) -> None:
        """Write a batch's records as Confluent's producers do: the first record registers the schema."""
        self.write(self.encoded(batch, schema))

    def encoded(self, batch: int, schema: Any) -> list[bytes]:
        rows = ROWS[batch * COUNT : (batch + 1) * COUNT]
        return [self.producer.avro(schema, dict(zip(NAMES, row.tolist(), strict=True))) for row in rows]

    def write(self, values: list[bytes]) -> None:
        self.stream.produce(values, headers=[])

    def wait_for_releases(self, count: int, worker: Child) -> None:
        worker.until(f"{count} releases", lambda: len(self.stream.release_values()) >= count)
        assert worker.status() is None, worker.log

    def check(self) -> None:
        """Compare the releases with those of the stream of octets."""
        check_books(self.stream)
        assert [r.batch for r in self.stream.releases()] == [1, 2, 3]
        check_alike(self.stream.releases(), self.plain)

    @property
    def named(self) -> list[list[int]]:
        """Return the schema ids in the reservations."""
        return [entry.parameters["schemas"]["ids"] for entry in self.stream.own(Reserved)]


@pytest.fixture
def scene(make_stream: Make, apicurio: Apicurio, plain_releases: list[Release]) -> Iterator[Scene]:
    made = Scene(make_stream, apicurio, plain=plain_releases)
    with made.producer:
        yield made


def test_a_stream_reads_versions_that_come_while_it_runs(scene: Scene) -> None:
    scene.produce(0, OLD)
    worker = scene.stream.start(noise=False)
    scene.wait_for_releases(1, worker)
    # No record waits for the registry: the next listing has each record's version.
    scene.produce(1, NEW)
    scene.produce(2, OLD)
    worker.ends_well()
    scene.check()
    (first,) = scene.named[0]
    assert scene.named[1:] == [sorted([first, scene.producer.register(NEW)])] * 2
    assert "has new schemas" in worker.log


def test_confluents_java_producer_writes_what_a_stream_reads(scene: Scene, tmp_path: Path) -> None:
    broker, topic = str(scene.stream.settings.kafka.bootstrap_servers), scene.stream.settings.stream.input
    written = (OLD, ROWS[:COUNT]), (NEW, ROWS[COUNT:, ::-1])
    produce_avro(tmp_path, broker, scene.apicurio.url, topic, *written)
    scene.stream.run(noise=False)
    scene.check()
    client, subject = scene.producer.client, scene.producer.subject
    assert scene.named[-1] == [client.get_version(subject, version).schema_id for version in (1, 2)]


def test_a_batch_that_is_finished_later_is_decoded_as_it_was_reserved(scene: Scene) -> None:
    scene.produce(0, OLD)
    scene.stream.crash(Strike("reserve.4 commit"), noise=False)
    # The ids of a batch are those valid when it was cut.
    scene.produce(1, NEW)
    scene.produce(2, NEW)
    worker = scene.stream.run(noise=False)
    assert "finishing a batch that was reserved before" in worker.log
    scene.check()
    assert [len(ids) for ids in scene.named] == [1, 2, 2]
    assert scene.stream.own(Abandoned) == []


def test_a_batch_whose_schemas_are_gone_is_abandoned(scene: Scene) -> None:
    scene.produce(0, OLD)
    scene.stream.crash(Strike("reserve.4 commit"), noise=False)
    ((first,),) = scene.named

    def another_schema(request: BaseHTTPRequestHandler) -> None:
        found = {"id": first, "schema": json.dumps(NEW)}
        answer([1] if urlsplit(request.path).path.endswith("/versions") else found)(request)

    # A registry that has lost its data gives the first id to another schema.
    with FaultyServer(another_schema) as other:
        scene.set_registry(other.url)
        rows = ROWS[COUNT:, ::-1].astype("<f8")
        scene.write([b"\0" + first.to_bytes(4) + row.tobytes() for row in rows])
        worker = scene.stream.start(noise=False)
        scene.wait_for_releases(2, worker)
    (abandoned,) = scene.stream.own(Abandoned)
    assert abandoned.reason == "the schemas of its records are gone"
    assert "batch 1 abandoned: the schemas of its records are gone" in worker.log


def test_a_registry_that_does_not_answer_stops_no_stream(scene: Scene) -> None:
    scene.produce(0, OLD)
    worker = scene.stream.start(noise=False)
    scene.wait_for_releases(1, worker)
    values = scene.encoded(1, OLD)
    # It accepts connections but does not answer.
    scene.apicurio.pause()
    try:
        worker.logs("continuing with the known schemas")
        scene.write(values)
        scene.wait_for_releases(2, worker)
    finally:
        scene.apicurio.proceed()
    worker.logs("the schema registry answers again")
    scene.produce(2, NEW)
    worker.ends_well()
    scene.check()
    assert [len(ids) for ids in scene.named] == [1, 1, 2]


def message_classes(name: str, **fields: list[tuple[str, int]]) -> tuple[str, list[Any]]:
    """Describe messages in a package, and return its name and their classes."""
    stem, pool = name.replace("-", ""), descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name=f"{stem}.proto", package=stem, syntax="proto3")
    for each, described in fields.items():
        message_type(file, each, described)
    pool.Add(file)
    types = [pool.FindMessageTypeByName(f"{stem}.{each}") for each in fields]
    return stem, list(map(message_factory.GetMessageClass, types))


def test_protobuf_and_the_users_that_a_field_of_it_names(
    make_stream: Make, apicurio: Apicurio, unique_name: Name
) -> None:
    users: dict[str, Any] = {"dim": 2, "privacy_unit": "user", "partitions": 2}
    features = [{"name": name, "bounds": [-9, 9]} for name in "ab"]
    named = make_stream(format="protobuf", features=features, user_field="who", **users)
    named.settings = named.settings.model_copy(update={"registry": RegistrySettings(url=apicurio.url)})
    settings = named.settings.stream
    keyed = make_stream(
        feature_names=("a", "b"), bounds=settings.bounds, scale=settings.scale, dtype="float64", **users
    )
    _, (visit,) = message_classes(unique_name("f"), Visit=[("b", 1), ("who", 9), ("a", 1)])
    rows = np.random.default_rng(0).normal(size=(300, 2)).clip(-9, 9)
    # Only one of a user's two records in a batch counts.
    names = [f"u{i // 2}" for i in range(300)]
    with Producer(apicurio, settings.input) as producer:
        values = [
            producer.protobuf(visit(a=a, b=b, who=who))
            for (a, b), who in zip(rows.tolist(), names, strict=True)
        ]
    named._send(((b"the key", value, ()) for value in values), None)
    keyed.produce_keyed([(who.encode(), row.tobytes()) for who, row in zip(names, rows, strict=True)])
    keyed.settings = keyed.settings.model_copy(update={"registry": named.settings.registry})
    run_together(named, keyed, noise=False)
    for each in (named, keyed):
        check_books(each)
    check_alike(named.releases(), keyed.releases())
    first = named.own(Reserved)[0]
    assert first.promise["user_field"] == ["who"]
    assert first.parameters["schemas"]["ids"] == [id_of(values[0])]


@pytest.mark.parametrize(
    ("fault", "status", "line"),
    [
        ("away", 4, "does not answer (Connection refused)"),
        ("empty", 2, "the registry has no subject"),
        ("protobuf", 2, "is a schema of Protobuf"),
        ("lacking", 2, "no value at 'c'"),
    ],
)
def test_a_stream_without_schemas_learns_nothing_and_says_why(
    fault: str, status: int, line: str, make_stream: Make, apicurio: Apicurio
) -> None:
    scene = Scene(make_stream, apicurio, f"http://127.0.0.1:{closed_port()}" if fault == "away" else None)
    with scene.producer as producer:
        if fault == "protobuf":
            producer.register('syntax = "proto3"; message V { double a = 1; }', "PROTOBUF")
        elif fault == "lacking":
            producer.register(SHORT)
    scene.stream.produce([b"\0\0\0\0\1" + b"\0" * 24] * COUNT, headers=[])
    assert line in scene.stream.start(scene.stream.changed("worker", give_up_seconds=2)).refusal(status)
    assert scene.stream.own(Reserved) == []


def test_a_clock_that_is_killed_while_versions_come_is_followed_by_one_that_knows_them(scene: Scene) -> None:
    scene.produce(0, OLD)
    worker = scene.stream.start(noise=False)
    scene.wait_for_releases(1, worker)
    (before,) = clocks_of(worker)
    os.kill(before, signal.SIGKILL)
    scene.produce(1, NEW)
    scene.wait_for_releases(2, worker)
    assert clocks_of(worker) not in ([], [before])
    scene.produce(2, OLD)
    worker.ends_well()
    scene.check()
    assert [len(ids) for ids in scene.named] == [1, 2, 2]


def clocks_of(worker: Child) -> list[int]:
    """Return the clock's processes, found by their command line, which any user may read."""
    found = []
    for pid in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split():
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        if b"streaming_pca.service.input.clock" in command:
            found.append(int(pid))
    return found


def test_two_streams_of_one_subject_read_two_messages_of_it(
    make_stream: Make, apicurio: Apicurio, unique_name: Name
) -> None:
    stem, kinds = message_classes(unique_name("f"), Visit=[("a", 1), ("b", 1)], Sale=[("b", 1), ("a", 1)])
    how: dict[str, Any] = {"dim": 2, "partitions": 1, "format": "protobuf"}
    how["features"] = [{"name": name, "bounds": [-9, 9]} for name in "ab"]
    first = make_stream(message=f"{stem}.Visit", cap=("2", "1e-5"), **how)
    topic = first.settings.stream.input
    second = make_stream(message=f"{stem}.Sale", input=topic, cap=None, **how)
    registry = {"registry": RegistrySettings(url=apicurio.url, seconds=0.5)}
    rows = np.random.default_rng(0).normal(size=(300, 2)).clip(-9, 9)
    with Producer(apicurio, topic) as producer:
        values = [producer.protobuf(kinds[i % 2](a=a, b=b)) for i, (a, b) in enumerate(rows.tolist())]
    first.produce(values, headers=[])
    # Records of the other message are null, and equally many.
    alone = []
    for start, each in enumerate((first, second)):
        plain = make_stream(feature_names=("a", "b"), dim=2, partitions=1, dtype="float64")
        settings = each.settings.stream
        plain.settings = plain.changed("stream", bounds=settings.bounds, scale=settings.scale)
        values = [b""] * 300
        values[start::2] = [row.tobytes() for row in rows[start::2]]
        plain.produce(values)
        alone.append(plain)
    streams = (first, second, *alone)
    for each in streams:
        each.settings = each.settings.model_copy(update=registry)
    run_together(*streams, noise=False)
    assert first.children[-1].log.count("has new schemas: ids") == 2
    for each, plain in zip((first, second), alone, strict=True):
        check_alike(each.releases(), plain.releases())


def test_a_new_leader_charges_nothing_before_the_registry_answers(scene: Scene) -> None:
    scene.produce(0, OLD)
    first = scene.stream.start(noise=False)
    scene.wait_for_releases(1, first)
    values = scene.encoded(1, OLD)
    scene.apicurio.pause()
    try:
        first.stop()
        scene.write(values)
        second = scene.stream.start(noise=False)
        second.logs("does not answer (timed out)")
        assert len(scene.stream.own(Reserved)) == 1
    finally:
        scene.apicurio.proceed()
    scene.wait_for_releases(2, second)
    scene.produce(2, NEW)
    second.ends_well()
    scene.check()
    assert [len(ids) for ids in scene.named] == [1, 1, 2]


@pytest.mark.parametrize("reserved", [False, True])
def test_a_worker_that_waits_for_a_silent_registry_stops_in_order(scene: Scene, reserved: bool) -> None:
    scene.produce(0, OLD)
    if reserved:
        scene.stream.crash(Strike("reserve.4 commit"), noise=False)
    slow = scene.stream.settings.registry.model_copy(update={"timeout_seconds": 60})
    scene.apicurio.pause()
    try:
        worker = scene.stream.start(scene.stream.settings.model_copy(update={"registry": slow}), noise=False)
        worker.logs("leading stream")
        worker.signal(signal.SIGTERM)
        worker.ends_well(30)
    finally:
        scene.apicurio.proceed()
    assert "ERROR" not in worker.log
    assert scene.stream.own(Abandoned) == []
    assert len(scene.stream.own(Reserved)) == reserved
