from __future__ import annotations

import copy
import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.privacy.ledger.cap import BudgetExceeded, within_cap
from streaming_pca.privacy.ledger.entries import (
    Abandoned,
    Cap,
    Charged,
    Committed,
    LedgerEntry,
    OffsetPosition,
    OffsetRange,
    OffsetSpan,
    Opened,
    Paused,
    Released,
    Reserved,
    Resumed,
    Retired,
    Started,
    decode_entry,
    encode_entry,
    entry_hash,
)
from streaming_pca.privacy.ledger.ledger import JobLedger, Ledger, Verdict
from streaming_pca.privacy.ledger.protocol import BatchStatus, JobStatus
from streaming_pca.privacy.ledger.verify import verify_log
from streaming_pca.privacy.parameters import Charge, parse_rational
from tests.data.refusals import refuses

ONE = Charge(epsilon=1, delta="1e-6")
PROMISE = {"epsilon": 0.25, "delta": 1e-30, "rank": 2, "privacy_unit": "message"}
TINY = "1e-30"
# Its cost of rho, 5e-7, is below every rho claimed here.
PARAMETERS = {"mechanism": "private-oja", "sigma_over_sensitivity": 1000.0}
TOO_QUIET = PARAMETERS | {"sigma_over_sensitivity": 10.0}
OF_USERS = PROMISE | {"privacy_unit": "user", "contributions_per_user": 3}


def span(start: int, end: int, partition: int = 0, count: int | None = None) -> OffsetRange:
    count = end - start if count is None else count
    return OffsetRange(partition=partition, start=start, end=end, count=count)


STANDINGS: dict[str, Any] = {"pause": Paused, "resume": Resumed, "retire": Retired}


class Writer:
    """A log and its replay; writes entries with valid chains unless given another hash."""

    def __init__(self, epsilon: Any = 2, delta: Any = 1, rule: Any = "basic", topic_id: str = "T") -> None:
        self.topic_id = topic_id
        self.log: list[LedgerEntry] = []
        self.verdicts: list[Verdict] = []
        self.ledger = Ledger(topic_id)
        self.put(Opened(topic_id=topic_id, topic="in", cap=Cap(epsilon=epsilon, delta=delta), filter=rule))

    def put(self, entry: LedgerEntry) -> Verdict:
        self.log.append(entry)
        self.verdicts.append(self.ledger.apply(entry))
        return self.verdicts[-1]

    def _of_job(self, job: str, previous: str | None) -> dict[str, Any]:
        head = self.ledger.job(job).head
        return {"topic_id": self.topic_id, "job": job, "previous": head if previous is None else previous}

    def _common(self, job: str, batch: int | None, previous: str | None) -> dict[str, Any]:
        batch = max(self.ledger.job(job).batch, 1) if batch is None else batch
        return self._of_job(job, previous) | {"batch": batch}

    def reserved(
        self,
        job: str,
        *ranges: OffsetRange,
        charge: Charge = ONE,
        promise: dict[str, Any] = PROMISE,
        parameters: dict[str, Any] = PARAMETERS,
        batch: int | None = None,
        previous: str | None = None,
    ) -> Reserved:
        batch = self.ledger.job(job).batch + 1 if batch is None else batch
        how = {"ranges": ranges, "promise": promise, "parameters": parameters, "charge": charge}
        return Reserved(**self._common(job, batch, previous), **how)

    def reserve(self, job: str, *ranges: OffsetRange, **more: Any) -> Verdict:
        return self.put(self.reserved(job, *ranges, **more))

    def commit(self, job: str, batch: int | None = None, previous: str | None = None) -> Verdict:
        known = self._common(job, batch, previous)
        return self.put(Committed(**known, state_digest=f"state {job} {known['batch']}"))

    def abandon(self, job: str, batch: int | None = None, previous: str | None = None) -> Verdict:
        return self.put(Abandoned(**self._common(job, batch, previous), reason="retention"))

    def release(self, job: str, batch: int | None = None, digest: str = "d") -> Verdict:
        return self.put(Released(**self._common(job, batch, None), release_digest=digest))

    def stand(self, job: str, action: str, previous: str | None = None) -> Verdict:
        """Pause, resume or retire a job."""
        return self.put(STANDINGS[action](**self._of_job(job, previous), reason=action))

    def start(self, job: str, *offsets: int, previous: str | None = None) -> Verdict:
        """Begin at an offset of each partition from 0."""
        positions = [OffsetPosition(partition=p, offset=o) for p, o in enumerate(offsets)]
        return self.put(Started(**self._of_job(job, previous), positions=positions))

    def charged(self, job: str, *ranges: OffsetSpan, charge: Any = ONE, previous: Any = None) -> Charged:
        spans = [OffsetSpan(partition=r.partition, start=r.start, end=r.end) for r in ranges]
        return Charged(**self._of_job(job, previous), ranges=spans, charge=charge, reason="elsewhere")

    def charge(self, job: str, *ranges: OffsetSpan, **more: Any) -> Verdict:
        return self.put(self.charged(job, *ranges, **more))

    def answer(self, job: str, *ranges: OffsetRange, **more: Any) -> None:
        """Reserve, commit and release a whole batch."""
        assert self.reserve(job, *ranges, **more).accepted
        assert self.commit(job).accepted
        assert self.release(job).accepted


of_rho = [Charge(epsilon="1/3", delta=TINY, rho="1/18"), Charge(epsilon=1, delta=TINY, rho="1/2")]
COSTS = [ONE, *of_rho, Charge.unbounded()]
# Charges below the promise, or below the cost of the mechanism.
of_too_little_rho = [Charge(epsilon=1, delta=TINY, rho=0), Charge(epsilon=1, delta=1, rho="4e-7")]
TOO_LITTLE = [Charge(epsilon="1/5", delta=1), *of_too_little_rho, Charge.nothing()]
CAPS = [(1, 1), (2, "1e-6"), ("4/3", "2e-6"), (3, "1e-3"), ("inf", "inf"), ("inf", 0), (2, 0), (0, 1)]


OF_BATCHES = ["reserve", "commit", "abandon", "release"]
EVERYTHING = [*OF_BATCHES, "charge", "pause", "resume", "retire", "open", "other life"]


def sensible(job: str, known: JobLedger) -> list[str]:
    """Return the entries that a sound writer may write next."""
    match known.status:
        case JobStatus.RETIRED:
            return ["rest"]
        case JobStatus.PAUSED:
            standing, new = ["resume"], []
        case _:
            standing, new = ["pause"], ["charge" if job == "c" else "reserve"] * 4
    match known.phase:
        case BatchStatus.RESERVED:
            return ["commit", "commit", "abandon", *standing]
        case BatchStatus.COMMITTED:
            return ["release", "release", *standing]
    return [*new, *standing, "retire"]


@st.composite
def drawn_ranges(draw: st.DrawFn, ends: dict[int, int], odd: bool) -> list[OffsetRange]:
    """Draw ranges that begin where others end; if odd, impossible ones too."""
    ranges = []
    for partition in draw(st.sampled_from([(0,), (1,), (0, 1), (1, 0), *([()] * odd)])):
        start = ends.get(partition, 0) + draw(st.integers(-2 if odd else 0, 1))
        length = draw(st.integers(-1 if odd else 1, 3))
        start = max(start, 0)
        count = draw(st.integers(0 if odd else 1, max(length, 0) + odd))
        ranges.append(span(start, max(start + length, 0), partition, count))
    if odd and ranges and draw(st.booleans()):
        ranges.append(ranges[0])
    return ranges


@st.composite
def drawn_logs(draw: st.DrawFn, sound: bool = False) -> Writer:
    """Draw a log of jobs: of messages (a, b), of users (u, v), and of charges (c).

    Unless ``sound``, it contains entries that no sound writer writes.
    """
    epsilon, delta = draw(st.sampled_from(CAPS))
    writer = Writer(epsilon, delta, draw(st.sampled_from(["basic", "zcdp"])))
    steps = draw(st.integers(0, 24))
    for _ in range(steps):
        odd = (not sound) and draw(st.integers(0, 5)) == 0
        job = draw(st.sampled_from("abcuv"))
        known = writer.ledger.job(job)
        wrong: dict[str, Any] = {}
        if odd:
            others = [writer.ledger.job(other).head for other in "abcuv" if other != job]
            batches = st.integers(max(known.batch - 1, 1), known.batch + 2)
            hashes = st.sampled_from(["", "no hash", known.head, *others])
            wrong = draw(st.fixed_dictionaries({}, optional={"batch": batches, "previous": hashes}))
        if sound and known.phase is BatchStatus.COMMITTED:
            writer.release(job)
            continue
        match draw(st.sampled_from(EVERYTHING if odd else sensible(job, known))):
            case "reserve":
                ranges = draw(drawn_ranges(known.ends, odd))
                promise = OF_USERS if job in "uv" else PROMISE
                if odd and draw(st.booleans()):
                    promise = draw(st.sampled_from([{"rank": 3}, PROMISE, OF_USERS]))
                cost = draw(st.sampled_from(COSTS + TOO_LITTLE * odd))
                if odd and draw(st.booleans()):
                    wrong["parameters"] = draw(st.sampled_from([{"mechanism": "of another day"}, TOO_QUIET]))
                writer.reserve(job, *ranges, charge=cost, promise=promise, **wrong)
            case "charge":
                wrong.pop("batch", None)
                cost = draw(st.sampled_from(COSTS + TOO_LITTLE))
                writer.charge(job, *draw(drawn_ranges({}, odd)), charge=cost, **wrong)
            case "pause" | "resume" | "retire" as action:
                writer.stand(job, action, wrong.get("previous"))
            case "commit":
                writer.commit(job, **wrong)
            case "abandon":
                writer.abandon(job, **wrong)
            case "release":
                writer.release(job)
            case "open":
                writer.put(writer.log[0].model_copy(update={"cap": Cap(epsilon=99, delta=1)}))
            case "other life":
                writer.put(writer.reserved(job, span(0, 9)).model_copy(update={"topic_id": "U"}))
    return writer


@dataclass
class Naive:
    """The ledger's rules, record by record, without intervals or computing hashes twice."""

    topic_id: str
    opened: Opened | None = None
    heads: dict[str, str] = field(default_factory=dict)
    batches: dict[str, list[list[Any]]] = field(default_factory=dict)
    written: dict[str, list[str]] = field(default_factory=dict)
    spent: dict[tuple[int, int], list[Charge]] = field(default_factory=dict)
    of_users: dict[str, list[Charge]] = field(default_factory=dict)

    def everywhere(self, job: str = "", more: tuple[Charge, ...] = ()) -> list[Charge]:
        """Return a charge for each job of users: the largest of its reservations, and ``more`` for one."""
        named = {name: list(charges) for name, charges in self.of_users.items()}
        if job:
            named.setdefault(job, []).extend(more)
        return [largest(charges) for charges in named.values()]

    def bears(self, record: tuple[int, int]) -> Charge:
        return sum([*self.spent.get(record, []), *self.everywhere()], Charge.nothing())

    def take(self, entry: LedgerEntry) -> bool:
        if entry.topic_id != self.topic_id:
            return False
        if isinstance(entry, Opened):
            if self.opened is not None:
                return False
            self.opened = entry
            return True
        if self.opened is None or entry.previous != self.heads.get(entry.job, entry_hash(self.opened)):
            return False
        self.heads[entry.job] = entry_hash(entry)
        mine, kinds = self.batches.setdefault(entry.job, []), self.written.setdefault(entry.job, [])
        accepted = self.check(entry, mine, kinds, self.opened)
        if accepted:
            kinds.append(entry.kind)
        return accepted

    def check(self, entry: Any, mine: list[list[Any]], kinds: list[str], opened: Opened) -> bool:
        turns = [kind for kind in kinds if kind in ("PAUSED", "RESUMED", "RETIRED")]
        paused, retired = turns[-1:] == ["PAUSED"], "RETIRED" in turns
        match entry.kind:
            case "RESERVED":
                return not (paused or retired or "CHARGED" in kinds) and self.reserve(entry, mine, opened)
            case "CHARGED":
                return not (paused or retired or mine) and self.spend(entry, opened)
            case "PAUSED":
                return not paused and not retired
            case "RESUMED":
                return paused
            case "RETIRED":
                return not retired and not (mine and mine[-1][1] in ("RESERVED", "COMMITTED"))
        wanted = "COMMITTED" if isinstance(entry, Released) else "RESERVED"
        if not mine or mine[-1][0].batch != entry.batch or mine[-1][1] != wanted:
            return False
        mine[-1][1] = entry.kind
        return True

    def reserve(self, entry: Reserved, mine: list[list[Any]], opened: Opened) -> bool:
        earlier = [r for reserved, _ in mine for r in reserved.ranges]
        if mine and (mine[-1][1] == "RESERVED" or mine[0][0].promise != entry.promise):
            return False
        if entry.batch != len(mine) + 1 or any(r.count > r.end - r.start for r in entry.ranges):
            return False
        if not entry.ranges or any(not r.count for r in entry.ranges) or not self.covers(entry):
            return False
        if any(e.partition == r.partition and r.start < e.end for r in entry.ranges for e in earlier):
            return False
        if entry.promise.get("privacy_unit") == "user":
            if not self.spend_everywhere(entry, opened):
                return False
        elif not self.spend(entry, opened):
            return False
        mine.append([entry, "RESERVED"])
        return True

    @staticmethod
    def covers(entry: Reserved) -> bool:
        """Return whether the charge covers the entry's claims, for the promises and mechanisms drawn."""
        charge = entry.charge
        if "epsilon" not in entry.promise or charge.epsilon < Fraction(1, 4) or charge.delta < Fraction(TINY):
            return False
        batches = entry.promise.get("contributions_per_user", 1)
        enough = charge.rho is None or charge.rho >= batches * Fraction(1, 2 * 10**6)
        return entry.parameters == PARAMETERS and enough

    def spend(self, entry: Reserved | Charged, opened: Opened) -> bool:
        if len({r.partition for r in entry.ranges}) != len(entry.ranges):
            return False
        if any(r.end < r.start for r in entry.ranges):
            return False
        records = [(r.partition, o) for r in entry.ranges for o in range(r.start, r.end)]
        for record in records:
            charges = [*self.spent.get(record, []), *self.everywhere(), entry.charge]
            if not naive_within(charges, opened):
                return False
        for record in records:
            self.spent.setdefault(record, []).append(entry.charge)
        return True

    def spend_everywhere(self, entry: Reserved, opened: Opened) -> bool:
        if len({r.partition for r in entry.ranges}) != len(entry.ranges):
            return False
        if any(r.end < r.start for r in entry.ranges):
            return False
        after = self.everywhere(entry.job, (entry.charge,))
        # The empty list represents a record that no job has read.
        if not all(naive_within([*charges, *after], opened) for charges in [[], *self.spent.values()]):
            return False
        self.of_users.setdefault(entry.job, []).append(entry.charge)
        return True


def largest(charges: list[Charge]) -> Charge:
    rhos = [c.rho for c in charges]
    return Charge(
        epsilon=max(c.epsilon for c in charges),
        delta=max(c.delta for c in charges),
        rho=None if None in rhos else max(rho for rho in rhos if rho is not None),
    )


def naive_within(charges: list[Charge], opened: Opened) -> bool:
    cap = opened.cap
    if opened.filter == "basic":
        return sum(c.epsilon for c in charges) <= cap.epsilon and sum(c.delta for c in charges) <= cap.delta
    if cap.epsilon == math.inf:
        return True
    if any(c.rho in (None, math.inf) for c in charges):
        return False
    rho = sum(Fraction(c.rho) for c in charges)  # type: ignore[arg-type]
    return rho == 0 or cap.delta >= 1 or exact_zcdp(rho, Fraction(cap.epsilon), Fraction(cap.delta))


def exact_zcdp(rho: Fraction, epsilon: Fraction, delta: Fraction) -> bool:
    """Return rho + 2 sqrt(rho ln(1/delta)) <= epsilon, with 200 digits."""
    if delta == 0:
        return False
    with mpmath.workdps(200):
        r, e, d = (mpmath.mpf(x.numerator) / x.denominator for x in (rho, epsilon, delta))
        return bool(r + 2 * mpmath.sqrt(r * mpmath.log(1 / d)) <= e)


@settings(deadline=None)
@given(drawn_logs())
def test_the_ledger_rules_as_a_model_that_counts_every_record(writer: Writer) -> None:
    naive = Naive("T")
    assert [naive.take(entry) for entry in writer.log] == [v.accepted for v in writer.verdicts]
    ledger = writer.ledger
    for partition in (0, 1, 2):
        for offset in range(60):
            assert ledger.spent(partition, offset) == naive.bears((partition, offset))
    assert ledger.everywhere == sum(naive.everywhere(), Charge.nothing())
    of_records = [sum(charges, Charge.nothing()) for charges in naive.spent.values()]
    assert ledger.most_charged() == largest([Charge.nothing(), *of_records]) + ledger.everywhere
    for job, head in naive.heads.items():
        known, mine = ledger.job(job), naive.batches[job]
        assert known.head == head
        assert known.batch == len(mine)
        phases = Counter(phase for _, phase in mine)
        assert known.phase == (mine[-1][1].lower() if mine else "none")
        assert known.committed == phases["COMMITTED"] + phases["RELEASED"]
        assert known.abandoned == phases["ABANDONED"]
        assert known.released == phases["RELEASED"]
        assert known.records_abandoned == sum(r.count for r, phase in mine if phase == "ABANDONED")
        kinds = naive.written[job]
        assert known.charges == kinds.count("CHARGED")
        assert (known.status is JobStatus.RETIRED) == ("RETIRED" in kinds)
        paused = kinds.count("PAUSED") > kinds.count("RESUMED")
        assert (known.status is JobStatus.PAUSED) == ("RETIRED" not in kinds and paused)


@settings(deadline=None)
@given(drawn_logs(), st.data())
def test_a_dry_run_changes_nothing_and_says_what_replay_says(writer: Writer, data: st.DataObject) -> None:
    ledger = Ledger("T")
    for entry, verdict in zip(writer.log, writer.verdicts, strict=True):
        before = copy.deepcopy(vars(ledger))
        assert ledger.check(entry) == verdict
        assert vars(ledger) == before
        assert ledger.apply(entry) == verdict


@settings(deadline=None)
@given(drawn_logs())
def test_replay_of_the_bytes_gives_every_reader_the_same_answer(writer: Writer) -> None:
    again = Ledger("T")
    assert [again.apply(decode_entry(encode_entry(entry))) for entry in writer.log] == writer.verdicts
    assert again.jobs == writer.ledger.jobs
    assert again.spend == writer.ledger.spend
    assert again.everywhere == writer.ledger.everywhere


@settings(deadline=None)
@given(drawn_logs())
def test_a_job_charges_no_record_twice(writer: Writer) -> None:
    seen: set[tuple[str, int, int]] = set()
    for entry, verdict in zip(writer.log, writer.verdicts, strict=True):
        if isinstance(entry, Reserved) and verdict.accepted:
            records = {(entry.job, r.partition, o) for r in entry.ranges for o in range(r.start, r.end)}
            assert not records & seen
            seen |= records


def run(log: Writer, line: str) -> None:
    """Run a step of a claim: ``verb job [ranges] [key=value] [-> reason]``, or check a value.

    Ranges are ``[partition:]start-end[#count]``; ``eps``, ``delta`` and ``rho`` make a charge; ``users`` is
    the contract of users. An entry must count, or be void for the reason. ``spent``, ``everywhere``,
    ``batch``, ``status``, ``phase``, ``charges`` and ``reason`` compare the ledger's view.
    """
    step, _, reason = line.partition(" -> ")
    verb, *words = step.split()
    if verb == "spent":
        for record in words:
            place, _, epsilon = record.partition("=")
            partition, _, offset = place.rpartition(":")
            spent = log.ledger.spent(int(partition or 0), int(offset))
            assert spent.epsilon == parse_rational(epsilon), line
            assert (spent == Charge.nothing()) == (epsilon == "0"), line
        return
    if verb == "everywhere":
        found = log.ledger.everywhere
        assert (found.epsilon, found.delta)[: len(words)] == tuple(map(parse_rational, words)), line
        return
    if verb in ("batch", "status", "phase", "charges", "reason"):
        assert str(getattr(log.ledger.job(words[0]), verb)) == words[1], line
        return
    job, *words = words
    more: dict[str, Any] = {}
    ranges, costs = [], {}
    for word in words:
        key, _, value = word.partition("=")
        if key in ("eps", "delta", "rho"):
            costs[{"eps": "epsilon"}.get(key, key)] = value
        elif key == "batch":
            more["batch"] = int(value)
        elif key == "users":
            more["promise"] = OF_USERS
        elif verb != "start":
            place, _, count = key.partition("#")
            partition, _, ends = place.rpartition(":")
            start, end = map(int, ends.split("-"))
            ranges.append(span(start, end, int(partition or 0), int(count) if count else None))
    if costs:
        more["charge"] = Charge(**({"epsilon": 1, "delta": TINY} | costs))
    if verb == "answer":
        log.answer(job, *ranges, **more)
        return
    if verb in STANDINGS:
        verdict = log.stand(job, verb)
    elif verb == "start":
        verdict = log.start(job, *map(int, words))
    else:
        verdict = getattr(log, verb)(job, *ranges, **more)
    assert verdict.accepted == (not reason), (line, verdict)
    assert reason in verdict.reason, (line, verdict)


CLAIMS = """
a pause keeps its reason while its open batch ends
    reserve a 0-5
    pause a
    reason a pause
    abandon a
    reason a pause
    resume a
    reserve a 6-9
    abandon a
    reason a retention
a reservation that would pass the cap is void for everyone | epsilon=3/2
    answer a 0-5
    reserve b 4-9 -> already charged epsilon 1, delta 1e-06; the cap is epsilon 1.5
    spent 3=1 4=1 5=0 8=0
    batch b 0
one record over the cap voids the whole reservation | epsilon=1
    answer a 1:7-8
    reserve b 0-100 1:0-100 -> the cap is
    spent 50=0
a delta above the cap is refused like an epsilon | epsilon=9 delta=1e-6
    reserve a 0-1
    reserve b 0-1 eps=1/4 delta=1e-9 -> the cap is
the first answer to a batch counts
    reserve a 0-5
    commit a
    commit a -> is committed, not reserved
    abandon a -> is committed, not reserved
    phase a committed
an abandoned batch keeps its charge and gets no answer | epsilon=1
    reserve a 0-5
    abandon a
    commit a -> is abandoned, not reserved
    release a -> is abandoned, not committed
    spent 2=1
    reserve b 2-3 -> the cap is
    reserve a 4-6 -> overlaps
    reserve a 5-6
a release needs a committed batch
    release a batch=1 -> is not the job's last batch
    reserve a 0-5
    release a -> is reserved, not committed
    commit a
    release a batch=2 -> is not the job's last batch
    release a
    release a -> is released, not committed
    commit a -> batch 1 is released, not reserved
    abandon a -> batch 1 is released, not reserved
    reserve a 5-9
    commit a batch=1 -> batch 1 is not the job's last batch (2)
    commit a batch=7 -> batch 7 is not the job's last batch (2)
a batch must end before the next begins
    reserve a 0-5
    reserve a 5-9 -> still open
    commit a
    reserve a 5-9 batch=3 -> does not follow
    reserve a 5-9 batch=1 -> does not follow
an estimator that is not private needs an infinite cap | epsilon=100
    reserve plain 0-5 eps=inf delta=inf rho=inf -> the cap is
an infinite charge stays infinite | epsilon=inf delta=inf
    reserve plain 0-5 eps=inf delta=inf rho=inf
    spent 4=inf
    reserve a 0-5
    spent 4=inf
two jobs of users on disjoint ranges compose | epsilon=3/2
    reserve u 0-5 users
    reserve v 1:0-5 users -> every record, read or not: asked epsilon 1
    reserve v 1:0-5 users eps=1/2
    everywhere 3/2
a job of users is compared with the most charged record anywhere | epsilon=3/2
    answer a 3:7-8
    reserve u 0-5 users -> partition 3, offset 7: asked
    everywhere 0
a record is compared with the earlier charges of jobs of users | epsilon=3/2
    reserve u 0-5 users
    reserve a 1000000000-1000000001 -> already charged epsilon 1
    charge census 0-5 -> already charged epsilon 1
the largest charge of a job of users is its charge of all its batches | epsilon=3
    answer u 0-5 users eps=1 delta=2e-6
    answer u 5-10 users eps=2 delta=1e-6
    answer u 10-15 users eps=1 delta=1e-6
    everywhere 2 2e-6
    reserve v 0-5 users
    abandon v
    reserve u 20-25 users eps=3 -> asked epsilon 3
    everywhere 3
a void reservation of users charges nobody | epsilon=1/2
    reserve u 0-5 users -> the cap is
    everywhere 0
    reserve a 0-5 eps=1/2
batches of a job of users never overlap either | epsilon=9
    answer u 0-5 users
    reserve u 4-9 users -> overlaps
the unit of a job never changes | epsilon=9
    answer u 0-5 users
    answer a 0-5
    reserve u 5-9 -> privacy contract changed
    reserve a 5-9 users -> privacy contract changed
a refusal under zcdp names the rhos | epsilon=1/10 delta=1e-6 rule=zcdp
    reserve a 0-5 delta=1e-6 rho=1/50 -> asked epsilon 1, delta 1e-06, rho 0.02; already
    reserve a 0-5 -> rho not claimed
a paused job reserves nothing until it is resumed
    answer a 0-5
    pause a
    reserve a 5-9 -> the job is paused
    spent 5=0
    resume a
    reserve a 5-9
a job can be paused before its first batch
    pause a
    reserve a 0-5 -> the job is paused
    resume a
    reserve a 0-5
an open batch may be answered while its job is paused
    reserve a 0-5
    pause a
    commit a
    release a
    status a paused
an open batch may be abandoned while its job is paused
    reserve a 0-5
    pause a
    abandon a
    status a paused
a retired job never reserves again
    answer a 0-5
    retire a
    reserve a 5-9 -> the job is retired
    pause a -> the job is retired, which is final
    resume a -> the job is retired, which is final
    retire a -> the job is retired, which is final
    spent 4=1
a paused job can be retired
    pause a
    retire a
a job is not retired over an open or unpublished batch
    reserve a 0-5
    retire a -> batch 1 is reserved
    commit a
    retire a -> batch 1 is committed
    release a
    retire a
an active job is not resumed
    resume a -> the job is active, not paused
    status a active
a paused job is not paused again
    pause a
    pause a -> the job is paused
    status a paused
one job's status is not another's
    retire a
    reserve b 0-5
a charge for a release elsewhere counts like a batch | epsilon=2
    charge census 3-7
    spent 2=0 3=1 6=1 7=0
    answer a 0-5
    spent 4=2
    reserve b 4-5 -> the cap is
    reserve b 5-6
each charge of the same records is another release | epsilon=2
    charge census 0-5
    charge census 4-9
    spent 4=2
    charge census 4-5 -> asked epsilon 1, delta 1e-06; already charged epsilon 2
    charges census 2
a job has batches or charges but never both | epsilon=9
    reserve a 0-5
    charge census 0-5
    charge a 0-5 -> has batches
    reserve census 5-9 -> has charges
    abandon a
    charge a 5-9 -> has batches
    start b 5
    charge b 0-5 -> has begun as a stream, so
a job is started once and only before it begins | epsilon=9
    start a 7
    start a 9 -> the job has already begun
    charge a 0-5 -> it cannot have charges
    pause a
    resume a
    reserve a 7-9
    reserve b 0-5
    start b 9 -> the job has already begun
    pause c
    start c 9 -> the job is paused
    retire d
    start d 9 -> the job is retired
    charge e 0-5
    start e 9 -> reads no records
    start f -> it names no partition, or names one twice
a void reservation or charge binds a job to nothing | epsilon=1/2
    reserve a 0-5 -> the cap is
    charge b 0-5 -> the cap is
    charge a 0-5 eps=1/4
    reserve b 0-5 eps=1/4
impossible ranges cannot be charged
    charge census 0-5 5-9 -> appears twice
    charge census 9-7#0 -> impossible
    charges census 0
a paused job charges nothing
    pause census
    charge census 0-5 -> the job is paused
    spent 0=0
a retired job charges nothing
    retire census
    charge census 0-5 -> the job is retired
    spent 0=0
a charge that claims no rho never fits a zcdp ledger | epsilon=100 delta=1e-6 rule=zcdp
    charge census 0-5 -> rho not claimed
    charge census 0-5 delta=0 rho=1/2
    reserve a 5-6 -> rho not claimed
    reserve a 5-6 eps=99 rho=1/2
"""


def claims() -> Iterator[Any]:
    """Yield (cap, steps) of each claim of :data:`CLAIMS`: a title, keywords of its Writer, its steps."""
    for title, *steps in (part.splitlines() for part in re.split(r"\n(?=\S)", CLAIMS.strip())):
        name, _, cap = title.partition(" | ")
        yield pytest.param(dict(each.split("=") for each in cap.split()), steps, id=name)


@pytest.mark.parametrize(("cap", "steps"), list(claims()))
def test_the_ledger_holds(cap: dict[str, Any], steps: list[str]) -> None:
    log = Writer(**cap)
    for line in steps:
        run(log, line.strip())
    is_verified(log)


def is_verified(log: Writer) -> None:
    """Check that the verifier refuses the same entries for the same reasons; the cap's are void alone."""
    report = verify_log([(i, encode_entry(entry)) for i, entry in enumerate(log.log)])
    refused = [(i, log.log[i], v.reason) for i, v in enumerate(log.verdicts) if not v.accepted]
    at_cap = [reason for _, _, reason in refused if "the cap is" in reason]
    assert report.void == len(at_cap)
    assert list(report.problems) == [
        f"offset {i}: {entry.kind} of job {entry.job!r}: {reason}"  # type: ignore[union-attr]
        for i, entry, reason in refused
        if reason not in at_cap
    ]


@pytest.mark.parametrize(
    ("ranges", "reason"),
    [
        ("4-9", "overlaps"),
        ("0-1", "overlaps"),
        ("5-7 7-9", "appears twice"),
        ("9-7#0", "impossible"),
        ("5-7#3", "impossible"),
        ("5-9 1:2-3", "partition 1 overlaps"),
    ],
)
def test_overlapping_or_impossible_ranges_are_void(ranges: str, reason: str) -> None:
    log = Writer()
    for step in ("answer a 0-5 1:0-3", f"reserve a {ranges} -> {reason}", "reserve a 5-7 1:8-9"):
        run(log, step)
    is_verified(log)


def test_a_dry_run_raises_what_a_void_reservation_says() -> None:
    log = Writer(epsilon="3/2")
    log.answer("a", span(0, 5))
    for late in (log.reserved("b", span(4, 9)), log.charged("census", span(4, 5))):
        with pytest.raises(BudgetExceeded, match=r"asked epsilon 1.*already charged epsilon 1") as refusal:
            log.ledger.check_budget(late)
        assert str(refusal.value) == log.ledger.check(late).reason


def test_charges_fill_the_cap_exactly() -> None:
    log = Writer(epsilon=1)
    for job in "abc":
        run(log, f"reserve {job} 0-1 eps=1/3")
    run(log, "spent 0=1")
    # A charge this small would allow almost no noise.
    loud = PARAMETERS | {"sigma_over_sensitivity": 1e11}
    little = Charge(epsilon="1e-10", delta=TINY)
    late = log.reserve("d", span(0, 1), charge=little, promise=PROMISE | {"epsilon": 1e-10}, parameters=loud)
    assert "the cap is" in late.reason


def test_a_void_entry_moves_its_jobs_chain_and_nothing_else() -> None:
    log = Writer(epsilon=1)
    log.answer("a", span(0, 5))
    void = log.reserved("b", span(0, 5))
    log.put(void)
    refused = log.ledger.job("b").refused
    assert "partition 0, offsets 0 to 4" in refused
    assert log.ledger.job("b") == JobLedger(head=entry_hash(void), refused=refused)
    assert log.reserve("b", span(5, 9)).accepted
    assert (log.ledger.job("b").batch, log.ledger.job("b").refused) == (1, "")


def test_an_entry_off_the_chain_moves_nothing() -> None:
    log = Writer()
    assert log.stand("a", "pause", previous=entry_hash(log.log[0])).accepted
    log.stand("a", "resume")
    log.reserve("a", span(0, 5))
    head = log.ledger.job("a").head
    assert "hash chain" in log.commit("a", previous="forged").reason
    assert log.ledger.job("a").head == head
    assert "hash chain" in log.ledger.job("a").refused
    assert log.commit("a").accepted
    assert "hash chain" in log.commit("a", previous=head).reason


def test_a_changed_promise_is_void_and_names_what_changed() -> None:
    log = Writer()
    log.answer("a", span(0, 5))
    assert log.reserve("a", span(5, 9), promise={"epsilon": 2.0, "dim": 7}).reason == (
        "the job's privacy contract changed: delta, dim, epsilon, privacy_unit, rank"
    )
    assert log.reserve("b", span(0, 5), promise=PROMISE | {"epsilon": 0.5, "delta": 1e-6}).accepted
    is_verified(log)


def test_an_entry_of_another_topic_id_counts_for_nothing() -> None:
    log = Writer()
    other = log.reserved("a", span(0, 5)).model_copy(update={"topic_id": "U"})
    assert "other topic id" in log.put(other).reason
    assert log.ledger.jobs == {}
    assert log.ledger.spent(0, 0) == Charge.nothing()


def test_the_first_opened_fixes_the_cap_and_nothing_counts_before() -> None:
    log = Writer(epsilon=1)
    assert not log.put(Opened(topic_id="T", topic="in", cap=Cap(epsilon=9, delta=1))).accepted
    assert log.ledger.opened is not None
    assert log.ledger.opened.cap.epsilon == 1
    ledger = Ledger("T")
    assert ledger.apply(log.reserved("a", span(0, 5))) == Verdict(False, "the ledger is not open")
    assert ledger.jobs == {}


def test_a_job_of_users_charges_every_record_once() -> None:
    log = Writer(epsilon=1)
    for batch in range(3):
        log.answer("u", span(5 * batch, 5 * batch + 5, partition=batch), promise=OF_USERS)
    assert log.ledger.everywhere == ONE
    for record in ((0, 0), (0, 10**12), (7, 0)):
        assert log.ledger.spent(*record) == log.ledger.job("u").spent(*record) == ONE
    assert log.ledger.most_charged() == log.ledger.job("u").most_charged() == ONE


def test_an_unread_record_is_held_against_what_every_record_bears() -> None:
    log = Writer(epsilon="3/2")
    log.ledger.check_unread(ONE)
    run(log, "reserve u 0-5 users")
    refuses("every record, read or not", log.ledger.check_unread, ONE, error=BudgetExceeded)
    log.ledger.check_everywhere("u", ONE)
    refuses("every record, read or not", log.ledger.check_everywhere, "v", ONE, error=BudgetExceeded)


positive = st.fractions(min_value=Fraction(1, 10**6), max_value=20, max_denominator=10**9)
small = st.one_of(
    st.fractions(min_value=Fraction(1, 10**12), max_value=Fraction(999, 1000), max_denominator=10**12),
    st.integers(1, 300).map(lambda n: Fraction(1, 10**n)),
)


def spent(rho: Fraction | None) -> Charge:
    return Charge(epsilon=99, delta=TINY, rho=rho)


@settings(deadline=None)
@given(positive, positive, small)
def test_the_zcdp_filter_agrees_with_200_digits(rho: Fraction, epsilon: Fraction, delta: Fraction) -> None:
    answer = within_cap(spent(rho), Cap(epsilon=epsilon, delta=delta), "zcdp")
    assert answer == exact_zcdp(rho, epsilon, delta)


@settings(deadline=None)
@given(positive, small, st.integers(5, 90))
def test_the_zcdp_filter_is_right_at_the_caps_very_edge(rho: Fraction, delta: Fraction, digits: int) -> None:
    with mpmath.workdps(250):
        r, d = (mpmath.mpf(x.numerator) / x.denominator for x in (rho, delta))
        converted = r + 2 * mpmath.sqrt(r * mpmath.log(1 / d))
        edge = Fraction(int(converted * mpmath.mpf(10) ** digits), 10**digits)
    # One cap below the converted epsilon, by less than 10**-digits, and one above.
    assert not within_cap(spent(rho), Cap(epsilon=edge, delta=delta), "zcdp")
    assert within_cap(spent(rho), Cap(epsilon=edge + Fraction(1, 10**digits), delta=delta), "zcdp")


def test_zcdp_admits_more_small_charges_than_adding_epsilons() -> None:
    cost = Charge(epsilon="1/100", delta=TINY, rho="1/20000")
    how: dict[str, Any] = {"charge": cost, "promise": PROMISE | {"epsilon": 0.01}}
    how |= {"parameters": PARAMETERS | {"sigma_over_sensitivity": 2000.0}}
    admitted = {}
    for rule in ("basic", "zcdp"):
        log = Writer(epsilon="1/2", delta="1e-6", rule=rule)
        admitted[rule] = sum(log.reserve(f"job {i}", span(0, 1), **how).accepted for i in range(99))
    assert admitted["basic"] == 50
    assert admitted["zcdp"] == next(
        n for n in range(99) if not exact_zcdp(Fraction(n + 1, 20000), Fraction(1, 2), Fraction(1, 10**6))
    )
    assert admitted["zcdp"] > admitted["basic"]


@pytest.mark.parametrize(
    ("rho", "epsilon", "delta", "fits"),
    [
        (0, 0, 0, True),
        ("1e-30", 0, "1e-6", False),
        ("1e-30", 1, 0, False),
        (5, 1, 1, True),
        ("inf", "inf", 0, True),
        ("inf", 100, "1e-6", False),
        (None, 100, "1e-6", False),
    ],
)
def test_the_zcdp_filter_at_its_limits(rho: Any, epsilon: Any, delta: Any, fits: bool) -> None:
    assert within_cap(spent(rho), Cap(epsilon=epsilon, delta=delta), "zcdp") is fits
