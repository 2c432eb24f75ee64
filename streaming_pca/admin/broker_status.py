"""Status of streams: their topics' public contents, and the broker's leaders and offsets."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka import KafkaAdminClient, KafkaConsumer, TopicPartition
from kafka.admin import OffsetSpec
from kafka.errors import (
    CoordinatorLoadInProgressError,
    CoordinatorNotAvailableError,
    GroupAuthorizationFailedError,
    KafkaError,
    LeaderNotAvailableError,
    NotCoordinatorError,
)

from streaming_pca.admin.ledger import describe_charge, describe_left, read_ledger
from streaming_pca.admin.watch import advice_on, describe_release
from streaming_pca.client.releases import UnreadableRelease, latest
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings, StreamSettings
from streaming_pca.data.release import Release
from streaming_pca.estimators.base import Estimator
from streaming_pca.privacy.errors import CalibrationError
from streaming_pca.privacy.ledger.ledger import JobLedger, Ledger
from streaming_pca.privacy.ledger.protocol import BatchStatus, JobStatus
from streaming_pca.service.commit.admission import contract_difference
from streaming_pca.service.commit.log_reader import LedgerReplay
from streaming_pca.service.errors import StreamRefused, TopicError
from streaming_pca.service.kafka.clients import ask_broker, offsets_by, reading_consumer, retry

T = TypeVar("T")
Offsets = dict[TopicPartition, int]

NO_LEADER = (LeaderNotAvailableError,)  # the first request only makes new topics known to the client
NO_COORDINATOR = (CoordinatorLoadInProgressError, CoordinatorNotAvailableError, NotCoordinatorError)
"""Errors until the broker has made the topic of groups, which a first request causes."""
_WAIT_MS = 3_000  # longest wait for the coordinator of groups, which a new broker creates on demand


@dataclass(frozen=True)
class BrokerSnapshot:
    """Members and offsets of some streams, all from about the same time.

    ``members`` of groups and ``high``, ends with open transactions, are as far as the broker returns them.
    Workers can read from ``first`` to ``end``; ``committed`` are offsets by stream.
    """

    members: Mapping[str, list[dict[str, Any]] | None]
    partitions: Mapping[str, Sequence[TopicPartition]]
    first: Offsets
    end: Offsets
    high: Offsets
    committed: Mapping[str, Offsets]

    def leader(self, group: str, state_topic: str) -> dict[str, Any] | None:
        """Describe the group member with the state topic, and count the candidates."""
        members = self.members[group]
        if members is None:
            return None
        leaders = [m["client_host"] for m in members if _names(m["member_assignment"], state_topic)]
        candidates = sum(_names(m["member_metadata"], state_topic) for m in members)
        # The broker writes an address like Java, after a slash.
        host = next((each.lstrip("/") for each in leaders), None)
        return {"present": bool(leaders), "host": host, "candidates": candidates}

    def lag(self, stream: StreamSettings, job: JobLedger) -> dict[str, Any]:
        """Count the offsets that a stream has still to read, in total and by partition.

        Open transactions, which readers do not get yet, are counted separately.
        """
        of_group = self.committed.get(stream.name, {})
        waits = stream.start == "latest" and not job.has_begun  # it will begin at the end offsets
        by_partition, waiting = {}, 0
        for tp in self.partitions.get(stream.input, ()):
            # The ledger has the start of the next batch; commits lack it before the first one, after they
            # expired, while a batch is reserved, and after a pause before the first batch.
            position = max(of_group.get(tp, -1), job.ends.get(tp.partition, 0), self.first[tp])
            by_partition[str(tp.partition)] = 0 if waits else max(self.end[tp] - position, 0)
            waiting += max(self.high.get(tp, 0) - self.end[tp], 0)
        return {"total": sum(by_partition.values()), "partitions": by_partition, "in_transactions": waiting}


def fetch_broker_snapshot(
    kafka: KafkaSettings,
    admin: KafkaAdminClient,
    consumer: KafkaConsumer,
    all_settings: Sequence[Settings],
    partitions: Mapping[str, Sequence[int]],
) -> BrokerSnapshot:
    """Request the group members and the offsets of inputs and groups from the broker.

    ``partitions`` of existing inputs are assigned to ``consumer``, read_committed as the workers' are.
    """
    inputs = sorted({s.stream.input for s in all_settings if s.stream.input in partitions})
    of_inputs = {name: [TopicPartition(name, p) for p in sorted(partitions[name])] for name in inputs}
    tps = [tp for each in of_inputs.values() for tp in each]
    if tps:
        # The client requests the leaders of its assigned topics.
        consumer.assign(tps)
    timeout = kafka.request_timeout_ms

    def bounds(by: Callable[..., Offsets]) -> Offsets:
        return retry(lambda: offsets_by(by, tps, timeout), NO_LEADER, timeout) if tps else {}

    first, end = bounds(consumer.beginning_offsets), bounds(consumer.end_offsets)
    names = [s.stream.name for s in all_settings]
    return BrokerSnapshot(
        members={
            group: _of_groups(lambda group=group: _members(admin, group))  # type: ignore[misc]
            for group in sorted({s.worker.group for s in all_settings})
        },
        partitions=of_inputs,
        first=first,
        end=end,
        high=_high_watermarks(admin, tps) if tps else {},
        committed=_committed(admin, names),
    )


def _high_watermarks(admin: KafkaAdminClient, tps: Sequence[TopicPartition]) -> Offsets:
    """Return the ends of partitions, including open transactions; empty on failure."""
    try:
        found = admin.list_partition_offsets(dict.fromkeys(tps, OffsetSpec.LATEST))
    except KafkaError:
        return {}
    return {tp: int(at.offset) for tp, at in found.items()}


def topic_partitions(described: Iterable[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Return the partitions of existing topics, from the broker's description."""
    return {
        topic["name"]: sorted(p["partition_index"] for p in topic["partitions"])
        for topic in described
        if not topic["error_code"]
    }


def _committed(admin: KafkaAdminClient, names: Sequence[str]) -> dict[str, Offsets]:
    """Return the groups' committed offsets, with one request per group if a joint one fails."""
    asked = dict.fromkeys(names)
    found = _of_groups(lambda: admin.list_group_offsets(asked))
    if found is None and len(names) > 1:
        found = {}
        for name in names:
            found |= _of_groups(lambda name=name: admin.list_group_offsets({name: None})) or {}  # type: ignore[misc]
    return {name: {tp: at.offset for tp, at in of.items()} for name, of in (found or {}).items()}


def _of_groups(ask: Callable[[], T]) -> T | None:
    """Send a request about consumer groups; return None if it fails.

    A broker may lack the coordinator, or refuse by its ACLs; some responses kafka-python cannot read.
    """
    try:
        return ask()
    except (*NO_COORDINATOR, GroupAuthorizationFailedError, ValueError):
        return None


def _members(admin: KafkaAdminClient, group: str) -> list[dict[str, Any]]:
    described = retry(lambda: admin.describe_groups([group]), NO_COORDINATOR, _WAIT_MS)[group]
    # A missing group is dead; from version 6 of the response on, it is also an error.
    if described["error"] and described["group_state"] != "Dead":
        raise ValueError(described["error"])
    return list(described["members"])


def _names(part: Any, topic: str) -> bool:
    """Return whether a member's subscription or assignment contains a topic."""
    if not isinstance(part, dict):
        return False
    assigned = [each["topic"] for each in part.get("assigned_partitions", ())]
    return topic in (*part.get("topics", ()), *assigned)


def planned_size(estimator: Estimator[Any, Any], job: JobLedger) -> int:
    """Return the planned size of the batch that fills; 0 if the settings allow none."""
    batches, records = job.committed, job.records_committed
    if job.phase is BatchStatus.RESERVED and job.reservation is not None:
        # The worker learns from this batch while the next one fills.
        batches, records = batches + 1, records + job.reservation.count
    try:
        return estimator.planned_records(batches, records)
    except CalibrationError:
        # The worker stops with this error: other streams must stay visible.
        return 0


def describe_charges(ledger: Ledger, job: JobLedger) -> dict[str, Any]:
    """Describe the largest charges by a job and by all, the remainder, and the cap."""
    opened = ledger.opened
    if opened is None:
        return dict.fromkeys(("charged", "left", "cap", "filter"))
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


def describe_status(all_settings: Sequence[Settings]) -> list[dict[str, Any]]:
    """Describe the status of each stream of a file as plain data.

    With a ``problem`` the other keys are absent. ``reason`` explains a pause, an end or an abandoned batch,
    ``refused`` the ledger's refusal of its last entry. ``leader`` is None if the broker does not return it;
    ``records`` counts messages, also where the ``unit`` of privacy is a row of a message;
    ``accuracy`` has the last release's variances and their errors; ``counts`` are its batch's noisy counts of
    null and clipped records, None without diagnostics; ``next_batch`` is the planned size of the batch that
    fills, None for a stream that is paused or has ended; ``lag`` is in offsets, with transaction markers;
    ``charged`` is the largest charge of any record, by this stream and by all jobs; ``left`` is the remaining
    budget of the record with the largest charge, and ``left_of_new`` of a new record.
    """
    kafka = all_settings[0].kafka
    replays: dict[str, LedgerReplay] = {}
    asked = ask_broker(kafka, "the broker failed midway")
    with asked as admin, closing(reading_consumer(kafka)) as consumer:
        read = [(settings, _read(settings, replays)) for settings in all_settings]
        well = [settings for settings, found in read if not isinstance(found, str)]
        partitions = topic_partitions(admin.describe_topics(sorted({s.stream.input for s in well})))
        snapshot = fetch_broker_snapshot(kafka, admin, consumer, well, partitions)
    return [_facts(settings, found, snapshot) for settings, found in read]


def _read(settings: Settings, replays: dict[str, LedgerReplay]) -> tuple[LedgerReplay, Release | None] | str:
    """Return a stream's ledger and last release, or the problem of its topics or settings."""
    kafka, stream = settings.kafka, settings.stream
    try:
        if stream.input not in replays:
            replays[stream.input] = read_ledger(kafka, stream.input)
        replay = replays[stream.input]
        contract = replay.ledger.job(stream.name).contract
        differs = contract and contract_difference(stream, contract)
        return differs or (replay, latest(settings))
    except (TopicError, StreamRefused, UnreadableRelease) as error:
        return str(error)


def _facts(
    settings: Settings, found: tuple[LedgerReplay, Release | None] | str, snapshot: BrokerSnapshot
) -> dict[str, Any]:
    stream = settings.stream
    facts = {"stream": stream.name, "input": stream.input}
    if isinstance(found, str):
        return facts | {"problem": found}
    replay, release = found
    ledger = replay.ledger
    job = ledger.job(stream.name)
    return facts | {
        "problem": None,
        "standing": str(job.status),
        **{name: getattr(job, name) or None for name in ("reason", "refused")},
        "leader": snapshot.leader(settings.worker.group, stream.state_topic),
        "batches": {"committed": job.committed, "abandoned": job.abandoned, "released": job.released},
        "unit": stream.privacy_unit,
        "records": job.records_committed,
        "last_release": release and _described(release, stream),
        "accuracy": release and release.accuracy,
        "counts": release and (release.counts or None),
        "next_batch": planned_size(stream.build_estimator(), job) if job.status is JobStatus.ACTIVE else None,
        "lag": snapshot.lag(stream, job),
        **describe_charges(ledger, job),
        "left_of_new": ledger.opened and describe_left(ledger.everywhere, ledger.opened),
        "ledger": {"entries": replay.entries, "bytes": replay.bytes},
    }


def _described(release: Release, stream: StreamSettings) -> dict[str, Any]:
    return {"batch": release.batch, **describe_release(release, advice_on(release, stream))}
