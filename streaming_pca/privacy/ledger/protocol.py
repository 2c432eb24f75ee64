"""Rules of the ledger's protocol, shared by the ledger and its verifier.

A batch of a job goes

    RESERVED -> COMMITTED -> RELEASED
             -> ABANDONED

and is charged by RESERVED alone. A charge is never taken back. In addition, the job itself has a status,

    ACTIVE <-> PAUSED
    ACTIVE, PAUSED -> RETIRED

and only an active job reserves. A job that has CHARGED, for releases that were
made elsewhere, has no batches. A job that skips existing records writes
STARTED before its first batch, and reserves no record before those offsets.

A reservation names records, and its charge is not below its cost:

- epsilon and delta are at least those of its privacy contract (``promise``), and the noise that its
  parameters name is enough for them (:mod:`.mechanism_costs`). A stream of reports, whose producers add the
  noise, charges exactly 0; a stream that is not private charges exactly infinity.
- its rho, where one is claimed, is at least the cost of the mechanisms.

Comparisons are of rationals, with a relative tolerance of one part in 10^12.

Sums of charges, caps and hashes are not here: ledger and verifier each have their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from fractions import Fraction
from typing import Any

from streaming_pca.privacy.ledger.cap import approximate
from streaming_pca.privacy.ledger.entries import (
    Abandoned,
    Charged,
    Committed,
    LedgerEntry,
    OffsetRange,
    OffsetSpan,
    Paused,
    Released,
    Reserved,
    Resumed,
    Retired,
    Started,
)
from streaming_pca.privacy.ledger.mechanism_costs import (
    TOLERANCE,
    check_composition,
    check_mechanisms,
    is_of_reports,
    least_rho,
)
from streaming_pca.privacy.parameters import Charge, parse_rational

_LARGEST_SHOWN = Fraction(10**300)
_UNITS = ("message", "row", "user")


class BatchStatus(StrEnum):
    """Stage of a job's last batch."""

    NONE = "none"
    RESERVED = "reserved"
    COMMITTED = "committed"
    ABANDONED = "abandoned"
    RELEASED = "released"


class JobStatus(StrEnum):
    """Permission of a job to reserve."""

    ACTIVE = "active"
    PAUSED = "paused"
    RETIRED = "retired"


@dataclass
class JobProgress:
    """Progress of a job, as far as the rules depend on it."""

    head: str = ""
    """Hash of the job's last entry, void ones included."""
    batch: int = 0
    phase: BatchStatus = BatchStatus.NONE
    """The last batch that was reserved, 0 before the first, and its status."""
    last_committed: int = 0
    state_digest: str = ""
    release_digest: str = ""
    """The last batch that was committed, and the digests of its state and of its release ("" before it)."""
    contract: dict[str, Any] | None = None
    """Privacy contract of the job's first reservation, binding for all later ones."""
    parameters: dict[str, Any] | None = None
    """Mechanisms of the job's first reservation."""
    ends: dict[int, int] = field(default_factory=dict)
    """Start of the job's next batch."""
    started: bool = False
    """True after STARTED, which counts once."""
    status: JobStatus = JobStatus.ACTIVE
    charges: int = 0
    """Number of CHARGED entries that count; a job that has any has no batches."""

    @property
    def has_begun(self) -> bool:
        """True once the ledger fixes where the job begins to read."""
        return self.started or self.batch > 0

    def follow(self, entry: LedgerEntry) -> None:
        """Update the progress by the job's next entry that counts."""
        match entry:
            case Reserved():
                self.batch, self.phase, self.contract = entry.batch, BatchStatus.RESERVED, entry.promise
                self.ends |= {r.partition: r.end for r in entry.ranges}
                self.parameters = self.parameters or entry.parameters
            case Committed():
                self.phase, self.last_committed = BatchStatus.COMMITTED, entry.batch
                self.state_digest, self.release_digest = entry.state_digest, ""
            case Abandoned():
                self.phase = BatchStatus.ABANDONED
            case Released():
                self.phase, self.release_digest = BatchStatus.RELEASED, entry.release_digest
            case Paused():
                self.status = JobStatus.PAUSED
            case Resumed():
                self.status = JobStatus.ACTIVE
            case Retired():
                self.status = JobStatus.RETIRED
            case Charged():
                self.charges += 1
            case Started():
                self.started, self.ends = True, {p.partition: p.offset for p in entry.positions}


def check_entry(entry: LedgerEntry, job: JobProgress, jobs: Mapping[str, JobProgress]) -> str:
    """Return why the entry cannot count, apart from caps; "" if it can.

    The entry is not OPENED, and its ``previous`` continues the job's chain. ``jobs`` are all of the ledger,
    with or without this one.
    """
    match entry:
        case Reserved():
            return _check_reservation(entry, job) or _check_kind(entry, jobs) or _check_charge(entry, job)
        case Charged():
            return _check_elsewhere(entry, job)
        case Paused() | Resumed() | Retired():
            return _check_status_change(entry, job)
        case Committed() | Abandoned() | Released():
            return _check_end(entry, job)
        case Started():
            return _check_start(entry, job)
    return ""


def _check_reservation(entry: Reserved, job: JobProgress) -> str:
    if job.status is not JobStatus.ACTIVE:
        return f"the job is {job.status}"
    if job.charges:
        return "the job has charges for releases made elsewhere, so it cannot have batches"
    if job.phase is BatchStatus.RESERVED:
        return f"batch {job.batch} is still open"
    if entry.batch != job.batch + 1:
        return f"batch {entry.batch} does not follow batch {job.batch}"
    if job.contract is not None and entry.promise != job.contract:
        keys = {*job.contract, *entry.promise}
        changed = sorted(key for key in keys if job.contract.get(key) != entry.promise.get(key))
        return f"the job's privacy contract changed: {', '.join(changed)}"
    if not entry.ranges:
        return "it names no records"
    if wrong := _check_ranges(entry.ranges):
        return wrong
    for r in entry.ranges:
        if not r.count:
            return f"partition {r.partition}: no records in the range with start {r.start}, end {r.end}"
        if r.start < job.ends.get(r.partition, 0):
            if not job.batch:
                return (
                    f"partition {r.partition}: offset {r.start} is before the job's start, "
                    f"{job.ends[r.partition]}"
                )
            return (
                f"partition {r.partition} overlaps an earlier batch of the job: offset {r.start} is below "
                f"{job.ends[r.partition]}"
            )
    return ""


def _check_kind(entry: Reserved, jobs: Mapping[str, JobProgress]) -> str:
    """Return why the topic cannot hold this job's messages: reports cost nothing, and records do."""
    reads_reports = entry.promise.get("local") is True
    for name, job in jobs.items():
        if job.contract is not None and (job.contract.get("local") is True) != reads_reports:
            kinds = ("records", "reports") if reads_reports else ("reports", "records")
            return f"job {name!r} reads the topic's messages as {kinds[0]}, and this one as {kinds[1]}"
    return ""


def _check_elsewhere(entry: Charged, job: JobProgress) -> str:
    if job.status is not JobStatus.ACTIVE:
        return f"the job is {job.status}"
    if job.has_begun:
        past = "batches" if job.batch else "begun as a stream"
        return f"the job has {past}, so it cannot have charges for releases made elsewhere"
    return _check_ranges(entry.ranges)


def _check_start(entry: Started, job: JobProgress) -> str:
    if job.status is not JobStatus.ACTIVE:
        return f"the job is {job.status}"
    if job.charges:
        return "the job has charges for releases made elsewhere, so it reads no records"
    if job.has_begun:
        return "the job has already begun"
    named = [p.partition for p in entry.positions]
    if not named or len(set(named)) < len(named):
        return "it names no partition, or names one twice"
    return ""


def _check_ranges(ranges: Sequence[OffsetSpan]) -> str:
    """Return the fault of ranges by themselves; "" without one."""
    seen: set[int] = set()
    for r in ranges:
        if r.partition in seen:
            return f"partition {r.partition} appears twice"
        seen.add(r.partition)
        if r.end < r.start or (isinstance(r, OffsetRange) and r.count > r.end - r.start):
            return f"partition {r.partition} has an impossible range: start {r.start}, end {r.end}"
    return ""


def _check_status_change(entry: Paused | Resumed | Retired, job: JobProgress) -> str:
    if job.status is JobStatus.RETIRED:
        return "the job is retired, which is final"
    match entry:
        case Paused() if job.status is not JobStatus.ACTIVE:
            return f"the job is {job.status}"
        case Resumed() if job.status is not JobStatus.PAUSED:
            return f"the job is {job.status}, not paused"
        case Retired() if job.phase in (BatchStatus.RESERVED, BatchStatus.COMMITTED):
            return f"batch {job.batch} is {job.phase}: it must be abandoned or released first"
    return ""


def _check_end(entry: Committed | Abandoned | Released, job: JobProgress) -> str:
    """Return why the batch cannot be committed, abandoned or released now."""
    if entry.batch != job.batch:
        return f"batch {entry.batch} is not the job's last batch ({job.batch})"
    needed = BatchStatus.COMMITTED if isinstance(entry, Released) else BatchStatus.RESERVED
    return "" if job.phase is needed else f"batch {entry.batch} is {job.phase}, not {needed}"


def _check_charge(entry: Reserved, job: JobProgress) -> str:
    contract, charge = entry.promise, entry.charge
    if (unit := contract.get("privacy_unit")) not in _UNITS:
        return f"its privacy contract has privacy_unit {unit!r:.60}: it must be one of {', '.join(_UNITS)}"
    if is_of_reports(contract, entry.parameters):
        return "" if charge == Charge.nothing() else "it charges for reports, which cost nothing"
    if contract.get("private") is False:
        return "" if charge == Charge.unbounded() else "it is not private, but does not charge infinity"
    for name, charged in (("epsilon", charge.epsilon), ("delta", charge.delta)):
        try:
            promised = parse_rational(contract.get(name))
        except ValueError:
            return f"its privacy contract has no valid {name}"
        # With diagnostics the charge is a sum of two parts, which may be an ulp below the whole.
        if charged < promised * (1 - TOLERANCE):
            return f"it charges {name} {approximate(charged)}, but its contract has {approximate(promised)}"
    return (
        _check_rho(entry)
        or check_mechanisms(contract, entry.parameters)
        or check_composition(contract, job.parameters or entry.parameters, entry.parameters)
    )


def _check_rho(entry: Reserved) -> str:
    claimed = entry.charge.rho
    if claimed is None:
        return ""
    try:
        least = least_rho(entry.promise, entry.parameters)
    except ValueError:
        return ""  # `check_mechanisms` refuses these
    if claimed >= least:
        return ""
    # The cost of a multiplier close to 0 is above the largest float.
    cost = f"{float(min(least, _LARGEST_SHOWN)):.6g}" if isinstance(least, Fraction) else "infinity"
    return f"it claims rho {approximate(claimed)}, but its mechanisms cost {cost} or more"
