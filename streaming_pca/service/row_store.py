"""Memory for decoded rows that batches use in turn: new memory is slow, for its pages come one by one."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

__all__ = ["RowStore"]

Rows = NDArray[np.floating]


class RowStore:
    """Rows one after the other, in one array: float32 as long as all of them are.

    Which precision that is changes no sum: the kernels' are the same bits for the same values
    (``tests/linalg/test_lattice.py``).

    Parameters
    ----------
    width : int
        Numbers in a row.
    """

    def __init__(self, width: int) -> None:
        self._all: Rows = np.empty((0, width), dtype=np.float32)
        self.size = 0
        """Rows that it holds."""

    @property
    def rows(self) -> Rows:
        """What it holds (size, width), no copy: not to be read after :meth:`append` or :meth:`clear`."""
        return self._all[: self.size]

    @property
    def row_bytes(self) -> int:
        """Of one row."""
        return int(self._all.shape[1]) * self._all.itemsize

    def append(self, rows: Rows, expected: int) -> int:
        """Copy rows to the end; returns where the first one is.

        Parameters
        ----------
        rows : (n, width) float32 or float64
        expected : int
            How many rows it will come to hold, as far as one can tell: it makes room for so many. Room costs
            nothing before there is something in it, having too little of it a copy.
        """
        first, size = self.size, self.size + len(rows)
        dtype = np.result_type(self._all.dtype, rows.dtype) if first else rows.dtype
        if size > len(self._all) or dtype != self._all.dtype:
            room = len(self._all)
            if size > room:
                room = max(size, expected, room + room // 2)
            larger = np.empty((room, self._all.shape[1]), dtype=dtype)
            larger[:first] = self.rows
            self._all = larger
        self._all[first:size] = rows
        self.size = size
        return first

    def clear(self) -> None:
        """Hold nothing; the memory stays. Nobody may be reading :attr:`rows`."""
        self.size = 0
