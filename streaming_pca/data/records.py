"""Records: their kinds, and blocks of them as arrays."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.packed import dim_of_packed, packed_size


class RecordKind(StrEnum):
    """Kind of a record's payload.

    ``FACTOR``: r >= 1 rows F with A = F^T F; a vector is a factor of one row.
    ``MATRIX``: a symmetric d x d matrix A, possibly indefinite.
    ``LOCAL``: a report, the packed upper triangle of a d x d matrix with noise that its producer
    added for a local guarantee (:mod:`streaming_pca.local`). It is the output of a mechanism already.
    """

    FACTOR = "factor"
    MATRIX = "matrix"
    LOCAL = "local"

    def width(self, dim: int) -> int:
        """Return the numbers in a row of a record of ``dim`` features."""
        return packed_size(dim) if self is RecordKind.LOCAL else dim


def is_symmetric(matrix: NDArray[np.floating]) -> bool:
    """Return whether a square matrix is finite, and symmetric to 1e-6 of its largest entry."""
    scale = float(np.abs(matrix).max(initial=0.0))
    # A warning would reveal something of the record.
    with np.errstate(all="ignore"):
        difference = np.abs(matrix - matrix.T)
    return bool(np.isfinite(scale) and np.all(difference <= 1e-6 * scale))


def row_starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first row of each record, and the end of the last."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


@dataclass(frozen=True)
class Block:
    """Consecutive records as arrays in memory, as kernels get them."""

    rows: NDArray[np.floating]
    """(n, d), float32 or float64: rows of all records, one after the other; for reports (n, d (d + 1)/2), one
    row a record."""
    starts: NDArray[np.int64]
    """(m + 1,) record i is ``rows[starts[i]:starts[i + 1]]``; the null record has no rows."""
    kind: RecordKind = RecordKind.FACTOR
    begins: NDArray[np.int64] | None = None
    """(m,) first rows of records that were selected from others and share their rows: record i has as many
    rows as ``starts`` gives, from ``rows[begins[i]]`` on. :meth:`packed` removes it."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def dim(self) -> int:
        width = int(self.rows.shape[1])
        return dim_of_packed(width) if self.kind is RecordKind.LOCAL else width

    def packed(self) -> Block:
        """Return the same records with consecutive rows; a copy only if they were not."""
        if self.begins is None:
            return self
        lengths = np.diff(self.starts)
        places = np.repeat(self.begins - self.starts[:-1], lengths) + np.arange(int(self.starts[-1]))
        return Block(self.rows[places], self.starts, self.kind)

    def places(self) -> NDArray[np.int64]:
        """Return the first row of each record (m,)."""
        return self.starts[:-1] if self.begins is None else self.begins

    def keeping(self, counted: NDArray[np.bool_]) -> Self:
        """Return the block with all records null except the counted ones (m,); no copy."""
        lengths = np.where(counted, np.diff(self.starts), 0)
        return replace(self, starts=row_starts(lengths), begins=self.places())

    def only(self, chosen: NDArray[np.bool_]) -> Self:
        """Return only the chosen records (m,), in their order; no copy."""
        return replace(self, starts=row_starts(np.diff(self.starts)[chosen]), begins=self.places()[chosen])

    def single_rows(self) -> Self:
        """Return the block with every record of other than one row made null; no copy."""
        return self.keeping(np.diff(self.starts) == 1)

    def null_count(self) -> int:
        """Count the null records: exact, and as secret as a record."""
        return int(np.count_nonzero(np.diff(self.starts) == 0))
