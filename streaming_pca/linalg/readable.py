"""Records as kernels read them: by the number, unchecked, from what was checked here once."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.tiles import longest_record

__all__ = ["Readable", "readable"]


class Readable(NamedTuple):
    """Records that were checked; made by :func:`readable`.

    Attributes
    ----------
    rows : (n, d) float32 or float64
        Aligned, in C order and not writable, so that payloads and arrays use the same compiled kernels.
    begins, starts : (m,) and (m + 1,) int64
        Record i has starts[i + 1] - starts[i] rows, from rows[begins[i]] on.
    longest : int
        Rows of the longest record, or 1.
    """

    rows: NDArray[np.floating]
    begins: NDArray[np.int64]
    starts: NDArray[np.int64]
    longest: int


def readable(rows: NDArray[np.floating], begins: NDArray[np.int64], starts: NDArray[np.int64]) -> Readable:
    """Check where records are; no copy of rows that are aligned, in C order and of a type that kernels read.

    Raises
    ------
    ValueError
        If a record's rows are not among those that there are.
    """
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    longest = longest_record(begins, starts, len(rows))
    if longest < 0:
        raise ValueError(f"records of other rows than the {len(rows)} that there are")
    flags = rows.flags
    view = (
        rows if flags.c_contiguous and flags.aligned else np.require(rows, requirements=["C", "A"])
    ).view()
    view.setflags(write=False)
    return Readable(view, begins, starts, longest)
