"""Projection of messages: payloads in, coordinates of their rows out, by the schemas that records name.

Every message has a projection, so that consumers can align the two topics. A null record or a payload
without rows yields a payload without rows. A message's result does not depend on other messages, except for
the last bits: a matrix product may round differently for another shape.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streaming_pca.config.registry import RegistrySettings
from streaming_pca.config.settings import StreamSettings
from streaming_pca.data.codec import OCTETS, Message, PayloadCodec
from streaming_pca.data.features.records import JSON
from streaming_pca.data.projection import Projection
from streaming_pca.service.errors import SessionLost, StreamRefused
from streaming_pca.service.input.source import build_codec
from streaming_pca.service.schema_registry import SchemaRegistry

Format = Literal["octets", "json"]


@dataclass(frozen=True)
class Encoder:
    """Encoder of projected rows; ``dtype`` is the number type of octets, JSON has float64."""

    format: Format
    dtype: Literal["float32", "float64"]

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        if self.format == "json":
            return [("content-type", JSON.encode())]
        return [("content-type", OCTETS.encode()), ("dtype", self.dtype.encode())]

    @property
    def numbers(self) -> np.dtype[Any]:
        return np.dtype("float64" if self.format == "json" else self.dtype).newbyteorder("<")

    def encode(self, rows: NDArray[np.floating]) -> bytes:
        """Encode the rows (r, k) of one message; rows of NaNs are null."""
        if self.format == "octets":
            return rows.tobytes()
        lists = [row.tolist() if np.isfinite(row).all() else None for row in rows]
        return json.dumps({"x": lists[0]} if len(lists) == 1 else {"rows": lists}, allow_nan=False).encode()


def project(
    codec: PayloadCodec, projection: Projection, encoder: Encoder, messages: Sequence[Message]
) -> list[bytes]:
    """Return the projected payload of each message.

    It has no rows for a null record, or if a coordinate overflows the number type. If rows are records, a
    null row keeps its place.
    """
    rows, lengths = codec.decode_all(messages)[:2]
    # A warning would reveal that a record overflowed. float64, because the type of ``rows`` depends on the
    # other messages.
    with np.errstate(all="ignore"):
        found = projection.transform(rows.astype(np.float64)).astype(encoder.numbers)
    finite = np.isfinite(found).all(axis=1)
    ends = np.cumsum(lengths)
    if not finite.all():
        found[~finite] = np.nan
        if codec.unit != "row":
            owners = np.repeat(np.arange(len(lengths)), lengths)
            lengths = lengths.copy()
            lengths[owners[~finite]] = 0
    first = ends - lengths
    return [encoder.encode(found[a:b]) for a, b in zip(first.tolist(), ends.tolist(), strict=True)]


def headers_of(release_batch: int, doubts: Sequence[str], encoder: Encoder) -> list[tuple[str, bytes]]:
    """Return the headers common to all projections with one release."""
    headers = [*encoder.headers, ("release-batch", str(release_batch).encode())]
    if doubts:
        headers.append(("release-doubts", ",".join(doubts).encode()))
    # The guarantee of the release does not extend to projections of records.
    return [*headers, ("privacy", b"as-input")]


class FollowingCodec:
    """Codec of a stream, rebuilt when a registry lists a new schema."""

    def __init__(self, stream: StreamSettings, registry: RegistrySettings | None) -> None:
        self._stream = stream
        self._registry: SchemaRegistry | None = None
        subject = stream.registry_subject
        if subject is None:
            self.codec = build_codec(stream, None)
            return
        assert registry is not None, "settings with a subject have a registry"
        self._registry = SchemaRegistry(registry, *subject)
        self.codec = self._listed({})

    def follow(self, polled: Mapping[Any, Iterable[Any]]) -> PayloadCodec:
        """Return the codec for the messages just read.

        The registry is queried after reading, because a schema is registered before its first record.
        SessionLost if the query fails, also if all messages name known schemas: otherwise lag and log would
        show whether one of them is unknown. A refusal may pass too, because a password may be renewed soon.
        """
        if self._registry is not None and any(polled.values()):
            try:
                self.codec = self._listed(self.codec.schemas or {})
            except StreamRefused as error:
                raise SessionLost(str(error)) from None
        return self.codec

    def _listed(self, known: Mapping[int, Any]) -> PayloadCodec:
        assert self._registry is not None, "there is a subject"
        found = self._registry.read(known)
        return (
            self.codec if known and found.keys() == known.keys() else build_codec(self._stream, None, found)
        )
