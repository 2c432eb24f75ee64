"""Status of streams, read from their topics: public quantities and published values."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
    NotCoordinatorError,
)

from streaming_pca.admin.ledger import describe_charge, describe_left, topic_id_of
from streaming_pca.admin.watch import last_release
from streaming_pca.config.settings import KafkaSettings, Settings, StreamSettings
from streaming_pca.data.release import Release
from streaming_pca.estimators.doubts import resolved_components
from streaming_pca.privacy.ledger.entries import encode_entry
from streaming_pca.privacy.ledger.ledger import JobLedger, Ledger
from streaming_pca.service.commit.log_reader import LedgerLog
from streaming_pca.service.errors import StreamRefused, TopicError
from streaming_pca.service.kafka.clients import (
    admin_client,
    broker_failed,
    first_offsets,
    last_offsets,
    reading_consumer,
)

__all__ = ["describe_status"]

T = TypeVar("T")

_NO_COORDINATOR = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)


def describe_status(all_settings: Sequence[Settings]) -> list[dict[str, Any]]:
    """Describe the status of each stream of a file as plain data.

    Parameters
    ----------
    all_settings : sequence of Settings
        One per stream, all with the same broker.

    Returns
    -------
    list of dict
        ``stream``, ``input`` and ``problem``; and, unless there is a problem:
        ``standing``; ``leader`` (None where the broker does not tell);
        ``batches``; ``records``; ``last_release``, with its batch's outcome and its
        doubts; ``accuracy``, that release's figures for its variances and errors; ``counts``, its
        batch's noisy counts of null and clipped records, None without diagnostics;
        ``lag``, in offsets, some of which are transaction markers; ``charged``, the largest
        charge of any record, by this stream and by all jobs; ``left``, the rest of the cap
        for the record with the largest charge; ``cap``, ``filter``; ``ledger``, its size.

    Raises
    ------
    BrokerUnreachable
    """
    kafka = all_settings[0].kafka
    reader = _Reader(kafka)
    try:
        return [reader.describe(settings) for settings in all_settings]
    except KafkaError as error:
        raise broker_failed(kafka, "the broker failed in the midst", error) from None
    finally:
        reader.close()


@dataclass(frozen=True)
class _Replay:
    ledger: Ledger
    entries: int
    n_bytes: int


class _Reader:
    """Reader that shares ledgers and consumer groups between the streams it describes."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._admin: KafkaAdminClient = admin_client(kafka)
        try:
            self._consumer: KafkaConsumer = reading_consumer(kafka)
        except BaseException:
            self._admin.close()
            raise
        self._replays: dict[str, _Replay] = {}
        self._members: dict[str, list[dict[str, Any]] | None] = {}

    def close(self) -> None:
        self._consumer.close(autocommit=False)
        self._admin.close()

    def describe(self, settings: Settings) -> dict[str, Any]:
        stream = settings.stream
        facts: dict[str, Any] = {"stream": stream.name, "input": stream.input, "problem": None}
        try:
            replay = self._replay(stream.input)
            job = replay.ledger.job(stream.name)
            release = last_release(self._kafka, stream.releases_topic)
        except (TopicError, StreamRefused) as error:
            return facts | {"problem": str(error)}
        return facts | {
            "standing": str(job.standing),
            "leader": self._leader(settings.worker.group, stream.state_topic),
            "batches": {"committed": job.committed, "abandoned": job.abandoned, "released": job.released},
            "records": job.records_committed,
            "last_release": release and _described(release),
            "accuracy": release and release.accuracy,
            "counts": release and (release.counts or None),
            "lag": self._lag(stream, job),
            **_charges(replay.ledger, job),
            "ledger": {"entries": replay.entries, "bytes": replay.n_bytes},
        }

    def _replay(self, topic: str) -> _Replay:
        if topic not in self._replays:
            log = LedgerLog(self._kafka, f"{topic}.ledger", topic_id_of(self._kafka, topic))
            try:
                entries = log.catch_up()
            finally:
                log.close()
            n_bytes = sum(len(encode_entry(item.entry)) for item in entries)
            self._replays[topic] = _Replay(log.ledger, len(entries), n_bytes)
        return self._replays[topic]

    def _leader(self, group: str, state_topic: str) -> dict[str, Any] | None:
        """Describe the group member that holds the state topic, and count the candidates."""
        if group not in self._members:
            self._members[group] = _of_groups(lambda: _members(self._admin, group))
        members = self._members[group]
        if members is None:
            return None
        leaders = [m["client_host"] for m in members if _names(m["member_assignment"], state_topic)]
        candidates = sum(_names(m["member_metadata"], state_topic) for m in members)
        return {"present": bool(leaders), "host": next(iter(leaders), None), "candidates": candidates}

    def _lag(self, stream: StreamSettings, job: JobLedger) -> dict[str, Any]:
        partitions = sorted(self._consumer.partitions_for_topic(stream.input) or ())
        tps = [TopicPartition(stream.input, p) for p in partitions]
        timeout = self._kafka.request_timeout_ms
        first = first_offsets(self._consumer, tps, timeout)
        # On a read_committed consumer: the offset that workers can read to.
        end = last_offsets(self._consumer, tps, timeout)
        committed = _of_groups(lambda: self._admin.list_group_offsets({stream.name: None})) or {}
        of_group = {tp: found.offset for tp, found in committed.get(stream.name, {}).items()}
        by_partition = {}
        for tp in tps:
            position = of_group.get(tp, -1)
            if position < 0:
                # No commit yet, or it expired: the ledger has the start of the next batch.
                position = job.ends.get(tp.partition, first[tp])
            if job.started:
                # A pause before the first batch has committed the beginning.
                position = max(position, job.ends.get(tp.partition, 0))
            by_partition[str(tp.partition)] = max(end[tp] - max(position, first[tp]), 0)
        return {"total": sum(by_partition.values()), "partitions": by_partition}


def _described(release: Release) -> dict[str, Any]:
    return {
        "batch": release.batch,
        "created": release.created,
        "outcome": release.outcome,
        "doubts": list(release.doubts),
        "resolved_components": resolved_components(release),
    }


def _of_groups(ask: Callable[[], T]) -> T | None:
    """Ask about consumer groups; return None if the broker gives no answer.

    A new broker has no coordinator yet, one with ACLs may refuse, and kafka-python
    cannot read some answers of the embedded one.
    """
    try:
        return ask()
    except (*_NO_COORDINATOR, GroupAuthorizationFailedError, ValueError):
        return None


def _members(admin: KafkaAdminClient, group: str) -> list[dict[str, Any]]:
    described = admin.describe_groups([group])[group]
    # A missing group is dead; from version 6 of the answer on, it is an error as well.
    if described["error"] and described["group_state"] != "Dead":
        raise ValueError(described["error"])
    return list(described["members"])


def _names(part: Any, topic: str) -> bool:
    """Return whether a member's subscription or assignment holds a topic."""
    if not isinstance(part, dict):
        return False
    assigned = [each["topic"] for each in part.get("assigned_partitions", ())]
    return topic in (*part.get("topics", ()), *assigned)


def _charges(ledger: Ledger, job: JobLedger) -> dict[str, Any]:
    opened = ledger.opened
    if opened is None:
        return {"charged": None, "left": None, "cap": None, "filter": None}
    zcdp = opened.filter == "zcdp"
    own, of_all = job.most_charged(), ledger.most_charged()
    return {
        "charged": {
            "by_stream": describe_charge(own, with_rho=zcdp),
            "by_all": describe_charge(of_all, with_rho=zcdp),
        },
        "left": describe_left(of_all, opened),
        "cap": opened.cap.model_dump(mode="json"),
        "filter": opened.filter,
    }
