"""Records as compiled kernels read them: checked once, in place where possible."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block
from streaming_pca.kernels.reading import NO_MAP, RecordsView, records_view
from streaming_pca.kernels.threads import shared_out

Vector = NDArray[np.float64]

_LEAST_ENTRIES = 2**18  # entries of records that are worth a thread: a tenth of a millisecond


def worth_a_thread(read: RecordsView, rows_of_a_record: int) -> int:
    """Return the number of records whose entries take a tenth of a millisecond."""
    return max(_LEAST_ENTRIES // max(int(read.rows.shape[1]) * rows_of_a_record, 1), 1)


def added_up(
    read: RecordsView,
    part: Callable[[int, int], NDArray[np.int64]],
    shape: tuple[int, ...],
    step: int = 1,
) -> NDArray[np.int64]:
    """Add the integers of ``part(first, last)`` over ranges of records, with threads.

    ``step`` is the number of delivered records that stay together.
    """
    total = np.zeros(shape, dtype=np.int64)
    for one in shared_out(len(read.begins), part, step, worth_a_thread(read, read.longest)):
        total += one
    return total


class RecordReader:
    """Reader of records for kernels: in place, through a public map, or transformed.

    ``basis``, (d', k), is checked to have a row for each feature after ``preprocessing``. ``whole`` is True
    where a batch can be read in place; else it is read block by block. ``how`` is the map that is left to the
    kernel, ``step`` the number of delivered records for each summed record.
    """

    def __init__(self, preprocessing: Preprocessing, basis: NDArray[np.float64] | None = None) -> None:
        if basis is not None and (basis.ndim != 2 or len(basis) != preprocessing.dim):
            raise ValueError(f"a basis of shape {basis.shape} for records of {preprocessing.dim} features")
        self.preprocessing = preprocessing
        how = preprocessing.public_map()
        self.whole = how is not None
        self.how = NO_MAP if how is None else how
        self.step = 1 if how is None else preprocessing.units

    def read(self, batch: Block) -> RecordsView:
        """View the records, in place or transformed; ValueError for half a pair or another width."""
        if len(batch) % self.preprocessing.units:
            raise ValueError("pairs need an even number of records")
        rows, begins, starts = batch.rows, batch.places(), batch.starts
        # Kernels read and write by this number without a check.
        if rows.shape[1] != self.preprocessing.dim:
            raise ValueError(f"records of {rows.shape[1]} features for {self.preprocessing.dim}")
        if not self.whole:
            starts, rows = transformed(self.preprocessing, batch)
            begins = starts[:-1]
        return records_view(rows, begins, starts)


class NormKernel(ABC):
    """Kernel of :meth:`Batch.map`: a number a summed record, of ``work`` operations an entry."""

    def __init__(self, records: RecordReader, work: int = 1) -> None:
        self.records, self.work = records, work
        self.whole = records.whole

    @abstractmethod
    def fill(self, read: RecordsView, first: int, last: int, out: Vector) -> object:
        """Write the numbers of the delivered records first to last into ``out``."""

    def __call__(self, block: Block) -> Vector:
        step = self.records.step
        read = self.records.read(block)
        out = np.empty(len(read.begins) // step)

        def part(first: int, last: int) -> None:
            self.fill(read, first, last, out[first // step : last // step])

        shared_out(len(read.begins), part, step, worth_a_thread(read, read.longest * self.work))
        return out
