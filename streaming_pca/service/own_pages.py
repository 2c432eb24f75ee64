"""Arrays that give their memory back to the system when they are freed."""

from __future__ import annotations

import mmap
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["on_own_pages"]

Number = TypeVar("Number", bound=np.generic)

_LEAST_BYTES = 2**20


def on_own_pages(array: NDArray[Number]) -> NDArray[Number]:
    """A copy on pages of its own, if it is large; else the array itself.

    What a batch is put together from would otherwise stay with the C library's allocator, which
    takes arrays of this size from heaps once it has seen some freed: a process that holds one
    batch would be as large as one that holds two.
    """
    if array.nbytes < _LEAST_BYTES:
        return array
    pages = np.frombuffer(mmap.mmap(-1, array.nbytes), dtype=array.dtype).reshape(array.shape)
    pages[:] = array
    return pages
