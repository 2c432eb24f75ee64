"""The state topic: a checkpoint in chunks, written within the caller's transaction, read back whole.

Chunks have keys 0, 1, ... with batch, count and digest in their headers, so
compaction cannot tear a state apart and keys do not grow. Parts of the table of
users (:mod:`.user_log`) have keys NAME.0, NAME.1, ...; what they must be, the
checkpoint says, which follows them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.kafka.transaction import Transaction
from streaming_pca.service.log_reader import LogReader
from streaming_pca.service.user_log import MalformedUserLog, UserLog
from streaming_pca.settings import KafkaSettings, StreamSettings
from streaming_pca.user_index import UserIndex
from streaming_pca.wire import Checkpoint, MalformedCheckpoint, decode_checkpoint

__all__ = ["PartChunks", "StateReader", "is_part", "send_state"]

_CHUNK_BYTES = 512 * 1024
_PARTS = b"users."


def send_state(
    transaction: Transaction,
    topic: str,
    data: bytes,
    digest: str,
    batch: int,
    parts: Mapping[str, bytes],
) -> None:
    """Send a checkpoint's bytes, after the parts that it names; the transaction makes them one.

    In this order, the last message of each key before a checkpoint's end is of its commit.
    """
    headers = [("batch", str(batch).encode())]
    for name, part in parts.items():
        for index, chunk in enumerate(_chunks(part)):
            transaction.send(topic, chunk, f"{name}.{index}".encode(), headers)
    headers = [
        *headers,
        ("chunks", str(math.ceil(len(data) / _CHUNK_BYTES)).encode()),
        ("digest", digest.encode()),
    ]
    for index, chunk in enumerate(_chunks(data)):
        transaction.send(topic, chunk, str(index).encode(), headers)


def _chunks(data: bytes) -> Iterator[bytes]:
    return (data[first : first + _CHUNK_BYTES] for first in range(0, len(data), _CHUNK_BYTES))


def is_part(message: Any) -> bool:
    """Whether a message is a chunk of the table of users, and not of a checkpoint."""
    return bool((message.key or b"").startswith(_PARTS))


class PartChunks:
    """The last chunk of each key, of messages that are parts of the table of users."""

    def __init__(self) -> None:
        self._chunks: dict[bytes, bytes] = {}

    def take(self, message: Any) -> None:
        """Keep a chunk."""
        self._chunks[message.key] = message.value or b""

    def joined(self, index: UserIndex) -> dict[str, bytes]:
        """Those parts that an index names, as far as they are there: what they are is not checked."""
        found = {}
        for name, part in index.parts.items():
            keys = [f"{name}.{i}".encode() for i in range(math.ceil(part.size / _CHUNK_BYTES))]
            if all(key in self._chunks for key in keys):
                found[name] = b"".join(self._chunks[key] for key in keys)
        return found


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
        self._parts = PartChunks()

    def read_to(self, end: int) -> None:
        """Read the committed chunks before offset ``end``."""
        for message in self._reader.read_to(end, self._patience):
            if is_part(message):
                self._parts.take(message)
                continue
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

    def users(self, checkpoint: Checkpoint | None) -> UserLog | None:
        """The table of users after the last state; None where users are not the unit of privacy.

        Raises
        ------
        StreamRefused
            If a part of it is missing or changed.
        """
        if self._stream.privacy_unit != "user":
            return None
        limit = self._stream.contributions_per_user
        if checkpoint is None:
            return UserLog(limit)
        if checkpoint.users is None:
            raise self._unreadable("the last state names no table of users")
        parts, self._parts = self._parts.joined(checkpoint.users), PartChunks()
        try:
            return UserLog.rebuilt(limit, checkpoint.users, parts)
        except MalformedUserLog as error:
            raise self._unreadable(str(error)) from None

    def _unreadable(self, reason: str) -> StreamRefused:
        return StreamRefused(
            f"state topic {self._stream.state_topic!r} cannot be read: {reason}. Restore it, or start "
            "the stream under a new name"
        )

    def close(self) -> None:
        """Release the consumer."""
        self._reader.close()
