"""Records go in and private subspaces come out; invalid input and settings are refused."""

from __future__ import annotations

import io
import json
from contextlib import closing, suppress
from typing import Any

import numpy as np
import pytest
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from streaming_pca.api import DEFAULT_ESTIMATOR
from streaming_pca.privacy.ledger.entries import Abandoned, OffsetRange, Reserved
from streaming_pca.service.commit.checkpoint import CheckpointWriter
from streaming_pca.service.errors import StreamRefused
from tests.kafka.conftest import Make
from tests.kafka.faults.chaos_payloads import BAD
from tests.kafka.stream import (
    ENDLESS,
    OCTETS,
    Stream,
    check_books,
    have_released,
    ranges_of,
    run_each,
    run_together,
    start_together,
)
from tests.ports import steady_port
from tests.service.contract import check_messages
from tests.waiting import LIMIT, wait_for

OJA: dict[str, Any] = ENDLESS | {"options": {"clip_radius": 20.0, "batch_size": 100}}
MATRICES = {"record_kind": "matrix", "centering": "none"}


# -- successful runs -------------------------------------------------------


def test_vectors_become_one_release_a_batch(make_stream: Make) -> None:
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


def test_factors_are_records_of_several_rows(make_stream: Make) -> None:
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


def test_symmetric_matrices_are_records(make_stream: Make) -> None:
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
    worker.until("all batches", lambda: have_released([oja, *streams], 2))
    worker.stop()
    for stream in (oja, *streams):
        check_books(stream)
        assert [r.records for r in stream.releases()] == [20, 40]


def test_all_content_types_mean_the_same_record(make_stream: Make) -> None:
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


def test_json_whose_header_is_missing_is_noticed_and_can_be_the_default(make_stream: Make) -> None:
    """2,200 such messages once became null records, and only one noisy gauge showed it."""
    how: dict[str, Any] = {"options": {"n_records": 4400, "n_batches": 1}, "partitions": 1}
    unread = make_stream(**how)
    read = make_stream(**how, format="json")
    values = [json.dumps({"x": row.tolist()}).encode() for row in unread.vectors(4400)]
    for stream in (unread, read):
        stream.produce(values, headers=())
    run_each(unread, read, noise=False)
    counts = [stream.releases()[0].counts for stream in (unread, read)]
    # The noise has a standard deviation of 141 records; six of them are exceeded about once in 1e4 runs.
    assert counts[0]["null_records"] > 3520
    assert abs(counts[1]["null_records"]) < 880
    warning = "% of its records are null: `streaming-pca payload check` shows why"
    assert [warning in stream.children[0].log for stream in (unread, read)] == [True, False]
    assert "content_type" in read.own(Reserved)[0].promise
    for stream in (unread, read):
        check_books(stream)


def npy(array: Any, **how: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array, **how)
    return buffer.getvalue()


def test_the_second_leader_goes_on_where_the_first_stopped(make_stream: Make) -> None:
    stream = make_stream(**OJA)
    x = stream.vectors(400)
    stream.produce_vectors(x[:200])
    stream.run_until("batch 2 released")
    done = len(stream.releases())
    # Not earlier: the first worker would learn from all of them if its signal came late.
    stream.produce_vectors(x[200:])
    second = stream.run_until("batch 4 released")
    check_books(stream)
    assert [r.batch for r in stream.releases()] == [1, 2, 3, 4]
    assert f"batch {done} released" not in second.log


# -- places ----------------------------------------------------------------


def test_aborted_records_and_markers_do_not_count(make_stream: Make) -> None:
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


# kafka-python cannot send a message without key and value, or a header without a value.
MALFORMED = [
    (value or b"", [(name, item or b"") for name, item in headers])
    for value, headers in (make(np.ones((1, 5))) for make in BAD.values())
]
COUNT = 3 * len(MALFORMED)


def test_malformed_records_keep_their_places(make_stream: Make) -> None:
    how = {"options": {"n_records": COUNT, "n_batches": 3, "clip_radius": 400.0}, "centering": "none"}
    malformed, null = make_stream(**how), make_stream(**how)
    x = malformed.vectors(COUNT)
    for stream, bad in ((malformed, MALFORMED), (null, [(b"", [])] * len(MALFORMED))):
        # Every third record is malformed, on each partition in turn.
        stream.send(
            (bad[i // 3] if i % 3 == 0 else (x[i].tobytes(), OCTETS) for i in range(COUNT)),
            lambda i: (i + i // 3) % 3,
        )
    run_together(malformed, null, noise=False)
    check_books(malformed)
    assert ranges_of(malformed) == ranges_of(null)
    learnt = [[(r.components, r.explained_variance) for r in s.releases()] for s in (malformed, null)]
    assert learnt[0] == learnt[1]


def test_skewed_and_empty_partitions_and_malformed_records_give_what_they_have(make_stream: Make) -> None:
    skewed = make_stream(options={"n_records": 200, "n_batches": 2, "growth": 1.0})
    skewed.produce_vectors(skewed.vectors(200), lambda i: 0 if i < 150 else (1 if i < 195 else 2))
    # An empty partition does not hold the others up.
    empty = make_stream(options={"n_records": 40, "n_batches": 2})
    empty.produce_vectors(empty.vectors(40), lambda i: i % 2)
    # A batch of malformed records only is learnt.
    malformed = make_stream(options={"n_records": 32, "n_batches": 2}, partitions=1)
    malformed.send(MALFORMED[:32])
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


def test_what_a_batch_holds_does_not_depend_on_sizes(make_stream: Make) -> None:
    how = {"options": {"n_records": 240, "n_batches": 3, "clip_radius": 400.0}, "centering": "none"}
    small, large, thin = (make_stream(**how) for _ in range(3))
    x = small.vectors(240)
    small.produce_vectors(x)
    # The same vectors, but in one partition the payloads are a hundred times as large.
    padded = [json.dumps({"x": [float(v) for v in row]}).encode() + b" " * 4000 for row in x]
    large.produce_vectors(x[np.arange(240) % 3 != 1], lambda i: (0, 2)[i % 2])
    large.produce(padded[1::3], lambda i: 1, [("content-type", b"application/json")])
    thin.produce_vectors(x)
    sizes = ((small, None), (large, 8192), (thin, 512))
    for worker in [stream.start(noise=False, fetch_bytes=size) for stream, size in sizes]:
        worker.ends_well()
    assert ranges_of(small) == ranges_of(large) == ranges_of(thin)
    learnt = [[r.components for r in stream.releases()] for stream in (small, large, thin)]
    assert learnt[0] == learnt[1] == learnt[2]


def test_pairs_come_from_one_partition(make_stream: Make) -> None:
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


def test_a_second_job_is_refused_by_the_cap(make_stream: Make) -> None:
    first = make_stream(cap=("1", "1e-6"))
    first.produce_vectors(first.vectors(300))
    first.run()
    second = make_stream(input=first.settings.stream.input, cap=None)
    line = second.start().refusal(3)
    assert "cap" in line
    assert "already charged epsilon 1" in line
    assert second.own(Reserved) == []
    check_books(first)


def test_a_second_job_runs_where_the_cap_is_for_both(make_stream: Make) -> None:
    first = make_stream(cap=("2", "2e-6"))
    first.produce_vectors(first.vectors(300))
    second = make_stream(input=first.settings.stream.input, cap=None)
    run_each(first, second)
    check_books(first)
    check_books(second)
    spent = first.replay().spent(0, 0)
    assert (float(spent.epsilon), float(spent.delta)) == (2.0, 2e-6)


def test_of_two_jobs_at_once_the_log_decides(make_stream: Make) -> None:
    first = make_stream(cap=("1", "1e-6"))
    first.produce_vectors(first.vectors(300))
    second = make_stream(input=first.settings.stream.input, cap=None)
    workers = [first.start(), second.start()]
    assert sorted(w.ends() for w in workers) in ([0, 3], [3, 3])
    ledger = first.replay(void=True)
    assert max(s.epsilon for p in range(3) for s in ledger.spend[p].over(0, 100)) == 1


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


def test_a_changed_promise_is_refused(make_stream: Make) -> None:
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
    assert str(refused.value) in stream.start(changed).refusal()
    assert stream.entries() == before
    # Settings outside the contract may change.
    assert stream.run(stream.changed("worker", tick_seconds=0.1))


def test_a_state_of_other_options_is_refused_before_a_batch_is_reserved(make_stream: Make) -> None:
    """Charges come from the options and releases from the state: both must have the same shape."""
    options = {"clip_l2": 10.0, "batch_size": 100, "oversampling": 2}
    stream = make_stream(estimator="noisy-power", centering="none", options=options)
    stream.produce_vectors(stream.vectors(100))
    stream.run_until("batch 1 released")
    before = stream.entries()
    stream.produce_vectors(stream.vectors(100, seed=1))
    changed = stream.changed(options=options | {"oversampling": 1})
    line = stream.start(changed).refusal()
    assert "was written by another version or with other stream.options: continue with those" in line
    assert stream.entries() == before
    check_books(stream)


def test_a_missing_topic_is_named(make_stream: Make) -> None:
    stream = make_stream()
    for change in ({"input": "nowhere"}, {"name": "nobody"}):
        line = stream.start(stream.changed(**change)).refusal()
        assert f"'{next(iter(change.values()))}" in line
        assert "topics create" in line
    stream.delete("ledger")
    assert stream.settings.stream.ledger_topic in stream.start().refusal()


def test_an_unreachable_broker_is_named_in_time(make_stream: Make) -> None:
    stream = make_stream()
    nobody = f"127.0.0.1:{steady_port()}"
    changed = stream.changed("kafka", bootstrap_servers=nobody, bootstrap_timeout_ms=5000)
    assert nobody in stream.start(changed).refusal(4)


def test_a_ledger_that_is_not_open_is_refused(make_stream: Make) -> None:
    stream = make_stream(cap=None)
    stream.produce_vectors(stream.vectors(300))
    assert "is not open" in stream.start().refusal()
    assert stream.entries() == []


def test_another_cap_than_the_ledgers_is_refused_with_both(make_stream: Make) -> None:
    stream = make_stream(cap=("1", "1e-6"))
    line = stream.start(stream.changed(cap={"epsilon": "3", "delta": "1/8"})).refusal()
    assert "(3, 0.125)" in line
    assert "(1, 1e-06)" in line
    stream.produce_vectors(stream.vectors(300))
    stream.run(stream.changed(cap={"epsilon": "1", "delta": "0.000001"}))


def recreate(stream: Stream) -> None:
    """Delete the input topic, and create it again under the same name."""
    name = stream.settings.stream.input
    with stream.admin() as admin:
        admin.delete_topics([name])

        def is_created() -> bool:
            configs = {"compression.type": "uncompressed"}
            with suppress(KafkaError):
                admin.create_topics([NewTopic(name, stream.partitions, 1, topic_configs=configs)])
                return True
            return False

        wait_for(f"the deletion of {name}", is_created)
        admin.wait_for_topics([name], timeout_ms=int(1000 * LIMIT))


@pytest.mark.parametrize("runs", [False, True])
def test_an_input_topic_that_was_created_again_is_refused(make_stream: Make, runs: bool) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(150))
    worker = stream.start()
    worker.logs("batch 1 released")
    if not runs:
        worker.stop()
    before = stream.entries()
    recreate(stream)
    stream.produce_vectors(stream.vectors(300))
    assert "was deleted and created again" in (worker if runs else stream.start()).refusal()
    assert stream.entries() == before


def test_a_ledger_that_lost_entries_is_refused(make_stream: Make) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(300))
    stream.run()
    stream.delete_before({0: 3}, "ledger")
    assert "entries were deleted" in stream.start().refusal()


def test_a_failing_estimator_gives_no_answer_and_no_explanation(make_stream: Make) -> None:
    # A step so long that the iterate overflows and the eigendecomposition fails.
    oja = {**OJA, "options": OJA["options"] | {"learning_rate": 1e200, "offset": 0.0, "clip_radius": 1e200}}
    stream = make_stream(**oja)
    stream.produce_vectors(stream.vectors(250) * 100)
    for batch in (1, 2):
        line = stream.start().refusal()
        assert f"the estimator failed on batch {batch}, which is abandoned" in line
    assert [a.reason for a in stream.own(Abandoned)] == ["the estimator failed"] * 2
    assert len(stream.own(Reserved)) == 2
    assert not stream.releases()
    check_books(stream)
