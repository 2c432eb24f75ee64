"""A copy of ledger and states, brought back: `streaming-pca import`.

Everything that is missing goes into one transaction, so an import that was cut
short has written nothing, and the next one starts anew; its producer's
``init_transactions`` ends what the first left open. What is there already must
be the copy's: a ledger that is the copy's beginning (OPENED alone, after
`topics create`) is continued, one that holds the whole copy is left alone, so
to import twice is to import once.

An old copy is worse than none: batches that were answered after it would be
answered again. :mod:`.copy_age` looks for them before anything is written.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kafka import KafkaProducer
from kafka.admin import NewTopic
from kafka.errors import KafkaError

from streaming_pca.privacy.entries import Opened, decode_entry
from streaming_pca.privacy.ledger import Ledger
from streaming_pca.privacy.verify import verify_log
from streaming_pca.service.backup import (
    CopyNotVerified,
    committed_values,
    find_state,
    replay,
    verified_ledger,
)
from streaming_pca.service.clients import BrokerUnreachable, admin_client, transactional_producer
from streaming_pca.service.copy_age import check_newest
from streaming_pca.service.copy_file import Copy, CopyError, read_copy
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.kafka.transaction import Transaction
from streaming_pca.service.state_topic import send_state
from streaming_pca.service.topic_checks import broker_settings
from streaming_pca.service.topics import (
    TopicError,
    describe,
    ensure_topics,
    find_topics,
    input_topic_id,
    releases_topic,
    state_topic,
    written_topics,
)
from streaming_pca.settings import KafkaSettings, StreamSettings
from streaming_pca.wire import decode_checkpoint

__all__ = ["Restored", "import_copy"]

_PATIENCE_SECONDS = 60.0
_BYTES_A_SECOND = 2 * 2**20
"""Far less than a broker on the same continent takes."""
_TRANSACTION_MS = 900_000
"""Kafka's own ``transaction.max.timeout.ms``."""


@dataclass(frozen=True)
class Restored:
    """What an import did.

    Attributes
    ----------
    copy : Copy
    created : tuple of str
        Topics that were missing.
    entries : int
        Entries written, of those in the copy.
    states : tuple of str
        Jobs whose states were written.
    newer : int
        Entries that the ledger holds beyond the copy.
    lost_releases : int
        Releases that the ledger names and no topic has.
    """

    copy: Copy
    created: tuple[str, ...]
    entries: int
    states: tuple[str, ...]
    newer: int
    lost_releases: int


@dataclass(frozen=True)
class _Missing:
    """What of a copy is not in the topics."""

    entries: tuple[bytes, ...]
    states: dict[str, bytes]
    newer: int


def import_copy(
    kafka: KafkaSettings, streams: Sequence[StreamSettings], path: Path, replication: int | None = None
) -> Restored:
    """Bring back what is missing of a copy, and verify the whole.

    Parameters
    ----------
    kafka : KafkaSettings
    streams : sequence of StreamSettings
        Configured streams that read the copy's input topic; one at least.
    path : Path
        Of the copy.
    replication : int, optional
        Of topics that are created; the input topic's when not given.

    Raises
    ------
    CopyError
        If the file is no copy of this input topic's ledger.
    CopyNotVerified
        If the copy, or what is in the topics at the end, does not hold together.
    StreamRefused
        If the input topic has another life, the copy is not the newest, or the
        topics hold something else.
    TopicError
        If the input topic is missing, or a topic is kept in the wrong way.
    """
    copy = read_copy(path)
    ledger = verified_ledger(copy, str(path))
    stream = streams[0]
    if copy.topic != stream.input:
        raise CopyError(f"{path}: is of input topic {copy.topic!r}, not of {stream.input!r}")
    current = input_topic_id(kafka, stream)
    if current is None:
        raise TopicError(
            f"topic {stream.input!r} is missing: a ledger says nothing of a topic that is created anew"
        )
    if current != copy.topic_id:
        raise StreamRefused(
            f"{path}: is of topic id {copy.topic_id}, but {stream.input!r} is {current} now: it was deleted "
            "and created again, so its records are other data. Open a new ledger with "
            "`streaming-pca topics create`"
        )
    patient = _patient(kafka, copy)
    # Under the id that opens ledgers: whoever opens or imports this one is shut out.
    producer = transactional_producer(patient, f"streaming-pca.{copy.topic_id}")
    try:
        return _complete(kafka, patient, streams, copy, ledger, producer, replication)
    except KafkaError as error:
        raise SessionLost(
            f"the import was cut short ({_one_line(error)}): it has written all or nothing. Import again"
        ) from error
    finally:
        producer.close(timeout=5)


def _complete(
    kafka: KafkaSettings,
    patient: KafkaSettings,
    streams: Sequence[StreamSettings],
    copy: Copy,
    ledger: Ledger,
    producer: KafkaProducer,
    replication: int | None,
) -> Restored:
    # What an import that was killed left open would hold up all that is read here.
    producer.init_transactions()
    names = [each.name for each in streams]
    lost = check_newest(kafka, copy, ledger, names)
    created = _create(kafka, streams, copy, ledger, replication)
    for each in streams:
        find_topics(kafka, each)
    missing = _compare(kafka, copy)
    if missing.entries or missing.states:
        # Whoever wrote until now does not any more, and what it wrote last is seen by the second look.
        _fence(kafka, copy, {*ledger.jobs, *names})
        lost = check_newest(kafka, copy, ledger, names)
        missing = _compare(kafka, copy)
        _write(patient, producer, copy, missing)
        _read_back(kafka, copy)
    return Restored(copy, tuple(created), len(missing.entries), tuple(missing.states), missing.newer, lost)


def _create(
    kafka: KafkaSettings,
    streams: Sequence[StreamSettings],
    copy: Copy,
    ledger: Ledger,
    replication: int | None,
) -> list[str]:
    """Create what is missing of the topics that the copy's jobs and the configured streams write to."""
    if replication is None:
        (topic,) = describe(kafka, [copy.topic], copy.topic)
        replication = min(len(p["replica_nodes"]) for p in topic["partitions"])
    wanted: dict[str, NewTopic] = {}
    for stream in streams:
        wanted |= {topic.name: topic for topic in written_topics(stream, replication)}
    for name, job in ledger.jobs.items():
        if not job.batch:
            continue
        # Of a stream that is not configured here, only its last state is known.
        state = copy.states.get(name, b"")
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


# -- what is missing -----------------------------------------------------------


def _compare(kafka: KafkaSettings, copy: Copy) -> _Missing:
    """What of the copy must be written; StreamRefused if the topics hold anything else."""
    there = committed_values(kafka, f"{copy.topic}.ledger")
    common = min(len(there), len(copy.entries))
    if there[:common] != copy.entries[:common]:
        _refuse_ledger(f"{copy.topic}.ledger", there, copy.entries)
    newer = len(there) - common
    jobs = replay(there if newer else copy.entries, Ledger(copy.topic_id)).jobs
    states: dict[str, bytes] = {}
    for name, job in sorted(jobs.items()):
        if not job.last_committed:
            continue
        topic = f"{name}.state"
        found = find_state(kafka, topic, job.state_digest)
        own = copy.states.get(name, b"")
        # A worker that goes on may have written a later one by now.
        if found.is_whole(job.state_digest) and (newer or found.last == job.state_digest):
            continue
        if found.last == job.state_digest and found.data is not None:
            raise StreamRefused(
                f"state topic {topic!r} has lost a part of its table of users: delete that topic, "
                "and import again"
            )
        if found.last:
            raise StreamRefused(
                f"state topic {topic!r} is not empty, and its last state is not that of batch "
                f"{job.last_committed}, with which the ledger ends: one of the two is old. "
                "Import the newest copy"
            )
        if hashlib.sha256(own).hexdigest() != job.state_digest:
            raise StreamRefused(
                f"state topic {topic!r} is empty, the ledger goes on to batch {job.last_committed}, "
                "and the copy's state is older: import a newer copy"
            )
        states[name] = own
    return _Missing(copy.entries[len(there) :], states, newer)


def _refuse_ledger(topic: str, there: tuple[bytes, ...], entries: tuple[bytes, ...]) -> None:
    number = next(i for i, (a, b) in enumerate(zip(there, entries, strict=False)) if a != b)
    if number == 0 and len(there) == 1 and isinstance(decode_entry(there[0]), Opened):
        raise StreamRefused(
            f"ledger topic {topic!r} was opened otherwise than the copy's (another cap, filter or topic id), "
            "and holds nothing else: delete that topic, and import again"
        )
    raise StreamRefused(
        f"ledger topic {topic!r} is not empty, and differs from the copy from entry {number} on: "
        "a copy completes an empty ledger, or a part of the same one"
    )


# -- writing it ----------------------------------------------------------------


def _fence(kafka: KafkaSettings, copy: Copy, names: set[str]) -> None:
    """Shut out the workers that lead these streams, and resolve what they left open."""
    for name in sorted(names):
        producer = transactional_producer(kafka, f"streaming-pca.{copy.topic_id}.{name}")
        try:
            producer.init_transactions()
        except KafkaError as error:
            raise SessionLost(f"shutting out the worker of {name!r} failed: {_one_line(error)}") from error
        finally:
            producer.close(timeout=2)


def _write(kafka: KafkaSettings, producer: KafkaProducer, copy: Copy, missing: _Missing) -> None:
    """Entries and states, all or nothing."""
    transaction = Transaction(producer, kafka)
    try:
        for name, data in missing.states.items():
            checkpoint, digest = decode_checkpoint(data)
            index = checkpoint.users
            parts = {} if index is None else index.split(copy.users[name])
            send_state(transaction, f"{name}.state", data, digest, checkpoint.batch, parts)
        for data in missing.entries:
            job = getattr(decode_entry(data), "job", None)
            key = None if job is None else job.encode()
            transaction.send(f"{copy.topic}.ledger", data, key)
        transaction.commit()
    except BaseException:
        # Else the topics could not be read until the transaction times out.
        with suppress(Exception):
            transaction.abort()
        raise


def _patient(kafka: KafkaSettings, copy: Copy) -> KafkaSettings:
    """Return settings with time for a transaction that writes all of a copy."""
    admin = admin_client(kafka)
    try:
        _, settings = broker_settings(admin)
    except KafkaError as error:
        raise BrokerUnreachable(f"the broker would not describe itself: {_one_line(error)}") from None
    finally:
        admin.close()
    most = int(settings.get("transaction.max.timeout.ms", _TRANSACTION_MS))
    written = (copy.entries, copy.states.values(), copy.users.values())
    size = sum(len(data) for of_kind in written for data in of_kind)
    needed = 60_000 + size * 1000 // _BYTES_A_SECOND
    return kafka.model_copy(update={"transaction_timeout_ms": min(needed, most)})


def _read_back(kafka: KafkaSettings, copy: Copy) -> None:
    """Compare and verify what the topics hold now; a worker may have gone on already."""
    missing = _compare(kafka, copy)
    if missing.entries or missing.states:
        raise SessionLost("what was written cannot be read back: import again")
    entries = committed_values(kafka, f"{copy.topic}.ledger")
    report = verify_log(enumerate(entries), topic_id=copy.topic_id)
    if not report.ok:
        raise CopyNotVerified(
            f"ledger {copy.topic + '.ledger'!r}, as it is after the import,", report.problems
        )


def _one_line(error: BaseException) -> str:
    return f"{type(error).__name__} {' '.join(str(error).split())[:200]}".strip()
