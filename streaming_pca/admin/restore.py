"""Import of a backup: its missing parts are written to the topics.

All missing parts are written in one transaction. An interrupted import has therefore written nothing, and the
next one starts over: its producer's ``init_transactions`` aborts the open transaction of the first. Existing
contents must agree with the backup. A ledger that is a prefix of the backup (OPENED alone, after `topics
create`) is continued; a ledger that contains the whole backup is not changed, so importing is idempotent.

An old backup is worse than none: later batches would get a second result. :func:`_check_newest` looks for
traces of such batches before writing:

- releases on the releases topics;
- committed offsets of consumer groups: the positions of streams, with the hash of the ledger entry written
  in the same transaction (:mod:`streaming_pca.admin.traces`).

All of these can be lost together with the ledger; a stale backup then goes undetected. A reservation leaves
no trace before its batch is committed. It does not need one, because its result was never published.
"""

from __future__ import annotations

import hashlib
from collections.abc import Generator, Iterable, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from streaming_pca.admin.backup import Backup, BackupNotVerified, read_backup, verified_ledger
from streaming_pca.admin.traces import group_offsets
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.errors import UserError
from streaming_pca.privacy.ledger.entries import Opened, Released, decode_entry
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.privacy.ledger.verify import verify_log
from streaming_pca.service.commit.checkpoint import published
from streaming_pca.service.commit.ledger_writer import group_of_charges
from streaming_pca.service.commit.snapshot import decoded, read_topic, replay
from streaming_pca.service.commit.state_topic import decode_checkpoint, find_state, send_state
from streaming_pca.service.errors import SessionLost, StreamRefused, TopicError
from streaming_pca.service.kafka.clients import ask_broker, transactional_producer
from streaming_pca.service.kafka.transaction import Transaction, discard
from streaming_pca.service.topics.checks import broker_settings
from streaming_pca.service.topics.find import (
    describe_topics,
    ensure_topics,
    existing_topics,
    find_topics,
    input_topic_id,
    releases_topic,
    state_topic,
    written_topics,
)
from streaming_pca.text import first_line

_BYTES_A_SECOND = 2 * 2**20  # assumed speed of writing, far below the speed of a broker on the same continent
_TRANSACTION_MS = 900_000  # kafka's default of ``transaction.max.timeout.ms``
_OLD = (
    "the backup is old, and importing it would charge and use records a second time. Import the newest backup"
)


@dataclass(frozen=True)
class Restored:
    """Result of an import: created topics, written entries, and jobs whose states were written.

    ``newer`` entries are beyond the backup; ``lost_releases`` are in the ledger but not on the topics.
    """

    backup: Backup
    created: tuple[str, ...]
    entries: int
    states: tuple[str, ...]
    newer: int
    lost_releases: int


@dataclass(frozen=True)
class _Missing:
    entries: tuple[bytes, ...]
    states: dict[str, bytes]
    newer: int


def import_backup(
    kafka: KafkaSettings, streams: Sequence[StreamSettings], path: Path, replication: int | None = None
) -> Restored:
    """Restore the missing parts of a backup, and verify the result.

    ``streams`` are configured to read its input topic; new topics have ``replication``, or the input's.
    """
    backup = read_backup(path)
    ledger = verified_ledger(backup, str(path))
    stream = streams[0]
    if backup.topic != stream.input:
        raise UserError(f"{path}: is a backup of input topic {backup.topic!r}, not of {stream.input!r}")
    current = input_topic_id(kafka, stream)
    if current is None:
        raise TopicError(
            f"topic {stream.input!r} is missing: the backup's ledger does not cover a topic that is "
            "created again"
        )
    if current != backup.topic_id:
        raise StreamRefused(
            f"{path}: is a backup of topic id {backup.topic_id}, but {stream.input!r} now has {current}: it "
            "is another topic. On another cluster (kafka.bootstrap_servers), or created again? Open a new "
            "ledger with `streaming-pca topics create` only if its records are other data, not copies"
        )
    patient = _with_time_to_write(kafka, backup)
    # The same id as for opening ledgers, so another process that opens or imports this one is fenced.
    producer = transactional_producer(patient, f"streaming-pca.{backup.topic_id}")
    names = [each.name for each in streams]
    try:
        # Aborts the open transaction of a killed import, which would block every read below.
        producer.init_transactions()
        lost = _check_newest(kafka, backup, ledger, names)
        created = _create(kafka, streams, backup, ledger, replication)
        for each in streams:
            find_topics(kafka, each)
        missing = _compare(kafka, backup)
        if missing.entries or missing.states:
            # Workers may have written until they were fenced, so check again.
            _fence(kafka, backup, {*ledger.jobs, *names})
            lost = _check_newest(kafka, backup, ledger, names)
            missing = _compare(kafka, backup)
            _write(patient, producer, backup, missing)
            _read_back(kafka, backup)
    except KafkaError as error:
        raise SessionLost(
            f"the import was cut short ({first_line(error)}): it has written all or nothing. Import again"
        ) from error
    finally:
        discard(producer)
    return Restored(backup, tuple(created), len(missing.entries), tuple(missing.states), missing.newer, lost)


def _create(
    kafka: KafkaSettings,
    streams: Sequence[StreamSettings],
    backup: Backup,
    ledger: Ledger,
    replication: int | None,
) -> list[str]:
    """Create missing topics of the backup's jobs and the configured streams."""
    if replication is None:
        (topic,) = describe_topics(kafka, [backup.topic], backup.topic)
        replication = min(len(p["replica_nodes"]) for p in topic["partitions"])
    wanted: dict[str, NewTopic] = {}
    for stream in streams:
        wanted |= {topic.name: topic for topic in written_topics(stream, replication)}
    for name, job in ledger.jobs.items():
        if not job.batch:
            continue
        # Estimate the sizes of an unconfigured stream from its last state.
        state = backup.states.get(name, b"")
        checkpoint = decode_checkpoint(state)[0] if state else None
        release = len(checkpoint.release) if checkpoint else 0
        deltas = checkpoint.users.deltas.values() if checkpoint and checkpoint.users else ()
        commit = len(state) + 2 * release + 2**16 + max((part.size for part in deltas), default=0)
        for topic in (
            state_topic(f"{name}.state", replication, commit),
            releases_topic(f"{name}.releases", replication, 2 * release),
        ):
            wanted.setdefault(topic.name, topic)
    return ensure_topics(kafka, wanted.values())


def _check_newest(kafka: KafkaSettings, backup: Backup, ledger: Ledger, streams: Iterable[str]) -> int:
    """Refuse a backup older than some trace; return the number of lost releases.

    ``streams`` are configured to read the input but may be unknown to the backup.
    """
    if sum(1 for _ in _committed(kafka, f"{backup.topic}.ledger")) > len(backup.entries):
        return 0  # the ledger itself is newer; it is compared with the backup later
    released = [e for e in map(decode_entry, backup.entries) if isinstance(e, Released)]
    names = sorted({*ledger.jobs, *streams})
    seen = set()
    for name in names:
        topic, known = f"{name}.releases", {e.release_digest for e in released if e.job == name}
        # One at a time: all releases of a stream may be larger than memory.
        with closing(_committed(kafka, topic)) as values:
            for value in values:
                digest = hashlib.sha256(value).hexdigest()
                if digest not in known and (number := published(f"topic {topic!r}", value, name)):
                    what = f"topic {topic!r} has a release of batch {number} that the backup does not contain"
                    raise StreamRefused(f"{what}: {_OLD}")
                seen.add(digest)
    _check_groups(kafka, backup, ledger)
    return sum(e.topic_id == backup.topic_id and e.release_digest not in seen for e in released)


def _check_groups(kafka: KafkaSettings, backup: Backup, ledger: Ledger) -> None:
    """Refuse a backup older than the offsets of the streams' and charges' groups."""
    charges = group_of_charges(backup.topic, "")
    known = {hashlib.sha256(entry).hexdigest() for entry in backup.entries}
    ends = {name: decode_checkpoint(state)[0].positions for name, state in backup.states.items()}
    for found in group_offsets(kafka, backup.topic, ledger.jobs):
        if not (found.is_of_job or found.kind):
            continue  # a consumer of another program
        name, end = found.group, ends.get(found.group, {}).get(found.partition, 0)
        if not name.startswith(charges) and found.offset > end:
            foreign = f". Or did another consumer use {name!r} as its group? Delete its offsets"
            raise StreamRefused(
                f"stream {name!r} has committed offset {found.offset} of partition {found.partition}, "
                f"the backup ends at {end}: {_OLD}{'' if found.kind else foreign}"
            )
        if found.kind and found.digest not in known:
            raise StreamRefused(
                f"job {name.removeprefix(charges)!r} has written {found.kind} to the ledger (trace: group "
                f"{name!r}), an entry that the backup does not contain: {_OLD}"
            )


def _committed(kafka: KafkaSettings, topic: str) -> Generator[bytes, None, None]:
    """Yield the committed messages of a topic; none if it is missing."""
    if existing_topics(kafka, [topic]):
        for _, data in read_topic(kafka, topic):
            yield data


def _compare(kafka: KafkaSettings, backup: Backup) -> _Missing:
    """Return the parts to write; raise StreamRefused if the topics have other contents."""
    there = tuple(_committed(kafka, f"{backup.topic}.ledger"))
    common = min(len(there), len(backup.entries))
    if there[:common] != backup.entries[:common]:
        _refuse_ledger(f"{backup.topic}.ledger", there, backup.entries)
    newer = len(there) - common
    jobs = replay(there if newer else backup.entries, Ledger(backup.topic_id)).jobs
    states: dict[str, bytes] = {}
    for name, job in sorted(jobs.items()):
        if not job.last_committed:
            continue
        topic = f"{name}.state"
        found = find_state(kafka, topic, job.state_digest)
        own = backup.states.get(name, b"")
        # A running worker may have written a later state.
        if found.is_whole and (newer or found.last == job.state_digest):
            continue
        if found.last == job.state_digest and found.data is not None:
            raise StreamRefused(
                f"state topic {topic!r} has lost a part of its table of users: delete that topic, "
                "and import again"
            )
        if found.last:
            raise StreamRefused(
                f"state topic {topic!r} is not empty, and its last state differs from the state of batch "
                f"{job.last_committed}, the last one in the ledger: one of the two is old. "
                "Import the newest backup"
            )
        if hashlib.sha256(own).hexdigest() != job.state_digest:
            raise StreamRefused(
                f"state topic {topic!r} is empty, the ledger continues to batch {job.last_committed}, "
                "and the backup's state is older: import a newer backup"
            )
        states[name] = own
    return _Missing(backup.entries[len(there) :], states, newer)


def _refuse_ledger(topic: str, there: tuple[bytes, ...], entries: tuple[bytes, ...]) -> None:
    number = next(i for i, (a, b) in enumerate(zip(there, entries, strict=False)) if a != b)
    if number == 0 and len(there) == 1 and isinstance(next(decoded(there), None), Opened):
        raise StreamRefused(
            f"ledger topic {topic!r} was opened differently from the backup's (another cap, filter or "
            "topic id), and contains nothing else: delete that topic, and import again"
        )
    raise StreamRefused(
        f"ledger topic {topic!r} is not empty, and differs from the backup from entry {number} on: "
        "a backup completes an empty ledger, or a part of the same one"
    )


def _fence(kafka: KafkaSettings, backup: Backup, names: set[str]) -> None:
    """Fence the leaders of these streams, and abort their open transactions."""
    for name in sorted(names):
        producer = transactional_producer(kafka, f"streaming-pca.{backup.topic_id}.{name}")
        try:
            producer.init_transactions()
        except KafkaError as error:
            raise SessionLost(f"shutting out the worker of {name!r} failed: {first_line(error)}") from error
        finally:
            discard(producer)


def _write(kafka: KafkaSettings, producer: KafkaProducer, backup: Backup, missing: _Missing) -> None:
    transaction = Transaction(producer, kafka)
    try:
        for name, data in missing.states.items():
            checkpoint, digest = decode_checkpoint(data)
            index = checkpoint.users
            parts = {} if index is None else index.split(backup.users[name])
            send_state(transaction, f"{name}.state", data, digest, checkpoint.batch, parts)
        for data in missing.entries:
            job = getattr(decode_entry(data), "job", None)
            key = None if job is None else job.encode()
            transaction.send(f"{backup.topic}.ledger", data, key)
        transaction.commit()
    except BaseException:
        # An open transaction would block readers of the topics until it times out.
        with suppress(Exception):
            transaction.abort()
        raise


def _with_time_to_write(kafka: KafkaSettings, backup: Backup) -> KafkaSettings:
    """Return settings with time for a transaction with a whole backup."""
    with ask_broker(kafka, "the broker did not describe itself") as admin:
        _, settings = broker_settings(admin)
    most = int(settings.get("transaction.max.timeout.ms", _TRANSACTION_MS))
    written = (backup.entries, backup.states.values(), backup.users.values())
    size = sum(len(data) for of_kind in written for data in of_kind)
    needed = 60_000 + size * 1000 // _BYTES_A_SECOND
    return kafka.model_copy(update={"transaction_timeout_ms": min(needed, most)})


def _read_back(kafka: KafkaSettings, backup: Backup) -> None:
    """Compare and verify the topics' contents, perhaps while a worker already continues."""
    missing = _compare(kafka, backup)
    if missing.entries or missing.states:
        raise SessionLost("what was written cannot be read back: import again")
    entries = enumerate(_committed(kafka, f"{backup.topic}.ledger"))
    report = verify_log(entries, topic_id=backup.topic_id)
    if not report.ok:
        raise BackupNotVerified(
            f"ledger {backup.topic + '.ledger'!r}, as it is after the import,", report.problems
        )
