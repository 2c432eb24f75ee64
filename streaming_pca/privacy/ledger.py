"""The ledger as a pure state machine.

Replaying the same log gives every reader the same answer. Nothing here knows
of Kafka: :mod:`streaming_pca.service.checkpoint` feeds it the log in order.

A batch of a job goes

    RESERVED -> COMMITTED -> RELEASED
             -> ABANDONED

and is charged by RESERVED alone. The charge never goes back. Beside it, the
job itself stands

    ACTIVE <-> PAUSED
    ACTIVE, PAUSED -> RETIRED

and only an active job reserves. A job that has CHARGED, for releases that were
made elsewhere, has no batches.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from decimal import ROUND_HALF_EVEN, Context, Decimal
from enum import StrEnum
from fractions import Fraction
from functools import lru_cache
from typing import Any

from streaming_pca.privacy.entries import (
    Abandoned,
    Cap,
    Charged,
    Committed,
    LedgerEntry,
    OffsetRange,
    OffsetSpan,
    Opened,
    Paused,
    Released,
    Reserved,
    Resumed,
    Retired,
    entry_hash,
)
from streaming_pca.privacy.intervals import SpendMap
from streaming_pca.privacy.parameters import Charge, format_rational

__all__ = ["BudgetExceeded", "JobLedger", "Ledger", "Phase", "Standing", "Verdict", "within_cap"]


class BudgetExceeded(Exception):
    """A reservation or a charge would take some record above the topic's cap.

    Attributes
    ----------
    asked, spent : Charge
    cap : Cap
    """

    def __init__(self, where: OffsetSpan, asked: Charge, spent: Charge, cap: Cap) -> None:
        self.asked, self.spent, self.cap = asked, spent, cap
        super().__init__(
            f"partition {where.partition}, offsets {where.start} to {where.end}: "
            f"asked epsilon {format_rational(asked.epsilon)}, delta {format_rational(asked.delta)}; "
            f"already charged epsilon {format_rational(spent.epsilon)}, "
            f"delta {format_rational(spent.delta)}; "
            f"the cap is epsilon {format_rational(cap.epsilon)}, delta {format_rational(cap.delta)}"
        )


class Phase(StrEnum):
    """Where the last batch of a job stands."""

    NONE = "none"
    RESERVED = "reserved"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    RELEASED = "released"


class Standing(StrEnum):
    """Whether a job may reserve."""

    ACTIVE = "active"
    PAUSED = "paused"
    RETIRED = "retired"


@dataclass(frozen=True)
class Verdict:
    """What the ledger made of an entry: counted, or void for the reason given."""

    accepted: bool
    reason: str = ""


_ACCEPTED = Verdict(True)


def _void(reason: str) -> Verdict:
    return Verdict(False, reason)


@lru_cache(maxsize=64)
def _log_inverse(delta: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Bounds of ln(1/delta), about ``digits`` digits apart, the same on every machine."""
    # Decimal rounds ln correctly, to half a unit of the last digit; libm's log differs by platform.
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN, traps=[])
    top, bottom = (Fraction(context.ln(Decimal(n))) for n in (delta.denominator, delta.numerator))
    error = (top + bottom) / 10 ** (digits - 1)
    return top - bottom - error, top - bottom + error


def within_cap(spent: Charge, cap: Cap, rule: str) -> bool:
    """Whether a record that was charged ``spent`` in all is within the cap.

    Parameters
    ----------
    spent : Charge
        Sum of the charges by basic composition; its ``rho`` is the sum of rhos.
    rule : {"basic", "zcdp"}
        "basic" adds epsilons and deltas. "zcdp" adds rhos and converts by
        epsilon = rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016, Prop.
        1.3); a charge that claims no rho never fits. Both are valid when
        charges are chosen adaptively (Whitehouse et al. 2023).

    Notes
    -----
    The answer is that of exact real numbers. ln(1/delta) is irrational, so the
    zcdp comparison is never a tie, and enough digits decide it: every reader
    comes to the same side.
    """
    if rule == "basic":
        return spent.epsilon <= cap.epsilon and spent.delta <= cap.delta
    if cap.epsilon == math.inf:
        return True
    rho = spent.rho
    if rho is None or not isinstance(rho, Fraction) or not isinstance(cap.epsilon, Fraction):
        return False
    if rho == 0:
        return True
    if not isinstance(cap.delta, Fraction) or cap.delta >= 1:
        return True
    if cap.delta == 0 or rho > cap.epsilon:
        return False
    # rho + 2 sqrt(rho L) <= eps  <=>  L <= (eps - rho)^2 / (4 rho), as rho <= eps
    most = (cap.epsilon - rho) ** 2 / (4 * rho)
    digits = 30
    while True:
        low, high = _log_inverse(cap.delta, digits)
        if high <= most:
            return True
        if low > most:
            return False
        digits *= 2


@dataclass
class JobLedger:
    """What the ledger knows of one job.

    Attributes
    ----------
    head : str
        Hash of the job's last entry, void ones included.
    batch : int
        The last batch that was reserved, 0 before the first.
    reservation : Reserved or None
        That batch's reservation.
    last_committed, state_digest : int, str
        The last batch that was committed, and the digest of its state.
    promise : dict or None
        What the job's first reservation promised, for all that follow.
    ends : dict of partition to offset
        Where the job's next batch starts.
    standing : Standing
    charges : int
        How many CHARGED entries count; a job that has any has no batches.
    """

    head: str = ""
    batch: int = 0
    phase: Phase = Phase.NONE
    reservation: Reserved | None = None
    last_committed: int = 0
    state_digest: str = ""
    promise: dict[str, Any] | None = None
    ends: dict[int, int] = field(default_factory=dict)
    committed: int = 0
    abandoned: int = 0
    released: int = 0
    records_committed: int = 0
    records_abandoned: int = 0
    standing: Standing = Standing.ACTIVE
    charges: int = 0
    spend: defaultdict[int, SpendMap] = field(default_factory=lambda: defaultdict(SpendMap))


class Ledger:
    """Replay of one input topic's log.

    Parameters
    ----------
    topic_id : str
        Entries of any other topic id (the topic's earlier lives) are void.

    Attributes
    ----------
    opened : Opened or None
    jobs : dict of str to JobLedger
    spend : dict of partition to SpendMap
        Charges of all jobs together.
    """

    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.opened: Opened | None = None
        self.jobs: dict[str, JobLedger] = {}
        self.spend: defaultdict[int, SpendMap] = defaultdict(SpendMap)

    def job(self, name: str) -> JobLedger:
        """What is known of a job; an empty record for one never seen."""
        return self.jobs.get(name) or JobLedger(head=entry_hash(self.opened) if self.opened else "")

    def head(self, name: str) -> str:
        """The hash that the job's next entry must carry as ``previous``: OPENED's for its first."""
        return self.job(name).head

    def spent(self, partition: int, offset: int) -> Charge:
        """What one record has been charged by all jobs."""
        return self.spend[partition].at(offset) if partition in self.spend else Charge.nothing()

    def judge(self, entry: LedgerEntry) -> Verdict:
        """What :meth:`apply` would answer; changes nothing."""
        if entry.topic_id != self.topic_id:
            return _void("it belongs to another life of the topic (other topic id)")
        if isinstance(entry, Opened):
            return _void("the ledger is already open") if self.opened else _ACCEPTED
        if self.opened is None:
            return _void("the ledger is not open")
        job = self.job(entry.job)
        if entry.previous != job.head:
            return _void("its hash chain does not continue the job's last entry")
        match entry:
            case Reserved():
                return self._judge_reserved(entry, job)
            case Charged():
                return self._judge_charged(entry, job)
            case Paused() | Resumed() | Retired():
                return self._judge_standing(entry, job)
        if entry.batch != job.batch:
            return _void(f"batch {entry.batch} is not the job's last batch ({job.batch})")
        needed = Phase.COMMITTED if isinstance(entry, Released) else Phase.RESERVED
        if job.phase is not needed:
            return _void(f"batch {entry.batch} is {job.phase}, not {needed}")
        return _ACCEPTED

    def _judge_reserved(self, entry: Reserved, job: JobLedger) -> Verdict:
        if job.standing is not Standing.ACTIVE:
            return _void(f"the job is {job.standing}")
        if job.charges:
            return _void("the job has charges for releases made elsewhere, so it can have no batches")
        if job.phase is Phase.RESERVED:
            return _void(f"batch {job.batch} is still open")
        if entry.batch != job.batch + 1:
            return _void(f"batch {entry.batch} does not follow batch {job.batch}")
        if job.promise is not None and entry.promise != job.promise:
            changed = sorted(
                key
                for key in {*job.promise, *entry.promise}
                if job.promise.get(key) != entry.promise.get(key)
            )
            return _void(f"the job's promise changed: {', '.join(changed)}")
        if impossible := _impossible(entry.ranges):
            return _void(impossible)
        for r in entry.ranges:
            if r.start < job.ends.get(r.partition, 0):
                return _void(f"partition {r.partition} overlaps an earlier batch of the job")
        return self._judge_budget(entry)

    def _judge_charged(self, entry: Charged, job: JobLedger) -> Verdict:
        if job.standing is not Standing.ACTIVE:
            return _void(f"the job is {job.standing}")
        if job.batch:
            return _void("the job has batches, so it can have no charges for releases made elsewhere")
        if impossible := _impossible(entry.ranges):
            return _void(impossible)
        return self._judge_budget(entry)

    @staticmethod
    def _judge_standing(entry: Paused | Resumed | Retired, job: JobLedger) -> Verdict:
        if job.standing is Standing.RETIRED:
            return _void("the job is retired, which is final")
        match entry:
            case Paused() if job.standing is not Standing.ACTIVE:
                return _void(f"the job is {job.standing}")
            case Resumed() if job.standing is not Standing.PAUSED:
                return _void(f"the job is {job.standing}, not paused")
            case Retired() if job.phase in (Phase.RESERVED, Phase.COMMITTED):
                return _void(f"batch {job.batch} is {job.phase}: it must be abandoned or released first")
        return _ACCEPTED

    def _judge_budget(self, entry: Reserved | Charged) -> Verdict:
        try:
            self.check_budget(entry)
        except BudgetExceeded as error:
            return _void(str(error))
        return _ACCEPTED

    def check_budget(self, entry: Reserved | Charged) -> None:
        """Raise :class:`BudgetExceeded` if the entry would take any record above the cap."""
        assert self.opened is not None
        for r in entry.ranges:
            # Not self.spend[...], which would make an entry: a dry run changes nothing.
            for spent in self.spend.get(r.partition, SpendMap()).over(r.start, r.end):
                if not within_cap(spent + entry.charge, self.opened.cap, self.opened.filter):
                    raise BudgetExceeded(r, entry.charge, spent, self.opened.cap)

    def apply(self, entry: LedgerEntry) -> Verdict:
        """Take the log's next entry: judge it, then record it."""
        verdict = self.judge(entry)
        if isinstance(entry, Opened):
            if verdict.accepted:
                self.opened = entry
            return verdict
        if entry.topic_id != self.topic_id or self.opened is None:
            return verdict
        if entry.previous != self.head(entry.job):
            return verdict
        # A void entry still moves its job's chain: its writer has read back to
        # it and goes on from there.
        job = self.jobs.setdefault(entry.job, JobLedger())
        job.head = entry_hash(entry)
        if verdict.accepted:
            self._record(entry, job)
        return verdict

    def _record(self, entry: LedgerEntry, job: JobLedger) -> None:
        match entry:
            case Reserved():
                job.batch, job.phase, job.reservation = entry.batch, Phase.RESERVED, entry
                job.promise = entry.promise
                self._charge(entry, job)
                for r in entry.ranges:
                    job.ends[r.partition] = r.end
            case Committed():
                assert job.reservation is not None
                job.phase, job.state_digest = Phase.COMMITTED, entry.state_digest
                job.last_committed = entry.batch
                job.committed += 1
                job.records_committed += job.reservation.count
            case Abandoned():
                assert job.reservation is not None
                job.phase = Phase.ABANDONED
                job.abandoned += 1
                job.records_abandoned += job.reservation.count
            case Released():
                job.phase = Phase.RELEASED
                job.released += 1
            case Paused():
                job.standing = Standing.PAUSED
            case Resumed():
                job.standing = Standing.ACTIVE
            case Retired():
                job.standing = Standing.RETIRED
            case Charged():
                job.charges += 1
                self._charge(entry, job)

    def _charge(self, entry: Reserved | Charged, job: JobLedger) -> None:
        for r in entry.ranges:
            for spend in (self.spend, job.spend):
                spend[r.partition].add(r.start, r.end, entry.charge)


def _impossible(ranges: Sequence[OffsetSpan]) -> str:
    """What is wrong with ranges whatever the job has done before; "" if nothing is."""
    seen: set[int] = set()
    for r in ranges:
        if r.partition in seen:
            return f"partition {r.partition} appears twice"
        seen.add(r.partition)
        if r.end < r.start or (isinstance(r, OffsetRange) and r.count > r.end - r.start):
            return f"partition {r.partition} has an impossible range"
    return ""
