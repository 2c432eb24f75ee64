"""The verifier's walk along the entries: what a sound writer would have written, and what fits the cap.

The rules are the ledger's own (:mod:`streaming_pca.privacy.protocol`); what is charged is summed anew.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from streaming_pca.privacy.entries import Charged, LedgerEntry, OffsetSpan, Opened, Released, Reserved
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.protocol import JobProgress, Phase, check_entry, rho_is_unchecked
from streaming_pca.privacy.verify_sums import Most, Total, shown, sweep, upper

__all__ = ["Audit", "Job"]


_NOTHING = Charge(epsilon=0, delta=0, rho=0)


@dataclass
class Job(JobProgress):
    """What one job has written so far."""

    phases: dict[int, Phase] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    off_chain: list[int] = field(default_factory=list)
    of_users: bool = False
    everywhere: Charge = _NOTHING
    """The largest that a job of users reserved: what it costs every record."""


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


class Audit:
    """Walks the entries of one life of the topic, in the log's order."""

    def __init__(self, problems: list[str]) -> None:
        self.opened: Opened | None = None
        self.jobs: dict[str, Job] = {}
        self.void = 0
        self.records = 0
        self.rho_unchecked = 0
        self._problems = problems
        # Charges of one job may meet, so they are no _Held; there are few of them.
        self._elsewhere: defaultdict[int, list[tuple[int, int, Charge]]] = defaultdict(list)
        self._held: defaultdict[int, defaultdict[str, _Held]] = defaultdict(lambda: defaultdict(_Held))
        self._before_opened: list[int] = []
        self._origin = ""

    def take(self, offset: int, entry: LedgerEntry, digest: str) -> None:
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
        job = self.jobs.setdefault(entry.job, Job(head=self._origin))
        if entry.previous != job.head:
            job.off_chain.append(offset)
            return
        job.head = digest
        wrong = check_entry(entry, job, self.opened)
        if wrong:
            self._problems.append(f"offset {offset}: {entry.kind} of job {entry.job!r}: {wrong}")
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
            case Released():
                job.digests[entry.batch] = entry.release_digest
        if job.batch:
            job.phases[job.batch] = job.phase

    def _fits(self, entry: Reserved | Charged, opened: Opened) -> bool:
        """Whether no record would pass the cap."""
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
        """Whether no record at all would pass the cap, wherever it is."""
        everywhere = [upper(self.jobs[entry.job].everywhere, entry.charge)]
        everywhere += [job.everywhere for name, job in self.jobs.items() if name != entry.job]
        return _sum(everywhere).within(opened) and all(
            total.within(opened)
            for partition in {*self._held, *self._elsewhere}
            for _, _, total in sweep(self._on(partition), everywhere)
        )

    def _on(self, partition: int) -> Iterator[tuple[int, int, Charge]]:
        """All that counts on a partition."""
        for held in self._held[partition].values():
            yield from zip(held.starts, held.ends, held.charges, strict=True)
        yield from self._elsewhere[partition]

    def _meeting(self, r: OffsetSpan) -> Iterator[tuple[int, int, Charge]]:
        """What counts already and lies in these offsets."""
        for held in self._held[r.partition].values():
            yield from held.meeting(r.start, r.end)
        for start, end, charge in self._elsewhere[r.partition]:
            if start < r.end and r.start < end:
                yield max(start, r.start), min(end, r.end), charge

    def _hold(self, entry: Reserved, job: Job) -> None:
        charge = entry.charge
        self.rho_unchecked += rho_is_unchecked(entry)
        if entry.of_users:
            job.of_users, job.everywhere = True, upper(job.everywhere, charge)
            charge = _NOTHING  # its ranges are remembered, but every record is charged
        for r in entry.ranges:
            self.records += r.count
            held = self._held[r.partition][entry.job]
            held.starts.append(r.start)
            held.ends.append(r.end)
            held.charges.append(charge)

    def close(self, topic_id: str) -> Most:
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
        everywhere = [job.everywhere for job in self.jobs.values()]
        alone = self.everywhere()
        most = Most()
        most.take_charge(alone)
        if self.opened is not None and not alone.within(self.opened):
            self._problems.append(f"every record: charged {_of(alone)}, above the cap")
        for partition in sorted({*self._held, *self._elsewhere}):
            for name, held in sorted(self._held[partition].items()):
                if any(end > start for end, start in zip(held.ends, held.starts[1:], strict=False)):
                    self._problems.append(f"partition {partition}: batches of job {name!r} overlap")
            for start, end, total in sweep(self._on(partition), everywhere):
                if not total.count:
                    continue
                most.take(start, end, total)
                if self.opened is not None and not total.within(self.opened):
                    where = f"partition {partition}, offsets {start} to {end}"
                    self._problems.append(f"{where}: charged {_of(total)}, above the cap")
        return most

    def everywhere(self) -> Total:
        """What every record bears, read or not."""
        return _sum(job.everywhere for job in self.jobs.values())


def _sum(charges: Iterable[Charge]) -> Total:
    total = Total()
    for charge in charges:
        total.change(charge, 1)
    return total


def _of(total: Total) -> str:
    return f"epsilon {shown(total.epsilon)}, delta {shown(total.delta)}"
