"""Ledger: a pure state machine that adds up what each record has been charged.

Every reader that replays the same log gets the same result. This module does not know Kafka:
:mod:`streaming_pca.service.commit.checkpoint` applies the log's entries in order. The
rules of the protocol are in :mod:`.protocol`.

A job whose unit of privacy is a message or a row charges the records in the
ranges that it reserves, each once: its batches are disjoint.

A job whose unit is a user charges *every* record of the topic, past and future, once
for all of its batches: the largest epsilon, delta and rho that any of them has named.
:attr:`Ledger.everywhere` is the sum over these jobs, and is part of every record's charge.
A reservation that would take any record above the cap, or a user without records, is void.

Soundness, and the limits of the cap: docs/explanation/ledger.md.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field

from streaming_pca.privacy.ledger.cap import BudgetExceeded, within_cap
from streaming_pca.privacy.ledger.entries import (
    Abandoned,
    Charged,
    Committed,
    LedgerEntry,
    OffsetSpan,
    Opened,
    Paused,
    Released,
    Reserved,
    Resumed,
    entry_hash,
)
from streaming_pca.privacy.ledger.protocol import JobProgress, JobStatus, check_entry
from streaming_pca.privacy.ledger.spend_map import SpendMap, largest_charge
from streaming_pca.privacy.parameters import Charge


@dataclass(frozen=True)
class Verdict:
    """Ledger's decision on an entry: accepted, or void for the reason given."""

    accepted: bool
    reason: str = ""


_ACCEPTED = Verdict(True)


@dataclass
class JobLedger(JobProgress):
    """Progress and charges of one job."""

    reservation: Reserved | None = None  # of the last batch
    committed: int = 0
    abandoned: int = 0
    released: int = 0
    records_committed: int = 0
    records_abandoned: int = 0
    spend: defaultdict[int, SpendMap] = field(default_factory=lambda: defaultdict(SpendMap))
    """Charges of the records in its ranges."""
    everywhere: Charge = field(default_factory=Charge.nothing)  # of every record, if the unit is a user
    refused: str = ""  # reason why the job's last entry is void; "" if it counts
    reason: str = ""  # of the pause, or of the last entry that counts, if it has one and resumes nothing

    def spent(self, partition: int, offset: int) -> Charge:
        """Return this job's charge of one record."""
        return self.spend.get(partition, SpendMap()).at(offset) + self.everywhere

    def most_charged(self) -> Charge:
        """Return this job's largest epsilon, delta and rho for any record."""
        return largest_charge(self.spend.values()) + self.everywhere


class Ledger:
    """Replay of one input topic's log. Entries of its earlier lives, with other ids, are void."""

    def __init__(self, topic_id: str) -> None:
        self.topic_id = topic_id
        self.opened: Opened | None = None
        self.jobs: dict[str, JobLedger] = {}
        # Charges by all jobs together: of the records in their ranges, by partition, and of every record.
        self.spend: defaultdict[int, SpendMap] = defaultdict(SpendMap)
        self.everywhere = Charge.nothing()

    def job(self, name: str) -> JobLedger:
        """Return a job's record; without entries, an empty one whose ``head`` is OPENED's hash."""
        return self.jobs.get(name) or JobLedger(head=entry_hash(self.opened) if self.opened else "")

    def spent(self, partition: int, offset: int) -> Charge:
        """Return the charge of one record by all jobs."""
        return self.spend.get(partition, SpendMap()).at(offset) + self.everywhere

    def most_charged(self) -> Charge:
        """Return the largest epsilon, delta and rho of any record, by all jobs."""
        return largest_charge(self.spend.values()) + self.everywhere

    def check(self, entry: LedgerEntry) -> Verdict:
        """Return the verdict of :meth:`apply` without changing anything."""
        if entry.topic_id != self.topic_id:
            return Verdict(False, "it belongs to another life of the topic (other topic id)")
        if isinstance(entry, Opened):
            return Verdict(False, "the ledger is already open") if self.opened else _ACCEPTED
        if self.opened is None:
            return Verdict(False, "the ledger is not open")
        job = self.job(entry.job)
        if entry.previous != job.head:
            return Verdict(False, "its hash chain does not continue the job's last entry")
        if wrong := self._check_protocol(entry, job):
            return Verdict(False, wrong)
        if isinstance(entry, Reserved | Charged):
            try:
                self.check_budget(entry)
            except BudgetExceeded as error:
                return Verdict(False, str(error))
        return _ACCEPTED

    def _check_protocol(self, entry: LedgerEntry, job: JobLedger) -> str:
        # A method, so that tests can search for the faults of ledgers with weaker rules.
        return check_entry(entry, job, self.jobs)

    def check_budget(self, entry: Reserved | Charged) -> None:
        """Raise :class:`BudgetExceeded` if the entry would take any record above the cap."""
        if isinstance(entry, Reserved) and entry.of_users:
            self.check_everywhere(entry.job, entry.charge)
            return
        for r in entry.ranges:
            # Not self.spend[...]: it would add an entry, and a dry run changes nothing.
            for spent in self.spend.get(r.partition, SpendMap()).over(r.start, r.end):
                self._require(r, entry.charge, spent + self.everywhere)

    def check_everywhere(self, name: str, charge: Charge) -> None:
        """Raise :class:`BudgetExceeded` if a job of users could not be charged this.

        The largest charge that the job has reserved covers all of its
        batches, so its earlier charges are not added.
        """
        before = self.job(name).everywhere
        largest = before | charge
        if largest == before:
            return  # already charged to every record, and within the cap
        others = self._everywhere_but(name)
        for where, spent in self._stretches():
            self._require(where, largest, spent + others)

    def check_unread(self, charge: Charge) -> None:
        """Raise :class:`BudgetExceeded` if an unread record could not be charged this."""
        self._require(None, charge, self.everywhere)

    def _require(self, where: OffsetSpan | None, asked: Charge, spent: Charge) -> None:
        assert self.opened is not None
        if not within_cap(spent + asked, self.opened.cap, self.opened.filter):
            raise BudgetExceeded(where, asked, spent, self.opened)

    def _stretches(self) -> Iterator[tuple[OffsetSpan | None, Charge]]:
        """Yield each range and its charge, first None and nothing for unread records."""
        yield None, Charge.nothing()
        for partition, spend in sorted(self.spend.items()):
            for start, end, charge in spend.intervals():
                yield OffsetSpan(partition=partition, start=start, end=end), charge

    def _everywhere_but(self, name: str) -> Charge:
        others = (job.everywhere for other, job in sorted(self.jobs.items()) if other != name)
        return sum(others, Charge.nothing())

    def apply(self, entry: LedgerEntry) -> Verdict:
        """Check the log's next entry, then record it."""
        verdict = self.check(entry)
        if isinstance(entry, Opened):
            if verdict.accepted:
                self.opened = entry
            return verdict
        if entry.topic_id != self.topic_id or self.opened is None:
            return verdict
        job = self.job(entry.job)
        job.refused = verdict.reason
        if entry.previous != job.head:
            return verdict
        # A void entry still moves its job's chain: its writer has read it back, and continues from it.
        job.head = entry_hash(entry)
        self.jobs[entry.job] = job
        if verdict.accepted:
            self._record(entry, job)
        return verdict

    def _record(self, entry: LedgerEntry, job: JobLedger) -> None:
        job.follow(entry)
        # The open batch of a paused job still ends.
        if job.status is not JobStatus.PAUSED or isinstance(entry, Paused):
            job.reason = "" if isinstance(entry, Resumed) else getattr(entry, "reason", "")
        match entry:
            case Reserved():
                job.reservation = entry
                self._charge(entry, job)
            case Committed():
                assert job.reservation is not None
                job.committed += 1
                job.records_committed += job.reservation.count
            case Abandoned():
                assert job.reservation is not None
                job.abandoned += 1
                job.records_abandoned += job.reservation.count
            case Released():
                job.released += 1
            case Charged():
                self._charge(entry, job)

    def _charge(self, entry: Reserved | Charged, job: JobLedger) -> None:
        if isinstance(entry, Reserved) and entry.of_users:
            job.everywhere |= entry.charge
            self.everywhere = self._everywhere_but(entry.job) + job.everywhere
            return
        for r in entry.ranges:
            for spend in (self.spend, job.spend):
                spend[r.partition].add(r.start, r.end, entry.charge)
