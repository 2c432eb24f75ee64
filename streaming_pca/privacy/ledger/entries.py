"""Entries of the ledger: frozen, versioned events whose meaning never changes.

Version 2 is RESERVED of a stream whose unit of privacy is a user: it charges every
record, not only those in its ranges. All other entries are version 1. A program that
knows version 1 only would charge too little, so it must refuse version 2.
"""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from streaming_pca.privacy.parameters import Charge, Rational

__all__ = [
    "Abandoned",
    "Cap",
    "Charged",
    "Committed",
    "LedgerEntry",
    "MalformedEntry",
    "OffsetRange",
    "OffsetSpan",
    "Opened",
    "Paused",
    "Released",
    "Reserved",
    "Resumed",
    "Retired",
    "decode_entry",
    "encode_entry",
    "entry_hash",
]


_OFFSET_LIMIT = 2**63
"""Bound of Kafka's offsets and of batch numbers."""


class MalformedEntry(ValueError):
    """Ledger message that no version of this program has written."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cap(_Frozen):
    """Largest total charge of any one record, by all jobs together."""

    epsilon: Rational
    delta: Rational


class OffsetSpan(_Frozen):
    """Offsets [start, end) of a partition."""

    partition: int = Field(ge=0, lt=2**31)
    start: int = Field(ge=0, lt=_OFFSET_LIMIT)
    end: int = Field(ge=0, lt=_OFFSET_LIMIT)


class OffsetRange(OffsetSpan):
    """Offsets of a partition, and the number of records in them.

    ``count`` can be below ``end - start``: transaction markers take offsets.
    """

    count: int = Field(ge=0, lt=_OFFSET_LIMIT)


class _Entry(_Frozen):
    version: Literal[1, 2] = 1
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
    topic: str
    cap: Cap
    filter: Literal["basic", "zcdp"] = "basic"


class _JobEntry(_Entry):
    job: str
    previous: str
    """Hash of this job's previous entry, of OPENED for its first."""


class _BatchEntry(_JobEntry):
    batch: int = Field(ge=1, lt=_OFFSET_LIMIT)


class Reserved(_BatchEntry):
    """Charge of the named records, with or without a later answer."""

    kind: Literal["RESERVED"] = "RESERVED"
    ranges: tuple[OffsetRange, ...]
    promise: dict[str, Any]
    """Privacy contract of the stream, the same in every batch of a job. The stored name never changes."""
    parameters: dict[str, Any]
    """Every parameter of this batch's mechanisms."""
    charge: Charge

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
        """Number of records in the batch."""
        return sum(r.count for r in self.ranges)


def _names_users(promise: Any) -> bool:
    return isinstance(promise, dict) and promise.get("privacy_unit") == "user"


class Committed(_BatchEntry):
    """Commit of the batch: its one answer is in the state."""

    kind: Literal["COMMITTED"] = "COMMITTED"
    state_digest: str


class Abandoned(_BatchEntry):
    """End of a batch without an answer, now or later; the charge stays."""

    kind: Literal["ABANDONED"] = "ABANDONED"
    reason: str


class Released(_BatchEntry):
    """Publication of the batch's release on the releases topic."""

    kind: Literal["RELEASED"] = "RELEASED"
    release_digest: str


class Paused(_JobEntry):
    """Pause of the job: it reserves no batch until resumed; an open one may still end."""

    kind: Literal["PAUSED"] = "PAUSED"
    reason: str


class Resumed(_JobEntry):
    """End of a pause: the job may reserve again."""

    kind: Literal["RESUMED"] = "RESUMED"
    reason: str


class Retired(_JobEntry):
    """End of the job: it never reserves again."""

    kind: Literal["RETIRED"] = "RETIRED"
    reason: str


class Charged(_JobEntry):
    """Charge of the named records for a release that the owner made elsewhere."""

    kind: Literal["CHARGED"] = "CHARGED"
    ranges: tuple[OffsetSpan, ...]
    charge: Charge
    reason: str


LedgerEntry = Opened | Reserved | Committed | Abandoned | Released | Paused | Resumed | Retired | Charged

_ADAPTER: TypeAdapter[LedgerEntry] = TypeAdapter(Annotated[LedgerEntry, Field(discriminator="kind")])


def encode_entry(entry: LedgerEntry) -> bytes:
    """Encode as canonical JSON: equal entries have equal bytes (sorted keys, no spaces)."""
    return json.dumps(
        entry.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


def decode_entry(data: bytes) -> LedgerEntry:
    """Decode an entry; :class:`MalformedEntry` if the bytes are none."""
    try:
        entry = _ADAPTER.validate_json(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "entry"
        raise MalformedEntry(f"not a ledger entry: {where}: {first['msg']}") from error
    # Hashes are over canonical bytes: two spellings of one entry would share a hash.
    try:
        canonical = encode_entry(entry)
    except ValueError as error:
        raise MalformedEntry(f"not a ledger entry: {error}") from error
    if canonical != data:
        raise MalformedEntry("not a ledger entry: it is not in canonical form")
    return entry


def entry_hash(entry: LedgerEntry) -> str:
    """Return the SHA-256 of the canonical bytes, in hex."""
    return hashlib.sha256(encode_entry(entry)).hexdigest()
