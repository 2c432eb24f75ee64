"""Records scaled into two public balls: by Euclidean norm, and by sum of coordinates.

[DunglerSanyal2026, appendix F] calls this clipping by "the square root of the trace and the trace of the
square root of the diagonal". A record's matrix A = F^T F is scaled by s^2, its rows F by s,

    s = min(1, beta / sqrt(trace A), alpha / sum_j sqrt(A_jj)):

for one row x the two numbers are |x|_2 and |x|_1. An indefinite matrix has no
square root on its diagonal; its Frobenius norm is clipped to beta^2.

The scale is a function of its record alone, in a fixed order. It serves utility only: no sensitivity depends
on the floats here, because the sum that the records enter clips them again, in integers.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch, BlockSum
from streaming_pca.data.preprocessing import Preprocessing, transformed
from streaming_pca.data.records import Block, RecordKind
from streaming_pca.kernels import njit
from streaming_pca.kernels.rounding import COUNTED_AS_CLIPPED, NO_EXPONENT, exponent, scale_down

Floats = NDArray[np.float64]


@njit(cache=True, nogil=True)
def scale_records(rows: Floats, starts: NDArray[np.int64], size: float, spread: float, out: Floats) -> int:
    """Scale each record within a Frobenius norm and a sum of column norms.

    ``size`` bounds the Frobenius norm of a record's rows ``rows[starts[i]:starts[i + 1]]``, ``spread`` the
    sum over columns of their Euclidean norms; it may be inf. In ``out`` a record within both bounds keeps its
    bits; a record with NaN or inf becomes 0. Returns the number of records that were made smaller by more
    than rounding would.
    """
    d = rows.shape[1]
    clipped = 0
    for i in range(starts.shape[0] - 1):
        a, b = starts[i], starts[i + 1]
        e = exponent(rows[a:b])
        if e == NO_EXPONENT:
            out[a:b] = 0.0
            continue
        # In powers of two of the largest entry: no square overflows.
        norm = math.sqrt(scale_down(rows[a:b], e, out[a:b]))
        if not norm < math.inf:
            out[a:b] = 0.0
            continue
        t = size / norm
        if spread < math.inf:
            total = 0.0
            for j in range(d):
                square = 0.0
                for r in range(a, b):
                    square += out[r, j] * out[r, j]
                total += math.sqrt(square)
            t = min(t, spread / total)
        whole = math.ldexp(1.0, e)
        if whole > t * COUNTED_AS_CLIPPED:
            clipped += 1
        for r in range(a, b):
            for j in range(d):
                out[r, j] = rows[r, j] if whole <= t else out[r, j] * t
    return clipped


class BoundedRecords(Preprocessing):
    """Preprocessing that scales records into both balls, as its last step."""

    clip_l2: float
    """beta, in units of the records (of the root of a matrix' norm)."""
    clip_l1: float | None = None
    """alpha, in the same units; None for no such bound."""

    def apply(self, batch: Block) -> Block:
        block = super().apply(batch)
        rows = np.ascontiguousarray(block.rows, dtype=np.float64)
        out = np.empty_like(rows)
        scale_records(rows, block.starts, *self._bounds, out)
        return Block(out, block.starts, block.kind)

    def public_map(self) -> None:
        """Return None: the scale of a record depends on its norms."""

    @classmethod
    def from_preprocessing(
        cls, preprocessing: Preprocessing, clip_l2: float, clip_l1: float | None
    ) -> BoundedRecords:
        return cls(**dict(preprocessing), clip_l2=clip_l2, clip_l1=clip_l1)

    @property
    def _bounds(self) -> tuple[float, float]:
        size = self.clip_l2**2 if self.kind is RecordKind.MATRIX else self.clip_l2
        return size, math.inf if self.clip_l1 is None else self.clip_l1

    def clipped(self, batch: Batch, unbounded: Preprocessing) -> int:
        """Count the records of ``unbounded`` that are scaled down: exact, secret as a record."""
        return int(batch.sum(BlockSum(partial(_scaled_count, unbounded, *self._bounds), (1,)))[0])


def _scaled_count(unbounded: Preprocessing, size: float, spread: float, block: Block) -> NDArray[np.int64]:
    """Count the records that are scaled down, (1,)."""
    starts, rows = transformed(unbounded, block)
    rows = np.ascontiguousarray(rows)
    return np.array([scale_records(rows, starts, size, spread, np.empty_like(rows))], dtype=np.int64)
