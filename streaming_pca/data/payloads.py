"""Readers of untrusted npy and JSON payloads.

As in the other formats, the *structure* of a payload fixes its number of
rows, and each row's numbers come from that row's own text or bytes. With
``privacy_unit = "row"``, one malformed row therefore never disturbs another.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray


class MalformedPayload(ValueError):
    """Error of a payload whose structure cannot be read; its record is null without a report."""


# The header of every numpy since 2011. numpy's own reader accepts others, but warns about them.
_NPY_HEADER = re.compile(
    rb"\{'descr': '([<>|=]?[fiu][1248])', 'fortran_order': (True|False), 'shape': \(([0-9, ]*)\), \}\s*\Z"
)


def rows_of_npy(value: bytes) -> NDArray[Any]:
    """Return the array of numbers in an .npy file, of any shape; ValueError for anything else.

    The header is structure; the rest is contents. Nothing is unpickled.
    """
    version = value[:8]
    if version == b"\x93NUMPY\x01\x00":
        start = 10 + int.from_bytes(value[8:10], "little")
        header = value[10:start]
    elif version in (b"\x93NUMPY\x02\x00", b"\x93NUMPY\x03\x00"):
        start = 12 + int.from_bytes(value[8:12], "little")
        header = value[12:start]
    else:
        raise MalformedPayload("no npy header")
    found = _NPY_HEADER.match(header)
    if found is None:
        raise MalformedPayload("not the header of an array of numbers")
    shape = tuple(int(n) for n in found[3].split(b",") if n.strip())
    array = np.frombuffer(value, dtype=np.dtype(found[1].decode()), offset=start)
    return array.reshape(shape, order="F" if found[2] == b"True" else "C")


# Possessive quantifiers: no text makes these take more than linear time.
_ENVELOPE = re.compile(rb'(?:\xef\xbb\xbf)?+[ \t\r\n]*+\{[ \t\r\n]*+"(x|rows)"[ \t\r\n]*+:[ \t\r\n]*+')
_FLAT_LIST = re.compile(rb'\[[^\[\]{}"]*+\]')
# Integers are read as floats: over 4300 digits int() raises, and above 2**63 numpy's type would change.
_DECODER = json.JSONDecoder(parse_int=float)
_BLANK = b" \t\r\n"
_END = {
    b"x": re.compile(rb"[ \t\r\n]*+\}[ \t\r\n]*+\Z"),
    b"rows": re.compile(rb"[ \t\r\n]*+\][ \t\r\n]*+\}[ \t\r\n]*+\Z"),
}
_DEPTH = bytes(((byte in b"[{") - (byte in b"]}")) & 0xFF for byte in range(256))
"""Change of the depth of brackets by each byte, as an int8."""


def rows_of_json(
    value: bytes, dim: int, most_rows: int, faults: dict[int, str] | None = None
) -> NDArray[np.float64]:
    """Return the rows of ``{"x": row}`` or ``{"rows": [row, ...]}``, in UTF-8.

    The object around the rows and the commas between them are structure. Each row is any JSON value; unless
    it is a list of ``dim`` numbers, it is a row of NaNs. Rows are separated before any is parsed, so none can
    disturb another by deep nesting, an integer of too many digits, or its length.

    ``faults`` receives, by row, the reason why it is of NaNs.

    Returns (n, dim): numbers are read as float64, with or without a point; too large ones are infinities.

    Raises MalformedPayload if the value is not such an object, or holds more than ``most_rows`` rows.
    """
    envelope = _ENVELOPE.match(value)
    if envelope is None:
        raise MalformedPayload('expected {"x": [numbers]} or {"rows": [[numbers], ...]}, and nothing else')
    body = value[envelope.end() :]
    if envelope[1] == b"rows":
        if body[:1] != b"[":
            raise MalformedPayload("rows must be a list")
        body = body[1:]
    texts, end = split_values(body, most_rows)
    if _END[envelope[1]].match(body, end) is None:
        raise MalformedPayload("more than one key, or an incomplete object")
    if envelope[1] == b"x" and len(texts) != 1:
        raise MalformedPayload("x must be one row, and the only key")
    rows = np.full((len(texts), dim), np.nan)
    for i, text in enumerate(texts):
        numbers = _numbers(text, dim)
        if isinstance(numbers, list):
            rows[i] = numbers
        elif faults is not None:
            faults[i] = numbers
    return rows


def split_values(body: bytes, most: int) -> tuple[list[bytes], int]:
    """Split a text at its outer commas, up to its first unmatched closing bracket.

    Returns the parts, and the place of that bracket; MalformedPayload if the bracket or a part is missing,
    or there are more than ``most``.
    """
    data = np.frombuffer(body, np.uint8)
    depth, outside = _depths(body)
    between = data == ord(",")
    if outside is not None:
        between &= outside
    closed = depth < 0
    end = int(closed.argmax()) if len(closed) else 0
    if not closed[end : end + 1].any():
        raise MalformedPayload("a string or a list is not closed")
    (commas,) = (between[:end] & (depth[:end] == 0)).nonzero()
    if len(commas) >= most:
        raise MalformedPayload("too many rows")
    cuts = [-1, *commas.tolist(), end]
    texts = [body[a + 1 : b].strip(_BLANK) for a, b in pairwise(cuts)]
    if texts == [b""]:
        return [], end
    if b"" in texts:
        raise MalformedPayload("a row is missing")
    return texts, end


def nesting_depth(text: bytes) -> int:
    """Return the greatest depth of the brackets of a JSON text."""
    return int(_depths(text)[0].max(initial=0))


def _depths(text: bytes) -> tuple[NDArray[np.int32], NDArray[np.bool_] | None]:
    """Return the depth after each byte, and the bytes outside of strings."""
    change = np.frombuffer(text.translate(_DEPTH), np.int8)
    outside = _outside_strings(np.frombuffer(text, np.uint8)) if b'"' in text else None
    if outside is not None:
        change = np.where(outside, change, np.int8(0))
    return np.cumsum(change, dtype=np.int32), outside


def _outside_strings(data: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Mark the bytes of a JSON text that are outside its strings."""
    quotes = data == ord('"')
    slashes = data == ord("\\")
    if slashes.any():
        place = np.arange(len(data), dtype=np.int32)
        last = np.maximum.accumulate(np.where(slashes, np.int32(-1), place))
        # A quote after an odd number of backslashes is part of its string.
        quotes[1:] &= (place[:-1] - last[:-1]) % 2 == 0
    return np.asarray(np.cumsum(quotes, dtype=np.int32) % 2 == 0)


def _numbers(text: bytes, dim: int) -> list[float] | str:
    """Parse one row; return why if it is not a list of ``dim`` numbers."""
    # Python writes a number in at most 25 bytes. Parsing can take sixteen times the memory of the text.
    if len(text) > 4096 + 64 * dim:
        return "its text is too long"
    if not _FLAT_LIST.fullmatch(text):
        return "it is not one list of numbers"
    try:
        row = _DECODER.decode(text.decode("ascii"))
    except ValueError:
        return "it is not JSON"
    if len(row) != dim:
        return f"it has {len(row)} numbers, but dim = {dim}"
    if set(map(type, row)) != {float}:
        return f"position {next(i for i, n in enumerate(row) if type(n) is not float)} is not a number"
    return list(row)
