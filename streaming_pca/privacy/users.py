"""Table of users: the records that count where the user is the unit of privacy.

A user is a message key. Two inputs are neighbours when they differ in the messages of one key only: in the
second input these are all null messages without a key, or are all under one other key that no message uses,
with any payloads. Offsets, and so positions in batches, are the same in both.

Nothing is released. The table decides which records enter the mechanisms of a
batch (the others become null records), and is as secret as the records.

A record counts if its user has no earlier record in the batch and has counted in fewer than ``limit``
batches before. So each batch's mechanisms see inputs that differ in one record, and at most ``limit`` batches
differ at all. Neither condition may ever read another user's records. ``len`` and the sizes of the shards'
arrays and bytes depend on contents: none may be shown as a metric or logged.

The table has 64 shards, each in sorted numpy arrays: users are in order of (high, low) and are equal only if
all 128 bits are. A shard is copied to add users to it, one array after the other; no other shard is.
Against an open hash table in compiled code, at 10 million users: 170 MB instead of 222 MB; a commit (admit,
add, encode one shard) takes 6 ms instead of 15 for 100 records, 40 instead of 22 for 10,000 and 138
instead of 91 for 131,072.

Proof, collisions, the secret, side channels and storage: docs/explanation/users.md.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHARDS = 64
"""Parts of a table, by the top six bits of a hash: each grows, and is stored, as a whole."""

MAX_COUNT = 2**16 - 1
"""Largest count that a shard holds and writes."""

_HEADER = struct.Struct("<4sBBxxQ")
_MAGIC = b"SPUT"
_VERSION = 1
_HASH = np.dtype("<u8")
_COUNT = np.dtype("<u2")
_BYTES_PER_USER = 2 * _HASH.itemsize + _COUNT.itemsize

_PIECE = 2**16  # rows of one sort: bounds memory where one user sends a whole batch

_SECRET_BYTES = 32
_HASH_BYTES = 16
_NOBODY = bytes(_HASH_BYTES)


def shard_numbers(users: NDArray[np.uint64]) -> NDArray[np.uint8]:
    """Return the shard of each user, in [0, SHARDS)."""
    return (users[:, 0] >> np.uint64(58)).astype(np.uint8)


def partition_by_shard(users: NDArray[np.uint64]) -> list[tuple[int, NDArray[np.int64]]]:
    """Return the rows of each shard that has any, without those of (0, 0). All are views of one array."""
    shards = shard_numbers(users)
    shards[~users.any(axis=1)] = SHARDS
    ends = np.cumsum(np.bincount(shards, minlength=SHARDS + 1)[:SHARDS])
    parts = np.split(np.argsort(shards, kind="stable")[: ends[-1]], ends[:-1])
    return [(shard, rows) for shard, rows in enumerate(parts) if rows.size]


class UserShard:
    """Users whose hashes begin with the same six bits, and their counts.

    Counts take one byte where ``limit`` is at most 255, else two.
    """

    __slots__ = ("_counts", "_high", "_low")

    def __init__(self, limit: int) -> None:
        self._high = np.empty(0, np.uint64)
        self._low = np.empty(0, np.uint64)
        self._counts = np.empty(0, _count_type(limit))

    @property
    def size(self) -> int:
        return self._high.size

    def _find(
        self, high: NDArray[np.uint64], low: NDArray[np.uint64]
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return where each user is or belongs, and whether it is there."""
        at = np.searchsorted(self._high, high)
        while True:
            inside = np.flatnonzero(at < self.size)
            same = inside[self._high[at[inside]] == high[inside]]
            before = same[self._low[at[same]] < low[same]]
            if not before.size:
                break
            at[before] += 1  # rare: another user has the same high word
        present = np.zeros(at.size, np.bool_)
        present[same] = self._low[at[same]] == low[same]
        return at, present

    def _add(
        self,
        at: NDArray[np.int64],
        present: NDArray[np.bool_],
        high: NDArray[np.uint64],
        low: NDArray[np.uint64],
    ) -> None:
        """Count sorted, distinct users once more, with the result of :meth:`_find` on them."""
        self._counts[at[present]] += 1
        new = ~present
        if new.any():
            self._high = np.insert(self._high, at[new], high[new])
            self._low = np.insert(self._low, at[new], low[new])
            self._counts = np.insert(self._counts, at[new], 1)

    def mark_counted(
        self, limit: int, users: NDArray[np.uint64], rows: NDArray[np.int64], counted: NDArray[np.bool_]
    ) -> None:
        """Set ``counted`` at the first row of each user whose count is below the limit.

        ``rows`` are those of this shard, in the batch's order; ``counted`` is False at all of them on entry.
        """
        met = UserShard(1)
        for start in range(0, rows.size, _PIECE):
            first, high, low = _distinct(users, rows[start : start + _PIECE])
            if rows.size > _PIECE:
                at, known = met._find(high, low)
                met._add(at[~known], known[~known], high[~known], low[~known])
                first, high, low = first[~known], high[~known], low[~known]
            at, present = self._find(high, low)
            below = np.ones(at.size, np.bool_)
            below[present] = self._counts[at[present]] < limit
            counted[first] = below

    def count(self, users: NDArray[np.uint64], rows: NDArray[np.int64]) -> None:
        """Count each of the rows' users once more; they are distinct and below the limit."""
        _, high, low = _distinct(users, rows)
        self._add(*self._find(high, low), high, low)

    def to_bytes(self, shard: int) -> bytes:
        """Encode the users in the order of their hashes: equal shards have equal bytes.

        A header of 16 bytes (magic, version, shard, number of users), then all
        high words, all low words and all counts, little-endian: 18 bytes a user.
        """
        header = _HEADER.pack(_MAGIC, _VERSION, shard, self.size)
        columns = ((self._high, _HASH), (self._low, _HASH), (self._counts, _COUNT))
        return b"".join([header, *(column.astype(of, copy=False).tobytes() for column, of in columns)])

    @classmethod
    def from_bytes(cls, shard: int, data: bytes, limit: int) -> UserShard:
        """Decode bytes of :meth:`to_bytes`, trusting nothing in them.

        Counts above ``limit`` are kept: such users have used up their batches under an earlier, higher limit.
        """
        if len(data) < _HEADER.size:
            raise ValueError(f"shard {shard} of the users ends inside its header")
        magic, version, number, size = _HEADER.unpack_from(data)
        if (magic, version) != (_MAGIC, _VERSION) or data[6:8] != b"\0\0":
            raise ValueError(f"shard {shard} of the users is not in format {_VERSION}")
        if number != shard:
            raise ValueError(f"shard {shard} of the users holds the bytes of shard {number}")
        if len(data) != _HEADER.size + size * _BYTES_PER_USER:
            raise ValueError(f"shard {shard} of the users has the wrong length")
        high = np.frombuffer(data, _HASH, size, _HEADER.size)
        low = np.frombuffer(data, _HASH, size, _HEADER.size + size * _HASH.itemsize)
        counts = np.frombuffer(data, _COUNT, size, _HEADER.size + 2 * size * _HASH.itemsize)
        if np.any(high >> np.uint64(58) != shard):
            raise ValueError(f"shard {shard} of the users holds a user of another shard")
        if size and not high[0] and not low[0]:
            raise ValueError(f"shard {shard} of the users holds the null hash")
        if np.any((high[1:] < high[:-1]) | ((high[1:] == high[:-1]) & (low[1:] <= low[:-1]))):
            raise ValueError(f"shard {shard} of the users is not sorted, or holds a user twice")
        if not np.all(counts):
            raise ValueError(f"shard {shard} of the users holds a user that never counted")
        read = cls(limit)
        read._high, read._low = high.astype(np.uint64), low.astype(np.uint64)
        # Counts from under a higher limit may need two bytes.
        read._counts = counts.astype(_count_type(max(limit, counts.max(initial=0))))
        return read


def _distinct(
    users: NDArray[np.uint64], rows: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint64], NDArray[np.uint64]]:
    """Return the first row of each user, and the users' high and low words, sorted."""
    high, low = users[rows, 0], users[rows, 1]
    order = np.lexsort((low, high))  # stable: equal users stay in the order of their rows
    high, low = high[order], low[order]
    first = np.ones(rows.size, np.bool_)
    first[1:] = (high[1:] != high[:-1]) | (low[1:] != low[:-1])
    return rows[order[first]], high[first], low[first]


def _count_type(largest: int) -> np.dtype[np.unsignedinteger]:
    return np.dtype(np.uint8 if largest <= 255 else np.uint16)


def hash_users(key: bytes, keys: Sequence[bytes | None]) -> NDArray[np.uint64]:
    """Hash message keys to pseudonyms: 128-bit BLAKE2b under a secret.

    ``key`` is the secret: 32 random bytes, the same for the life of the stream.

    Returns high and low words, (n, 2): (0, 0) where the key is missing or empty, and never otherwise: a hash
    of (0, 0) becomes (0, 1).
    """
    if len(key) != _SECRET_BYTES:
        raise ValueError(f"key must be {_SECRET_BYTES} secret bytes, not {len(key)}")
    # A copy of the keyed state is a third faster than a new one for each key.
    keyed = blake2b(digest_size=_HASH_BYTES, key=key)

    def digest(user: bytes) -> bytes:
        state = keyed.copy()
        state.update(user)
        return state.digest()

    digests = b"".join([digest(user) if user else _NOBODY for user in keys])
    present = np.fromiter((bool(user) for user in keys), np.bool_, len(keys))
    return _users_from_digests(digests, present)


def _users_from_digests(digests: bytes, present: NDArray[np.bool_]) -> NDArray[np.uint64]:
    users = np.frombuffer(digests, ">u8").astype(np.uint64).reshape(-1, 2)
    users[present & ~users.any(axis=1), 1] = 1
    return users


class UserTable:
    """Number of counted batches of each user.

    ``limit``, in [1, 65535], is the number of batches that one user may count in
    (``contributions_per_user``).

    Memory: 17 bytes a user with a limit up to 255, else 18: 180 MB at most for 10
    million. Shards grow one at a time, which temporarily adds less than 1/64.

    :meth:`admit` and :meth:`add` temporarily take at most 20 bytes a record, the result
    included (rows by shard 8, the result 1, one shard's sort the rest): 3 MB for a batch
    of 131,072, 84 MB for the largest, 2**22.

    Concurrent calls of :meth:`admit` are safe while no call changes the table.
    """

    def __init__(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_COUNT:
            raise ValueError(
                f"limit (contributions_per_user) must be an integer from 1 to {MAX_COUNT}, not {limit!r}"
            )
        self.limit = limit
        self._shards = [UserShard(limit) for _ in range(SHARDS)]

    def __len__(self) -> int:
        """Return the number of users that have counted: as secret as the records."""
        return sum(shard.size for shard in self._shards)

    def admit(self, users: NDArray[np.uint64]) -> NDArray[np.bool_]:
        """Return which records of a batch count (m,), by :func:`hash_users`; the table stays unchanged.

        The others enter the mechanisms as null records.
        """
        users = _checked(users)
        return self._counted(users, partition_by_shard(users))

    def _counted(
        self, users: NDArray[np.uint64], parts: list[tuple[int, NDArray[np.int64]]]
    ) -> NDArray[np.bool_]:
        counted = np.zeros(len(users), np.bool_)
        for shard, rows in parts:
            self._shards[shard].mark_counted(self.limit, users, rows, counted)
        return counted

    def add(self, users: NDArray[np.uint64]) -> None:
        """Count one more batch for each of these users: distinct, below the limit, in any order.

        ValueError otherwise; the table is then unchanged.
        """
        users = _checked(users)
        parts = partition_by_shard(users)
        if not self._counted(users, parts).all():
            raise ValueError(
                "users to add must be distinct, not (0, 0), and have counted in "
                f"fewer than limit = {self.limit} batches"
            )
        for shard, rows in parts:
            self._shards[shard].count(users, rows)

    def shard_bytes(self, shard: int) -> bytes:
        """Encode one shard; equal tables have equal bytes with any history and limit."""
        return self._shards[shard].to_bytes(shard)

    def load_shard(self, shard: int, data: bytes) -> None:
        """Replace one shard by bytes from :meth:`shard_bytes`, trusting nothing in them.

        Users with counts above this table's limit (which may have been lowered) are kept, but do not count
        again. ValueError if these are not exactly the bytes of such a shard; the table is then unchanged.
        """
        self._shards[shard] = UserShard.from_bytes(shard, data, self.limit)


def _checked(users: NDArray[np.uint64]) -> NDArray[np.uint64]:
    if users.dtype != np.uint64 or users.ndim != 2 or users.shape[1] != 2:
        raise ValueError(f"users must be an (m, 2) array of uint64, not {users.shape} of {users.dtype}")
    return np.ascontiguousarray(users)


@dataclass(frozen=True)
class Part:
    """Size and digest of bytes that are stored next to a checkpoint."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Part:
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class UserIndex:
    """Names of every part of the table after a commit (:mod:`streaming_pca.service.commit.user_log`)."""

    key: bytes = field(repr=False)
    """Secret of the stream that keys the hashes of message keys."""
    commits: int
    """Number of the stream's commits, this index's own included."""
    deltas: dict[int, Part]
    shards: dict[int, Part]
    """Slot i describes the part that the last commit n with n mod 64 = i wrote."""

    def __post_init__(self) -> None:
        written = {n % SHARDS for n in self.written}
        if not self.key or set(self.deltas) != written or set(self.shards) != written:
            raise ValueError(f"the parts of the table of users do not match its {self.commits} commits")

    @property
    def written(self) -> range:
        """Commits whose parts are still needed, in order: no two share a slot."""
        return range(max(1, self.commits - SHARDS + 1), self.commits + 1)

    @property
    def parts(self) -> dict[str, Part]:
        """All parts by name, in a fixed order."""
        named = (("delta", self.deltas), ("shard", self.shards))
        return {f"users.{what}.{slot}": parts[slot] for what, parts in named for slot in sorted(parts)}

    def join(self, parts: Mapping[str, bytes]) -> bytes:
        return b"".join(parts[name] for name in self.parts)

    def split(self, data: bytes) -> dict[str, bytes]:
        """Undo :meth:`join`, by sizes alone; ValueError if they do not add up."""
        if len(data) != sum(part.size for part in self.parts.values()):
            raise ValueError("the size of the table of users differs from the one in its state")
        pieces, first = {}, 0
        for name, part in self.parts.items():
            pieces[name] = data[first : first + part.size]
            first += part.size
        return pieces

    def to_dict(self) -> dict[str, Any]:
        return {
            "key": self.key.hex(),
            "commits": self.commits,
            "deltas": {str(slot): (part.size, part.sha256) for slot, part in self.deltas.items()},
            "shards": {str(slot): (part.size, part.sha256) for slot, part in self.shards.items()},
        }

    @classmethod
    def from_dict(cls, plain: dict[str, Any]) -> UserIndex:
        """Read :meth:`to_dict`, trusting nothing: ValueError, KeyError, TypeError or AttributeError."""
        return cls(
            key=bytes.fromhex(plain["key"]),
            commits=int(plain["commits"]),
            deltas=_parts(plain["deltas"]),
            shards=_parts(plain["shards"]),
        )


def _parts(plain: dict[str, Any]) -> dict[int, Part]:
    return {int(slot): Part(int(size), str(sha256)) for slot, (size, sha256) in plain.items()}
