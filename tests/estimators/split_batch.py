"""A batch in pieces; copies of a kernel process them, as on several machines."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, cycle, pairwise
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch, ArrayValues
from streaming_pca.data.batch import Batch, BinKernel, MapKernel, RecordValues, SumKernel, ValueKernel
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.kernels.coordinates import BinCounts

try:
    # Spark serializes functions in this way; it handles functions that plain pickle cannot name.
    from pyspark.cloudpickle import dumps
except ImportError:
    from pickle import dumps

T = TypeVar("T")


def sent(value: T) -> T:
    """Return the value as received by another process."""
    copy: T = pickle.loads(dumps(value))
    return copy


@dataclass(frozen=True)
class SplitValues(RecordValues):
    """Values of a :class:`SplitBatch`, in its pieces."""

    pieces: tuple[NDArray[np.float64], ...]

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def sum(self, kernel: ValueKernel, *others: RecordValues) -> NDArray[np.int64]:
        columns = [_pieces_of(values) for values in others]
        parts = [
            sent(sent(kernel)(piece.copy(), *(column[i] for column in columns)))
            for i, piece in enumerate(self.pieces)
        ]
        return np.asarray(sum(parts[1:], parts[0]))


def _pieces_of(values: RecordValues) -> tuple[NDArray[np.float64], ...]:
    assert isinstance(values, SplitValues)
    return values.pieces


@dataclass(frozen=True)
class SplitBatch(Batch):
    """Consecutive pieces of one batch."""

    pieces: tuple[ArrayBatch, ...]

    @classmethod
    def of(cls, batch: ArrayBatch, sizes: Sequence[int]) -> SplitBatch:
        """Split a batch into pieces of these sizes in turn; even sizes keep pairs together."""
        assert all(size % 2 == 0 for size in sizes)
        counts, left, turns = [], len(batch), cycle(sizes)
        while left:
            counts.append(min(next(turns), left))
            left -= counts[-1]
        return cls(batch.split([0, *counts]))

    @property
    def kind(self) -> RecordKind:  # type: ignore[override]
        return self.pieces[0].kind

    @property
    def dim(self) -> int:
        return self.pieces[0].dim

    def __len__(self) -> int:
        return sum(map(len, self.pieces))

    def part(self, first: int, last: int) -> SplitBatch:
        found = []
        for piece, start in zip(self.pieces, accumulate(map(len, self.pieces), initial=0), strict=False):
            a, b = (min(max(place - start, 0), len(piece)) for place in (first, last))
            found.append(piece.part(a, b))
        return SplitBatch(tuple(found))

    def keeping(self, counted: NDArray[np.bool_]) -> SplitBatch:
        ends = accumulate(map(len, self.pieces), initial=0)
        of_pieces = zip(self.pieces, pairwise(ends), strict=True)
        return SplitBatch(tuple(piece.keeping(counted[a:b]) for piece, (a, b) in of_pieces))

    def single_rows(self) -> SplitBatch:
        return SplitBatch(tuple(piece.single_rows() for piece in self.pieces))

    def null_count(self) -> int:
        return sum(piece.null_count() for piece in self.pieces)

    def sum(self, kernel: SumKernel, *values: RecordValues) -> NDArray[np.int64]:
        columns = [_pieces_of(each) for each in values]
        total = np.zeros(kernel.shape, dtype=np.int64)
        for i, piece in enumerate(self.pieces):
            total += sent(piece.sum(sent(kernel), *(ArrayValues(column[i]) for column in columns)))
        return total

    def map(self, kernel: MapKernel) -> SplitValues:
        return SplitValues(tuple(sent(piece.map(sent(kernel)).array) for piece in self.pieces))

    def map_parts(self, counts: Sequence[int], kernel: Callable[[Block], T]) -> list[T]:
        return [sent(sent(kernel)(ArrayBatch.joined(part.pieces))) for part in self.split(counts)]

    def tally(self, kernel: BinKernel, histograms: int) -> BinCounts:
        parts = [sent(piece.tally(sent(kernel), histograms)) for piece in self.pieces]
        return BinCounts.together(parts, histograms)

    def blocks(self, limit: int) -> Iterator[Block]:
        return ArrayBatch.joined(self.pieces).blocks(limit)
