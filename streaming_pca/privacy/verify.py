"""The independent verifier of a ledger: `streaming-pca ledger verify`.

It needs nothing but the messages, and shares nothing with the writer but the
entries' schemas: neither the state machine nor the interval arithmetic. Where
:mod:`streaming_pca.privacy.ledger` keeps a map of what each offset was charged,
this sums the charges of the reservations that meet there, by a sweep.

What it cannot see: an entry at the very end of a job's chain that was changed
or taken away.
"""

from __future__ import annotations

import hashlib
import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from streaming_pca.privacy.entries import (
    Abandoned,
    Cap,
    Committed,
    MalformedEntry,
    Opened,
    Released,
    Reserved,
    decode_entry,
)
from streaming_pca.privacy.parameters import Charge, format_rational

__all__ = ["Report", "verify_log"]

_JobEntry = Reserved | Committed | Abandoned | Released


@dataclass(frozen=True)
class Report:
    """What a ledger says, and whether it can be believed.

    Attributes
    ----------
    ok : bool
        There are no problems.
    problems : tuple of str
        One line each.
    topic_id : str
        Which life of the input topic was judged.
    entries, other_entries : int
        Entries of that life and of others; messages that are no entries are problems.
    void : int
        Entries that count for nothing and rightly so: reservations that came too
        late for the cap, second OPENEDs.
    jobs : tuple of str
    batches : dict of str to int
        How many batches are reserved (open), committed, abandoned, released.
    records_charged : int
        Records in reservations that count, once for each job.
    offsets_charged : int
        Offsets in any reservation that counts.
    max_epsilon, max_delta, max_rho : Fraction, math.inf or None
        The most that any one record was charged; rho is None where a charge claims none.
    releases, other_releases : int or None
        Releases on the topic that this ledger, or that another life's, accounts for.
    """

    ok: bool
    problems: tuple[str, ...]
    topic_id: str
    entries: int
    other_entries: int
    void: int
    jobs: tuple[str, ...]
    batches: dict[str, int]
    records_charged: int
    offsets_charged: int
    max_epsilon: Fraction | float
    max_delta: Fraction | float
    max_rho: Fraction | float | None
    releases: int | None
    other_releases: int | None

    def to_json(self) -> dict[str, Any]:
        """As plain data for :func:`json.dumps`; exact numbers are strings."""
        return {
            **vars(self),
            "problems": list(self.problems),
            "jobs": list(self.jobs),
            "max_epsilon": format_rational(self.max_epsilon),
            "max_delta": format_rational(self.max_delta),
            "max_rho": None if self.max_rho is None else format_rational(self.max_rho),
        }


def verify_log(
    entries: Iterable[tuple[int, bytes]],
    releases: Iterable[bytes] | None = None,
    *,
    topic_id: str | None = None,
) -> Report:
    """Check a whole ledger, and the releases against it.

    Parameters
    ----------
    entries : iterable of (offset, bytes)
        Every committed message of the ledger topic, in order.
    releases : iterable of bytes, optional
        Every committed message of the releases topics of all jobs. Not given:
        releases are not checked.
    topic_id : str, optional
        Which life of the input topic to judge; the newest when not given.
    """
    problems: list[str] = []
    decoded = list(_decode(entries, problems))
    if topic_id is None:
        opened = [entry.topic_id for _, entry, _ in decoded if isinstance(entry, Opened)]
        topic_id = (opened or [entry.topic_id for _, entry, _ in decoded] or [""])[-1]
    audit = _Audit(problems)
    mine = [item for item in decoded if item[1].topic_id == topic_id]
    for offset, entry, digest in mine:
        audit.take(offset, entry, digest)
    found = others = None
    if releases is not None:
        elsewhere = {
            (entry.job, entry.batch, entry.release_digest)
            for _, entry, _ in decoded
            if isinstance(entry, Released) and entry.topic_id != topic_id
        }
        found, others = _check_releases(releases, audit.jobs, elsewhere, problems)
    most = audit.close(topic_id)
    phases = Counter(phase for job in audit.jobs.values() for phase in job.phases.values())
    return Report(
        ok=not problems,
        problems=tuple(problems),
        topic_id=topic_id,
        entries=len(mine),
        other_entries=len(decoded) - len(mine),
        void=audit.void,
        jobs=tuple(sorted(audit.jobs)),
        batches={name: phases[name] for name in ("reserved", "committed", "abandoned", "released")},
        records_charged=audit.records,
        offsets_charged=most.offsets,
        max_epsilon=most.epsilon,
        max_delta=most.delta,
        max_rho=most.rho,
        releases=found,
        other_releases=others,
    )


def _decode(
    messages: Iterable[tuple[int, bytes]], problems: list[str]
) -> Iterator[tuple[int, Opened | _JobEntry, str]]:
    """Yield (offset, entry, hash) of every message that is an entry."""
    before = -1
    for offset, data in messages:
        if offset <= before:
            problems.append(f"offset {offset}: comes after offset {before}")
        before = max(before, offset)
        try:
            entry = decode_entry(data)
        except MalformedEntry as error:
            problems.append(f"offset {offset}: {_line(str(error))}")
            continue
        yield offset, entry, hashlib.sha256(data).hexdigest()


def _line(text: str) -> str:
    return " ".join(text.split())[:300]


# -- the ledger ------------------------------------------------------------


@dataclass
class _Job:
    """What one job has written so far."""

    head: str = ""
    last: int = 0
    phases: dict[int, str] = field(default_factory=dict)
    promise: dict[str, Any] | None = None
    ends: dict[int, int] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    off_chain: list[int] = field(default_factory=list)


@dataclass
class _Held:
    """The ranges of one job on one partition, which count: disjoint and in order."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)

    def meeting(self, start: int, end: int) -> Iterator[tuple[int, int, Charge]]:
        """What of these ranges lies in [start, end)."""
        for i in range(bisect_right(self.ends, start), bisect_left(self.starts, end)):
            yield max(self.starts[i], start), min(self.ends[i], end), self.charges[i]


class _Audit:
    """Walks the entries of one life of the topic, in the log's order."""

    def __init__(self, problems: list[str]) -> None:
        self.opened: Opened | None = None
        self.jobs: dict[str, _Job] = {}
        self.void = 0
        self.records = 0
        self._problems = problems
        self._held: defaultdict[int, defaultdict[str, _Held]] = defaultdict(lambda: defaultdict(_Held))
        self._before_opened: list[int] = []
        self._origin = ""

    def take(self, offset: int, entry: Opened | _JobEntry, digest: str) -> None:
        if isinstance(entry, Opened):
            if self.opened is None:
                self.opened, self._origin = entry, digest
            else:
                # Two that created the topic at once; the first one's cap holds.
                self.void += 1
            return
        if self.opened is None:
            self._before_opened.append(offset)
            return
        job = self.jobs.setdefault(entry.job, _Job(head=self._origin))
        if entry.previous != job.head:
            job.off_chain.append(offset)
            return
        job.head = digest
        wrong = self._wrong_reservation(entry, job) if isinstance(entry, Reserved) else _wrong_end(entry, job)
        if wrong:
            self._problems.append(f"offset {offset}: {entry.kind} of job {entry.job!r}: {wrong}")
        elif not isinstance(entry, Reserved):
            self._end(entry, job)
        elif self._fits(entry, self.opened):
            self._hold(entry, job)
        else:
            self.void += 1

    @staticmethod
    def _wrong_reservation(entry: Reserved, job: _Job) -> str:
        """Why a sound writer would not have written this, whatever the cap."""
        if job.phases.get(job.last) == "reserved":
            return f"batch {job.last} is still open"
        if entry.batch != job.last + 1:
            return f"batch {entry.batch} comes after batch {job.last}"
        if job.promise is not None and job.promise != entry.promise:
            return "another promise than the job's first"
        if len({r.partition for r in entry.ranges}) < len(entry.ranges):
            return "a partition appears twice"
        for r in entry.ranges:
            if not 0 <= r.count <= r.end - r.start:
                return f"partition {r.partition}: {r.count} records in offsets {r.start} to {r.end}"
            if r.start < job.ends.get(r.partition, 0):
                return (
                    f"partition {r.partition}: offset {r.start} lies in an earlier batch of the job, "
                    f"which ends at {job.ends[r.partition]}"
                )
        return ""

    def _fits(self, entry: Reserved, opened: Opened) -> bool:
        """Whether no record of the reservation would pass the cap."""
        return all(
            total.within(opened)
            for r in entry.ranges
            for _, _, total in _sweep(
                [
                    (r.start, r.end, entry.charge),
                    *(
                        part
                        for held in self._held[r.partition].values()
                        for part in held.meeting(r.start, r.end)
                    ),
                ]
            )
        )

    def _hold(self, entry: Reserved, job: _Job) -> None:
        job.last = entry.batch
        job.phases[entry.batch] = "reserved"
        job.promise = entry.promise
        for r in entry.ranges:
            job.ends[r.partition] = r.end
            self.records += r.count
            if r.start < r.end:
                held = self._held[r.partition][entry.job]
                held.starts.append(r.start)
                held.ends.append(r.end)
                held.charges.append(entry.charge)

    @staticmethod
    def _end(entry: Committed | Abandoned | Released, job: _Job) -> None:
        job.phases[entry.batch] = entry.kind.lower()
        if isinstance(entry, Released):
            job.digests[entry.batch] = entry.release_digest

    def close(self, topic_id: str) -> _Most:
        """Report what only the whole log shows; returns the largest charges."""
        if self.opened is None:
            self._problems.append(f"the ledger of topic id {topic_id!r} was never opened")
        elif self._before_opened:
            self._problems.append(
                f"offset {self._before_opened[0]}: {len(self._before_opened)} entries come before OPENED"
            )
        for name, job in sorted(self.jobs.items()):
            if job.off_chain:
                self._problems.append(
                    f"offset {job.off_chain[0]}: the hash chain of job {name!r} breaks here: an entry before "
                    f"it was changed, dropped or moved ({len(job.off_chain)} entries are off the chain)"
                )
        most = _Most()
        for partition, jobs in sorted(self._held.items()):
            for name, held in sorted(jobs.items()):
                if any(end > start for end, start in zip(held.ends, held.starts[1:], strict=False)):
                    self._problems.append(f"partition {partition}: batches of job {name!r} overlap")
            everything = [
                (start, end, charge)
                for held in jobs.values()
                for start, end, charge in zip(held.starts, held.ends, held.charges, strict=True)
            ]
            for start, end, total in _sweep(everything):
                if not total.count:
                    continue
                most.take(start, end, total)
                if self.opened is not None and not total.within(self.opened):
                    spent = f"epsilon {format_rational(total.epsilon)}, delta {format_rational(total.delta)}"
                    self._problems.append(
                        f"partition {partition}, offsets {start} to {end}: charged {spent}, above the cap"
                    )
        return most


def _wrong_end(entry: Committed | Abandoned | Released, job: _Job) -> str:
    """Why the batch cannot be committed, abandoned or released now."""
    needed = "committed" if isinstance(entry, Released) else "reserved"
    phase = job.phases.get(entry.batch)
    if phase is None:
        return f"batch {entry.batch} was never reserved"
    if entry.batch != job.last:
        return f"batch {job.last} has begun, batch {entry.batch} is {phase} for ever"
    if phase == needed:
        return ""
    if isinstance(entry, Committed) and phase in ("committed", "released"):
        return f"a second answer to batch {entry.batch}"
    return f"batch {entry.batch} is {phase}, not {needed}"


# -- charges ---------------------------------------------------------------


class _Total:
    """A sum of charges from which charges can be taken away again, infinite ones too."""

    def __init__(self) -> None:
        self.count = 0
        self._sums = [Fraction(0)] * 3
        self._infinite = [0] * 3
        self._without_rho = 0

    def change(self, charge: Charge, sign: int) -> None:
        self.count += sign
        for i, part in enumerate((charge.epsilon, charge.delta, charge.rho)):
            if part is None:
                self._without_rho += sign
            elif isinstance(part, Fraction):
                self._sums[i] += sign * part
            else:
                self._infinite[i] += sign

    @property
    def epsilon(self) -> Fraction | float:
        return math.inf if self._infinite[0] else self._sums[0]

    @property
    def delta(self) -> Fraction | float:
        return math.inf if self._infinite[1] else self._sums[1]

    @property
    def rho(self) -> Fraction | float | None:
        if self._without_rho:
            return None
        return math.inf if self._infinite[2] else self._sums[2]

    def within(self, opened: Opened) -> bool:
        """Whether a record that was charged this is within the cap, by OPENED's filter."""
        cap = opened.cap
        if opened.filter == "basic":
            return self.epsilon <= cap.epsilon and self.delta <= cap.delta
        return cap.epsilon == math.inf or _zcdp_within(self.rho, cap)


def _zcdp_within(rho: Fraction | float | None, cap: Cap) -> bool:
    """Whether rho + 2 sqrt(rho ln(1/delta)) <= epsilon, in real numbers."""
    if not isinstance(rho, Fraction) or not isinstance(cap.epsilon, Fraction):
        return False
    if rho == 0 or cap.delta >= 1:
        return True
    if cap.delta == 0 or cap.epsilon < rho:
        return False
    assert isinstance(cap.delta, Fraction)
    # The logarithm of a rational other than 1 is irrational: more bits always decide.
    bits = 64
    while True:
        low, high = _log_bounds(1 / cap.delta, bits)
        rest = (cap.epsilon - rho) ** 2
        if 4 * rho * high <= rest:
            return True
        if 4 * rho * low > rest:
            return False
        bits *= 2


def _log_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals below and above ln(x), x > 1: x = m 2**k, ln x = 2 artanh((m-1)/(m+1)) + 2k artanh(1/3)."""
    k = x.numerator.bit_length() - x.denominator.bit_length()
    k -= x < Fraction(2) ** k
    m = x / Fraction(2) ** k
    parts = ((2, _artanh_bounds((m - 1) / (m + 1), bits)), (2 * k, _artanh_bounds(Fraction(1, 3), bits)))
    return (
        sum((n * low for n, (low, _) in parts), Fraction(0)),
        sum((n * high for n, (_, high) in parts), Fraction(0)),
    )


def _artanh_bounds(y: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals below and above artanh(y) = y + y^3/3 + y^5/5 + ..., 0 <= y <= 1/3, in fixed point."""
    one = 1 << bits
    square = y * y
    power, total, n = math.floor(y * one), 0, 0
    while power:
        total += power // (2 * n + 1)
        power = power * square.numerator // square.denominator
        n += 1
    # Every step rounds down: each power is less than 9/8 units short, each term one more,
    # and what follows the last term is less than that.
    return Fraction(total, one), Fraction(total + 3 * n + 3, one)


def _sweep(ranges: list[tuple[int, int, Charge]]) -> Iterator[tuple[int, int, _Total]]:
    """Yield (start, end, total) of every stretch between boundaries; the total changes in place."""
    real = [r for r in ranges if r[0] < r[1]]
    events = [(start, 1, charge) for start, _, charge in real]
    events += [(end, -1, charge) for _, end, charge in real]
    events.sort(key=lambda event: event[0])
    total = _Total()
    for i, (at, sign, charge) in enumerate(events):
        total.change(charge, sign)
        if i + 1 < len(events) and events[i + 1][0] > at:
            yield at, events[i + 1][0], total


@dataclass
class _Most:
    """The largest charges that any record bears."""

    epsilon: Fraction | float = Fraction(0)
    delta: Fraction | float = Fraction(0)
    rho: Fraction | float | None = Fraction(0)
    offsets: int = 0

    def take(self, start: int, end: int, total: _Total) -> None:
        self.offsets += end - start
        self.epsilon = max(self.epsilon, total.epsilon)
        self.delta = max(self.delta, total.delta)
        rho = total.rho
        self.rho = None if rho is None or self.rho is None else max(self.rho, rho)


# -- releases --------------------------------------------------------------


def _check_releases(
    messages: Iterable[bytes],
    jobs: dict[str, _Job],
    elsewhere: set[tuple[str, int, str]],
    problems: list[str],
) -> tuple[int, int]:
    """Match releases and RELEASED entries; returns how many are this life's and others'."""
    seen: set[tuple[str, int]] = set()
    others = 0
    for number, message in enumerate(messages):
        try:
            content = json.loads(message)
            stream, batch = content["stream"], content["batch"]
            if not isinstance(stream, str) or type(batch) is not int:
                raise TypeError
        except (ValueError, TypeError, KeyError, RecursionError):
            problems.append(f"release {number}: not a release")
            continue
        digest = hashlib.sha256(message).hexdigest()
        name = f"release {number} (stream {stream!r}, batch {batch})"
        job = jobs.get(stream, _Job())
        if job.digests.get(batch) == digest:
            if (stream, batch) in seen:
                problems.append(f"{name}: is on the topic twice")
            seen.add((stream, batch))
        elif (stream, batch, digest) in elsewhere:
            others += 1
        elif batch in job.digests:
            problems.append(f"{name}: is not the one that the ledger released")
        else:
            state = job.phases.get(batch, "unknown")
            problems.append(f"{name}: the ledger did not release it, its batch is {state}")
    for stream, job in sorted(jobs.items()):
        problems.extend(
            f"stream {stream!r}, batch {batch}: released by the ledger, but not on the topic"
            for batch in sorted(job.digests.keys() - {b for s, b in seen if s == stream})
        )
    return len(seen), others
