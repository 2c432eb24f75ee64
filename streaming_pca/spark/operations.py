"""Operations that tasks apply to records: sums, sums over values, bin counts, users.

Results of parts are joined in any order, and leave a task as chunks of bytes. Sums are exact integers, so
their bits do not depend on tasks, executors or attempts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

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
    """Records ``first`` to ``last`` (excluded) of a segment, which an operation reads.

    Attributes
    ----------
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
    """Records of a share: the input of an operation, with places (m,) and users (m, 2) if requested.

    ``recall`` takes a name and a function that computes values for these records. It returns the values,
    which are computed only once if they fit in the cache.
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


class Operation(ABC):
    """Picklable operation on records, which tasks apply to parts of segments."""

    of_users: ClassVar[bool] = False
    """True if it needs the users of messages, which executors do not cache."""

    @abstractmethod
    def result(self, part: Records) -> Any:
        """Return the result for some records: integers or a list, so that ``+`` joins results."""

    def chunks(self, total: Any, width: int) -> dict[int, bytes]:
        """Return the joined results as bytes; a sum in chunks of ``width`` integers, 0 for one chunk."""
        numbers, width = total.reshape(-1), width or total.size
        parts = range(0, total.size, width) if total.size else range(0)
        return {i: numbers[at : at + width].astype("<i8").tobytes() for i, at in enumerate(parts)}


@dataclass(frozen=True)
class RecordSum(Operation):
    """Sum of a kernel over records; the kernel receives the values of ``maps`` as further arguments."""

    kernel: SumKernel
    maps: Sequence[Mapped] = ()

    def result(self, part: Records) -> Integers:
        """Return the sum over some records."""
        return part.batch.sum(self.kernel, *(ArrayValues(part.map(mapped)) for mapped in self.maps))


@dataclass(frozen=True)
class ValueSum(Operation):
    """Sum of a kernel over values."""

    kernel: ValueKernel
    maps: Sequence[Mapped]

    def result(self, part: Records) -> Integers:
        """Return the sum over some records' values."""
        values = [part.map(mapped) for mapped in self.maps]
        if not getattr(self.kernel, "ordered", False):
            return self.kernel(*values)
        assert part.places is not None
        # Two paired records have one value.
        units = max(len(part.batch) // max(len(values[0]), 1), 1)
        return self.kernel(values[0], part.places[::units] // units)


@dataclass(frozen=True)
class BinTally(Operation):
    """Operation that counts the bins of histograms."""

    kernel: BinKernel
    histograms: int

    def result(self, part: Records) -> list[BinCounts]:
        """Return the counts of some records."""
        return [part.batch.tally(self.kernel, self.histograms)]

    def chunks(self, total: list[BinCounts], width: int) -> dict[int, bytes]:
        """Return all counts as one chunk."""
        found = BinCounts.together(total, self.histograms)
        return {0: np.stack([found.owners, found.keys, found.counts]).astype("<i8").tobytes()}


def bin_counts(data: bytes, histograms: int) -> BinCounts:
    """Decode the bin counts returned by a task."""
    owners, keys, counts = np.frombuffer(data, dtype="<i8").astype(np.int64).reshape(3, -1)
    return BinCounts(histograms, owners, keys, counts)


class UserHashes(Operation):
    """Operation that returns the user hash of each message with its place in the batch."""

    of_users = True

    def result(self, part: Records) -> list[bytes]:
        """Return the places and users of some messages."""
        assert part.places is not None
        assert part.users is not None
        return [np.column_stack([part.places.astype("<u8"), part.users.astype("<u8")]).tobytes()]

    def chunks(self, total: list[bytes], width: int) -> dict[int, bytes]:
        """Return each part as one chunk."""
        return dict(enumerate(total))


def user_hashes(answers: Sequence[bytes], count: int) -> Hashes:
    """Return the users (count, 2) of a batch's messages, from the answers of tasks."""
    users = np.zeros((count, 2), dtype=np.uint64)
    for data in answers:
        found = np.frombuffer(data, dtype="<u8").reshape(-1, 3)
        users[found[:, 0].astype(np.int64)] = found[:, 1:]
    return users
