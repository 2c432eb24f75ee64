"""The verifier's walk along the entries: what a sound writer would have written, and what fits the cap.

The same rules as :mod:`streaming_pca.privacy.ledger`, written a second time.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterator, Sequence
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
from streaming_pca.privacy.parameters import Charge, format_rational
from streaming_pca.privacy.verify_sums import Most, sweep

__all__ = ["Audit", "Job"]


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
        return all(
            total.within(opened)
            for r in entry.ranges
            for _, _, total in sweep([(r.start, r.end, entry.charge), *self._meeting(r)])
        )

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
        for r in entry.ranges:
            job.ends[r.partition] = r.end
            self.records += r.count
            if r.start < r.end:
                held = self._held[r.partition][entry.job]
                held.starts.append(r.start)
                held.ends.append(r.end)
                held.charges.append(entry.charge)

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
        most = Most()
        for partition in sorted({*self._held, *self._elsewhere}):
            jobs = self._held[partition]
            for name, held in sorted(jobs.items()):
                if any(end > start for end, start in zip(held.ends, held.starts[1:], strict=False)):
                    self._problems.append(f"partition {partition}: batches of job {name!r} overlap")
            everything = [
                (start, end, charge)
                for held in jobs.values()
                for start, end, charge in zip(held.starts, held.ends, held.charges, strict=True)
            ]
            for start, end, total in sweep([*everything, *self._elsewhere[partition]]):
                if not total.count:
                    continue
                most.take(start, end, total)
                if self.opened is not None and not total.within(self.opened):
                    spent = f"epsilon {format_rational(total.epsilon)}, delta {format_rational(total.delta)}"
                    self._problems.append(
                        f"partition {partition}, offsets {start} to {end}: charged {spent}, above the cap"
                    )
        return most


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
