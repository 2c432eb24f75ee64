"""Batches of sparse rows, which become dense a part at a time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from streaming_pca.data.array_batch import ArrayBatch


@dataclass(frozen=True)
class SparseBatch(ArrayBatch):
    """Batch of vectors whose rows are a CSR matrix.

    Its sums and maps have the bits of the same dense batch: sums are exact in any order, and a
    map's number is a function of its record alone.

    Attributes
    ----------
    rows : (n, d) scipy CSR matrix or array, float32 or float64
        Finite. Dense rows exist a block at a time: at most 8 MiB, or 256 rows where these
        take more, for each thread, and the copies that a transformation makes of a block.
    """

    rows: Any

    @classmethod
    def of_rows(cls, rows: Any) -> SparseBatch:
        """Take each row of a CSR matrix of finite numbers as one record."""
        return cls(rows, np.arange(rows.shape[0] + 1, dtype=np.int64), complete=True)

    def packed(self) -> ArrayBatch:
        """Return the same records as a dense batch."""
        lengths = np.diff(self.starts)
        rows = self.rows
        if self.begins is not None:
            rows = rows[np.repeat(self.begins - self.starts[:-1], lengths) + np.arange(int(self.starts[-1]))]
        return ArrayBatch(rows.toarray(), self.starts, self.kind)

    def dense_parts(self) -> Iterator[ArrayBatch]:
        """Iterate over consecutive dense parts, one block at a time."""
        return self.blocks(len(self)) if len(self) else iter((self.packed(),))
