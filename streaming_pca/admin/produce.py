"""Sender of a file of records as messages: `streaming-pca produce`."""

from __future__ import annotations

import io
import json
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streaming_pca.admin.sending import Outgoing, Produced, send_messages
from streaming_pca.config.settings import ConfigurationError, KafkaSettings, StreamSettings
from streaming_pca.data.arrow import ArrowMissing, need_pyarrow, stream_of_rows
from streaming_pca.data.codec import ARROW, JSON, NPY, OCTETS
from streaming_pca.data.files import RecordFile, RecordFileError
from streaming_pca.data.records import RecordKind
from streaming_pca.privacy.randomness import utility_generator

__all__ = ["ContentType", "RecordFileError", "arrange", "arrange_features", "encoder_of", "send_records"]

ContentType = Literal["octets", "npy", "json", "arrow"]

_CONTENT_TYPES: dict[ContentType, str] = {"octets": OCTETS, "npy": NPY, "json": JSON, "arrow": ARROW}
_DTYPES: dict[str, np.dtype[Any]] = {"float32": np.dtype("<f4"), "float64": np.dtype("<f8")}
_REPORT_EVERY = 1000
_BLOCK_ENTRIES = 2**20
"""Numbers of a file held in memory at once, beside one message's."""


def arrange_features(records: RecordFile, stream: StreamSettings) -> RecordFile:
    """Arrange the records' features as the stream has them, in its order.

    Raises
    ------
    RecordFileError
    """
    if records.dim != stream.dim:
        raise RecordFileError(
            f"{records.path}: records have {records.dim} features, the stream's dim is {stream.dim}: "
            "set stream.dim, or send another file"
        )
    return records if stream.feature_names is None else records.with_features(stream.feature_names)


def arrange(
    records: RecordFile, stream: StreamSettings, *, rows_per_message: int = 1, factors: bool = False
) -> RecordFile:
    """Check records against a stream; arrange features and factors as the stream has them.

    Parameters
    ----------
    records : RecordFile
    stream : StreamSettings
    rows_per_message : int
        Above 1 only where each row is a record, or with ``factors``.
    factors : bool
        Make every ``rows_per_message`` rows one record.

    Raises
    ------
    RecordFileError, ConfigurationError
    """
    if stream.record_kind is RecordKind.LOCAL:
        raise ConfigurationError(
            f'{stream.name}: record_kind = "local" takes reports: readers of the topic would see the record'
        )
    records = arrange_features(records, stream)
    if len(records.shape) == 3 and (factors or rows_per_message > 1):
        raise ConfigurationError(
            f"{records.path} holds factors of {records.shape[1]} rows, one a message: "
            "leave out --factors and --rows-per-message"
        )
    if factors and stream.privacy_unit == "row":
        raise ConfigurationError('stream.privacy_unit = "row" makes each row a record: leave out --factors')
    if rows_per_message > 1 and stream.privacy_unit != "row" and not factors:
        raise ConfigurationError(
            f'with stream.privacy_unit = "{stream.privacy_unit}" {rows_per_message} rows in a message are '
            'one record: say --factors if they are, or set stream.privacy_unit = "row"'
        )
    if records.row_keys is None and stream.privacy_unit == "user":
        raise ConfigurationError(
            'stream.privacy_unit = "user" makes messages without a key null: '
            "name the column of the users with --key"
        )
    if records.row_keys is not None and rows_per_message > 1 and not factors:
        raise ConfigurationError(
            "--key gives each row a key, and a message has one: leave out --rows-per-message, or --key"
        )
    if factors:
        records = records.grouped(rows_per_message)
        # Checked now: an error halfway would leave the first messages sent.
        deque(records.keys(), maxlen=0)
    if stream.record_kind is RecordKind.MATRIX:
        if records.shape[1:] != (stream.dim, stream.dim):
            raise RecordFileError(
                f'{records.path}: stream.record_kind is "matrix": expected the shape '
                f"(records, {stream.dim}, {stream.dim})"
            )
        return records
    rows = records.shape[1] if len(records.shape) == 3 else rows_per_message
    if rows > stream.max_rows:
        raise ConfigurationError(
            f"{rows} rows a message are above stream.max_rows = {stream.max_rows}, which would make each "
            "of them null: raise it, or send fewer"
        )
    return records


def encoder_of(content_type: ContentType, dtype: str) -> Callable[[NDArray[np.floating]], bytes]:
    """Return the function that encodes rows (r, d) as a payload.

    Parameters
    ----------
    content_type : {"octets", "npy", "json", "arrow"}
    dtype : {"float32", "float64"}
        Type of the numbers; JSON's are float64.

    Raises
    ------
    ConfigurationError
        If pyarrow is missing.
    """
    if content_type == "json":
        return _as_json
    number = _DTYPES[dtype]

    def converted(rows: NDArray[np.floating]) -> NDArray[np.floating]:
        with np.errstate(over="ignore"):
            return np.ascontiguousarray(rows, dtype=number)

    if content_type == "octets":
        return lambda rows: converted(rows).tobytes()
    if content_type == "npy":
        return lambda rows: _as_npy(converted(rows))
    try:
        pyarrow = need_pyarrow("--content-type arrow")
    except ArrowMissing as error:
        raise ConfigurationError(str(error)) from None
    return lambda rows: stream_of_rows(pyarrow, converted(rows))


def _as_npy(rows: NDArray[np.floating]) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    return buffer.getvalue()


def _as_json(rows: NDArray[np.floating]) -> bytes:
    numbers: list[list[Any]] = rows.astype(np.float64, copy=False).tolist()
    if not np.isfinite(rows).all():
        # JSON has no NaN. A null instead makes the record null, as a NaN would.
        numbers = [[x if np.isfinite(x) else None for x in row] for row in numbers]
    body = {"x": numbers[0]} if len(numbers) == 1 else {"rows": numbers}
    return json.dumps(body, separators=(",", ":"), allow_nan=False).encode()


def send_records(
    kafka: KafkaSettings,
    topic: str,
    records: RecordFile | NDArray[np.floating],
    *,
    dtype: str = "float32",
    content_type: ContentType = "octets",
    rows_per_message: int = 1,
    shuffle: int | None = None,
    rate: float | None = None,
    progress: Callable[[int], None] | None = None,
) -> Produced:
    """Send records, with any keys they have, to the topic's partitions in turn.

    Parameters
    ----------
    records : RecordFile or array (m, d) or (m, r, d)
        A factor is one message.
    dtype : {"float32", "float64"}
        Type of the payload's numbers; the stream's ``dtype``.
    content_type : {"octets", "npy", "json", "arrow"}
    rows_per_message : int
        Vectors in a message; the last one may have fewer.
    shuffle : int, optional
        Public seed of the order of vectors or factors.
    rate : float, optional
        Most messages per second.
    progress : callable, optional
        Called now and then with the number of messages sent since its last call.
    """
    if not isinstance(records, RecordFile):
        records = RecordFile.of_array(records)
    encode = encoder_of(content_type, dtype)
    headers = [("content-type", _CONTENT_TYPES[content_type].encode())]
    order = None if shuffle is None else utility_generator(shuffle).permutation(len(records))
    keys = records.keys(order)
    outgoing = (
        Outgoing(encode(rows), next(keys), len(rows)) for rows in _messages(records, rows_per_message, order)
    )
    total = -(-len(records) // rows_per_message)
    return send_messages(
        kafka, topic, outgoing, total, headers, rate=rate, progress=progress, progress_every=_REPORT_EVERY
    )


def _messages(
    records: RecordFile, rows_per_message: int, order: NDArray[np.int64] | None
) -> Iterator[NDArray[np.floating]]:
    """Yield the rows (r, d) of every message."""
    entries = int(np.prod(records.shape[1:])) * rows_per_message
    per_block = max(1, min(_REPORT_EVERY, _BLOCK_ENTRIES // entries))
    for block in records.blocks(per_block * rows_per_message, order):
        if block.ndim == 3:
            yield from block
        else:
            for first in range(0, len(block), rows_per_message):
                yield block[first : first + rows_per_message]
