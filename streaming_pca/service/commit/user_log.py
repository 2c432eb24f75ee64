"""Durable form of the table of users: parts next to the checkpoints on the state topic.

Commit number n of a stream writes two parts, both under slot n mod 64:

- its *delta*: for each record of the batch, in order, the user's hash if the record counts, else (0, 0);
- one *shard* (a 64th) of the table, in its state *before* this commit.

The checkpoint contains the size and digest of every part. Why this suffices: docs/explanation/users.md.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.randomness import secret_salt
from streaming_pca.privacy.users import SHARDS, Part, UserIndex, UserTable, shard_numbers

_LITTLE = np.dtype("<u8")


class MalformedState(ValueError):
    """State, or part of its table of users, that is missing, changed or inconsistent."""


@dataclass(frozen=True)
class Step:
    """Change of the table by one commit, with the parts that it writes.

    ``users`` ((a, 2) uint64) are those whose counts increase by one.
    """

    index: UserIndex
    parts: dict[str, bytes]
    users: NDArray[np.uint64]


class UserLog:
    """Table of a stream's users, with its durable form; ``limit`` is the most batches per user.

    ``key``: secret key for hashing messages' keys. Drawn again at each take-over until the first commit
    contains it. Until then the table is empty, and equality of keys within one batch does not depend on the
    secret. ``index``: index of the last commit; None before the first.
    """

    def __init__(self, limit: int) -> None:
        self.table = UserTable(limit)
        self.index: UserIndex | None = None
        self.key = secret_salt()

    @classmethod
    def rebuilt(cls, limit: int, index: UserIndex, parts: MutableMapping[str, bytes]) -> UserLog:
        """Rebuild an index's table; free each shard after loading, because together they are large.

        Raises MalformedState if a part is missing, changed, or from another commit.
        """
        log = cls(limit)
        log.key, log.index = index.key, index
        check_parts(index, parts)
        as_before = np.zeros(SHARDS, dtype=np.int64)
        try:
            for n in index.written:
                log.table.load_shard(n % SHARDS, parts.pop(f"users.shard.{n % SHARDS}"))
                as_before[n % SHARDS] = n
            for n in index.written:
                data = parts[f"users.delta.{n % SHARDS}"]
                users = _counted(np.frombuffer(data, dtype=_LITTLE).reshape(-1, 2).astype(np.uint64))
                log.table.add(users[as_before[shard_numbers(users)] <= n])
        except ValueError as error:
            # All digests match, so the parts were already inconsistent when written.
            raise MalformedState(f"the table of users cannot be rebuilt: {error}") from None
        return log

    def step(self, users: NDArray[np.uint64], counted: NDArray[np.bool_]) -> Step:
        """Prepare the next change from records' users, (m, 2), and whether they count, (m,)."""
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
        self.table.add(step.users)
        self.index = step.index


def _counted(delta: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return np.ascontiguousarray(delta[delta.any(axis=1)])


def check_parts(index: UserIndex, parts: Mapping[str, bytes]) -> None:
    """Raise MalformedState if a part in an index is missing or differs."""
    for name, part in index.parts.items():
        if name not in parts:
            raise MalformedState(f"{name} of the table of users is missing")
        if Part.of(parts[name]) != part:
            raise MalformedState(f"{name} of the table of users differs from the last commit")
