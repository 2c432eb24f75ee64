"""Decoder of a projecting worker, which follows the schemas that records name."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.records import REGISTERED_BYTES
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.input.source import build_codec
from streaming_pca.service.registry.client import RegistryAway, RegistryRefused
from streaming_pca.service.registry.registry import SchemaRegistry

__all__ = ["FollowingCodec"]

log = logging.getLogger(__name__)


class FollowingCodec:
    """Codec of a stream, made anew where a registry lists a new schema.

    Parameters
    ----------
    stream : StreamSettings
    registry : RegistrySettings or None
        None where a stream's records name no schema.

    Attributes
    ----------
    codec : PayloadCodec

    Raises
    ------
    SessionLost
        If the registry does not answer.
    StreamRefused
        If it refuses.
    """

    def __init__(self, stream: StreamSettings, registry: RegistrySettings | None) -> None:
        self._stream = stream
        self._registry: SchemaRegistry | None = None
        self._away = False
        subject = stream.registry_subject
        if subject is None:
            self.codec = build_codec(stream, None)
            return
        assert registry is not None, "settings with a subject have a registry"
        self._registry = SchemaRegistry(registry, *subject)
        self.codec = self._listed({})

    def follow(self, polled: Mapping[Any, Iterable[Any]]) -> PayloadCodec:
        """Return the codec of messages that were read just now.

        The registry is asked after they were read, since a schema is registered before its first record.
        Where it is away, records wait only if they name a schema that is not known.
        """
        if self._registry is None or not any(polled.values()):
            return self.codec
        try:
            self.codec = self._listed(self.codec.schemas or {})
            self._away = False
        except SessionLost as error:
            known = {number.to_bytes(REGISTERED_BYTES, "big") for number in self.codec.schemas or ()}
            names = {bytes((m.value or b"")[:REGISTERED_BYTES]) for each in polled.values() for m in each}
            if any(len(name) == REGISTERED_BYTES and name[0] == 0 for name in names - known):
                raise
            if not self._away:
                self._away = True
                log.warning("%s: going on with the schemas that are known", error)
        return self.codec

    def _listed(self, known: Mapping[int, Any]) -> PayloadCodec:
        assert self._registry is not None, "there is a subject"
        try:
            found = self._registry.read(known)
        except RegistryAway as error:
            raise SessionLost(str(error)) from None
        except RegistryRefused as error:
            raise StreamRefused(str(error)) from None
        return (
            self.codec if known and found.keys() == known.keys() else build_codec(self._stream, None, found)
        )
