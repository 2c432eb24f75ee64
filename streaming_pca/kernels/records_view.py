"""View of records whose places in memory were checked, for unchecked reading in kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit


class RecordsView(NamedTuple):
    """Checked records, made by :func:`records_view`.

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


def records_view(
    rows: NDArray[np.floating], begins: NDArray[np.int64], starts: NDArray[np.int64]
) -> RecordsView:
    """Check that records lie within ``rows``; copy rows only where layout requires it.

    Raises
    ------
    ValueError
        If a record's rows lie outside ``rows``.
    """
    if rows.dtype not in (np.float32, np.float64):
        rows = rows.astype(np.float64)
    longest = _longest_record(begins, starts, len(rows))
    if longest < 0:
        raise ValueError(f"records must lie within the {len(rows)} rows")
    flags = rows.flags
    view = (
        rows if flags.c_contiguous and flags.aligned else np.require(rows, requirements=["C", "A"])
    ).view()
    view.setflags(write=False)
    return RecordsView(view, begins, starts, longest)


@njit(cache=True, nogil=True)
def _longest_record(begins: NDArray[np.int64], starts: NDArray[np.int64], rows: int) -> int:
    """Return rows of the longest record, at least 1; -1 where a record exceeds ``rows``."""
    if starts.size != begins.size + 1:
        return -1
    longest = 1
    for i in range(begins.size):
        length = starts[i + 1] - starts[i]
        if length < 0 or begins[i] < 0 or begins[i] > rows - length:
            return -1
        longest = max(longest, length)
    return longest
