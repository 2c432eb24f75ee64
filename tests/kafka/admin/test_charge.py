"""`ledger charge` charges for releases made elsewhere, and the other ledger commands show it."""

from __future__ import annotations

import json
from contextlib import closing
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from kafka.errors import KafkaTimeoutError
from typer.testing import CliRunner

from streaming_pca.admin import external_charge as charging
from streaming_pca.admin.external_charge import ChargeWriter, charge_records
from streaming_pca.admin.ledger import describe_spent
from streaming_pca.cli import ledger
from streaming_pca.privacy.ledger.cap import BudgetExceeded
from streaming_pca.privacy.ledger.entries import Charged, OffsetSpan, Reserved
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.verification import verify_ledger
from streaming_pca.service.errors import BudgetExceededByAnother, SessionLost
from streaming_pca.service.kafka.clients import transactional_producer
from tests.cli.command import call
from tests.kafka.admin import killed as killed_commands
from tests.kafka.admin.killed import LITTLE
from tests.kafka.admin.test_pause import Leader
from tests.kafka.conftest import Capture, Make, Name, Patch
from tests.kafka.steps import before_step, steps_of
from tests.kafka.stream import Stream, killed
from tests.waiting import LIMIT

HALF = Charge(epsilon="1/2", delta="1e-7")
CENSUS = {"job": "census", "charge": HALF, "ranges": None, "reason": "a histogram"}


def charge(stream: Stream, **changes: Any) -> charging.Done:
    return charge_records(stream.settings.kafka, stream.settings.stream.input, **{**CENSUS, **changes})


def filled(make_stream: Make, records: int = 30, **how: Any) -> Stream:
    stream = make_stream(**how)
    stream.produce_vectors(stream.vectors(records))
    return stream


def run(stream: Stream, *arguments: str) -> Any:
    """Run a ledger command as the command line does; the caller handles exceptions."""
    by_name = ["--input", stream.settings.stream.input]
    by_name += ["--bootstrap", stream.settings.kafka.bootstrap_servers]
    return CliRunner().invoke(ledger.app, [*arguments, *by_name], env={"COLUMNS": "200"})


# -- charges ---------------------------------------------------------------


def test_all_records_are_those_that_are_on_the_topic_now(make_stream: Make) -> None:
    stream = filled(make_stream)
    done = charge(stream)
    assert done.entry.ranges == tuple(OffsetSpan(partition=p, start=0, end=10) for p in range(3))
    assert done.spent == HALF.model_copy(update={"rho": None})
    stream.produce_vectors(stream.vectors(3))
    replay = stream.replay()
    assert [replay.spent(p, 9).epsilon for p in range(3)] == [HALF.epsilon] * 3
    assert [replay.spent(p, 10) for p in range(3)] == [Charge.nothing()] * 3
    report = verify_ledger(stream.settings.kafka, stream.settings.stream.input)
    assert report.ok, report.problems
    assert (report.charges, report.offsets_charged, report.jobs) == (1, 30, ("census",))


def test_records_of_an_open_transaction_are_charged_too(make_stream: Make) -> None:
    stream = filled(make_stream)
    producer = stream.transactional()
    producer.begin_transaction()
    producer.send(stream.settings.stream.input, b"x", partition=1).get(LIMIT)
    done = charge(stream)
    producer.commit_transaction()
    producer.close()
    assert [r.end for r in done.entry.ranges] == [10, 11, 10]


def test_an_empty_partition_is_not_named(make_stream: Make) -> None:
    stream = make_stream()
    stream.produce_vectors(stream.vectors(4), lambda i: 2)
    assert charge(stream).entry.ranges == (OffsetSpan(partition=2, start=0, end=4),)


def test_a_charge_takes_from_what_a_stream_may_reserve(make_stream: Make) -> None:
    stream = filled(make_stream, cap=("1", "1e-6"))
    charge(stream, ranges=[OffsetSpan(partition=0, start=3, end=5)])
    with Leader(stream) as leader:
        with pytest.raises(BudgetExceeded, match="offsets 0 to 3: asked epsilon 1"):
            leader.reserve(0, 4)
        leader.reserve(5, 10)
    with pytest.raises(BudgetExceeded, match="already charged epsilon 1,"):
        charge(stream)
    # The ledger does not contain the refused charge at all.
    assert [e.kind for e in stream.entries()] == ["OPENED", "CHARGED", "RESERVED"]


def test_of_two_charges_at_once_the_logs_order_decides(make_stream: Make, monkeypatch: Patch) -> None:
    stream = filled(make_stream)
    large = Charge(epsilon="3/4", delta=0)

    def charge_early() -> None:
        charge(stream, job="early", charge=large)

    # The other charge comes between our dry run and our commit.
    before = before_step(monkeypatch, ChargeWriter, "charge.6 begin", charge_early)
    with pytest.raises(BudgetExceededByAnother, match=r"nothing was charged: .* asked epsilon 0.75"):
        charge(stream, job="late", charge=large)
    assert len(before) == 1
    replay = stream.replay(void=True)
    assert (replay.job("early").charges, replay.job("late").charges) == (1, 0)
    report = verify_ledger(stream.settings.kafka, stream.settings.stream.input)
    assert report.ok
    assert (report.charges, report.void) == (1, 1)


# -- refused charges, with nothing written ---------------------------------


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"job": "a b"}, "--job must be 1 to 200 letters"),
        ({"reason": "two\nlines"}, "--reason must be one line"),
        ({"charge": Charge(epsilon=0, delta=0)}, "nothing would be charged"),
        ({"ranges": [OffsetSpan(partition=3, start=0, end=1)]}, "has partitions 0 to 2"),
        ({"ranges": [OffsetSpan(partition=0, start=4, end=4)]}, "the end must be above the start"),
        ({"ranges": [OffsetSpan(partition=0, start=5, end=4)]}, "the end must be above the start"),
        ({"ranges": [OffsetSpan(partition=0, start=0, end=11)]}, "has offsets 0 to 9, and only existing"),
        ({"ranges": [OffsetSpan(partition=0, start=s, end=s + 1) for s in (0, 1)]}, "is given twice"),
    ],
    ids=str,
)
def test_a_mistaken_charge_is_refused_with_one_line(
    one_stream: Stream, changes: dict[str, Any], expected: str
) -> None:
    with pytest.raises(charging.ConfigurationError, match=expected) as refusal:
        charge(one_stream, **changes)
    assert "\n" not in str(refusal.value)
    assert [e.kind for e in one_stream.entries()] == ["OPENED"]


@pytest.fixture(scope="module")
def one_stream(kafka_bootstrap: str, unique_name: Name, tmp_path_factory: pytest.TempPathFactory) -> Stream:
    stream = Stream.make(kafka_bootstrap, unique_name("one"), tmp_path_factory.mktemp("one"))
    stream.produce_vectors(stream.vectors(30))
    return stream


def test_a_streams_name_is_no_name_for_charges_and_its_leader_is_not_fenced(make_stream: Make) -> None:
    stream = filled(make_stream)
    with Leader(stream) as leader:
        with pytest.raises(charging.ConfigurationError, match="is a stream"):
            charge(stream, job=stream.settings.stream.name)
        leader.reserve()
    assert len(stream.own(Reserved)) == 1


def test_a_topic_without_a_ledger_or_records_is_refused_with_one_line(make_stream: Make) -> None:
    stream = make_stream(cap=None)
    with pytest.raises(charging.TopicError, match="is not open: set a cap"):
        charge(stream)
    stream.open(("1", "1e-6"))
    with pytest.raises(charging.ConfigurationError, match="has no records"):
        charge(stream)
    with pytest.raises(charging.TopicError, match="is missing: correct its name"):
        charge_records(stream.settings.kafka, "nowhere", "census", HALF, None, "a histogram")


# -- the zcdp filter -------------------------------------------------------


def zcdp_stream(make_stream: Make) -> Stream:
    stream = filled(make_stream, cap=None)
    stream.open(("1/2", "1e-6"), filter="zcdp")
    return stream


def test_a_zcdp_ledger_needs_rho_and_tells_the_rho_that_is_left(make_stream: Make) -> None:
    stream = zcdp_stream(make_stream)
    arguments = ("charge", "--job", "census", "--epsilon", "1/10", "--delta", "0", "--all", "--reason", "x")
    refused = run(stream, *arguments)
    assert "--rho must be given" in str(refused.exception)
    # It would use nothing of this ledger's cap, for any epsilon.
    assert "--rho must be above 0" in str(run(stream, *arguments, "--rho", "0").exception)
    facts = json.loads(run(stream, *arguments, "--rho", "1/1000", "--json").stdout)
    assert facts["spent"] == {"epsilon": "1/10", "delta": "0", "rho": "1/1000"}
    left = facts["left"]["rho"]
    spent = describe_spent(stream.settings.kafka, stream.settings.stream.input, 0, 0)
    assert spent["left"] == {"rho": left}
    # Everything left can be charged, but not a millionth of a millionth more.
    assert len(stream.own(object)) == 0
    more = run(stream, *arguments, "--rho", str(Fraction(left) + Fraction(1, 10**12)))
    assert isinstance(more.exception, BudgetExceeded)
    assert more.exception.exit_status == 3
    assert run(stream, *arguments, "--rho", left).exit_code == 0


def test_a_basic_ledger_charges_no_rho_alone(make_stream: Make) -> None:
    stream = filled(make_stream)
    arguments = ("charge", "--job", "census", "--epsilon", "0", "--delta", "0", "--rho", "5", "--all")
    refused = run(stream, *arguments, "--reason", "x")
    assert "--epsilon and --delta are both 0" in str(refused.exception)
    assert stream.own(object) == []


# -- the command line ------------------------------------------------------


def test_the_command_charges_and_the_others_show_it(make_stream: Make) -> None:
    stream = filled(make_stream)
    reason = "to the [bold]agency"
    base = ("charge", "--job", "census", "--epsilon", "0.5", "--delta", "1e-7", "--reason", reason)
    done = run(stream, *base, "--range", "0:2:6", "--range", "2:0:4", "--json")
    assert done.exit_code == 0, done.output
    facts = json.loads(done.stdout)
    assert facts["ranges"] == [{"partition": 0, "start": 2, "end": 6}, {"partition": 2, "start": 0, "end": 4}]
    assert facts["left"] == {"epsilon": "1/2", "delta": "9/10000000"}
    printed = run(stream, *base, "--range", "1:0:8").stdout
    assert f"8 offsets of {stream.settings.stream.input} charged" in printed

    shown = run(stream, "show").stdout
    for part in ("CHARGED", "census", "0:2:6 2:0:4", reason, "0.5"):
        assert part in shown, shown
    rows = json.loads(run(stream, "show", "--json").stdout)
    assert rows["jobs"]["census"]["charges"] == 2
    assert [e["reason"] for e in rows["entries"] if e["kind"] == "CHARGED"] == [reason] * 2
    spent = json.loads(run(stream, "spent", "--partition", "0", "--offset", "3", "--json").stdout)
    assert spent["jobs"] == {"census": {"epsilon": "1/2", "delta": "1/10000000"}}
    assert "job census" in run(stream, "spent", "--partition", "0", "--offset", "3").stdout
    assert "charges for releases made elsewhere: 2" in run(stream, "verify").stdout


def test_a_charge_over_the_cap_ends_with_status_3_and_what_was_asked_spent_and_capped(
    make_stream: Make, capfd: Capture
) -> None:
    stream = filled(make_stream)
    base = ("charge", "--job", "census", "--epsilon", "0.6", "--delta", "0", "--all", "--reason", "x")
    assert run(stream, *base).exit_code == 0
    kafka, topic = stream.settings.kafka, stream.settings.stream.input
    by_name = ("--input", topic, "--bootstrap", kafka.bootstrap_servers)
    refused = call(capfd, "ledger", *base, *by_name, "--json")
    assert refused.returncode == 3
    line = refused.stderr.strip()
    assert "\n" not in line
    for part in ("asked epsilon 0.6", "already charged epsilon 0.6", "the cap is epsilon 1"):
        assert part in line
    assert len(stream.entries()) == 2


# -- fences and crashes ----------------------------------------------------


def test_an_owner_that_is_fenced_says_that_it_may_have_charged(make_stream: Make, monkeypatch: Patch) -> None:
    stream = filled(make_stream)

    def fence() -> None:
        identity = f"streaming-pca.{stream.topic_id}.census"
        with closing(transactional_producer(stream.settings.kafka, identity)) as successor:
            successor.init_transactions()

    before_step(monkeypatch, ChargeWriter, "charge.8 commit", fence)
    words = "whether the charge was written: look for it in `streaming-pca ledger show`"
    with pytest.raises(SessionLost, match=words):
        charge(stream)
    assert [e.kind for e in stream.entries()] == ["OPENED"]
    monkeypatch.undo()
    assert charge(stream).spent.epsilon == HALF.epsilon


def test_an_interrupted_commit_may_have_charged(make_stream: Make, monkeypatch: Patch) -> None:
    def interrupt() -> None:
        raise KeyboardInterrupt

    for step, raised in (("charge.7 CHARGED", KeyboardInterrupt), ("charge.9 read back", SessionLost)):
        stream = filled(make_stream)
        with monkeypatch.context() as patch:
            before_step(patch, ChargeWriter, step, interrupt)
            with pytest.raises(raised) as caught:
                charge(stream)
        charged = raised is SessionLost
        assert ("interrupted. It is not known whether" in str(caught.value)) == charged
        assert ("CHARGED" in [e.kind for e in stream.entries()]) == charged


def test_an_owner_that_loses_the_broker_before_the_commit_says_that_nothing_was_charged(
    make_stream: Make, monkeypatch: Patch
) -> None:
    stream = filled(make_stream)

    def lose() -> None:
        raise KafkaTimeoutError("no answer")

    before_step(monkeypatch, ChargeWriter, "charge.7 CHARGED", lose)
    with pytest.raises(SessionLost, match=r"charge\.7 CHARGED: .*Nothing was charged: try again"):
        charge(stream)
    assert [e.kind for e in stream.entries()] == ["OPENED"]


STEPS = steps_of(charging)


def test_a_kill_at_any_step_leaves_one_whole_charge_or_none(make_stream: Make, tmp_path: Path) -> None:
    stream = filled(make_stream)
    kafka, topic = stream.settings.kafka, stream.settings.stream.input
    assert len(STEPS) == 9
    for number, step in enumerate(STEPS, start=1):
        job, log = f"job-{number}", tmp_path / f"{number}.log"
        killed(killed_commands.charge, stream.settings, log, step, job)
        # The fence of the second charge ends the first one's open transaction.
        charge(stream, job=job, charge=LITTLE, reason="the second")
        written = [e.reason for e in stream.entries() if isinstance(e, Charged) and e.job == job]
        assert written == ["the first"] * (number >= 8) + ["the second"]
    report = verify_ledger(kafka, topic)
    assert report.ok, report.problems
    assert (report.charges, report.max_epsilon) == (11, Fraction(11, 32))
