"""The observer shows the topics' contents, and publishes events for changes."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable
from hashlib import sha256
from typing import Any

import numpy as np
import pytest

from streaming_pca.admin.broker_status import describe_status
from streaming_pca.admin.ledger import describe_ledger, describe_spent
from streaming_pca.dashboard.models import Event
from streaming_pca.dashboard.observing.lookup import Unknown, UnknownRelease
from streaming_pca.linalg.subspace import principal_angles
from streaming_pca.privacy.ledger.entries import Paused, Retired
from streaming_pca.privacy.parameters import format_number
from tests.dashboard.observing.conftest import Make, Observe
from tests.waiting import wait_for


def test_it_agrees_with_status(make: Make, observe: Observe) -> None:
    streams = [make(releases=n, partitions=3) for n in (0, 1, 4)]
    streams[2].produce(7)
    observer = observe(*streams)
    # The broker's answers on leaders and lags arrive with the next round.

    def is_known() -> bool:
        return all(s.lag is not None and s.leader is not None for s in observer.overview().streams)

    wait_for("the leader", is_known)
    facts_of = {facts["stream"]: facts for facts in describe_status([s.settings for s in streams])}
    traffic = observer.traffic(streams[2].name)
    assert (traffic.offsets[-1], traffic.lag_high[-1]) == (7, facts_of[streams[2].name]["lag"]["total"])
    seen = observer.overview().streams
    assert [s.name for s in seen] == sorted(facts_of)
    for summary in seen:
        facts = facts_of[summary.name]
        assert summary.problem is None
        names = {"standing", "records", "batches", "lag", "leader"}
        assert summary.model_dump(include=names) == {name: facts[name] for name in names}
        assert summary.budget is not None
        for name, known in (facts["charged"] | {"left": facts["left"], "cap": facts["cap"]}).items():
            shown = getattr(summary.budget, name).model_dump(exclude_none=True)
            assert shown == {key: format_number(value) for key, value in known.items()}
        last, known = summary.last_release, facts["last_release"]
        assert (last is None) == (known is None)
        if last is not None:
            shown = {name: getattr(last, name) for name in known if name != "advice"}
            shown["advice"] = None if summary.advice is None else summary.advice.model_dump()
            assert shown == known


def test_a_history_is_of_the_releases(make: Make, observe: Observe) -> None:
    stream = make(releases=6, dim=7, rank=3, feature_names=[f"f{i}" for i in range(7)])
    observer = observe(stream)
    seen, known = observer.history(stream.name), stream.releases
    assert seen.complete
    columns = ("batch", "records", "created", "explained_variance", "explained_variance_error")
    for column in (*columns, "total_variance", "angle_bound"):
        assert getattr(seen, column) == [getattr(release, column) for release in known], column
    assert (seen.angles[0], seen.noise_bound[0]) == (None, None)
    for i in range(1, 6):
        angles, both = seen.angles[i], known[i - 1 : i + 1]
        assert angles is not None
        assert angles == sorted(angles, reverse=True)
        bases = [np.array(release.components) for release in both]
        assert angles[0] == pytest.approx(principal_angles(*bases)[0], abs=1e-12)
        assert len(angles) == 3
        assert seen.noise_bound[i] == min(sum(r.angle_bound or math.inf for r in both), math.pi / 2)
    assert seen.null_share == [min(max(r.counts["null_records"] / 100, 0), 1) for r in known]
    assert seen.null_share_error == [0.01] * 6
    assert seen.clipped_share == [r.counts["clipped_records"] / r.counts["clipped_of"] for r in known]
    assert observer.stream(stream.name).feature_names == [f"f{i}" for i in range(7)]

    first = observer.releases(stream.name, 4)
    assert [r.batch for r in first.items] == [6, 5, 4, 3]
    assert first.next == 3
    rest = observer.releases(stream.name, 4, first.next)
    assert ([r.batch for r in rest.items], rest.next) == ([2, 1], None)
    assert [r.digest for r in first.items] == [sha256(v).hexdigest() for v in stream.values[:1:-1]]
    for batch, value in enumerate(stream.values, 1):
        assert observer.release(stream.name, batch) == (value, known[batch - 1])
    assert observer.release(stream.name)[0] == stream.values[-1]


def test_news_come_after_the_state(make: Make, observe: Observe) -> None:
    stream = make(releases=1)
    observer = observe(stream)
    wait_for("the lag", lambda: observer.stream(stream.name).lag)
    heard: list[tuple[Event, Any]] = []

    def listen(event: Event) -> None:
        last = observer.stream(stream.name).last_release
        heard.append((event, (last and last.batch, observer.ledger(stream.settings.stream.input).entries)))

    def fail(event: Event) -> None:
        raise RuntimeError("a listener that fails must not harm others")

    unlisten = [observer.listen(fail), observer.listen(listen)]
    for _ in range(2):
        stream.publish()
        wait_for("the events", lambda: ("release", stream._batch) in [(e.kind, e.batch) for e, _ in heard])
    # The events of its ledger and its standing may follow the release.
    wait_for("the events", lambda: {"release", "ledger", "standing"} <= {e.kind for e, _ in list(heard)})
    wait_for("the records", lambda: observer.stream(stream.name).records == 300)
    for event, (batch, entries) in heard:
        if event.kind == "release":
            assert event.stream == stream.name
            assert event.batch == batch
        if event.kind == "ledger":
            assert event.input == stream.settings.stream.input
            assert entries in (7, 10)
    revisions = [e.revision for e, _ in heard]
    assert revisions == sorted(set(revisions))
    assert observer.overview().revision >= revisions[-1]
    for end in unlisten:
        end()
        end()
    stream.publish()
    wait_for("the release", lambda: observer.release(stream.name)[1].batch == 4)
    assert 4 not in [e.batch for e, _ in heard]


def test_aborted_releases_are_never_shown(make: Make, observe: Observe) -> None:
    stream = make(releases=2)
    aborted = [stream.next_release().to_bytes() for _ in range(3)]
    stream.send([(stream.settings.stream.releases_topic, value) for value in aborted], commit=False)
    observer = observe(stream)
    assert observer.history(stream.name).batch == [1, 2]
    stream.send([(stream.settings.stream.releases_topic, value) for value in aborted], commit=False)
    stream.publish(entries=False)
    wait_for("the release", lambda: observer.release(stream.name)[1].batch == 6)
    assert observer.history(stream.name).batch == [1, 2, 6]
    assert observer.stream(stream.name).unreadable == 0
    with pytest.raises(UnknownRelease, match="batch 4"):
        observer.release(stream.name, 4)


def test_a_ledger_is_shown_entry_by_entry(make: Make, observe: Observe) -> None:
    stream = make(releases=3, partitions=2)
    name, topic = stream.name, stream.settings.stream.input
    stream.produce(4)
    own = {"topic_id": stream.topic_id, "job": name}
    stream.append(Paused(**own, previous=stream.head, reason="for a look"))
    stream.append(Retired(**own, previous=stream.head, reason="it was long enough"))
    observer = observe(stream)
    described = describe_ledger(stream.settings.kafka, topic)
    page = observer.entries(topic, 100)
    assert page.complete
    assert page.next is None
    assert [row.offset for row in page.items] == [e["offset"] for e in described["entries"]][::-1]
    for row, entry in zip(page.items, reversed(described["entries"]), strict=True):
        assert (row.kind, row.void or "") == (entry["kind"], entry["void"])
        names = ("job", "batch", "records", "reason")
        assert [getattr(row, name) for name in names] == [entry.get(name) for name in names]
        ranges = [{k: r[k] for k in ("partition", "start", "end")} for r in entry.get("ranges", ())]
        assert [r.model_dump() for r in row.ranges] == ranges
    assert page.items[-1].kind == "OPENED"
    parts = [observer.entries(topic, 5), observer.entries(topic, 5, page.items[4].offset)]
    assert [row for part in parts for row in part.items] == page.items[:10]
    assert parts[0].next == page.items[4].offset
    assert len(observer.entries(topic, 100, job=name).items) == len(page.items) - 1
    assert observer.entries(topic, 100, job="nobody").items == []

    summary = observer.ledger(topic)
    assert observer.ledgers() == [summary]
    assert summary.topic_id == stream.topic_id
    assert summary.entries == 12
    assert [job.standing for job in summary.jobs] == ["retired"]
    detail = wait_for("the stream", lambda: observer.stream(name))
    assert detail.standing == "retired"
    assert detail.health.reasons == ["Retired and no longer learning: it was long enough."]

    for partition, offset in ((0, 7), (1, 1)):
        charge = observer.record_charge(topic, partition, offset)
        known = describe_spent(stream.settings.kafka, topic, partition, offset) if partition else None
        assert charge.jobs.keys() == ({name} if partition == 0 else set())
        if known is not None:
            assert charge.spent.model_dump(exclude_none=True) == known["spent"]
    assert observer.record_charge(topic, 0, 299).spent.epsilon == "1"
    for place in ((0, 300), (1, 2), (2, 0)):
        with pytest.raises(Unknown, match="partition"):
            observer.record_charge(topic, *place)


def test_what_is_not_there_has_an_error(make: Make, observe: Observe) -> None:
    empty, shut = make(), make(cap=None)
    observer = observe(empty, shut)
    questions: list[tuple[Callable[..., object], tuple[Any, ...], type[Exception], str]] = [
        (observer.stream, ("nobody",), Unknown, "stream 'nobody' is not in the settings"),
        (observer.history, ("nobody",), Unknown, "nobody"),
        (observer.release, ("nobody",), Unknown, "nobody"),
        (observer.ledger, ("nothing",), Unknown, "no stream of the settings reads topic 'nothing'"),
        (observer.verify, ("nothing",), Unknown, "nothing"),
        (observer.release, (empty.name,), UnknownRelease, "has no release yet"),
        (observer.release, (empty.name, 1), UnknownRelease, "batch 1"),
        (observer.record_charge, (shut.settings.stream.input, 0, 0), Unknown, "not open"),
    ]
    for ask, given, error, words in questions:
        with pytest.raises(error, match=words):
            ask(*given)
    assert observer.stream(shut.name).budget is None
    assert "The ledger is not open" in observer.stream(shut.name).health.reasons[0]
    assert observer.stream(empty.name).last_release is None
    assert observer.history(empty.name).batch == []


def test_a_verification_runs_in_a_thread(make: Make, observe: Observe) -> None:
    clean, stateless = make(), make(releases=2)
    observer = observe(clean, stateless)
    done = threading.Event()
    topics = [s.settings.stream.input for s in (clean, stateless)]
    assert observer.verification(topics[0]).state == "never"
    observer.listen(lambda e: done.set() if e.input == topics[0] else None)
    begun = observer.verify(topics[0])
    assert (begun.state, begun.finished) == ("running", None)
    # One at a time: the second has not started, or the first has ended in between.
    assert observer.verify(topics[1]).state in ("never", "running")
    wait_for("the verification", lambda: observer.verification(topics[0]).state != "running")
    ended = observer.verification(topics[0])
    assert (ended.state, ended.entries, ended.problems, ended.states) == ("verified", 1, [], True)
    assert ended.finished is not None
    assert done.is_set()
    wait_for("the verification", lambda: observer.verify(topics[1]).state in ("running", "problems"))
    wait_for("the verification", lambda: observer.verification(topics[1]).state == "problems")
    assert "the state that the ledger committed with batch" in observer.verification(topics[1]).problems[0]


def test_streams_of_one_topic_share_its_ledger(make: Make, observe: Observe) -> None:
    first = make(releases=2)
    second = make(input=first.settings.stream.input, cap=("10", "1e-5"))
    second.publish(3)
    observer = observe(first, second)
    (ledger,) = observer.ledgers()
    assert {job.name: job.batches.released for job in ledger.jobs} == {first.name: 2, second.name: 3}
    for stream in (first, second):
        budget = observer.stream(stream.name).budget
        assert budget is not None
        assert (budget.by_stream.epsilon, budget.by_all.epsilon, budget.left.epsilon) == ("1", "2", "8")
        assert budget.spent_share == pytest.approx(0.2)


def test_a_budget_that_allows_no_further_batch_is_a_problem(make: Make, observe: Observe) -> None:
    first = make(releases=2, cap=("1", "1e-6"))
    second = make(input=first.settings.stream.input)
    first.produce(150)
    observer = observe(first, second)

    def refusals() -> list[str]:
        return [r for r in observer.stream(second.name).health.reasons if "does not allow its next" in r]

    assert "partition 0" in wait_for("a reason", refusals)[0]
    assert not any("does not allow" in r for r in observer.stream(first.name).health.reasons)
