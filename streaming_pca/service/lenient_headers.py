"""A header whose name is not UTF-8 makes its record null, not its partition unreadable.

Kafka's protocol says that header names are UTF-8; brokers do not check it.
kafka-python 3.0.12 decodes names while it polls and raises CorruptRecordError,
with the bytes in its message, at every attempt: one record of one producer
could stop a stream for ever, and its contents would be in the log.
"""

from __future__ import annotations

from typing import Any

from kafka.record.default_records import DefaultRecord, DefaultRecordBatch
from kafka.record.util import decode_varint

__all__ = ["install"]

_read = DefaultRecordBatch._read_msg


def _read_or_null(self: Any) -> Any:
    start = self._pos
    try:
        return _read(self)
    except UnicodeDecodeError:
        # Record => Length Attributes TimestampDelta OffsetDelta ..., all varints.
        length, body = decode_varint(self._buffer, start)
        _, position = decode_varint(self._buffer, body)
        delta, position = decode_varint(self._buffer, position)
        offset_delta, _ = decode_varint(self._buffer, position)
        self._pos = body + length
        return DefaultRecord(
            size_in_bytes=length,
            offset=self.base_offset + offset_delta,
            timestamp=self.first_timestamp + delta,
            timestamp_type=self.timestamp_type,
            key=None,
            value=None,
            headers=[],
        )


def install() -> None:
    """Teach the client; harmless when repeated."""
    DefaultRecordBatch._read_msg = _read_or_null
