"""Topics that are hostile, missing, deleted, recreated or truncated, and histories beyond the limit."""

from __future__ import annotations

import json
import threading
import tracemalloc
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kafka import TopicPartition
from kafka.admin import NewPartitions

from streaming_pca.dashboard.observing import ledgers, topic_tail, watched
from streaming_pca.dashboard.observing.ledgers import LedgerView
from streaming_pca.dashboard.observing.logs import TopicsLost, TopicsReader
from streaming_pca.dashboard.observing.lookup import UnknownRelease
from streaming_pca.dashboard.observing.releases import LATEST_BYTES, MOST_NUMBERS, ReleaseHistory
from streaming_pca.dashboard.observing.streams import StreamState
from streaming_pca.privacy.ledger.entries import Cap, Charged, OffsetSpan, Opened, encode_entry, entry_hash
from streaming_pca.privacy.parameters import Charge
from tests.dashboard.observing.conftest import Make, Observe
from tests.dashboard.streams import MadeStream, administration, make_stream, make_streams
from tests.waiting import wait_for


def hostile(stream: MadeStream) -> list[bytes]:
    """Return messages that an attacker could write to a releases topic; the last has a future version."""
    good = stream.next_release()
    plain = json.loads(good.to_bytes())

    def changed(**fields: Any) -> bytes:
        return json.dumps(plain | fields).encode()

    return [
        b"",
        b"no release",
        b"[" * 100_000,
        b'{"batch": ' + b"9" * 5000 + b"}",
        changed(schema_name="something.else"),
        changed(components=[[float("nan")] * 5] * 2),
        changed(components=[[0.0]]),
        changed(components=[[1e308] * 5] * 2),
        changed(bounds=[1.0, -1.0]),
        changed(explained_variance=[1.0]),
        changed(batch=2**70),
        changed(records=-5),
        changed(stream="another"),
        changed(dim=6, components=[[0.0] * 6] * 2),
        changed(rank=1, components=[[1.0, 0, 0, 0, 0]], explained_variance=[1.0]),
        changed(created="yesterday"),
        changed(feature_names=["too", "few"]),
        changed(epsilon=None),
        changed(version=99, kind="of a later version"),
    ]


def test_messages_that_are_no_releases_are_counted(make: Make, observe: Observe) -> None:
    stream = make(releases=1)
    messages = hostile(stream)
    topic = stream.settings.stream.releases_topic
    stream.send([(topic, value) for value in messages])
    observer = observe(stream)
    assert observer.history(stream.name).batch == [1]
    assert observer.stream(stream.name).unreadable == len(messages)
    reasons = observer.stream(stream.name).health.reasons
    assert any(f"not releases of this stream: {len(messages)}" in reason for reason in reasons)
    # Numbers beyond all bounds are still valid in a release.
    huge = {"total_variance": 1e308, "null_records": -1e308}
    huge |= {"explained_variance": [1e308, -1e308], "explained_variance_error": [1e308, 0.0]}
    stream.publish(1, entries=False, **huge)
    stream.publish(2, entries=False, doubts=("of-later-versions",), outcome="also-later")
    wait_for("the history", lambda: observer.history(stream.name).batch == [1, 3, 4, 5])
    seen = observer.history(stream.name)
    assert [angle is None for angle in seen.angles] == [True, False, False, False]
    assert (seen.null_share[1], seen.null_share_error[1]) == (0.0, 0.01)
    # All of it is JSON that any reader accepts.
    json.loads(seen.model_dump_json(), parse_constant=pytest.fail)
    json.loads(observer.overview().model_dump_json(), parse_constant=pytest.fail)
    assert observer.release(stream.name)[1].doubts == ("of-later-versions",)
    assert observer.stream(stream.name).unreadable == len(messages)
    with pytest.raises(UnknownRelease):
        observer.release(stream.name, 2)


def test_a_ledger_with_a_message_that_is_no_entry_is_a_problem(make: Make, observe: Observe) -> None:
    sound, broken = make(releases=1), make(releases=1)
    observer = observe(sound, broken)
    broken.send([(broken.settings.stream.ledger_topic, b"no entry")])
    problem = wait_for("a problem", lambda: observer.stream(broken.name).problem)
    assert "not a ledger entry" in problem
    assert "\n" not in problem
    assert observer.ledger(broken.settings.stream.input).problem == problem
    assert observer.stream(broken.name).records is None
    assert observer.stream(broken.name).health.level == "problem"
    assert observer.stream(sound.name).problem is None
    assert observer.overview().connection.ok


def test_an_error_in_a_thread_is_told_and_the_thread_goes_on(
    make: Make, observe: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = make(releases=1)
    observer = observe(stream)
    add, state = ReleaseHistory.add, StreamState.stand

    def fail(*given: Any, **how: Any) -> Any:
        raise RuntimeError("in the midst of a secret")

    for part, name, real in ((ReleaseHistory, "add", add), (StreamState, "stand", state)):
        monkeypatch.setattr(part, name, fail)
        stream.publish(1, entries=False)
        problem = wait_for("a problem of the connection", lambda: observer.overview().connection.problem)
        assert problem == "the dashboard failed (RuntimeError): see its log"
        monkeypatch.setattr(part, name, real)
        wait_for("the connection", lambda: observer.overview().connection.ok)
    stream.publish(1, entries=False)
    wait_for("the history", lambda: observer.history(stream.name).batch == [1, 2, 3, 4])


def test_missing_topics_are_a_problem_until_they_are_there(
    kafka_bootstrap: str, make: Make, observe: Observe, unique_name: Callable[[str], str]
) -> None:
    there = make(releases=1)
    name = unique_name("later")
    stream = there.settings.stream
    options = stream.model_dump(mode="json") | {"name": name, "input": f"in-{name}"}
    later = there.settings.model_copy(update={"stream": type(stream)(**options)})
    observer = observe(there, later)
    problem = wait_for("a problem", lambda: observer.stream(name).problem)
    assert problem.startswith(f"topic 'in-{name}' is missing: correct its name; operators create it by")
    assert observer.stream(name).health.reasons == [problem]
    assert observer.ledger(f"in-{name}").problem == problem
    assert observer.stream(there.name).problem is None
    made = make_stream(kafka_bootstrap, name, releases=2)
    wait_for("the end of the problem", lambda: observer.stream(name).problem is None)
    wait_for("the history", lambda: observer.history(name).batch == [1, 2])
    wait_for("the records", lambda: observer.stream(name).records == 200)
    assert observer.release(name)[0] == made.values[-1]


def test_topics_made_anew_are_read_from_their_beginnings(
    kafka_bootstrap: str, make: Make, observe: Observe
) -> None:
    stream, other = make(releases=5), make(releases=1)
    name, of = stream.name, stream.settings.stream
    observer = observe(stream, other)
    observer.verify(of.input)
    wait_for("the verification", lambda: observer.verification(of.input).finished)
    with administration(stream) as admin:
        admin.delete_topics([of.input, of.ledger_topic, of.state_topic, of.releases_topic])
    problem = wait_for("a problem", lambda: observer.stream(name).problem)
    assert "is missing" in problem
    again = wait_for("other topics", lambda: _made_again(kafka_bootstrap, name))
    again.publish(2)
    wait_for("the end of the problem", lambda: observer.stream(name).problem is None)
    wait_for("the history", lambda: observer.history(name).batch == [1, 2])
    wait_for("the records", lambda: observer.stream(name).records == 200)
    assert observer.history(name).complete
    assert observer.ledger(of.input).topic_id == again.topic_id != stream.topic_id
    assert observer.verification(of.input).state == "never"
    assert observer.release(name, 1)[0] == again.values[0] != stream.values[0]
    with pytest.raises(UnknownRelease):
        observer.release(name, 5)
    assert observer.stream(name).problem is None
    assert observer.history(other.name).batch == [1]
    # The recreated topic grows longer than the first: nothing of the first is left either.
    again.publish(1)
    wait_for("the history", lambda: observer.history(name).batch == [1, 2, 3])


def _made_again(bootstrap: str, name: str) -> MadeStream | None:
    """Make a stream once the broker has deleted its topics; its releases differ from the first's."""
    try:
        made = make_stream(bootstrap, name)
    except Exception as error:
        # A topic under deletion blocks its name for a moment.
        if not any(word in str(error).lower() for word in ("delet", "exist", "missing")):
            raise
        return None
    made.next_release()
    made._batch = 0
    return made


def test_releases_that_retention_deletes_are_gone(make: Make, observe: Observe) -> None:
    stream = make(releases=6)
    observer = observe(stream)
    page = observer.releases(stream.name, 10)
    fourth = next(r.offset for r in page.items if r.batch == 4)
    tp = TopicPartition(stream.settings.stream.releases_topic, 0)
    with administration(stream) as admin:
        admin.delete_records({tp: fourth})
    wait_for("the history", lambda: observer.history(stream.name).batch == [4, 5, 6])
    assert observer.history(stream.name).complete
    with pytest.raises(UnknownRelease, match="no longer holds it"):
        observer.release(stream.name, 3)
    assert observer.release(stream.name, 4)[0] == stream.values[3]
    # After deleting all of them, the next release is still read.
    with administration(stream) as admin:
        admin.delete_records({tp: page.items[0].offset + 1})
    wait_for("the history", lambda: observer.history(stream.name).batch == [6])
    stream.publish()
    wait_for("the history", lambda: observer.history(stream.name).batch in ([7], [6, 7]))
    fresh = observe(stream)
    assert fresh.history(stream.name).batch == [7]


def test_a_ledger_that_lost_entries_says_nothing(make: Make, observe: Observe) -> None:
    stream = make(releases=2)
    observer = observe(stream)
    with administration(stream) as admin:
        admin.delete_records({TopicPartition(stream.settings.stream.ledger_topic, 0): 3})
    problem = wait_for("a problem", lambda: observer.stream(stream.name).problem)
    assert "entries were deleted" in problem
    assert observe(stream).stream(stream.name).problem == problem


def test_an_older_release_is_looked_up_in_the_topic(make: Make, observe: Observe) -> None:
    stream = make(releases=60, ledger_batches=2)
    aborted = stream.next_release().to_bytes()
    topic = stream.settings.stream.releases_topic
    stream.send([(topic, aborted)], commit=False)
    stream.send([(topic, b"no release")])
    stream.publish(20, entries=False)
    observer = observe(stream, history=10)
    seen = observer.history(stream.name)
    assert seen.batch == list(range(72, 82))
    assert not seen.complete
    assert observer.releases(stream.name, 100).next is None
    for batch, value in [*enumerate(stream.values[:60], 1), *enumerate(stream.values[60:], 62)]:
        assert observer.release(stream.name, batch)[0] == value
    for batch in (61, 0, -1, 82, 10**9):
        with pytest.raises(UnknownRelease):
            observer.release(stream.name, batch)
    stream.publish(3, entries=False)
    wait_for("the history", lambda: observer.history(stream.name).batch == list(range(75, 85)))


def test_a_release_larger_than_what_is_held_is_read_again(make: Make, observe: Observe) -> None:
    large, small = make(releases=2, dim=4096, rank=64), make(releases=1)
    assert len(large.values[1]) > LATEST_BYTES
    observer = observe(large, small)
    history = observer.history(large.name)
    assert history.batch == [1, 2]
    assert history.angles[1] is not None
    assert len(history.angles[1]) == 64
    assert observer.release(large.name)[0] == large.values[1]
    assert observer.release(large.name, 1)[0] == large.values[0]


@pytest.mark.broker
def test_the_embedded_broker_will_do(
    embedded_bootstrap: str, observe: Observe, unique_name: Callable[[str], str]
) -> None:
    how: dict[str, Any] = {"releases": 3, "kafka": {"unchecked_topics": True}}
    streams = [make_stream(embedded_bootstrap, unique_name("demo"), **how) for _ in range(2)]
    observer = observe(*streams)
    for stream in streams:
        assert observer.history(stream.name).batch == [1, 2, 3]
        wait_for("the lag", lambda: all(s.lag is not None for s in observer.overview().streams))
        assert observer.stream(stream.name).records == 300
        stream.publish()
        assert observer.release(stream.name, 1)[0] == stream.values[0]
    wait_for("the history", lambda: all(observer.history(s.name).batch == [1, 2, 3, 4] for s in streams))


def test_the_rows_of_a_ledger_are_bounded(
    make: Make, observe: Observe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watched, "MOST_ENTRIES", 10)
    stream = make(releases=10)
    observer = observe(stream)
    page = observer.entries(stream.settings.stream.input, 100)
    assert len(page.items) == 10
    assert not page.complete
    assert page.next is None
    assert observer.ledger(stream.settings.stream.input).entries == 31
    assert observer.stream(stream.name).records == 1000


def test_new_partitions_are_part_of_the_lag(make: Make, observe: Observe) -> None:
    stream = make(releases=1, partitions=1)
    observer = observe(stream)
    wait_for("the lag", lambda: observer.stream(stream.name).lag)
    with administration(stream) as admin:
        admin.create_partitions({stream.settings.stream.input: NewPartitions(total_count=3)})
    stream.partitions = 3
    wait_for("the lag", lambda: len(observer.stream(stream.name).lag.partitions) == 3)  # type: ignore[union-attr]
    stream.produce(6)
    wait_for("the lag", lambda: observer.stream(stream.name).lag.total == 4)  # type: ignore[union-attr]


def test_twenty_streams_take_one_thread(
    kafka_bootstrap: str, observe: Observe, unique_name: Callable[[str], str]
) -> None:
    names = [unique_name("many") for _ in range(20)]
    streams = make_streams(kafka_bootstrap, names, releases=30, ledger_batches=3)
    before = threading.active_count()
    observer = observe(*streams)
    # The whole process shares the client's own thread for sockets.
    assert threading.active_count() <= before + 2
    assert [s.name for s in observer.overview().streams] == sorted(names)
    for stream in streams:
        assert observer.history(stream.name).batch == list(range(1, 31))
        assert observer.stream(stream.name).records == 300
    for stream in streams:
        stream.publish(entries=False)
    wait_for("the history", lambda: all(observer.history(name).batch[-1] == 31 for name in names))


# -- memory, without a broker ------------------------------------------------------


def unmade(**how: Any) -> MadeStream:
    """Make a stream without topics."""
    return make_stream("127.0.0.1:1", "unmade", topics=False, **how)


def test_a_history_holds_few_bytes_a_release() -> None:
    stream = unmade(dim=64, rank=10)
    history = ReleaseHistory(stream.settings.stream, 500)
    values = [stream.next_release().to_bytes() for _ in range(1500)]
    for i, value in enumerate(values[:500]):
        history.add(2 * i, value)
    tracemalloc.start()
    for i, value in enumerate(values[500:], 500):
        history.add(2 * i, value)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # Each point replaced another one, so the traced memory is that of all 500.
    assert len(history.history().batch) == 500
    assert grown < 500 * 3000, grown
    assert len(values[-1]) > 14_000


def test_a_history_is_complete_only_with_the_first_release() -> None:
    history = ReleaseHistory(unmade().settings.stream, 1000)
    history.begin(("id",), 0, 10**6)
    history.forget_before(0)
    assert not history.history().complete
    # The topic holds none of the releases before it any more.
    history.forget_before(10**6)
    assert history.history().complete


def test_a_history_of_a_high_rank_is_shorter() -> None:
    stream = unmade(dim=4096, rank=1024)
    history = ReleaseHistory(stream.settings.stream, 1000)
    assert history._points.maxlen == MOST_NUMBERS // 3072
    history.begin(("id",), 0, 10**6)
    assert history.next_offset == 10**6 - 4
    short = ReleaseHistory(unmade().settings.stream, 1000)
    short.begin(("id",), 0, 10**6)
    assert short.next_offset == 10**6 - 2000


def test_rows_with_many_ranges_are_fewer() -> None:
    view = LedgerView("topic", 100)
    view.begin(("id", "ledger"), 0, 0)
    opened = Opened(topic_id="id", topic="topic", cap=Cap(epsilon="1000", delta="1"))
    view.add(0, encode_entry(opened))
    previous, entries = entry_hash(opened), 0
    spans = tuple(OffsetSpan(partition=p, start=0, end=5) for p in range(200))
    how = {"topic_id": "id", "job": "by hand", "charge": Charge(epsilon="1", delta="0"), "reason": "r"}
    while entries < 30:
        entry = Charged(**how, previous=previous, ranges=spans)
        previous, entries = entry_hash(entry), entries + 1
        view.add(entries, encode_entry(entry))
    assert view.failed is None
    page = view.page(1000, None, None)
    assert len(page.items) == ledgers.RANGES_PER_ROW * 100 // 200
    assert not page.complete
    assert view.summary().entries == 31
    assert len({id(row.charge) for row in view._rows}) == 1


class Refusing:
    """Reader of empty topics; the one that is ``denied`` may not be read."""

    denied: str | None = None

    def __init__(self) -> None:
        self.assigned: set[str] = set()

    def assign(self, topics: Iterable[str]) -> None:
        self.assigned = set(topics)

    def seek(self, topic: str, offset: int) -> None:
        assert (topic in self.assigned, offset) == (True, 0)

    def bounds(self, topics: Iterable[str]) -> dict[str, tuple[int, int]]:
        return dict.fromkeys(topics, (0, 0))

    def position(self, topic: str) -> int:
        return 0

    def poll(self) -> list[Any]:
        if self.denied in self.assigned:
            raise TopicsLost({self.denied}, denied=True)
        return []


def test_a_topic_that_may_be_read_again_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    made = unmade()
    seen = watched.Watched(made.settings.kafka, [made.settings], 10)
    releases, stream = seen.streams[made.name].releases, made.settings.stream
    names = (stream.input, stream.ledger_topic, releases.topic)
    seen.table.ids, seen.table.problems = {name: f"id-{name}" for name in names}, dict.fromkeys(names)
    reader, now = Refusing(), 1000.0
    monkeypatch.setattr(topic_tail, "time", SimpleNamespace(monotonic=lambda: now))
    tail = topic_tail.TopicTail(seen, cast(TopicsReader, reader))

    def problems(seconds: int) -> list[str | None]:
        nonlocal now
        found = []
        for _ in range(seconds):
            now += 1
            tail.step()
            found.append(releases.problem)
        return found

    assert problems(10)[-1] is None
    reader.denied = releases.topic
    # It is tried again without a sign of it.
    assert set(problems(100)[1:]) == {f"topic {releases.topic!r} may not be read by this user"}
    reader.denied = None
    assert problems(40)[-1] is None
    assert releases.topic in reader.assigned
