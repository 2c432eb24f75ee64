"""Encoders of rows as payloads, and the headers that describe them."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.arrow import need_pyarrow, stream_of_rows
from streaming_pca.data.codec import FORMATS
from streaming_pca.local.headers import KIND_HEADER

ContentType = Literal["octets", "npy", "json", "arrow"]
Dtype = Literal["float32", "float64"]


def payload_headers(
    content_type: ContentType, dtype: Dtype | None = None, record_kind: str | None = None
) -> list[tuple[str, bytes]]:
    """Return the headers that describe a payload; ``dtype`` is for octets.

    A stream of another ``record_kind`` treats the record as null.
    """
    headers = [("content-type", FORMATS[content_type].encode())]
    if dtype is not None and content_type == "octets":
        headers.append(("dtype", dtype.encode()))
    if record_kind is not None:
        headers.append((KIND_HEADER, record_kind.encode()))
    return headers


def payload_encoder(content_type: ContentType, dtype: str) -> Callable[[NDArray[np.floating]], bytes]:
    """Return the function that encodes rows (r, d) as a payload; JSON's numbers are float64."""
    if content_type == "json":
        return _as_json
    number = np.dtype(dtype).newbyteorder("<")

    def converted(rows: NDArray[np.floating]) -> NDArray[np.floating]:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(rows, dtype=number)

    if content_type == "octets":
        return lambda rows: converted(rows).tobytes()
    if content_type == "npy":
        return lambda rows: _as_npy(converted(rows))
    pyarrow = need_pyarrow("--content-type arrow")
    return lambda rows: stream_of_rows(pyarrow, converted(rows))


def round_rows(rows: NDArray[np.float64], bounds: Any, dtype: Dtype) -> NDArray[np.floating]:
    """Round finite rows to a payload's type: they stay finite, and values within the bounds stay within."""
    most, (lower, upper) = np.finfo(dtype).max, bounds
    rounded = np.clip(rows, -most, most).astype(dtype)
    left = ((rounded < lower) & (rows >= lower)) | ((rounded > upper) & (rows <= upper))
    back = np.where(rounded > rows, -most, most).astype(dtype)
    return np.where(left, np.nextafter(rounded, back), rounded)


def _as_npy(rows: NDArray[np.floating]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()


def _as_json(rows: NDArray[np.floating]) -> bytes:
    numbers: list[list[Any]] = rows.astype(np.float64, copy=False).tolist()
    if not np.isfinite(rows).all():
        # JSON cannot represent NaN. A null makes the record null, as a NaN would.
        numbers = [[x if np.isfinite(x) else None for x in row] for row in numbers]
    body = {"x": numbers[0]} if len(numbers) == 1 else {"rows": numbers}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()
