"""Operations that tasks apply to records: sums, sums over values, bin counts, users.

Each starts empty, adds parts of segments in any order, and ends as chunks of bytes. Sums are exact
integers, so their bits do not depend on tasks, executors or attempts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch, ArrayValues
from streaming_pca.data.batch import BinKernel, MapKernel, SumKernel, ValueKernel
from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.spark.segments import Order

Integers = NDArray[np.int64]
Hashes = NDArray[np.uint64]
Values = NDArray[np.float64]


@dataclass(frozen=True)
class Share:
    """Part of a segment's records that an operation reads.

    Attributes
    ----------
    first, last : int
        Range of the segment's records, ``last`` excluded.
    counted : bytes or None
        One bit per record, 0 for null records; None if all count.
    single_rows : bool
        If True, records with any other number of rows than one are null.
    order : Order or Integers or None
        Order of the batch, or the place of each of these records; None if places are not needed.
    partition, base : int
        Index of the partition, and index of the record ``first`` in it, for ``order``.
    origin : int
        Place in the batch that counts as 0.
    """

    first: int
    last: int
    counted: bytes | None = None
    single_rows: bool = False
    order: Order | Integers | None = None
    partition: int = 0
    base: int = 0
    origin: int = 0

    def of(self, batch: ArrayBatch, first: int) -> ArrayBatch:
        """Return records of the share from ``first``, with uncounted records replaced by null."""
        if self.single_rows:
            batch = batch.single_rows()
        if self.counted is None:
            return batch
        bits = np.unpackbits(np.frombuffer(self.counted, dtype=np.uint8), count=self.last - self.first)
        return batch.keeping(bits[first - self.first : first - self.first + len(batch)].astype(bool))

    def places(self, first: int, last: int) -> Integers | None:
        """Return the places of records ``first`` to ``last`` of the segment, if requested."""
        if self.order is None:
            return None
        low, high = first - self.first, last - self.first
        if isinstance(self.order, Order):
            return self.order.places(self.partition, self.base + low, self.base + high) - self.origin
        return self.order[low:high] - self.origin


@dataclass(frozen=True)
class Records:
    """Records of a share: the input of an operation.

    Attributes
    ----------
    places : (m,) int64 or None
        Places in the batch, if requested.
    users : (m, 2) uint64 or None
        Users of the records, if requested.
    recall : callable
        Takes a name and a function that computes values for these records. Returns the values, which
        are computed only once if they fit in the cache.
    """

    batch: ArrayBatch
    places: Integers | None
    users: Hashes | None
    recall: Callable[[str, Callable[[], Values]], Values]

    def map(self, mapped: Mapped) -> Values:
        """Return the kernel's values for the records."""
        return self.recall(mapped.name, lambda: self.batch.map(mapped.kernel).array)


@dataclass(frozen=True)
class Mapped:
    """Kernel of values, with a name that is unique in the session."""

    name: str
    kernel: MapKernel


class Total(Protocol):
    """Running result of an operation on one task."""

    def add(self, part: Records) -> None:
        """Add records."""
        ...

    def chunks(self, width: int) -> Mapping[int, bytes]:
        """Return the result as bytes, in chunks of ``width`` integers; empty if nothing was added."""
        ...


class Operation(Protocol):
    """Picklable factory of totals."""

    of_users: bool
    """True if the operation needs the users of messages, which executors do not cache."""

    def start(self) -> Total:
        """Return an empty total."""
        ...


@dataclass(frozen=True)
class RecordSum:
    """Sum of a kernel over records.

    Attributes
    ----------
    maps : sequence of Mapped
        Values that the kernel receives as further arguments.
    """

    kernel: SumKernel
    maps: Sequence[Mapped] = ()
    of_users = False

    def start(self) -> Total:
        """Return an empty sum."""
        return _Sum(self.kernel, self.maps)


class _Sum:
    def __init__(self, kernel: SumKernel, maps: Sequence[Mapped]) -> None:
        self._kernel, self._maps = kernel, maps
        self._total: Integers | None = None

    def add(self, part: Records) -> None:
        more = part.batch.sum(self._kernel, *(ArrayValues(part.map(mapped)) for mapped in self._maps))
        if self._total is None:
            self._total = more
        else:
            self._total += more

    def chunks(self, width: int) -> Mapping[int, bytes]:
        return {} if self._total is None else chunked(self._total, width)


def chunked(total: Integers, width: int) -> dict[int, bytes]:
    """Cut integers into chunks of ``width``; 0 for one chunk."""
    numbers, width = total.reshape(-1), width or total.size
    parts = range(0, total.size, width) if total.size else range(0)
    return {i: numbers[at : at + width].astype("<i8").tobytes() for i, at in enumerate(parts)}


@dataclass(frozen=True)
class ValueSum:
    """Sum of a kernel over values."""

    kernel: ValueKernel
    maps: Sequence[Mapped]
    of_users = False

    def start(self) -> Total:
        """Return an empty sum."""
        return _ValueSum(self.kernel, self.maps)


class _ValueSum:
    def __init__(self, kernel: ValueKernel, maps: Sequence[Mapped]) -> None:
        self._kernel, self._maps = kernel, maps
        self._total: Integers | None = None

    def add(self, part: Records) -> None:
        values = [part.map(mapped) for mapped in self._maps]
        if getattr(self._kernel, "ordered", False):
            assert part.places is not None
            # Two paired records have one value.
            units = max(len(part.batch) // max(len(values[0]), 1), 1)
            more = self._kernel(values[0], part.places[::units] // units)
        else:
            more = self._kernel(*values)
        self._total = more if self._total is None else self._total + more

    def chunks(self, width: int) -> Mapping[int, bytes]:
        return {} if self._total is None else chunked(self._total, width)


@dataclass(frozen=True)
class BinTally:
    """Operation that counts the bins of histograms."""

    kernel: BinKernel
    histograms: int
    of_users = False

    def start(self) -> Total:
        """Return empty histograms."""
        return _Tally(self.kernel, self.histograms)


class _Tally:
    def __init__(self, kernel: BinKernel, histograms: int) -> None:
        self._kernel, self._histograms = kernel, histograms
        self._counts: list[BinCounts] = []

    def add(self, part: Records) -> None:
        self._counts.append(part.batch.tally(self._kernel, self._histograms))

    def chunks(self, width: int) -> Mapping[int, bytes]:
        if not self._counts:
            return {}
        found = BinCounts.together(self._counts, self._histograms)
        return {0: np.stack([found.owners, found.keys, found.counts]).astype("<i8").tobytes()}


def bin_counts(data: bytes, histograms: int) -> BinCounts:
    """Decode the bin counts returned by a task."""
    owners, keys, counts = np.frombuffer(data, dtype="<i8").astype(np.int64).reshape(3, -1)
    return BinCounts(histograms, owners, keys, counts)


@dataclass(frozen=True)
class UserHashes:
    """Operation that returns the user hash of each message with its place in the batch."""

    of_users = True

    def start(self) -> Total:
        """Return an empty list."""
        return _Users()


class _Users:
    def __init__(self) -> None:
        self._found: dict[int, bytes] = {}

    def add(self, part: Records) -> None:
        assert part.places is not None
        assert part.users is not None
        columns = np.column_stack([part.places.astype("<u8"), part.users.astype("<u8")])
        self._found[len(self._found)] = columns.tobytes()

    def chunks(self, width: int) -> Mapping[int, bytes]:
        return self._found


def user_hashes(answers: Sequence[bytes], count: int) -> Hashes:
    """Return the users (count, 2) of a batch's messages, from the answers of tasks."""
    users = np.zeros((count, 2), dtype=np.uint64)
    for data in answers:
        found = np.frombuffer(data, dtype="<u8").reshape(-1, 3)
        users[found[:, 0].astype(np.int64)] = found[:, 1:]
    return users
