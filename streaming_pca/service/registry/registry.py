"""Versions of a subject: its schemas by the ids that records carry.

All versions of the subject are asked for, at a fixed interval: no request depends on a record's id.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final, Literal, TypeGuard

from streaming_pca.config.settings import RegistrySettings
from streaming_pca.data.features.records import PublicSchema, SchemaFormat
from streaming_pca.data.features.registered import Registered, public_schema
from streaming_pca.service.registry.client import NotThere, RegistryClient, RegistryRefused

__all__ = ["SchemaRegistry", "read_latest"]

_TYPES: Final[dict[SchemaFormat, str]] = {"avro": "AVRO", "protobuf": "PROTOBUF"}
_WORDS = {"AVRO": "Avro", "PROTOBUF": "Protobuf", "JSON": "JSON Schema"}
_MOST_VERSIONS = 1000
_MOST_BYTES = 2**26
"""Most bytes of all schemas together."""
_MOST_REFERENCES = 200
"""Most schemas to which one refers, by way of others too."""
_DEEPEST = 32
_LARGEST = 2**32
_CONTEXT = ":."
"""Beginning of subjects in a context of Confluent's registry, where ids are the context's."""


class SchemaRegistry:
    """Reader of the schemas of one subject.

    Parameters
    ----------
    settings : RegistrySettings
    subject : str
    format : {"avro", "protobuf"}
    message : str, optional
        Full name of the Protobuf message; by default the first one of each schema.

    Notes
    -----
    For use by one thread at a time.
    """

    def __init__(
        self, settings: RegistrySettings, subject: str, format: SchemaFormat, message: str | None = None
    ) -> None:
        self._client = RegistryClient(settings)
        self._subject, self._format, self._message = subject, format, message
        self._versions: dict[int, int] = {}
        self._schemas: dict[int, PublicSchema] = {}
        self._references: dict[tuple[str, int], Registered | None] = {}

    def read(self, known: Mapping[int, PublicSchema]) -> dict[int, PublicSchema]:
        """Return the known schemas and those of all versions, also of softly deleted ones.

        Versions that were read before are not asked for in full.

        Raises
        ------
        RegistryAway
            If the registry does not answer; the next call continues.
        RegistryRefused
            If a setting has to change, or the subject is not there.
        """
        self._begin(known)
        try:
            versions = self._client.get("subjects", self._subject, "versions", deleted="true")
        except NotThere:
            self._versions = {}
            raise RegistryRefused(
                f"the registry has no subject {self._subject!r}: register a schema, or correct stream.subject"
            ) from None
        if not isinstance(versions, list) or not all(_is_number(version) for version in versions):
            raise self._client.no_registry()
        if len(versions) > _MOST_VERSIONS:
            raise RegistryRefused(
                f"subject {self._subject!r} has {len(versions)} versions, of {_MOST_VERSIONS} at most: "
                "delete old ones permanently, or name another stream.subject"
            )
        # A version that was deleted permanently may come back as another schema.
        self._versions = {
            version: self._versions[version] for version in versions if version in self._versions
        }
        for version in sorted(set(versions) - self._versions.keys()):
            try:
                answer = self._version(self._subject, version)
            except NotThere:
                # It was deleted between the two requests.
                continue
            if not _is_number(id_ := answer.get("id")):
                raise self._client.no_registry()
            self._take(id_, answer, f"version {version} of subject {self._subject!r}")
            self._versions[version] = id_
        return {**known, **{id_: self._schemas[id_] for id_ in self._versions.values()}}

    def read_ids(self, ids: Iterable[int]) -> dict[int, PublicSchema]:
        """Return the schemas of some ids, for a batch that was begun with them.

        Raises
        ------
        RegistryAway
        RegistryRefused
            If a setting has to change, or the registry lacks an id.
        """
        self._begin({})
        found = {}
        for id_ in sorted(set(ids)):
            if id_ not in self._schemas:
                context = {"subject": self._subject} if self._subject.startswith(_CONTEXT) else {}
                try:
                    answer = self._client.get("schemas", "ids", id_, format="serialized", **context)
                except NotThere:
                    raise RegistryRefused(
                        f"the registry has no schema {id_}, of an unfinished batch: correct registry.url"
                    ) from None
                if not isinstance(answer, dict):
                    raise self._client.no_registry()
                self._take(id_, answer, f"schema {id_}")
            found[id_] = self._schemas[id_]
        return found

    def join(self, answer: Mapping[str, Any]) -> bytes:
        """Return the data of the newest version, joined with the schemas it refers to.

        Raises
        ------
        RegistryAway
        RegistryRefused
        """
        self._begin({})
        self._take(0, answer, f"the newest version of subject {self._subject!r}")
        return self._schemas.pop(0).data

    def _begin(self, known: Mapping[int, PublicSchema]) -> None:
        self._client.renew()
        self._references = {}
        self._schemas = {**known, **self._schemas}

    def _version(self, subject: str, version: int) -> dict[str, Any]:
        answer = self._client.get(
            "subjects", subject, "versions", version, deleted="true", format="serialized"
        )
        if not isinstance(answer, dict):
            raise self._client.no_registry()
        return answer

    def _take(self, id_: int, answer: Mapping[str, Any], what: str) -> None:
        """Keep the schema of an answer, which never changes under its id."""
        if id_ in self._schemas:
            return
        registered = self._registered(answer, what, 0)
        try:
            schema = public_schema(self._format, registered, self._message)
        except ValueError as error:
            raise RegistryRefused(f"{what}: {error}") from None
        if sum(len(each.data) for each in self._schemas.values()) + len(schema.data) > _MOST_BYTES:
            raise RegistryRefused(
                f"{what}: all schemas have over {_MOST_BYTES} octets together: set another stream.subject"
            )
        self._schemas[id_] = schema

    def _registered(self, answer: Mapping[str, Any], what: str, deep: int) -> Registered:
        # Confluent's registry names the type of all schemas but Avro's.
        text, type_ = answer.get("schema"), answer.get("schemaType") or "AVRO"
        if not isinstance(text, str) or not isinstance(type_, str):
            raise self._client.no_registry()
        if type_ != _TYPES[self._format]:
            raise RegistryRefused(
                f"{what} is a schema of {_WORDS.get(type_, 'another type')}, and stream.format is "
                f'"{self._format}": correct it, or stream.subject'
            )
        references = answer.get("references") or []
        if not isinstance(references, list):
            raise self._client.no_registry()
        if deep == _DEEPEST:
            raise RegistryRefused(
                f"{what} refers to others more than {_DEEPEST} deep: set stream.schema_file"
            )
        return Registered(text, tuple(self._reference(each, what, deep) for each in references))

    def _reference(self, reference: Any, what: str, deep: int) -> tuple[str, Registered]:
        if not isinstance(reference, dict):
            raise self._client.no_registry()
        name, subject, version = (reference.get(key) for key in ("name", "subject", "version"))
        if not (isinstance(name, str) and isinstance(subject, str) and _is_number(version)):
            raise self._client.no_registry()
        place = subject, version
        if place not in self._references:
            if len(self._references) == _MOST_REFERENCES:
                raise RegistryRefused(f"{what} refers to more than {_MOST_REFERENCES} others")
            self._references[place] = None
            try:
                answer = self._version(subject, version)
            except NotThere:
                raise RegistryRefused(
                    f"{what} refers to version {version} of subject {subject!r}, which the registry lacks: "
                    "register it, or set stream.schema_file"
                ) from None
            self._references[place] = self._registered(answer, what, deep + 1)
        found = self._references[place]
        if found is None:
            raise RegistryRefused(f"{what} refers to others in a circle: set stream.schema_file")
        return name, found


def read_latest(
    settings: RegistrySettings, subject: str
) -> tuple[Literal["avro", "protobuf", "json"], bytes]:
    """Return the format and the data of a subject's newest schema.

    Raises
    ------
    RegistryAway
    RegistryRefused
    """
    client = RegistryClient(settings)
    client.renew()
    try:
        answer = client.get("subjects", subject, "versions", "latest", format="serialized")
    except NotThere:
        raise RegistryRefused(f"the registry has no subject {subject!r}: correct its name") from None
    if not isinstance(answer, dict):
        raise client.no_registry()
    text, type_ = answer.get("schema"), answer.get("schemaType") or "AVRO"
    if type_ == "JSON" and isinstance(text, str):
        return "json", text.encode()
    format_: SchemaFormat = "protobuf" if type_ == "PROTOBUF" else "avro"
    return format_, SchemaRegistry(settings, subject, format_).join(answer)


def _is_number(value: Any) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < _LARGEST
