"""Covariance sums over factors: clipped and rounded by a kernel, multiplied by BLAS, exact."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.record_reader import RecordReader, worth_a_thread
from streaming_pca.linalg.blas import dsyrk_address
from streaming_pca.linalg.factor_rows import factor_squared_norms, sum_factors
from streaming_pca.linalg.lattice import BLOCK
from streaming_pca.linalg.readable import Readable
from streaming_pca.linalg.threads import shared_out
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.records import Batch

__all__ = ["FactorCovariance", "factor_traces"]

Matrix = NDArray[np.float64]

_ROWS = 2**10
"""Rounded rows that BLAS multiplies at once: they are still in a cache."""

_MOST_TOTAL = 2**20
"""Entries of a total that every thread may have one of."""


class FactorCovariance:
    """Sum of clip(F^T F) over factors F, as a kernel of :meth:`Batch.sum`."""

    limit = BLOCK

    def __init__(self, preprocessing: Preprocessing, per_unit: float) -> None:
        self.records = RecordReader(preprocessing)
        self.whole = self.records.whole
        self.per_unit = per_unit
        self.dim = preprocessing.output_dim
        self.shape: tuple[int, ...] = (self.dim * self.dim + 1,)

    def __call__(self, batch: Batch) -> NDArray[np.int64]:
        read = self.records.read(batch)
        least = worth_a_thread(read, read.longest) if self.shape[0] <= _MOST_TOTAL else len(read.begins)
        parts = shared_out(
            len(read.begins), lambda first, last: self._part(read, first, last), self.records.step, least
        )
        out = np.zeros(self.shape, dtype=np.int64)
        lower = out[:-1].reshape(self.dim, self.dim)
        for total, clipped in parts:
            lower += total
            out[-1] += clipped
        lower += np.tril(lower, -1).T
        return out

    def _part(self, read: Readable, first: int, last: int) -> tuple[NDArray[np.int64], int]:
        d = self.dim
        room, rounded = np.empty((read.longest, d)), np.empty((max(_ROWS, read.longest), d))
        exact, total = np.zeros((d, d)), np.zeros((d, d), dtype=np.int64)
        how, dsyrk = self.records.how, dsyrk_address()
        clipped = sum_factors(read, first, last, how, self.per_unit, dsyrk, room, rounded, exact, total)
        return total, clipped


def factor_traces(batch: Batch, preprocessing: Preprocessing) -> Matrix:
    """|F|_F**2 of every factor: what :class:`FactorCovariance` clips; 0 for null records."""
    records = RecordReader(preprocessing)
    d = preprocessing.output_dim

    def of_block(block: Batch) -> Matrix:
        read = records.read(block)
        out = np.empty(len(read.begins) // records.step)

        def part(first: int, last: int) -> None:
            room = np.empty((read.longest, d))
            found = out[first // records.step : last // records.step]
            factor_squared_norms(read, first, last, records.how, room, found)

        shared_out(len(read.begins), part, records.step, worth_a_thread(read, read.longest))
        return out

    return of_block(batch) if records.whole else batch.map(of_block)
