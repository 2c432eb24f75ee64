"""Versions of a subject: its schemas by the ids that records contain.

All versions of the subject are requested, at a fixed interval, so no request depends on a record's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal

import msgspec

from streaming_pca.config.kafka import ConfigurationError
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.data.features.records import PublicSchema, SchemaFormat, Subject
from streaming_pca.data.features.registered import Registered, public_schema
from streaming_pca.service.registry.client import NotThere, RegistryAway, RegistryClient, RegistryRefused

_TYPES: Final[dict[SchemaFormat, str]] = {"avro": "AVRO", "protobuf": "PROTOBUF"}
_WORDS = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON Schema"}
_MOST_VERSIONS = 1000
_MOST_BYTES = 2**26
"""Most bytes of all schemas together."""
_MOST_REFERENCES = 200
"""Most schemas that one schema refers to, directly or indirectly."""
_DEEPEST = 32
_SHOWN = 200
"""Most characters of a subject in a message."""
_MOST_LIST = 2**20
"""Most bytes of a list of versions."""
_DELETED, _SERIALIZED = {"deleted": "true"}, {"format": "serialized"}
"""Query parameters: include softly deleted versions; return Protobuf's descriptor instead of its text."""
_CONTEXT = ":."
"""Prefix of subjects in a context of Confluent's registry; ids are unique only within a context."""

Number = Annotated[int, msgspec.Meta(gt=0, lt=2**32)]


class _Reference(msgspec.Struct):
    name: str
    subject: str
    version: Number


class _Version(msgspec.Struct, rename="camel"):
    """Response with a schema; without an id if the request was by id."""

    schema: str
    id: Number | None = None
    # Confluent's registry omits the type for Avro.
    schema_type: str | None = None
    references: list[_Reference] | None = None


class _Unusable(Exception):
    """Permanent reason why a schema cannot be used; one line."""


class SchemaRegistry:
    """Reader of the schemas of one subject.

    Parameters
    ----------
    format : {"avro", "protobuf"}
    message : str, optional
        Full name of the Protobuf message; by default the first one in each schema.

    Notes
    -----
    Not thread-safe.
    """

    def __init__(
        self, settings: RegistrySettings, subject: str, format: SchemaFormat, message: str | None = None
    ) -> None:
        self._client = RegistryClient(settings)
        self._subject, self._format, self._message = subject, format, message
        self._versions: dict[int, int] = {}
        self._schemas: dict[int, PublicSchema] = {}
        self._references: dict[tuple[str, int], Registered | None] = {}
        self._faults: dict[int, str] = {}

    def read(self, known: Mapping[int, PublicSchema]) -> dict[int, PublicSchema]:
        """Return the known schemas and those of all versions, including softly deleted ones.

        Of the versions read earlier, only the newest is requested again.

        Raises
        ------
        RegistryAway
            If the registry does not respond; the next call continues.
        RegistryRefused
            If a setting has to change, the subject is missing, or all versions are unreadable.
        """
        self._begin(known)
        try:
            versions = self._client.get(
                list[Number], "subjects", self._subject, "versions", query=_DELETED, most=_MOST_LIST
            )
        except NotThere:
            self._versions = {}
            raise RegistryRefused(
                f"the registry has no subject {self._subject!r}: register a schema, or correct stream.subject"
            ) from None
        if len(versions) > _MOST_VERSIONS:
            raise RegistryRefused(
                f"subject {self._subject!r} has {len(versions)} versions, of {_MOST_VERSIONS} at most: "
                "delete old ones permanently, or name another stream.subject"
            )
        self._versions = {
            version: self._versions[version] for version in versions if version in self._versions
        }
        # The newest known version reveals whether versions were deleted permanently and their numbers
        # reused.
        newest = max(self._versions, default=0)
        if newest and self._id_of(newest) != self._versions[newest]:
            self._versions = {}
        for version in sorted(set(versions) - self._versions.keys()):
            if (id_ := self._id_of(version)) is not None:
                self._versions[version] = id_
        found = {**known, **{id_: self._schemas[id_] for id_ in self._versions.values()}}
        if found and found.keys() <= self._faults.keys():
            raise RegistryRefused(self._faults[min(found)])
        return found

    def _id_of(self, version: int) -> int | None:
        """Store a version's schema and return its id; None if it was deleted after the listing."""
        try:
            answer = self._version(self._subject, version)
        except NotThere:
            return None
        if answer.id is None:
            raise self._client.no_registry()
        self._take(answer.id, answer, f"version {version} of subject {self._subject!r}")
        return answer.id

    def read_ids(self, ids: Iterable[int]) -> dict[int, PublicSchema]:
        """Return the schemas of a reserved batch by id, without ids that no longer exist.

        Raises
        ------
        RegistryAway
        RegistryRefused
            If a setting has to change.
        """
        self._begin({})
        found = {}
        for id_ in sorted(set(ids)):
            if id_ not in self._schemas:
                context = {"subject": self._subject} if self._subject.startswith(_CONTEXT) else {}
                try:
                    query = _SERIALIZED | context
                    answer = self._client.get(_Version, "schemas", "ids", id_, query=query)
                except NotThere:
                    continue
                self._take(id_, answer, f"schema {id_}")
            found[id_] = self._schemas[id_]
        return found

    def _join(self, answer: _Version) -> bytes:
        """Return the newest version's data, joined with the schemas that it refers to."""
        self._begin({})
        self._take(0, answer, f"the newest version of subject {self._subject!r}")
        if 0 in self._faults:
            raise RegistryRefused(self._faults[0])
        return self._schemas.pop(0).data

    def _begin(self, known: Mapping[int, PublicSchema]) -> None:
        self._client.renew()
        self._references = {}
        self._schemas = {**known, **self._schemas}

    def _version(self, subject: str, version: int) -> _Version:
        return self._client.get(
            _Version, "subjects", subject, "versions", version, query=_DELETED | _SERIALIZED
        )

    def _take(self, id_: int, answer: _Version, what: str) -> None:
        """Store a response's schema, which never changes under its id."""
        if id_ in self._schemas:
            return
        try:
            schema = public_schema(self._format, self._registered(answer, what, 0), self._message)
        except (_Unusable, ValueError) as error:
            # Kept as it is: its records are null, while those of other versions are read. A registry that
            # refuses a request for a reference may recover, so that error is not caught here.
            schema = PublicSchema(self._format, answer.schema.encode("utf-8", "replace"), self._message)
            self._faults[id_] = str(error) if isinstance(error, _Unusable) else f"{what}: {error}"
        if sum(len(each.data) for each in self._schemas.values()) + len(schema.data) > _MOST_BYTES:
            raise RegistryRefused(
                f"{what}: all schemas have over {_MOST_BYTES} octets together: set another stream.subject"
            )
        self._schemas[id_] = schema

    def _registered(self, answer: _Version, what: str, deep: int) -> Registered:
        type_ = answer.schema_type or "AVRO"
        if type_ != _TYPES[self._format]:
            raise _Unusable(
                f"{what} is a schema of {_WORDS.get(type_, 'another type')}, and stream.format is "
                f'"{self._format}": correct it, or stream.subject'
            )
        if deep == _DEEPEST:
            raise _Unusable(f"{what} refers to others more than {_DEEPEST} deep: set stream.schema_file")
        references = answer.references or ()
        return Registered(answer.schema, tuple(self._reference(each, what, deep) for each in references))

    def _reference(self, reference: _Reference, what: str, deep: int) -> tuple[str, Registered]:
        place = subject, version = reference.subject, reference.version
        if place not in self._references:
            if len(self._references) == _MOST_REFERENCES:
                raise _Unusable(f"{what} refers to more than {_MOST_REFERENCES} others")
            self._references[place] = None
            try:
                answer = self._version(subject, version)
            except NotThere:
                raise _Unusable(
                    f"{what} refers to version {version} of subject {subject[:_SHOWN]!r}, which the registry "
                    "lacks: register it, or set stream.schema_file"
                ) from None
            self._references[place] = self._registered(answer, what, deep + 1)
        found = self._references[place]
        if found is None:
            raise _Unusable(f"{what} refers to others in a cycle: set stream.schema_file")
        return reference.name, found


def schemas_of(settings: RegistrySettings | None, subject: Subject | None) -> dict[int, PublicSchema] | None:
    """Return the current schemas of a stream's records; None if they do not name schemas.

    Raises
    ------
    ConfigurationError
        If the registry is unavailable or refuses; the message is one line.
    """
    if subject is None or settings is None:
        return None
    try:
        return SchemaRegistry(settings, *subject).read({})
    except (RegistryAway, RegistryRefused) as error:
        raise ConfigurationError(str(error)) from None


def read_latest(
    settings: RegistrySettings, subject: str
) -> tuple[Literal["avro", "protobuf", "json"], bytes]:
    """Return the format and data of a subject's newest schema.

    Raises
    ------
    RegistryAway
    RegistryRefused
    """
    client = RegistryClient(settings)
    client.renew()
    try:
        answer = client.get(_Version, "subjects", subject, "versions", "latest", query=_SERIALIZED)
    except NotThere:
        raise RegistryRefused(f"the registry has no subject {subject!r}: correct its name") from None
    if answer.schema_type == "JSON":
        return "json", answer.schema.encode()
    format_: SchemaFormat = "protobuf" if answer.schema_type == "PROTOBUF" else "avro"
    return format_, SchemaRegistry(settings, subject, format_)._join(answer)
