"""Kinds of records, and batches of records."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import reduce
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streaming_pca.kernels.lattice import BLOCK
from streaming_pca.kernels.threads import shared_out, thread_count
from streaming_pca.linalg.packed import dim_of_packed, packed_size

__all__ = ["Batch", "RecordKind", "SumKernel", "evenly_spread", "is_symmetric"]

_BLOCK_ENTRIES = 2**20
"""Most entries of a block, so that a kernel's temporary takes at most 8 MiB."""
_LEAST_ROWS = 256
"""Rows that a block may have in any case; long rows then take more than ``_BLOCK_ENTRIES``."""
_LEAST_SHARE = 256
"""Fewest records that are worth a thread of their own."""
_GOLDEN = (5**0.5 - 1) / 2


class RecordKind(StrEnum):
    """Kind of a record's payload.

    ``FACTOR``: r >= 1 rows F with A = F^T F; a vector is a factor of one row.
    ``MATRIX``: a symmetric d x d matrix A, possibly indefinite.
    ``LOCAL``: a report, the packed upper triangle of a d x d matrix to which its producer has added
    noise for a local guarantee (:mod:`streaming_pca.local`). It is the output of a mechanism already.
    """

    FACTOR = "factor"
    MATRIX = "matrix"
    LOCAL = "local"

    def width(self, dim: int) -> int:
        """Return the numbers in a row of a record of ``dim`` features."""
        return packed_size(dim) if self is RecordKind.LOCAL else dim


def is_symmetric(matrix: NDArray[np.floating]) -> bool:
    """Return whether a square matrix is finite and symmetric.

    Entries may differ from the transpose by 1e-6 of the largest entry.
    """
    scale = float(np.abs(matrix).max(initial=0.0))
    # A warning would reveal something of the record.
    with np.errstate(all="ignore"):
        difference = np.abs(matrix - matrix.T)
    return bool(np.isfinite(scale) and np.all(difference <= 1e-6 * scale))


def evenly_spread(count: int) -> NDArray[np.float64]:
    """Return multiples of the golden ratio modulo 1, from 0.

    Any run of consecutive ones fills [0, 1) evenly.
    """
    return np.asarray(np.arange(count) * _GOLDEN % 1.0)


def _starts(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the first row of each record, and the end of the last."""
    starts = np.zeros(len(lengths) + 1, dtype=np.int64)
    np.cumsum(lengths, out=starts[1:])
    return starts


class SumKernel(Protocol):
    """Function of a block of at most ``limit`` records to its exact integer sum.

    A kernel with ``whole`` makes no copies of the records' rows, so that blocks would save no memory. It
    reads the whole batch and must respect :attr:`Batch.begins`.
    """

    shape: tuple[int, ...]
    limit: int
    whole: bool

    def __call__(self, block: Batch, /) -> NDArray[np.int64]: ...


@dataclass(frozen=True)
class Batch:
    """Ordered set of records with a public length.

    Attributes
    ----------
    rows : (n, d) float32 or float64
        Rows of all records, one after the other; for reports (n, d (d + 1)/2), one row a record.
    starts : (m + 1,) int64
        Record i is ``rows[starts[i]:starts[i + 1]]``; the null record has no rows.
    kind : RecordKind
    begins : (m,) int64, optional
        First rows of records that were selected from others and share their rows: record i has as
        many rows as ``starts`` tells, from ``rows[begins[i]]`` on. :meth:`packed` removes it.
    """

    rows: NDArray[np.floating]
    starts: NDArray[np.int64]
    kind: RecordKind = RecordKind.FACTOR
    begins: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def dim(self) -> int:
        """Number of features d."""
        width = int(self.rows.shape[1])
        return dim_of_packed(width) if self.kind is RecordKind.LOCAL else width

    @classmethod
    def of_vectors(cls, x: ArrayLike) -> Batch:
        """Pack vectors (m, d), or factors (m, r, d); a record with a NaN or infinity is null."""
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
        return cls(np.ascontiguousarray(kept).reshape(-1, d), _starts(np.where(valid, r, 0)))

    @classmethod
    def of_records(
        cls, records: Iterable[NDArray[np.floating] | None], dim: int, kind: RecordKind = RecordKind.FACTOR
    ) -> Batch:
        """Pack decoded, finite records (r, d) in their order; ``None`` is a null record."""
        parts: list[NDArray[np.floating]] = []
        lengths = [0]
        for record in records:
            lengths.append(0 if record is None else len(record))
            if record is not None:
                parts.append(record)
        rows = np.concatenate(parts) if parts else np.zeros((0, kind.width(dim)))
        return cls(rows, np.cumsum(lengths, dtype=np.int64), kind)

    def packed(self) -> Batch:
        """Return the same records with consecutive rows; a copy only if they were not."""
        if self.begins is None:
            return self
        lengths = np.diff(self.starts)
        places = np.repeat(self.begins - self.starts[:-1], lengths) + np.arange(int(self.starts[-1]))
        return Batch(self.rows[places], self.starts, self.kind)

    def copy(self) -> Batch:
        """Return the same records with consecutive rows in new memory."""
        if self.begins is None:
            return replace(self, rows=self.rows.copy())
        return self.packed()

    def places(self) -> NDArray[np.int64]:
        """Return the first row of each record (m,)."""
        return self.starts[:-1] if self.begins is None else self.begins

    def keeping(self, counted: NDArray[np.bool_]) -> Batch:
        """Return the batch with all records null except the counted ones (m,); no copy."""
        if counted.all():
            return self
        lengths = np.where(counted, np.diff(self.starts), 0)
        return replace(self, starts=_starts(lengths), begins=self.places())

    def only(self, chosen: NDArray[np.bool_]) -> Batch:
        """Return only the chosen records (m,), in their order; no copy."""
        return replace(self, starts=_starts(np.diff(self.starts)[chosen]), begins=self.places()[chosen])

    def split(self, counts: Sequence[int]) -> tuple[Batch, ...]:
        """Split by position into parts of the given numbers of records; no copy."""
        if sum(counts) != len(self) or min(counts, default=0) < 0:
            raise ValueError(f"parts {list(counts)} do not add up to {len(self)} records")
        parts = []
        first = 0
        for count in counts:
            parts.append(self._slice(first, first + count))
            first += count
        return tuple(parts)

    def deal(self, counts: Sequence[int], granularity: int = 1) -> tuple[Batch, ...]:
        """Split into parts of the given numbers of records, each spread over the batch; no copy.

        The part of a record depends on its position alone. All parts of a
        drifting stream have the same distribution.

        Parameters
        ----------
        counts : sequence of int
            Their sum is the length of the batch; all except the last are multiples of
            ``granularity``.
        granularity : int
            Number of neighbouring records that stay together.
        """
        if sum(counts) != len(self) or min(counts, default=0) < 0:
            raise ValueError(f"parts {list(counts)} do not add up to {len(self)} records")
        groups = -(-len(self) // granularity)
        keys = evenly_spread(groups)
        # An incomplete group belongs to the last part.
        keys[len(self) // granularity :] = 1.0
        rank = np.empty(groups, dtype=np.int64)
        rank[np.argsort(keys, kind="stable")] = np.arange(groups)
        ends = np.cumsum([-(-count // granularity) for count in counts])
        part = np.repeat(np.searchsorted(ends, rank, side="right"), granularity)[: len(self)]
        return tuple(self.only(part == i) for i in range(len(counts)))

    def _slice(self, first: int, last: int) -> Batch:
        a, b = self.starts[first], self.starts[last]
        starts = self.starts[first : last + 1] - a
        if self.begins is None:
            return replace(self, rows=self.rows[a:b], starts=starts)
        return replace(self, starts=starts, begins=self.begins[first:last])

    def dense_parts(self) -> Iterator[Batch]:
        """Iterate over consecutive parts whose rows are in memory: here the batch itself."""
        yield self

    def blocks(self, limit: int) -> Iterator[Batch]:
        """Iterate over consecutive packed parts of at most ``limit`` records.

        All parts except the last have an even number of records.
        """
        return (cut.packed() for cut in self._cuts(limit))

    def _cuts(self, limit: int) -> Iterator[Batch]:
        width = int(self.rows.shape[1])
        entries = max(_BLOCK_ENTRIES, _LEAST_ROWS * width)
        first = 0
        while first < len(self):
            last = min(first + limit, len(self))
            # The memory of a block depends on its entries, not its records: halve it until it fits.
            while last - first > 2 and (self.starts[last] - self.starts[first]) * width > entries:
                last = first + max(2, (last - first) // 4 * 2)
            yield self._slice(first, last)
            first = last

    def _shares(self, limit: int) -> list[Batch]:
        """Return blocks, at least one a thread if the records are worth it."""
        share = -(-len(self) // thread_count())
        limit = min(limit, max(share + share % 2, _LEAST_SHARE))
        return list(self._cuts(limit))

    def sum(self, kernel: SumKernel) -> NDArray[np.int64]:
        """Return the exact sum of the kernel's contributions.

        Its bits are the same for any division into blocks and any number of threads.
        """
        if kernel.whole:
            return reduce(np.add, (kernel(part) for part in self.dense_parts()))
        blocks = self._shares(kernel.limit)

        def part(first: int, last: int) -> NDArray[np.int64]:
            total = np.zeros(kernel.shape, dtype=np.int64)
            for block in blocks[first:last]:
                total += kernel(block.packed())
            return total

        # Each thread has its own total, so large ones are not worth several threads.
        least = 1 if math.prod(kernel.shape) <= _BLOCK_ENTRIES else len(blocks)
        parts = shared_out(len(blocks), part, least=least) or [np.zeros(kernel.shape, dtype=np.int64)]
        for more in parts[1:]:
            parts[0] += more
        return parts[0]

    def map(self, kernel: Callable[[Batch], NDArray[np.float64]]) -> NDArray[np.float64]:
        """Concatenate the outputs of ``kernel``, one number a (transformed) record."""
        blocks = self._shares(BLOCK)

        def part(first: int, last: int) -> NDArray[np.float64]:
            return np.concatenate([kernel(block.packed()) for block in blocks[first:last]])

        return np.concatenate(shared_out(len(blocks), part) or [np.zeros(0)])
