"""Leader election by a consumer group that subscribes to one-partition topics.

A process has one consumer for all its streams. A stream's state topic has one partition; the member that
holds this partition leads the stream.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.clients import group_consumer
from streaming_pca.service.kafka.patches import rejoin_if_unstable

_POLL_MS = 300


class Election(ConsumerRebalanceListener):  # type: ignore[misc]
    """Candidate for the leadership of streams, by their state topics, which it never reads.

    ``group`` is equal in all processes that may lead any of them.
    """

    def __init__(self, kafka: KafkaSettings, group: str, on_rebalance: Callable[[], None]) -> None:
        self._on_rebalance = on_rebalance
        self._topics: list[str] = []
        self.joined = False  # True after the first assignment: this process or another one leads
        self._consumer: KafkaConsumer = group_consumer(kafka, group, partitions=[0])

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Pause the assigned partitions: a state can be large and is read elsewhere."""
        if assigned:
            self._consumer.pause(*assigned)
        self.joined = True
        self._on_rebalance()

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Do nothing: :meth:`poll` notices the change; :meth:`on_partitions_lost` calls this too."""

    def poll(self, topics: Iterable[str]) -> frozenset[str]:
        """Stand for these streams, and serve the group protocol briefly; return the led ones' topics."""
        wanted = sorted(topics)
        if wanted != self._topics:
            self._topics = wanted
            if wanted:
                self._consumer.subscribe(wanted, listener=self)
            else:
                self._consumer.unsubscribe()
        if not wanted:
            time.sleep(_POLL_MS / 1000)  # as long as another poll, or the caller would never pause
            return frozenset()
        rejoin_if_unstable(self._consumer)
        self._consumer.poll(timeout_ms=_POLL_MS)
        assignment = self._consumer.assignment()
        for tp in assignment - self._consumer.paused():
            self._consumer.pause(tp)
        return frozenset(tp.topic for tp in assignment)

    def close(self) -> None:
        """Leave the group, so that a standby takes over without waiting for a timeout."""
        self._consumer.close()
