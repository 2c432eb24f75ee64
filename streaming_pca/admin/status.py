"""Status of streams, read from their topics: public quantities and published values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import KafkaError

from streaming_pca.admin.standing import Standings, ask_standings, describe_charges, partitions_of
from streaming_pca.admin.watch import last_release
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings
from streaming_pca.data.release import Release
from streaming_pca.estimators.warnings import resolved_components
from streaming_pca.privacy.ledger.entries import encode_entry
from streaming_pca.privacy.ledger.ledger import Ledger
from streaming_pca.service.commit.log_reader import LedgerLog
from streaming_pca.service.commit.verification import topic_id_of
from streaming_pca.service.errors import StreamRefused, TopicError
from streaming_pca.service.kafka.clients import admin_client, broker_failed, reading_consumer


def describe_status(all_settings: Sequence[Settings]) -> list[dict[str, Any]]:
    """Describe the status of each stream of a file as plain data.

    Parameters
    ----------
    all_settings : sequence of Settings
        One per stream, all with the same broker.

    Returns
    -------
    list of dict
        ``stream``, ``input`` and ``problem``; and, unless there is a problem: ``standing``; ``leader``
        (None if the broker does not return it); ``batches``; ``records``; ``last_release``, with its
        batch's outcome and its doubts; ``accuracy``, the variances of that release and their errors;
        ``counts``, its batch's noisy counts of null and clipped records, None without diagnostics; ``lag``,
        in offsets, including transaction markers; ``charged``, the largest charge of any record, by this
        stream and by all jobs; ``left``, the remaining budget of the record with the largest charge;
        ``cap``, ``filter``; ``ledger``, its size.

    Raises
    ------
    BrokerUnreachable
    """
    kafka = all_settings[0].kafka
    reader = _Reader(kafka)
    try:
        return reader.describe(all_settings)
    except KafkaError as error:
        raise broker_failed(kafka, "the broker failed midway", error) from None
    finally:
        reader.close()


@dataclass(frozen=True)
class _Replay:
    ledger: Ledger
    entries: int
    n_bytes: int


@dataclass(frozen=True)
class _Topics:
    """Contents of one stream's topics, or the reason why they cannot be read."""

    settings: Settings
    replay: _Replay | None = None
    release: Release | None = None
    problem: str | None = None


class _Reader:
    """Reader that shares ledgers and the broker's responses between streams."""

    def __init__(self, kafka: KafkaSettings) -> None:
        self._kafka = kafka
        self._admin: KafkaAdminClient = admin_client(kafka)
        try:
            self._consumer: KafkaConsumer = reading_consumer(kafka)
        except BaseException:
            self._admin.close()
            raise
        self._replays: dict[str, _Replay] = {}

    def close(self) -> None:
        self._consumer.close(autocommit=False)
        self._admin.close()

    def describe(self, all_settings: Sequence[Settings]) -> list[dict[str, Any]]:
        read = [self._read(settings) for settings in all_settings]
        well = [topics.settings for topics in read if topics.problem is None]
        partitions = partitions_of(self._admin.describe_topics(sorted({s.stream.input for s in well})))
        standings = ask_standings(self._kafka, self._admin, self._consumer, well, partitions)
        return [_facts(topics, standings) for topics in read]

    def _read(self, settings: Settings) -> _Topics:
        try:
            replay = self._replay(settings.stream.input)
            release = last_release(self._kafka, settings.stream.releases_topic)
        except (TopicError, StreamRefused) as error:
            return _Topics(settings, problem=str(error))
        return _Topics(settings, replay, release)

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


def _facts(topics: _Topics, standings: Standings) -> dict[str, Any]:
    stream, replay, release = topics.settings.stream, topics.replay, topics.release
    facts = {"stream": stream.name, "input": stream.input, "problem": topics.problem}
    if replay is None:
        return facts
    job = replay.ledger.job(stream.name)
    return facts | {
        "standing": str(job.status),
        "leader": standings.leader(topics.settings.worker.group, stream.state_topic),
        "batches": {"committed": job.committed, "abandoned": job.abandoned, "released": job.released},
        "records": job.records_committed,
        "last_release": release and _described(release),
        "accuracy": release and release.accuracy,
        "counts": release and (release.counts or None),
        "lag": standings.lag(stream, job),
        **describe_charges(replay.ledger, job),
        "ledger": {"entries": replay.entries, "bytes": replay.n_bytes},
    }


def _described(release: Release) -> dict[str, Any]:
    return {
        "batch": release.batch,
        "created": release.created,
        "outcome": release.outcome,
        "doubts": list(release.doubts),
        "resolved_components": resolved_components(release),
        "dominant_feature": release.dominant_name,
    }
