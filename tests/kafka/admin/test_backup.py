"""Export and import of a ledger and its states, on a real broker."""

from __future__ import annotations

import json
import re
import stat
import zipfile
from collections.abc import Callable, Iterator
from fractions import Fraction
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from streaming_pca.admin import pause as lifecycle
from streaming_pca.admin import restore as restoring
from streaming_pca.admin.backup import read_backup, take_backup
from streaming_pca.admin.external_charge import charge_records
from streaming_pca.config.settings import Settings
from streaming_pca.privacy.ledger.entries import Cap, Opened, Released, Reserved
from streaming_pca.privacy.ledger.protocol import BatchStatus
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.checkpoint import open_ledger
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.topics.find import create_topics
from tests.cli.command import call
from tests.cli.test_app import one_line
from tests.kafka.admin import killed as killed_commands
from tests.kafka.child import Strike
from tests.kafka.conftest import Capture, Make, Name
from tests.kafka.stream import STEADY_MS, Stream, check_books, killed, run_together, write_config
from tests.waiting import wait_for, without_progress

LEARNT = 8
"""Calls of the fixture in this module."""
SIX = {"n_records": 600, "n_batches": 6}


@pytest.fixture(scope="module")
def learnt(
    fork_server: None,
    kafka_bootstrap: str,
    unique_name: Name,
    tmp_path_factory: pytest.TempPathFactory,
    session_ms: int,
) -> Iterator[Callable[[], Stream]]:
    """Give each caller another stream that has learnt 300 records in three batches, all from one worker."""
    folder = tmp_path_factory.mktemp("learnt")
    streams = [
        Stream.make(kafka_bootstrap, unique_name("learnt"), folder, session_ms=session_ms)
        for _ in range(LEARNT)
    ]
    for stream in streams:
        stream.produce_vectors(stream.vectors(300))
    run_together(*streams)
    left = iter(streams)
    yield lambda: next(left)
    for stream in streams:
        stream.destroy()


def export(capfd: Capture, stream: Stream, stem: str = "copy") -> Path:
    path = stream.directory.parent / f"{stream.settings.stream.name}-{stem}.zip"
    done = call(capfd, "export", path, "--config", stream.write_config(), "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["file"] == str(path)
    return path


def restore(capfd: Capture, stream: Stream, path: Path) -> dict[str, Any]:
    done = call(capfd, "import", path, "--config", stream.write_config(), "--json")
    assert done.returncode == 0, done.stderr
    facts: dict[str, Any] = json.loads(done.stdout)
    return facts


def refused(capfd: Capture, stream: Stream, path: Path, status: int, *reported: str) -> None:
    """Check that an import is refused with one line, without any output."""
    done = call(capfd, "import", path, "--config", stream.write_config())
    assert done.returncode == status, done.stderr
    lines = without_progress(done.stderr)
    assert all(line.startswith("problem: ") for line in lines[:-1]), lines
    assert lines[-1].startswith("error: ")
    for part in reported:
        assert part in done.stderr
    assert done.stdout == ""


def run_batches(stream: Stream, count: int, settings: Settings | None = None) -> None:
    """Let a worker learn and release some batches, and end it."""
    before = len(stream.own(Released))
    worker = stream.start(settings)
    wait_for("the batches", lambda: len(stream.own(Released)) >= before + count)
    worker.stop()
    assert len(stream.own(Released)) == before + count


def verified(capfd: Capture, stream: Stream) -> bool:
    return call(capfd, "ledger", "verify", "--config", stream.write_config()).returncode == 0


def test_a_stream_goes_on_exactly_where_the_copy_ended(make_stream: Make, capfd: Capture) -> None:
    stream = make_stream(options=SIX)
    x = stream.vectors(600)
    stream.produce_vectors(x[:400])
    run_batches(stream, 4)
    entries, (last, digest) = stream.entries(), stream.checkpoints()[-1]
    path = export(capfd, stream)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    stream.delete("ledger", "state")
    facts = restore(capfd, stream, path)
    name = stream.settings.stream.name
    assert facts["entries_written"] == facts["entries"] == len(entries) == 13
    assert facts["states_written"] == [name]
    assert facts["created"] == [stream.settings.stream.ledger_topic, stream.settings.stream.state_topic]
    assert facts["lost_releases"] == 0
    assert stream.entries() == entries
    assert stream.checkpoints() == [(last, digest)]
    assert verified(capfd, stream)

    # A second import changes nothing, even after later batches.
    again = restore(capfd, stream, path)
    assert (again["entries_written"], again["states_written"], again["created"]) == (0, [], [])
    stream.produce_vectors(x[400:])
    stream.run()
    later = restore(capfd, stream, path)
    assert (later["entries_written"], later["newer_entries"]) == (0, 6)
    assert len(stream.own(Reserved)) == 6
    assert verified(capfd, stream)
    check_books(stream)  # each record charged once, in one batch


def test_a_release_that_was_not_out_yet_is_published_from_the_copy(make_stream: Make, capfd: Capture) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(300))
    stream.crash(Strike("commit.6 read back", "before", nth=2))
    path = export(capfd, stream)
    assert stream.replay().job(stream.settings.stream.name).phase is BatchStatus.COMMITTED
    stream.delete("ledger", "state")
    restore(capfd, stream, path)
    assert [r.batch for r in stream.releases()] == [1]
    stream.run()
    assert [r.batch for r in stream.releases()] == [1, 2, 3]
    check_books(stream)


def test_a_batch_that_was_open_is_finished_after_the_import(make_stream: Make, capfd: Capture) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(300))
    stream.crash(Strike("commit.1 begin", "before", nth=2))
    path = export(capfd, stream)
    assert stream.replay().job(stream.settings.stream.name).phase is BatchStatus.RESERVED
    stream.delete("ledger", "state")
    restore(capfd, stream, path)
    stream.run()
    assert len(stream.own(Reserved)) == 3
    check_books(stream)


def test_the_states_of_all_streams_of_the_topic_are_in_the_copy(make_stream: Make, capfd: Capture) -> None:
    one = make_stream("one", cap=("3", "1e-5"))
    two = make_stream("two", input=one.settings.stream.input, cap=None, dim=5, rank=3, options=SIX)
    one.produce_vectors(one.vectors(300))
    one.run()
    run_batches(two, 3)
    path = export(capfd, one)
    assert sorted(read_backup(path).states) == sorted(s.settings.stream.name for s in (one, two))
    one.delete("ledger", "state")
    two.delete("state")
    facts = restore(capfd, one, path)  # the first stream's file does not name the second
    assert two.settings.stream.state_topic in facts["created"]
    one.produce_vectors(one.vectors(300, seed=1))
    two.run()
    check_books(one)
    check_books(two)


def test_an_export_beside_a_running_worker_is_of_one_point_and_harms_nobody(
    make_stream: Make, capfd: Capture
) -> None:
    options = {"n_records": 6000, "n_batches": 60}
    stream = make_stream(session_ms=STEADY_MS, dim=150, options=options)  # a state of 180 KB
    stream.produce_vectors(stream.vectors(6000))
    worker = stream.start()
    wait_for("a batch", lambda: stream.own(Released))
    lengths = []
    while worker.status() is None and len(lengths) < 8:
        path = export(capfd, stream, str(len(lengths)))
        copy = read_backup(path)
        lengths.append(len(copy.entries))
    assert worker.ends() == 0, worker.log
    assert "session lost" not in worker.log
    # Otherwise the worker wrote nothing during the exports, and the test proves nothing.
    assert len(set(lengths)) >= 3, lengths
    assert lengths == sorted(lengths)
    check_books(stream)


def test_an_old_copy_is_refused_for_what_is_known_elsewhere(make_stream: Make, capfd: Capture) -> None:
    stream = make_stream()
    x = stream.vectors(300)
    stream.produce_vectors(x[:100])
    run_batches(stream, 1)
    old = export(capfd, stream)
    stream.produce_vectors(x[100:200])
    run_batches(stream, 1)
    stream.delete("ledger", "state")
    name = stream.settings.stream.name
    refused(capfd, stream, old, 2, f"'{name}.releases' has a release of batch 2", "the backup is old")
    with stream.admin() as admin:
        assert stream.settings.stream.ledger_topic not in admin.list_topics(), "created before it was refused"
    # Without a release, the group's offsets reveal the later batch.
    stream.delete("releases")
    refused(capfd, stream, old, 2, f"stream {name!r} has committed offset", "the backup is old")


def test_a_copy_that_does_not_know_a_stream_of_the_topic_is_refused(
    make_stream: Make, capfd: Capture
) -> None:
    one = make_stream("one", cap=("3", "1e-5"))
    one.produce_vectors(one.vectors(300))
    one.run()
    old = export(capfd, one)
    two = make_stream("two", input=one.settings.stream.input, cap=None)
    two.run()
    one.delete("ledger", "state")
    reported = f"stream {two.settings.stream.name!r} has committed offset"
    refused(capfd, one, old, 2, reported, "the backup is old")
    # Its state is lost as well, but the releases topic still has its name.
    two.delete("state")
    refused(capfd, one, old, 2, reported, "the backup is old")


def test_a_copy_from_before_the_first_batch_is_refused_for_releases_since(
    make_stream: Make, capfd: Capture
) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(300))
    old = export(capfd, stream)
    stream.run()
    stream.delete("ledger", "state")
    name = stream.settings.stream.name
    with stream.admin() as admin:
        admin.delete_groups([name])  # as brokers do with groups that are idle for a week
    refused(capfd, stream, old, 2, f"'{name}.releases' has a release of batch", "the backup is old")


def test_an_old_copy_does_not_replace_a_newer_ledger_or_state(make_stream: Make, capfd: Capture) -> None:
    stream = make_stream()
    x = stream.vectors(300)
    stream.produce_vectors(x[:100])
    run_batches(stream, 1)
    old = export(capfd, stream, "old")
    stream.produce_vectors(x[100:])
    stream.run()
    new = export(capfd, stream, "new")
    entries, states = stream.entries(), stream.checkpoints()
    # Only the state is lost: the old copy's is too old, the new copy's is restored.
    stream.delete("state")
    words = "is empty, the ledger continues to batch 3, and the backup's state is older"
    refused(capfd, stream, old, 2, words)
    facts = restore(capfd, stream, new)
    assert (facts["entries_written"], facts["states_written"]) == (0, [stream.settings.stream.name])
    assert stream.checkpoints() == states[-1:]
    # Only the ledger is lost.
    stream.delete("ledger")
    facts = restore(capfd, stream, new)
    assert (facts["entries_written"], facts["states_written"]) == (len(entries), [])
    assert stream.entries() == entries
    # Both exist, and the copy is older.
    assert restore(capfd, stream, old)["newer_entries"] == 6
    assert stream.entries() == entries
    check_books(stream)


def test_a_changed_copy_is_refused(learnt: Callable[[], Stream], capfd: Capture) -> None:
    stream = learnt()
    path = export(capfd, stream)
    count = len(read_backup(path).entries)
    stream.delete("ledger", "state")
    with zipfile.ZipFile(path) as archive:
        parts = {name: archive.read(name) for name in archive.namelist()}
    cheaper = parts["ledger.jsonl"].replace(b'"epsilon":"1"', b'"epsilon":"0"', 1)
    assert cheaper != parts["ledger.jsonl"]
    rewrite(path, parts | {"ledger.jsonl": cheaper})
    refused(capfd, stream, path, 2, "ledger.jsonl is damaged")
    manifest = parts["manifest.json"].replace(
        *(sha256(data).hexdigest().encode() for data in (parts["ledger.jsonl"], cheaper))
    )
    rewrite(path, parts | {"ledger.jsonl": cheaper, "manifest.json": manifest})
    assert len(read_backup(path).entries) == count
    refused(capfd, stream, path, 1, "problem: ", "is not verified")


def rewrite(path: Path, parts: dict[str, bytes]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in parts.items():
            archive.writestr(name, data)


def test_a_copy_of_other_data_is_refused(
    make_stream: Make, learnt: Callable[[], Stream], capfd: Capture
) -> None:
    stream, other = learnt(), make_stream("other")
    path = export(capfd, stream)
    refused(capfd, other, path, 2, f"is a backup of input topic {stream.settings.stream.input!r}, not of ")
    stream.delete("input", "ledger", "state")
    refused(capfd, stream, path, 2, "is missing", "is created again")
    call(capfd, "topics", "create", "--config", stream.write_config(), "--cap", "1,1e-6")
    refused(capfd, stream, path, 2, "or created again? Open a new ledger")


def test_an_input_that_is_lost_before_the_first_batch_is_created_again(
    make_stream: Make, capfd: Capture
) -> None:
    stream = make_stream()
    stream.delete("input")
    create = ("topics", "create", "--config", stream.write_config(), "--cap", "1,1e-6")
    result = call(capfd, *create)
    assert result.returncode == 0, result.stderr


def test_a_ledger_that_was_only_opened_is_continued_if_it_was_opened_alike(
    learnt: Callable[[], Stream], capfd: Capture
) -> None:
    stream = learnt()
    entries, path = stream.entries(), export(capfd, stream)
    stream.delete("ledger", "state")
    open_again(stream, 2.0)
    refused(capfd, stream, path, 2, "was opened differently from the backup's", "delete that topic")
    stream.delete("ledger")
    open_again(stream, 1.0)
    facts = restore(capfd, stream, path)
    assert facts["entries_written"] == facts["entries"] - 1
    assert stream.entries() == entries
    check_books(stream)


def open_again(stream: Stream, epsilon: float) -> None:
    """Open a new ledger as versions before 0.6 did, which did not look for traces."""
    settings = stream.settings
    create_topics(settings.kafka, settings.stream, 1, 1)
    cap = Cap(epsilon=epsilon, delta=1e-6)
    entry = Opened(topic_id=stream.topic_id, topic=settings.stream.input, cap=cap, filter="basic")
    open_ledger(settings.kafka, entry, settings.stream.ledger_topic)


@pytest.mark.parametrize(
    ("lost", "reported"),
    [
        (
            "state",
            ("is missing, and its ledger has ", "restore the newest backup (`streaming-pca import`)"),
        ),
        (
            "ledger",
            ("is missing or empty, and the state has its batch 3", "or read a new input topic"),
        ),
    ],
)
def test_a_topic_that_is_lost_is_restored_and_not_created_again(
    lost: str, reported: tuple[str, str], learnt: Callable[[], Stream], capfd: Capture
) -> None:
    stream = learnt()
    stream.delete(lost)
    done = call(capfd, "topics", "create", "--config", stream.write_config(), "--cap", "1,1e-6")
    one_line(done, 2, *reported)
    if lost == "ledger":
        # Another stream has neither state nor batch, and would charge the same records from zero.
        other = stream.settings.stream.model_copy(update={"name": f"{stream.settings.stream.name}-b"})
        path = stream.directory.parent / "other.toml"
        write_config(path, stream.settings.model_copy(update={"stream": other}))
        done = call(capfd, "topics", "create", "--config", path, "--cap", "1,1e-6")
        one_line(done, 2, "had an entry COMMITTED (trace: group ", "restore the newest backup")


def test_a_copy_is_refused_for_a_stream_of_which_only_the_offsets_of_its_group_are_left(
    make_stream: Make, capfd: Capture
) -> None:
    one = make_stream(cap=("2", "1e-5"))
    one.produce_vectors(one.vectors(100))
    run_batches(one, 1)
    path = export(capfd, one)
    two = make_stream("two", input=one.settings.stream.input, cap=None)
    run_batches(two, 1)
    one.delete("ledger")
    two.delete("state", "releases")
    refused(capfd, one, path, 2, f"stream '{two.settings.stream.name}' has committed offset")


def test_a_ledger_of_another_history_is_left_alone(learnt: Callable[[], Stream], capfd: Capture) -> None:
    stream = learnt()
    path = export(capfd, stream)
    # To start again on charged records, an operator must have removed every trace.
    forget(stream, "ledger", "state", "releases")
    call(capfd, "topics", "create", "--config", stream.write_config(), "--cap", "1,1e-6")
    stream.run()
    entries = stream.entries()
    refused(capfd, stream, path, 2, "release of batch 1 that the backup does not contain")
    forget(stream, "releases")
    refused(capfd, stream, path, 2, "is not empty, and differs from the backup from entry 2 on")
    assert stream.entries() == entries


def forget(stream: Stream, *roles: str) -> None:
    """Delete topics, and the committed offsets of the stream's group."""
    stream.delete(*roles)
    with stream.admin() as admin:
        admin.delete_groups([stream.settings.stream.name])


def test_a_first_message_that_is_no_entry_is_a_difference() -> None:
    with pytest.raises(StreamRefused, match="is not empty, and differs from the backup from entry 0 on"):
        restoring._refuse_ledger("in.ledger", (b"x",), (b"{}",))


def test_a_running_worker_loses_its_session_and_goes_on_from_the_copy(
    make_stream: Make, capfd: Capture
) -> None:
    stream = make_stream(session_ms=STEADY_MS, options=SIX)
    x = stream.vectors(600)
    stream.produce_vectors(x[:200])
    worker = stream.start()
    wait_for("two batches", lambda: len(stream.own(Released)) == 2)
    path = export(capfd, stream)
    stream.delete("ledger")
    restore(capfd, stream, path)
    stream.produce_vectors(x[200:])
    worker.ends_well()
    # The fence ended the session, not an entry that is missing from its place.
    assert re.search(r"session lost.*(ProducerFenced|InvalidProducerEpoch)", worker.log), worker.log
    assert len(stream.own(Reserved)) == 6
    assert verified(capfd, stream)
    check_books(stream)


def test_an_import_that_was_killed_has_written_nothing_and_can_be_repeated(
    learnt: Callable[[], Stream], capfd: Capture, tmp_path: Path
) -> None:
    stream = learnt()
    entries, path = stream.entries(), export(capfd, stream)
    for method in ("send", "commit"):
        stream.delete("ledger", "state")
        killed(killed_commands.restore, stream.settings, tmp_path / f"{method}.log", method, str(path))
        facts = restore(capfd, stream, path)
        assert facts["entries_written"] == len(entries)
        assert stream.entries() == entries
        assert len(stream.checkpoints()) == 1
    check_books(stream)


def test_a_lost_state_or_a_lost_beginning_is_no_copy(learnt: Callable[[], Stream], capfd: Capture) -> None:
    stream = learnt()
    path = stream.directory.parent / "bad.zip"
    command = ("export", path, "--config", stream.write_config())
    stream.delete("state")
    done = call(capfd, *command)
    assert done.returncode == 1
    name = stream.settings.stream.name
    assert without_progress(done.stderr) == [
        f"problem: job {name!r}: the state that the ledger committed with batch 3 is missing",
        f"error: ledger '{stream.settings.stream.ledger_topic}' is not verified: 1 problem(s)",
    ]
    assert not path.exists()
    stream.delete_before({0: 3}, "ledger")
    one_line(call(capfd, *command), 2, "starts at offset 3")
    assert not path.exists()


def test_a_ledger_without_batches_has_a_copy_too(make_stream: Make, capfd: Capture) -> None:
    stream = make_stream()
    path = export(capfd, stream)
    copy = read_backup(path)
    assert (len(copy.entries), copy.states) == (1, {})
    assert take_backup(stream.settings.kafka, stream.settings.stream.input).entries == copy.entries
    stream.delete("ledger")
    assert restore(capfd, stream, path)["entries_written"] == 1
    stream.produce_vectors(stream.vectors(300))
    stream.run()
    check_books(stream)


def test_an_old_copy_is_refused_for_entries_that_leave_no_release(make_stream: Make, capfd: Capture) -> None:
    """Without a trace outside the ledger, caps could be exceeded, or retired streams continue."""
    stream = make_stream(cap=("2", "1e-5"))
    kafka, settings = stream.settings.kafka, stream.settings.stream
    stream.produce_vectors(stream.vectors(100))
    run_batches(stream, 1)
    half = Charge(epsilon=Fraction(1, 2), delta=Fraction(0))
    changes: dict[str, Callable[[], object]] = {
        "CHARGED": lambda: charge_records(kafka, settings.input, "census", half, None, "a table"),
        "PAUSED": lambda: lifecycle.pause(kafka, settings, "a test"),
        "RESUMED": lambda: lifecycle.resume(kafka, settings, "a test"),
        "RETIRED": lambda: lifecycle.retire(kafka, settings, "a test"),
    }
    old = export(capfd, stream, "old")
    for kind, change in changes.items():
        change()
        new = export(capfd, stream, kind)
        offsets = stream.group_offsets()
        entries = stream.entries()
        assert entries[-1].kind == kind
        stream.delete("ledger")
        refused(capfd, stream, old, 2, f"has written {kind} to the ledger", "the backup is old")
        restore(capfd, stream, new)
        assert stream.entries() == entries
        assert stream.group_offsets() == offsets
        assert max(offsets.values()) > 0
        old = new
