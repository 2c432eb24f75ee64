"""One shard of the table of users: a compiled hash table in numpy arrays.

Users are the 128 bits of a keyed hash as two uint64, (high, low); (0, 0) marks
an empty slot and is no user. Slots are found by linear probing from a home that
the top 32 bits of ``low`` give, and two users are equal only if all 128 bits are.
The hash is keyed with a secret, so nobody who writes messages can aim at a slot.

Memory: a slot holds 16 bytes of hash and a count of one or two. A shard that
must grow goes to at most 9/8 of what makes it 4/5 full, so a user costs at most
(16 + 2) * 45/32 = 25.3 bytes (23.9 with counts of one byte), and while it grows
only that shard exists twice.
"""

from __future__ import annotations

import struct

import numpy as np
from numba import njit
from numpy.typing import NDArray

__all__ = ["MAX_COUNT", "SHARDS", "MalformedUsers", "UserShard", "partition_by_shard"]

SHARDS = 64
"""Parts of a table, by the six top bits of a hash: what grows, and what is stored, at once."""

MAX_COUNT = 2**16 - 1
"""The largest count that a shard holds and writes."""

_HEADER = struct.Struct("<4sBBxxQ")
_MAGIC = b"SPUT"
_VERSION = 1
_SMALLEST = 16
_HASH = np.dtype("<u8")
_COUNT = np.dtype("<u2")
_BYTES_PER_USER = 2 * _HASH.itemsize + _COUNT.itemsize


class MalformedUsers(ValueError):
    """Users, or the bytes of a shard, that no table could have given."""


@njit(cache=True, nogil=True)
def _home(low: np.uint64, capacity: int) -> np.int64:
    """Where the search for a user begins, in [0, capacity), for a capacity up to 2**32."""
    # All in uint64: numba turns a mixture of signed and unsigned into floats.
    return np.int64(((low >> np.uint64(32)) * np.uint64(capacity)) >> np.uint64(32))


@njit(cache=True, nogil=True)
def _find(keys: NDArray[np.uint64], high: np.uint64, low: np.uint64) -> np.int64:
    """The slot that holds a user, or the empty one where it belongs."""
    capacity = keys.shape[0]
    slot = _home(low, capacity)
    while True:
        h, l = keys[slot, 0], keys[slot, 1]
        if (h == high and l == low) or (h == 0 and l == 0):
            return slot
        slot += 1
        if slot == capacity:
            slot = np.int64(0)


@njit(cache=True, nogil=True)
def _mark_counted(
    keys: NDArray[np.uint64],
    counts: NDArray[np.unsignedinteger],
    limit: int,
    users: NDArray[np.uint64],
    rows: NDArray[np.int32],
    seen: NDArray[np.int32],
    counted: NDArray[np.bool_],
) -> None:
    """Set ``counted`` at the first of ``rows`` of each user that is below the limit.

    ``seen`` is scratch with more entries than ``rows``: rows met so far, by user.
    """
    seen[:] = -1
    capacity = seen.shape[0]
    for row in rows:
        high, low = users[row, 0], users[row, 1]
        slot = _home(low, capacity)
        while seen[slot] >= 0 and not (users[seen[slot], 0] == high and users[seen[slot], 1] == low):
            slot += 1
            if slot == capacity:
                slot = np.int64(0)
        if seen[slot] < 0:
            seen[slot] = row
            # The count of an empty slot is 0.
            counted[row] = counts[_find(keys, high, low)] < limit


@njit(cache=True, nogil=True)
def _number_absent(keys: NDArray[np.uint64], users: NDArray[np.uint64], rows: NDArray[np.int32]) -> int:
    """How many of the users have no slot."""
    absent = 0
    for row in rows:
        slot = _find(keys, users[row, 0], users[row, 1])
        if keys[slot, 0] == 0 and keys[slot, 1] == 0:
            absent += 1
    return absent


@njit(cache=True, nogil=True)
def _count_again(
    keys: NDArray[np.uint64],
    counts: NDArray[np.unsignedinteger],
    users: NDArray[np.uint64],
    rows: NDArray[np.int32],
) -> None:
    """One more for each user; there must be an empty slot more than new users."""
    for row in rows:
        slot = _find(keys, users[row, 0], users[row, 1])
        keys[slot, 0] = users[row, 0]
        keys[slot, 1] = users[row, 1]
        counts[slot] += 1


@njit(cache=True, nogil=True)
def _place(
    keys: NDArray[np.uint64],
    counts: NDArray[np.unsignedinteger],
    new_keys: NDArray[np.uint64],
    new_counts: NDArray[np.unsignedinteger],
) -> None:
    """Copy all users to empty, larger arrays."""
    for i in range(keys.shape[0]):
        if keys[i, 0] != 0 or keys[i, 1] != 0:
            slot = _find(new_keys, keys[i, 0], keys[i, 1])
            new_keys[slot, 0] = keys[i, 0]
            new_keys[slot, 1] = keys[i, 1]
            new_counts[slot] = counts[i]


@njit(cache=True, nogil=True)
def _sort_into_shards(users: NDArray[np.uint64], starts: NDArray[np.int64]) -> NDArray[np.int32]:
    for row in range(users.shape[0]):
        if users[row, 0] != 0 or users[row, 1] != 0:
            starts[np.int64(users[row, 0] >> np.uint64(58)) + 1] += 1
    for shard in range(starts.shape[0] - 1):
        starts[shard + 1] += starts[shard]
    rows = np.empty(starts[-1], np.int32)
    following = starts.copy()
    for row in range(users.shape[0]):
        if users[row, 0] != 0 or users[row, 1] != 0:
            part = np.int64(users[row, 0] >> np.uint64(58))
            rows[following[part]] = row
            following[part] += 1
    return rows


def partition_by_shard(users: NDArray[np.uint64]) -> list[tuple[int, NDArray[np.int32]]]:
    """The rows of each shard that has any, in their order; rows of (0, 0) are left out.

    Parameters
    ----------
    users : (m, 2) uint64, m < 2**31

    Returns
    -------
    list of (shard, (r,) int32)
        Views of one array: 4 bytes a row.
    """
    starts = np.zeros(SHARDS + 1, np.int64)
    rows = _sort_into_shards(users, starts)
    return [
        (shard, rows[starts[shard] : starts[shard + 1]])
        for shard in range(SHARDS)
        if starts[shard] < starts[shard + 1]
    ]


class UserShard:
    """Users whose hashes begin with the same six bits, and their counts.

    Parameters
    ----------
    limit : int
        Counts take one byte where this is at most 255, else two.

    Attributes
    ----------
    size : int
        Number of users.
    """

    __slots__ = ("_counts", "_keys", "size")

    def __init__(self, limit: int) -> None:
        self.size = 0
        self._allocate(_SMALLEST, _count_type(limit))

    def _allocate(self, capacity: int, count_type: np.dtype[np.unsignedinteger]) -> None:
        self._keys = np.zeros((capacity, 2), np.uint64)
        self._counts = np.zeros(capacity, count_type)

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return self._keys.nbytes + self._counts.nbytes

    def mark_counted(
        self,
        limit: int,
        users: NDArray[np.uint64],
        rows: NDArray[np.int32],
        counted: NDArray[np.bool_],
    ) -> None:
        """Set ``counted`` at the first row of each user whose count is below the limit.

        Parameters
        ----------
        limit : int
        users : (m, 2) uint64
        rows : (r,) int32
            Rows of this shard, in the batch's order.
        counted : (m,) bool
            False at all these rows on entry.
        """
        seen = np.empty(rows.size + rows.size // 2 + 1, np.int32)
        _mark_counted(self._keys, self._counts, limit, users, rows, seen, counted)

    def count(self, users: NDArray[np.uint64], rows: NDArray[np.int32]) -> None:
        """One more for each of the rows' users, which are distinct and below the limit."""
        size = self.size + _number_absent(self._keys, users, rows)
        if 5 * size > 4 * len(self._keys):
            keys, counts = self._keys, self._counts
            self._allocate(_roomy(size), counts.dtype)
            _place(keys, counts, self._keys, self._counts)
        _count_again(self._keys, self._counts, users, rows)
        self.size = size

    def to_bytes(self, shard: int) -> bytes:
        """The users in the order of their hashes: equal shards have equal bytes.

        A header of 16 bytes (magic, version, shard, number of users), then all
        high words, all low words and all counts, little-endian: 18 bytes a user.
        Temporaries are 44 bytes a user, the answer not included.
        """
        keys = self._keys
        used = np.flatnonzero((keys[:, 0] != 0) | (keys[:, 1] != 0))
        high, low = keys[used, 0], keys[used, 1]
        order = np.lexsort((low, high))
        columns = (
            high[order].astype(_HASH, copy=False),
            low[order].astype(_HASH, copy=False),
            self._counts[used[order]].astype(_COUNT, copy=False),
        )
        header = _HEADER.pack(_MAGIC, _VERSION, shard, self.size)
        return b"".join([header, *(column.tobytes() for column in columns)])

    @classmethod
    def from_bytes(cls, shard: int, data: bytes, limit: int) -> UserShard:
        """Read what :meth:`to_bytes` wrote, trusting nothing in it.

        Counts above ``limit`` are kept: such users have had their share, under
        whatever limit they had it.

        Raises
        ------
        MalformedUsers
            Where the bytes are not exactly what a shard of that number writes.
        """
        if len(data) < _HEADER.size:
            raise MalformedUsers(f"shard {shard} of the users ends inside its header")
        magic, version, number, size = _HEADER.unpack_from(data)
        if (magic, version) != (_MAGIC, _VERSION) or data[6:8] != b"\0\0":
            raise MalformedUsers(f"shard {shard} of the users is not in format {_VERSION}")
        if number != shard:
            raise MalformedUsers(f"shard {shard} of the users holds the bytes of shard {number}")
        if len(data) != _HEADER.size + size * _BYTES_PER_USER:
            raise MalformedUsers(f"shard {shard} of the users has the wrong length")
        high = np.frombuffer(data, _HASH, size, _HEADER.size)
        low = np.frombuffer(data, _HASH, size, _HEADER.size + size * _HASH.itemsize)
        counts = np.frombuffer(data, _COUNT, size, _HEADER.size + 2 * size * _HASH.itemsize)
        if np.any(high >> np.uint64(58) != shard):
            raise MalformedUsers(f"shard {shard} of the users holds a user of another shard")
        if size and not high[0] and not low[0]:
            raise MalformedUsers(f"shard {shard} of the users holds the null hash")
        if np.any((high[1:] < high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] <= low[:-1]))):
            raise MalformedUsers(f"shard {shard} of the users is not sorted, or holds a user twice")
        if not np.all(counts):
            raise MalformedUsers(f"shard {shard} of the users holds a user that never counted")
        read = cls(limit)
        # A limit that was lowered leaves larger counts behind: they need their two bytes.
        read._allocate(_roomy(size), _count_type(max(limit, counts.max(initial=0))))
        _place(
            np.stack((high, low), axis=1).astype(np.uint64, copy=False),
            counts.astype(read._counts.dtype),
            read._keys,
            read._counts,
        )
        read.size = size
        return read


def _roomy(size: int) -> int:
    """A capacity of 9/8 of what ``size`` users fill to 4/5."""
    return max(_SMALLEST, -(-size * 45 // 32))


def _count_type(largest: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(np.uint8 if largest <= 255 else np.uint16)
