"""`ledger verify` also reads the topics of states and releases."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from streaming_pca import progress
from streaming_pca.privacy.ledger.verify import Report
from streaming_pca.service.commit import snapshot, verification
from streaming_pca.service.commit.state_topic import is_part
from streaming_pca.service.commit.verification import verify_ledger
from streaming_pca.service.topics.find import create_topics
from tests.cli.command import call
from tests.kafka.admin.test_pause import Leader, led
from tests.kafka.conftest import Capture, Make, Patch
from tests.kafka.stream import Stream


def verify(stream: Stream) -> Report:
    return verify_ledger(stream.settings.kafka, stream.settings.stream.input)


def only_problem(stream: Stream) -> str:
    report = verify(stream)
    assert not report.ok
    (line,) = report.problems
    return line


def rewrite(stream: Stream, **topics: Sequence[Any]) -> None:
    """Recreate topics, by role, with these messages."""
    stream.delete(*topics)
    create_topics(stream.settings.kafka, stream.settings.stream, stream.partitions, 1)
    for role, messages in topics.items():
        for m in messages:
            stream.write(stream.topic(role), m.value, key=m.key, headers=list(m.headers))


def test_a_verification_without_a_terminal_reports_the_offset_that_it_has_reached(
    make_stream: Make, capfd: Capture, monkeypatch: Patch
) -> None:
    stream = make_stream()
    led(stream, 2)
    monkeypatch.setattr(progress, "_SECONDS", 0.001)
    kafka, topic = stream.settings.kafka, stream.settings.stream.input
    done = call(capfd, "ledger", "verify", "--input", topic, "--bootstrap", kafka.bootstrap_servers)
    assert (done.returncode, done.stdout) == (0, f"verified: the ledger of {topic}\n")
    names = stream.settings.stream
    places = {re.sub(r"\d+(?= of | s$)", "N", each) for each in done.stderr.splitlines()}
    begin = f"verifying the ledger of {topic}"
    expected = {
        f"{begin}, N s",
        # The size of a state topic can depend on the number of users.
        f"{begin}: reading {names.state_topic}, N s",
        *(f"{begin}: at offset N of N of {each}, N s" for each in (names.ledger_topic, names.releases_topic)),
    }
    assert places <= expected
    assert any(": at offset " in each for each in places)


def of_batch(message: Any) -> int:
    return int(dict(message.headers)["batch"])


def test_a_lost_state_is_a_problem_and_what_to_do_is_told(make_stream: Make) -> None:
    stream = make_stream()
    led(stream, 2)
    topic = stream.settings.stream.state_topic
    sound = verify(stream)
    assert (sound.ok, sound.states, sound.releases) == (True, 1, 2)
    states = stream.messages(topic)
    # The stream that died: batch 2 was committed, and its state was lost later.
    rewrite(stream, state=[m for m in states if of_batch(m) == 1])
    line = only_problem(stream)
    assert "batch 2: the state differs from the one committed with batch 2" in line
    assert f"Topic '{topic}' must hold it: bring back the newest backup" in line
    rewrite(stream, state=[])
    assert "the state that the ledger committed with batch 2 is missing" in only_problem(stream)
    stream.delete("state")
    assert "the state that the ledger committed with batch 2 is missing" in only_problem(stream)
    create_topics(stream.settings.kafka, stream.settings.stream, stream.partitions, 1)
    rewrite(stream, state=[m for m in states if of_batch(m) == 2])
    assert verify(stream).states == 1


def test_a_state_that_no_ledger_knows_is_a_problem(make_stream: Make) -> None:
    """Without the comparison to the ledger, a worker would continue from it."""
    stream = make_stream()
    led(stream, 2)
    kept = stream.messages(stream.settings.stream.ledger_topic)[:4]
    rewrite(stream, ledger=kept, releases=stream.messages(stream.settings.stream.releases_topic)[:1])
    assert "batch 1: the state differs from the one committed with batch 1" in only_problem(stream)


def test_a_state_with_a_chunk_or_a_part_of_its_users_missing_is_a_problem(make_stream: Make) -> None:
    # 300 features: more than one chunk.
    options = {"n_records": 300, "n_batches": 2, "clip_radius": 1e6}
    stream = make_stream(privacy_unit="user", dim=300, centering="none", options=options)
    rows = [(b"%d" % i, x.tobytes()) for i, x in enumerate(stream.vectors(300))]
    stream.produce_keyed(rows)
    stream.run()
    assert verify(stream).ok
    messages = stream.messages(stream.settings.stream.state_topic)
    last = max(map(of_batch, messages))
    chunks = [m for m in messages if of_batch(m) == last and not is_part(m)]
    parts = [m for m in messages if of_batch(m) == last and is_part(m)]
    assert len(chunks) > 1
    assert parts
    rewrite(stream, state=[m for m in messages if m is not chunks[0]])
    assert "a chunk of its state is missing or was changed" in only_problem(stream)
    rewrite(stream, state=[m for m in messages if m is not parts[0]])
    assert "its table of users is missing" in only_problem(stream)
    rewrite(stream, state=messages)
    assert verify(stream).ok


def test_two_releases_that_were_exchanged_are_seen(make_stream: Make) -> None:
    stream = make_stream()
    led(stream, 3)
    first, second, third = stream.messages(stream.settings.stream.releases_topic)
    rewrite(stream, releases=[first, third, second])
    name = stream.settings.stream.name
    place = f"{name}.releases, offset 2 (stream {name!r}, batch 2)"
    assert only_problem(stream) == f"{place}: comes after the release of batch 3"


def test_a_job_of_charges_and_one_that_abandoned_all_have_no_state(make_stream: Make) -> None:
    stream = make_stream(cap=("2", "1e-5"))
    with Leader(stream) as leader:
        leader.writer.abandon(leader.reserve(), "a test")
    report = verify(stream)
    assert (report.ok, report.states) == (True, 0)


def test_a_commit_while_the_states_are_read_is_no_problem(make_stream: Make, monkeypatch: Patch) -> None:
    """A later state follows the expected one, or has replaced it."""
    stream = make_stream()
    original = verification.existing_topics
    with Leader(stream) as leader:
        leader.commit(leader.reserve())
        leader.writer.publish()
        seen = 0

        def during(kafka: Any, topics: Any) -> set[str]:
            nonlocal seen
            seen += 1
            leader.commit(leader.reserve(5 * seen, 5 * seen + 5))
            leader.writer.publish()
            return original(kafka, topics)

        # First between the ledger and the states; then between the states and the releases.
        for module in (snapshot, verification):
            monkeypatch.setattr(module, "existing_topics", during)
            report = verify(stream)
            assert report.problems == ()
            assert report.states == 1
            monkeypatch.undo()
    assert seen == 2


def test_a_stream_verifies_at_any_time_while_its_worker_runs(make_stream: Make) -> None:
    options = {"clip_radius": 20.0, "batch_size": 40}
    stream = make_stream(estimator="private-oja", centering="none", options=options)
    stream.produce_vectors(stream.vectors(40 * 60))
    worker = stream.start(stream.changed("worker", stop_when_done=False))
    checked = 0
    while len(stream.releases()) < 60:
        report = verify(stream)
        assert report.problems == ()
        checked += bool(report.states)
        assert worker.status() is None, worker.log
    worker.destroy()
    assert checked > 1
    report = verify(stream)
    assert (report.ok, report.states) == (True, 1)
