"""Memory for decoded rows that batches use in turn: new memory is slow, for its pages come one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowStore"]

Rows = NDArray[np.floating]

_PIECE_BYTES = 2**20


class RowStore:
    """Rows one after the other, in one array: float32 as long as all of them are.

    Which precision that is changes no sum: the kernels' are the same bits for the same values
    (``tests/linalg/test_lattice.py``).

    It takes as much memory as its rows do, or as they took before, and a MiB or a 64th more. It makes
    room for nothing that is not there: how much may come is for records to say, and none may make a worker
    ask for more than there is.

    Parameters
    ----------
    width : int
        Numbers in a row.
    """

    def __init__(self, width: int) -> None:
        self._memory: NDArray[np.uint8] = np.empty(0, dtype=np.uint8)
        self._width = width
        self._dtype: np.dtype[Any] = np.dtype(np.float32)
        self.size = 0
        """Rows that it holds."""

    @property
    def rows(self) -> Rows:
        """What it holds (size, width), no copy: not to be read after :meth:`append` or :meth:`clear`."""
        return self._as(self._dtype, 0, self.size)

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return self._width * self._dtype.itemsize

    def append(self, rows: Rows) -> int:
        """Copy rows (n, width), float32 or float64, to the end; returns where the first one is."""
        dtype = np.result_type(self._dtype, rows.dtype) if self.size else rows.dtype
        first, size = self.size, self.size + len(rows)
        self._make_room(size * self._width * dtype.itemsize)
        if dtype != self._dtype:
            self._widen(dtype)
        self._as(dtype, first, size)[:] = rows
        self.size = size
        return first

    def clear(self) -> None:
        """Hold nothing; the memory stays. Nobody may be reading :attr:`rows`."""
        self.size = 0

    def _as(self, dtype: np.dtype[Any], first: int, last: int) -> Rows:
        """Rows of a type, where they are or shall be."""
        size = self._width * dtype.itemsize
        return self._memory[first * size : last * size].view(dtype).reshape(last - first, self._width)

    def _make_room(self, wanted: int) -> None:
        """Have so many bytes, where they are if that can be: it takes no second piece of memory then."""
        if wanted <= self._memory.size:
            return
        wanted += max(wanted // 64, _PIECE_BYTES)
        try:
            self._memory.resize(wanted)
        except ValueError:
            # Somebody looks at it, a debugger perhaps.
            larger = np.empty(wanted, dtype=np.uint8)
            larger[: self._memory.size] = self._memory
            self._memory = larger

    def _widen(self, dtype: np.dtype[Any]) -> None:
        """Make its rows those of a larger type, from the last on: none is written over before it was read."""
        some = max(_PIECE_BYTES // max(self._width * dtype.itemsize, 1), 1)
        for last in range(self.size, 0, -some):
            first = max(last - some, 0)
            self._as(dtype, first, last)[:] = self._as(self._dtype, first, last).copy()
        self._dtype = dtype
