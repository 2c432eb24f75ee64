"""Independent verifier of a ledger: `streaming-pca ledger verify`.

It needs only the messages. It shares with the writer the entries' schemas
and the rules of the protocol (:mod:`.protocol`). It computes hashes from the
messages' bytes, and sums charges by separate code (:mod:`.verify_replay`).

It cannot detect an entry at the very end of a job's chain that was changed or removed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from streaming_pca.privacy.ledger.entries import LedgerEntry, MalformedEntry, Opened, decode_entry
from streaming_pca.privacy.ledger.protocol import JobProgress
from streaming_pca.privacy.ledger.verify_replay import Job, Replay, shown
from streaming_pca.privacy.parameters import format_number, parse_rational


@dataclass(frozen=True)
class Report:
    """Result of a verification: problems, and totals of the ledger."""

    ok: bool
    problems: tuple[str, ...]  # one line each
    topic_id: str  # id of the input topic's life that was verified
    entries: int
    other_entries: int  # entries of that life and of others; messages that are not entries are problems
    void: int
    """Entries that rightly count for nothing: reservations and charges that came too late for the cap,
    second OPENEDs."""
    jobs: tuple[str, ...]
    paused: tuple[str, ...]
    retired: tuple[str, ...]  # all jobs; the paused ones; the retired ones
    of_users: tuple[str, ...]  # jobs whose unit of privacy is a user
    batches: dict[str, int]  # number of batches that are reserved (open), committed, abandoned, released
    records_charged: int  # records in reservations that count, once for each job
    charges: int  # CHARGED entries that count
    offsets_charged: int  # offsets in any reservation or charge that counts
    max_epsilon: Fraction | float
    max_delta: Fraction | float
    max_rho: Fraction | float | None
    """Largest charge of any one record; rho is None where a charge claims none."""
    everywhere_epsilon: Fraction | float
    everywhere_delta: Fraction | float
    everywhere_rho: Fraction | float | None
    """Part of it that every record bears, read or not: by the jobs whose unit is a user."""
    releases: int | None
    other_releases: int | None
    """Releases on the topic that are in this life's ledger, and in those of earlier lives."""
    states: int | None  # number of jobs whose stored state is named by their last COMMITTED

    def to_json(self) -> dict[str, Any]:
        """Return plain data for :func:`json.dumps`; exact numbers are strings."""
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
    releases: Iterable[bytes | StoredRelease] | None = None,
    states: Mapping[str, StoredState] | None = None,
    *,
    topic_id: str | None = None,
) -> Report:
    """Check a whole ledger, and releases and states against it.

    ``entries`` are the offset and the bytes of every committed message of the ledger topic, in order;
    ``releases`` every committed message of the releases topics of all jobs, in order within each topic;
    ``states`` the last state of every job that has one. Releases and states are not checked if not given.
    ``topic_id`` is the id of the input topic's life to verify; the newest when not given.
    """
    problems: list[str] = []
    if topic_id is None:
        entries = list(entries)
        topic_id = _newest_life(entries)
    replay = Replay(problems)
    mine = of_others = 0
    # Releases of an earlier life do not count if that life's ledger is invalid.
    earlier: defaultdict[str, Replay] = defaultdict(lambda: Replay([]))
    # One entry at a time: a ledger grows without bound.
    for offset, entry, digest in _decode(entries, problems):
        if entry.topic_id == topic_id:
            mine += 1
            replay.take(offset, entry, digest)
            continue
        of_others += 1
        if replay.opened is not None and isinstance(entry, Opened):
            # Under it, releases would look like those of an earlier topic.
            problems.append(f"offset {offset}: opens another life of the topic after the present one")
        if releases is not None:
            earlier[entry.topic_id].take(offset, entry, digest)
    mine_released = others = None
    if releases is not None:
        for life, other in earlier.items():
            other.close(life)
        mine_released, others = check_releases(releases, replay, list(earlier.values()))
    matching = None
    if states is not None:
        wrong = check_states(states, replay.jobs, topic_id)
        problems += [
            f"job {name!r}, batch {replay.jobs[name].last_committed if name in replay.jobs else 0}: {what}. "
            f"Topic '{name}.state' must hold it: bring back the newest backup with `streaming-pca import`, "
            "or start the stream under a new name"
            for name, what in wrong.items()
        ]
        matching = sum(job.last_committed > 0 and name not in wrong for name, job in replay.jobs.items())
    most, everywhere = replay.close(topic_id), replay.everywhere()
    ends = Counter(str(phase) for job in replay.jobs.values() for phase in job.phases.values())

    def with_status(status: str) -> tuple[str, ...]:
        return tuple(sorted(name for name, job in replay.jobs.items() if job.status == status))

    return Report(
        ok=not problems,
        problems=tuple(problems),
        topic_id=topic_id,
        entries=mine,
        other_entries=of_others,
        void=replay.void,
        jobs=tuple(sorted(replay.jobs)),
        paused=with_status("paused"),
        retired=with_status("retired"),
        of_users=tuple(sorted(name for name, job in replay.jobs.items() if job.of_users)),
        batches={name: ends[name] for name in ("reserved", "committed", "abandoned", "released")},
        records_charged=replay.records,
        charges=sum(job.charges for job in replay.jobs.values()),
        offsets_charged=most.offsets,
        max_epsilon=most.epsilon,
        max_delta=most.delta,
        max_rho=most.rho,
        everywhere_epsilon=everywhere.epsilon,
        everywhere_delta=everywhere.delta,
        everywhere_rho=everywhere.rho,
        releases=mine_released,
        other_releases=others,
        states=matching,
    )


def _newest_life(messages: Iterable[tuple[int, bytes]]) -> str:
    """Return the id that the last OPENED names, or else the last entry; "" without entries."""
    opened = last = ""
    for _, entry, _ in _decode(messages, []):
        last = entry.topic_id
        opened = last if isinstance(entry, Opened) else opened
    return opened or last


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


@dataclass(frozen=True, slots=True)
class StoredRelease:
    """Summary of a message of a releases topic."""

    digest: str  # SHA-256 of its bytes
    stream: str | None = None
    batch: int = 0  # stream and batch that it names; the stream is None if it is not a release
    facts: Mapping[str, Any] = field(default_factory=dict)  # its other contents that the ledger also has
    place: str = ""  # topic and offset, for problems


_OF_CONTRACT = ("privacy_unit", "dim", "rank", "estimator")
_FACTS = ("private", "local", "epsilon", "delta", "records", "batch_records", "contributions_per_user")


def summarise_release(message: bytes, place: str = "") -> StoredRelease:
    """Summarise a message of a releases topic, which may not be a release."""
    digest = hashlib.sha256(message).hexdigest()
    try:
        content = json.loads(message)
        stream, batch = content["stream"], content["batch"]
        if not isinstance(stream, str) or type(batch) is not int:
            raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        return StoredRelease(digest, place=place)
    facts = {name: content[name] for name in (*_FACTS, *_OF_CONTRACT) if content.get(name) is not None}
    return StoredRelease(digest, stream, batch, facts, place)


def check_releases(
    messages: Iterable[bytes | StoredRelease], replay: Replay, earlier: Sequence[Replay]
) -> tuple[int, int]:
    """Match releases and RELEASED entries; count this life's releases and those of earlier lives.

    Messages are in order within each topic. Problems of the replay get a line for each release or entry
    without its counterpart, for each release out of order, and for each that contradicts its ledger.
    """
    problems, seen = replay.problems, set[tuple[str, int]]()
    latest: dict[str, int] = {}
    others = 0
    for number, message in enumerate(messages):
        release = message if isinstance(message, StoredRelease) else summarise_release(message)
        stream, batch, place = release.stream, release.batch, release.place or f"release {number}"
        if stream is None:
            problems.append(f"{place}: not a release")
            continue
        name = f"{place} (stream {stream!r}, batch {batch})"
        if _has_released(replay, release):
            if (stream, batch) in seen:
                problems.append(f"{name}: is on the topic twice")
            elif batch < latest.get(stream, 0):
                problems.append(f"{name}: comes after the release of batch {latest[stream]}")
            seen.add((stream, batch))
            latest[stream] = max(batch, latest.get(stream, 0))
            life = replay
        elif lives := [life for life in earlier if _has_released(life, release)]:
            others += 1
            life = next((each for each in lives if not each.problems), lives[0])
            if life.problems:
                problems.append(
                    f"{name}: is of an earlier life, whose ledger is not valid: {life.problems[0]}"
                )
            elif stream in latest:
                problems.append(
                    f"{name}: is of an earlier life of the topic, and comes after one of this life"
                )
        else:
            job = replay.jobs.get(stream)
            if job is None and any(stream in life.jobs for life in earlier):
                continue  # the stream reads another input now, whose ledger has it
            if job is not None and batch in job.digests:
                problems.append(f"{name}: differs from the release in the ledger")
            else:
                state = "unknown" if job is None else job.phases.get(batch, "unknown")
                problems.append(f"{name}: the ledger did not release it, its batch is {state}")
            continue
        problems.extend(f"{name}: {line}" for line in _false_facts(release, life.jobs[stream]))
    for stream, job in sorted(replay.jobs.items()):
        problems.extend(
            f"stream {stream!r}, batch {batch}: released by the ledger, but not on the topic"
            for batch in sorted(job.digests)
            if (stream, batch) not in seen
        )
    return len(seen), others


def _has_released(life: Replay, release: StoredRelease) -> bool:
    job = life.jobs.get(str(release.stream))
    return job is not None and job.digests.get(release.batch) == release.digest


def _false_facts(release: StoredRelease, job: Job) -> Iterator[str]:
    """Yield a line for each fact of a release that contradicts the ledger."""
    contract, facts = job.contract or {}, release.facts
    private = contract.get("private") is not False
    known: dict[str, Any] = {name: contract.get(name) for name in _OF_CONTRACT}
    known |= {name: _number(contract.get(name)) if private else None for name in ("epsilon", "delta")}
    known |= {"private": private, "local": contract.get("local") is True}
    known["contributions_per_user"] = contract.get("contributions_per_user")
    stated: dict[str, Any] = {"private": True, "local": False, **facts}
    stated |= {name: _number(facts.get(name)) for name in ("epsilon", "delta")}
    if contract.get("privacy_unit") != "row":
        # The ledger counts messages, and a release of rows counts rows.
        known["records"] = job.learnt[release.batch]
        if "batch_records" in facts:
            known["batch_records"] = job.counts[release.batch]
    for name, value in known.items():
        if stated.get(name) != value or type(stated.get(name)) is not type(value):
            yield f"its {name} is {_shown(stated.get(name))}, but the ledger has {_shown(value)}"


def _number(value: Any) -> Fraction | float | None:
    """Return the exact number that a release or a contract names; None without one."""
    try:
        return None if value is None else parse_rational(value)
    except ValueError:
        return math.nan


def _shown(value: Any) -> str:
    return format_number(value) if isinstance(value, Fraction) else _line(repr(value))[:60]


@dataclass(frozen=True)
class StoredState:
    """Summary of the last stored state of a job."""

    digest: str  # SHA-256 of its bytes
    topic_id: str = ""
    stream: str = ""
    batch: int = 0  # topic, stream and batch that it names
    problem: str = ""
    """Reason why the state, or the table of users that it names, cannot be used; "" if it can."""
    release_digest: str = ""  # SHA-256 of the release that it holds


def check_states(
    states: Mapping[str, StoredState], jobs: Mapping[str, JobProgress], topic_id: str
) -> dict[str, str]:
    """Compare each job's stored state with its last COMMITTED; return problems by job."""
    committed = {name: job for name, job in jobs.items() if job.last_committed}
    faults = {name: "it has a state, but no batch was committed" for name in states if name not in committed}
    for name, job in committed.items():
        state = states.get(name)
        if state is None:
            faults[name] = f"the state that the ledger committed with batch {job.last_committed} is missing"
            continue
        own = (state.digest, state.topic_id, state.stream, state.batch)
        if state.problem:
            faults[name] = state.problem
        elif own != (job.state_digest, topic_id, name, job.last_committed):
            faults[name] = f"the state differs from the one committed with batch {job.last_committed}"
        elif job.release_digest not in ("", state.release_digest):
            faults[name] = f"the release of batch {job.last_committed} differs from the release in the state"
    return dict(sorted(faults.items()))
