"""Single values of Avro payloads, in bounded time and memory."""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from typing import Any
from uuid import UUID

from streaming_pca.data.features.values import quotient, utc_day, utc_time
from streaming_pca.data.payloads import MalformedPayload

Value = Callable[[bytes, int], tuple[Any, int]]
"""Takes a payload and a place in it; returns the value there, and the place after it."""

_MOST_DIGITS = 1000

double = struct.Struct("<d").unpack_from
single = struct.Struct("<f").unpack_from


def long(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of 64 bits, and the place after it."""
    byte = data[at]
    at += 1
    if byte < 128:
        return (byte >> 1) ^ -(byte & 1), at
    number, shift = byte & 127, 7
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            break
        shift += 7
        if shift > 63:
            raise MalformedPayload("a number has more than 64 bits")
    if number >= 2**64:
        raise MalformedPayload("a number has more than 64 bits")
    return (number >> 1) ^ -(number & 1), at


def skip_long(data: bytes, at: int, deep: int) -> int:
    return long(data, at)[1]


def skip_sized(data: bytes, at: int, deep: int) -> int:
    size, at = long(data, at)
    if not 0 <= size <= len(data) - at:
        raise MalformedPayload("a text or a block is longer than the payload")
    return at + size


def sized(data: bytes, at: int) -> tuple[bytes, int]:
    size, at = long(data, at)
    if not 0 <= size <= len(data) - at:
        raise MalformedPayload("a text or a block is longer than the payload")
    return data[at : at + size], at + size


def _string(data: bytes, at: int) -> tuple[str, int]:
    value, at = sized(data, at)
    return value.decode(), at


def _boolean(data: bytes, at: int) -> tuple[bool, int]:
    if data[at] > 1:
        raise MalformedPayload("a boolean is neither 0 nor 1")
    return data[at] == 1, at + 1


def choice(data: bytes, at: int, count: int, what: str) -> tuple[int, int]:
    index, at = long(data, at)
    if not 0 <= index < count:
        raise MalformedPayload(f"{what} {index} does not exist")
    return index, at


def block(data: bytes, at: int, fewest: int) -> tuple[int, int | None, int]:
    """Return a block's number of items, its stated end, and its first item's place."""
    count, at = long(data, at)
    end = None
    if count < 0:
        size, at = long(data, at)
        if not 0 <= size <= len(data) - at:
            raise MalformedPayload("a text or a block is longer than the payload")
        count, end = -count, at + size
    if count * fewest > (len(data) if end is None else end) - at:
        raise MalformedPayload(f"a block of {count} items is longer than the payload")
    return count, end, at


PLAIN: dict[str, Value] = {
    "null": lambda data, at: (None, at),
    "boolean": _boolean,
    "int": long,
    "long": long,
    "float": lambda data, at: (single(data, at)[0], at + 4),
    "double": lambda data, at: (double(data, at)[0], at + 8),
    "bytes": sized,
    "string": _string,
}
_PER_SECOND = {"millis": 1000, "micros": 10**6, "nanos": 10**9}


def logical(name: Any, kind: str, type_: Any) -> Callable[[Any], Any] | None:
    """Return the function from a value to its logical type's; None for plain types."""
    if name == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(type_)
    if name == "date" and kind == "int":
        return utc_day
    if name == "uuid" and kind == "fixed" and int(type_["size"]) == 16:
        return lambda value: str(UUID(bytes=value))
    if kind == "long" and isinstance(name, str):
        unit = _PER_SECOND.get(name.removeprefix("local-").removeprefix("timestamp-"))
        if unit is not None and "timestamp-" in name:
            return lambda value: utc_time(value, unit)
    return None


def _decimal(type_: Any) -> Callable[[Any], Any]:
    precision, scale = int(type_["precision"]), int(type_.get("scale", 0))
    if not 0 <= scale <= precision <= _MOST_DIGITS:
        raise ValueError(f"a decimal has a precision beyond {_MOST_DIGITS}, or a scale beyond that")
    # Some writers fill up to 16 bytes. For longer texts the time would grow with the square.
    most = max(16, math.ceil((precision * math.log2(10) + 1) / 8))

    def read(value: bytes) -> Any:
        return quotient(int.from_bytes(value, "big", signed=True), scale) if len(value) <= most else math.nan

    return read
