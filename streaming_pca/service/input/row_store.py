"""Growing array of rows, which batches share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

PIECE_BYTES = 2**20
"""Bytes copied at a time, few enough to stay in the CPU caches on their way to the store."""
_MAPPED_BYTES = 2**25 + 2**16
"""Smallest size of a store's memory; only the used part is resident.

Above 32 MiB glibc uses a separate mapping, which grows in place and is returned to the system. Smaller
blocks lie in a heap between other objects: a store that outgrew such a block, at 64 MiB, left a hole of
that size.
"""

Rows = NDArray[np.floating]


class RowStore:
    """Growing array of rows, in float32 as long as all rows are.

    The precision does not change any sum: kernels return the same bits for the same values
    (``tests/kernels/test_lattice.py``).

    Its memory is the most rows so far plus a 64th or a MiB (the larger), in at least 32 MiB of address
    space. It does not reserve more ahead of records, because records could otherwise make a worker request
    more memory than the machine has.

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
        """Number of rows."""

    @property
    def rows(self) -> Rows:
        """View of all rows (size, width); invalid after :meth:`append` or :meth:`clear`."""
        return self._view(self._dtype, 0, self.size)

    @property
    def row_bytes(self) -> int:
        """Bytes of one row."""
        return self._width * self._dtype.itemsize

    def append(self, rows: Rows) -> int:
        """Append a copy of rows (n, width), float32 or float64; return the first row's place."""
        dtype = np.result_type(self._dtype, rows.dtype) if self.size else rows.dtype
        first, size = self.size, self.size + len(rows)
        self._reserve(size * self._width * dtype.itemsize)
        if dtype != self._dtype:
            self._widen(dtype)
        self._view(dtype, first, size)[:] = rows
        self.size = size
        return first

    def room(self, count: int, dtype: np.dtype[Any]) -> Rows | None:
        """Return a view for ``count`` rows of a type after the last row.

        :meth:`keep` adds them to the store. None if the existing rows have another type.
        """
        if self.size and self._dtype != dtype:
            return None
        self._dtype = dtype
        self._reserve((self.size + count) * self.row_bytes)
        return self._view(dtype, self.size, self.size + count)

    def keep(self, count: int) -> int:
        """Keep the first ``count`` rows of the :meth:`room`; return the first row's place."""
        self.size += count
        return self.size - count

    def clear(self) -> None:
        """Drop all rows but keep the memory; :attr:`rows` must not be in use."""
        self.size = 0

    def _view(self, dtype: np.dtype[Any], first: int, last: int) -> Rows:
        """Return rows [first, last) as numbers of ``dtype``."""
        size = self._width * dtype.itemsize
        return self._memory[first * size : last * size].view(dtype).reshape(last - first, self._width)

    def _reserve(self, wanted: int) -> None:
        """Grow to ``wanted`` bytes, in place if possible, which avoids a second block."""
        if wanted <= self._memory.size:
            return
        wanted = max(wanted + max(wanted // 64, PIECE_BYTES), _MAPPED_BYTES)
        if not self._memory.size:
            # Not `resize`, which would write zeros.
            self._memory = np.empty(wanted, dtype=np.uint8)
            return
        try:
            self._memory.resize(wanted)
        except ValueError:
            # Another object, such as a debugger, holds a view of the memory.
            larger = np.empty(wanted, dtype=np.uint8)
            larger[: self._memory.size] = self._memory
            self._memory = larger

    def _widen(self, dtype: np.dtype[Any]) -> None:
        """Convert the rows to a larger type, last rows first.

        In this order every row is read before it is overwritten.
        """
        some = max(PIECE_BYTES // max(self._width * dtype.itemsize, 1), 1)
        for last in range(self.size, 0, -some):
            first = max(last - some, 0)
            self._view(dtype, first, last)[:] = self._view(self._dtype, first, last).copy()
        self._dtype = dtype
