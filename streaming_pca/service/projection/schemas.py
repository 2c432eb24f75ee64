"""Decoder of a projecting worker, which follows the schemas that records name."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping
from typing import Any

from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.features.records import REGISTERED_BYTES
from streaming_pca.service.input.source import build_codec
from streaming_pca.service.schema_registry import RegistryAway, RegistryRefused, SchemaRegistry

log = logging.getLogger(__name__)


class FollowingCodec:
    """Codec of a stream, rebuilt when a registry lists a new schema.

    Parameters
    ----------
    registry : RegistrySettings or None
        None if the stream's records do not name schemas.

    Raises
    ------
    RegistryAway, RegistryRefused
    """

    def __init__(self, stream: StreamSettings, registry: RegistrySettings | None) -> None:
        self._stream = stream
        self._registry: SchemaRegistry | None = None
        self._fault: RegistryAway | RegistryRefused | None = None
        self._ask_at = -math.inf
        subject = stream.registry_subject
        if subject is None:
            self.codec = build_codec(stream, None)
            return
        assert registry is not None, "settings with a subject have a registry"
        self._registry, self._pause = SchemaRegistry(registry, *subject), registry.timeout_seconds
        self.codec = self._listed({})

    def follow(self, polled: Mapping[Any, Iterable[Any]]) -> PayloadCodec:
        """Return the codec for the messages just read.

        The registry is queried after reading, because a schema is registered before its first record. If
        the query fails, records wait only if they name an unknown schema. The next query follows after a
        request's time limit: otherwise each poll would wait for an unresponsive registry.
        """
        if self._registry is None or not any(polled.values()):
            return self.codec
        is_new = False
        if time.monotonic() >= self._ask_at:
            try:
                self.codec, self._fault = self._listed(self.codec.schemas or {}), None
            except (RegistryAway, RegistryRefused) as error:
                is_new, self._fault = self._fault is None, error.with_traceback(None)
                self._ask_at = time.monotonic() + self._pause
        if self._fault is not None:
            if self._has_unknown(polled):
                raise type(self._fault)(str(self._fault))
            if is_new:
                log.warning("%s: continuing with the known schemas", self._fault)
        return self.codec

    def _has_unknown(self, polled: Mapping[Any, Iterable[Any]]) -> bool:
        """Return whether a message names an unknown schema."""
        known = {number.to_bytes(REGISTERED_BYTES, "big") for number in self.codec.schemas or ()}
        names = {bytes((m.value or b"")[:REGISTERED_BYTES]) for each in polled.values() for m in each}
        return any(len(name) == REGISTERED_BYTES and name[0] == 0 for name in names - known)

    def _listed(self, known: Mapping[int, Any]) -> PayloadCodec:
        assert self._registry is not None, "there is a subject"
        found = self._registry.read(known)
        return (
            self.codec if known and found.keys() == known.keys() else build_codec(self._stream, None, found)
        )
