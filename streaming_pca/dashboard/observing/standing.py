"""Thread that polls leaders, lags and changes of the topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kafka import KafkaAdminClient, KafkaConsumer
from kafka.errors import for_code

from streaming_pca.admin.standing import ask_standings, partitions_of
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.errors import NotPermitted, TopicError
from streaming_pca.service.kafka.clients import admin_client, reading_consumer

if TYPE_CHECKING:
    from streaming_pca.dashboard.observing.observer import Observer

_ROUND_SECONDS = 2.0
_MISSING = 3
"""Kafka's error code for a missing topic."""


@dataclass(frozen=True)
class _Described:
    topic_id: str
    problem: str | None


class TopicTable:
    """Descriptions of topics by the broker, for the thread that reads the topics.

    Attributes
    ----------
    changed : threading.Event
        Set when a description has changed.
    wanted : threading.Event
        Set when that thread requests new descriptions.
    """

    def __init__(self) -> None:
        self.changed = threading.Event()
        self.wanted = threading.Event()
        self._found: dict[str, _Described] = {}

    def set(self, described: list[dict[str, Any]]) -> None:
        """Store the broker's descriptions."""
        found = {topic["name"]: _Described(str(topic["topic_id"]), _problem(topic)) for topic in described}
        if found != self._found:
            self._found = found
            self.changed.set()

    def id(self, topic: str) -> str | None:
        """Return a topic's id; None if it cannot be read."""
        found = self._found.get(topic)
        return found.topic_id if found is not None and found.problem is None else None

    def problem(self, topic: str) -> str | None:
        """Return why a topic cannot be read, in one line."""
        found = self._found.get(topic)
        return None if found is None else found.problem

    @property
    def is_known(self) -> bool:
        """True once the broker has described the topics."""
        return bool(self._found)


def _problem(topic: Mapping[str, Any]) -> str | None:
    code = topic["error_code"]
    if code == _MISSING:
        return str(TopicError.missing(topic["name"]))
    try:
        NotPermitted.check([topic])
    except NotPermitted as error:
        return str(error)
    return f"topic {topic['name']!r} cannot be read: {for_code(code).__name__}" if code else None


def _is_led(topic: Mapping[str, Any]) -> bool:
    """Return whether all partitions have a leader, without which the lag is unavailable."""
    return all(partition["leader_id"] >= 0 for partition in topic["partitions"])


def ask_for_standings(
    observer: Observer, kafka: KafkaSettings, table: TopicTable, stop: threading.Event
) -> None:
    """Poll the broker every two seconds over one connection, until stopped."""
    admin: KafkaAdminClient = admin_client(kafka)
    with closing(admin):
        consumer: KafkaConsumer = reading_consumer(kafka)
        try:
            _ask(observer, kafka, table, stop, admin, consumer)
        finally:
            consumer.close(autocommit=False)


def _ask(
    observer: Observer,
    kafka: KafkaSettings,
    table: TopicTable,
    stop: threading.Event,
    admin: KafkaAdminClient,
    consumer: KafkaConsumer,
) -> None:
    states = list(observer.streams.values())
    names = {s.releases.topic for s in states} | {v.topic for v in observer.views.values()}
    names |= set(observer.views)
    while not stop.is_set():
        described = list(admin.describe_topics(sorted(names)))
        table.set(described)
        inputs = partitions_of([t for t in described if t["name"] in observer.views and _is_led(t)])
        standings = ask_standings(kafka, admin, consumer, [s.settings for s in states], inputs)
        now = time.monotonic()
        with observer.lock:
            for state in states:
                state.stand(standings, observer.views[state.input], now, loaded=observer.is_loaded)
        observer.report("standing", None)
        observer.refresh()
        table.wanted.wait(_ROUND_SECONDS)
        table.wanted.clear()
