"""Rows of plain payloads, copied from a broker's response into a row store."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.codec import PayloadCodec
from streaming_pca.data.records import RecordKind
from streaming_pca.kernels.plain_records import VALUE_BYTES, copy_rows
from streaming_pca.service.input.row_store import RowStore
from streaming_pca.service.kafka.record_blocks import RecordBlock

_WORDS: dict[str, Any] = {"float32": np.uint32, "float64": np.uint64}


class PlainPayloads:
    """Copier of plain payloads, equivalent to ``PayloadCodec.decode_many``."""

    def __init__(self, codec: PayloadCodec) -> None:
        self._codec = codec
        self._headers = _forms(map(_encoded, codec.plain_headers))
        self._dtype, self._word = np.dtype(codec.dtype), _WORDS[codec.dtype]
        self._infinity, self._nan = np.array([np.inf, np.nan], self._dtype).view(self._word)

    def copy(self, block: RecordBlock, store: RowStore) -> tuple[int, NDArray[np.int64]] | None:
        """Copy the rows of a block's records to a store.

        Returns
        -------
        first : int
            Place of the first row.
        lengths : (m,) int64
            Number of each record's rows.

        None if some payload is not plain, or the store has rows of another type; then the store keeps
        nothing.
        """
        codec, parts = self._codec, block.parts
        if codec.kind is not RecordKind.FACTOR or not len(self._headers):
            return None
        most = int(np.maximum(parts[:, VALUE_BYTES], 0).sum(dtype=np.int64)) // (
            codec.dim * self._dtype.itemsize
        )
        rows = store.room(most, self._dtype)
        if rows is None:
            return None
        lengths = np.empty(len(parts), np.int64)
        by_row = codec.unit == "row"
        count = copy_rows(
            block.data,
            parts,
            self._headers,
            codec.max_rows,
            by_row,
            self._infinity,
            self._nan,
            rows.view(self._word),
            lengths,
        )
        return None if count < 0 else (store.keep(count), lengths)


def _encoded(headers: list[tuple[str, bytes]]) -> bytes:
    """Return the bytes of a record's headers as written by every client."""
    parts = [part for name, value in headers for part in (name.encode(), value)]
    if max([len(headers), *map(len, parts)]) >= 64:
        raise ValueError("a length takes one byte, of 63 at most")
    return bytes([2 * len(headers)]) + b"".join(bytes([2 * len(part)]) + part for part in parts)


def _forms(encoded: Iterable[bytes]) -> NDArray[np.uint8]:
    """Return a row for each form: its length, its bytes, and padding zeros."""
    every = list(encoded)
    forms = np.zeros((len(every), 1 + max(map(len, every), default=0)), np.uint8)
    for row, form in zip(forms, every, strict=True):
        row[: 1 + len(form)] = list(bytes([len(form)]) + form)
    return forms
