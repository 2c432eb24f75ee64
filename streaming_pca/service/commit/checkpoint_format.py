"""Byte format of a checkpoint, which the state topic stores in chunks."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming_pca.privacy.users import UserIndex

_VERSION = 1


class MalformedCheckpoint(ValueError):
    """State message that cannot be read."""


@dataclass(frozen=True)
class Checkpoint:
    """Complete state of a stream after a batch; another worker can continue from it.

    Attributes
    ----------
    batch : int
        Number of the batch in the ledger.
    positions : dict of partition to offset
        End of the batch.
    salt : bytes
        Random bytes that make the digest in the ledger useless without the state.
    state, release : bytes
        The estimator's state, and the release to publish.
    users : UserIndex or None
        Index of users, if the privacy unit is the user.
    epochs : dict of partition to leader epoch
        Epochs of the last records before the positions, if known.
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
    """Decode the bytes of :func:`encode_checkpoint`; return the checkpoint and its digest.

    Raises
    ------
    MalformedCheckpoint
    """
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
        raise MalformedCheckpoint(f"state message cannot be read: {error}") from None
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
