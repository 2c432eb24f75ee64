"""Codec of payloads: from a message to rows of numbers, or to a null record."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any, Final, Literal, NamedTuple, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.arrow import find_pyarrow, rows_of_arrow
from streaming_pca.data.features.reading import MOST_OBJECT_BYTES, FieldReader
from streaming_pca.data.features.records import ARROW, AVRO, JSON, PROTOBUF, Schemas
from streaming_pca.data.payloads import MalformedPayload, rows_of_json, rows_of_npy
from streaming_pca.data.records import RecordKind, is_symmetric
from streaming_pca.local.headers import CONTRACT_HEADER, KIND_HEADER, REPORT_KIND
from streaming_pca.privacy.users import hash_users
from streaming_pca.text import install_command

MediaType = Literal[
    "application/octet-stream",
    "application/x-npy",
    "application/json",
    "application/vnd.apache.arrow.stream",
    "application/avro",
    "application/x-protobuf",
]
"""Formats of payloads, as the header ``content-type`` names them."""
OCTETS: Final = "application/octet-stream"
NPY: Final = "application/x-npy"
CONTENT_TYPES: tuple[MediaType, ...] = get_args(MediaType)
Format = Literal["octets", "npy", "json", "arrow", "avro", "protobuf"]
FORMATS: Final[dict[Format, MediaType]] = {
    "octets": OCTETS,
    "npy": NPY,
    "json": JSON,
    "arrow": ARROW,
    "avro": AVRO,
    "protobuf": PROTOBUF,
}
"""Formats by their short names."""
_SAME = {"avro/binary": AVRO, "application/protobuf": PROTOBUF}  # other names of media types

_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_PLAIN = [("content-type", OCTETS.encode())]
_DESCRIBED = {
    dtype: [*_PLAIN, ("dtype", dtype.encode()), (KIND_HEADER, RecordKind.FACTOR.encode())]
    for dtype in _DTYPES
}
"""Headers of plain octets, as `streaming_pca.client` writes them for factors of each type."""
_MOST_OBJECTS_BYTES = 2**22  # longest list of JSON objects that is one record
Rows = NDArray[np.floating]
PrivacyUnit = Literal["message", "row", "user"]


class Message(Protocol):
    """Parts of a Kafka message that a codec reads."""

    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]


class Decoded(NamedTuple):
    """Rows of messages."""

    rows: Rows
    """(n, width) all messages' rows in order. If rows are records, null records are rows of NaNs."""
    lengths: NDArray[np.int64]
    """(m,) number of each message's rows; 0 for a null message."""
    users: NDArray[np.uint64] | None
    """(m, 2) keyed hashes of the messages' users, (0, 0) for a message without one, for unit user."""


@dataclass(frozen=True)
class PayloadCodec:
    """Decoder of the payloads of one stream; without pyarrow Arrow payloads are null.

    If each row is a record, neighbours differ in the *contents* of one row. The
    *structure* of a message, its headers and its number of rows, is public and
    never depends on contents. Explanation: docs/reference/messages.md.

    A message counts as a report, the record of kind local, only if its headers name the kind and the stream's
    local guarantee: a record without noise on the same topic is a secret, a report is not.
    """

    dim: int
    kind: RecordKind = RecordKind.FACTOR
    dtype: Literal["float32", "float64"] = "float32"
    """Number type of octet streams without a header ``dtype``."""
    max_rows: int = 64
    """Most rows of a payload."""
    unit: PrivacyUnit = "message"
    """A record is one row if it is "row", a whole payload otherwise."""
    user_key: bytes | None = field(default=None, repr=False)
    """Key of the hash of message keys, for unit user."""
    privacy_contract: bytes | None = None
    """Required value of a report's header ``local-promise``, for records of kind local."""
    content_type: MediaType = OCTETS
    """Format of messages without a header ``content-type``."""
    fields: FieldReader | None = None
    """Reader of records with named fields, in place of JSON lists and Arrow columns of numbers."""
    _pyarrow: Any | None = field(init=False, repr=False, compare=False, default_factory=find_pyarrow)

    def __post_init__(self) -> None:
        if self.unit == "row" and self.kind is RecordKind.MATRIX:
            raise ValueError("unit row needs records of kind factor, not matrix")
        if (self.privacy_contract is not None) != (self.kind is RecordKind.LOCAL):
            raise ValueError("records of kind local, and only these, need a privacy contract")
        if self.fields is not None and (
            self.kind is not RecordKind.FACTOR or self.fields.map.dim != self.dim
        ):
            raise ValueError("records with named fields must be factors of the map's columns")

    @property
    def arrow(self) -> bool:
        """True if Arrow payloads can be read."""
        return self._pyarrow is not None

    @property
    def schemas(self) -> Schemas | None:
        """Schemas of a registry that records name, by their ids."""
        return None if self.fields is None else self.fields.schemas

    def decode(self, message: Message) -> Rows | None:
        """Return the rows (r, d) of one payload, or None without rows.

        The result depends on the message alone. If the message is the record, it is None (null) for anything
        undecodable, oversized, misshapen, of another kind, or with a NaN or an infinity. If rows are records,
        see the notes of the class; null records are rows of NaNs.
        """
        try:
            rows = self.read_rows(message)
        except Exception:
            # An error of a decoder must not end the worker: that would reveal something of the payload,
            # and the batch would lose its other records.
            return None
        if self.unit == "row":
            return _null_rows_as_nan(rows)
        if not len(rows) or not np.isfinite(rows).all():
            return None
        if self.kind is RecordKind.MATRIX and not is_symmetric(rows):
            return None
        return rows

    def read_rows(self, message: Message, faults: dict[int, str] | None = None) -> Rows:
        """Return the rows (r, d) of one payload, whose numbers may not be finite.

        ``faults`` receives, by row, the reason why a row of JSON is of NaNs.

        Raises MalformedPayload with the reason if the message has no rows. Decoders may raise other errors.
        """
        value = message.value
        if value is None:
            raise MalformedPayload("it has no value")
        headers = {key: bytes(item or b"") for key, item in message.headers or ()}
        kind = headers.get("record-kind")
        if kind is not None and kind != self.kind.encode():
            raise MalformedPayload(f"its header record-kind is {kind!r}, but the stream reads {self.kind}")
        content_type = self._media_type(headers)
        if self.kind is RecordKind.LOCAL:
            return self._report(value, content_type, headers)
        if len(value) > self._most_bytes(content_type):
            raise MalformedPayload(f"{len(value)} octets are more than {self._most_rows} rows can take")
        if content_type == OCTETS:
            name = headers.get("dtype", self.dtype.encode()).decode("ascii")
            if name not in _DTYPES:
                raise MalformedPayload(f"its header dtype is {name!r}: use one of {', '.join(_DTYPES)}")
            size = self.dim * _DTYPES[name].itemsize
            if len(value) % size:
                raise MalformedPayload(
                    f"{len(value)} octets are not a multiple of {size}, "
                    f"the size of a row of {self.dim} {name}"
                )
            array: NDArray[Any] = np.frombuffer(value, dtype=_DTYPES[name]).reshape(-1, self.dim)
        elif content_type == NPY:
            array = rows_of_npy(value)
        elif self.fields is not None and self.fields.reads(content_type):
            records = self.fields.records(content_type, value, self._most_rows, faults)
            array = self.fields.rows(records, content_type)
        elif content_type == JSON:
            array = rows_of_json(value, self.dim, self._most_rows, faults)
        elif content_type == ARROW:
            if self._pyarrow is None:
                raise MalformedPayload(f"pyarrow is not installed: {install_command('arrow')}")
            array = rows_of_arrow(self._pyarrow, value, self.dim, self._most_rows)
        elif content_type in (AVRO, PROTOBUF):
            raise MalformedPayload(
                f"its content-type is {content_type!r}, but the stream has no schema for it"
            )
        else:
            raise MalformedPayload(f"its content-type is {content_type!r}: use {', '.join(CONTENT_TYPES)}")
        return self._shaped(array)

    def _media_type(self, headers: Mapping[str, bytes]) -> str:
        content_type = headers.get("content-type", self.content_type.encode()).decode("ascii")
        content_type = content_type.split(";")[0].strip().lower()
        return _SAME.get(content_type, content_type)

    def _report(self, value: bytes, content_type: str, headers: Mapping[str, bytes]) -> Rows:
        if content_type != OCTETS:
            raise MalformedPayload(f"its content-type is {content_type!r}: a report must have {OCTETS}")
        for name, wanted in ((KIND_HEADER, REPORT_KIND), (CONTRACT_HEADER, self.privacy_contract)):
            if headers.get(name) != wanted:
                raise MalformedPayload(f"its header {name} is {headers.get(name)!r}, but must be {wanted!r}")
        size = 4 * self.kind.width(self.dim)
        if len(value) != size:
            raise MalformedPayload(f"{len(value)} octets, but a report of dim = {self.dim} takes {size}")
        # A copy, so that the message can be freed.
        return np.frombuffer(value, dtype=_DTYPES["float32"]).astype(np.float32).reshape(1, -1)

    @property
    def _most_rows(self) -> int:
        return self.dim if self.kind is RecordKind.MATRIX else self.max_rows

    def _most_bytes(self, content_type: str) -> float:
        """Return the bound on a payload's length.

        Python and JavaScript write a JSON number in at most 25 bytes. The readers
        of Arrow, Avro and Protobuf have their own bounds. A payload of JSON rows has no bound, because
        its length is contents; rows are bounded one by one.
        """
        if content_type in (ARROW, AVRO, PROTOBUF) or (content_type == JSON and self.unit == "row"):
            return float("inf")
        if content_type == JSON and self.fields is not None:
            return min(self._most_rows * (MOST_OBJECT_BYTES + 2) + 64, _MOST_OBJECTS_BYTES)
        return self.most_bytes

    @property
    def most_bytes(self) -> int:
        """Bound on the length of a payload whose form has one."""
        return 4096 + self._most_rows * (self.dim * 26 + 8)

    def _shaped(self, array: NDArray[Any]) -> Rows:
        if array.dtype.kind not in "fiu" or array.dtype.itemsize > 8:
            raise MalformedPayload(
                f"its numbers have type {array.dtype}: use integers or floats of at most 64 bits"
            )
        if array.ndim == 1 and self.kind is RecordKind.FACTOR:
            array = array[None, :]
        if array.ndim != 2 or array.shape[1] != self.dim:
            raise MalformedPayload(f"its shape is {array.shape}, but dim = {self.dim}")
        if len(array) > self._most_rows:
            raise MalformedPayload(f"{len(array)} rows, but at most {self._most_rows} are allowed")
        if self.kind is RecordKind.MATRIX and len(array) != self.dim:
            raise MalformedPayload(f"its shape is {array.shape}, but a matrix has dim = {self.dim} rows")
        small = array.dtype == np.float32 or array.dtype == np.dtype("<f4")
        # Casting a signalling NaN warns, and a warning would reveal something of the record.
        with np.errstate(all="ignore"):
            return np.ascontiguousarray(array, dtype=np.float32 if small else np.float64)

    def decode_all(self, messages: Sequence[Message]) -> Decoded:
        if self.fields is not None:
            return self._decode_fields(self.fields, messages)
        rows, lengths = self._decode_octets(messages) or self._decode_each(messages)
        return Decoded(rows, lengths, self.user_hashes(message.key for message in messages))

    def _decode_each(self, messages: Sequence[Message]) -> tuple[Rows, NDArray[np.int64]]:
        decoded = [self.decode(message) for message in messages]
        lengths = np.array([0 if rows is None else len(rows) for rows in decoded], dtype=np.int64)
        return np.concatenate([self._no_rows, *(rows for rows in decoded if rows is not None)]), lengths

    @property
    def _no_rows(self) -> Rows:
        return np.zeros((0, self.kind.width(self.dim)), np.float32)

    def _decode_fields(self, fields: FieldReader, messages: Sequence[Message]) -> Decoded:
        """Decode records with fields together, and anything else by itself."""
        parts: list[Decoded] = []
        for content_type, run in groupby(messages, self._fields_media_type):
            some = list(run)
            if content_type is not None:
                values, named = [message.value for message in some], [message.key for message in some]
                parts.append(self.decode_objects(values, named, content_type))
            else:
                keys = (None if fields.user_field is not None else message.key for message in some)
                parts.append(Decoded(*self._decode_each(some), self.user_hashes(keys)))
        users = [part.users for part in parts if part.users is not None]
        return Decoded(
            np.concatenate([self._no_rows, *(part.rows for part in parts)]),
            np.concatenate([np.zeros(0, np.int64), *(part.lengths for part in parts)]),
            np.concatenate(users) if users else self.user_hashes([]),
        )

    @property
    def reads_objects(self) -> bool:
        """True if messages without headers are records with named fields."""
        return self.fields is not None and self.fields.reads(self.content_type)

    def _fields_media_type(self, message: Message) -> str | None:
        """Return the media type of a message whose records have fields; None for other messages."""
        content_type: str = self.content_type
        try:
            if message.headers:
                headers = {key: bytes(item or b"") for key, item in message.headers}
                if headers.get(KIND_HEADER, self.kind.encode()) != self.kind.encode():
                    return None
                content_type = self._media_type(headers)
        except Exception:
            return None
        return content_type if self.fields is not None and self.fields.reads(content_type) else None

    def decode_objects(
        self,
        values: Sequence[bytes | memoryview | None],
        keys: Sequence[bytes | None],
        content_type: str | None = None,
    ) -> Decoded:
        """Decode the values of messages of one media type, by default the stream's."""
        fields = self.fields
        assert fields is not None, "a stream without features"
        content_type = content_type or self.content_type
        limit = self._most_bytes(content_type)
        records, counts = fields.many_records(content_type, values, self._most_rows, limit)
        lengths = np.array(counts, np.int64)
        rows: Rows = fields.rows(records, content_type)
        if fields.user_field is None:
            users = self.user_hashes(keys)
        else:
            users = self.user_hashes(_one_user(fields.users(records, content_type), lengths))
        if self.unit != "row":
            rows = _drop_null(rows, lengths, np.isfinite(rows))
        return Decoded(rows, lengths, users)

    def user_hashes(self, keys: Iterable[bytes | None]) -> NDArray[np.uint64] | None:
        """Return keyed hashes (n, 2) of messages' keys, for unit user.

        A message without a key has (0, 0). The result is None for other units.
        The keys themselves are not kept.
        """
        return None if self.user_key is None else hash_users(self.user_key, list(keys))

    @property
    def plain_headers(self) -> list[list[tuple[str, bytes]]]:
        """Headers of messages whose value is only rows of :attr:`dtype`; [] for a message without headers."""
        named = [_PLAIN, _DESCRIBED[self.dtype]]
        if self.fields is not None and self.fields.user_field is not None:
            # Rows of numbers name no user.
            return []
        return [[], *named] if self.content_type == OCTETS else named

    def _decode_octets(self, messages: Sequence[Message]) -> tuple[Rows, NDArray[np.int64]] | None:
        """Decode plain octet streams in one copy; None if a message is anything else."""
        if self.kind is not RecordKind.FACTOR:
            return None
        values: list[bytes] = []
        plain = self.plain_headers
        for message in messages:
            if list(message.headers or ()) not in plain:
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
            rows = _drop_null(rows, lengths, finite)
        return rows, lengths


def _one_user(users: Sequence[bytes | None], lengths: NDArray[np.int64]) -> Iterator[bytes | None]:
    """Yield the user of each message's records; None unless all of them name the same."""
    first = 0
    for length in lengths.tolist():
        named = set(users[first : first + length])
        yield named.pop() if len(named) == 1 else None
        first += length


def _drop_null(rows: Rows, lengths: NDArray[np.int64], finite: NDArray[np.bool_]) -> Rows:
    """Return the rows of messages without a null one; the others' lengths become 0."""
    owners = np.repeat(np.arange(len(lengths)), lengths)
    null = np.zeros(len(lengths), np.bool_)
    null[owners[~finite.all(axis=1)]] = True
    lengths[null] = 0
    return rows[~null[owners]]


def _null_rows_as_nan(rows: Rows) -> Rows:
    finite = np.isfinite(rows)
    if finite.all():
        return rows
    rows = rows.copy()
    rows[~finite.all(axis=1)] = np.nan
    return rows
