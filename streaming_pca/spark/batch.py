"""Batches read by executors, and values computed by executors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.batch import Batch, BinKernel, MapKernel, RecordValues, SumKernel, ValueKernel
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.spark.jobs import Cluster
from streaming_pca.spark.segments import Layout
from streaming_pca.spark.tasks import BinTally, Fetch, Mapped, RecordSum, Share, UserHashes, ValueSum

T = TypeVar("T")
Integers = NDArray[np.int64]


@dataclass(frozen=True)
class SparkBatch(Batch):
    """Records at places ``low`` to ``high`` (excluded) of a batch that executors have read."""

    cluster: Cluster
    layout: Layout  # layout of the whole batch
    low: int
    high: int
    counted: NDArray[np.bool_] | None = None
    """(high - low,): False for null records; None if all records count."""
    only_single_rows: bool = False  # True if records with any other number of rows than one are null

    def __len__(self) -> int:
        return self.high - self.low

    @property
    def kind(self) -> RecordKind:
        return self.cluster.feed.stream.record_kind

    @property
    def dim(self) -> int:
        return self.cluster.feed.stream.dim

    def part(self, first: int, last: int) -> Self:
        flags = None if self.counted is None else self.counted[first:last]
        return replace(self, low=self.low + first, high=self.low + last, counted=flags)

    def keeping(self, counted: NDArray[np.bool_]) -> SparkBatch:
        if counted.shape != (len(self),):
            raise ValueError(f"{counted.shape} flags for {len(self)} records")
        return replace(self, counted=counted if self.counted is None else self.counted & counted)

    def single_rows(self) -> SparkBatch:
        return replace(self, only_single_rows=True)

    def null_count(self) -> int:
        """Count the null records; the exact number is as secret as a record."""
        if self.counted is not None:
            return int(self.sum(_Nulls())[0])
        # Executors counted the null records of whole segments at the first read.
        count, others = self.cluster.known_nulls(self._shares())
        total = self.cluster.sum(RecordSum(_Nulls()), others, 1)
        return count if total is None else count + int(total[0])

    def sum(self, kernel: SumKernel, *values: RecordValues) -> Integers:
        """Return the exact sum of the kernel's contributions, from partial sums of tasks."""
        size = int(np.prod(kernel.shape, dtype=np.int64))
        operation = RecordSum(kernel, [_mapped(each) for each in values])
        total = self.cluster.sum(operation, self._shares(), size)
        return np.zeros(kernel.shape, dtype=np.int64) if total is None else total.reshape(kernel.shape)

    def map(self, kernel: MapKernel) -> SparkValues:
        """Define one number per (transformed) record, which executors compute on demand."""
        return SparkValues(self, Mapped(self.cluster.new_name(), kernel))

    def map_parts(self, counts: Sequence[int], kernel: Callable[[Block], T]) -> list[T]:
        parts = [part.fetches() for part in self.split(counts)]
        return self.cluster.on_parts(parts, kernel) if parts else []

    def tally(self, kernel: BinKernel, histograms: int) -> BinCounts:
        counts = self.cluster.answers(BinTally(kernel, histograms), self._shares())
        return BinCounts.together(counts, histograms)

    def blocks(self, limit: int) -> Iterator[ArrayBatch]:
        """Iterate over consecutive packed parts; reads the whole batch into the driver's memory."""
        return self._in_memory.blocks(limit)

    def users(self) -> NDArray[np.uint64]:
        """Return the keyed hashes (m, 2) of the users of all messages, in message order."""
        users = np.zeros((len(self), 2), dtype=np.uint64)
        for places, some in self.cluster.answers(UserHashes(), self._shares(placed=True)):
            users[places] = some
        return users

    @cached_property
    def _in_memory(self) -> ArrayBatch:
        return self.cluster.gathered(self.fetches())

    def fetches(self) -> list[Fetch]:
        """Return the sources of all records, for any process."""
        shares = self._shares(placed=True)
        return [self.cluster.fetch(share, number) for number, some in shares.items() for share in some]

    def _shares(self, placed: bool = False) -> dict[int, list[Share]]:
        """Return the records to read from each segment, with their places if requested."""
        found: dict[int, list[Share]] = {}
        placed = placed or self.counted is not None
        for p, strips in enumerate(self.layout.strips):
            low = self.layout.records_before(p, self.low)
            high = self.layout.records_before(p, self.high)
            base = 0
            for strip in strips:
                a, b = max(low, base), min(high, base + strip.records)
                if a < b:
                    first = strip.segment.records_before(strip.first) + a - base
                    share = Share(first, first + b - a, single_rows=self.only_single_rows)
                    if placed:
                        share = self._placed(share, p, a, b)
                    found.setdefault(strip.segment.range.id, []).append(share)
                base += strip.records
        return found

    def _placed(self, share: Share, partition: int, first: int, last: int) -> Share:
        counted: bytes | None = None
        if self.counted is not None:
            places = self.layout.places(partition, first, last) - self.low
            counted = np.packbits(self.counted[places]).tobytes()
        if self.layout.by_row:
            places = self.layout.places(partition, first, last)
            return replace(share, counted=counted, order=places, origin=self.low)
        order = self.layout.order
        return replace(share, counted=counted, order=order, partition=partition, base=first, origin=self.low)


@dataclass(frozen=True)
class SparkValues(RecordValues):
    """Values of a batch's records, computed by executors at the first sum over them."""

    batch: SparkBatch
    mapped: Mapped

    def __len__(self) -> int:
        return len(self.batch) // self.batch.cluster.granularity

    def sum(self, kernel: ValueKernel, *others: RecordValues) -> Integers:
        maps = [self.mapped, *(_mapped(each) for each in others)]
        nothing = kernel(*(np.zeros(0) for _ in maps))
        total = self.batch.cluster.sum(ValueSum(kernel, maps), self.batch._shares(), nothing.size)
        return nothing if total is None else total.reshape(nothing.shape)


def _mapped(values: RecordValues) -> Mapped:
    if not isinstance(values, SparkValues):
        raise TypeError(f"values on executors, not {type(values).__name__}, belong to their records")
    return values.mapped


class _Nulls:
    """Sum of 1 over null records."""

    shape: tuple[int, ...] = (1,)
    limit = 2**20
    whole = True

    def __call__(self, block: Block) -> Integers:
        return np.array([block.null_count()], dtype=np.int64)
