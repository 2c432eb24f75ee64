"""Independent check of a run's topics.

It reads the raw topics with confluent-kafka, decodes JSON and states by itself, and imports nothing
from the package, whose readers could be wrong in the same way as its writers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cache
from itertools import pairwise
from typing import Any, cast

from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, Message, TopicPartition
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AdminClient

from tests.waiting import LIMIT

Rows = bytes | None
"""Numbers of a record as float64, row after row; None for a null record."""

Topics = Mapping[str, Sequence[int]]
"""Partitions by topic."""

_NEXT = {
    None: {"RESERVED"},
    "RESERVED": {"COMMITTED", "ABANDONED"},
    "COMMITTED": {"RELEASED"},
    "ABANDONED": {"RESERVED"},
    "RELEASED": {"RESERVED"},
}


class BooksAreWrong(AssertionError):
    """Violation of a checked claim, about the offsets [start, end) of a partition if ``place`` names them."""

    def __init__(self, what: str, place: tuple[int, int, int] | None = None) -> None:
        super().__init__(what)
        self.place = place


@dataclass(frozen=True)
class Raw:
    """Message as stored on a topic."""

    offset: int
    key: bytes | None
    value: bytes | None
    headers: dict[str, bytes | None]


@dataclass(frozen=True)
class Observed:
    """Batch as seen by an estimator, which had learnt from ``before`` records earlier."""

    before: int
    rows: tuple[Rows, ...]


@dataclass
class Facts:
    """All data to be checked, as read: of the input by partition, of jobs by name."""

    records: dict[int, list[Raw]]
    """Committed records of the input."""
    open_transactions: dict[str, tuple[int, int]]
    """Partitions whose last stable offset is below the end, with both offsets."""
    ledger: list[Raw]
    releases: dict[str, list[Raw]]
    states: dict[str, list[Raw]]
    offsets: dict[str, dict[int, int]]
    """Committed offsets of the consumer groups."""
    observed: dict[str, list[Observed]]
    granularity: dict[str, int]
    """Number of a partition's messages that stay together in a batch."""


@dataclass
class Counts:
    """Numbers of checked items."""

    records: int = 0
    null_records: int = 0
    kinds: set[str] = field(default_factory=set)
    reserved: int = 0
    committed: int = 0
    abandoned: int = 0
    released: int = 0
    states: int = 0
    batches_compared: int = 0
    records_compared: int = 0


def _claim(holds: bool, what: str, place: tuple[int, int, int] | None = None) -> None:
    if not holds:
        raise BooksAreWrong(what, place)


# -- reading ---------------------------------------------------------------


def _consumer(bootstrap: str, isolation: str, group: str = "chaos-check") -> Consumer:
    how: dict[str, Any] = {"bootstrap.servers": bootstrap, "group.id": group, "isolation.level": isolation}
    how |= {"auto.offset.reset": "earliest", "enable.auto.commit": False, "enable.partition.eof": True}
    return Consumer(how | {"allow.auto.create.topics": False, "log_level": 2})


def _ends(bootstrap: str, isolation: IsolationLevel, topics: Topics) -> dict[tuple[str, int], int]:
    """Return end offsets of partitions; if uncommitted records do not count, last stable offsets."""
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})
    offsets: Any = kafka_admin  # its OffsetSpec has no types
    asked = {TopicPartition(t, p): offsets.OffsetSpec.latest() for t, ps in topics.items() for p in ps}
    deadline = time.monotonic() + LIMIT
    while True:
        try:
            answers = admin.list_offsets(asked, isolation_level=isolation, request_timeout=5)
            return {(tp.topic, tp.partition): int(f.result().offset) for tp, f in answers.items()}
        except KafkaException as error:
            # A broker that was struck may not know its partitions yet.
            _claim(time.monotonic() < deadline, f"the ends of {sorted(topics)} are not known: {error}")
            time.sleep(0.2)


def _raw(message: Message) -> Raw:
    headers = {name: _bytes(value) for name, value in cast("list[tuple[str, Any]]", message.headers() or [])}
    return Raw(int(message.offset() or 0), _bytes(message.key()), _bytes(message.value()), headers)


def _bytes(value: Any) -> bytes | None:
    return None if value is None else bytes(value)


def read(bootstrap: str, topics: Topics) -> dict[tuple[str, int], list[Raw]]:
    """Read all committed messages of partitions, up to the last stable offset of each."""
    ends = _ends(bootstrap, IsolationLevel.READ_COMMITTED, topics)
    found: dict[tuple[str, int], list[Raw]] = {each: [] for each in ends}
    left = {each for each, end in ends.items() if end > 0}
    consumer = _consumer(bootstrap, "read_committed")
    try:
        consumer.assign([TopicPartition(topic, p, 0) for topic, p in left])
        deadline = time.monotonic() + LIMIT
        while left:
            message = consumer.poll(1.0)
            _claim(time.monotonic() < deadline, f"{sorted(left)} could not be read")
            if message is None:
                continue
            error, where = message.error(), (str(message.topic()), int(message.partition() or 0))
            if error is None:
                found[where].append(_raw(message))
            elif error.code() == KafkaError._PARTITION_EOF and int(message.offset() or 0) >= ends[where]:
                left.discard(where)
        return found
    finally:
        consumer.close()


def _open_transactions(bootstrap: str, topics: Topics) -> dict[str, tuple[int, int]]:
    stable = _ends(bootstrap, IsolationLevel.READ_COMMITTED, topics)
    ends = _ends(bootstrap, IsolationLevel.READ_UNCOMMITTED, topics)
    return {f"{t}-{p}": (stable[t, p], end) for (t, p), end in ends.items() if stable[t, p] < end}


def _group_offsets(bootstrap: str, group: str, topic: str, partitions: Sequence[int]) -> dict[int, int]:
    consumer = _consumer(bootstrap, "read_committed", group)
    try:
        asked = [TopicPartition(topic, p) for p in partitions]
        answers = consumer.committed(asked, timeout=LIMIT)
        return {tp.partition: tp.offset for tp in answers if tp.offset >= 0}
    finally:
        consumer.close()


def read_facts(
    bootstrap: str,
    topic: str,
    partitions: int,
    granularity: Mapping[str, int],
    observed: Mapping[str, list[Observed]],
) -> Facts:
    """Read all topics of the jobs in ``granularity``."""
    all_partitions = range(partitions)
    topics: dict[str, Sequence[int]] = {topic: all_partitions, f"{topic}.ledger": (0,)}
    for job in granularity:
        topics |= {f"{job}.state": (0,), f"{job}.releases": (0,)}
    messages = read(bootstrap, topics)
    return Facts(
        records={p: messages[topic, p] for p in all_partitions},
        open_transactions=_open_transactions(bootstrap, topics),
        ledger=messages[f"{topic}.ledger", 0],
        releases={job: messages[f"{job}.releases", 0] for job in granularity},
        states={job: messages[f"{job}.state", 0] for job in granularity},
        offsets={job: _group_offsets(bootstrap, job, topic, all_partitions) for job in granularity},
        observed={job: list(observed.get(job, [])) for job in granularity},
        granularity=dict(granularity),
    )


@dataclass(frozen=True)
class Progress:
    """Progress of a job: the kind and batch of its last ledger entry, and the number of later records."""

    last: str | None
    batch: int
    left: int
    kinds: frozenset[str]
    """Kinds of all payloads of the input."""


def progress(bootstrap: str, topic: str, partitions: int, jobs: Sequence[str]) -> dict[str, Progress]:
    """Return the progress of jobs; a partition with an open transaction has many records left."""
    topics: dict[str, Sequence[int]] = {topic: range(partitions), f"{topic}.ledger": (0,)}
    messages = read(bootstrap, topics)
    waits = _open_transactions(bootstrap, topics)
    entries = [_json(m.value) for m in messages[f"{topic}.ledger", 0]]
    offsets = {p: [m.offset for m in messages[topic, p]] for p in range(partitions)}
    kinds = frozenset(_json(m.key)["kind"] for p in range(partitions) for m in messages[topic, p])
    found = {}
    for job in jobs:
        own = [e for e in entries if e.get("job") == job]
        ends: dict[int, int] = {}
        for entry in own:
            ends |= {r["partition"]: r["end"] for r in entry.get("ranges", [])}
        left = sum(sum(o >= ends.get(p, 0) for o in offsets[p]) for p in offsets)
        last = own[-1] if own else {}
        found[job] = Progress(last.get("kind"), last.get("batch", 0), 10**9 if waits else left, kinds)
    return found


# -- descriptions in records' keys -----------------------------------------


def record_key(name: str, fate: str, kind: str, rows: Rows) -> bytes:
    """Describe a record in its key, which a stream of messages does not read.

    ``fate`` is the intention of its producer: "commit", "abort" or "die". ``kind`` is that of its payload,
    and ``rows`` the expected result of decoding.
    """
    text = None if rows is None else base64.b64encode(rows).decode()
    return json.dumps({"name": name, "fate": fate, "kind": kind, "rows": text}).encode()


@cache
def _meaning(key: bytes) -> tuple[dict[str, Any], Rows]:
    printed: dict[str, Any] = json.loads(key)
    return printed, None if printed["rows"] is None else base64.b64decode(printed["rows"])


def _said(record: Raw) -> dict[str, Any]:
    return _meaning(record.key or b"")[0]


# -- checking --------------------------------------------------------------


def _json(value: bytes | None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(value or b"")
    return found


def _sha256(data: bytes | None) -> str:
    return hashlib.sha256(data or b"").hexdigest()


@dataclass
class _Job:
    """Entries of one job, by kind and batch."""

    kinds: dict[str, dict[int, dict[str, Any]]]
    last: str | None

    @property
    def reserved(self) -> dict[int, dict[str, Any]]:
        return self.kinds["RESERVED"]

    @property
    def committed(self) -> dict[int, dict[str, Any]]:
        return self.kinds["COMMITTED"]


def check(facts: Facts) -> Counts:
    """Check all claims; raise :class:`BooksAreWrong` for the first violation."""
    counts = Counts()
    _claim(not facts.open_transactions, f"transactions are open: {facts.open_transactions}")
    _check_records(facts, counts)
    _claim(bool(facts.ledger), "the ledger is empty")
    opened = _json(facts.ledger[0].value)
    _claim(opened["kind"] == "OPENED", "the ledger's first entry is not OPENED")
    jobs = {job: _check_chain(facts, job) for job in facts.granularity}
    named = {_json(m.value).get("job") for m in facts.ledger[1:]}
    _claim(named == set(jobs), f"the ledger has entries of {named}, not of {set(jobs)}")
    _check_charges(opened, jobs)
    for name, job in jobs.items():
        counts.reserved += len(job.reserved)
        counts.committed += len(job.committed)
        counts.abandoned += len(job.kinds["ABANDONED"])
        counts.released += len(job.kinds["RELEASED"])
        _check_ranges(facts, name, job)
        _check_releases(facts, name, job)
        _check_states(facts, name, job, counts)
        _check_observed(facts, name, job, counts)
    return counts


def _check_records(facts: Facts, counts: Counts) -> None:
    """Check that no record of an aborted transaction is read, and none twice."""
    names = set()
    for p, records in facts.records.items():
        for record in records:
            printed = _said(record)
            _claim(printed["fate"] == "commit", f"record {printed['name']} was aborted, and is read at {p}")
            _claim(printed["name"] not in names, f"record {printed['name']} is there twice")
            names.add(printed["name"])
            counts.records += 1
            counts.null_records += printed["rows"] is None
            counts.kinds.add(printed["kind"])


def _check_chain(facts: Facts, job: str) -> _Job:
    """Check each entry's hash of the job's previous entry, and the order of kinds.

    A leader writes every entry under its fence, so each (batch, kind) is there once: a duplicate or a
    void entry would be a write of a fenced leader.
    """
    kinds: dict[str, dict[int, dict[str, Any]]] = {
        kind: {} for kind in ("RESERVED", "COMMITTED", "ABANDONED", "RELEASED")
    }
    head, last, batch = _sha256(facts.ledger[0].value), None, 0
    for message in facts.ledger[1:]:
        entry = _json(message.value)
        if entry["job"] != job:
            continue
        where = f"{job}: entry {message.offset}, {entry['kind']} {entry['batch']}"
        _claim(entry["previous"] == head, f"{where} does not follow the job's entry before it")
        _claim(entry["kind"] in _NEXT[last], f"{where} follows {last}")
        batch += entry["kind"] == "RESERVED"
        _claim(entry["batch"] == batch, f"{where} should be of batch {batch}")
        kinds[entry["kind"]][batch] = entry
        head, last = _sha256(message.value), entry["kind"]
    return _Job(kinds, last)


def _check_charges(opened: dict[str, Any], jobs: Mapping[str, _Job]) -> None:
    """Check that no record is charged more than the cap, by all jobs together."""
    cap = [Fraction(str(opened["cap"][name])) for name in ("epsilon", "delta")]
    steps: dict[int, dict[int, list[Fraction]]] = {}
    for job in jobs.values():
        for entry in job.reserved.values():
            charge = [Fraction(str(entry["charge"][name])) for name in ("epsilon", "delta")]
            _claim(min(charge) >= 0 < charge[0], f"a charge of {charge}")
            for r in entry["ranges"]:
                of_partition = steps.setdefault(r["partition"], {})
                for offset, sign in ((r["start"], 1), (r["end"], -1)):
                    step = of_partition.setdefault(offset, [Fraction(0), Fraction(0)])
                    step[:] = [a + sign * b for a, b in zip(step, charge, strict=True)]
    for p, of_partition in steps.items():
        total = [Fraction(0), Fraction(0)]
        for offset in sorted(of_partition):
            total = [a + b for a, b in zip(total, of_partition[offset], strict=True)]
            over = any(a > b for a, b in zip(total, cap, strict=True))
            _claim(not over, f"record {offset} of partition {p} is charged {total}, the cap is {cap}")


def _check_ranges(facts: Facts, name: str, job: _Job) -> None:
    """Check that reservations tile each partition from its start, and count committed records correctly."""
    ends = dict.fromkeys(facts.records, 0)
    offsets = {p: [record.offset for record in records] for p, records in facts.records.items()}
    times = {p: dict.fromkeys(of, 0) for p, of in offsets.items()}
    for batch, entry in job.reserved.items():
        for r in entry["ranges"]:
            p, start, end = r["partition"], r["start"], r["end"]
            where = f"{name}: batch {batch}, partition {p}"
            _claim(start == ends[p] < end, f"{where} is [{start}, {end}), the one before ends at {ends[p]}")
            ends[p] = end
            inside = [o for o in offsets[p] if start <= o < end]
            right = len(inside) == r["count"]
            _claim(right, f"{where} counts {r['count']} of {len(inside)} records", (p, start, end))
            for offset in inside:
                times[p][offset] += 1
    for p, of in times.items():
        wrong = {o: n for o, n in of.items() if n != (o < ends[p])}
        _claim(not wrong, f"{name}: records of partition {p} and how often they were reserved: {wrong}")


def _check_releases(facts: Facts, name: str, job: _Job) -> None:
    """Check one RELEASED and one release for each committed batch, in order, with cumulative records."""
    _claim(job.last in (None, "RELEASED", "ABANDONED"), f"{name}: the ledger ends with {job.last}")
    released = job.kinds["RELEASED"]
    _claim(list(released) == list(job.committed), f"{name}: RELEASED does not follow COMMITTED")
    releases = [_json(m.value) for m in facts.releases[name]]
    batches = [release["batch"] for release in releases]
    _claim(all(a < b for a, b in pairwise(batches)), f"{name}: releases of batches {batches}")
    lost = sorted(set(released) - set(batches))
    _claim(not lost, f"{name}: RELEASED without a release: batches {lost}")
    _claim(batches == list(released), f"{name}: releases without RELEASED: {set(batches) - set(released)}")
    records = 0
    for message, release in zip(facts.releases[name], releases, strict=True):
        batch = release["batch"]
        records += sum(r["count"] for r in job.reserved[batch]["ranges"])
        same = _sha256(message.value) == released[batch]["release_digest"]
        _claim(same, f"{name}: release {batch} is not what RELEASED names")
        _claim(release["stream"] == name, f"{name}: a release of {release['stream']}")
        count = release["records"]
        _claim(count == records, f"{name}: release {batch} says {count} records, its batches have {records}")


@dataclass(frozen=True)
class _State:
    digest: str
    batch: int
    positions: dict[int, int]
    release: bytes


def _whole_states(messages: Sequence[Raw]) -> list[_State]:
    """Return all states whose chunks remain; compaction may have deleted chunks of older states."""
    chunks: dict[bytes, dict[int, bytes]] = {}
    found = []
    for m in messages:
        digest, count = m.headers["digest"] or b"", int(m.headers["chunks"] or b"")
        of_state = chunks.setdefault(digest, {})
        of_state[int(m.key or b"")] = m.value or b""
        if len(of_state) == count:
            data = b"".join(of_state[i] for i in range(count))
            size = int.from_bytes(data[:4], "big")
            header, body = json.loads(data[4 : 4 + size]), data[4 + size :]
            _claim(_sha256(data) == digest.decode(), "a state is not what its header says")
            positions = {int(p): int(o) for p, o in header["positions"].items()}
            found.append(_State(_sha256(data), header["batch"], positions, body[header["state_bytes"] :]))
    return found


def _check_states(facts: Facts, name: str, job: _Job, counts: Counts) -> None:
    """Check that states match COMMITTED entries, including the last, and positions match batch ends."""
    states = _whole_states(facts.states[name])
    counts.states += len(states)
    order = [state.batch for state in states]
    _claim(order == sorted(set(order)), f"{name}: states of batches {order}")
    if not job.committed:
        _claim(not states, f"{name}: a state, and nothing is committed")
        return
    _claim(bool(states), f"{name}: COMMITTED without a state: no state is whole")
    releases = {_json(m.value)["batch"]: m.value for m in facts.releases[name]}
    for state in states:
        _claim(state.batch in job.committed, f"{name}: a state of batch {state.batch} without COMMITTED")
        same = job.committed[state.batch]["state_digest"] == state.digest
        _claim(same, f"{name}: the state of batch {state.batch} is not the one that COMMITTED names")
        same = releases[state.batch] == state.release
        _claim(same, f"{name}: release {state.batch} is not the one in its state")
    last, end = max(job.committed), states[-1].batch
    _claim(end == last, f"{name}: COMMITTED without its state: batch {last}, the states end at {end}")
    ends = dict.fromkeys(facts.records, 0)
    for batch, entry in job.reserved.items():
        if batch <= last:
            ends |= {r["partition"]: r["end"] for r in entry["ranges"]}
    positions = dict.fromkeys(facts.records, 0) | states[-1].positions
    _claim(positions == ends, f"{name}: the last state's positions {positions}, its batches' ends {ends}")
    offsets = facts.offsets[name]
    _claim(offsets == states[-1].positions, f"{name}: group offsets {offsets}, positions {positions}")


def _check_observed(facts: Facts, name: str, job: _Job, counts: Counts) -> None:
    """Check that an estimator saw exactly its reservation's records, each in its place."""
    by_start: dict[int, int] = {}
    before = 0
    for batch in job.committed:
        by_start[before] = batch
        before += sum(r["count"] for r in job.reserved[batch]["ranges"])
    seen = set()
    for observed in facts.observed[name]:
        batch = by_start.get(observed.before, 0)
        _claim(batch > 0, f"{name}: a batch was computed after {observed.before} records that no entry names")
        expected = _expected(facts, job.reserved[batch], facts.granularity[name])
        count = len(observed.rows)
        _claim(len(expected) == count, f"{name}: batch {batch} had {count} records of {len(expected)}")
        for place, (record, rows) in enumerate(zip(expected, observed.rows, strict=True)):
            known = f"offset {record.offset}, {_said(record)['name']}, {_said(record)['kind']}"
            same = _meaning(record.key or b"")[1] == rows
            _claim(same, f"{name}: batch {batch} had another record at place {place}: {known}")
        seen.add(batch)
        counts.batches_compared += 1
        counts.records_compared += len(expected)
    unseen = sorted(set(job.committed) - seen)
    _claim(not unseen, f"{name}: committed batches that no estimator has computed: {unseen}")


def _expected(facts: Facts, entry: dict[str, Any], granularity: int) -> list[Raw]:
    """Return the records of a reservation, round-robin over its partitions in offset order."""
    turns = []
    for r in sorted(entry["ranges"], key=lambda r: r["partition"]):
        inside = [m for m in facts.records[r["partition"]] if r["start"] <= m.offset < r["end"]]
        turns += [(i // granularity, r["partition"], i, m) for i, m in enumerate(inside)]
    return [m for _, _, _, m in sorted(turns, key=lambda turn: turn[:3])]
