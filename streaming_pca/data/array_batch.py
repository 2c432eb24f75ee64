"""Batches whose records are arrays in memory, and the numbers that they are mapped to."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streaming_pca.data.batch import Batch, BinKernel, MapKernel, RecordValues, SumKernel, ValueKernel
from streaming_pca.data.records import Block, RecordKind, row_starts
from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.kernels.lattice import BLOCK
from streaming_pca.kernels.threads import shared_out, thread_count

T = TypeVar("T")

_BLOCK_ENTRIES = 2**20  # most entries of a block, so that a kernel's temporary takes at most 8 MiB
_LEAST_ROWS = 256  # rows that a block may have in any case; long rows then take more than ``_BLOCK_ENTRIES``
_LEAST_SHARE = 256  # fewest records that are worth a separate thread


@dataclass(frozen=True)
class ArrayValues(RecordValues):
    """Values in one array (m,)."""

    array: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.array)

    def sum(self, kernel: ValueKernel, *others: RecordValues) -> NDArray[np.int64]:
        return kernel(self.array, *(value_array(other) for other in others))

    def above(self, radii: Sequence[float]) -> Callable[[int], int]:
        # At each call: a search asks for few of the radii. A comparison with NaN is false.
        return lambda i: int(np.count_nonzero(self.array > radii[i]))


def value_array(values: RecordValues) -> NDArray[np.float64]:
    """Return the array of values in memory; TypeError if they are elsewhere."""
    if not isinstance(values, ArrayValues):
        raise TypeError(f"values in memory, not {type(values).__name__}, belong to records in memory")
    return values.array


@dataclass(frozen=True)
class ArrayBatch(Block, Batch):
    """Batch whose records are one block of arrays in memory."""

    complete: bool = False
    rows_per_record: int = 1

    @classmethod
    def of_vectors(cls, x: ArrayLike, complete: bool = False) -> ArrayBatch:
        """Pack vectors (m, d), or factors (m, r, d); a record with a NaN or infinity is null.

        If the batch is to be ``complete``, such a record is a ValueError.
        """
        array = np.asarray(x)
        if array.dtype not in (np.float32, np.float64):
            array = array.astype(np.float64)
        if array.ndim == 2:
            array = array[:, None, :]
        if array.ndim != 3:
            raise ValueError(f"expected vectors (m, d) or factors (m, r, d), not {array.ndim} axes")
        _, r, d = array.shape
        valid = np.isfinite(array).all(axis=(1, 2))
        kept = array if valid.all() else array[valid]
        if complete and len(kept) < len(array):
            raise ValueError("a record of a complete batch is not finite")
        starts = row_starts(np.where(valid, r, 0))
        return cls(np.ascontiguousarray(kept).reshape(-1, d), starts, complete=complete, rows_per_record=r)

    @classmethod
    def of_records(
        cls, records: Iterable[NDArray[np.floating] | None], dim: int, kind: RecordKind = RecordKind.FACTOR
    ) -> ArrayBatch:
        """Pack decoded, finite records (r, d) in their order; ``None`` is a null record."""
        listed = list(records)
        parts = [record for record in listed if record is not None]
        lengths = np.array([0 if record is None else len(record) for record in listed], dtype=np.int64)
        rows = np.concatenate(parts) if parts else np.zeros((0, kind.width(dim)))
        return cls(rows, row_starts(lengths), kind)

    @classmethod
    def joined(cls, parts: Sequence[ArrayBatch]) -> ArrayBatch:
        """Join parts, at least one, in their order; a copy unless there is only one."""
        parts = [part.packed() for part in parts]
        if len(parts) == 1:
            return parts[0]
        lengths = np.concatenate([np.diff(part.starts) for part in parts])
        return ArrayBatch(np.concatenate([part.rows for part in parts]), row_starts(lengths), parts[0].kind)

    def packed(self) -> ArrayBatch:
        block = super().packed()
        return self if block is self else ArrayBatch(block.rows, block.starts, block.kind)

    def copy(self) -> ArrayBatch:
        """Return the same records with consecutive rows in new memory."""
        if self.begins is None:
            return replace(self, rows=self.rows.copy())
        return self.packed()

    def keeping(self, counted: NDArray[np.bool_]) -> Self:
        if counted.all():
            return replace(self, complete=False) if self.complete else self
        return replace(super().keeping(counted), complete=False)

    def part(self, first: int, last: int) -> Self:
        a, b = self.starts[first], self.starts[last]
        starts = self.starts[first : last + 1] - a
        if self.begins is None:
            return replace(self, rows=self.rows[a:b], starts=starts)
        return replace(self, starts=starts, begins=self.begins[first:last])

    def dense_parts(self) -> Iterator[ArrayBatch]:
        """Iterate over consecutive parts whose rows are in memory: here the batch itself."""
        yield self

    def blocks(self, limit: int) -> Iterator[ArrayBatch]:
        return (cut.packed() for cut in self._cuts(limit))

    def _cuts(self, limit: int) -> Iterator[ArrayBatch]:
        width = int(self.rows.shape[1])
        entries = max(_BLOCK_ENTRIES, _LEAST_ROWS * width)
        first = 0
        while first < len(self):
            last = min(first + limit, len(self))
            # The memory of a block depends on its entries, not its records: halve it until it fits.
            while last - first > 2 and (self.starts[last] - self.starts[first]) * width > entries:
                last = first + max(2, (last - first) // 4 * 2)
            yield self.part(first, last)
            first = last

    def _shares(self, limit: int) -> list[ArrayBatch]:
        """Return blocks, at least one a thread if the records are worth it."""
        share = -(-len(self) // thread_count())
        limit = min(limit, max(share + share % 2, _LEAST_SHARE))
        return list(self._cuts(limit))

    def sum(self, kernel: SumKernel, *values: RecordValues) -> NDArray[np.int64]:
        arrays = [value_array(each) for each in values]
        if kernel.whole:
            sums = (kernel(part, *some) for part, some in self._with(arrays, self.dense_parts()))
            whole = next(sums)
            for more in sums:
                whole += more
            return whole
        blocks = list(self._with(arrays, self._shares(kernel.limit)))

        def part(first: int, last: int) -> NDArray[np.int64]:
            total = np.zeros(kernel.shape, dtype=np.int64)
            for block, some in blocks[first:last]:
                total += kernel(block.packed(), *some)
            return total

        # Each thread has its own total, so large ones are not worth several threads.
        least = 1 if math.prod(kernel.shape) <= _BLOCK_ENTRIES else len(blocks)
        totals = shared_out(len(blocks), part, least=least) or [np.zeros(kernel.shape, dtype=np.int64)]
        for more in totals[1:]:
            totals[0] += more
        return totals[0]

    def _with(
        self, arrays: list[NDArray[np.float64]], parts: Iterable[ArrayBatch]
    ) -> Iterator[tuple[ArrayBatch, list[NDArray[np.float64]]]]:
        """Iterate over consecutive parts, with each array's values of their records."""
        first, size = 0, max(len(self), 1)
        for part in parts:
            last = first + len(part)
            # Pairs have one value each.
            places = [(first * len(array) // size, last * len(array) // size) for array in arrays]
            yield part, [array[a:b] for array, (a, b) in zip(arrays, places, strict=True)]
            first = last

    def map(self, kernel: MapKernel) -> ArrayValues:
        if getattr(kernel, "whole", False):
            return ArrayValues(np.concatenate([kernel(part) for part in self.dense_parts()]))
        blocks = self._shares(BLOCK)

        def part(first: int, last: int) -> NDArray[np.float64]:
            return np.concatenate([kernel(block.packed()) for block in blocks[first:last]])

        return ArrayValues(np.concatenate(shared_out(len(blocks), part) or [np.zeros(0)]))

    def map_parts(self, counts: Sequence[int], kernel: Callable[[Block], T]) -> list[T]:
        return [kernel(part.packed()) for part in self.split(counts)]

    def tally(self, kernel: BinKernel, histograms: int) -> BinCounts:
        # The bins of all records are held together, four bytes each.
        bins, done = np.zeros((histograms, 0), dtype=np.int32), 0
        for block in self.blocks(kernel.limit):
            some = kernel(block)
            if not done:
                bins = np.empty((histograms, some.shape[1] * len(self) // len(block)), dtype=np.int32)
            bins[:, done : done + some.shape[1]] = some
            done += some.shape[1]
        return BinCounts.of(bins[:, :done])


@dataclass(frozen=True)
class SparseBatch(ArrayBatch):
    """Batch of vectors whose rows are a CSR matrix.

    Its sums and maps have the bits of the same dense batch: sums are exact in any order, and a
    map's number is a function of its record alone.
    """

    rows: Any
    """(n, d), scipy CSR matrix or array, float32 or float64: finite. Dense rows exist a block at a time: at
    most 8 MiB, or 256 rows where these take more, for each thread, and the copies that a transformation makes
    of a block."""

    @classmethod
    def of_rows(cls, rows: Any) -> SparseBatch:
        """Take each row of a CSR matrix of finite numbers as one record."""
        return cls(rows, np.arange(rows.shape[0] + 1, dtype=np.int64), complete=True)

    def packed(self) -> ArrayBatch:
        rows: Any = Block.packed(self).rows
        return ArrayBatch(rows.toarray(), self.starts, self.kind)

    def dense_parts(self) -> Iterator[ArrayBatch]:
        return self.blocks(len(self)) if len(self) else iter((self.packed(),))
