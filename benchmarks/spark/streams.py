"""Input of the contenders: topics of messages with many rows, and stream settings."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Self

from kafka import KafkaAdminClient
from kafka.admin import NewTopic

from benchmarks.kafka.running_worker import draw_records
from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.service.kafka.clients import plain_producer

__all__ = ["PARTITIONS", "ROWS", "Case", "fill"]

ROWS = 256
"""Rows of a message."""
PARTITIONS = 2
_DISTINCT = 8
"""Number of different messages, sent in turn."""
_PATIENCE_SECONDS = 120.0


@dataclass(frozen=True)
class Case:
    """Features, rank and estimator.

    Attributes
    ----------
    dim, rank : int
    estimator : str
        "private-oja" makes one pass over a batch; "adaptive" is the default.
    """

    dim: int
    rank: int
    estimator: str = "private-oja"

    def __str__(self) -> str:
        return f"{self.estimator} {self.dim}x{self.rank}"

    @property
    def topic(self) -> str:
        """Topic of the records."""
        return f"rows-{self.dim}-{self.rank}"

    @property
    def message_bytes(self) -> int:
        """Bytes of a message."""
        return ROWS * self.dim * 4

    def messages(self, mebibytes: float) -> int:
        """Return the number of messages for some MiB, with whole pairs in each partition."""
        return max(int(mebibytes * 2**20) // self.message_bytes // (2 * PARTITIONS), 1) * 2 * PARTITIONS

    def stream(self, largest: int = 2**20, input_topic: str | None = None) -> StreamSettings:
        """Return the stream's settings, where each message is one record.

        Parameters
        ----------
        largest : int
            Number of messages of a batch.
        input_topic : str, optional
        """
        # About the median of ``|A Q|_F``, so that some records are clipped and others are not.
        options: dict[str, Any] = {"clip_radius": float(ROWS * self.rank), "batch_size": largest}
        if self.estimator != "private-oja":
            options = {"growth": 1.0, "first_batch": largest, "max_batch": largest}
        return StreamSettings(
            name=f"{self.estimator}-{self.dim}",
            input=input_topic or self.topic,
            dim=self.dim,
            rank=self.rank,
            epsilon=1.0,
            delta=1e-6,
            max_rows=ROWS,
            estimator=self.estimator,
            centering="none",
            options=options,
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the case as JSON data."""
        return asdict(self)

    @classmethod
    def of(cls, fields: dict[str, Any]) -> Self:
        """Restore a case from the result of :meth:`as_dict`."""
        return cls(**fields)


def fill(kafka: KafkaSettings, case: Case, messages: int) -> None:
    """Create the topic of a case, and write messages evenly to its partitions."""
    rows = draw_records(_DISTINCT * ROWS, case.dim, case.rank).reshape(_DISTINCT, ROWS, case.dim)
    values = [each.tobytes() for each in rows]
    topic = NewTopic(case.topic, PARTITIONS, 1, topic_configs={"max.message.bytes": str(2**25)})
    with KafkaAdminClient(bootstrap_servers=kafka.bootstrap_servers) as admin:
        admin.create_topics([topic])
    producer = plain_producer(kafka)
    try:
        for i in range(messages // PARTITIONS):
            sent = [producer.send(case.topic, values[i % _DISTINCT], partition=p) for p in range(PARTITIONS)]
        for each in sent:
            each.get(_PATIENCE_SECONDS)
    finally:
        producer.close(_PATIENCE_SECONDS)
