"""What goes over the wire: payload codecs in; releases and states out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming_pca.arrow import find_pyarrow, rows_of_arrow
from streaming_pca.local.promise import PROMISE_HEADER
from streaming_pca.payloads import rows_of_json, rows_of_npy
from streaming_pca.privacy.users import hash_users
from streaming_pca.records import RecordKind, is_symmetric
from streaming_pca.user_index import UserIndex

__all__ = [
    "CONTENT_TYPES",
    "Checkpoint",
    "MalformedCheckpoint",
    "Message",
    "PayloadCodec",
    "PrivacyUnit",
    "decode_checkpoint",
    "encode_checkpoint",
]

JSON = "application/json"
NPY = "application/x-npy"
OCTETS = "application/octet-stream"
ARROW = "application/vnd.apache.arrow.stream"
CONTENT_TYPES = (OCTETS, NPY, JSON, ARROW)

_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_PLAIN = [("content-type", OCTETS.encode())]
Rows = NDArray[np.floating]
PrivacyUnit = Literal["message", "row", "user"]


class Message(Protocol):
    """The parts of a Kafka message that a codec reads."""

    key: bytes | None
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
        Most rows of a payload.
    unit : {"message", "row", "user"}
        What a record is: a whole payload ("user" too), or each of its rows.
    user_key : bytes or None
        For unit user: what messages' keys are hashed with.
    promise : bytes or None
        For records of kind local: what the header ``local-promise`` of a report must say.
    arrow : bool
        Whether pyarrow is installed. Without it Arrow payloads are null.

    Notes
    -----
    A report, the record of kind local, is nobody's secret any more, but a record
    without noise on the same topic is. So nothing counts as a report but what says
    that it is one: octets of d (d + 1)/2 float32 whose headers name the kind, and
    the promise that the stream has made of it.

    Where each row is a record, two streams are neighbours if one row holds
    something else. Then the number of rows must not change, nor any other row.
    So what a message says is of two sorts:

    *structure*, public, the same in neighbours: its headers (content type,
    number type, kind) and how many rows there are. For octets that is the
    number of bytes; for npy the header; for JSON the object around the rows
    and the commas between them; for Arrow the schema and the lengths of the
    batches. A structure that cannot be read, or has over ``max_rows`` rows,
    has none.

    *contents*: what is in the place of one row. For octets and npy its bytes,
    for JSON any JSON value, for Arrow any number or null in each column. A
    row that holds a NaN, an infinity, no numbers or the wrong number of them
    is a row of NaNs. No contents take part in the structure: a payload's
    length is bounded only where the number of rows fixes it, and a JSON row
    is parsed, and bounded, by itself.
    """

    dim: int
    kind: RecordKind = RecordKind.FACTOR
    dtype: Literal["float32", "float64"] = "float32"
    max_rows: int = 64
    unit: PrivacyUnit = "message"
    user_key: bytes | None = field(default=None, repr=False)
    promise: bytes | None = None
    _pyarrow: Any | None = field(init=False, repr=False, compare=False, default_factory=find_pyarrow)

    def __post_init__(self) -> None:
        if self.unit == "row" and self.kind is RecordKind.MATRIX:
            raise ValueError("a row is no matrix: unit row needs records of kind factor")
        if (self.promise is not None) != (self.kind is RecordKind.LOCAL):
            raise ValueError("records of kind local, and no others, have a promise")

    @property
    def arrow(self) -> bool:
        """Whether Arrow payloads can be read."""
        return self._pyarrow is not None

    def decode(self, message: Message) -> Rows | None:
        """The rows (r, d) of one payload, or None for one that has none.

        A function of the message alone. Where the message is the record,
        anything undecodable, oversized, misshapen, of another kind, or with a
        NaN or an infinity is null: None. Where rows are records, see the notes
        of the class; rows that are null records are NaNs.
        """
        try:
            rows = self._decode(message)
        except Exception:
            # Whatever a payload makes a decoder raise, an error that got out would end the worker: it
            # would tell the world about the payload, and the batch would lose its other records.
            return None
        if rows is None:
            return None
        if self.unit == "row":
            return _null_rows_as_nan(rows)
        if not len(rows) or not np.isfinite(rows).all():
            return None
        if self.kind is RecordKind.MATRIX and not is_symmetric(rows):
            return None
        return rows

    def _decode(self, message: Message) -> Rows | None:
        value = message.value
        if value is None:
            return None
        headers = {key: bytes(item or b"") for key, item in message.headers or ()}
        kind = headers.get("record-kind")
        if kind is not None and kind != self.kind.encode():
            return None
        content_type = headers.get("content-type", OCTETS.encode()).decode("ascii").split(";")[0].strip()
        if self.kind is RecordKind.LOCAL:
            return self._report(value, content_type, headers)
        if len(value) > self._most_bytes(content_type):
            return None
        if content_type == OCTETS:
            name = headers.get("dtype", self.dtype.encode()).decode("ascii")
            array: NDArray[Any] = np.frombuffer(value, dtype=_DTYPES[name])
            if array.size % self.dim:
                return None
            array = array.reshape(-1, self.dim)
        elif content_type == NPY:
            array = rows_of_npy(value)
        elif content_type == JSON:
            array = rows_of_json(value, self.dim, self._most_rows)
        elif content_type == ARROW and self._pyarrow is not None:
            array = rows_of_arrow(self._pyarrow, value, self.dim, self._most_rows)
        else:
            return None
        return self._shaped(array)

    def _report(self, value: bytes, content_type: str, headers: Mapping[str, bytes]) -> Rows | None:
        """The one row of a report."""
        said = (headers.get("record-kind"), headers.get(PROMISE_HEADER))
        size = 4 * self.kind.width(self.dim)
        if content_type != OCTETS or said != (self.kind.encode(), self.promise) or len(value) != size:
            return None
        # A copy: the message may go.
        return np.frombuffer(value, dtype=_DTYPES["float32"]).astype(np.float32).reshape(1, -1)

    @property
    def _most_rows(self) -> int:
        return self.dim if self.kind is RecordKind.MATRIX else self.max_rows

    def _most_bytes(self, content_type: str) -> float:
        """A JSON number takes 25 bytes at most as Python and JavaScript write it.

        Arrow's reader has bounds of its own. A payload of JSON rows has none: its
        length is contents, and rows bounded one by one take no more memory than it.
        """
        if content_type == ARROW or (content_type == JSON and self.unit == "row"):
            return float("inf")
        return 4096 + self._most_rows * (self.dim * 26 + 8)

    def _shaped(self, array: NDArray[Any]) -> Rows | None:
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            return None
        if array.ndim == 1 and self.kind is RecordKind.FACTOR:
            array = array[None, :]
        if array.ndim != 2 or array.shape[1] != self.dim or len(array) > self._most_rows:
            return None
        if self.kind is RecordKind.MATRIX and len(array) != self.dim:
            return None
        small = array.dtype == np.float32 or array.dtype == np.dtype("<f4")
        # Casting a signalling NaN warns, and a warning would tell of the record.
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(array, dtype=np.float32 if small else np.float64)

    def decode_many(self, messages: Sequence[Message]) -> tuple[Rows, NDArray[np.int64]]:
        """Rows of all messages in order, and how many rows each has (0 for null ones).

        Where rows are records, null ones are rows of NaNs, each in its place:
        ``Batch.of_vectors`` takes them as that.
        """
        fast = self._decode_octets(messages)
        if fast is not None:
            return fast
        decoded = [self.decode(message) for message in messages]
        lengths = np.array([0 if rows is None else len(rows) for rows in decoded], dtype=np.int64)
        present = [rows for rows in decoded if rows is not None]
        return np.concatenate(present or [self._no_rows]), lengths

    @property
    def _no_rows(self) -> Rows:
        return np.zeros((0, self.kind.width(self.dim)), np.float32)

    def users_of(self, messages: Sequence[Message]) -> NDArray[np.uint64] | None:
        """Keyed hashes (n, 2) of the messages' keys, for unit user; a key itself goes no further.

        (0, 0) for a message without a key. None for other units.
        """
        if self.user_key is None:
            return None
        return hash_users(self.user_key, [message.key for message in messages])

    def _decode_octets(self, messages: Sequence[Message]) -> tuple[Rows, NDArray[np.int64]] | None:
        """The fast path: plain octet streams, gathered in one copy."""
        if self.kind is not RecordKind.FACTOR:
            return None
        values: list[bytes] = []
        for message in messages:
            headers = message.headers
            if headers and list(headers) != _PLAIN:
                return None
            values.append(message.value or b"")
        dtype = _DTYPES[self.dtype]
        sizes = np.fromiter(map(len, values), dtype=np.int64, count=len(values))
        lengths, rest = np.divmod(sizes, self.dim * dtype.itemsize)
        wrong = (rest != 0) | (lengths > self.max_rows)
        if wrong.any():
            lengths[wrong] = 0
            values = [b"" if bad else value for value, bad in zip(values, wrong, strict=True)]
        rows: Rows = np.frombuffer(b"".join(values), dtype=dtype).reshape(-1, self.dim)
        if self.unit == "row":
            return _null_rows_as_nan(rows), lengths
        finite = np.isfinite(rows)
        if not finite.all():
            owner = np.repeat(np.arange(len(lengths)), lengths)
            null = np.zeros(len(lengths), dtype=bool)
            null[owner[~finite.all(axis=1)]] = True
            rows = rows[~null[owner]]
            lengths[null] = 0
        return rows, lengths


def _null_rows_as_nan(rows: Rows) -> Rows:
    finite = np.isfinite(rows)
    if finite.all():
        return rows
    rows = rows.copy()
    rows[~finite.all(axis=1)] = np.nan
    return rows


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
    epochs : dict of partition to leader epoch
        Of the last records before the positions, as far as they are known.
    salt : bytes
        Makes the digest in the ledger useless to whoever lacks the state.
    state, release : bytes
    users : UserIndex or None
        Only where the privacy unit is the user.
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
    """Bytes of a checkpoint, and their digest for the ledger (the salt is inside)."""
    facts = {
        "version": 1,
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
        facts["users"] = checkpoint.users.plain()
    header = json.dumps(facts, sort_keys=True).encode()
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
            users=UserIndex.of_plain(header["users"]) if "users" in header else None,
            epochs={int(p): int(epoch) for p, epoch in header.get("epochs", {}).items()},
        )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise MalformedCheckpoint(f"state message cannot be read: {error}") from None
    return checkpoint, hashlib.sha256(data).hexdigest()
