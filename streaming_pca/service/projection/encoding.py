"""Projection of messages: payloads in, coordinates of their rows out.

Every message has a projection, so that consumers can align the two topics. A null record or a payload
without rows yields a payload without rows. A message's result does not depend on other messages, except for
the last bits: a matrix product may round differently for another shape.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.codec import OCTETS, Message, PayloadCodec
from streaming_pca.data.features.records import JSON
from streaming_pca.data.projection import Projection

Format = Literal["octets", "json"]
FORMATS: tuple[Format, ...] = ("octets", "json")

_NUMBERS: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}


class Placed(Message, Protocol):
    """Message with its place in its partition."""

    offset: int


@dataclass(frozen=True)
class Encoder:
    """Encoder of projected rows.

    Attributes
    ----------
    format : {"octets", "json"}
    dtype : {"float32", "float64"}
        Number type of octets; JSON has float64.
    """

    format: Format
    dtype: Literal["float32", "float64"]

    @property
    def headers(self) -> list[tuple[str, bytes]]:
        """Headers of every message that describe its payload."""
        if self.format == "json":
            return [("content-type", JSON.encode())]
        return [("content-type", OCTETS.encode()), ("dtype", self.dtype.encode())]

    @property
    def numbers(self) -> np.dtype[Any]:
        """Type of the encoded numbers."""
        return _NUMBERS["float64" if self.format == "json" else self.dtype]

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

    Parameters
    ----------
    codec : PayloadCodec
        The stream's codec; if rows are records, a null row keeps its place.

    Returns
    -------
    list of bytes
        Without rows for a null record, or if a coordinate overflows the number type.
    """
    rows, lengths = codec.decode_many(messages)
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
