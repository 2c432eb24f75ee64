"""State topic: checkpoints in chunks, written in the caller's transaction.

Chunks have keys 0, 1, ... with batch, count and digest in their headers, so compaction cannot tear a state
apart and the number of keys does not grow. Parts of the table of users (:mod:`.user_log`) have keys NAME.0,
NAME.1, ...; the checkpoint after them contains the size and digest of each.

The topic's size depends on the number of users, which is private: no message shows offsets of it.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any

from streaming_pca.config.kafka import KafkaSettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.privacy.ledger.verify import StoredState
from streaming_pca.privacy.users import UserIndex
from streaming_pca.service.commit.log_reader import LogReader, high_watermark
from streaming_pca.service.commit.user_log import MalformedState, UserLog, check_parts
from streaming_pca.service.errors import StreamRefused
from streaming_pca.service.kafka.transaction import Transaction

_VERSION = 1


@dataclass(frozen=True)
class Checkpoint:
    """Complete state of a stream after a batch; another worker can continue from it.

    - ``batch``: number of the batch in the ledger.
    - ``positions``, ``epochs``: by partition, its end and, if known, the leader epoch of the last record.
    - ``salt``: random bytes that make the digest in the ledger useless without the state.
    - ``release``: the release to publish.
    - ``users``: index of users, if the privacy unit is the user.
    """

    topic_id: str
    stream: str
    batch: int
    positions: dict[int, int]
    salt: bytes
    state: bytes
    release: bytes
    users: UserIndex | None = None
    epochs: dict[int, int] = field(default_factory=dict)


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, str]:
    """Return a checkpoint's bytes and their digest for the ledger."""
    facts = {
        "version": _VERSION,
        "topic_id": checkpoint.topic_id,
        "stream": checkpoint.stream,
        "batch": checkpoint.batch,
        "positions": {str(p): o for p, o in sorted(checkpoint.positions.items())},
        "salt": checkpoint.salt.hex(),
        "state_bytes": len(checkpoint.state),
    }
    if checkpoint.epochs:
        facts["epochs"] = {str(p): epoch for p, epoch in sorted(checkpoint.epochs.items())}
    if checkpoint.users is not None:
        facts["users"] = checkpoint.users.to_dict()
    header = json.dumps(facts, sort_keys=True).encode()
    data = len(header).to_bytes(4, "big") + header + checkpoint.state + checkpoint.release
    return data, hashlib.sha256(data).hexdigest()


def decode_checkpoint(data: bytes) -> tuple[Checkpoint, str]:
    """Decode :func:`encode_checkpoint`'s bytes, with their digest; raise MalformedState."""
    try:
        size = int.from_bytes(data[:4], "big")
        header = json.loads(data[4 : 4 + size])
        if header["version"] != _VERSION:
            raise ValueError(
                f"it is of version {header['version']!r:.60}, and this program reads version {_VERSION}: "
                "update streaming-pca"
            )
        body = data[4 + size :]
        split = _whole(header["state_bytes"], len(body))
        checkpoint = Checkpoint(
            topic_id=_text(header["topic_id"]),
            stream=_text(header["stream"]),
            batch=_whole(header["batch"]),
            positions=_by_partition(header["positions"]),
            salt=bytes.fromhex(header["salt"]),
            state=body[:split],
            release=body[split:],
            users=UserIndex.from_dict(header["users"]) if "users" in header else None,
            epochs=_by_partition(header.get("epochs", {})),
        )
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise MalformedState(f"state message cannot be read: {error}") from None
    return checkpoint, hashlib.sha256(data).hexdigest()


def _whole(value: Any, most: int = 2**63 - 1) -> int:
    if type(value) is not int or not 0 <= value <= most:
        raise ValueError("a number is out of its range")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError("a name is not text")
    return value


def _by_partition(values: Mapping[str, Any]) -> dict[int, int]:
    return {_whole(int(p), 2**31 - 1): _whole(value) for p, value in values.items()}


_CHUNK_BYTES = 512 * 1024
_PARTS = b"users."

PATIENCE_SECONDS = 60.0  # time limit without progress, in seconds, for reading a topic while workers run


def send_state(
    transaction: Transaction, topic: str, data: bytes, digest: str, batch: int, parts: Mapping[str, bytes]
) -> None:
    """Send a checkpoint's bytes after the parts that it names, in one transaction.

    In this order, the last message of each key before a checkpoint's end belongs to its commit.
    """
    headers = [("batch", str(batch).encode())]
    for name, part in parts.items():
        for index, chunk in enumerate(_chunks(part)):
            transaction.send(topic, chunk, f"{name}.{index}".encode(), headers)
    headers += [("chunks", str(math.ceil(len(data) / _CHUNK_BYTES)).encode()), ("digest", digest.encode())]
    for index, chunk in enumerate(_chunks(data)):
        transaction.send(topic, chunk, str(index).encode(), headers)


def _chunks(data: bytes) -> Iterator[bytes]:
    return (data[first : first + _CHUNK_BYTES] for first in range(0, len(data), _CHUNK_BYTES))


def is_part(message: Any) -> bool:
    """Return whether a message is a chunk of the table of users."""
    return bool((message.key or b"").startswith(_PARTS))


def join_parts(index: UserIndex, chunks: Mapping[bytes, bytes]) -> dict[str, bytes]:
    """Join an index's complete parts from the last chunk of each key; contents are not checked."""
    found = {}
    for name, part in index.parts.items():
        parts = []
        # Stop at the first missing chunk: the size is claimed by the state and may be any number.
        for i in range(math.ceil(part.size / _CHUNK_BYTES)):
            chunk = chunks.get(f"{name}.{i}".encode())
            if chunk is None:
                break
            parts.append(chunk)
        else:
            found[name] = b"".join(parts)
    return found


class StateReader:
    """Reader of a state topic up to its last state; refuses one of another input than ``topic_id``."""

    def __init__(self, kafka: KafkaSettings, stream: StreamSettings, topic_id: str) -> None:
        self._stream, self._topic_id = stream, topic_id
        self._patience = kafka.transaction_timeout_ms / 1000 + 60
        self._reader = LogReader(kafka, stream.state_topic, public_size=False)
        self._chunks: dict[int, Any] = {}
        self._parts: dict[bytes, bytes] = {}

    def read_to(self, end: int) -> None:
        for message in self._reader.read_to(end, self._patience):
            if is_part(message):
                self._parts[message.key] = message.value or b""
                continue
            try:
                self._chunks[int(message.key)] = message
            except (TypeError, ValueError):
                raise self._unreadable("a message is not a chunk of a state") from None

    def read_committed(self) -> None:
        """Read the committed chunks without waiting for open transactions."""
        self.read_to(self._reader.committed_end())

    def last(self) -> tuple[Checkpoint | None, str]:
        """Return the last state and its digest, or None and "".

        Raises StreamRefused if a chunk is missing or changed, or the state is of a former input topic.
        """
        if not self._chunks:
            return None, ""
        # The latest chunk 0 belongs to the latest commit. Chunks that compaction or a shorter commit left
        # at higher keys have another digest.
        try:
            first = dict(self._chunks[0].headers)
            parts = []
            for index in range(int(first["chunks"])):
                if dict(self._chunks[index].headers)["digest"] != first["digest"]:
                    raise MalformedState(f"chunk {index} belongs to another commit")
                parts.append(self._chunks[index].value)
            data = b"".join(parts)
            if hashlib.sha256(data).hexdigest() != first["digest"].decode():
                raise MalformedState("digest does not match")
            checkpoint, digest = decode_checkpoint(data)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise self._unreadable(str(error)) from None
        if checkpoint.topic_id != self._topic_id:
            raise StreamRefused(
                f"the state of stream {self._stream.name!r} belongs to another input topic than the present "
                f"{self._stream.input!r}: set stream.input back. If the topic was deleted and created again, "
                "its records are other data: choose a new stream.name"
            )
        return checkpoint, digest

    def users(self, checkpoint: Checkpoint | None) -> UserLog | None:
        """Rebuild the table of users after the last state, if any; raise StreamRefused if damaged."""
        if self._stream.privacy_unit != "user":
            return None
        limit = self._stream.contributions_per_user
        if checkpoint is None:
            return UserLog(limit)
        if checkpoint.users is None:
            raise self._unreadable("the last state does not name a table of users")
        parts, self._parts = join_parts(checkpoint.users, self._parts), {}
        try:
            return UserLog.rebuilt(limit, checkpoint.users, parts)
        except MalformedState as error:
            raise self._unreadable(str(error)) from None

    def _unreadable(self, reason: str) -> StreamRefused:
        return StreamRefused(
            f"state topic {self._stream.state_topic!r} cannot be read: {reason}. Restore it, or start "
            "the stream under a new name"
        )

    def close(self) -> None:
        self._reader.close()


def check_input(kafka: KafkaSettings, stream: StreamSettings, topic_id: str) -> int:
    """Return the last batch of the state, 0 without one.

    Raises StreamRefused if it cannot be read, or has an input other than ``topic_id``.
    """
    with closing(StateReader(kafka, stream, topic_id)) as states:
        states.read_committed()
        checkpoint, _ = states.last()
        return 0 if checkpoint is None else checkpoint.batch


@dataclass(frozen=True)
class FoundState:
    """State found on a topic.

    ``data`` and ``users`` are None unless complete; ``last`` is the topic's last digest, "" if it is empty;
    ``is_whole`` is True if ``data`` is there and, if needed, ``users``.
    """

    data: bytes | None = None
    users: bytes | None = None
    last: str = ""
    is_whole: bool = False


def find_state(kafka: KafkaSettings, topic: str, digest: str) -> FoundState:
    chunks: dict[int, bytes] = {}
    parts: dict[bytes, bytes] = {}
    complete, last = False, ""
    with closing(LogReader(kafka, topic, public_size=False)) as reader:
        try:
            for message in reader.read_to(high_watermark(kafka, topic), PATIENCE_SECONDS):
                if is_part(message):
                    # Parts after the state belong to later states.
                    if not complete:
                        parts[message.key] = message.value or b""
                    continue
                headers = dict(message.headers or ())
                last = headers.get("digest", b"?").decode("ascii", "replace")
                if last == digest:
                    chunks[int(message.key)] = message.value or b""
                    complete = len(chunks) == int(headers.get("chunks", b"0"))
        except (AttributeError, TypeError, ValueError):
            return FoundState(last="?")  # another program's message: its key is not a number
    data = b"".join(chunks[index] for index in sorted(chunks))
    if _digest(data) != digest:
        return FoundState(last=last)
    index: UserIndex | None = None
    users: bytes | None = None
    with suppress(MalformedState):
        index = decode_checkpoint(data)[0].users
        if index is not None:
            joined = join_parts(index, parts)
            check_parts(index, joined)
            users = index.join(joined)
    return FoundState(data, users, last, is_whole=index is None or users is not None)


def summarise(data: bytes, users: bytes | None) -> StoredState:
    """Summarise a state and check its table, without which users would be counted from zero."""
    try:
        checkpoint, digest = decode_checkpoint(data)
    except MalformedState as error:
        return StoredState(_digest(data), problem=str(error))
    index, problem = checkpoint.users, ""
    if index is None:
        problem = "" if users is None else "a table of users that its state does not name"
    elif users is None:
        problem = "its table of users is missing"
    else:
        try:
            check_parts(index, index.split(users))
        except ValueError as error:
            problem = str(error)
    facts = (checkpoint.topic_id, checkpoint.stream, checkpoint.batch, problem)
    return StoredState(digest, *facts, _digest(checkpoint.release))


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()
