"""Membership in the group of workers that share the partitions of an input.

The group decides who projects which partition, keeps the positions, and fences: a position is taken in a
transaction only from a member of the present generation. kafka-python's own view of the generation can be
ahead of its view of the assignment (docs/explanation/kafka-client.md), so both are noted together, when they
are assigned.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.structs import ConsumerGroupMetadata

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.clients import group_consumer

_JOIN_MS = 300


@dataclass(frozen=True, eq=False)
class Assignment:
    """Partitions of the input that this worker holds in one generation of the group.

    Attributes
    ----------
    member : ConsumerGroupMetadata
        Of that generation, by which brokers fence later.
    """

    partitions: tuple[int, ...]
    member: ConsumerGroupMetadata


class _KnownPartitions:
    """Cluster metadata, as an assignor asks for it, with partitions that are known otherwise."""

    def __init__(self, cluster: Any, topic: str, partitions: Iterable[int]) -> None:
        self._cluster, self._topic, self._partitions = cluster, topic, set(partitions)

    def topics(self) -> set[str]:
        return {self._topic}

    def partitions_for_topic(self, topic: str) -> set[int]:
        return self._partitions | (self._cluster.partitions_for_topic(topic) or set())


class _InputAssignor(StickyPartitionAssignor):  # type: ignore[misc]
    """Sticky assignment of an input's partitions, without waiting for metadata.

    kafka-python may assign before metadata has arrived, and then to no member.
    """

    def __init__(self, topic: str, partitions: Iterable[int]) -> None:
        super().__init__()
        self._topic, self._partitions = topic, tuple(partitions)

    def assign(self, cluster: Any, members: Any) -> Any:
        return super().assign(_KnownPartitions(cluster, self._topic, self._partitions), members)


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]
    """Member of the group; it reads no records.

    Parameters
    ----------
    partitions : sequence of int
        Partitions that the topic has now.
    """

    def __init__(self, kafka: KafkaSettings, group: str, topic: str, partitions: Sequence[int]) -> None:
        self._topic = topic
        self.assignment: Assignment | None = None
        """Present assignment; None while there is none."""
        self._consumer = group_consumer(kafka, group, _InputAssignor(topic, partitions))
        self._consumer.subscribe([topic], listener=self)

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Note the assignment with its generation."""
        for tp in assigned:
            self._consumer.pause(tp)
            # Without a position, each poll would ask for one.
            self._consumer.seek(tp, 0)
        member = self._consumer.group_metadata()
        # A transaction is not fenced by a generation that is unknown.
        if member.generation_id > 0 and member.member_id:
            self.assignment = Assignment(tuple(sorted(tp.partition for tp in assigned)), member)

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Forget the assignment."""
        self.assignment = None

    def on_partitions_lost(self, lost: Any) -> None:
        """Forget the assignment."""
        self.assignment = None

    def poll(self) -> None:
        """Serve the group protocol; wait only while it changes the assignment."""
        coordinator = self._consumer._coordinator
        if not coordinator.stable():
            # kafka-python forgets a join whose answer takes longer than one poll (election.py).
            coordinator.request_rejoin()
        stable = coordinator.stable() and not coordinator.coordinator_unknown()
        self._consumer.poll(timeout_ms=0 if stable else _JOIN_MS)
        for tp in self._consumer.assignment() - self._consumer.paused():
            self._consumer.pause(tp)

    def positions(self, partitions: Iterable[int], timeout_ms: int) -> dict[int, OffsetAndMetadata]:
        """Return the group's positions, by partition; those not known are left out.

        Waits for positions of transactions that are open, and raises KafkaTimeoutError if they stay so.
        """
        wanted = [TopicPartition(self._topic, p) for p in partitions]
        coordinator = self._consumer._coordinator
        # kafka-python would take a late answer to a former call for the answer to this one.
        coordinator._offset_fetch_futures.clear()
        found = coordinator.fetch_committed_offsets(wanted, timeout_ms=timeout_ms)
        return {tp.partition: position for tp, position in found.items()}

    def close(self) -> None:
        """Leave the group, so that the others need not wait for a timeout."""
        self._consumer.close()
