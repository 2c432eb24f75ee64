"""Leader election: membership in a group that subscribes to topics of one partition each.

One consumer for all streams of a process: the state topic of a stream has one
partition, and whoever is assigned it leads the stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kafka import ConsumerRebalanceListener, KafkaConsumer
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

from streaming_pca.service.clients import group_consumer
from streaming_pca.settings import KafkaSettings

__all__ = ["Election"]


class _OnePartition:
    """What an assignor asks of cluster metadata, for topics of one partition."""

    def __init__(self, topics: set[str]) -> None:
        self._topics = topics

    def topics(self) -> set[str]:
        return self._topics

    def partitions_for_topic(self, topic: str) -> set[int]:
        return {0}


class _LeadershipAssignor(StickyPartitionAssignor):  # type: ignore[misc]
    """Sticky assignment of partition 0, known in advance.

    kafka-python 3.0.12 can assign before the topic's metadata has arrived, and
    then to nobody; now and then it does not notice that it came (seen once in
    some hundred starts under load: a lone worker stood by for over a minute).
    A state topic has one partition, always, so there is nothing to wait for.
    Sticky because the default assignor lets a joining standby take it away.
    """

    def assign(self, cluster: Any, members: Any) -> Any:
        topics = {topic for member in members for topic in member.metadata.topics}
        return super().assign(_OnePartition(topics), members)


class Election(ConsumerRebalanceListener):  # type: ignore[misc]
    """A candidate for streams.

    Parameters
    ----------
    kafka : KafkaSettings
    group : str
        The same for all who may lead any of these streams.
    topics : iterable of str
        Their state topics; they are never read here.
    on_rebalance : callable
        Called after each assignment.
    """

    def __init__(
        self, kafka: KafkaSettings, group: str, topics: Iterable[str], on_rebalance: Callable[[], None]
    ) -> None:
        self._on_rebalance = on_rebalance
        self._topics = sorted(topics)
        self._joined = False
        self._consumer: KafkaConsumer = group_consumer(kafka, group, _LeadershipAssignor)
        self._consumer.subscribe(self._topics, listener=self)

    @property
    def joined(self) -> bool:
        """Whether the group has answered: we lead, or somebody else does."""
        return self._joined

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Nothing is fetched: the state can be large, and is read elsewhere."""
        if assigned:
            self._consumer.pause(*assigned)
        self._joined = True
        self._on_rebalance()

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Seen by :meth:`poll`."""

    def on_partitions_lost(self, lost: Any) -> None:
        """Seen by :meth:`poll`."""

    def stand_for(self, topics: Iterable[str]) -> None:
        """Stand for these streams from now on, not for others."""
        wanted = sorted(topics)
        if wanted != self._topics:
            self._topics = wanted
            if wanted:
                self._consumer.subscribe(wanted, listener=self)
            else:
                self._consumer.unsubscribe()

    def poll(self) -> frozenset[str]:
        """Serve the group protocol for a moment; the state topics of the streams that we lead."""
        if not self._topics:
            return frozenset()
        # kafka-python 3.0.12 forgets a join whose answer takes longer than one poll: the member would
        # send no heartbeat any more and keep what it was assigned before, beside its successor.
        coordinator = self._consumer._coordinator
        if not coordinator.stable():
            coordinator.request_rejoin()
        self._consumer.poll(timeout_ms=300)
        assignment = self._consumer.assignment()
        for tp in assignment - self._consumer.paused():
            self._consumer.pause(tp)
        return frozenset(tp.topic for tp in assignment)

    def close(self) -> None:
        """Leave the group, so that a standby need not wait for the session to time out."""
        self._consumer.close()
