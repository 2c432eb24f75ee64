"""Compiled passes from the bytes of a Kafka record batch to rows of numbers.

The first finds each record's parts, the second copies the rows of plain payloads. Both read bytes of
unknown origin: every place is compared with the end of the bytes before it is read.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit

START, END, DELTA, KEY, KEY_BYTES, VALUE, VALUE_BYTES, HEADERS = range(8)
"""Columns of :func:`find_records`: places in the batch's bytes, and numbers of bytes, below 0 for None.

``HEADERS`` is below 0 for a record that cannot be read, which has no value.
"""
PARTS = 8
LEAST_RECORD_BYTES = 7
"""Bytes of the shortest record that can be read."""


@njit(cache=True, nogil=True)
def _integer(data: NDArray[np.uint8], at: int) -> tuple[Any, int]:
    """Return a zig-zag integer of 32 bits and its end; the end is -1 without one."""
    raw = np.uint64(0)
    for i in range(min(5, data.size - at)):
        byte = data[at + i]
        raw |= np.uint64(byte & 0x7F) << np.uint64(7 * i)
        if byte < 0x80:
            # Bits beyond 32 in the fifth byte are dropped, as in Java.
            raw &= np.uint64(0xFFFFFFFF)
            return np.int64(raw >> np.uint64(1)) ^ -np.int64(raw & np.uint64(1)), at + i + 1
    return 0, -1


@njit(cache=True, nogil=True)
def find_records(data: NDArray[np.uint8], at: int, parts: NDArray[np.int32]) -> None:
    """Find the parts (m, 8) of consecutive records, from place ``at`` on.

    The rules are those of :mod:`streaming_pca.service.kafka.record_batches`. Headers are only located. After
    a record with an impossible length none can be found.
    """
    for n in range(len(parts)):
        for i in range(PARTS):
            parts[n, i] = -1
        if at < 0:
            continue
        length, start = _integer(data, at)
        if start < 0 or length < 0 or length > data.size - start:
            at = -1
            continue
        at = start + length
        parts[n, START], parts[n, END] = start, at
        # One byte of attributes, then the time, of at most ten bytes.
        p = start + 1
        stop = min(p + 10, data.size)
        while p < stop and data[p] >= 0x80:
            p += 1
        if p >= stop:
            continue
        p += 1
        # Delta, length of the key and length of the value.
        for column in (DELTA, KEY, VALUE):
            number, p = _integer(data, p)
            if p < 0:
                break
            if column == DELTA:
                parts[n, DELTA] = number
                continue
            if number >= 0 and number > at - p:
                p = -1
                break
            parts[n, column], parts[n, column + 1] = p, number
            p += max(number, 0)
        # Headers are present even if their count is zero.
        if p >= 0 and p < at:
            parts[n, HEADERS] = p


@njit(cache=True, nogil=True)
def whole_records(data: NDArray[np.uint8], most: int, most_bytes: int) -> tuple[int, int]:
    """Return the number of whole records that bytes begin with, and the last one's end.

    ``most`` bounds their number, and ``most_bytes`` the length of one: a longer one ends the search.
    """
    count = at = 0
    while count < most:
        length, start = _integer(data, at)
        if start < 0 or length < 0 or length > min(most_bytes, data.size - start):
            break
        at = start + length
        count += 1
    return count, at


@njit(cache=True, nogil=True)
def _is_plain(data: NDArray[np.uint8], first: int, size: int, plain: NDArray[np.uint8]) -> bool:
    """Return whether bytes have one of some forms, each stored after its length."""
    for i in range(len(plain)):
        if plain[i, 0] == size:
            same = True
            for j in range(size):
                same &= data[first + j] == plain[i, 1 + j]
            if same:
                return True
    return False


@njit(cache=True, nogil=True)
def copy_rows(
    data: NDArray[np.uint8],
    parts: NDArray[np.int32],
    plain: NDArray[np.uint8],
    most: int,
    by_row: bool,
    infinity: Any,
    nan: Any,
    rows: NDArray[Any],
    lengths: NDArray[np.int64],
) -> int:
    """Copy the rows of records and return their number; -1 if some headers are not plain.

    Parameters
    ----------
    data : (n,).
    parts : (m, 8), parts from :func:`find_records`.
    plain : (f, w), encoded headers of plain payloads, each stored after its length.
    most : most rows of a record; a longer record is null, as is a record whose bytes are not whole rows.
    by_row : whether a row with a number that is not finite becomes a row of NaNs, and not the record null.
    infinity, nan : bits of infinity, and of a NaN, in the numbers' type.
    rows : (r, d), uint32 or uint64, receives the numbers' bits; r is as much as all values can take.
    lengths : (m,), receives the number of each record's rows.
    """
    d, word = rows.shape[1], rows.itemsize
    width = d * word
    out = rows.reshape(-1).view(np.uint8)
    used = 0
    for n in range(len(parts)):
        lengths[n] = 0
        first, value, size = parts[n, HEADERS], parts[n, VALUE], np.int64(parts[n, VALUE_BYTES])
        if first < 0:
            continue
        if not _is_plain(data, first, parts[n, END] - first, plain):
            return -1
        count = size // width if size > 0 else 0
        if size % width or count > most:
            continue
        bad = False
        for r in range(count):
            # Unsigned places make the loop a copy of memory. A row is checked while it is in the cache.
            source, target = np.uint64(value + r * width), np.uint64((used + r) * width)
            for j in range(np.uint64(width)):
                out[target + j] = data[source + j]
            wrong = False
            for j in range(d):
                wrong |= (rows[used + r, j] & infinity) == infinity
            if wrong and by_row:
                for j in range(d):
                    rows[used + r, j] = nan
            bad |= wrong
        if bad and not by_row:
            continue
        lengths[n] = count
        used += count
    return used
