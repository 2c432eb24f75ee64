"""Interface of batches of records, and of the kernels that read them.

Estimators see a batch as :class:`Batch`: an order, a public length, and results of *kernels*, functions of
some of its records. The batch decides where the records are: in this process'
memory (:class:`~streaming_pca.data.array_batch.ArrayBatch`), or somewhere else.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.records import Block, RecordKind
from streaming_pca.kernels.coordinates import BinCounts
from streaming_pca.kernels.lattice import BLOCK

Vector = NDArray[np.float64]
Integers = NDArray[np.int64]
T = TypeVar("T")


class SumKernel(Protocol):
    """Function of a block of at most ``limit`` records to its exact integer sum.

    Further arguments are the block's part of the values that :meth:`Batch.sum` was given, one a
    (transformed) record. A kernel can be pickled, draws no noise, and adds a function of each
    record alone, so that a sum has the same bits for any division into blocks.

    A kernel with ``whole`` makes no copies of the records' rows, so that blocks would save no memory. It
    reads all records of one place together, and must respect
    :attr:`~streaming_pca.data.records.Block.begins`.
    """

    shape: tuple[int, ...]
    limit: int
    whole: bool

    def __call__(self, block: Block, /, *args: Any, **kwargs: Any) -> Integers: ...


@dataclass
class BlockSum:
    """:class:`SumKernel` of a function that may copy a block's rows."""

    of: Callable[..., Integers]
    shape: tuple[int, ...]
    limit: int = BLOCK
    whole: bool = False

    def __call__(self, block: Block, /, *args: Any) -> Integers:
        return self.of(block, *args)


MapKernel = Callable[[Block], Vector]
"""Function of a block of records to one number for each of its (transformed) records.

Each number is a function of its record alone. A kernel can be pickled, draws no noise, and may
have an attribute ``whole``, with the meaning that it has for a :class:`SumKernel`."""


class BinKernel(Protocol):
    """Function of a block of records to their bins in n histograms, (n, m) int32.

    It gets at most ``limit`` records. The bin in each histogram is a function of a record alone.
    """

    limit: int

    def __call__(self, block: Block, /) -> NDArray[np.int32]: ...


ValueKernel = Callable[..., Integers]
"""Function of some records' values to integers that are added over all records.

Further arguments are the same records' values in the other :class:`RecordValues` of
:meth:`RecordValues.sum`. It can be pickled, draws no noise, and adds a function of each record alone."""


class RecordValues(ABC):
    """One number for each (transformed) record of a batch, in the batch's order.

    They are as secret as the records: they leave through a mechanism or not at all.
    """

    @abstractmethod
    def __len__(self) -> int:
        """Return the public number of values."""

    @abstractmethod
    def sum(self, kernel: ValueKernel, *others: RecordValues) -> Integers:
        """Return the exact sum of the kernel's contributions; ``others`` are of the same batch."""

    def above(self, radii: Sequence[float]) -> Callable[[int], int]:
        """Return a function of an index i to the exact number of values above ``radii[i]``.

        NaN is above no radius. The function reads the records at most once if they are elsewhere.
        """
        counts = self.sum(partial(_count_above, np.array(radii, dtype=np.float64)))
        return lambda i: int(counts[i])

    def histogram(self, edges: Vector) -> Integers:
        """Count the values in the bins between rising edges; the last bin has its upper edge too."""
        return self.sum(partial(_count_in_bins, edges))


def whole_total(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Sum whole numbers, as a kernel of :meth:`RecordValues.sum`."""
    return np.array([int(values.sum())], dtype=np.int64)


class Batch(ABC):
    """Ordered set of records with a public length."""

    complete: bool = False
    """True if it is public that no record is null: only where a batch's source refuses such records."""
    rows_per_record: int = 1
    """Public number of rows of every record that is not null; 1 also where it is not known."""

    @property
    @abstractmethod
    def kind(self) -> RecordKind:
        """Kind of all records."""

    @property
    @abstractmethod
    def dim(self) -> int:
        """Number of features d."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the public number of records, null ones included."""

    @abstractmethod
    def part(self, first: int, last: int) -> Self:
        """Return the records from position ``first`` up to before ``last``."""

    def split(self, counts: Sequence[int]) -> tuple[Self, ...]:
        """Split by position into parts of these numbers of records, which must add up (ValueError)."""
        if sum(counts) != len(self) or min(counts, default=0) < 0:
            raise ValueError(f"parts {list(counts)} do not add up to {len(self)} records")
        return tuple(self.part(first, last) for first, last in pairwise(accumulate(counts, initial=0)))

    @abstractmethod
    def keeping(self, counted: NDArray[np.bool_]) -> Batch:
        """Return the batch with all records null, in their places, except the counted ones (m,)."""

    @abstractmethod
    def single_rows(self) -> Batch:
        """Return the batch with every record of other than one row made null."""

    @abstractmethod
    def null_count(self) -> int:
        """Count the null records: exact, and as secret as a record."""

    @abstractmethod
    def sum(self, kernel: SumKernel, *values: RecordValues) -> Integers:
        """Return the exact sum of the kernel's contributions.

        Its bits are the same for any division of the batch. ``values`` are of this batch.
        """

    @abstractmethod
    def map(self, kernel: MapKernel) -> RecordValues:
        """Compute one number a (transformed) record."""

    @abstractmethod
    def map_parts(self, counts: Sequence[int], kernel: Callable[[Block], T]) -> list[T]:
        """Return the kernel's small result for each part of :meth:`split`, which fits in one memory."""

    @abstractmethod
    def tally(self, kernel: BinKernel, histograms: int) -> BinCounts:
        """Count the records in each bin of the kernel's histograms."""

    @abstractmethod
    def blocks(self, limit: int) -> Iterator[Block]:
        """Iterate over consecutive parts of at most ``limit`` records in this process' memory.

        All parts except the last have an even number of records. They are for algorithms that
        must read one record after the other.
        """


def _count_above(radii: Vector, values: Vector) -> Integers:
    """Count the values above each radius; radii need not be sorted."""
    # NaN sorts last.
    within = np.searchsorted(np.sort(values), radii, side="right").astype(np.int64)
    return np.count_nonzero(~np.isnan(values)) - within


def _count_in_bins(edges: Vector, values: Vector) -> Integers:
    return np.histogram(values, edges)[0].astype(np.int64)
