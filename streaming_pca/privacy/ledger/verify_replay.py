"""Verifier's replay of a ledger: every entry checked, every charge summed again.

The rules are shared with the ledger (:mod:`streaming_pca.privacy.ledger.protocol`). Sums,
the comparison with the cap, and the bounds of its logarithm are separate code on purpose:
an error in the ledger's code must not hide itself.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fractions import Fraction

from streaming_pca.privacy.ledger.entries import (
    Cap,
    Charged,
    Committed,
    LedgerEntry,
    OffsetSpan,
    Opened,
    Released,
    Reserved,
)
from streaming_pca.privacy.ledger.protocol import BatchStatus, JobProgress, check_entry
from streaming_pca.privacy.parameters import Charge

_NOTHING = Charge(epsilon=0, delta=0, rho=0)


@dataclass
class Job(JobProgress):
    """Progress of one job, and its batches and charges so far."""

    phases: dict[int, BatchStatus] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    counts: dict[int, int] = field(default_factory=dict)  # records of each batch
    learnt: dict[int, int] = field(default_factory=dict)
    """Records of each committed batch and of the batches before it."""
    total: int = 0  # records of all committed batches
    off_chain: list[int] = field(default_factory=list)
    of_users: bool = False
    everywhere: Charge = _NOTHING  # largest charge that a job of users reserved: its charge of every record


@dataclass
class _Held:
    """Counted ranges of one job on one partition: disjoint and in order."""

    starts: list[int] = field(default_factory=list)
    ends: list[int] = field(default_factory=list)
    charges: list[Charge] = field(default_factory=list)

    def meeting(self, start: int, end: int) -> Iterator[tuple[int, int, Charge]]:
        """Yield (start, end, charge) of these ranges' parts in [start, end)."""
        for i in range(bisect_right(self.ends, start), bisect_left(self.starts, end)):
            yield max(self.starts[i], start), min(self.ends[i], end), self.charges[i]


class Replay:
    """Replay of the entries of one life of the topic, in the log's order."""

    def __init__(self, problems: list[str]) -> None:
        self.opened: Opened | None = None
        self.jobs: dict[str, Job] = {}
        self.void = 0
        self.records = 0
        self.problems = problems
        # Not a _Held, because the charges of one job may overlap; there are few of them.
        self._elsewhere: defaultdict[int, list[tuple[int, int, Charge]]] = defaultdict(list)
        self._held: defaultdict[int, defaultdict[str, _Held]] = defaultdict(lambda: defaultdict(_Held))
        self._before_opened: list[int] = []
        self._origin = ""

    def take(self, offset: int, entry: LedgerEntry, digest: str) -> None:
        """Check the next entry, and add its charge."""
        if isinstance(entry, Opened):
            if self.opened is None:
                self.opened, self._origin = entry, digest
            else:
                # Two processes created the topic at the same time; the cap of the first holds.
                self.void += 1
            return
        if self.opened is None:
            self._before_opened.append(offset)
            return
        job = self.jobs.setdefault(entry.job, Job(head=self._origin))
        if entry.previous != job.head:
            job.off_chain.append(offset)
            return
        job.head = digest
        wrong = check_entry(entry, job, self.jobs)
        if wrong:
            self.problems.append(f"offset {offset}: {entry.kind} of job {entry.job!r}: {wrong}")
            return
        if isinstance(entry, Reserved | Charged) and not self._fits(entry, self.opened):
            self.void += 1
            return
        job.follow(entry)
        match entry:
            case Reserved():
                self._hold(entry, job)
            case Charged():
                for r in entry.ranges:
                    self._elsewhere[r.partition].append((r.start, r.end, entry.charge))
            case Committed():
                job.total += job.counts[entry.batch]
                job.learnt[entry.batch] = job.total
            case Released():
                job.digests[entry.batch] = entry.release_digest
        if job.batch:
            job.phases[job.batch] = job.phase

    def _fits(self, entry: Reserved | Charged, opened: Opened) -> bool:
        """Return whether all records would be within the cap."""
        if isinstance(entry, Reserved) and entry.of_users:
            before = self.jobs[entry.job].everywhere
            return upper(before, entry.charge) == before or self._fits_everywhere(entry, opened)
        everywhere = [job.everywhere for job in self.jobs.values()]
        return all(
            total.within(opened)
            for r in entry.ranges
            for _, _, total in sweep([(r.start, r.end, entry.charge), *self._meeting(r)], everywhere)
        )

    def _fits_everywhere(self, entry: Reserved, opened: Opened) -> bool:
        """Return whether all records of the topic would be within the cap."""
        everywhere = [upper(self.jobs[entry.job].everywhere, entry.charge)]
        everywhere += [job.everywhere for name, job in self.jobs.items() if name != entry.job]
        return _sum(everywhere).within(opened) and all(
            total.within(opened)
            for partition in {*self._held, *self._elsewhere}
            for _, _, total in sweep(self._on(partition), everywhere)
        )

    def _on(self, partition: int) -> Iterator[tuple[int, int, Charge]]:
        """Yield (start, end, charge) of every charge on a partition."""
        for held in self._held[partition].values():
            yield from zip(held.starts, held.ends, held.charges, strict=True)
        yield from self._elsewhere[partition]

    def _meeting(self, r: OffsetSpan) -> Iterator[tuple[int, int, Charge]]:
        """Yield (start, end, charge) of every charge within these offsets."""
        for held in self._held[r.partition].values():
            yield from held.meeting(r.start, r.end)
        for start, end, charge in self._elsewhere[r.partition]:
            if start < r.end and r.start < end:
                yield max(start, r.start), min(end, r.end), charge

    def _hold(self, entry: Reserved, job: Job) -> None:
        charge = entry.charge
        job.counts[entry.batch] = entry.count
        if entry.of_users:
            job.of_users, job.everywhere = True, upper(job.everywhere, charge)
            charge = _NOTHING  # charged to every record; the ranges are for the overlap check
        for r in entry.ranges:
            self.records += r.count
            held = self._held[r.partition][entry.job]
            held.starts.append(r.start)
            held.ends.append(r.end)
            held.charges.append(charge)

    def close(self, topic_id: str) -> LargestCharges:
        """Report problems of the log as a whole; return the largest charges."""
        if self.opened is None:
            self.problems.append(f"the ledger of topic id {topic_id!r} was never opened")
        elif self._before_opened:
            self.problems.append(
                f"offset {self._before_opened[0]}: {len(self._before_opened)} entries come before OPENED"
            )
        for name, job in sorted(self.jobs.items()):
            if job.off_chain:
                self.problems.append(
                    f"offset {job.off_chain[0]}: the hash chain of job {name!r} breaks here: an entry before "
                    f"it was changed, dropped or moved ({len(job.off_chain)} entries are off the chain)"
                )
        everywhere = [job.everywhere for job in self.jobs.values()]
        alone = self.everywhere()
        most = LargestCharges()
        most.take(alone)
        if self.opened is not None and not alone.within(self.opened):
            self.problems.append(f"every record: charged {_charge_text(alone)}, above the cap")
        for partition in sorted({*self._held, *self._elsewhere}):
            for name, held in sorted(self._held[partition].items()):
                if any(end > start for end, start in zip(held.ends, held.starts[1:], strict=False)):
                    self.problems.append(f"partition {partition}: batches of job {name!r} overlap")
            for start, end, total in sweep(self._on(partition), everywhere):
                if not total.count:
                    continue
                most.offsets += end - start
                most.take(total)
                if self.opened is not None and not total.within(self.opened):
                    where = f"partition {partition}, offsets {start} to {end - 1}"
                    self.problems.append(f"{where}: charged {_charge_text(total)}, above the cap")
        return most

    def everywhere(self) -> Total:
        """Return the charge that every record bears, read or not."""
        return _sum(job.everywhere for job in self.jobs.values())


def _sum(charges: Iterable[Charge]) -> Total:
    total = Total()
    for charge in charges:
        total.change(charge, 1)
    return total


def _charge_text(total: Total) -> str:
    return f"epsilon {shown(total.epsilon)}, delta {shown(total.delta)}"


class Total:
    """Sum of charges that supports subtraction, also of infinite charges."""

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
        cap = opened.cap
        if opened.filter == "basic":
            return self.epsilon <= cap.epsilon and self.delta <= cap.delta
        return cap.epsilon == math.inf or _zcdp_within(self.rho, cap)


def _zcdp_within(rho: Fraction | float | None, cap: Cap) -> bool:
    """Return whether rho + 2 sqrt(rho ln(1/delta)) <= epsilon, in real numbers."""
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
        low, high = log_bounds(1 / cap.delta, bits)
        rest = (cap.epsilon - rho) ** 2
        if 4 * rho * high <= rest:
            return True
        if 4 * rho * low > rest:
            return False
        bits *= 2


def log_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Return rationals below and above ln(x), x > 1.

    With x = m 2**k, 1 <= m < 2: ln x = 2 artanh((m-1)/(m+1)) + 2k artanh(1/3).
    """
    k = x.numerator.bit_length() - x.denominator.bit_length()
    k -= x < Fraction(2) ** k
    m = x / Fraction(2) ** k
    parts = ((2, _artanh_bounds((m - 1) / (m + 1), bits)), (2 * k, _artanh_bounds(Fraction(1, 3), bits)))
    return (
        sum((n * low for n, (low, _) in parts), Fraction(0)),
        sum((n * high for n, (_, high) in parts), Fraction(0)),
    )


def _artanh_bounds(y: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Return rationals below and above artanh(y), 0 <= y <= 1/3, in fixed point.

    artanh(y) = y + y^3/3 + y^5/5 + ...
    """
    one = 1 << bits
    square = y * y
    power, total, n = math.floor(y * one), 0, 0
    while power:
        total += power // (2 * n + 1)
        power = power * square.numerator // square.denominator
        n += 1
    # Every step rounds down: each power is less than 9/8 units short, each term one more,
    # and the remainder after the last term is less than that.
    return Fraction(total, one), Fraction(total + 3 * n + 3, one)


def upper(one: Charge, other: Charge) -> Charge:
    """Return the larger epsilon, delta and rho of two; None is the largest rho."""
    rhos = (one.rho, other.rho)
    return Charge(
        epsilon=other.epsilon if one.epsilon < other.epsilon else one.epsilon,
        delta=other.delta if one.delta < other.delta else one.delta,
        rho=None if None in rhos else max(rho for rho in rhos if rho is not None),
    )


def shown(value: Fraction | float) -> str:
    """Format a number; a long ratio as a decimal. Python writes no integers of over 4,300 digits."""
    return str(value if value == math.inf or max(value.as_integer_ratio()) < 2**256 else float(value))


def sweep(
    ranges: Iterable[tuple[int, int, Charge]], everywhere: Iterable[Charge] = ()
) -> Iterator[tuple[int, int, Total]]:
    """Yield (start, end, total) of every stretch between boundaries.

    The same total is changed in place. Charges that lie everywhere are in it, but not in its ``count``.
    """
    real = [r for r in ranges if r[0] < r[1]]
    events = [(start, 1, charge) for start, _, charge in real]
    events += [(end, -1, charge) for _, end, charge in real]
    events.sort(key=lambda event: event[0])
    total = _sum(everywhere)
    total.count = 0
    for i, (at, sign, charge) in enumerate(events):
        total.change(charge, sign)
        if i + 1 < len(events) and events[i + 1][0] > at:
            yield at, events[i + 1][0], total


@dataclass
class LargestCharges:
    """Largest epsilon, delta and rho of any record, and the number of charged offsets."""

    epsilon: Fraction | float = Fraction(0)
    delta: Fraction | float = Fraction(0)
    rho: Fraction | float | None = Fraction(0)
    offsets: int = 0

    def take(self, total: Total) -> None:
        self.epsilon = max(self.epsilon, total.epsilon)
        self.delta = max(self.delta, total.delta)
        rho = total.rho
        self.rho = None if rho is None or self.rho is None else max(self.rho, rho)
