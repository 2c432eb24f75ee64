"""Search of the ledger's protocol: every order of all actions of two jobs, zombies and successors.

These parts are real: the entries' bytes, their hashes, the Ledger, recover(). These are modelled, as in
privacy.md: the ledger's log with transactions, one transactional producer a job whose
init_transactions fences the epoch before and aborts its open transaction, a coordinator that times out
an open transaction, readers that stop at the last stable offset, and the steps of a leader.

A job has a few processes, each of them a leader once. Any process may take any next step at any
time. So a crash is a process that never steps again, a zombie is a process that steps after its successor
did, and both happen between any two actions. The search is breadth first, so a printed trace is a
shortest one.

A job's unit of privacy is a message, or a user: then it charges every record, independently of its ranges.

A job may have operators too: processes that take over as a leader does, to pause, resume or retire it,
or, for a job without leaders, to charge records for a release made elsewhere.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from fractions import Fraction
from functools import cache
from typing import Any, NamedTuple

import pytest

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
from streaming_pca.privacy.ledger.spend_map import SpendMap
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.recovery import Action, LedgerMismatch, Recovery, recover


class Promise(StrEnum):
    """The invariants, named by their claims."""

    CHARGED_ONCE = "a job charges a record once"
    CAP_HOLDS = "no record is charged above the cap"
    ONE_ANSWER = "a batch has one answer outside"
    RELEASE_IS_STATE = "a release is the committed state's answer"
    RESERVED_FIRST = "an answer is computed for reserved records only"
    ALL_ACCOUNTED = "every record below a committed position is in one committed or abandoned batch"
    ABANDONED_IS_SILENT = "an abandoned batch has no answer outside"
    ONLY_THE_CAP_REFUSES = "only the cap refuses what a leader writes"
    NO_CONTRADICTION = "recovery finds ledger and state in agreement"
    PAUSED_RESERVES_NOTHING = "no batch is reserved while its job is paused"
    RETIRED_IS_THE_END = "nothing is open when a job retires, and nothing of it counts or comes out after"
    CHARGE_COUNTS = "a charge that its owner was told of counts"
    USERS_CAP_HOLDS = "no user, whatever records are theirs, is charged above the cap"
    START_IS_KEPT = "all batches of a job follow the one start that it wrote down"


EVERY_INVARIANT = frozenset(Promise)


class Broken(Exception):
    """Violation of an invariant."""

    def __init__(self, invariant: str, detail: str = "") -> None:
        super().__init__(f"{invariant}: {detail}")
        self.invariant = invariant


class Job(NamedTuple):
    """A job's use of the input: one partition, offsets [start, stop), ``size`` of them per batch.

    Operators are "pause", "resume", "retire", and "charge", which charges all of the offsets together.
    ``of_users``: its unit of privacy is a user. ``latest``: it begins at an end offset of the moment.
    """

    name: str
    start: int
    stop: int
    size: int
    processes: int
    charge: Charge
    operators: tuple[str, ...] = ()
    of_users: bool = False
    latest: bool = False


@dataclass(frozen=True)
class Bounds:
    """The searched part of all worlds."""

    jobs: tuple[Job, ...]
    cap: Cap


DELTA = "1e-30"
"""The delta of every contract and charge: caps on delta are far away."""


def unit(epsilon: int) -> Charge:
    return Charge(epsilon=Fraction(epsilon), delta=Fraction(DELTA), rho=Fraction(epsilon))


@dataclass(frozen=True)
class Protocol:
    """The protocol of privacy.md; changing any field makes a mistake."""

    ledger: type[Ledger] = Ledger
    recover: Callable[[JobLedger, int, str, dict[int, int]], Recovery] = recover
    fences: bool = True
    reads_back: bool = True
    reads_committed: bool = True
    waits_for_open_transactions: bool = True
    initialises_before_reading: bool = True
    release_has_its_own_transaction: bool = True
    state_and_entry_in_one_transaction: bool = True
    leaders_heed_the_standing: bool = True
    operators_fence: bool = True
    retiring_abandons_what_is_open: bool = True
    writes_its_start: bool = True


class Record(NamedTuple):
    """A message in the ledger topic. Aborted ones are removed, unless a reader includes those too."""

    entry: int
    job: int
    process: int
    status: int


OPEN, COMMITTED, ABORTED = range(3)


class At:
    """The position of a process: plain numbers, for speed."""

    IDLE, LATE, INITIALISED, PLANNING, RESERVING, READING_BACK, ACCEPTED = range(7)
    ANSWERED, COMMITTING, PUBLISHING, RELEASING, ABANDONING, STOPPED = range(7, 13)
    CLOSING, WRITING, WRITTEN = range(13, 16)  # of operators
    STARTING, BEGINNING = range(16, 18)


CALLS_THE_BROKER = {At.PLANNING, At.RESERVING, *range(At.ANSWERED, At.STOPPED), At.CLOSING, At.WRITING}
CALLS_THE_BROKER |= {At.STARTING, At.BEGINNING}

STANDINGS: dict[str, tuple[Any, JobStatus]] = {
    "pause": (Paused, JobStatus.PAUSED),
    "resume": (Resumed, JobStatus.ACTIVE),
    "retire": (Retired, JobStatus.RETIRED),
}


class Process(NamedTuple):
    """A process and its memory.

    ``view`` is the ledger as far as read (None: read up to the own last entry first), ``head`` the
    own job's last entry, ``answer`` the computed result (a process answers a batch once: its number
    names a fresh answer), ``end`` where the batch ends or the next one begins, ``late`` its
    state after calling init_transactions, if it read first.
    """

    at: int = At.IDLE
    view: tuple[int, ...] | None = ()
    head: int = -1
    batch: int = 0
    end: int = 0
    answer: int = -1
    late: Process | None = None


class World(NamedTuple):
    """The complete state. ``states``: (batch, answer, end) of each committed state, by job."""

    log: tuple[Record, ...]
    owners: tuple[int, ...]
    states: tuple[tuple[tuple[int, int, int], ...], ...]
    releases: tuple[frozenset[tuple[int, int]], ...]
    processes: tuple[tuple[Process, ...], ...]


def put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def digest(job: int, batch: int, answer: int) -> str:
    return f"{job}:{batch}:{answer}" if batch else ""


class Search:
    """Breadth-first search of all worlds within the bounds."""

    def __init__(self, bounds: Bounds, protocol: Protocol, watched: frozenset[str] = EVERY_INVARIANT) -> None:
        self.jobs, self.cap, self.protocol, self.watched = bounds.jobs, bounds.cap, protocol, watched
        # The role of each process of a job: "" is a leader.
        self.roles = tuple(("",) * job.processes + job.operators for job in self.jobs)
        self.seen_by: Counter[str] = Counter()
        self._ids: dict[bytes, int] = {}
        self._entries: list[LedgerEntry] = []
        self._hashes: list[str] = []
        self.replay, self.decide, self.check = cache(self._replay), cache(self._decide), cache(self._check)
        self.reservation, self.operation = cache(self._reservation), cache(self._operation)
        self.entry, self.reserved = cache(self._entry), cache(self._reserved)

    def broken(self, invariant: str, detail: str) -> None:
        if invariant in self.watched:
            raise Broken(invariant, detail)

    # ------------------------------------------------------------------------- the real code, by number

    def intern(self, entry: LedgerEntry) -> int:
        data = encode_entry(entry)
        if data not in self._ids:
            self._ids[data] = len(self._entries)
            # Every reader decodes the same bytes to the same frozen entry.
            self._entries.append(decode_entry(data))
            self._hashes.append(entry_hash(entry))
        return self._ids[data]

    def _replay(self, ids: tuple[int, ...]) -> tuple[Ledger, tuple[Verdict, ...]]:
        ledger = self.protocol.ledger("T")
        return ledger, tuple(ledger.apply(self._entries[i]) for i in ids)

    def _entry(self, kind: type, job: int, batch: int, previous: int, note: str) -> int:
        field = {Committed: "state_digest", Abandoned: "reason", Released: "release_digest"}[kind]
        common = {"topic_id": "T", "job": self.jobs[job].name, "batch": batch}
        return self.intern(kind(**common, previous=self._hash(previous), **{field: note}))

    def _hash(self, head: int) -> str:
        return self._hashes[max(head, 0)]  # 0 is OPENED

    def _reservation(self, j: int, view: tuple[int, ...], at: int) -> tuple[int, int, int] | None:
        """Return the next batch as (entry, batch, end), if the ledger has room for it."""
        job = self.jobs[j]
        ledger, _ = self.replay(view)
        known = ledger.job(job.name)
        if self.protocol.leaders_heed_the_standing and known.status is not JobStatus.ACTIVE:
            return None
        end = min(at + job.size, job.stop)
        unit = {"privacy_unit": "user" if job.of_users else "message", "contributions_per_user": 1}
        reserved = Reserved(
            **{"topic_id": "T", "job": job.name, "batch": known.batch + 1, "previous": known.head},
            ranges=(OffsetRange(partition=0, start=at, end=end, count=end - at),),
            promise=unit | {"epsilon": 1.0, "delta": float(DELTA)},
            parameters={"mechanism": "private-oja", "sigma_over_sensitivity": 20.0},
            charge=job.charge,
        )
        if self.accepted(ledger.check(reserved)):
            return self.intern(reserved), reserved.batch, end
        return None

    def _operation(self, j: int, role: str, view: tuple[int, ...]) -> int | None:
        """Return an operator's entry after reading a ledger; None if it has nothing to write."""
        job = self.jobs[j]
        ledger, _ = self.replay(view)
        known = ledger.job(job.name)
        common: dict[str, Any] = {"topic_id": "T", "job": job.name, "previous": known.head, "reason": role}
        entry: LedgerEntry
        if role == "charge":
            spans = (OffsetSpan(partition=0, start=job.start, end=job.stop),)
            entry = Charged(**common, ranges=spans, charge=job.charge)
        else:
            kind, wanted = STANDINGS[role]
            if known.status in (wanted, JobStatus.RETIRED):
                return None
            entry = kind(**common)
        return self.intern(entry) if self.accepted(ledger.check(entry)) else None

    def accepted(self, verdict: Verdict) -> bool:
        if not verdict.accepted and "the cap is" not in verdict.reason:
            self.broken(Promise.ONLY_THE_CAP_REFUSES, verdict.reason)
        return verdict.accepted

    def _decide(self, j: int, role: str, view: tuple[int, ...], states: tuple[Any, ...]) -> Process:
        """Return the first step of a process that has read everything."""
        job = self.jobs[j]
        ledger, _ = self.replay(view)
        known = ledger.job(job.name)
        batch, answer, end = states[-1] if states else (0, -1, job.start)
        try:
            found = self.protocol.recover(known, batch, digest(j, batch, answer), {0: end})
        except LedgerMismatch as mismatch:
            self.broken(Promise.NO_CONTRADICTION, str(mismatch))
            return Process(At.STOPPED)
        head = next((i for i in reversed(view) if self._hashes[i] == known.head), -1)
        if known.status is JobStatus.RETIRED and self.protocol.leaders_heed_the_standing:
            return Process(At.STOPPED)
        match found.action:
            case Action.PUBLISH:
                return Process(At.PUBLISHING, (), head, batch, end, answer)
            case Action.RESUME if role:
                if role != "retire" or not self.protocol.retiring_abandons_what_is_open:
                    return Process(At.PLANNING, view, end=found.positions[0])
                assert known.reservation is not None
                return Process(At.CLOSING, (), head, known.batch, known.reservation.ranges[0].end)
            case Action.RESUME:
                assert known.reservation is not None
                return Process(At.ACCEPTED, (), head, known.batch, known.reservation.ranges[0].end)
            case Action.PLAN if job.latest and not role and not known.has_begun:
                heeds = self.protocol.leaders_heed_the_standing and known.status is not JobStatus.ACTIVE
                return Process(At.STOPPED) if heeds else Process(At.STARTING, view, head)
            case Action.PLAN:
                return Process(At.PLANNING, view, end=found.positions[0])

    # ------------------------------------------------------------------------------------- the broker

    @staticmethod
    def stable(log: tuple[Record, ...]) -> int:
        """Return the last stable offset: the start of the first open transaction."""
        return next((i for i, record in enumerate(log) if record.status == OPEN), len(log))

    def abort(self, log: tuple[Record, ...], j: int) -> tuple[Record, ...]:
        def ends(r: Record) -> bool:
            return r.job == j and r.status == OPEN and self.has_epoch(j, r.process)

        if self.protocol.reads_committed:
            return tuple(r for r in log if not ends(r))
        return tuple(r._replace(status=ABORTED) if ends(r) else r for r in log)

    def fenced(self, world: World, j: int, i: int) -> bool:
        return self.protocol.fences and self.has_epoch(j, i) and world.owners[j] != i

    def has_epoch(self, j: int, i: int) -> bool:
        """Return whether the process writes with the job's transactional id, as it should."""
        return not self.roles[j][i] or self.protocol.operators_fence

    # ------------------------------------------------------------------------------------ the actions

    def first(self) -> World:
        opened = Opened(topic_id="T", topic="in", cap=self.cap)
        everyone = tuple(tuple(Process() for _ in roles) for roles in self.roles)
        empty = tuple(() for _ in self.jobs)
        silent: tuple[frozenset[tuple[int, int]], ...] = tuple(frozenset() for _ in self.jobs)
        log = (Record(self.intern(opened), -1, -1, COMMITTED),)
        return World(log, tuple(-1 for _ in self.jobs), empty, silent, everyone)

    def successors(self, world: World) -> Iterator[tuple[str, World]]:
        for j, job in enumerate(self.jobs):
            if self.protocol.fences and any(r.job == j and r.status == OPEN for r in world.log):
                # The coordinator aborts the transaction and increments the epoch.
                after = world._replace(log=self.abort(world.log, j), owners=put(world.owners, j, -1))
                yield f"{job.name}: time-out", self.settle(after, j)
            for i, process in enumerate(world.processes[j]):
                if process.at == At.STOPPED or (
                    # Leaders are interchangeable: they begin in order.
                    process.at == At.IDLE
                    and i
                    and self.roles[j][i] == self.roles[j][i - 1]
                    and not self.started(world, j, i - 1)
                ):
                    continue
                for label, after in self.step(world, j, i, process):
                    yield f"{job.name}{i}{self.roles[j][i]}: {label}", self.settle(after, j)

    def settle(self, world: World, j: int) -> World:
        """Stop a job's fenced processes if their only remaining step is to learn of it.

        An epoch is never restored, so their next call of the broker fails at any time.
        """
        if not self.protocol.fences:
            return world
        mine = world.processes[j]
        for i, process in enumerate(mine):
            if process.at in CALLS_THE_BROKER and self.fenced(world, j, i):
                self.seen_by[f"{'an operator' if self.roles[j][i] else 'a zombie'} that was fenced"] += 1
                mine = put(mine, i, Process(At.STOPPED))
        changed = mine is not world.processes[j]
        return world._replace(processes=put(world.processes, j, mine)) if changed else world

    @staticmethod
    def started(world: World, j: int, i: int) -> bool:
        return world.processes[j][i].at != At.IDLE

    def step(self, world: World, j: int, i: int, me: Process) -> Iterator[tuple[str, World]]:
        def become(process: Process, **changes: Any) -> World:
            everyone = put(world.processes, j, put(world.processes[j], i, process))
            return world._replace(processes=everyone, **changes)

        def append(kind: type, at: int, note: str, **changes: Any) -> tuple[str, World]:
            entry = self.entry(kind, j, me.batch, me.head, note)
            log = (*world.log, Record(entry, j, i, OPEN))
            process = me._replace(at=at, head=entry)
            return f"append {kind.__name__} {me.batch}", become(process, log=log, **changes)

        def mine_is_stable() -> tuple[int, ...] | None:
            """Return the log up to my last entry, if a reader can read that far."""
            last = max(k for k, r in enumerate(world.log) if (r.job, r.process) == (j, i))
            if self.stable(world.log) <= last:
                return None
            return tuple(r.entry for r in world.log[: last + 1] if r.status == COMMITTED)

        stopped = Process(At.STOPPED)
        role = self.roles[j][i]
        match me.at:
            case At.IDLE:
                if self.protocol.initialises_before_reading:
                    yield "init_transactions", self.initialise(become(Process(At.INITIALISED)), j, i)
                else:
                    for label, after in self.read(world, j, i, become):
                        yield label, become(Process(At.LATE, late=after.processes[j][i]))
            case At.LATE:
                yield "init_transactions", self.initialise(become(me.late), j, i)
            case At.INITIALISED:
                yield from self.read(world, j, i, become)
            case At.PLANNING:
                view = me.view if me.view is not None else mine_is_stable()
                if view is None:
                    return
                if role:
                    number = self.operation(j, role, view)
                    if number is None:
                        yield "stop", become(stopped)
                        return
                    log = (*world.log, Record(number, j, i, OPEN))
                    yield f"append {role}", become(Process(At.WRITING, (), number), log=log)
                    return
                plan = self.reservation(j, view, me.end) if me.end < self.jobs[j].stop else None
                if plan is None:
                    yield "stop", become(stopped)
                    return
                entry, batch, end = plan
                after = Process(At.RESERVING, (), entry, batch, end)
                yield f"append Reserved {batch}", become(after, log=(*world.log, Record(entry, j, i, OPEN)))
            case At.STARTING:
                job = self.jobs[j]
                # Any offset may be the end offset at this moment.
                for offset in range(job.start, job.stop):
                    if not self.protocol.writes_its_start:
                        yield f"start at {offset}", become(Process(At.PLANNING, me.view, end=offset))
                        continue
                    common = {"topic_id": "T", "job": job.name, "previous": self._hash(me.head)}
                    positions = (OffsetPosition(partition=0, offset=offset),)
                    entry = self.intern(Started(**common, positions=positions))
                    after = Process(At.BEGINNING, (), entry, end=offset)
                    log = (*world.log, Record(entry, j, i, OPEN))
                    yield f"append Started {offset}", become(after, log=log)
            case At.READING_BACK:
                view = mine_is_stable()
                if view is None:
                    return
                if self.protocol.reads_back and not self.accepted(self.replay(view)[1][-1]):
                    self.seen_by["a leader that read back that its reservation is void"] += 1
                    yield "read back: void", become(stopped)
                else:
                    yield "read back: accepted", become(me._replace(at=At.ACCEPTED))
            case At.ACCEPTED:
                self.must_be_reserved(world, j, me.batch)
                if self.protocol.fences and world.owners[j] != i:
                    self.seen_by["a zombie that computed"] += 1
                yield f"compute {me.batch}", become(me._replace(at=At.ANSWERED, answer=i))
                if not self.fenced(world, j, i):
                    yield append(Abandoned, At.ABANDONING, "")
            case At.CLOSING:
                self.seen_by["an operator that abandoned a batch"] += 1
                yield append(Abandoned, At.ABANDONING, "")
            case At.WRITTEN:
                view = mine_is_stable()
                if view is None:
                    return
                counts = self.replay(view)[1][-1]
                if self.protocol.reads_back and not self.accepted(counts):
                    self.seen_by["an owner that read back that its charge is void"] += 1
                elif not counts.accepted and role == "charge":
                    self.broken(Promise.CHARGE_COUNTS, counts.reason)
                yield "read back", become(stopped)
            case At.ANSWERED:
                changes: dict[str, Any] = {}
                if not self.protocol.release_has_its_own_transaction:
                    changes["releases"] = self.exposed(world, j, me)
                if not self.protocol.state_and_entry_in_one_transaction:
                    changes["states"] = self.with_state(world, j, me)
                yield append(Committed, At.COMMITTING, digest(j, me.batch, me.answer), **changes)
            case At.PUBLISHING:
                note = digest(j, me.batch, me.answer)
                yield append(Released, At.RELEASING, note, releases=self.exposed(world, j, me))
            case At.RESERVING | At.COMMITTING | At.RELEASING | At.ABANDONING | At.WRITING | At.BEGINNING:
                log = tuple(
                    r._replace(status=COMMITTED) if (r.job, r.process) == (j, i) and r.status == OPEN else r
                    for r in world.log
                )
                match me.at:
                    case At.RESERVING:
                        yield "commit Reserved", become(me._replace(at=At.READING_BACK), log=log)
                    case At.WRITING:
                        yield f"commit {role}", become(me._replace(at=At.WRITTEN), log=log)
                    case At.COMMITTING:
                        states = world.states
                        if self.protocol.state_and_entry_in_one_transaction:
                            states = self.with_state(world, j, me)
                        after = become(me._replace(at=At.PUBLISHING), log=log, states=states)
                        yield "commit Committed", after
                    case _:
                        yield "commit the end", become(Process(At.PLANNING, None, end=me.end), log=log)

    def initialise(self, world: World, j: int, i: int) -> World:
        if not (self.protocol.fences and self.has_epoch(j, i)):
            return world
        return world._replace(owners=put(world.owners, j, i), log=self.abort(world.log, j))

    def read(self, world: World, j: int, i: int, become: Callable[..., World]) -> Iterator[tuple[str, World]]:
        """Replay both topics and decide.

        All open transactions must be resolved below the end offsets that were taken after
        init_transactions. With two jobs this is equivalent to a moment without open transactions:
        the own producer has none, and the other job has one transaction at a time.
        """
        if not self.protocol.reads_committed:
            view = tuple(r.entry for r in world.log)
        else:
            end = self.stable(world.log)
            if end < len(world.log) and self.protocol.waits_for_open_transactions:
                return
            view = tuple(r.entry for r in world.log[:end])
        yield "read", become(self.decide(j, self.roles[j][i], view, world.states[j]))

    @staticmethod
    def with_state(world: World, j: int, me: Process) -> Any:
        return put(world.states, j, (*world.states[j], (me.batch, me.answer, me.end)))

    @staticmethod
    def exposed(world: World, j: int, me: Process) -> Any:
        # A sent record is on the topic immediately: a reader may use read_uncommitted.
        return put(world.releases, j, world.releases[j] | {(me.batch, me.answer)})

    # --------------------------------------------------------------------------------- the invariants

    def committed(self, log: tuple[Record, ...]) -> tuple[int, ...]:
        return tuple(r.entry for r in log if r.status == COMMITTED)

    def must_be_reserved(self, world: World, j: int, batch: int) -> None:
        name = self.jobs[j].name
        if (name, batch) not in self.reserved(self.committed(world.log[: self.stable(world.log)])):
            self.broken(Promise.RESERVED_FIRST, f"job {name}, batch {batch}")

    def _reserved(self, records_view: tuple[int, ...]) -> frozenset[tuple[str, int]]:
        """Return job and batch of each accepted reservation."""
        _, verdicts = self.replay(records_view)
        return frozenset(
            (entry.job, entry.batch)
            for entry, verdict in zip(self.decoded(records_view), verdicts, strict=True)
            if isinstance(entry, Reserved) and verdict.accepted
        )

    def decoded(self, numbers: tuple[int, ...]) -> list[Any]:
        return [self._entries[number] for number in numbers]

    def invariants(self, world: World) -> None:
        records_view = self.committed(world.log[: self.stable(world.log)])
        self.check(records_view, self.committed(world.log), world.states, world.releases)

    def _check(
        self,
        records_view: tuple[int, ...],
        committed: tuple[int, ...],
        states: tuple[tuple[tuple[int, int, int], ...], ...],
        releases: tuple[frozenset[tuple[int, int]], ...],
    ) -> None:
        self.check_charges(records_view)
        _, verdicts = self.replay(committed)
        written = self.decoded(committed)
        for entry, verdict in zip(written, verdicts, strict=True):
            if not isinstance(entry, Opened | Reserved):
                self.accepted(verdict)
        counted = [e for e, verdict in zip(written, verdicts, strict=True) if verdict.accepted]
        for j, job in enumerate(self.jobs):
            mine = [e for e in counted if not isinstance(e, Opened) and e.job == job.name]
            ended = {e.batch for e in mine if isinstance(e, Committed | Abandoned)}
            silent = {e.batch for e in mine if isinstance(e, Abandoned)}
            in_state = {(batch, answer) for batch, answer, _ in states[j]}
            outside = in_state | releases[j]
            answers = Counter(batch for batch, _ in outside)
            if any(n > 1 for n in answers.values()):
                self.broken(Promise.ONE_ANSWER, f"job {job.name}: {sorted(outside)}")
            if not releases[j] <= in_state:
                self.broken(Promise.RELEASE_IS_STATE, f"job {job.name}: {sorted(releases[j] - in_state)}")
            if silent & answers.keys():
                self.broken(Promise.ABANDONED_IS_SILENT, f"job {job.name}: {sorted(silent & answers.keys())}")
            first = [e.positions[0].offset for e in mine if isinstance(e, Started)] or [job.start]
            position = max((end for _, _, end in states[j]), default=first[0])
            reserved = [e.ranges[0].start for e in mine if isinstance(e, Reserved)]
            known = job.latest and reserved and not any(isinstance(e, Started) for e in mine)
            if len(first) > 1 or known or (reserved and reserved[0] != first[0]):
                self.broken(Promise.START_IS_KEPT, f"job {job.name}: {first}, {reserved}")
            ranges = [e.ranges[0] for e in mine if isinstance(e, Reserved) and e.batch in ended]
            for offset in range(first[0], position):
                if sum(r.start <= offset < r.end for r in ranges) != 1:
                    self.broken(Promise.ALL_ACCOUNTED, f"job {job.name}, offset {offset}")
            self.check_standing(j, mine, releases[j])
            for name in (Abandoned, Released, Paused, Resumed, Retired, Charged, Started):
                if any(isinstance(e, name) for e in mine):
                    self.seen_by[f"job {job.name}: {name.__name__}"] += 1
            if position == job.stop:
                self.seen_by[f"job {job.name}: everything answered"] += 1

    def check_standing(self, j: int, mine: list[Any], released: frozenset[tuple[int, int]]) -> None:
        """Walk the valid entries of a job, in order."""
        name = self.jobs[j].name
        paused = False
        reserved: set[int] = set()
        closed: set[int] = set()
        for at, entry in enumerate(mine):
            if isinstance(entry, Reserved):
                reserved.add(entry.batch)
                if paused:
                    self.broken(Promise.PAUSED_RESERVES_NOTHING, f"job {name}, batch {entry.batch}")
            elif isinstance(entry, Abandoned | Released):
                closed.add(entry.batch)
                if paused:
                    self.seen_by[f"job {name}: a batch that ended while it was paused"] += 1
            elif isinstance(entry, Paused | Resumed):
                paused = isinstance(entry, Paused)
            elif isinstance(entry, Retired):
                late = [type(e).__name__ for e in mine[at + 1 :]]
                outside = {batch for batch, _ in released} - closed
                if late or outside or reserved - closed:
                    detail = f"job {name}: {late}, {outside}, {reserved - closed}"
                    self.broken(Promise.RETIRED_IS_THE_END, detail)
                return

    def check_charges(self, records_view: tuple[int, ...]) -> None:
        """Add up the charges of accepted reservations, record by record."""
        _, verdicts = self.replay(records_view)
        total: dict[int, Fraction] = defaultdict(Fraction)
        of_users: dict[str, Fraction] = defaultdict(Fraction)
        charged: set[tuple[str, int]] = set()
        units = {job.name: job.of_users for job in self.jobs}
        for entry, verdict in zip(self.decoded(records_view), verdicts, strict=True):
            if not isinstance(entry, Reserved | Charged):
                continue
            if not verdict.accepted:
                what = "reservation" if isinstance(entry, Reserved) else "charge"
                self.seen_by[f"job {entry.job}: a void {what}"] += 1
                continue
            cost = Fraction(entry.charge.epsilon)
            if units[entry.job]:
                # One user may own every record: all batches that hold them cost this together.
                of_users[entry.job] = max(of_users[entry.job], cost)
            for r in entry.ranges:
                for offset in range(r.start, r.end):
                    # Each charge is another release; a batch is not.
                    if isinstance(entry, Reserved):
                        if (entry.job, offset) in charged:
                            self.broken(Promise.CHARGED_ONCE, f"job {entry.job}, offset {offset}")
                        charged.add((entry.job, offset))
                    if not units[entry.job]:
                        total[offset] += cost
            everywhere = sum(of_users.values())
            if everywhere > self.cap.epsilon:
                self.broken(Promise.USERS_CAP_HOLDS, f"{dict(of_users)}")
            for offset, own in total.items():
                if own + everywhere > self.cap.epsilon:
                    self.broken(Promise.CAP_HOLDS, f"offset {offset}")

    # ------------------------------------------------------------------------------------- the search

    def run(self) -> int:
        """Visit every world and return their number; raise :class:`Broken` with a shortest trace."""
        first = self.first()
        before: dict[World, tuple[str, World] | None] = {first: None}
        waiting = deque([first])
        while waiting:
            world = waiting.popleft()
            try:
                for label, after in self.successors(world):
                    # One hash of a world instead of two: most of them have been seen.
                    n = len(before)
                    before.setdefault(after, (label, world))
                    if len(before) == n:
                        continue
                    waiting.append(after)
                    if after[:4] != world[:4]:
                        self.invariants(after)
            except Broken as broken:
                newest = next(reversed(before))
                found = newest if (before[newest] or ("", None))[1] is world else world
                broken.add_note("\n".join(self.trace(before, found)))
                raise
        return len(before)

    @staticmethod
    def trace(before: dict[World, tuple[str, World] | None], world: World) -> list[str]:
        steps: list[str] = []
        while (came := before[world]) is not None:
            steps.append(came[0])
            world = came[1]
        return steps[::-1]


class ChargesWhenCommitted(Ledger):
    """A reservation costs nothing until it has an answer."""

    def _record(self, entry: Any, job: JobLedger) -> None:
        if isinstance(entry, Reserved):
            kept, self.spend = self.spend, defaultdict(SpendMap)
            super()._record(entry, job)
            self.spend = kept
            return
        super()._record(entry, job)
        if isinstance(entry, Committed) and job.reservation is not None:
            for r in job.reservation.ranges:
                self.spend[r.partition].add(r.start, r.end, job.reservation.charge)


class ForgetsOpenBatches(Ledger):
    """Accept a reservation while the previous batch is open."""

    def _check_protocol(self, entry: LedgerEntry, job: JobLedger) -> str:
        forgotten = replace(job, phase=BatchStatus.NONE) if isinstance(entry, Reserved) else job
        return super()._check_protocol(entry, forgotten)


class ForgetsRanges(Ledger):
    """Accept a reservation of records that the job has reserved before."""

    def _check_protocol(self, entry: LedgerEntry, job: JobLedger) -> str:
        forgotten = replace(job, ends={}) if isinstance(entry, Reserved) else job
        return super()._check_protocol(entry, forgotten)


class HasNoCap(Ledger):
    """Accept every reservation."""

    def check_budget(self, entry: Reserved | Charged) -> None:
        pass


class ForgetsPauses(Ledger):
    """Accept a reservation of a job that is paused or retired."""

    def _check_protocol(self, entry: LedgerEntry, job: JobLedger) -> str:
        forgotten = replace(job, status=JobStatus.ACTIVE) if isinstance(entry, Reserved) else job
        return super()._check_protocol(entry, forgotten)


class RetiresOverOpenBatches(Ledger):
    """Accept RETIRED with open batches, and let these end later."""

    def _check_protocol(self, entry: LedgerEntry, job: JobLedger) -> str:
        forgotten = replace(job, phase=BatchStatus.NONE) if isinstance(entry, Retired) else job
        return super()._check_protocol(entry, forgotten)


class ChargesNothingForReleasesElsewhere(Ledger):
    """Record a charge without adding it up."""

    def _charge(self, entry: Reserved | Charged, job: JobLedger) -> None:
        if isinstance(entry, Reserved):
            super()._charge(entry, job)


class ChargesUsersWhereTheyWereRead(Ledger):
    """Charge a job of users for its reserved ranges, like a job of messages."""

    def check_budget(self, entry: Reserved | Charged) -> None:
        super().check_budget(entry.model_copy(update={"promise": {}}))

    def _charge(self, entry: Reserved | Charged, job: JobLedger) -> None:
        super()._charge(entry.model_copy(update={"promise": {}}), job)


class ForgetsUsersWhereMessagesAreCharged(Ledger):
    """Compare a job of messages only with the charges of its ranges."""

    def check_budget(self, entry: Reserved | Charged) -> None:
        kept, self.everywhere = self.everywhere, Charge.nothing()
        try:
            super().check_budget(entry)
        finally:
            self.everywhere = kept


class ForgetsMessagesWhereUsersAreCharged(Ledger):
    """Compare a job of users only with other such jobs, not with any record."""

    def check_everywhere(self, name: str, charge: Charge) -> None:
        kept, self.spend = self.spend, defaultdict(SpendMap)
        try:
            super().check_everywhere(name, charge)
        finally:
            self.spend = kept


def plans_over_an_open_batch(job: JobLedger, batch: int, digest: str, at: dict[int, int]) -> Recovery:
    found = recover(job, batch, digest, at)
    return replace(found, action=Action.PLAN) if found.action is Action.RESUME else found


def answers_a_committed_batch(job: JobLedger, batch: int, digest: str, at: dict[int, int]) -> Recovery:
    found = recover(job, batch, digest, at)
    return replace(found, action=Action.RESUME) if found.action is Action.PUBLISH else found


def forgets_abandoned_records(job: JobLedger, batch: int, digest: str, at: dict[int, int]) -> Recovery:
    found = recover(job, batch, digest, at)
    return Recovery(found.action, at)


def compares_nothing(job: JobLedger, batch: int, digest: str, at: dict[int, int]) -> Recovery:
    return recover(job, job.last_committed, job.state_digest, at)


# A record has room for one charge of b, or for two of a: so the cap does not explain that a charges it once.
A, B = unit(1), unit(2)
CAP = Cap(epsilon=Fraction(2), delta=Fraction(1))

SMALL = Bounds((Job("a", 0, 2, 1, 2, A), Job("b", 1, 2, 1, 1, B)), CAP)

# A charge of c leaves no room for another one in addition to a's.
C = unit(1)
OPERATED = Bounds((Job("a", 0, 2, 1, 2, A, ("pause", "resume")),), CAP)
RETIRED = Bounds((Job("a", 0, 2, 1, 2, A, ("pause", "retire")),), CAP)
LATEST = Bounds((Job("a", 0, 2, 1, 2, A, ("pause", "resume"), latest=True),), CAP)
CHARGING = Bounds((Job("a", 0, 2, 1, 2, A), Job("c", 0, 2, 2, 0, C, ("charge", "charge"))), CAP)

# A job of users leaves room for a's charge but not for b's, although their ranges are disjoint.
TWO_OF_USERS = Bounds((Job("a", 0, 2, 1, 2, A, (), True), Job("b", 5, 7, 2, 1, B, (), True)), CAP)
USERS_AND_MESSAGES = Bounds((Job("a", 0, 2, 1, 2, A, (), True), Job("b", 5, 6, 1, 1, B)), CAP)


def of(job: str, *events: str) -> tuple[str, ...]:
    return tuple(f"job {job}: {event}" for event in events)


ZOMBIES = ("a zombie that computed", "a zombie that was fenced")
ENDS = ("everything answered", "Abandoned", "Released")
VOID = "a leader that read back that its reservation is void"
WHILE_PAUSED = "a batch that ended while it was paused"
OF_A = (*ZOMBIES, "an operator that was fenced", *of("a", *ENDS))
OF_TWO = (*ZOMBIES, VOID, *of("a", *ENDS, "a void reservation"), *of("b", *ENDS, "a void reservation"))
OF_OWNER = (*of("c", "Charged", "a void charge"), VOID, "an owner that read back that its charge is void")
TWO_JOBS = Bounds((Job("a", 0, 2, 1, 2, A), Job("b", 1, 2, 1, 2, B)), CAP)
TWO_ZOMBIES = Bounds((Job("a", 0, 2, 1, 3, A), Job("b", 1, 2, 1, 1, B)), CAP)
LARGER_BATCH = Bounds((Job("a", 0, 2, 1, 2, A), Job("b", 0, 2, 2, 2, B)), CAP)
PAUSED_AND_CHARGING = Bounds((Job("a", 0, 2, 1, 2, A, ("pause",)), Job("c", 0, 2, 2, 0, C, ("charge",))), CAP)
SCENARIOS: dict[str, tuple[Bounds, int, tuple[str, ...]]] = {
    "two jobs meet on a record, each with a zombie": (TWO_JOBS, 100_000, OF_TWO),
    "a job with two zombies": (TWO_ZOMBIES, 100_000, OF_TWO),
    "a batch of one job covers two of the other": (LARGER_BATCH, 45_000, OF_TWO),
    "a job is paused and resumed": (OPERATED, 19_000, (*OF_A, *of("a", "Paused", "Resumed", WHILE_PAUSED))),
    "a job is paused and retired": (
        RETIRED,
        21_000,
        (*OF_A, *of("a", "Paused", "Retired"), "an operator that abandoned a batch"),
    ),
    "an owner charges twice what a job learns": (
        CHARGING,
        58_000,
        (*OF_A, *of("a", "a void reservation"), *OF_OWNER),
    ),
    "a job begins at the latest records": (LATEST, 26_000, (*OF_A, *of("a", "Started", "Paused", "Resumed"))),
    "an owner charges while a job is paused": (
        PAUSED_AND_CHARGING,
        63_000,
        (*OF_A, *of("a", "Paused", WHILE_PAUSED), *of("c", "Charged")),
    ),
    "two jobs of users on disjoint ranges": (TWO_OF_USERS, 9_000, OF_TWO),
    "a job of users and one of messages on disjoint ranges": (USERS_AND_MESSAGES, 9_000, OF_TWO),
}


@pytest.mark.parametrize(("bounds", "at_least", "events"), SCENARIOS.values(), ids=SCENARIOS)
def test_no_order_of_crashes_zombies_and_take_overs_breaks_a_promise(
    bounds: Bounds, at_least: int, events: tuple[str, ...]
) -> None:
    search = Search(bounds, Protocol())
    worlds = search.run()
    print(f"{worlds} worlds, {search.seen_by}")
    assert worlds >= at_least
    # The search reached the critical events.
    assert all(search.seen_by[event] for event in events), search.seen_by


MISTAKES = """
no fencing
    SMALL fences: ONE_ANSWER ABANDONED_IS_SILENT ONLY_THE_CAP_REFUSES
the verdict is not read back
    SMALL reads_back: RESERVED_FIRST ALL_ACCOUNTED
a reservation is charged at its commit
    SMALL ledger=ChargesWhenCommitted: CAP_HOLDS
the ledger enforces no cap
    SMALL ledger=HasNoCap: CAP_HOLDS
recovery plans over an open batch
    SMALL recover=plans_over_an_open_batch: ONLY_THE_CAP_REFUSES
recovery plans over an open batch, and the ledger lets it
    SMALL recover=plans_over_an_open_batch ledger=ForgetsOpenBatches: ALL_ACCOUNTED
recovery answers a committed batch again
    SMALL recover=answers_a_committed_batch: ONE_ANSWER ONLY_THE_CAP_REFUSES
recovery forgets abandoned records
    SMALL recover=forgets_abandoned_records: ONLY_THE_CAP_REFUSES
recovery forgets abandoned records, and the ledger lets it
    SMALL recover=forgets_abandoned_records ledger=ForgetsRanges: CHARGED_ONCE
replays count uncommitted entries
    SMALL reads_committed: RESERVED_FIRST ALL_ACCOUNTED NO_CONTRADICTION
a replay stops at the first open transaction
    SMALL waits_for_open_transactions: ONLY_THE_CAP_REFUSES NO_CONTRADICTION ABANDONED_IS_SILENT
a take-over reads before init_transactions
    SMALL initialises_before_reading: ONE_ANSWER ABANDONED_IS_SILENT ONLY_THE_CAP_REFUSES
a release rides with its state
    SMALL release_has_its_own_transaction: ONE_ANSWER RELEASE_IS_STATE
state and entry in two transactions
    SMALL state_and_entry_in_one_transaction: NO_CONTRADICTION
state and entry in two transactions, and recovery does not compare them
    SMALL state_and_entry_in_one_transaction recover=compares_nothing: ONE_ANSWER ABANDONED_IS_SILENT
a leader plans while it is paused
    OPERATED leaders_heed_the_standing: ONLY_THE_CAP_REFUSES
a leader plans while it is paused, and the ledger lets it
    OPERATED leaders_heed_the_standing ledger=ForgetsPauses: PAUSED_RESERVES_NOTHING
a leader plans after retirement, and the ledger lets it
    RETIRED leaders_heed_the_standing ledger=ForgetsPauses: RETIRED_IS_THE_END
whoever pauses does not fence
    OPERATED operators_fence: ONLY_THE_CAP_REFUSES
whoever retires does not fence
    RETIRED operators_fence: ONLY_THE_CAP_REFUSES ABANDONED_IS_SILENT
retiring leaves what is open
    RETIRED retiring_abandons_what_is_open: ONLY_THE_CAP_REFUSES
retiring leaves what is open, and the ledger lets it
    RETIRED retiring_abandons_what_is_open ledger=RetiresOverOpenBatches: RETIRED_IS_THE_END
charges are not added up
    CHARGING ledger=ChargesNothingForReleasesElsewhere: CAP_HOLDS
a charge is not read back
    CHARGING reads_back: CHARGE_COUNTS
a start is not written down
    LATEST writes_its_start: START_IS_KEPT
users are charged where they were read
    TWO_OF_USERS ledger=ChargesUsersWhereTheyWereRead: USERS_CAP_HOLDS
users are charged where they were read, and messages elsewhere
    USERS_AND_MESSAGES ledger=ChargesUsersWhereTheyWereRead: CAP_HOLDS
messages are not held against users
    USERS_AND_MESSAGES ledger=ForgetsUsersWhereMessagesAreCharged: CAP_HOLDS
users are not held against messages
    USERS_AND_MESSAGES ledger=ForgetsMessagesWhereUsersAreCharged: CAP_HOLDS
the verdict on a reservation of users is not read back
    TWO_OF_USERS reads_back: RESERVED_FIRST ALL_ACCOUNTED
"""


def mistakes() -> Iterator[Any]:
    """Yield (bounds, protocol, promise) for each promise that a mistake of :data:`MISTAKES` breaks.

    There, a title is followed by the bounds, the fields of the protocol that are off or have another value,
    and the broken promises.
    """
    lines = MISTAKES.strip().splitlines()
    for title, line in zip(lines[::2], lines[1::2], strict=True):
        wrong, _, broken = line.strip().partition(": ")
        bounds, *fields = wrong.split()
        pairs = [field.partition("=") for field in fields]
        protocol = Protocol(**{name: globals()[value] if value else False for name, _, value in pairs})
        for promise in sorted(Promise[name] for name in broken.split()):
            yield pytest.param(globals()[bounds], protocol, promise, id=f"{title}: {promise}")


@pytest.mark.parametrize(("bounds", "protocol", "invariant"), list(mistakes()))
def test_the_search_finds_what_a_mistake_breaks(bounds: Bounds, protocol: Protocol, invariant: str) -> None:
    with pytest.raises(Broken) as broken:
        Search(bounds, protocol, watched=frozenset({invariant})).run()
    assert broken.value.invariant == invariant
    assert broken.value.__notes__[0].count("\n") >= 4


def test_every_invariant_is_broken_by_some_mistake() -> None:
    assert {case.values[2] for case in mistakes()} == EVERY_INVARIANT
