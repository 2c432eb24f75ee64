"""The independent verifier of a ledger: `streaming-pca ledger verify`.

It needs nothing but the messages. With the writer it shares the entries' schemas
and the rules of the protocol (:mod:`.protocol`); hashes it computes from the
messages' bytes, and charges it sums by itself (:mod:`.verify_audit`, :mod:`.verify_sums`).

What it cannot see: an entry at the very end of a job's chain that was changed
or taken away.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from streaming_pca.privacy.entries import LedgerEntry, MalformedEntry, Opened, Released, decode_entry
from streaming_pca.privacy.verify_audit import Audit
from streaming_pca.privacy.verify_releases import check_releases
from streaming_pca.privacy.verify_states import StoredState, check_states
from streaming_pca.privacy.verify_sums import shown

__all__ = ["Report", "verify_log"]


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
        Entries that count for nothing and rightly so: reservations and charges that
        came too late for the cap, second OPENEDs.
    jobs, paused, retired : tuple of str
        All jobs; those that are paused or retired now.
    batches : dict of str to int
        How many batches are reserved (open), committed, abandoned, released.
    records_charged : int
        Records in reservations that count, once for each job.
    charges : int
        CHARGED entries that count.
    offsets_charged : int
        Offsets in any reservation or charge that counts.
    max_epsilon, max_delta, max_rho : Fraction, math.inf or None
        The most that any one record was charged; rho is None where a charge claims none.
    everywhere_epsilon, everywhere_delta, everywhere_rho : Fraction, math.inf or None
        What every record bears of that, read or not: by the jobs whose unit is a user.
    rho_unchecked : int
        Reservations that claim a rho which their parameters do not tell; where the ledger adds up rhos
        they are problems.
    releases, other_releases : int or None
        Releases on the topic that this ledger, or that another life's, accounts for.
    states : int or None
        Jobs whose state is the one that their last COMMITTED names.
    """

    ok: bool
    problems: tuple[str, ...]
    topic_id: str
    entries: int
    other_entries: int
    void: int
    jobs: tuple[str, ...]
    paused: tuple[str, ...]
    retired: tuple[str, ...]
    of_users: tuple[str, ...]
    batches: dict[str, int]
    records_charged: int
    charges: int
    offsets_charged: int
    max_epsilon: Fraction | float
    max_delta: Fraction | float
    max_rho: Fraction | float | None
    everywhere_epsilon: Fraction | float
    everywhere_delta: Fraction | float
    everywhere_rho: Fraction | float | None
    rho_unchecked: int
    releases: int | None
    other_releases: int | None
    states: int | None

    def to_json(self) -> dict[str, Any]:
        """As plain data for :func:`json.dumps`; exact numbers are strings."""
        lists = ("problems", "jobs", "paused", "retired", "of_users")
        numbers = {
            name: value for name, value in vars(self).items() if name.startswith(("max_", "everywhere_"))
        }
        return {
            **vars(self),
            **{name: list(getattr(self, name)) for name in lists},
            **{name: None if value is None else shown(value) for name, value in numbers.items()},
        }


def verify_log(
    entries: Iterable[tuple[int, bytes]],
    releases: Iterable[bytes] | None = None,
    states: Mapping[str, StoredState] | None = None,
    *,
    topic_id: str | None = None,
) -> Report:
    """Check a whole ledger, and releases and states against it.

    Parameters
    ----------
    entries : iterable of (offset, bytes)
        Every committed message of the ledger topic, in order.
    releases : iterable of bytes, optional
        Every committed message of the releases topics of all jobs, those of each topic in its order.
        Not given: releases are not checked.
    states : dict of job to StoredState, optional
        The last state of every job that has one. Not given: states are not checked.
    topic_id : str, optional
        Which life of the input topic to judge; the newest when not given.
    """
    problems: list[str] = []
    decoded = list(_decode(entries, problems))
    if topic_id is None:
        opened = [entry.topic_id for _, entry, _ in decoded if isinstance(entry, Opened)]
        topic_id = (opened or [entry.topic_id for _, entry, _ in decoded] or [""])[-1]
    audit = Audit(problems)
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
        digests = {name: job.digests for name, job in audit.jobs.items()}
        phases = {name: job.phases for name, job in audit.jobs.items()}
        found, others = check_releases(releases, digests, phases, elsewhere, problems)
    matching = None
    if states is not None:
        wrong = check_states(states, audit.jobs, topic_id)
        problems += [
            f"job {name!r}, batch {audit.jobs[name].last_committed if name in audit.jobs else 0}: {what}. "
            f"Topic '{name}.state' must hold it: bring back the newest copy with `streaming-pca import`, "
            "or start the stream under a new name"
            for name, what in wrong.items()
        ]
        matching = sum(job.last_committed > 0 and name not in wrong for name, job in audit.jobs.items())
    most, everywhere = audit.close(topic_id), audit.everywhere()
    ends = Counter(str(phase) for job in audit.jobs.values() for phase in job.phases.values())

    def standing(wanted: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, job in audit.jobs.items() if job.standing == wanted))

    return Report(
        ok=not problems,
        problems=tuple(problems),
        topic_id=topic_id,
        entries=len(mine),
        other_entries=len(decoded) - len(mine),
        void=audit.void,
        jobs=tuple(sorted(audit.jobs)),
        paused=standing("paused"),
        retired=standing("retired"),
        of_users=tuple(sorted(name for name, job in audit.jobs.items() if job.of_users)),
        batches={name: ends[name] for name in ("reserved", "committed", "abandoned", "released")},
        records_charged=audit.records,
        charges=sum(job.charges for job in audit.jobs.values()),
        offsets_charged=most.offsets,
        max_epsilon=most.epsilon,
        max_delta=most.delta,
        max_rho=most.rho,
        everywhere_epsilon=everywhere.epsilon,
        everywhere_delta=everywhere.delta,
        everywhere_rho=everywhere.rho,
        rho_unchecked=audit.rho_unchecked,
        releases=found,
        other_releases=others,
        states=matching,
    )


def _decode(
    messages: Iterable[tuple[int, bytes]], problems: list[str]
) -> Iterator[tuple[int, LedgerEntry, str]]:
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
