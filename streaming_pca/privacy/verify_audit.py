"""The verifier's walk along the entries: what a sound writer would have written, and what fits the cap.

The same rules as :mod:`streaming_pca.privacy.ledger`, written a second time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from streaming_pca.privacy.entries import (
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
    Retired,
)
from streaming_pca.privacy.parameters import Charge
from streaming_pca.privacy.verify_sums import Most, Total, shown, sweep, upper

__all__ = ["Audit", "Job"]


_NOTHING = Charge(epsilon=0, delta=0, rho=0)


@dataclass
class Job:
    """What one job has written so far."""

    head: str = ""
    last: int = 0
    phases: dict[int, str] = field(default_factory=dict)
    promise: dict[str, Any] | None = None
    ends: dict[int, int] = field(default_factory=dict)
    digests: dict[int, str] = field(default_factory=dict)
    off_chain: list[int] = field(default_factory=list)
    standing: str = "active"
    charges: int = 0
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
        wrong = _wrong(entry, job)
        if wrong:
            self._problems.append(f"offset {offset}: {entry.kind} of job {entry.job!r}: {wrong}")
        elif not isinstance(entry, Reserved | Charged):
            _move(entry, job)
        elif not self._fits(entry, self.opened):
            self.void += 1
        elif isinstance(entry, Reserved):
            self._hold(entry, job)
        else:
            job.charges += 1
            for r in entry.ranges:
                self._elsewhere[r.partition].append((r.start, r.end, entry.charge))

    def _fits(self, entry: Reserved | Charged, opened: Opened) -> bool:
        """Whether no record would pass the cap."""
        if entry.kind == "RESERVED" and _unit_is_user(entry.promise):
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
        job.last = entry.batch
        job.phases[entry.batch] = "reserved"
        job.promise = entry.promise
        charge = entry.charge
        if _unit_is_user(entry.promise):
            job.of_users, job.everywhere = True, upper(job.everywhere, charge)
            charge = _NOTHING  # its ranges are remembered, but every record is charged
        for r in entry.ranges:
            job.ends[r.partition] = r.end
            self.records += r.count
            if r.start < r.end:
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


def _unit_is_user(promise: dict[str, Any]) -> bool:
    return bool(promise.get("privacy_unit") == "user")


def _move(entry: LedgerEntry, job: Job) -> None:
    """Take an entry that charges nothing."""
    match entry:
        case Committed() | Abandoned() | Released():
            job.phases[entry.batch] = entry.kind.lower()
            if isinstance(entry, Released):
                job.digests[entry.batch] = entry.release_digest
        case Paused() | Retired():
            job.standing = entry.kind.lower()
        case Resumed():
            job.standing = "active"


def _wrong(entry: LedgerEntry, job: Job) -> str:
    """Why a sound writer would not have written this, whatever the cap; "" if it would."""
    match entry:
        case Reserved():
            return _wrong_reservation(entry, job)
        case Charged():
            return _wrong_charge(entry, job)
        case Committed() | Abandoned() | Released():
            return _wrong_end(entry, job)
        case Paused() | Resumed() | Retired():
            return _wrong_standing(entry, job)
    return ""


def _wrong_reservation(entry: Reserved, job: Job) -> str:
    if job.standing != "active":
        return f"reserved while the job is {job.standing}"
    if job.charges:
        return "the job has charges for releases made elsewhere, and now a batch"
    if job.phases.get(job.last) == "reserved":
        return f"batch {job.last} is still open"
    if entry.batch != job.last + 1:
        return f"batch {entry.batch} comes after batch {job.last}"
    if job.promise is not None and job.promise != entry.promise:
        return "another promise than the job's first"
    for r in entry.ranges:
        if not 0 <= r.count <= r.end - r.start:
            return f"partition {r.partition}: {r.count} records in offsets {r.start} to {r.end}"
        if r.start < job.ends.get(r.partition, 0):
            return (
                f"partition {r.partition}: offset {r.start} lies in an earlier batch of the job, "
                f"which ends at {job.ends[r.partition]}"
            )
    return _twice(entry.ranges)


def _wrong_charge(entry: Charged, job: Job) -> str:
    if job.standing != "active":
        return f"charged while the job is {job.standing}"
    if job.last:
        return "the job has batches, and now a charge for a release made elsewhere"
    for r in entry.ranges:
        if r.end < r.start:
            return f"partition {r.partition}: offsets {r.start} to {r.end}"
    return _twice(entry.ranges)


def _twice(ranges: Sequence[OffsetSpan]) -> str:
    return "a partition appears twice" if len({r.partition for r in ranges}) < len(ranges) else ""


def _wrong_standing(entry: Paused | Resumed | Retired, job: Job) -> str:
    if job.standing == "retired":
        return "the job was retired for ever"
    if isinstance(entry, Retired):
        phase = job.phases.get(job.last)
        return f"batch {job.last} is {phase}" if phase in ("reserved", "committed") else ""
    if job.standing != ("active" if isinstance(entry, Paused) else "paused"):
        return f"the job is {job.standing}"
    return ""


def _wrong_end(entry: Committed | Abandoned | Released, job: Job) -> str:
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
