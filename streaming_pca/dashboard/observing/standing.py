"""Thread that polls leaders, lags and changes of the topics."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from kafka import KafkaAdminClient, KafkaConsumer

from streaming_pca.admin.standing import ask_standings, partitions_of
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.dashboard.observing.watched import Watched
from streaming_pca.service.kafka.clients import admin_client, reading_consumer

_ROUND_SECONDS = 2.0


def _is_led(topic: Mapping[str, Any]) -> bool:
    """Return whether all partitions have a leader, without which the lag is unavailable."""
    return all(partition["leader_id"] >= 0 for partition in topic["partitions"])


def ask_for_standings(watched: Watched, kafka: KafkaSettings, stop: threading.Event) -> None:
    """Poll the broker every two seconds over one connection, until stopped."""
    admin: KafkaAdminClient = admin_client(kafka)
    with closing(admin):
        consumer: KafkaConsumer = reading_consumer(kafka)
        try:
            _ask(watched, kafka, stop, admin, consumer)
        finally:
            consumer.close(autocommit=False)


def _ask(
    watched: Watched,
    kafka: KafkaSettings,
    stop: threading.Event,
    admin: KafkaAdminClient,
    consumer: KafkaConsumer,
) -> None:
    states = list(watched.streams.values())
    names = {s.releases.topic for s in states} | {v.topic for v in watched.views.values()}
    names |= set(watched.views)
    while not stop.is_set():
        described = list(admin.describe_topics(sorted(names)))
        watched.table.set(described)
        inputs = partitions_of([t for t in described if t["name"] in watched.views and _is_led(t)])
        standings = ask_standings(kafka, admin, consumer, [s.settings for s in states], inputs)
        now = time.monotonic()
        with watched.lock:
            for state in states:
                state.stand(standings, watched.views[state.input], now, loaded=watched.is_loaded)
        watched.report("standing", None)
        watched.refresh()
        watched.table.wanted.wait(_ROUND_SECONDS)
        watched.table.wanted.clear()
