"""Table of users: the records that count where the user is the unit of privacy.

A user is a message key. Two inputs are neighbours when they differ in the messages
of one key only: in the second input these are all null messages without a key, or are
all under one other key that no message uses, with any payloads. Offsets, and so
positions in batches, are the same in both.

Nothing is released. The table decides which records enter the mechanisms of a
batch (the others become null records), and is as secret as the records.

A record counts if its user has no earlier record in the batch and has counted in
fewer than ``limit`` batches before. Both conditions depend on that user's own
messages and on batch boundaries, which are public. So, by induction over the batches
and for adaptive users too, the same records of all other users count in neighbouring
inputs. A user's own records count at the same positions under an unused key, and
at none as null messages. Each batch's mechanisms therefore see inputs that differ in
one record, and at most ``limit`` batches differ at all: the charge of a batch, as the
replacement of one record, composes ``limit`` times. A collision of two of n keyed hashes
would break this; its probability, at most n^2/2^129, would add to
delta; the ledger does not charge it.

Neither condition may ever read another user's records: with a bound on users in a
batch, for example, one user's message could displace another's. ``len``, ``nbytes`` and
the sizes of the shards' bytes depend on contents: none may be shown as a metric or logged.

Collisions, the secret, side channels and storage: docs/explanation/users.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.users.shard import (
    MAX_COUNT,
    SHARDS,
    MalformedUsers,
    UserShard,
    partition_by_shard,
    shards_of,
)

_SECRET_BYTES = 32
_HASH_BYTES = 16
_NOBODY = bytes(_HASH_BYTES)


def hash_users(key: bytes, keys: Sequence[bytes | None]) -> NDArray[np.uint64]:
    """Hash message keys to pseudonyms: 128-bit BLAKE2b under a secret.

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
    """Records of a batch that count, and their users.

    Attributes
    ----------
    counted : (m,) bool
        True for records that count; the others enter the mechanisms as null records.
    users : (a, 2) uint64
        The users of the counted records, in the batch's order, for
        :meth:`UserTable.add` when the batch is committed.
    """

    counted: NDArray[np.bool_]
    users: NDArray[np.uint64]


class UserTable:
    """Number of counted batches of each user.

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
    Memory: 17 bytes a user with a limit up to 255, else 18: 180 MB at most for 10
    million. Shards grow one at a time, which temporarily adds less than 1/64.

    :meth:`admit` and :meth:`add` temporarily take at most 30 bytes a record, the result
    included (rows by shard 8, ``counted`` 1, its users 16, one shard's sort the rest):
    4 MB for a batch of 131,072, 126 MB for the largest, 2**22.

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

    @property
    def nbytes(self) -> int:
        """Bytes of the table's arrays: as secret as the records."""
        return sum(shard.nbytes for shard in self._shards)

    def admit(self, users: NDArray[np.uint64]) -> Admission:
        """Decide which records of a batch count; the table stays unchanged.

        Parameters
        ----------
        users : (m, 2) uint64
            From :func:`hash_users`, for the batch's keys in order.

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
        self, users: NDArray[np.uint64], parts: list[tuple[int, NDArray[np.int64]]]
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
            If a user is (0, 0), appears twice or has reached the limit, or the array has
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
        """Encode one shard; equal tables have equal bytes with any history and limit.

        Parameters
        ----------
        shard : int in [0, SHARDS)
        """
        return self._shards[shard].to_bytes(shard)

    def load_shard(self, shard: int, data: bytes) -> None:
        """Replace one shard by bytes from :meth:`shard_bytes`, trusting nothing in them.

        Users with counts above this table's limit (which may have been lowered) are
        kept, but do not count again.

        Parameters
        ----------
        shard : int in [0, SHARDS)

        Raises
        ------
        MalformedUsers
            If these are not exactly the bytes of such a shard. The table is then
            unchanged.
        """
        self._shards[shard] = UserShard.from_bytes(shard, data, self.limit)

    @staticmethod
    def shard_of(users: NDArray[np.uint64]) -> NDArray[np.uint8]:
        """Return the shard of each user.

        Parameters
        ----------
        users : (n, 2) uint64

        Returns
        -------
        (n,) uint8, in [0, SHARDS)
        """
        return shards_of(_checked(users))


def _checked(users: NDArray[np.uint64]) -> NDArray[np.uint64]:
    if users.dtype != np.uint64 or users.ndim != 2 or users.shape[1] != 2:
        raise MalformedUsers(f"users must be an (m, 2) array of uint64, not {users.shape} of {users.dtype}")
    return np.ascontiguousarray(users)
