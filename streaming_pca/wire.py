"""What goes over the wire: payload codecs in; releases and states out."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError

from streaming_pca.records import RecordKind, is_symmetric

__all__ = [
    "CONTENT_TYPES",
    "Checkpoint",
    "MalformedCheckpoint",
    "Message",
    "PayloadCodec",
    "Release",
    "decode_checkpoint",
    "encode_checkpoint",
]

JSON = "application/json"
NPY = "application/x-npy"
OCTETS = "application/octet-stream"
CONTENT_TYPES = (OCTETS, NPY, JSON)

_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
Rows = NDArray[np.floating]


class Message(Protocol):
    """The parts of a Kafka message that a codec reads."""

    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class PayloadCodec:
    """Reads payloads of one stream.

    Attributes
    ----------
    dim : int
    kind : RecordKind
    dtype : {"float32", "float64"}
        Of octet streams whose message does not say (header ``dtype``).
    max_rows : int
        Most rows of a factor.
    """

    dim: int
    kind: RecordKind = RecordKind.FACTOR
    dtype: Literal["float32", "float64"] = "float32"
    max_rows: int = 64

    def decode(self, message: Message) -> Rows | None:
        """The rows (r, d) of one record, or None for the null record.

        Anything undecodable, oversized, misshapen, of another kind, or with a
        NaN or an infinity is null. This is a function of the message alone.
        """
        try:
            rows = self._decode(message)
        except Exception:
            # Whatever a payload makes a decoder raise, an error that got out would end the worker: it
            # would tell the world about the payload, and the batch would lose its other records.
            return None
        if rows is None or not np.isfinite(rows).all():
            return None
        if self.kind is RecordKind.MATRIX and not is_symmetric(rows):
            return None
        return rows

    def _decode(self, message: Message) -> Rows | None:
        value = message.value
        if not value or len(value) > self._most_bytes:
            return None
        headers = {key: bytes(item or b"") for key, item in message.headers or ()}
        kind = headers.get("record-kind")
        if kind is not None and kind != self.kind.encode():
            return None
        content_type = headers.get("content-type", OCTETS.encode()).decode("ascii").split(";")[0].strip()
        if content_type == OCTETS:
            name = headers.get("dtype", self.dtype.encode()).decode("ascii")
            array: NDArray[Any] = np.frombuffer(value, dtype=_DTYPES[name])
            if array.size % self.dim:
                return None
            array = array.reshape(-1, self.dim)
        elif content_type == NPY:
            array = _from_npy(value)
        elif content_type == JSON:
            array = _from_json(json.loads(value))
        else:
            return None
        return self._shaped(array)

    @property
    def _most_rows(self) -> int:
        return self.dim if self.kind is RecordKind.MATRIX else self.max_rows

    @property
    def _most_bytes(self) -> int:
        """A JSON number takes 25 bytes at most as Python and JavaScript write it."""
        return 4096 + self._most_rows * (self.dim * 26 + 8)

    def _shaped(self, array: NDArray[Any]) -> Rows | None:
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            return None
        if array.ndim == 1 and self.kind is RecordKind.FACTOR:
            array = array[None, :]
        if array.ndim != 2 or array.shape[1] != self.dim or not 1 <= len(array) <= self._most_rows:
            return None
        if self.kind is RecordKind.MATRIX and len(array) != self.dim:
            return None
        small = array.dtype == np.float32 or array.dtype == np.dtype("<f4")
        # Casting a signalling NaN warns, and a warning would tell of the record.
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(array, dtype=np.float32 if small else np.float64)

    def decode_many(self, messages: Sequence[Message]) -> tuple[Rows, NDArray[np.int64]]:
        """Rows of all messages in order, and how many rows each has (0 for null ones)."""
        fast = self._decode_vectors(messages)
        if fast is not None:
            return fast
        decoded = [self.decode(message) for message in messages]
        lengths = np.array([0 if rows is None else len(rows) for rows in decoded], dtype=np.int64)
        present = [rows for rows in decoded if rows is not None]
        return np.concatenate(present) if present else np.zeros((0, self.dim), np.float32), lengths

    def _decode_vectors(self, messages: Sequence[Message]) -> tuple[Rows, NDArray[np.int64]] | None:
        """The fast path: plain octet streams of one row, gathered in one copy."""
        if self.kind is not RecordKind.FACTOR:
            return None
        dtype = _DTYPES[self.dtype]
        size = self.dim * dtype.itemsize
        values: list[bytes] = []
        plain = [("content-type", OCTETS.encode())]
        for message in messages:
            value, headers = message.value, message.headers
            if value is None or len(value) != size or (headers and list(headers) != plain):
                return None
            values.append(value)
        rows: Rows = np.frombuffer(b"".join(values), dtype=dtype).reshape(-1, self.dim)
        finite = np.atleast_1d(np.isfinite(rows).all(axis=1))
        lengths: NDArray[np.int64] = finite.astype(np.int64)
        return (rows if finite.all() else rows[finite]), lengths


# Written by every numpy since 2011. numpy's own reader accepts more, and prints warnings about it.
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[fiu][1248])', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \}\s*\Z"
)


def _from_npy(value: bytes) -> NDArray[Any]:
    version = value[:8]
    if version == b"\x93NUMPY\x01\x00":
        start = 10 + int.from_bytes(value[8:10], "little")
        header = value[10:start]
    elif version in (b"\x93NUMPY\x02\x00", b"\x93NUMPY\x03\x00"):
        start = 12 + int.from_bytes(value[8:12], "little")
        header = value[12:start]
    else:
        raise ValueError("no npy header")
    found = _NPY_HEADER.match(header)
    if found is None:
        raise ValueError("not the header of an array of numbers")
    shape = tuple(int(n) for n in found[3].split(b",") if n.strip())
    array = np.frombuffer(value, dtype=np.dtype(found[1].decode()), offset=start)
    return array.reshape(shape, order="F" if found[2] == b"True" else "C")


def _from_json(body: Any) -> NDArray[Any]:
    if not isinstance(body, dict) or len(body) != 1:
        raise ValueError("expected one key, x or rows")
    ((key, value),) = body.items()
    if key not in ("x", "rows"):
        raise ValueError("expected x or rows")
    array = np.array(value)  # ragged lists raise ValueError; booleans and text are refused by _shaped
    if array.ndim != (1 if key == "x" else 2):
        raise ValueError("x is a list of numbers, rows a list of those")
    return array


class Release(BaseModel):
    """One published subspace, as JSON on the releases topic."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    schema_name: Literal["streaming-pca.release"] = "streaming-pca.release"
    version: Literal[1] = 1
    kind: Literal["subspace"] = "subspace"
    stream: str
    batch: int
    """The ledger's number of the batch that it came with."""
    records: int
    """Records delivered so far, null ones included."""
    dim: int
    rank: int
    estimator: str
    components: list[list[float]]
    """k rows of d numbers, orthonormal, by decreasing explained variance."""
    explained_variance: list[float]
    mean: list[float] | None
    epsilon: float
    delta: float
    adjacency: str
    privacy_unit: str
    created: str
    """ISO 8601, UTC."""

    def to_bytes(self) -> bytes:
        """The message's value."""
        return self.model_dump_json().encode()

    @classmethod
    def from_bytes(cls, data: bytes) -> Release:
        """Read a message's value; ValueError if it is no release."""
        try:
            return cls.model_validate_json(data)
        except ValidationError as error:
            raise ValueError(f"not a release: {error.errors()[0]['msg']}") from None


class MalformedCheckpoint(ValueError):
    """A state that does not hold together."""


@dataclass(frozen=True)
class Checkpoint:
    """All that a successor needs: the estimator's state, positions, the pending release.

    Attributes
    ----------
    topic_id, stream : str
    batch : int
        The ledger's batch number.
    positions : dict of partition to offset
        Where the batch ended.
    salt : bytes
        Makes the digest in the ledger useless to whoever lacks the state.
    state, release : bytes
    """

    topic_id: str
    stream: str
    batch: int
    positions: dict[int, int]
    salt: bytes
    state: bytes
    release: bytes


def encode_checkpoint(checkpoint: Checkpoint) -> tuple[bytes, str]:
    """Bytes of a checkpoint, and their digest for the ledger (the salt is inside)."""
    header = json.dumps(
        {
            "version": 1,
            "topic_id": checkpoint.topic_id,
            "stream": checkpoint.stream,
            "batch": checkpoint.batch,
            "positions": {str(p): o for p, o in sorted(checkpoint.positions.items())},
            "salt": checkpoint.salt.hex(),
            "state_bytes": len(checkpoint.state),
        },
        sort_keys=True,
    ).encode()
    data = len(header).to_bytes(4, "big") + header + checkpoint.state + checkpoint.release
    return data, hashlib.sha256(data).hexdigest()


def decode_checkpoint(data: bytes) -> tuple[Checkpoint, str]:
    """Read what :func:`encode_checkpoint` wrote, and its digest."""
    try:
        size = int.from_bytes(data[:4], "big")
        header = json.loads(data[4 : 4 + size])
        body = data[4 + size :]
        checkpoint = Checkpoint(
            topic_id=header["topic_id"],
            stream=header["stream"],
            batch=header["batch"],
            positions={int(p): int(o) for p, o in header["positions"].items()},
            salt=bytes.fromhex(header["salt"]),
            state=body[: header["state_bytes"]],
            release=body[header["state_bytes"] :],
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MalformedCheckpoint(f"state message cannot be read: {error}") from None
    return checkpoint, hashlib.sha256(data).hexdigest()
