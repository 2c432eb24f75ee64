"""Leader election: membership in a group that subscribes to a topic of one partition."""

from __future__ import annotations

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
    """A candidate. Whoever is assigned the state topic's one partition leads.

    Parameters
    ----------
    kafka : KafkaSettings
    group : str
    topic : str
        The state topic; it is never read here.
    """

    def __init__(self, kafka: KafkaSettings, group: str, topic: str) -> None:
        self._consumer: KafkaConsumer = group_consumer(kafka, group, _LeadershipAssignor)
        self._consumer.subscribe([topic], listener=self)

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Nothing is fetched: the state can be large, and is read elsewhere."""
        if assigned:
            self._consumer.pause(*assigned)

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Seen by :meth:`poll`."""

    def on_partitions_lost(self, lost: Any) -> None:
        """Seen by :meth:`poll`."""

    def poll(self) -> bool:
        """Serve the group protocol for a moment; whether we lead."""
        self._consumer.poll(timeout_ms=300)
        assignment = self._consumer.assignment()
        for tp in assignment - self._consumer.paused():
            self._consumer.pause(tp)
        return bool(assignment)

    def close(self) -> None:
        """Leave the group, so that a standby need not wait for the session to time out."""
        self._consumer.close()
