"""Checkpoint's index of the table of users, whose bytes are stored next to it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from streaming_pca.privacy.users.shard import SHARDS


@dataclass(frozen=True)
class Part:
    """Size and digest of bytes that are stored next to a checkpoint."""

    size: int
    sha256: str

    @classmethod
    def of(cls, data: bytes) -> Part:
        """Describe these bytes."""
        return cls(len(data), hashlib.sha256(data).hexdigest())


@dataclass(frozen=True)
class UserIndex:
    """Names of every part of the table after a commit (:mod:`streaming_pca.service.commit.user_log`).

    Attributes
    ----------
    key : bytes
        Secret of the stream that keys the hashes of message keys.
    commits : int
        Number of the stream's commits, this index's own included.
    deltas, shards : dict of slot to Part
        Slot i describes the part that the last commit n with n mod 64 = i wrote.
    """

    key: bytes = field(repr=False)
    commits: int
    deltas: dict[int, Part]
    shards: dict[int, Part]

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
        """Concatenate all parts."""
        return b"".join(parts[name] for name in self.parts)

    def split(self, data: bytes) -> dict[str, bytes]:
        """Undo :meth:`join`, by sizes alone; ValueError if they do not add up."""
        if len(data) != sum(part.size for part in self.parts.values()):
            raise ValueError("the size of the table of users differs from the one in its state")
        found, first = {}, 0
        for name, part in self.parts.items():
            found[name] = data[first : first + part.size]
            first += part.size
        return found

    def plain(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {
            "key": self.key.hex(),
            "commits": self.commits,
            "deltas": {str(slot): (part.size, part.sha256) for slot, part in self.deltas.items()},
            "shards": {str(slot): (part.size, part.sha256) for slot, part in self.shards.items()},
        }

    @classmethod
    def of_plain(cls, plain: dict[str, Any]) -> UserIndex:
        """Read plain data from :meth:`plain`.

        Raises
        ------
        ValueError, KeyError, TypeError, AttributeError
            If it is not of that form.
        """
        return cls(
            key=bytes.fromhex(plain["key"]),
            commits=int(plain["commits"]),
            deltas=_parts(plain["deltas"]),
            shards=_parts(plain["shards"]),
        )


def _parts(plain: dict[str, Any]) -> dict[int, Part]:
    return {int(slot): Part(int(size), str(sha256)) for slot, (size, sha256) in plain.items()}
