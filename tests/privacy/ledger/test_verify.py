from __future__ import annotations

import ast
import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter

from streaming_pca.privacy.ledger import verify, verify_replay
from streaming_pca.privacy.ledger.entries import Cap, Charged, LedgerEntry, Opened, Reserved, encode_entry
from streaming_pca.privacy.ledger.ledger import JobLedger, Ledger
from streaming_pca.privacy.ledger.verify import Report, StoredState, verify_log
from streaming_pca.privacy.parameters import Charge
from tests.privacy.ledger.test_ledger import (
    OF_USERS,
    PROMISE,
    TINY,
    Writer,
    drawn_logs,
    positive,
    small,
    span,
)

Messages = list[tuple[int, bytes]]


def messages(writer: Writer) -> Messages:
    # A transaction's marker takes every second offset.
    return [(2 * i, encode_entry(entry)) for i, entry in enumerate(writer.log)]


def release(stream: str, batch: int, note: str = "", records: int = 5) -> bytes:
    message = {"stream": stream, "batch": batch, "records": records, "components": [[1.0]], "note": note}
    return json.dumps(message | PROMISE).encode()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


# --------------------------------------------------------------------- the ledger and its verifier


def replayed(writer: Writer) -> dict[str, Any]:
    """Return the ledger's view of a log, in the report's words."""
    phases: dict[tuple[str, int], str] = {}
    offsets: dict[tuple[int, int], Charge] = {}
    records = void = elsewhere = 0
    sound = True
    for entry, verdict in zip(writer.log, writer.verdicts, strict=True):
        if entry.topic_id != writer.topic_id:
            continue
        if not verdict.accepted:
            rightly = isinstance(entry, Opened) or "the cap is" in verdict.reason
            void += rightly
            sound = sound and rightly
            continue
        if hasattr(entry, "batch"):
            phases[entry.job, entry.batch] = entry.kind.lower()
        records += getattr(entry, "count", 0)
        elsewhere += isinstance(entry, Charged)
        if isinstance(entry, Reserved | Charged):
            touched = {(r.partition, o) for r in entry.ranges for o in range(r.start, r.end)}
            offsets |= {record: writer.ledger.spent(*record) for record in touched}
    standings = {name: str(job.status) for name, job in sorted(writer.ledger.jobs.items())}
    everywhere = writer.ledger.everywhere
    charges = [everywhere, *(writer.ledger.spent(*record) for record in offsets)]
    batches = Counter(phases.values())
    return {
        "ok": sound,
        "void": void,
        "batches": {k: batches[k] for k in ("reserved", "committed", "abandoned", "released")},
        "records_charged": records,
        "charges": elsewhere,
        "paused": tuple(name for name, standing in standings.items() if standing == "paused"),
        "retired": tuple(name for name, standing in standings.items() if standing == "retired"),
        "offsets_charged": len(offsets),
        "of_users": tuple(n for n, j in sorted(writer.ledger.jobs.items()) if _of_users(j)),
        "max_epsilon": max(c.epsilon for c in charges),
        "max_delta": max(c.delta for c in charges),
        "max_rho": None if any(c.rho is None for c in charges) else max(c.rho for c in charges),
        "everywhere_epsilon": everywhere.epsilon,
        "everywhere_delta": everywhere.delta,
        "everywhere_rho": everywhere.rho,
        "entries": sum(entry.topic_id == writer.topic_id for entry in writer.log),
    }


def _of_users(job: JobLedger) -> bool:
    return job.contract is not None and job.contract.get("privacy_unit") == "user"


@settings(deadline=None)
@given(drawn_logs(sound=True))
def test_what_sound_jobs_wrote_is_verified(writer: Writer) -> None:
    report = verify_log(messages(writer))
    assert report.problems == ()
    assert {key: getattr(report, key) for key in replayed(writer)} == replayed(writer)


@settings(deadline=None)
@given(drawn_logs())
def test_verifier_and_ledger_agree_on_any_log(writer: Writer) -> None:
    report = verify_log(messages(writer), topic_id="T")
    assert {key: getattr(report, key) for key in replayed(writer)} == replayed(writer)


@settings(deadline=None)
@given(positive, positive, small)
def test_verifier_and_ledger_agree_on_the_zcdp_filter(
    rho: Fraction, epsilon: Fraction, delta: Fraction
) -> None:
    writer = Writer(epsilon, delta, "zcdp")
    accepted = writer.reserve("a", span(0, 1), charge=Charge(epsilon=1, delta=TINY, rho=rho)).accepted
    assert verify_log(messages(writer)).offsets_charged == accepted


@settings(deadline=None)
@given(st.fractions(min_value=Fraction(10**6 + 1, 10**6), max_value=10**9), st.sampled_from([64, 256]))
def test_the_verifiers_bounds_of_a_logarithm_enclose_it(x: Fraction, bits: int) -> None:
    low, high = verify_replay.log_bounds(x, bits)
    with mpmath.workdps(150):
        exact = mpmath.log(mpmath.mpf(x.numerator) / x.denominator)
        assert mpmath.mpf(low.numerator) / low.denominator <= exact
        assert mpmath.mpf(high.numerator) / high.denominator >= exact
    assert high - low < Fraction(1, 2 ** (bits - 16))


def test_the_verifier_shares_no_code_with_the_writer_but_schemas_and_rules() -> None:
    modules = (verify, verify_replay)
    shared = {f"streaming_pca.privacy.{name}" for name in ("ledger.entries", "parameters", "ledger.protocol")}
    for module in modules:
        tree = ast.parse(Path(str(module.__file__)).read_text())
        imported = {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
        imported |= {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
        ours = {name for name in imported if name and name.startswith("streaming_pca")}
        assert ours <= shared | {m.__name__ for m in modules}, module


# ------------------------------------------------------------------------------------------ a log


@dataclass
class Topics:
    ledger: Messages
    releases: list[bytes]

    def report(self, **more: Any) -> Report:
        return verify_log(self.ledger, self.releases, **more)

    def edit(self, index: int, **changes: Any) -> None:
        offset, data = self.ledger[index]
        plain = json.loads(data) | changes
        self.ledger[index] = offset, json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def topics() -> Topics:
    """Build two jobs: a race for the cap that b lost, an abandoned batch, four releases.

    0 OPENED; a: 1-3 released, 6-8 released, 12 open; b: 4 over the cap, 5 and 9 abandoned, 10 11 13 released
    """
    writer, releases = Writer(epsilon="3/2"), []

    def publish(job: str) -> None:
        known = writer.ledger.job(job)
        releases.append(release(job, known.batch, records=known.records_committed))
        assert writer.release(job, digest=sha(releases[-1])).accepted

    def accept(*verdicts: Any) -> None:
        assert all(verdict.accepted for verdict in verdicts)

    half = Charge(epsilon="1/2", delta=TINY)
    accept(writer.reserve("a", span(0, 10)), writer.commit("a"))
    publish("a")
    assert not writer.reserve("b", span(5, 15)).accepted
    accept(writer.reserve("b", span(5, 15), charge=half))
    accept(writer.reserve("a", span(10, 20, count=9)), writer.commit("a"))
    publish("a")
    accept(writer.abandon("b"), writer.reserve("b", span(15, 30), charge=half), writer.commit("b"))
    accept(writer.reserve("a", span(20, 30)))
    publish("b")
    return Topics(messages(writer), releases)


def test_a_good_log_is_verified_and_described() -> None:
    report = topics().report()
    assert report.problems == ()
    assert report.ok
    assert report.to_json() == {
        "ok": True,
        "problems": [],
        "topic_id": "T",
        "entries": 14,
        "other_entries": 0,
        "void": 1,
        "jobs": ["a", "b"],
        "paused": [],
        "retired": [],
        "of_users": [],
        "batches": {"reserved": 1, "committed": 0, "abandoned": 1, "released": 3},
        "charges": 0,
        "records_charged": 10 + 9 + 10 + 10 + 15,
        "offsets_charged": 30,
        "max_epsilon": "3/2",
        "max_delta": str(Fraction("1e-6") + Fraction(TINY)),
        "max_rho": None,
        "everywhere_epsilon": "0",
        "everywhere_delta": "0",
        "everywhere_rho": "0",
        "releases": 3,
        "other_releases": 0,
        "states": None,
    }
    json.dumps(report.to_json(), allow_nan=False)


def test_without_releases_only_the_log_is_judged() -> None:
    report = verify_log(topics().ledger)
    assert report.ok
    assert report.releases is None


def test_infinite_charges_come_and_go_along_the_offsets() -> None:
    writer = Writer("inf", "inf")
    writer.answer("a", span(0, 5), charge=Charge.unbounded())
    writer.answer("b", span(3, 9))
    report = verify_log(messages(writer))
    assert report.problems == ()
    assert (report.max_epsilon, report.offsets_charged) == (math.inf, 9)
    assert report.to_json()["max_epsilon"] == "inf"


# ------------------------------------------------------------------------------------- other lives


def two_lives() -> tuple[Writer, Writer, Topics]:
    old, new = Writer(topic_id="OLD"), Writer(topic_id="NEW")
    first, second = release("a", 1, "old"), release("a", 1, "new")
    for writer, data in ((old, first), (new, second)):
        writer.reserve("a", span(0, 5))
        writer.commit("a")
        writer.release("a", digest=sha(data))
    both = Writer(topic_id="NEW")
    both.log = old.log + new.log
    return old, new, Topics(messages(both), [first, second])


def test_the_newest_life_of_a_topic_is_judged_and_an_asked_one() -> None:
    _, _, both = two_lives()
    for asked, judged in ((None, "NEW"), ("NEW", "NEW"), ("OLD", "OLD")):
        report = both.report(topic_id=asked)
        # After a life other than the newest another one is opened, with releases of its own.
        assert len(report.problems) == 2 * (judged == "OLD")
        assert (report.topic_id, report.entries, report.other_entries) == (judged, 4, 4)
        assert (report.releases, report.other_releases) == (1, 1)


def test_a_fault_in_another_life_is_not_this_ones() -> None:
    _, _, both = two_lives()
    del both.ledger[1]
    assert verify_log(both.ledger, topic_id="NEW").ok
    # But its releases are on the topic, and nothing else vouches for them.
    (problem,) = both.report(topic_id="NEW").problems
    assert problem == "release 0 (stream 'a', batch 1): differs from the release in the ledger"
    assert not both.report(topic_id="OLD").ok


def test_a_life_that_is_opened_after_the_present_one_hides_no_release() -> None:
    """Under an invented topic id anything could be released at any cap."""
    present, invented = topics(), Writer(epsilon="inf", delta="inf", topic_id="INVENTED")
    invented.answer("evil", span(0, 10))
    ledger = [*present.ledger, *((100 + i, encode_entry(entry)) for i, entry in enumerate(invented.log))]
    (problem,) = verify_log(ledger, topic_id=present.report().topic_id).problems
    assert problem == "offset 100: opens another life of the topic after the present one"


def test_a_life_that_was_never_opened_is_a_problem() -> None:
    report = verify_log(topics().ledger, topic_id="nobody")
    assert report.problems == ("the ledger of topic id 'nobody' was never opened",)
    assert not verify_log([]).ok


# --------------------------------------------------------------------------------------- tampering


def drop(index: int) -> Callable[[Topics], None]:
    return lambda t: t.ledger.pop(index) and None


def edit(index: int, **changes: Any) -> Callable[[Topics], None]:
    return lambda t: t.edit(index, **changes)


def swap(one: int, other: int) -> Callable[[Topics], None]:
    def tamper(t: Topics) -> None:
        (i, x), (j, y) = t.ledger[one], t.ledger[other]
        t.ledger[one], t.ledger[other] = (i, y), (j, x)

    return tamper


def sent(data: bytes) -> Callable[[Topics], None]:
    return lambda t: t.releases.append(data)


def exchange(t: Topics) -> None:
    t.releases[0], t.releases[1] = t.releases[1], t.releases[0]


def replace_release(t: Topics) -> None:
    t.releases[0] = release("a", 1, "edited")


def append_charge(t: Topics, start: int) -> None:
    """Append a charge with a valid chain."""
    chain = [t.ledger[0][1], *(d for _, d in t.ledger if json.loads(d).get("job") == "c")]
    ranges = [{"partition": 0, "start": start, "end": start + 1}]
    plain = {"version": 1, "topic_id": "T", "job": "c", "previous": sha(chain[-1]), "kind": "CHARGED"}
    plain |= {"ranges": ranges, "charge": COSTLY, "reason": "elsewhere"}
    data = encode_entry(TypeAdapter(LedgerEntry).validate_json(json.dumps(plain)))
    t.ledger.append((t.ledger[-1][0] + 2, data))


def drop_a_charge(t: Topics) -> None:
    append_charge(t, 30)
    append_charge(t, 40)
    t.ledger.pop(-2)


def span_json(start: int, end: int) -> dict[str, int]:
    return {"partition": 0, "start": start, "end": end, "count": end - start}


COSTLY = {"epsilon": "1", "delta": "0", "rho": None}
FREE = {"epsilon": "0", "delta": "0", "rho": None}

TAMPERED: dict[str, tuple[Callable[[Topics], Any], str]] = {
    "OPENED dropped": (drop(0), "never opened"),
    "OPENED moved": (swap(0, 1), "come before OPENED"),
    **{
        f"entry {i} dropped": (drop(i), f"hash chain of job '{'b' if i in (4, 5, 9, 10) else 'a'}'")
        for i in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10)
    },
    "last RELEASED dropped": (drop(13), "the ledger did not release it, its batch is committed"),
    "a charge lowered": (edit(1, charge=FREE), "hash chain of job 'a'"),
    "a charge raised": (edit(5, charge=COSTLY), "hash chain of job 'b'"),
    "a void charge made to fit": (edit(4, charge=FREE), "hash chain of job 'b'"),
    "a cap lowered": (edit(0, cap={"epsilon": "1/4", "delta": "1"}), "hash chain"),
    "a cap raised": (edit(0, cap={"epsilon": "400", "delta": "1"}), "hash chain"),
    "a range moved": (edit(6, ranges=[span_json(40, 50)]), "hash chain of job 'a'"),
    "a count changed": (edit(1, ranges=[span_json(0, 10) | {"count": 3}]), "hash chain of job 'a'"),
    "mechanism parameters changed": (edit(1, parameters={"clip": 9.0}), "hash chain of job 'a'"),
    "a job renamed": (edit(6, job="c"), "hash chain of job 'c'"),
    "two entries swapped": (swap(2, 3), "hash chain of job 'a'"),
    "two reservations swapped": (swap(1, 6), "hash chain of job 'a'"),
    "an entry twice": (lambda t: t.ledger.append((40, t.ledger[1][1])), "hash chain of job 'a'"),
    "offsets out of order": (lambda t: t.ledger.reverse(), "comes after offset"),
    "an offset twice": (lambda t: t.ledger.insert(1, t.ledger[0]), "comes after offset"),
    "no entry at all": (lambda t: t.ledger.append((40, b"hello\nworld")), "not a ledger entry"),
    "a tombstone": (lambda t: t.ledger.append((40, b"")), "not a ledger entry"),
    "an unknown kind": (edit(13, kind="FORGOTTEN"), "not a ledger entry"),
    "a newer version": (edit(13, version=2), "not a ledger entry"),
    "other spelling": (edit(13, batch="2"), "not in canonical form"),
    "NaN as a parameter": (edit(12, parameters={"x": math.nan}), "not in canonical form"),
    "a digest changed": (edit(13, release_digest="0" * 64), "differs from the release in the ledger"),
    "a charge dropped": (drop_a_charge, "hash chain of job 'c'"),
    "a release dropped": (lambda t: t.releases.pop(0), "released by the ledger, but not on the topic"),
    "a release twice": (lambda t: t.releases.append(t.releases[0]), "is on the topic twice"),
    "two releases exchanged": (
        exchange,
        "release 1 (stream 'a', batch 1): comes after the release of batch 2",
    ),
    "a release edited": (replace_release, "differs from the release in the ledger"),
    "two answers to a batch": (sent(release("a", 1, "another")), "differs from the release in the ledger"),
    "a release of an open batch": (sent(release("a", 3)), "did not release it, its batch is reserved"),
    "a release of an abandoned batch": (sent(release("b", 1)), "did not release it, its batch is abandoned"),
    "a release of no batch": (sent(release("stranger", 1)), "did not release it, its batch is unknown"),
    "a release that is none": (sent(b"[1]"), "not a release"),
    "a release without a batch": (sent(b'{"stream": "a"}'), "not a release"),
    "a release with a strange batch": (sent(b'{"stream": "a", "batch": true}'), "not a release"),
}


@pytest.mark.parametrize(("tamper", "problem"), TAMPERED.values(), ids=TAMPERED)
def test_tampering_is_found(tamper: Callable[[Topics], Any], problem: str) -> None:
    tampered = topics()
    tamper(tampered)
    report = tampered.report()
    assert not report.ok
    assert any(problem in line for line in report.problems), report.problems
    assert all("\n" not in line for line in report.problems)


@settings(deadline=None)
@given(drawn_logs(sound=True), st.data())
def test_no_entry_but_a_jobs_last_can_be_dropped_unseen(writer: Writer, data: st.DataObject) -> None:
    log = messages(writer)
    if len(log) < 2:
        return
    index = data.draw(st.integers(0, len(log) - 1))
    job = getattr(writer.log[index], "job", None)
    is_last = all(getattr(entry, "job", None) != job for entry in writer.log[index + 1 :])
    found = not verify_log(log[:index] + log[index + 1 :]).ok
    assert found or (is_last and index > 0)


def test_a_broken_chain_is_one_problem_however_long_the_rest() -> None:
    writer = Writer()
    for batch in range(50):
        writer.answer("a", span(10 * batch, 10 * batch + 10))
    log = messages(writer)
    del log[2]
    report = verify_log(log)
    assert len(report.problems) == 1
    assert "offset 6" in report.problems[0]
    assert "(148 entries" in report.problems[0]


def test_four_jobs_that_meet_everywhere_fill_the_cap_and_are_verified() -> None:
    writer = Writer(epsilon=4)
    for batch in range(60):
        for shift, job in enumerate("abcd"):
            writer.answer(job, span(7 * batch + shift, 7 * batch + shift + 7))
    report = verify_log(messages(writer))
    assert report.problems == ()
    assert report.max_epsilon == 4


def test_the_second_opened_is_void_and_the_first_ones_cap_holds() -> None:
    writer = Writer(epsilon=1)
    writer.put(Opened(topic_id="T", topic="in", cap=Cap(epsilon=9, delta=1)))
    writer.answer("a", span(0, 5))
    assert not writer.reserve("b", span(0, 5)).accepted
    report = verify_log(messages(writer))
    assert report.ok
    assert report.void == 2


# ------------------------------------------------------------------- standing, and charges elsewhere


def test_paused_and_retired_jobs_and_charges_are_reported() -> None:
    writer = Writer(epsilon=3)
    writer.answer("a", span(0, 5))
    writer.answer("b", span(0, 5))
    for job, actions in {
        "a": ("pause", "resume", "pause"),
        "b": ("retire",),
        "c": ("pause", "resume"),
    }.items():
        assert all(writer.stand(job, action).accepted for action in actions)
    assert writer.charge("elsewhere", span(3, 9)).accepted
    assert not writer.charge("elsewhere", span(4, 9)).accepted
    report = verify_log(messages(writer))
    assert report.problems == ()
    assert (report.paused, report.retired, report.jobs) == (("a",), ("b",), ("a", "b", "c", "elsewhere"))
    assert (report.charges, report.void) == (1, 1)
    assert (report.max_epsilon, report.offsets_charged, report.records_charged) == (3, 9, 10)


def test_charges_that_meet_are_summed_and_the_one_too_many_is_void() -> None:
    writer = Writer(epsilon=4)
    verdicts = [writer.charge("elsewhere", span(i, 10)).accepted for i in range(6)]
    assert verdicts == [True, True, True, True, False, False]
    report = verify_log(messages(writer))
    assert report.ok
    assert (report.charges, report.void, report.max_epsilon) == (4, 2, 4)


# --------------------------------------------------------------------------------------- jobs of users


def test_what_jobs_of_users_charge_every_record_is_reported() -> None:
    writer = Writer(epsilon="7/2")
    writer.answer("u", span(0, 5), promise=OF_USERS)
    writer.answer("u", span(5, 9), promise=OF_USERS)
    writer.answer("v", span(0, 5, partition=1), promise=OF_USERS)
    writer.answer("a", span(3, 7))
    assert not writer.reserve("b", span(6, 8)).accepted
    assert not writer.reserve("w", span(90, 91), promise=OF_USERS).accepted
    report = verify_log(messages(writer))
    assert report.problems == ()
    assert (report.of_users, report.void) == (("u", "v"), 2)
    assert (report.everywhere_epsilon, report.everywhere_delta, report.everywhere_rho) == (
        2,
        Fraction(2, 10**6),
        None,
    )
    assert (report.max_epsilon, report.offsets_charged, report.records_charged) == (3, 14, 18)
    assert report.to_json()["of_users"] == ["u", "v"]


class ChargesUsersLikeRecords(Ledger):
    """The mistake of charging a job of users only in the ranges that it read."""

    def check_budget(self, entry: Reserved | Charged) -> None:
        super().check_budget(entry.model_copy(update={"promise": {}}))

    def _charge(self, entry: Reserved | Charged, job: JobLedger) -> None:
        super()._charge(entry.model_copy(update={"promise": {}}), job)


@pytest.mark.parametrize(("promises", "found"), [((PROMISE, OF_USERS), True), ((PROMISE, PROMISE), False)])
def test_a_ledger_that_charged_users_in_their_ranges_only_is_not_verified(
    promises: tuple[dict[str, Any], dict[str, Any]], found: bool
) -> None:
    """The jobs have disjoint ranges: if one is of users, the second exceeds the cap."""
    for pair in (promises, promises[::-1]):
        writer = Writer(epsilon="3/2")
        ledger = ChargesUsersLikeRecords("T")
        ledger.apply(writer.log[0])
        writer.ledger = ledger
        for partition, promise in enumerate(pair):
            writer.answer("uv"[partition], span(0, 5, partition), promise=promise)
        report = verify_log(messages(writer))
        # To the verifier the second reservation is void, and yet it was answered.
        lost = "batch 1 is not the job's last batch (0)"
        assert any(lost in problem for problem in report.problems) == found


# ----------------------------------------------------------------------------------------- releases


def test_releases_of_several_streams_may_be_mixed_and_those_of_a_life_come_after_another() -> None:
    """The order counts only within each stream."""
    log = topics()
    assert [json.loads(r)["stream"] for r in log.releases] == ["a", "a", "b"]
    log.releases = [log.releases[2], *log.releases[:2]]
    assert log.report().ok
    _, _, both = two_lives()
    assert both.report().ok
    both.releases.reverse()
    (problem,) = both.report().problems
    assert "is of an earlier life of the topic, and comes after one of this life" in problem


# ------------------------------------------------------------------------------------------- states


def states_of(t: Topics) -> dict[str, StoredState]:
    """Return the last states that the ledger of :func:`topics` committed, as in their topics."""
    last = {json.loads(data)["stream"]: sha(data) for data in t.releases}
    return {name: StoredState(f"state {name} 2", "T", name, 2, "", last[name]) for name in "ab"}


def test_states_that_the_ledger_committed_are_counted() -> None:
    log = topics()
    report = verify_log(log.ledger, log.releases, states_of(log))
    assert report.problems == ()
    assert report.states == 2
    # A job that only charges has no state, nor does a job that abandoned all its batches.
    writer = Writer()
    writer.charge("c", span(0, 5))
    writer.reserve("a", span(0, 5))
    writer.abandon("a")
    empty = verify_log(messages(writer), [], {})
    assert (empty.ok, empty.states) == (True, 0)


@pytest.mark.parametrize(
    ("state", "problem"),
    [
        (None, "the state that the ledger committed with batch 2 is missing"),
        (StoredState("state a 1", "T", "a", 1), "differs from the one committed with batch 2"),
        (StoredState("state a 2", "U", "a", 2), "differs from the one committed with batch 2"),
        (StoredState("state a 2", "T", "b", 2), "differs from the one committed with batch 2"),
        (StoredState("state a 2", "T", "a", 3), "differs from the one committed with batch 2"),
        (StoredState("state a 2", "T", "a", 2, "its table of users is missing"), "table of users is missing"),
    ],
)
def test_a_state_that_is_not_the_committed_one_is_a_problem(state: StoredState | None, problem: str) -> None:
    log = topics()
    states = {name: found for name, found in (states_of(log) | {"a": state}).items() if found}
    report = verify_log(log.ledger, log.releases, states)
    assert not report.ok
    assert report.states == 1
    (line,) = report.problems
    assert line.startswith("job 'a', batch 2: ")
    assert problem in line
    assert "'a.state'" in line
    assert "streaming-pca import" in line


def test_a_state_of_a_job_that_committed_nothing_is_a_problem() -> None:
    log = topics()
    report = verify_log(log.ledger, None, states_of(log) | {"c": StoredState("x", "T", "c", 1)})
    assert any("job 'c'" in line and "no batch was committed" in line for line in report.problems)
