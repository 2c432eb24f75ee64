"""Records for compiled kernels: checked once, and mapped by whoever reads them where that is possible."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.public_map import NO_MAP
from streaming_pca.linalg.readable import Readable, readable
from streaming_pca.preprocessing import Preprocessing, transformed
from streaming_pca.records import Batch

__all__ = ["RecordReader", "worth_a_thread"]

_LEAST_SHARE = 2**18
"""Entries of the records that are worth a thread: a tenth of a millisecond."""


def worth_a_thread(read: Readable, rows_of_a_record: int) -> int:
    """Records whose entries take a tenth of a millisecond."""
    return max(_LEAST_SHARE // max(int(read.rows.shape[1]) * rows_of_a_record, 1), 1)


class RecordReader:
    """How kernels read records: as they came, through a public map, or as ``apply`` makes them.

    Parameters
    ----------
    preprocessing : Preprocessing
    basis : (d', k) float64, optional
        Checked to have a row for each feature that there is after ``preprocessing``.

    Attributes
    ----------
    whole : bool
        Whether a batch can be read as it came; else it is read block by block.
    how : PublicMap
        What is left to do for a kernel.
    step : int
        Records as they came that make one of those that are summed.
    """

    def __init__(self, preprocessing: Preprocessing, basis: NDArray[np.float64] | None = None) -> None:
        if basis is not None and (basis.ndim != 2 or len(basis) != preprocessing.output_dim):
            raise ValueError(
                f"a basis of shape {basis.shape} for records of {preprocessing.output_dim} features"
            )
        self.preprocessing = preprocessing
        how = preprocessing.public_map()
        self.whole = how is not None
        self.how = NO_MAP if how is None else how
        self.step = 1 if how is None else preprocessing.units

    def read(self, batch: Batch) -> Readable:
        """The records, as they came or as ``apply`` makes them."""
        if len(batch) % self.preprocessing.units:
            raise ValueError("pairs need an even number of records")
        rows, begins, starts = batch.rows, batch.places(), batch.starts
        # Kernels read and write by this number, unchecked.
        if rows.shape[1] != self.preprocessing.dim:
            raise ValueError(f"records of {rows.shape[1]} features for {self.preprocessing.dim}")
        if not self.whole:
            starts, rows = transformed(self.preprocessing, batch)
            begins = starts[:-1]
        return readable(rows, begins, starts)
