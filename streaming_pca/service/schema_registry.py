"""Schemas of a stream's records, from a schema registry, by the ids that records contain.

All versions of a subject are requested, at a fixed interval, so no request depends on a record's id.
Confluent's library bounds neither the size nor the duration of a response, inflates it, and sends passwords
through proxies from the environment; hence the client here.
"""

from __future__ import annotations

import base64
import http.client
import os
import ssl
import urllib.parse
from collections.abc import Iterable, Mapping
from typing import Annotated, Final, Literal, TypeVar

import msgspec

from streaming_pca.config.kafka import ClearText, ConfigurationError, trusting
from streaming_pca.config.registry import RegistrySettings
from streaming_pca.data.features.records import PublicSchema, SchemaFormat, Subject
from streaming_pca.data.features.registered import Registered, public_schema
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.http_exchange import exchange, failure_text

_MOST_ANSWER = 2**25  # most bytes of a response: the largest accepted schema, in base64, with a margin
_ACCEPT = "application/vnd.schemaregistry.v1+json, application/json"
_PASSING = (408, 425, 429)  # statuses below 500 that allow a retry of the same request
_UNKNOWN = (40401, 40402, 40403)  # Confluent's error codes of a missing subject, version or id

T = TypeVar("T")


class _Error(msgspec.Struct):
    error_code: int = 0


class NotThere(Exception):
    """Subject, version or id that is missing from the registry."""


class RegistryClient:
    """Client of one registry; each request uses a new connection."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._parts = urllib.parse.urlsplit(settings.url)
        self._context: ssl.SSLContext | None = None
        self._context_of: tuple[int, ...] | None = None
        self._headers: dict[str, str] = {}

    def renew(self) -> None:
        """Reread the files of secrets and authorities; raise StreamRefused if one cannot be read."""
        settings = self._settings
        headers = {"Accept": _ACCEPT}
        try:
            token, password = settings.token, settings.clear_password
            if self._parts.scheme == "https":
                self._renew_context()
        except ConfigurationError as error:
            raise StreamRefused(str(error)) from None
        if token is not None:
            headers["Authorization"] = ClearText(f"Bearer {token}")
        elif password is not None:
            pair = base64.b64encode(f"{settings.username}:{password}".encode()).decode()
            headers["Authorization"] = ClearText(f"Basic {pair}")
        self._headers = headers

    def _renew_context(self) -> None:
        cafile = self._settings.ssl_cafile
        facts = os.stat(cafile) if cafile is not None and cafile.exists() else None
        now = (0,) if facts is None else (facts.st_ino, facts.st_mtime_ns, facts.st_size)
        if self._context is None or now != self._context_of:
            self._context, self._context_of = trusting("registry.ssl_cafile", cafile), now

    def get(self, kind: type[T], *path: str | int, query: Mapping[str, str], most: int = _MOST_ANSWER) -> T:
        """Return a response, at most ``most`` bytes of it, decoded into the fields of ``kind``.

        Raises NotThere, SessionLost or StreamRefused.
        """
        target = "/".join([self._parts.path, *(urllib.parse.quote(str(part), safe="") for part in path)])
        target += f"?{urllib.parse.urlencode(query)}"
        limits = (self._settings.timeout_seconds, most)
        try:
            status, body = exchange(self._parts, target, self._headers, self._context, *limits)
        except (ssl.SSLCertVerificationError, http.client.HTTPException, ValueError) as error:
            raise StreamRefused(failure_text(error, self._shown, "registry.ssl_cafile")) from None
        except (ssl.SSLEOFError, ssl.SSLZeroReturnError):
            raise SessionLost(f"{self._shown} does not answer (connection closed)") from None
        except ssl.SSLError as error:
            raise StreamRefused(
                f"{self._shown} fails to negotiate TLS with this client ({error.reason or 'TLS failed'})"
            ) from None
        except OSError as error:
            raise SessionLost(failure_text(error, self._shown, "registry.ssl_cafile")) from None
        if len(body) > most:
            raise StreamRefused(f"{self._shown} answers with more than {most} octets")
        return self._read(status, body, kind)

    @property
    def _shown(self) -> str:
        return f"registry.url = {self._settings.url!r}"

    def _read(self, status: int, body: bytes, kind: type[T]) -> T:
        settings = self._settings
        if status == 200:
            try:
                return msgspec.json.decode(body, type=kind)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                raise self.no_registry() from None
        if status in (401, 403):
            if settings.token_file is not None:
                change = f"renew the token in registry.token_file = {str(settings.token_file)!r}"
            elif settings.username is not None:
                change = f"correct registry.username = {settings.username!r}, or its password"
            else:
                change = "set registry.username with a password, or registry.token_file"
            raise StreamRefused(f"{self._shown} refuses this client (HTTP {status}): {change}")
        if status >= 500 or status in _PASSING:
            raise SessionLost(f"{self._shown} does not answer (HTTP {status})")
        if 300 <= status < 400:
            # Following it could send the secret to another host.
            raise StreamRefused(f"{self._shown} redirects (HTTP {status}): set the address that it leads to")
        if status == 404 and _error_code(body) in _UNKNOWN:
            raise NotThere
        raise StreamRefused(f"{self.no_registry()} (HTTP {status})")

    def no_registry(self) -> StreamRefused:
        return StreamRefused(
            f"{self._shown} does not answer as a schema registry: set the address of its "
            "Confluent-compatible API, with its path"
        )


def _error_code(body: bytes) -> int:
    try:
        return msgspec.json.decode(body, type=_Error).error_code
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0


_TYPES: Final[dict[SchemaFormat, str]] = {"avro": "AVRO", "protobuf": "PROTOBUF"}
_WORDS = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON Schema"}
_MOST_VERSIONS = 1000
_MOST_BYTES = 2**26  # most bytes of all schemas together
_MOST_REFERENCES = 200  # most schemas that one schema refers to, directly or indirectly
_DEEPEST = 32
_SHOWN = 200  # most characters of a subject in a message
_MOST_LIST = 2**20  # most bytes of a list of versions
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
    """Reader of one subject's schemas; not thread-safe. ``message`` defaults to each schema's first."""

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

        Of the versions read earlier, only the newest is requested again. Raises SessionLost if the registry
        does not respond; the next call continues. Raises StreamRefused if a setting has to change, the
        subject is missing, or all versions are unreadable.
        """
        self._begin(known)
        try:
            versions = self._client.get(
                list[Number], "subjects", self._subject, "versions", query=_DELETED, most=_MOST_LIST
            )
        except NotThere:
            self._versions = {}
            raise StreamRefused(
                f"the registry has no subject {self._subject!r}: register a schema, or correct stream.subject"
            ) from None
        if len(versions) > _MOST_VERSIONS:
            raise StreamRefused(
                f"subject {self._subject!r} has {len(versions)} versions, of {_MOST_VERSIONS} at most: "
                "delete old ones permanently, or name another stream.subject"
            )
        self._versions = {each: self._versions[each] for each in versions if each in self._versions}
        # The newest known version shows whether versions were deleted permanently, their numbers reused.
        newest = max(self._versions, default=0)
        if newest and self._id_of(newest) != self._versions[newest]:
            self._versions = {}
        for version in sorted(set(versions) - self._versions.keys()):
            if (id_ := self._id_of(version)) is not None:
                self._versions[version] = id_
        found = {**known, **{id_: self._schemas[id_] for id_ in self._versions.values()}}
        if found and found.keys() <= self._faults.keys():
            raise StreamRefused(self._faults[min(found)])
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
        """Return a reserved batch's existing schemas, by id; raise SessionLost or StreamRefused."""
        self._begin({})
        found = {}
        query = _SERIALIZED | ({"subject": self._subject} if self._subject.startswith(_CONTEXT) else {})
        for id_ in sorted(set(ids)):
            if id_ not in self._schemas:
                try:
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
            raise StreamRefused(self._faults[0])
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
            # Kept: its records are null, others are read. A refused reference is not caught: it may recover.
            schema = PublicSchema(self._format, answer.schema.encode("utf-8", "replace"), self._message)
            self._faults[id_] = str(error) if isinstance(error, _Unusable) else f"{what}: {error}"
        if sum(len(each.data) for each in self._schemas.values()) + len(schema.data) > _MOST_BYTES:
            raise StreamRefused(
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

    Raises ConfigurationError, with one line, if the registry is unavailable or refuses.
    """
    if subject is None or settings is None:
        return None
    try:
        return SchemaRegistry(settings, *subject).read({})
    except (SessionLost, StreamRefused) as error:
        raise ConfigurationError(str(error)) from None


def read_latest(
    settings: RegistrySettings, subject: str
) -> tuple[Literal["avro", "protobuf", "json"], bytes]:
    """Return the newest schema's format and data; raise SessionLost or StreamRefused."""
    client = RegistryClient(settings)
    client.renew()
    try:
        answer = client.get(_Version, "subjects", subject, "versions", "latest", query=_SERIALIZED)
    except NotThere:
        raise StreamRefused(f"the registry has no subject {subject!r}: correct its name") from None
    if answer.schema_type == "JSON":
        return "json", answer.schema.encode()
    format_: SchemaFormat = "protobuf" if answer.schema_type == "PROTOBUF" else "avro"
    return format_, SchemaRegistry(settings, subject, format_)._join(answer)
