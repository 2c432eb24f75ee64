"""How the table of users outlives its worker: in parts, beside the checkpoints on the state topic.

A full copy of the table cannot ride in every commit, and a log of what each
commit adds would grow for ever. So commit number n of a stream writes two
parts, both under slot n mod 64:

- its *delta*: of each record of the batch, in order, the user's hash if the
  record counts, and (0, 0) if not. Its size is that of the batch, a public
  number: how long a commit takes does not tell how many records count;
- one *shard* of the table, a 64th, as it was *before* this commit. So what is
  written is known before anything changes: the table in memory follows when
  the commit has succeeded, or is dropped with everything else.

A slot is written again 64 commits later, when every shard has been, and none
needs its delta any more. So keys do not grow, compaction bounds the topic, and
no commit writes more than its share.

The table after commit n is, of each shard, its last bytes, and the deltas of
the commit that wrote them and of all since. The checkpoint names size and
digest of every part that this takes (:class:`~streaming_pca.user_index.UserIndex`)
and is itself named by the ledger's COMMITTED entry: parts of two commits cannot
be mixed, and a part that is lost or changed is found.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.randomness import secret_salt
from streaming_pca.privacy.users import SHARDS, Admission, UserTable
from streaming_pca.user_index import Part, UserIndex

__all__ = ["MalformedUserLog", "Step", "UserLog", "check_parts"]

_LITTLE = np.dtype("<u8")


class MalformedUserLog(ValueError):
    """Parts of the table of users that do not hold together."""


@dataclass(frozen=True)
class Step:
    """What a commit does to the table.

    Attributes
    ----------
    index : UserIndex
        Of the table after it.
    parts : dict of name to bytes
        What the commit writes.
    users : (a, 2) uint64
        Who has counted once more.
    """

    index: UserIndex
    parts: dict[str, bytes]
    users: NDArray[np.uint64]


class UserLog:
    """The table of a stream's users, and what makes it durable.

    Parameters
    ----------
    limit : int
        Batches that one user may count in.

    Attributes
    ----------
    key : bytes
        What messages' keys are hashed with. Drawn anew until the first commit
        carries it: before that the table is empty, and which records of one
        batch have the same key does not depend on it.
    table : UserTable
    index : UserIndex or None
        Of the last commit; None before the first.
    """

    def __init__(self, limit: int) -> None:
        self.table = UserTable(limit)
        self.index: UserIndex | None = None
        self.key = secret_salt()

    @classmethod
    def rebuilt(cls, limit: int, index: UserIndex, parts: MutableMapping[str, bytes]) -> UserLog:
        """The table that an index names, from its parts; takes the shards out, which are large together.

        Raises
        ------
        MalformedUserLog
            If a part is missing, changed, or of another commit.
        """
        log = cls(limit)
        log.key, log.index = index.key, index
        check_parts(index, parts)
        try:
            log._replay(index, parts)
        except ValueError as error:
            # A part's digest is right, so what was written did not hold together.
            raise MalformedUserLog(f"the table of users cannot be rebuilt: {error}") from None
        return log

    def _replay(self, index: UserIndex, parts: MutableMapping[str, bytes]) -> None:
        as_before = np.zeros(SHARDS, dtype=np.int64)
        for n in index.written:
            self.table.load_shard(n % SHARDS, parts.pop(f"users.shard.{n % SHARDS}"))
            as_before[n % SHARDS] = n
        for n in index.written:
            data = parts[f"users.delta.{n % SHARDS}"]
            users = _counted(np.frombuffer(data, dtype=_LITTLE).reshape(-1, 2).astype(np.uint64))
            self.table.add(users[as_before[self.table.shard_of(users)] <= n])

    def admit(self, users: NDArray[np.uint64]) -> Admission:
        """Which records of a batch count, by their users (m, 2); changes nothing."""
        return self.table.admit(users)

    def step(self, users: NDArray[np.uint64], counted: NDArray[np.bool_]) -> Step:
        """What the next commit writes, for a batch of which some records counted; changes nothing.

        Parameters
        ----------
        users : (m, 2) uint64
            Of each record of the batch.
        counted : (m,) bool
        """
        before = self.index
        n = 1 if before is None else before.commits + 1
        slot = n % SHARDS
        delta = np.where(counted[:, None], users, np.uint64(0))
        shard, data = self.table.shard_bytes(slot), delta.astype(_LITTLE).tobytes()
        index = UserIndex(
            key=self.key,
            commits=n,
            deltas=({} if before is None else before.deltas) | {slot: Part.of(data)},
            shards=({} if before is None else before.shards) | {slot: Part.of(shard)},
        )
        return Step(index, {f"users.delta.{slot}": data, f"users.shard.{slot}": shard}, _counted(delta))

    def follow(self, step: Step) -> None:
        """Change the table as a commit that has succeeded says."""
        self.table.add(step.users)
        self.index = step.index


def _counted(delta: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(delta[delta.any(axis=1)])


def check_parts(index: UserIndex, parts: Mapping[str, bytes]) -> None:
    """Raise MalformedUserLog unless every part that an index names is there, and is that one."""
    for name, part in index.parts.items():
        if name not in parts:
            raise MalformedUserLog(f"{name} of the table of users is missing")
        if Part.of(parts[name]) != part:
            raise MalformedUserLog(f"{name} of the table of users is not that of the last commit")
