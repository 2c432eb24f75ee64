"""Records go in and private subspaces come out; invalid input and settings are refused."""

from __future__ import annotations

import io
import json
import math
import pickle
from collections.abc import Callable
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
from kafka import KafkaAdminClient
from kafka.admin import ConfigResource, NewTopic
from kafka.errors import KafkaError

from streaming_pca.api import DEFAULT_ESTIMATOR
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.dev.processes import free_port
from streaming_pca.privacy.ledger.entries import Abandoned, OffsetRange, Reserved
from streaming_pca.service.commit.checkpoint import CheckpointWriter
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.topics.find import check_topics
from tests.kafka.stream import (
    OCTETS,
    Child,
    Stream,
    check_books,
    have_released,
    ranges_of,
    run_together,
    start_together,
)
from tests.service.contract import check_messages
from tests.waiting import LIMIT, wait_for

MakeStream = Callable[..., Stream]

OJA: dict[str, Any] = {
    "estimator": "private-oja",
    "centering": "none",
    "options": {"clip_radius": 20.0, "batch_size": 100},
}
MATRICES = {"record_kind": "matrix", "centering": "none"}


def refusal(child: Child, status: int) -> str:
    """Return the only error line of a refused worker, whose log has no traceback."""
    assert child.ends() == status, child.log
    assert "Traceback" not in child.log, child.log
    errors = [line for line in child.log.splitlines() if " ERROR " in line]
    assert len(errors) == 1, child.log
    return errors[0]


# -- successful runs -------------------------------------------------------


def test_vectors_become_one_release_a_batch(make_stream: MakeStream) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(300))
    stream.run()
    check_books(stream)
    releases = stream.releases()
    assert [(r.batch, r.records) for r in releases] == [(1, 100), (2, 200), (3, 300)]
    assert {(r.stream, r.epsilon, r.delta) for r in releases} == {(stream.settings.stream.name, 1.0, 1e-6)}
    assert {r.estimator for r in releases} == {DEFAULT_ESTIMATOR}
    # Batches of a hundred records reveal no mean.
    assert [r.mean for r in releases] == [None] * 3


def test_an_endless_stream_runs_until_it_is_told_to_stop(make_stream: MakeStream) -> None:
    stream = make_stream(**OJA)
    stream.produce_vectors(stream.vectors(250))
    worker = stream.start()
    worker.logs("batch 2 released")
    stream.produce_vectors(stream.vectors(50, seed=1))
    worker.logs("batch 3 released")
    worker.signal(15)
    assert worker.ends() == 0
    check_books(stream)
    assert [r.records for r in stream.releases()] == [100, 200, 300]
    assert stream.releases()[0].estimator == "private-oja"


def test_factors_are_records_of_several_rows(make_stream: MakeStream) -> None:
    centre, scale = [0.5, -0.5, 0.0, 0.25, 0.0], [1.0, 0.75, 1.0, 0.5, 1.0]
    # With a public radius it learns from every record; `adaptive` spends some on choosing a radius.
    stream = make_stream(
        estimator="analyze-gauss",
        options={"n_records": 60, "n_batches": 2, "clip_radius": 400.0},
        centering=centre,
        scale=scale,
        bounds=(-50.0, 50.0),
    )
    rows = stream.vectors(60 * 4).reshape(60, 4, 5)
    stream.produce(r.tobytes() for r in rows)
    stream.run(noise=False)
    check_books(stream)
    release = stream.releases()[-1]
    assert release.records == 60
    centred = (rows.reshape(-1, 5).astype(float) - centre) * scale
    exact = np.linalg.svd(centred, full_matrices=False)[2][:2]
    found = np.array(release.components)
    assert np.linalg.norm(found.T @ found - exact.T @ exact) < 1e-3
    # The release alone lets a consumer project records as the estimator read them.
    coordinates = release.transform(rows.astype(float)).reshape(-1, 2)
    np.testing.assert_allclose(coordinates, centred @ found.T, rtol=1e-12, atol=1e-12)
    assert np.linalg.norm(centred - coordinates @ found) < 1.01 * np.linalg.norm(
        centred - centred @ exact.T @ exact
    )


def test_symmetric_matrices_are_records(make_stream: MakeStream) -> None:
    options = {"n_records": 40, "n_batches": 2}
    streams = [
        make_stream(estimator=estimator, options=options, **MATRICES)
        for estimator in ("adaptive", "analyze-gauss", "block")
    ]
    endless = {"clip_radius": 20.0, "batch_size": 20}
    oja = make_stream(estimator="private-oja", options=endless, **MATRICES)
    x = np.random.default_rng(0).standard_normal((40, 5, 5))
    for stream in (oja, *streams):
        stream.produce([(a + a.T).astype("<f4").tobytes() for a in x])
    worker = start_together(oja, *streams)
    wait_for("all batches", lambda: have_released([oja, *streams], 2), seen=worker.log_and_stacks)
    worker.signal(15)
    assert worker.ends() == 0, worker.log
    for stream in (oja, *streams):
        check_books(stream)
        assert [r.records for r in stream.releases()] == [20, 40]


def test_all_content_types_mean_the_same_record(make_stream: MakeStream) -> None:
    how = {"options": {"n_records": 30, "n_batches": 1}, "partitions": 1}
    plain, mixed = make_stream(**how), make_stream(**how)
    x = plain.vectors(30)
    plain.produce_vectors(x)
    codecs = [
        (lambda row: row.tobytes(), b"application/octet-stream"),
        (lambda row: json.dumps({"x": [float(v) for v in row]}).encode(), b"application/json"),
        (npy, b"application/x-npy"),
    ]
    mixed.send(
        (encode(row), [("content-type", kind)]) for row, (encode, kind) in zip(x, codecs * 10, strict=True)
    )
    check_messages(mixed.settings.stream, {"input": mixed.messages(mixed.settings.stream.input)})
    run_together(plain, mixed, noise=False)
    assert plain.releases()[0].components == mixed.releases()[0].components


def test_json_whose_header_is_missing_is_noticed_and_can_be_the_default(make_stream: MakeStream) -> None:
    """2,200 such messages once became null records, and only one noisy gauge showed it."""
    how: dict[str, Any] = {"options": {"n_records": 4400, "n_batches": 1}, "partitions": 1}
    unread = make_stream(**how)
    read = make_stream(**how, format="json")
    values = [json.dumps({"x": row.tolist()}).encode() for row in unread.vectors(4400)]
    for stream in (unread, read):
        stream.produce(values, headers=())
    workers = [stream.start(noise=False) for stream in (unread, read)]
    assert [w.ends() for w in workers] == [0, 0]
    counts = [stream.releases()[0].counts for stream in (unread, read)]
    # The noise has a standard deviation of 141 records; six of them are exceeded about once in 1e4 runs.
    assert counts[0]["null_records"] > 3520
    assert abs(counts[1]["null_records"]) < 880
    warning = "% of its records are null: `streaming-pca payload check` shows why"
    assert [warning in worker.log for worker in workers] == [True, False]
    assert "content_type" in read.own(Reserved)[0].promise
    for stream in (unread, read):
        check_books(stream)


def npy(array: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **how)
    return buffer.getvalue()


def test_the_second_leader_goes_on_where_the_first_stopped(make_stream: MakeStream) -> None:
    stream = make_stream(**OJA)
    x = stream.vectors(400)
    stream.produce_vectors(x[:200])
    first = stream.start()
    first.logs("batch 2 released")
    first.signal(15)
    assert first.ends() == 0
    done = len(stream.releases())
    # Not earlier: the first worker would learn from all of them if its signal came late.
    stream.produce_vectors(x[200:])
    second = stream.start()
    second.logs("batch 4 released")
    second.signal(15)
    assert second.ends() == 0
    check_books(stream)
    assert [r.batch for r in stream.releases()] == [1, 2, 3, 4]
    assert f"batch {done} released" not in second.log


# -- places ----------------------------------------------------------------


def test_aborted_records_and_markers_do_not_count(make_stream: MakeStream) -> None:
    how = {"centering": "none", "options": {"n_records": 120, "n_batches": 3, "clip_radius": 400.0}}
    plain, gaps = make_stream(partitions=2, **how), make_stream(partitions=2, **how)
    x = plain.vectors(120)
    plain.produce_vectors(x)
    producer = gaps.transactional()
    for first in range(0, 120, 10):
        for aborted in (True, False):
            producer.begin_transaction()
            for i in range(first, first + 10):
                value = (x[i] * 100 if aborted else x[i]).tobytes()
                producer.send(gaps.settings.stream.input, value, partition=i % 2, headers=OCTETS)
            producer.flush()
            (producer.abort_transaction if aborted else producer.commit_transaction)()
    producer.close()
    run_together(plain, gaps, noise=False)
    for stream in (plain, gaps):
        check_books(stream)
    assert gaps.releases()[-1].components == plain.releases()[-1].components
    assert [[r.count for r in b] for b in ranges_of(gaps)] == [[r.count for r in b] for b in ranges_of(plain)]
    assert any(r.end - r.start > r.count for batch in ranges_of(gaps) for r in batch)


MALFORMED: dict[str, tuple[bytes, list[tuple[str, bytes]]]] = {
    "no value": (b"", OCTETS),
    "no whole number": (b"\x01\x02\x03", OCTETS),
    "wrong length": (np.ones(4, "<f4").tobytes(), OCTETS),
    "NaN": (np.array([1, 2, math.nan, 4, 5], "<f4").tobytes(), OCTETS),
    "infinity": (np.array([1, 2, math.inf, 4, 5], "<f4").tobytes(), OCTETS),
    "another record kind": (np.ones(5, "<f4").tobytes(), [*OCTETS, ("record-kind", b"matrix")]),
    "unknown content type": (np.ones(5, "<f4").tobytes(), [("content-type", b"text/plain")]),
    "content type that is no text": (np.ones(5, "<f4").tobytes(), [("content-type", b"\xff\xfe")]),
    "pickle in npy": (
        npy(np.array([1, "a"], dtype=object), allow_pickle=True),
        [("content-type", b"application/x-npy")],
    ),
    "pickle": (pickle.dumps([1.0] * 5), [("content-type", b"application/x-npy")]),
    "npy that claims to be huge": (
        npy(np.ones(5)).replace(b"(5,)", b"(5000000000000,)"),
        [("content-type", b"application/x-npy")],
    ),
    "broken JSON": (b'{"x": [1, 2', [("content-type", b"application/json")]),
    "deep JSON": (b'{"x": ' + b"[" * 4000 + b"]" * 4000 + b"}", [("content-type", b"application/json")]),
    "text in JSON": (b'{"x": ["a", "b", "c", "d", "e"]}', [("content-type", b"application/json")]),
    "too many rows": (np.ones((65, 5), "<f4").tobytes(), OCTETS),
    "oversized": (bytes(2**20), OCTETS),
}


def test_malformed_records_keep_their_places(make_stream: MakeStream) -> None:
    how = {"options": {"n_records": 96, "n_batches": 3, "clip_radius": 400.0}, "centering": "none"}
    malformed, null = make_stream(**how), make_stream(**how)
    x = malformed.vectors(64)
    for stream, bad in ((malformed, list(MALFORMED.values()) * 2), (null, [(b"", [])] * 32)):
        good = iter(x)
        # Every third record is malformed, on each partition in turn.
        stream.send(
            ((bad[i // 3] if i % 3 == 0 else (next(good).tobytes(), OCTETS)) for i in range(96)),
            lambda i: (i + i // 3) % 3,
        )
    run_together(malformed, null, noise=False)
    check_books(malformed)
    assert ranges_of(malformed) == ranges_of(null)
    assert [r.components for r in malformed.releases()] == [r.components for r in null.releases()]
    assert [r.explained_variance for r in malformed.releases()] == [
        r.explained_variance for r in null.releases()
    ]


def test_skewed_and_empty_partitions_and_malformed_records_give_what_they_have(
    make_stream: MakeStream,
) -> None:
    skewed = make_stream(options={"n_records": 200, "n_batches": 2, "growth": 1.0})
    skewed.produce_vectors(skewed.vectors(200), lambda i: 0 if i < 150 else (1 if i < 195 else 2))
    # An empty partition does not hold the others up.
    empty = make_stream(options={"n_records": 40, "n_batches": 2})
    empty.produce_vectors(empty.vectors(40), lambda i: i % 2)
    # A batch of malformed records only is learnt.
    malformed = make_stream(options={"n_records": 32, "n_batches": 2}, partitions=1)
    malformed.send([*MALFORMED.values()] * 2)
    run_together(skewed, empty, malformed)
    for stream in (skewed, empty, malformed):
        check_books(stream)
    # Round-robin: 5 from the sparse partition, then the other two alternate.
    assert ranges_of(skewed)[0] == (
        OffsetRange(partition=0, start=0, end=50, count=50),
        OffsetRange(partition=1, start=0, end=45, count=45),
        OffsetRange(partition=2, start=0, end=5, count=5),
    )
    assert ranges_of(skewed)[1] == (OffsetRange(partition=0, start=50, end=150, count=100),)
    assert [stream.releases()[-1].records for stream in (empty, malformed)] == [40, 32]


def test_what_a_batch_holds_does_not_depend_on_sizes(make_stream: MakeStream) -> None:
    how = {"options": {"n_records": 240, "n_batches": 3, "clip_radius": 400.0}, "centering": "none"}
    small, large, thin = (make_stream(**how) for _ in range(3))
    x = small.vectors(240)
    small.produce_vectors(x)
    # The same vectors, but in one partition the payloads are a hundred times as large.
    text = {"content-type": b"application/json"}
    padded = [json.dumps({"x": [float(v) for v in row]}).encode() + b" " * 4000 for row in x]
    large.produce_vectors(x[np.arange(240) % 3 != 1], lambda i: (0, 2)[i % 2])
    large.produce(padded[1::3], lambda i: 1, list(text.items()))
    thin.produce_vectors(x)
    workers = [
        small.start(noise=False),
        large.start(noise=False, fetch_bytes=8192),
        thin.start(noise=False, fetch_bytes=512),
    ]
    assert [w.ends() for w in workers] == [0, 0, 0]
    assert ranges_of(small) == ranges_of(large) == ranges_of(thin)
    components = [r.components for r in small.releases()]
    assert [r.components for r in large.releases()] == components
    assert [r.components for r in thin.releases()] == components


def test_pairs_come_from_one_partition(make_stream: MakeStream) -> None:
    stream = make_stream(centering="pairs", options={"n_records": 60, "n_batches": 2, "clip_radius": 400.0})
    # Partitions are far apart and records within one are close: a pair across partitions would show.
    centres = np.array([[0.0], [1000.0], [-1000.0]], dtype="<f4") * np.eye(5, dtype="<f4")[0]
    x = stream.vectors(60) + centres[np.arange(60) % 3]
    stream.produce_vectors(x)
    stream.run(noise=False)
    check_books(stream)
    assert all(r.count % 2 == 0 for batch in ranges_of(stream) for r in batch)
    assert stream.releases()[-1].explained_variance[0] < 100


# -- refused runs ----------------------------------------------------------


def test_a_second_job_is_refused_by_the_cap(make_stream: MakeStream) -> None:
    first = make_stream(cap=("1", "1e-6"))
    first.produce_vectors(first.vectors(300))
    first.run()
    second = make_stream(input=first.settings.stream.input, cap=None)
    line = refusal(second.start(), 3)
    assert "cap" in line
    assert "already charged epsilon 1" in line
    assert second.own(Reserved) == []
    check_books(first)


def test_a_second_job_runs_where_the_cap_is_for_both(make_stream: MakeStream) -> None:
    first = make_stream(cap=("2", "2e-6"))
    first.produce_vectors(first.vectors(300))
    second = make_stream(input=first.settings.stream.input, cap=None)
    workers = [first.start(), second.start()]
    for worker in workers:
        assert worker.ends() == 0, worker.log
    check_books(first)
    check_books(second)
    spent = first.replay().spent(0, 0)
    assert (float(spent.epsilon), float(spent.delta)) == (2.0, 2e-6)


def test_of_two_jobs_at_once_the_log_decides(make_stream: MakeStream) -> None:
    first = make_stream(cap=("1", "1e-6"))
    first.produce_vectors(first.vectors(300))
    second = make_stream(input=first.settings.stream.input, cap=None)
    workers = [first.start(), second.start()]
    assert sorted(w.ends() for w in workers) in ([0, 3], [3, 3])
    spent = [s for p in range(3) for s in first_ledger(first).spend[p].over(0, 100)]
    assert max(s.epsilon for s in spent) == 1


def first_ledger(stream: Stream) -> Any:
    """Replay the ledger, allowing void entries."""
    from streaming_pca.privacy.ledger.ledger import Ledger

    ledger = Ledger(stream.topic_id)
    for entry in stream.entries():
        ledger.apply(entry)
    return ledger


CHANGES: dict[str, dict[str, Any]] = {
    "epsilon": {"epsilon": 0.5},
    "delta": {"delta": 1e-7},
    "dim": {"dim": 6},
    "rank": {"rank": 3},
    "estimator": {"estimator": "private-oja", "options": {"clip_radius": 1.0}},
    "centering": {"centering": "pairs"},
    "bounds": {"bounds": [-6.0, 5.0]},
    "max_rows": {"max_rows": 65},
}


def test_a_changed_promise_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream(centering="none", bounds=[-5.0, 5.0])
    stream.produce_vectors(stream.vectors(300))
    stream.run()
    before = stream.entries()
    for setting, change in CHANGES.items():
        changed = stream.changed(**change)
        writer = CheckpointWriter(changed.kafka, changed.stream, stream.topic_id)
        with closing(writer), pytest.raises(StreamRefused, match=f"stream.{setting} is") as refused:
            writer.take_over()
        assert "set it back, or choose a new stream.name" in str(refused.value)
    # A worker ends with this line.
    assert str(refused.value) in refusal(stream.start(changed), 2)
    assert stream.entries() == before
    # Settings outside the contract may change.
    assert stream.run(stream.changed("worker", tick_seconds=0.1))


def test_a_state_of_other_options_is_refused_before_a_batch_is_reserved(make_stream: MakeStream) -> None:
    """Charges come from the options and releases from the state: both must have the same shape."""
    options = {"clip_l2": 10.0, "batch_size": 100, "oversampling": 2}
    stream = make_stream(estimator="noisy-power", centering="none", options=options)
    stream.produce_vectors(stream.vectors(100))
    worker = stream.start()
    worker.logs("batch 1 released")
    worker.signal(15)
    assert worker.ends() == 0
    before = stream.entries()
    stream.produce_vectors(stream.vectors(100, seed=1))
    changed = stream.changed(options=options | {"oversampling": 1})
    line = refusal(stream.start(changed), 2)
    assert "was written by another version or with other stream.options: continue with those" in line
    assert stream.entries() == before
    check_books(stream)


def test_a_missing_topic_is_named(make_stream: MakeStream) -> None:
    stream = make_stream()
    settings = stream.settings
    for change in ({"input": "nowhere"}, {"name": "nobody"}):
        line = refusal(stream.start(stream.changed(**change)), 2)
        assert f"'{next(iter(change.values()))}" in line
        assert "topics create" in line
    with KafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers) as admin:
        admin.delete_topics([settings.stream.ledger_topic])
    line = refusal(stream.start(), 2)
    assert settings.stream.ledger_topic in line


def test_an_unreachable_broker_is_named_in_time(make_stream: MakeStream) -> None:
    stream = make_stream()
    nobody = f"127.0.0.1:{free_port()}"
    line = refusal(
        stream.start(stream.changed("kafka", bootstrap_servers=nobody, bootstrap_timeout_ms=5000)), 4
    )
    assert nobody in line


def test_a_ledger_that_is_not_open_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream(cap=None)
    stream.produce_vectors(stream.vectors(300))
    assert "is not open" in refusal(stream.start(), 2)
    assert stream.entries() == []


def test_another_cap_than_the_ledgers_is_refused_with_both(make_stream: MakeStream) -> None:
    stream = make_stream(cap=("1", "1e-6"))
    line = refusal(stream.start(stream.changed(cap={"epsilon": "3", "delta": "1/8"})), 2)
    assert "(3, 0.125)" in line
    assert "(1, 1e-06)" in line
    stream.produce_vectors(stream.vectors(300))
    stream.run(stream.changed(cap={"epsilon": "1", "delta": "0.000001"}))


def set_config(settings: Settings, topic: str, **configs: str) -> None:
    with KafkaAdminClient(bootstrap_servers=settings.kafka.bootstrap_servers) as admin:
        changes = {key.replace("_", "."): value for key, value in configs.items()}
        admin.alter_configs([ConfigResource("topic", topic, changes)])


def test_a_topic_kept_in_the_wrong_way_is_named(make_stream: MakeStream) -> None:
    stream = make_stream()
    names = stream.settings.stream
    wrong = {
        names.input: {"cleanup.policy": ("compact", "delete")},
        names.ledger_topic: {
            "retention.ms": ("604800000", "-1"),
            "retention.bytes": ("1000000", "-1"),
            "cleanup.policy": ("compact", "delete"),
        },
        names.state_topic: {"cleanup.policy": ("delete", "compact")},
    }
    lines = []
    for topic, configs in wrong.items():
        set_config(stream.settings, topic, **{key: value for key, (value, _) in configs.items()})
        lines += [
            f"topic {topic!r}: {key} is {value}, it must be {must}" for key, (value, must) in configs.items()
        ]
    _, problems = check_topics(stream.settings.kafka, names)
    fatal = [each.line for each in problems if each.fatal]
    for line in lines:
        assert any(line in each for each in fatal), (line, fatal)
    # A worker ends with the first of these lines.
    assert fatal[0] in refusal(stream.start(), 2)


def recreate(stream: Stream) -> None:
    """Delete the input topic, and create it again under the same name."""
    name = stream.settings.stream.input
    with KafkaAdminClient(bootstrap_servers=stream.settings.kafka.bootstrap_servers) as admin:
        admin.delete_topics([name])

        def is_created() -> bool:
            configs = {"compression.type": "uncompressed"}
            with suppress(KafkaError):
                admin.create_topics([NewTopic(name, stream.partitions, 1, topic_configs=configs)])
                return True
            return False

        wait_for(f"the deletion of {name}", is_created)
        admin.wait_for_topics([name], timeout_ms=int(1000 * LIMIT))


def test_an_input_topic_that_was_created_again_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(150))
    worker = stream.start()
    worker.logs("batch 1 released")
    worker.signal(15)
    assert worker.ends() == 0
    before = stream.entries()
    recreate(stream)
    stream.produce_vectors(stream.vectors(300))
    assert "was deleted and created again" in refusal(stream.start(), 2)
    assert stream.entries() == before


def test_an_input_topic_created_again_under_a_running_worker_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(150))
    worker = stream.start()
    worker.logs("batch 1 released")
    before = stream.entries()
    recreate(stream)
    stream.produce_vectors(stream.vectors(300))
    line = refusal(worker, 2)
    assert "created again" in line
    assert stream.entries() == before


def test_a_ledger_that_lost_entries_is_refused(make_stream: MakeStream) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(300))
    stream.run()
    from kafka import TopicPartition

    kafka: KafkaSettings = stream.settings.kafka
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.delete_records({TopicPartition(stream.settings.stream.ledger_topic, 0): 3})
    assert "entries were deleted" in refusal(stream.start(), 2)


def test_a_failing_estimator_gives_no_answer_and_no_explanation(make_stream: MakeStream) -> None:
    # A step so long that the iterate overflows and the eigendecomposition fails.
    oja = {**OJA, "options": OJA["options"] | {"learning_rate": 1e200, "offset": 0.0, "clip_radius": 1e200}}
    stream = make_stream(**oja)
    stream.produce_vectors(stream.vectors(250) * 100)
    for batch in (1, 2):
        line = refusal(stream.start(), 2)
        assert f"the estimator failed on batch {batch}, which is abandoned" in line
    assert [a.reason for a in stream.own(Abandoned)] == ["the estimator failed"] * 2
    assert len(stream.own(Reserved)) == 2
    assert not stream.releases()
    check_books(stream)
