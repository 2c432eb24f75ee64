"""Each record is projected exactly once on Kafka, with the release in its headers."""

from __future__ import annotations

import json
import re
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pytest
from kafka.admin import NewTopic
from kafka.errors import KafkaTimeoutError

from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.settings import Settings
from streaming_pca.service.kafka.clients import plain_producer, transactional_producer
from streaming_pca.service.kafka.transaction import Transaction, discard
from streaming_pca.service.projection.latest import LatestRelease
from streaming_pca.service.projection.membership import Membership
from streaming_pca.service.projection.worker import ProjectionOptions
from streaming_pca.service.topics.find import create_topics, ensure_topics
from tests.cli.test_watch import LATER
from tests.kafka.child import Strike
from tests.kafka.conftest import Make, Patch
from tests.kafka.projecting import Projecting, publish, run, written
from tests.kafka.stream import Stream, read_all
from tests.service.contract import check_messages
from tests.service.registry.apicurio import Apicurio
from tests.service.registry.producers import Producer, record_type
from tests.waiting import LIMIT, wait_for

D, K = 5, 2


@pytest.fixture
def start(tmp_path: Path) -> Any:
    """Start projecting workers, and end them after the test."""
    made: list[Projecting] = []

    def begin(
        stream: Stream,
        output: str,
        strike: Strike | None = None,
        settings: Settings | None = None,
        **how: Any,
    ) -> Projecting:
        directory, options = tmp_path / f"projecting-{len(made)}", ProjectionOptions(output, **how)
        made.append(Projecting(settings or stream.settings, options, directory, strike))
        return made[-1]

    yield begin
    for each in made:
        each.destroy()


def _transactional(stream: Stream, x: np.ndarray[Any, Any]) -> None:
    """Write records in a transaction that is aborted, and in another that is committed."""
    with closing(stream.transactional()) as producer:
        for commit, rows in ((False, -x), (True, x)):
            producer.begin_transaction()
            for i, row in enumerate(rows):
                topic = stream.settings.stream.input
                producer.send(topic, row.tobytes(), key=b"t", partition=i % stream.partitions)
            producer.commit_transaction() if commit else producer.abort_transaction()


def test_every_message_has_the_projection_that_its_release_computes(
    make_stream: Make, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stream = make_stream("projected", partitions=2, bounds=(-3.0, 3.0), scale=0.5)
    publish(stream, 0)
    release = publish(stream, 1)
    x = stream.vectors(300)
    factor = np.arange(3 * D, dtype="<f4").reshape(3, D)
    stream.produce_vectors(x)
    stream.produce_keyed([(b"bad", b"\x01\x02\x03"), (b"nan", np.full(D, np.nan, "<f4").tobytes())])
    stream.produce_keyed([(None, b""), (b"rows", factor.tobytes())], to=lambda i: 1)
    stream.send([(json.dumps({"x": x[0].tolist()}).encode(), [("content-type", b"application/json")])])
    _transactional(stream, x[:4])
    output = f"{stream.settings.stream.name}-out"

    assert run(stream.settings, output, create=True) == 0

    assert "only as private as the records" in caplog.text
    own = [r.getMessage().lower() for r in caplog.records if r.name.startswith("streaming_pca")]
    assert not any("null" in line for line in own)
    found = {each.source: each for each in written(stream, output, 2)}
    sources = {(p, offset) for p, offsets in stream.input_offsets().items() for offset in offsets}
    assert found.keys() == sources
    assert len(written(stream, output, 2)) == len(sources) == 300 + 4 + 1 + 4
    headers = {"content-type": "application/octet-stream", "dtype": "float32"}
    headers |= {"privacy": "as-input", "release-batch": "1"}
    for source, each in found.items():
        assert each.partition == source[0]
        assert headers.items() <= each.headers.items()
    got = np.vstack([found[i % 2, i // 2].rows(K) for i in range(300)])
    np.testing.assert_allclose(got, release.transform(x.astype(np.float64)), rtol=1e-6, atol=1e-7)
    assert np.abs(got).max() > 0.1
    keyed = {each.key: each for each in found.values() if each.key not in (None, b"t")}
    assert keyed[b"bad"].value == keyed[b"nan"].value == b""
    np.testing.assert_allclose(keyed[b"rows"].rows(K), release.transform(factor), rtol=1e-6)
    assert found[1, 151].value == b""
    assert sum(each.key == b"t" for each in found.values()) == 4

    check_messages(stream.settings.stream, {"projections": read_all(stream.settings.kafka, output, (0, 1))})

    # A second run finds nothing new. A third projects only new records, with a newer release, as JSON.
    assert run(stream.settings, output) == 0
    newer = publish(stream, 2)
    stream.produce_vectors(x[:2])
    assert run(stream.settings, output, format="json") == 0
    more = [each for each in written(stream, output, 2) if each.source not in found]
    assert len(more) == 2
    assert {(each.batch, each.headers["content-type"]) for each in more} == {(2, "application/json")}
    values = [json.loads(each.value)["x"] for each in sorted(more, key=lambda each: each.source)]
    check_messages(stream.settings.stream, {"projections": read_all(stream.settings.kafka, output, (0, 1))})
    np.testing.assert_allclose(values, newer.transform(x[:2].astype(np.float64)), rtol=1e-12)

    # A chosen release.
    pinned = f"{output}-pinned"
    assert run(stream.settings, pinned, create=True, release_batch=1) == 0
    assert {each.batch for each in written(stream, pinned, 2)} == {1}


def test_workers_that_are_killed_or_suspended_neither_lose_nor_repeat(make_stream: Make, start: Any) -> None:
    stream = make_stream("shared", partitions=4)
    output = f"{stream.settings.stream.name}-out"
    produced = 0

    def produce(count: int) -> None:
        nonlocal produced
        stream.produce_vectors(stream.vectors(count, seed=produced))
        produced += count

    def produce_until(what: str, probe: Callable[[], bool], child: Projecting) -> None:
        def produced_and() -> bool:
            produce(100)
            return probe()

        wait_for(what, produced_and, seen=lambda: child.log)

    publish(stream, 1)
    # Its transaction stays open until SIGCONT, however long the others take to start.
    patient = stream.changed("kafka", transaction_timeout_ms=120_000)
    first = Strike("sending the positions", nth=2, what="SIGSTOP")
    slow = start(stream, output, first, settings=patient, create=True)
    produce_until("a stop before the commit", lambda: slow.has("struck"), slow)
    zombie = start(stream, output, Strike("sending the projections", nth=2, what="SIGSTOP"))
    short = stream.changed("kafka", transaction_timeout_ms=2000)
    killed = start(stream, output, Strike("sending the positions", nth=2), settings=short)
    # Its positions may still be committed: the workers that took its partitions must know them.
    wait_for("waiting", lambda: "waiting for the open" in zombie.log + killed.log, seen=lambda: slow.log)
    slow.signal(signal.SIGCONT)
    produce_until("a stop in a transaction", lambda: zombie.has("struck"), zombie)
    produce_until("a death in a transaction", lambda: killed.has("struck"), killed)
    publish(stream, 2)
    produce(500)
    start(stream, output, until_end=True).ends_well()
    # Other workers have projected its partitions.
    zombie.signal(signal.SIGCONT)
    zombie.logs("recovering")
    produce(500)
    start(stream, output, until_end=True).ends_well()
    for child in (slow, zombie):
        child.stop()
    assert killed.status() == -signal.SIGKILL

    found = written(stream, output, 4)
    times = Counter(each.source for each in found)
    sources = {(p, offset) for p, offsets in stream.input_offsets().items() for offset in offsets}
    assert len(sources) == produced
    assert times == dict.fromkeys(sources, 1)
    for p in range(4):
        mine = [each for each in found if each.partition == p]
        assert [each.source for each in mine] == sorted(each.source for each in mine)
        batches = [each.batch for each in mine]
        assert batches == sorted(batches)
        assert batches[-1] == 2


def test_a_worker_begins_after_a_first_transaction_that_was_aborted(
    make_stream: Make, start: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    stream = make_stream("aborted", partitions=2)
    output = f"{stream.settings.stream.name}-out"
    publish(stream, 1)
    stream.produce_vectors(stream.vectors(10))
    short = stream.changed("kafka", transaction_timeout_ms=2000)
    # By then the broker has the projections.
    start(stream, output, Strike("sending the positions"), settings=short, create=True).strikes()
    assert run(stream.settings, output) == 0
    assert len(written(stream, output, 2)) == 10
    assert "is empty" not in caplog.text

    # A recreated output does not receive the old output's messages, and the log reports that.
    stream.delete_topics(output)
    assert run(stream.settings, output, create=True) == 0
    assert f"topic {output!r} is empty, but group" in caplog.text


def test_an_input_that_is_made_anew_meanwhile_is_not_read_on(make_stream: Make, start: Any) -> None:
    stream = make_stream("anew", partitions=1)
    name, output = stream.settings.stream.input, f"{stream.settings.stream.name}-out"
    publish(stream, 1)
    stream.produce_vectors(stream.vectors(10))
    child = start(stream, output, create=True)
    wait_for("projections", lambda: "with the release" in child.log and len(written(stream, output, 1)) == 10)
    stream.delete("input")
    ensure_topics(stream.settings.kafka, [NewTopic(name, 1, 1)])
    # Before the worker notices that its position is beyond the end.
    stream.produce_vectors(stream.vectors(25))
    assert child.ends() == 2, child.log
    assert len(written(stream, output, 1)) == 10


def test_the_end_of_an_input_is_reached_beside_a_producer_that_goes_on(make_stream: Make) -> None:
    stream = make_stream("lively", partitions=1)
    output = f"{stream.settings.stream.name}-out"
    publish(stream, 1)
    stream.produce_vectors(stream.vectors(10))
    row, ended = stream.vectors(1)[0].tobytes(), threading.Event()

    def go_on() -> None:
        with closing(plain_producer(stream.settings.kafka)) as producer:
            deadline = time.monotonic() + LIMIT
            while not ended.is_set() and time.monotonic() < deadline:
                producer.send(stream.settings.stream.input, row, partition=0)
                producer.flush(LIMIT)
                ended.wait(0.01)

    lively = threading.Thread(target=go_on)
    lively.start()
    try:
        assert run(stream.settings, output, create=True) == 0
        assert lively.is_alive()
    finally:
        ended.set()
        lively.join()


def test_a_release_that_comes_while_the_topic_is_read_is_followed(
    make_stream: Make, monkeypatch: Patch
) -> None:
    stream = make_stream("between", partitions=1)
    publish(stream, 1)
    of_before = LatestRelease.committed_end

    def committed_end(releases: LatestRelease) -> int:
        found = of_before(releases)
        publish(stream, 2)
        return found

    monkeypatch.setattr(LatestRelease, "committed_end", committed_end)
    with closing(LatestRelease(stream.settings.kafka, stream.settings.stream)) as releases:

        def is_followed() -> bool:
            releases.poll()
            return releases.release is not None and releases.release.batch == 2

        wait_for("the release", is_followed)


def test_a_late_answer_about_positions_is_not_believed(make_stream: Make) -> None:
    stream = make_stream("late", partitions=1)
    kafka, topic = stream.settings.kafka, stream.settings.stream.input
    producer, member = transactional_producer(kafka, topic), Membership(kafka, topic, topic, (0,))
    with closing(producer), closing(member):
        producer.init_transactions()

        def commit(position: int) -> None:
            transaction = Transaction(producer, kafka)
            transaction.send_offsets(topic, {0: position}, topic, "")
            transaction.commit()

        commit(5)
        wait_for("an assignment", lambda: member.poll() or member.assignment)
        with suppress(KafkaTimeoutError):
            member.positions([0], 1)
        time.sleep(0.5)
        commit(9)
        assert member.positions([0], 60_000)[0].offset == 9
        transaction = Transaction(producer, kafka)
        transaction.send_offsets(topic, {0: 12}, topic, "")
        with pytest.raises(KafkaTimeoutError):
            member.positions([0], 500)
        transaction.commit()
        assert member.positions([0], 60_000)[0].offset == 12


def test_a_worker_that_cannot_project_says_why_in_one_line(
    make_stream: Make, caplog: pytest.LogCaptureFixture
) -> None:
    stream = make_stream("refused", partitions=1)
    name = stream.settings.stream.name
    output, settings = f"{name}-out", stream.settings
    stream.produce_vectors(stream.vectors(3))

    def refused(settings: Settings, *parts: str, output: str = output, **options: Any) -> None:
        caplog.clear()
        assert run(settings, output, **options) == 2
        errors = [r for r in caplog.records if r.levelname == "ERROR"]
        # The client logs by itself, and the command turns that off.
        lines = [r.getMessage() for r in errors if r.name.startswith("streaming_pca")]
        assert len(lines) == 1, lines
        assert "\n" not in lines[0]
        for part in parts:
            assert part in lines[0]

    refused(settings, f"topic '{output}' (--output) is missing", "--create")
    refused(settings, "has no release yet", "--until-end", create=True)
    release = publish(stream, 1)
    refused(settings, "--release-batch 7", "the newest is of batch 1", release_batch=7)
    refused(stream.changed(scale=2.0), "stream.scale = 2.0", "made with None", "batch 1")
    refused(stream.changed(centering="none"), 'stream.centering = "none"', 'made with "auto"')
    refused(stream.changed(rank=1), "stream.rank = 1", "made with 2")
    compacted = f"{name}-compacted"
    ensure_topics(settings.kafka, [NewTopic(compacted, 1, 1, topic_configs={"cleanup.policy": "compact"})])
    refused(settings, "cleanup.policy is compact", "kafka-configs", output=compacted)
    refused(stream.changed(record_kind="matrix", centering="none"), 'stream.record_kind = "matrix"')
    assert written(stream, output, 1) == []

    # Longer retention than the input's is a warning, not an error.
    kept = f"{name}-kept"
    ensure_topics(settings.kafka, [NewTopic(kept, 1, 1, topic_configs={"retention.ms": "-1"})])
    assert run(settings, kept) == 0
    assert "retention.ms is -1, it should be 604800000, the input's" in caplog.text

    # Records deleted before projection, and positions that the group has forgotten.
    caplog.clear()
    assert run(settings, output) == 0
    assert "retention" not in caplog.text
    assert len(written(stream, output, 1)) == 3
    stream.produce_vectors(stream.vectors(3))
    stream.delete_before({0: 5})
    refused(settings, "the records at offsets 3 to 4 were deleted", 'stream.lost_records = "skip"')
    assert run(stream.changed(lost_records="skip"), output) == 0
    assert [each.source for each in written(stream, output, 1)] == [(0, 0), (0, 1), (0, 2), (0, 5)]
    with stream.admin() as admin:
        admin.delete_groups([f"{name}.project.{output}"])
    server = f"--bootstrap-server {settings.kafka.bootstrap_servers}"
    refused(settings, "has no positions", server, "--to-offset OFFSET --execute")
    assert release.batch == 1

    later = stream.changed(name=f"{name}-new")
    create_topics(later.kafka, later.stream, 1, 1)
    with closing(plain_producer(later.kafka)) as producer:
        producer.send(later.stream.releases_topic, LATER, partition=0).get(LIMIT)
    refused(later, "offset 0: a release of version 999 cannot be read", output=f"{name}-later", create=True)


def test_a_worker_waits_for_the_first_release(make_stream: Make, start: Any) -> None:
    stream = make_stream("waits", partitions=1)
    name = stream.settings.stream.name
    output = f"{name}-out"
    stream.produce_vectors(stream.vectors(3))
    child = start(stream, output, create=True, http_port=0)
    words = ("projected here: 0", "waiting for the first release")
    child.until("its words", lambda: all(each in child.log for each in words))
    (address,) = re.findall(r"http://[\d.:]+", child.log)
    with urlopen(f"{address}/readyz", timeout=LIMIT) as answer:
        assert json.load(answer) == {"ready": True, "streams": {name: "waiting"}}
    # Messages that are not releases are skipped.
    stream.write(f"{name}.releases", b"{}")
    publish(stream, 4)
    child.until("projections", lambda: len(written(stream, output, 1)) == 3)
    with urlopen(f"{address}/metrics", timeout=LIMIT) as answer:
        text = answer.read().decode()
    labels = f'{{stream="{name}"}}'
    assert f"streaming_pca_projected_messages_total{labels} 3.0" in text
    assert f"streaming_pca_projection_release_batch{labels} 4.0" in text
    assert f"streaming_pca_projection_lag_records{labels} 0.0" in text
    assert re.search(r"offset \d+: not a release: .*: skipped", child.log)
    child.stop()

    # A hanging exchange ends the process.
    stream.produce_vectors(stream.vectors(1))
    hasty = stream.changed("worker", step_deadline_seconds=5).model_copy(
        update={"kafka": stream.changed("kafka", transaction_timeout_ms=2000).kafka}
    )
    hanging = start(stream, output, Strike("sending the positions", what="wait"), hasty)
    assert hanging.ends() == 4
    assert "ending the process; the next one continues" in hanging.log
    assert run(stream.settings, output) == 0
    assert len(written(stream, output, 1)) == 4


def test_records_are_projected_by_the_schemas_that_they_name(
    make_stream: Make, start: Any, apicurio: Apicurio
) -> None:
    names = ("a", "b", "c")
    features = [{"name": name, "bounds": [-9, 9]} for name in names]
    stream = make_stream("registered", partitions=2, dim=3, features=features, format="avro")
    registry = RegistrySettings(url=apicurio.url, timeout_seconds=1)
    stream.settings = stream.settings.model_copy(update={"registry": registry})
    old = record_type("V", **dict.fromkeys(names, "double"))
    new = record_type("V", **dict.fromkeys(reversed(names), "double"))
    release, output = publish(stream, 1), f"{stream.settings.stream.name}-out"
    x = np.random.default_rng(0).normal(size=(40, 3)).clip(-9, 9)

    def encoded(rows: np.ndarray[Any, Any], schema: Any) -> list[bytes]:
        return [producer.avro(schema, dict(zip(names, row, strict=True))) for row in rows.tolist()]

    def wait_for_projections(count: int) -> None:
        child.until(f"{count} projections", lambda: len(written(stream, output, 2)) == count)

    with Producer(apicurio, stream.settings.stream.input) as producer:
        stream.produce(encoded(x[:10], old), headers=[])
        child = start(stream, output, create=True)
        wait_for_projections(10)
        known = encoded(x[10:30], old)
        # Registered, but the worker has not read a record with it.
        unknown = encoded(x[30:], new)
        apicurio.pause()
        try:
            stream.produce(known, headers=[])
            child.logs("recovering from the committed positions: registry.url")
            stream.produce(unknown, headers=[])
            assert len(written(stream, output, 2)) == 10
        finally:
            apicurio.proceed()
        wait_for_projections(40)
    child.stop()
    found = sorted(written(stream, output, 2), key=lambda each: (each.source[1], each.source[0]))
    got = np.vstack([each.rows(K) for each in found])
    np.testing.assert_allclose(got, release.transform(x), rtol=1e-5, atol=1e-6)


def test_a_producer_is_discarded_with_what_it_has_not_sent(make_stream: Make) -> None:
    stream = make_stream("discarded", partitions=1)
    kafka, topic = stream.settings.kafka, stream.settings.stream.input
    producer = transactional_producer(kafka, f"discarded-{topic}")
    producer.init_transactions()
    transaction = Transaction(producer, kafka)
    for _ in range(3000):
        transaction.send(topic, b"x" * 1000, None)
    discard(producer)
    assert not producer._sender.is_alive()
