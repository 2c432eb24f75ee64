"""The ledger's entries: frozen, versioned events whose meaning never changes.

Version 1: all but what follows. Version 2: RESERVED of a stream whose unit of
privacy is a user, which charges every record and not those in its ranges alone.
A program that knows version 1 only would charge too little, so it must refuse.
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
"""Kafka's offsets, and numbers of batches, are below."""


class MalformedEntry(ValueError):
    """A ledger message that no version of this program has written."""


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Cap(_Frozen):
    """The most that any one record may be charged, by all jobs together."""

    epsilon: Rational
    delta: Rational


class OffsetSpan(_Frozen):
    """Offsets [start, end) of a partition."""

    partition: int = Field(ge=0, lt=2**31)
    start: int = Field(ge=0, lt=_OFFSET_LIMIT)
    end: int = Field(ge=0, lt=_OFFSET_LIMIT)


class OffsetRange(OffsetSpan):
    """Offsets of a partition, and how many records they hold.

    ``count`` can be below ``end - start``: transaction markers take offsets.
    """

    count: int = Field(ge=0, lt=_OFFSET_LIMIT)


class _Entry(_Frozen):
    version: Literal[1, 2] = 1
    topic_id: str
    """The input topic's id: a re-created topic has another, and is new data."""

    @property
    def _version_of_meaning(self) -> int:
        return 1

    @model_validator(mode="after")
    def _check_version(self) -> Self:
        if self.version != self._version_of_meaning:
            raise ValueError(f"version {self.version} has no such entry")
        return self


class Opened(_Entry):
    """The first entry: fixes the cap and the filter for every job."""

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
    """The named records are charged, whether or not an answer ever comes."""

    kind: Literal["RESERVED"] = "RESERVED"
    ranges: tuple[OffsetRange, ...]
    promise: dict[str, Any]
    """What the stream promises; the same in every batch of a job."""
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
        """Whether the unit of privacy is a user, so that every record is charged."""
        return _names_users(self.promise)

    @property
    def count(self) -> int:
        """How many records the batch holds."""
        return sum(r.count for r in self.ranges)


def _names_users(promise: Any) -> bool:
    return isinstance(promise, dict) and promise.get("privacy_unit") == "user"


class Committed(_BatchEntry):
    """The batch's one answer is in the state."""

    kind: Literal["COMMITTED"] = "COMMITTED"
    state_digest: str


class Abandoned(_BatchEntry):
    """No answer was or will be given; the charge stays."""

    kind: Literal["ABANDONED"] = "ABANDONED"
    reason: str


class Released(_BatchEntry):
    """The batch's release is on the releases topic."""

    kind: Literal["RELEASED"] = "RELEASED"
    release_digest: str


class Paused(_JobEntry):
    """The job reserves no batch until it is resumed; an open one may still end."""

    kind: Literal["PAUSED"] = "PAUSED"
    reason: str


class Resumed(_JobEntry):
    """The job may reserve again."""

    kind: Literal["RESUMED"] = "RESUMED"
    reason: str


class Retired(_JobEntry):
    """The job never reserves again."""

    kind: Literal["RETIRED"] = "RETIRED"
    reason: str


class Charged(_JobEntry):
    """The owner made a release of the named records elsewhere; it counts against their cap."""

    kind: Literal["CHARGED"] = "CHARGED"
    ranges: tuple[OffsetSpan, ...]
    charge: Charge
    reason: str


LedgerEntry = Opened | Reserved | Committed | Abandoned | Released | Paused | Resumed | Retired | Charged

_ADAPTER: TypeAdapter[LedgerEntry] = TypeAdapter(Annotated[LedgerEntry, Field(discriminator="kind")])


def encode_entry(entry: LedgerEntry) -> bytes:
    """Canonical JSON: sorted keys, no spaces, so that equal entries have equal bytes."""
    return json.dumps(
        entry.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), allow_nan=False
    ).encode()


def decode_entry(data: bytes) -> LedgerEntry:
    """Read an entry; :class:`MalformedEntry` if it is none."""
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
    """SHA-256 of the canonical bytes."""
    return hashlib.sha256(encode_entry(entry)).hexdigest()
