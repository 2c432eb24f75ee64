"""A stream can be paused, resumed and retired while its workers run, and then verified."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kafka.errors import KafkaTimeoutError
from typer.testing import CliRunner

from streaming_pca.admin import pause as lifecycle
from streaming_pca.admin.pause import Change, LifecycleWriter, pause, resume, retire
from streaming_pca.cli import ledger as ledger_command
from streaming_pca.cli import stream as stream_command
from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.settings import StreamSettings
from streaming_pca.errors import UserError
from streaming_pca.estimators.base import State, Subspace
from streaming_pca.privacy.ledger.entries import (
    Abandoned,
    Committed,
    OffsetRange,
    Paused,
    Released,
    Reserved,
    Resumed,
    Retired,
    encode_entry,
)
from streaming_pca.privacy.ledger.protocol import JobStatus
from streaming_pca.privacy.ledger.verify import Report
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit import log_reader, snapshot, state_topic
from streaming_pca.service.commit import verification as inspection
from streaming_pca.service.commit.batch_result import BatchResult, make_release
from streaming_pca.service.commit.checkpoint import CheckpointWriter
from streaming_pca.service.commit.ledger_writer import LedgerWriter
from streaming_pca.service.commit.log_reader import LogReader
from streaming_pca.service.commit.recovery import Action
from streaming_pca.service.commit.verification import verify_ledger
from streaming_pca.service.errors import SessionLost, StreamRefused
from tests.kafka.admin import killed as killed_commands
from tests.kafka.child import Strike
from tests.kafka.conftest import Make, Patch
from tests.kafka.steps import before_step, steps_of
from tests.kafka.stream import ENDLESS, Stream, killed
from tests.privacy.ledger.test_ledger import PARAMETERS

CHARGE = Charge(epsilon=1, delta="1e-6")


def change(stream: Stream, what: Callable[..., Change], reason: str = "a test") -> Change:
    return what(stream.settings.kafka, stream.settings.stream, reason)


def kinds(stream: Stream) -> list[str]:
    """Return the kinds of the stream's own entries, in order."""
    return [e.kind for e in stream.own(object)]  # type: ignore[attr-defined]


class Leader:
    """Leader's session without a worker, driven step by step."""

    def __init__(self, stream: Stream, changed: StreamSettings | None = None) -> None:
        self.stream = changed or stream.settings.stream
        self.writer = CheckpointWriter(stream.settings.kafka, self.stream, stream.topic_id)
        try:
            self.found = self.writer.take_over()
        except BaseException:
            self.writer.close()
            raise

    def reserve(self, start: int = 0, end: int = 5) -> Reserved:
        ranges = [OffsetRange(partition=0, start=start, end=end, count=end - start)]
        return self.writer.reserve(ranges, PARAMETERS, CHARGE)

    def commit(self, reserved: Reserved, version: bytes = b"6") -> bytes:
        """Commit a release, optionally as a later version would write it; return its bytes."""
        subspace = Subspace(np.eye(2, 5), np.ones(2), None)
        learnt = self.writer.log.ledger.job(self.stream.name).records_committed + reserved.count
        release = make_release(self.stream, subspace, reserved.batch, learnt)
        release = release.replace(b'"version":6,', b'"version":%s,"later":[1e-1],' % version)
        answer = BatchResult(State(batch=1, records=1), b"state", release, users=None)
        self.writer.commit(reserved, {0: reserved.ranges[0].end}, {}, answer)
        return release

    def __enter__(self) -> Leader:
        return self

    def __exit__(self, *_: object) -> None:
        self.writer.close()


def led(stream: Stream, batches: int = 1) -> None:
    """Commit and release some batches."""
    with Leader(stream) as leader:
        for batch in range(batches):
            leader.commit(leader.reserve(5 * batch, 5 * batch + 5))
            leader.writer.publish()


def verified(stream: Stream) -> Report:
    report = verify_ledger(stream.settings.kafka, stream.settings.stream.input)
    assert report.ok, report.problems
    return report


# -- pausing and resuming --------------------------------------------------


def test_a_stream_can_be_paused_before_its_first_batch(make_stream: Make) -> None:
    stream = make_stream()
    name = stream.settings.stream.name
    assert change(stream, pause) == Change(name, JobStatus.PAUSED, True, 0, "none")
    with Leader(stream) as leader:
        assert leader.found.standing is JobStatus.PAUSED
        with pytest.raises(SessionLost, match="the stream is paused"):
            leader.reserve()
    assert change(stream, resume).standing is JobStatus.ACTIVE
    with Leader(stream) as leader:
        assert leader.found.standing is JobStatus.ACTIVE
        leader.reserve()
    assert kinds(stream) == ["PAUSED", "RESUMED", "RESERVED"]
    assert [e.reason for e in stream.own(Paused) + stream.own(Resumed)] == ["a test"] * 2
    verified(stream)


def test_pausing_fences_the_leader_and_so_does_resuming(make_stream: Make, monkeypatch: Patch) -> None:
    # The leader would find the others' entries before it sends its own.
    monkeypatch.setattr(CheckpointWriter, "_next", LedgerWriter._next)
    stream = make_stream()
    with Leader(stream) as leader:
        reserved = leader.reserve()
        change(stream, pause)
        assert leader.writer.read_status() is JobStatus.PAUSED
        with pytest.raises(SessionLost, match="Fenced"):
            leader.commit(reserved)
    with Leader(stream) as waiting:
        assert waiting.writer.read_status() is JobStatus.PAUSED
        change(stream, resume)
        assert waiting.writer.read_status() is JobStatus.ACTIVE
        with pytest.raises(SessionLost, match="Fenced"):
            waiting.commit(reserved)
    assert kinds(stream) == ["RESERVED", "PAUSED", "RESUMED"]


def test_a_leader_that_finds_the_pause_as_it_reserves_recovers_and_is_not_refused(make_stream: Make) -> None:
    stream = make_stream(cap=("1/4", "1e-6"), epsilon=0.25)
    with Leader(stream) as leader:
        change(stream, pause)
        # The cap would refuse it too, and end the worker: the pause takes precedence.
        with pytest.raises(SessionLost, match="a change of the stream"):
            leader.reserve()
    assert kinds(stream) == ["PAUSED"]


@pytest.mark.parametrize("step", ["commit", "publish", "abandon"])
def test_a_leader_that_finds_entries_of_another_writes_nothing(make_stream: Make, step: str) -> None:
    """The fence may have reached one broker while the end of the log came from another, which was cut off."""
    stream = make_stream()
    with Leader(stream) as leader:
        reserved = leader.reserve()
        if step == "publish":
            leader.commit(reserved)
            entry: Any = leader.writer._next(Released, batch=1, release_digest="0" * 64)
        else:
            entry = leader.writer._next(Abandoned, batch=1, reason="elsewhere")
        stream.write(stream.settings.stream.ledger_topic, encode_entry(entry))
        before = stream.entries(), stream.checkpoints(), stream.release_values()
        attempts = {
            "commit": lambda: leader.commit(reserved),
            "publish": leader.writer.publish,
            "abandon": lambda: leader.writer.abandon(reserved, "a test"),
        }
        with pytest.raises(SessionLost, match="another leader"):
            attempts[step]()
        assert (stream.entries(), stream.checkpoints(), stream.release_values()) == before


def test_an_open_batch_is_left_to_the_next_leader_who_may_end_it_while_paused(make_stream: Make) -> None:
    stream = make_stream()
    with Leader(stream) as leader:
        reserved = leader.reserve()
    found = change(stream, pause)
    assert (found.batch, found.phase) == (1, "reserved")
    with Leader(stream) as successor:
        assert successor.found.recovery.action is Action.RESUME
        assert successor.found.reservation == reserved
        successor.commit(reserved)
        successor.writer.publish()
        with pytest.raises(SessionLost, match="the stream is paused"):
            successor.reserve(5, 9)
    assert kinds(stream) == ["RESERVED", "PAUSED", "COMMITTED", "RELEASED"]
    report = verified(stream)
    assert (report.paused, report.releases) == ((stream.settings.stream.name,), 1)


@pytest.mark.parametrize("what", [pause, retire])
def test_a_committed_release_is_published_first(make_stream: Make, what: Callable[..., Change]) -> None:
    stream = make_stream()
    # A state of a later version: its release has fields that this version does not know.
    with Leader(stream) as leader:
        pending = leader.commit(leader.reserve(), version=b"7")
    assert change(stream, what).phase == "released"
    assert stream.release_values() == [pending]
    assert kinds(stream) == ["RESERVED", "COMMITTED", "RELEASED", {pause: "PAUSED", retire: "RETIRED"}[what]]
    assert len(stream.releases()) == 1
    verified(stream)


def test_a_stream_that_stands_so_already_is_left_alone(make_stream: Make) -> None:
    stream = make_stream()
    with Leader(stream) as leader:
        assert not change(stream, resume).changed
        reserved = leader.reserve()
    change(stream, pause)
    with Leader(stream) as leader:
        assert not change(stream, pause).changed
        leader.commit(reserved)
    assert kinds(stream) == ["RESERVED", "PAUSED", "COMMITTED"]


def test_another_input_or_another_operator_is_no_change(make_stream: Make, monkeypatch: Patch) -> None:
    stream, other = make_stream(), make_stream()
    with Leader(stream) as leader:
        leader.commit(leader.reserve())
    moved = stream.settings.stream.model_copy(update={"input": other.settings.stream.input})
    with pytest.raises(StreamRefused, match="belongs to another input topic"):
        resume(stream.settings.kafka, moved, "by mistake")
    with monkeypatch.context() as patch:
        take_over = LifecycleWriter.take_over

        def late(writer: LifecycleWriter, **how: bool) -> Any:
            patch.setattr(LifecycleWriter, "take_over", take_over)
            assert change(stream, pause).changed
            return take_over(writer, **how)

        patch.setattr(LifecycleWriter, "take_over", late)
        assert not change(stream, pause).changed
    assert kinds(stream).count("PAUSED") == 1


# -- retiring --------------------------------------------------------------


def test_retiring_abandons_what_is_open_and_ends_the_stream_for_ever(make_stream: Make) -> None:
    stream = make_stream()
    with Leader(stream) as leader:
        reserved = leader.reserve()
        assert change(stream, retire).phase == "abandoned"
        with pytest.raises(SessionLost, match="a change of the stream"):
            leader.commit(reserved)
    assert [e.reason for e in stream.own(Abandoned)] == ["the stream is retired"]
    for what in (pause, resume):
        with pytest.raises(StreamRefused, match="is retired, which is final"):
            change(stream, what)
    assert not change(stream, retire).changed
    with pytest.raises(StreamRefused, match=r"is retired, which is final: choose a new stream\.name"):
        Leader(stream)
    assert kinds(stream) == ["RESERVED", "ABANDONED", "RETIRED"]
    assert stream.replay().spent(0, 4) == CHARGE
    assert verified(stream).retired == (stream.settings.stream.name,)


def test_a_stream_whose_settings_promise_something_else_by_now_can_still_be_retired(
    make_stream: Make,
) -> None:
    stream = make_stream()
    with Leader(stream) as leader:
        leader.reserve()
    changed = stream.changed(epsilon=0.25).stream
    with pytest.raises(StreamRefused, match=r"stream\.epsilon is 0\.25"):
        Leader(stream, changed)
    assert retire(stream.settings.kafka, changed, "a test").standing is JobStatus.RETIRED


def test_a_paused_stream_can_be_retired(make_stream: Make) -> None:
    stream = make_stream()
    change(stream, pause)
    change(stream, retire)
    assert kinds(stream) == ["PAUSED", "RETIRED"]


# -- concurrent events -----------------------------------------------------


def test_an_operator_whom_a_leader_fences_tries_again(make_stream: Make, monkeypatch: Patch) -> None:
    stream = make_stream()
    with Leader(stream) as leader:
        leader.reserve()
    fence = ("standing.5 commit", lambda: Leader(stream).writer.close())
    happened = before_step(monkeypatch, LifecycleWriter, *fence, times=2)
    change(stream, retire)
    assert len(happened) == 2
    assert kinds(stream) == ["RESERVED", "ABANDONED", "RETIRED"]
    verified(stream)


def test_an_operator_who_never_gets_through_says_so_and_has_written_nothing(
    make_stream: Make, monkeypatch: Patch
) -> None:
    stream = make_stream()

    def lose() -> None:
        raise KafkaTimeoutError("no answer")

    before_step(monkeypatch, LifecycleWriter, "standing.1 read ahead", lose, times=100)
    with pytest.raises(SessionLost, match=r"standing\.1 read ahead: KafkaTimeoutError: no answer"):
        change(stream, pause)
    assert kinds(stream) == []


def test_a_reason_is_one_line(make_stream: Make) -> None:
    stream = make_stream()
    for reason in ("", "two\nlines", "x" * 501, "\udcff"):
        with pytest.raises(ConfigurationError, match="--reason must be one line"):
            change(stream, pause, reason)
    assert kinds(stream) == []


# -- kill -9 ---------------------------------------------------------------


STEPS = steps_of(lifecycle)


def test_a_kill_at_any_step_of_a_pause_leaves_one_pause_or_none(make_stream: Make, tmp_path: Path) -> None:
    stream = make_stream()
    expected = []
    assert len(STEPS) == 6
    for number, step in enumerate(STEPS, start=1):
        killed(killed_commands.change, stream.settings, tmp_path / f"{number}.log", step, "pause")
        assert change(stream, pause, "the second").changed == (number < 5)
        expected += ["the first" if number >= 5 else "the second"]
        assert [e.reason for e in stream.own(Paused)] == expected
        change(stream, resume)
    verified(stream)


@pytest.mark.parametrize(
    "step", ["take_over.4 cross-check", "abandon.2 ABANDONED", "abandon.3 commit", *STEPS[1:5]]
)
def test_a_kill_at_any_step_of_a_retirement_leaves_the_rest_to_the_next(
    make_stream: Make, tmp_path: Path, step: str
) -> None:
    stream = make_stream()
    with Leader(stream) as leader:
        leader.reserve()
    killed(killed_commands.change, stream.settings, tmp_path / "log", step, "retire")
    change(stream, retire, "the second")
    assert kinds(stream) == ["RESERVED", "ABANDONED", "RETIRED"]
    verified(stream)


# -- next to workers -------------------------------------------------------


def test_workers_wait_while_paused_go_on_when_resumed_and_end_when_retired(make_stream: Make) -> None:
    stream = make_stream(**ENDLESS)
    stream.produce_vectors(stream.vectors(40))
    leader = stream.start(poll_seconds=1.0)
    leader.logs("batch 1 released")
    change(stream, pause)
    # It waits for records, and checks the ledger now and then.
    leader.logs("paused")
    stream.produce_vectors(stream.vectors(40, seed=1))
    standby = stream.start(poll_seconds=1.0)
    standby.logs("standing by")
    assert len(stream.own(Reserved)) == 1
    change(stream, resume)
    leader.logs("batch 2 released")
    change(stream, retire)
    for worker in (leader, standby):
        assert "is retired, which is final" in worker.refusal()
    batch = ["RESERVED", "COMMITTED", "RELEASED"]
    assert kinds(stream) == [*batch, "PAUSED", "RESUMED", *batch, "RETIRED"]
    report = verified(stream)
    assert (report.retired, report.paused, report.releases) == ((stream.settings.stream.name,), (), 2)


def test_a_worker_that_is_paused_in_a_batch_finishes_it_once(make_stream: Make) -> None:
    stream = make_stream(**ENDLESS)
    stream.produce_vectors(stream.vectors(80))
    leader = stream.start(strike=Strike("commit.1 begin", "before", nth=2, what="wait"))
    leader.strikes()
    assert change(stream, pause).phase == "reserved"
    leader.let_go()
    leader.logs("batch 2 released")
    leader.logs("paused")
    assert [e.batch for e in stream.own(Committed)] == [1, 2]
    assert [e.batch for e in stream.own(Released)] == [1, 2]
    leader.stop()
    assert verified(stream).paused == (stream.settings.stream.name,)


# -- the command line ------------------------------------------------------


def test_the_commands_change_the_standing_and_the_ledger_commands_show_it(make_stream: Make) -> None:
    stream = make_stream()
    name, config = stream.settings.stream.name, str(stream.write_config())

    def run(app: Any, *arguments: str) -> Any:
        return CliRunner().invoke(app, [*arguments, "--config", config], env={"COLUMNS": "200"})

    done = run(stream_command.app, "pause", "--reason", "an upgrade", "--json")
    facts = {"stream": name, "standing": "paused", "changed": True, "batch": 0, "phase": "none"}
    assert json.loads(done.stdout) == facts
    for given, kept in (((), ""), (("--reason", "another"), "; its reason is unchanged")):
        again = run(stream_command.app, "pause", *given)
        assert (again.exit_code, again.stdout.strip()) == (0, f"stream {name} is paused already{kept}")
    shown = run(ledger_command.app, "show").stdout
    for part in ("PAUSED", "an upgrade", f"job {name} is paused"):
        assert part in shown, shown
    rows = json.loads(run(ledger_command.app, "show", "--json").stdout)
    assert rows["jobs"][name]["standing"] == "paused"
    assert f"paused: {name}" in run(ledger_command.app, "verify").stdout
    assert "is active" in run(stream_command.app, "resume", "--stream", name).stdout

    refused = run(stream_command.app, "retire")
    assert isinstance(refused.exception, UserError)
    assert "--yes must be given" in str(refused.exception)
    assert stream.own(Retired) == []
    assert "is retired" in run(stream_command.app, "retire", "--yes").stdout
    assert f"retired: {name}" in run(ledger_command.app, "verify").stdout
    late = run(stream_command.app, "resume")
    assert isinstance(late.exception, StreamRefused)


def test_a_terminal_is_asked_before_a_stream_is_retired(make_stream: Make, monkeypatch: Patch) -> None:
    stream = make_stream()
    config = str(stream.write_config())
    monkeypatch.setattr(stream_command, "_is_terminal", lambda: True)
    no = CliRunner().invoke(stream_command.app, ["retire", "--config", config], input="n\n")
    assert "not retired: not confirmed" in str(no.exception)
    assert stream.own(Retired) == []
    yes = CliRunner().invoke(stream_command.app, ["retire", "--config", config], input="y\n")
    assert yes.exit_code == 0, yes.output
    assert len(stream.own(Retired)) == 1


# -- verifying next to a writer --------------------------------------------


def test_what_is_no_entry_is_a_problem_and_no_traceback(make_stream: Make) -> None:
    stream = make_stream()
    led(stream)
    stream.write(stream.settings.stream.ledger_topic, b"hello")
    report = verify_ledger(stream.settings.kafka, stream.settings.stream.input)
    assert not report.ok
    assert len(report.problems) == 1
    assert "not a ledger entry" in report.problems[0]
    assert report.releases == 1


def test_what_is_released_while_the_ledger_is_verified_is_judged_the_next_time(
    make_stream: Make, monkeypatch: Patch
) -> None:
    stream = make_stream()
    read: list[str] = []

    class Counting(LogReader):
        def __init__(self, kafka: Any, topic: str, **options: bool) -> None:
            read.append(topic)
            super().__init__(kafka, topic, **options)

    original = inspection.existing_topics

    with Leader(stream) as leader:
        leader.commit(leader.reserve())

        def during(kafka: Any, topics: list[str]) -> set[str]:
            # Between reading the ledger and the releases.
            leader.writer.publish()
            stream.write(stream.settings.stream.ledger_topic, b"hello")
            return original(kafka, topics)

        for module in (log_reader, snapshot, state_topic):
            monkeypatch.setattr(module, "LogReader", Counting)
        monkeypatch.setattr(inspection, "existing_topics", during)
        report = verify_ledger(stream.settings.kafka, stream.settings.stream.input)
    assert report.ok, report.problems
    assert (report.entries, report.releases) == (3, 0)
    names = stream.settings.stream
    assert read == [names.ledger_topic, names.state_topic, names.releases_topic]
    monkeypatch.undo()
    later = verify_ledger(stream.settings.kafka, stream.settings.stream.input)
    assert (later.entries, later.releases, len(later.problems)) == (4, 1, 1)


def test_a_job_whose_releases_topic_is_gone_is_a_problem(make_stream: Make) -> None:
    stream = make_stream()
    led(stream)
    stream.delete("releases")
    report = verify_ledger(stream.settings.kafka, stream.settings.stream.input)
    assert len(report.problems) == 1
    assert "batch 1: released by the ledger, but not on the topic" in report.problems[0]
