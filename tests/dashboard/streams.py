"""Streams without a worker: a test writes their topics, releases and ledger entries directly.

made = make_stream(bootstrap, "flights", releases=1000, dim=20, rank=4)
observer = Observer([made.settings])
made.publish(1)     # one batch more
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import numpy as np
from kafka import KafkaAdminClient

from streaming_pca.config.http import HttpSettings
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import Settings, StreamSettings, WorkerSettings
from streaming_pca.data.release import Release
from streaming_pca.privacy.ledger.entries import (
    Cap,
    Committed,
    LedgerEntry,
    OffsetRange,
    Opened,
    Released,
    Reserved,
    encode_entry,
    entry_hash,
)
from streaming_pca.privacy.parameters import Charge
from streaming_pca.service.commit.checkpoint import open_ledger
from streaming_pca.service.kafka.clients import plain_producer, transactional_producer
from streaming_pca.service.kafka.transaction import Transaction
from streaming_pca.service.topics.find import create_topics, find_topics
from tests.waiting import LIMIT

RECORDS = 100
"""Records of a batch."""
PARAMETERS = {"mechanism": "private-oja", "sigma_over_sensitivity": 1e6}
"""Parameters of a batch's mechanism."""
_START = datetime(2026, 11, 1, tzinfo=UTC)
_TOGETHER = 2000
"""Messages of one transaction, far fewer than a producer holds."""


@dataclass
class MadeStream:
    """Stream whose batches a test writes."""

    settings: Settings
    topic_id: str = ""
    partitions: int = 1
    cap: tuple[str, str] = ("10", "1e-5")
    """Cap of its ledger, where :mod:`tests.dashboard.offline` opens it."""
    values: list[bytes] = field(default_factory=list)
    """Its releases, in order, as published."""
    head: str = ""
    """Value of ``previous`` for the job's next entry."""
    _batch: int = 0
    _components: Any = None

    def __post_init__(self) -> None:
        self.name = self.settings.stream.name
        self._ledger = self.settings.stream.ledger_topic

    @property
    def releases(self) -> list[Release]:
        return [Release.from_bytes(value) for value in self.values]

    def publish(self, batches: int = 1, *, entries: bool = True, **changes: Any) -> list[bytes]:
        """Learn and release batches as a worker does, each with its three ledger entries; return releases.

        ``changes`` are fields of the releases, for example ``doubts=("not-resolved",)``. Without
        ``entries`` the ledger does not contain these batches, so later batches cannot have entries either.
        """
        self.send(self.made_messages(batches, entries=entries, **changes))
        return self.values[len(self.values) - batches :]

    def made_messages(
        self, batches: int = 1, *, entries: bool = True, **changes: Any
    ) -> list[tuple[str, bytes]]:
        """Return the messages (topic, value) of :meth:`publish` without sending them."""
        messages: list[tuple[str, bytes]] = []
        for _ in range(batches):
            release = self.next_release(**changes)
            value = release.to_bytes()
            if entries:
                messages += [(self._ledger, encode_entry(entry)) for entry in self._entries(release, value)]
            messages.append((self.settings.stream.releases_topic, value))
            self.values.append(value)
        return messages

    def send(self, messages: Sequence[tuple[str, bytes]], *, commit: bool = True) -> None:
        """Write messages (topic, value) in transactions, which ``commit=False`` aborts."""
        kafka = self.settings.kafka
        with closing(transactional_producer(kafka, f"made-{self.name}")) as producer:
            producer.init_transactions()
            for start in range(0, len(messages), _TOGETHER):
                transaction = Transaction(producer, kafka)
                for topic, value in messages[start : start + _TOGETHER]:
                    transaction.send(topic, value, self.name.encode() if topic == self._ledger else None)
                transaction.commit() if commit else transaction.abort()

    def append(self, *entries: LedgerEntry) -> None:
        """Write further entries of this job; their ``previous`` is :attr:`head`."""
        self.send([(self._ledger, encode_entry(entry)) for entry in entries])
        self.head = entry_hash(entries[-1])

    def produce(self, records: int) -> None:
        """Write pending records to the input, round robin over its partitions."""
        with closing(plain_producer(self.settings.kafka)) as producer:
            for i in range(records):
                producer.send(self.settings.stream.input, b"record", partition=i % self.partitions)
            producer.flush(LIMIT)

    def next_release(self, **changes: Any) -> Release:
        """Make the next batch's release without publishing it."""
        self._batch += 1
        stream, rng = self.settings.stream, np.random.default_rng(self._batch)
        d, k = stream.dim, stream.rank
        if self._components is None:
            self._components = np.eye(k, d)
        drift = rng.standard_normal((k, d)) * (0.05 / np.sqrt(d * self._batch))
        q, r = np.linalg.qr((self._components + drift).T)
        self._components = (q * np.where(np.diagonal(r) < 0, -1.0, 1.0)).T
        variances = 4.0 / (1 + np.arange(k)) + 0.01 * rng.standard_normal(k) / self._batch
        noise = 0.05 / np.sqrt(self._batch)
        fields: dict[str, Any] = {
            **{"version": 6, "stream": stream.name, "estimator": stream.estimator, "dim": d, "rank": k},
            **{"batch": self._batch, "records": RECORDS * self._batch, "batch_records": RECORDS},
            "components": self._components.tolist(),
            **{"mean": None, "centering": "none", "angle_bound": 0.3 / np.sqrt(self._batch)},
            "explained_variance": np.sort(variances)[::-1].tolist(),
            "explained_variance_error": [noise] * k,
            "total_variance": float(variances.sum() + 0.1 * (d - k)),
            "total_variance_error": noise,
            **{"epsilon": stream.epsilon, "delta": stream.delta, "adjacency": "replace-one"},
            "privacy_unit": stream.privacy_unit,
            "feature_names": None if stream.feature_names is None else list(stream.feature_names),
            "created": (_START + timedelta(minutes=self._batch)).isoformat(timespec="milliseconds"),
            **{"null_records": 5.0 + float(rng.normal()), "null_records_error": 1.0},
            **{"clipped_records": 10.0 + float(rng.normal()), "clipped_records_error": 1.0},
        }
        return Release(**(fields | changes))

    def _entries(self, release: Release, value: bytes) -> Iterator[LedgerEntry]:
        stream, batch = self.settings.stream, release.batch
        own = {"topic_id": self.topic_id, "job": stream.name, "batch": batch}
        start = RECORDS * (batch - 1)
        charge = Charge(epsilon=stream.epsilon, delta=stream.delta)
        ranges = (OffsetRange(partition=0, start=start, end=start + RECORDS, count=RECORDS),)
        how = {"promise": stream.privacy_contract, "parameters": PARAMETERS, "charge": charge}
        reserved = Reserved(**own, previous=self.head, ranges=ranges, **how)
        committed = Committed(**own, previous=entry_hash(reserved), state_digest="0" * 64)
        digest = sha256(value).hexdigest()
        released = Released(**own, previous=entry_hash(committed), release_digest=digest)
        self.head = entry_hash(released)
        yield from (reserved, committed, released)


def make_stream(
    bootstrap: str,
    name: str,
    *,
    releases: int = 0,
    ledger_batches: int | None = None,
    input: str | None = None,
    partitions: int = 1,
    cap: tuple[str, str] | None = ("10", "1e-5"),
    kafka: dict[str, Any] | None = None,
    topics: bool = True,
    **stream: Any,
) -> MadeStream:
    """Create a stream's topics, open its ledger, and publish releases.

    Only the first ``ledger_batches`` releases have entries in the ledger, by default all: replaying takes
    about 0.2 ms an entry. Streams with the same ``input``, by default ``in-NAME``, share a ledger. A cap of
    None leaves it unopened (then publish with ``entries=False``). ``topics=False`` contacts no broker.
    """
    base: dict[str, Any] = {"name": name, "input": input or f"in-{name}", "dim": 5, "rank": 2}
    base |= {"epsilon": 1.0, "delta": 1e-6, "centering": "none"}
    base |= {"options": {"n_records": 10**5, "n_batches": 1000, "growth": 1.0}} | stream
    # `Settings(...)` reads the environment, which other tests may change concurrently.
    settings = Settings.model_construct(
        kafka=KafkaSettings(bootstrap_servers=bootstrap, **(kafka or {})),
        stream=StreamSettings(**base),
        worker=WorkerSettings(group=f"workers-{name}"),
        http=HttpSettings(enabled=False),
    )
    if not topics:
        return MadeStream(settings)
    create_topics(settings.kafka, settings.stream, partitions, 1)
    made = MadeStream(settings, find_topics(settings.kafka, settings.stream).topic_id, partitions)
    if cap is not None:
        of = Cap(epsilon=cap[0], delta=cap[1])
        entry = Opened(topic_id=made.topic_id, topic=settings.stream.input, cap=of)
        made.head = entry_hash(open_ledger(settings.kafka, entry, settings.stream.ledger_topic))
    in_ledger = 0 if cap is None else releases if ledger_batches is None else min(ledger_batches, releases)
    for batches, entries in ((in_ledger, True), (releases - in_ledger, False)):
        if batches:
            made.publish(batches, entries=entries)
    return made


def make_streams(bootstrap: str, names: Sequence[str], **how: Any) -> list[MadeStream]:
    """Make several streams concurrently with :func:`make_stream`, which mostly waits."""
    with ThreadPoolExecutor(16) as pool:
        return list(pool.map(lambda name: make_stream(bootstrap, name, **how), names))


def administration(made: MadeStream) -> KafkaAdminClient:
    """Return a client for topics, for example to delete a stream's."""
    return KafkaAdminClient(bootstrap_servers=made.settings.kafka.bootstrap_servers)
