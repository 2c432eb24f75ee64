"""The state topic: a checkpoint in chunks, written within the caller's transaction, read back whole.

Chunks have keys 0, 1, ... with batch, count and digest in their headers, so
compaction cannot tear a state apart and keys do not grow.
"""

from __future__ import annotations

import hashlib
import math
from typing import Any

from kafka import KafkaProducer

from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.log_reader import LogReader
from streaming_pca.settings import KafkaSettings, StreamSettings
from streaming_pca.wire import Checkpoint, MalformedCheckpoint, decode_checkpoint

__all__ = ["StateReader", "send_state"]

_CHUNK_BYTES = 512 * 1024


def send_state(producer: KafkaProducer, topic: str, data: bytes, digest: str, batch: int) -> None:
    """Send a checkpoint's bytes; the producer's open transaction makes them one."""
    count = math.ceil(len(data) / _CHUNK_BYTES)
    for index in range(count):
        producer.send(
            topic,
            value=data[index * _CHUNK_BYTES : (index + 1) * _CHUNK_BYTES],
            key=str(index).encode(),
            partition=0,
            headers=[
                ("batch", str(batch).encode()),
                ("chunks", str(count).encode()),
                ("digest", digest.encode()),
            ],
        )


class StateReader:
    """Follows a stream's state topic, and tells its last state.

    Parameters
    ----------
    kafka, stream : settings
    topic_id : str
        The input topic's present id: a state of another life is refused.
    """

    def __init__(self, kafka: KafkaSettings, stream: StreamSettings, topic_id: str) -> None:
        self._stream, self._topic_id = stream, topic_id
        self._patience = kafka.transaction_timeout_ms / 1000 + 60
        self._reader = LogReader(kafka, stream.state_topic)
        self._chunks: dict[int, Any] = {}

    def read_to(self, end: int) -> None:
        """Read the committed chunks before offset ``end``."""
        for message in self._reader.read_to(end, self._patience):
            try:
                self._chunks[int(message.key)] = message
            except (TypeError, ValueError):
                raise self._unreadable(f"offset {message.offset} is no chunk of a state") from None

    def last(self) -> tuple[Checkpoint | None, str]:
        """The last state that was read, and its digest; None and "" where there is none.

        Raises
        ------
        StreamRefused
            If a chunk is missing or changed, or the state is of another life of the input topic.
        """
        if not self._chunks:
            return None, ""
        # The latest commit's chunk 0 is the latest chunk 0; what compaction or a
        # shorter commit left at higher keys carries another digest.
        try:
            first = dict(self._chunks[0].headers)
            parts = []
            for index in range(int(first["chunks"])):
                headers = dict(self._chunks[index].headers)
                if headers["digest"] != first["digest"]:
                    raise MalformedCheckpoint(f"chunk {index} belongs to another commit")
                parts.append(self._chunks[index].value)
            data = b"".join(parts)
            if hashlib.sha256(data).hexdigest() != first["digest"].decode():
                raise MalformedCheckpoint("digest does not match")
            checkpoint, digest = decode_checkpoint(data)
        except (KeyError, TypeError, ValueError) as error:
            raise self._unreadable(str(error)) from None
        if checkpoint.topic_id != self._topic_id:
            raise StreamRefused(
                f"topic {self._stream.input!r} was deleted and created again since the last batch: "
                "its records are other data. Start under a new stream.name"
            )
        return checkpoint, digest

    def _unreadable(self, reason: str) -> StreamRefused:
        return StreamRefused(
            f"state topic {self._stream.state_topic!r} cannot be read: {reason}. Restore it, or start "
            "the stream under a new name"
        )

    def close(self) -> None:
        """Release the consumer."""
        self._reader.close()
