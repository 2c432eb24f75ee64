"""Entries of the ledger: frozen, versioned events whose meaning never changes.

Version 2 is RESERVED of a stream whose unit of privacy is a user: it charges every
record, not only those in its ranges. All other entries are version 1. A program that
knows version 1 only would charge too little, so it must refuse version 2.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, Field, TypeAdapter, ValidationError, model_validator

from streaming_pca.privacy.parameters import Charge, Rational
from streaming_pca.text import printable

_OFFSET_LIMIT = 2**63  # bound of Kafka's offsets and of batch numbers


class MalformedEntry(ValueError):
    """Ledger message that no version of this program has written."""


class _Frozen(BaseModel):
    # Attribute docstrings are the descriptions of the JSON schema; canonical entries leave nothing out.
    model_config = Charge.model_config


class Cap(_Frozen):
    """Largest total charge of any one record, by all jobs together."""

    epsilon: Rational
    """Exact."""
    delta: Rational
    """Exact."""


class OffsetPosition(_Frozen):
    """Start offset of a job on a partition."""

    partition: int = Field(ge=0, lt=2**31)
    """Partition of the input topic."""
    offset: int = Field(ge=0, lt=_OFFSET_LIMIT)
    """First offset of the job."""


class OffsetSpan(_Frozen):
    """Offsets [start, end) of a partition."""

    partition: int = Field(ge=0, lt=2**31)
    """Partition of the input topic."""
    start: int = Field(ge=0, lt=_OFFSET_LIMIT)
    """First offset."""
    end: int = Field(ge=0, lt=_OFFSET_LIMIT)
    """First offset after the range."""


class OffsetRange(OffsetSpan):
    """Offsets of a partition, and the number of records in them.

    ``count`` can be below ``end - start``: transaction markers take offsets.
    """

    count: int = Field(ge=0, lt=_OFFSET_LIMIT)
    """Number of records."""


class _Entry(_Frozen):
    version: Literal[1, 2] = 1
    """2 for RESERVED of a stream whose unit of privacy is a user, otherwise 1."""
    topic_id: str
    """Id of the input topic; a re-created topic has another id, and is new data."""

    @property
    def _version_of_meaning(self) -> int:
        return 1

    @model_validator(mode="after")
    def _check_version(self) -> Self:
        if self.version != self._version_of_meaning:
            raise ValueError(f"version {self.version} has no such entry")
        return self


class Opened(_Entry):
    """First entry: fixes the cap and the filter for every job."""

    kind: Literal["OPENED"] = "OPENED"
    """Kind of the entry."""
    topic: str
    """Name of the input topic."""
    cap: Cap
    """Cap of every record."""
    filter: Literal["basic", "zcdp"] = "basic"
    """Rule for adding charges on a record."""


class _JobEntry(_Entry):
    job: str
    """Name of the stream, or of the charge made elsewhere."""
    previous: str
    """Hash of this job's previous entry, of OPENED for its first."""


class _BatchEntry(_JobEntry):
    batch: int = Field(ge=1, lt=_OFFSET_LIMIT)
    """Number of the batch, 1, 2, ... in each job."""


class Reserved(_BatchEntry):
    """Charge of the named records, with or without a later answer."""

    kind: Literal["RESERVED"] = "RESERVED"
    """Kind of the entry."""
    ranges: tuple[OffsetRange, ...]
    """Records of the batch."""
    promise: dict[str, Any]
    """Privacy contract of the stream, the same in every batch of a job. The stored name never changes."""
    parameters: dict[str, Any]
    """Every parameter of this batch's mechanisms."""
    charge: Charge
    """Cost to each of these records."""

    @model_validator(mode="before")
    @classmethod
    def _set_version(cls, data: Any) -> Any:
        if isinstance(data, dict) and "version" not in data:
            return data | {"version": 1 + _names_users(data.get("promise"))}
        return data

    @property
    def _version_of_meaning(self) -> int:
        return 1 + self.of_users

    @property
    def of_users(self) -> bool:
        """True if the unit of privacy is a user, so that every record is charged."""
        return _names_users(self.promise)

    @property
    def count(self) -> int:
        return sum(r.count for r in self.ranges)


def _names_users(promise: Any) -> bool:
    return isinstance(promise, dict) and promise.get("privacy_unit") == "user"


class Committed(_BatchEntry):
    """Commit of the batch: its one answer is in the state."""

    kind: Literal["COMMITTED"] = "COMMITTED"
    """Kind of the entry."""
    state_digest: str
    """Salted SHA-256 of the state, in hex."""


class Abandoned(_BatchEntry):
    """End of a batch without an answer, now or later; the charge stays."""

    kind: Literal["ABANDONED"] = "ABANDONED"
    """Kind of the entry."""
    reason: str
    """Reason in one line."""


class Released(_BatchEntry):
    """Publication of the batch's release on the releases topic."""

    kind: Literal["RELEASED"] = "RELEASED"
    """Kind of the entry."""
    release_digest: str
    """SHA-256 of the release's bytes, in hex."""


class Paused(_JobEntry):
    """Pause of the job: it reserves no batch until resumed; an open one may still end."""

    kind: Literal["PAUSED"] = "PAUSED"
    """Kind of the entry."""
    reason: str
    """Reason in one line."""


class Resumed(_JobEntry):
    """End of a pause: the job may reserve again."""

    kind: Literal["RESUMED"] = "RESUMED"
    """Kind of the entry."""
    reason: str
    """Reason in one line."""


class Retired(_JobEntry):
    """End of the job: it never reserves again."""

    kind: Literal["RETIRED"] = "RETIRED"
    """Kind of the entry."""
    reason: str
    """Reason in one line."""


class Started(_JobEntry):
    """Start offsets of a job that leaves out earlier records; it charges nothing.

    A partition that is not named begins at its first record: it is younger than the entry.
    """

    kind: Literal["STARTED"] = "STARTED"
    """Kind of the entry."""
    positions: tuple[OffsetPosition, ...]
    """Beginning of the job, by partition."""


class Charged(_JobEntry):
    """Charge of the named records for a release that the owner made elsewhere."""

    kind: Literal["CHARGED"] = "CHARGED"
    """Kind of the entry."""
    ranges: tuple[OffsetSpan, ...]
    """Charged offsets."""
    charge: Charge
    """Cost to each of these records."""
    reason: str
    """Reason in one line."""


LedgerEntry = (
    Opened | Reserved | Committed | Abandoned | Released | Paused | Resumed | Retired | Charged | Started
)

_ADAPTER: TypeAdapter[LedgerEntry] = TypeAdapter(Annotated[LedgerEntry, Field(discriminator="kind")])


def encode_entry(entry: LedgerEntry) -> bytes:
    """Encode as canonical JSON: equal entries have equal bytes (sorted keys, no spaces)."""
    return json.dumps(
        entry.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


def decode_entry(data: bytes) -> LedgerEntry:
    """Decode an entry; :class:`MalformedEntry` if the bytes are not one."""
    try:
        entry = _ADAPTER.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "entry"
        raise MalformedEntry(
            f"not a ledger entry: {printable(where[:200])}: {printable(first['msg'][:200])}"
        ) from error
    # Hashes are over canonical bytes: two spellings of one entry would share a hash.
    try:
        canonical = encode_entry(entry)
    except ValueError as error:
        raise MalformedEntry(f"not a ledger entry: {printable(str(error)[:200])}") from error
    if canonical != data:
        raise MalformedEntry("not a ledger entry: it is not in canonical form")
    return entry


def entry_hash(entry: LedgerEntry) -> str:
    """Return the SHA-256 of the canonical bytes, in hex."""
    return hashlib.sha256(encode_entry(entry)).hexdigest()
