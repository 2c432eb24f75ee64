"""Batches of a partition as the files of its replicas hold them: what a reader should have found."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

_HEAD = struct.Struct(">qiib4xhi16xqhii")  # of format 2, up to the number of records
_TRANSACTIONAL, _CONTROL = 16, 32
_MARKERS = {0: "abort", 1: "commit"}


@dataclass(frozen=True)
class Stored:
    """Batch: its offsets, its producer, and what it is."""

    first: int
    last: int
    leader_epoch: int
    producer: tuple[int, int]
    """Id and epoch; the id is -1 without idempotence."""
    kind: str
    """"plain", "transactional", or of a marker "commit" or "abort"."""

    def __str__(self) -> str:
        number, epoch = self.producer
        return f"{self.first}-{self.last} {self.kind} of {number}/{epoch} in {self.leader_epoch}"


def stored_batches(directory: Path) -> Iterator[Stored]:
    """Yield the batches of a partition's directory, in order; the last may be cut short."""
    for path in sorted(directory.glob("*.log")):
        data, start = path.read_bytes(), 0
        while start + _HEAD.size <= len(data):
            base, size, leader, _, attributes, span, number, epoch, _, _ = _HEAD.unpack_from(data, start)
            end = start + 12 + size
            if size <= 0 or end > len(data):
                break
            kind = "transactional" if attributes & _TRANSACTIONAL else "plain"
            if attributes & _CONTROL:
                # Of the only record, the lengths and deltas before the key take a byte each.
                kind = _MARKERS[struct.unpack_from(">hh", data, start + _HEAD.size + 5)[1]]
            yield Stored(base, base + span, leader, (number, epoch), kind)
            start = end


def committed_offsets(batches: Iterable[Stored]) -> set[int]:
    """Return the offsets of records that a reader of committed records gets."""
    found: set[int] = set()
    open_: dict[int, list[Stored]] = {}
    for batch in batches:
        number = batch.producer[0]
        if batch.kind == "transactional":
            open_.setdefault(number, []).append(batch)
        elif batch.kind == "plain":
            found.update(range(batch.first, batch.last + 1))
        else:
            closed = open_.pop(number, [])
            if batch.kind == "commit":
                found.update(o for each in closed for o in range(each.first, each.last + 1))
    return found
