"""Which records count where the user is the unit of privacy.

Unit and neighbours
-------------------
A user is a message key. Two inputs are neighbours when they differ in the
messages of one key only: all of them null messages without a key instead, or all of
them under one other key that nobody uses, with any payloads. Offsets, and so
positions in batches, are the same in both.

What is released
----------------
Nothing by itself: the table decides which records enter the mechanisms of a
batch (the others are null records there), and stays as secret as the records.

Why a user enters at most one record in each of at most ``limit`` batches
--------------------------------------------------------------------------
A record counts if its user has no earlier record in the batch and has counted in
fewer than ``limit`` batches before. Both conditions are about the positions of
that user's own messages, and about batch boundaries, which are public. So, by
induction over the batches and whatever the other users do, adaptively too:

- which records of all *other* users count is the same in neighbouring inputs;
- the user's own records count at the same positions if they moved to an unused
  key, and at none if they became null.

Each batch's mechanisms therefore see inputs that differ in one record, and at
most ``limit`` batches differ at all: the charge of a batch, as a replacement of
one record, composes ``limit`` times, and every other batch costs the user nothing.
Everything rests on the two conditions never reading anybody else's records: a
bound on users in a batch, say, would let one user's message displace another's.

Messages of one key of which some became null and others moved are not neighbours:
then another position of a batch, or another batch, may count in the second input.

Collisions
----------
If two keys had the same hash, one of them could displace records of the other,
and neighbours could differ in two records of a batch. Users are equal only if all
128 bits of a keyed BLAKE2b are; for n keys that were chosen without knowledge of
the secret, the probability of any collision is at most n^2/2^129 (1.5e-25 for
10 million), as far as BLAKE2b is a pseudorandom function. It adds to delta.

Why the hashes are keyed
------------------------
Without the secret nobody can make collisions or long searches in the table, nor
find out from the stored hashes which of the likely keys (all telephone numbers,
say) took part. The hashes are pseudonyms all the same: who has the secret can test
any key, and equal keys have equal hashes. The topic that holds them is internal.

What is not hidden
------------------
The number of users, and with it ``len``, ``nbytes``, the sizes of the shards' bytes,
the memory of the process and the time that a batch takes, depend on contents: none
may be shown as a metric or in a log line. What growth does to memory and time can
be seen on the machine, as other side channels can.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.user_shards import (
    MAX_COUNT,
    SHARDS,
    MalformedUsers,
    UserShard,
    partition_by_shard,
)

__all__ = ["SHARDS", "Admission", "MalformedUsers", "UserTable", "hash_users"]

_SECRET_BYTES = 32
_HASH_BYTES = 16
_NOBODY = bytes(_HASH_BYTES)


def hash_users(key: bytes, keys: Sequence[bytes | None]) -> NDArray[np.uint64]:
    """Pseudonyms of message keys: 128-bit BLAKE2b under a secret.

    Parameters
    ----------
    key : bytes
        The secret, 32 random bytes, the same for the life of the stream.
    keys : sequence of (bytes or None), length n
        The messages' keys.

    Returns
    -------
    (n, 2) uint64
        High and low word. (0, 0) where the key is missing or empty, and never
        otherwise: a hash of (0, 0) becomes (0, 1).

    Raises
    ------
    ValueError
        If the secret is not 32 bytes long.
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


@dataclass(frozen=True)
class Admission:
    """Which records of a batch count, and whose they are.

    Attributes
    ----------
    counted : (m,) bool
        The others enter the mechanisms as null records.
    users : (a, 2) uint64
        The users of the counted records, in the batch's order: what
        :meth:`UserTable.add` takes when the batch is committed.
    """

    counted: NDArray[np.bool_]
    users: NDArray[np.uint64]


class UserTable:
    """In how many batches each user has counted.

    Parameters
    ----------
    limit : int in [1, 65535]
        Batches that one user may count in (``contributions_per_user``).

    Raises
    ------
    ValueError
        If the limit is outside that range.

    Notes
    -----
    At most 24 bytes a user with a limit up to 255, else 26, and 18 kB for an empty
    table. Shards grow one at a time, which adds 1/64 for a moment. So 10 million users
    take 264 MB at most; a process that counted them in batches of 131,072 grew by 276 MB.

    :meth:`admit` and :meth:`add` take at most 30 bytes a record for a moment, the answer
    included (indices by shard 4, users met so far 6, ``counted`` 1 and its users 16):
    4 MB for a batch of 131,072, 126 MB for the largest, 2**22.

    Concurrent calls of :meth:`admit` are safe as long as none changes the table.
    """

    def __init__(self, limit: int) -> None:
        if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= MAX_COUNT:
            raise ValueError(
                f"limit (contributions_per_user) must be an integer from 1 to {MAX_COUNT}, not {limit!r}"
            )
        self.limit = limit
        self._shards = [UserShard(limit) for _ in range(SHARDS)]

    def __len__(self) -> int:
        """Number of users that have counted: as secret as the records."""
        return sum(shard.size for shard in self._shards)

    @property
    def nbytes(self) -> int:
        """Bytes of the table's arrays: as secret as the records."""
        return sum(shard.nbytes for shard in self._shards)

    def admit(self, users: NDArray[np.uint64]) -> Admission:
        """Decide which records of a batch count; the table stays as it is.

        Parameters
        ----------
        users : (m, 2) uint64
            What :func:`hash_users` gives for the batch's keys, in its order.

        Returns
        -------
        Admission

        Raises
        ------
        MalformedUsers
            If the array has another type or shape.
        """
        users = _checked(users)
        counted = self._counted(users, partition_by_shard(users))
        return Admission(counted, users[counted])

    def _counted(
        self, users: NDArray[np.uint64], parts: list[tuple[int, NDArray[np.int32]]]
    ) -> NDArray[np.bool_]:
        counted = np.zeros(len(users), np.bool_)
        for shard, rows in parts:
            self._shards[shard].mark_counted(self.limit, users, rows, counted)
        return counted

    def add(self, users: NDArray[np.uint64]) -> None:
        """Count one more batch for each of these users.

        Parameters
        ----------
        users : (a, 2) uint64
            Distinct users, each below the limit, in any order.

        Raises
        ------
        MalformedUsers
            If one is (0, 0), comes twice or has reached the limit, or the array has
            another type or shape. The table is then unchanged.
        """
        users = _checked(users)
        parts = partition_by_shard(users)
        if not self._counted(users, parts).all():
            raise MalformedUsers(
                "users to add must be distinct, not (0, 0), and have counted in "
                f"fewer than limit = {self.limit} batches"
            )
        for shard, rows in parts:
            self._shards[shard].count(users, rows)

    def shard_bytes(self, shard: int) -> bytes:
        """One shard for a snapshot: equal tables have equal bytes, whatever their history and limit.

        Parameters
        ----------
        shard : int in [0, SHARDS)
        """
        return self._shards[shard].to_bytes(shard)

    def load_shard(self, shard: int, data: bytes) -> None:
        """Replace one shard by what :meth:`shard_bytes` gave, trusting nothing in it.

        Users whose counts are above this table's limit (a limit may be lowered) are
        kept and count no more.

        Parameters
        ----------
        shard : int in [0, SHARDS)
        data : bytes

        Raises
        ------
        MalformedUsers
            If these are not exactly the bytes of such a shard. The table is then
            unchanged.
        """
        self._shards[shard] = UserShard.from_bytes(shard, data, self.limit)

    @staticmethod
    def shard_of(users: NDArray[np.uint64]) -> NDArray[np.int64]:
        """The shard of each user.

        Parameters
        ----------
        users : (n, 2) uint64

        Returns
        -------
        (n,) int64, in [0, SHARDS)
        """
        return (_checked(users)[:, 0] >> np.uint64(58)).astype(np.int64)


def _checked(users: NDArray[np.uint64]) -> NDArray[np.uint64]:
    if users.dtype != np.uint64 or users.ndim != 2 or users.shape[1] != 2:
        raise MalformedUsers(f"users must be an (m, 2) array of uint64, not {users.shape} of {users.dtype}")
    return np.ascontiguousarray(users)
