"""Membership in the group of workers that share the partitions of an input.

The group assigns partitions to workers, stores the positions, and fences: the broker accepts a position in
a transaction only from a member of the current generation. kafka-python's own view of the generation can be
ahead of its view of the assignment (docs/explanation/kafka-client.md), so both are recorded together at the
assignment.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from kafka import ConsumerRebalanceListener, OffsetAndMetadata, TopicPartition
from kafka.structs import ConsumerGroupMetadata

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.service.kafka.clients import group_consumer
from streaming_pca.service.kafka.patches import group_positions, rejoin_if_unstable

_JOIN_MS = 300


@dataclass(frozen=True, eq=False)
class Assignment:
    """Partitions of the input that this worker holds in one generation of the group."""

    partitions: tuple[int, ...]
    member: ConsumerGroupMetadata  # metadata of that generation, which brokers check for fencing


class Membership(ConsumerRebalanceListener):  # type: ignore[misc]
    """Member of the group, which does not read records; ``partitions`` are the topic's current ones."""

    def __init__(self, kafka: KafkaSettings, group: str, topic: str, partitions: Sequence[int]) -> None:
        self._topic = topic
        self.assignment: Assignment | None = None  # current assignment; None without one
        self._consumer = group_consumer(kafka, group, partitions)
        self._consumer.subscribe([topic], listener=self)

    def on_partitions_assigned(self, assigned: Any) -> None:
        """Record the assignment with its generation."""
        for tp in assigned:
            self._consumer.pause(tp)
            # Without a position, each poll would request one.
            self._consumer.seek(tp, 0)
        member = self._consumer.group_metadata()
        # An unknown generation would not fence a transaction.
        if member.generation_id > 0 and member.member_id:
            self.assignment = Assignment(tuple(sorted(tp.partition for tp in assigned)), member)

    def on_partitions_revoked(self, revoked: Any) -> None:
        """Drop the assignment; :meth:`on_partitions_lost` calls this too."""
        self.assignment = None

    def poll(self) -> None:
        """Serve the group protocol; wait only while it changes the assignment."""
        self._consumer.poll(timeout_ms=0 if rejoin_if_unstable(self._consumer) else _JOIN_MS)
        for tp in self._consumer.assignment() - self._consumer.paused():
            self._consumer.pause(tp)

    def positions(self, partitions: Iterable[int], timeout_ms: int) -> dict[int, OffsetAndMetadata]:
        """Return the group's known positions, by partition.

        Waits for positions in open transactions; raises KafkaTimeoutError if these stay open.
        """
        wanted = [TopicPartition(self._topic, p) for p in partitions]
        found = group_positions(self._consumer, wanted, timeout_ms)
        return {tp.partition: position for tp, position in found.items()}

    def close(self) -> None:
        """Leave the group, so that other members do not wait for a timeout."""
        self._consumer.close()
