"""Kernels in several threads share out records among themselves: each takes the next ones from one counter.

The interpreter is not asked, whose lock a thread would have to wait for; and one that wakes late
finds less to do, where shares that were dealt before would all wait for it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numpy.typing import NDArray

from streaming_pca.linalg.vectors import data_of, intrinsic

__all__ = ["new_counter", "take"]


def new_counter() -> NDArray[np.int64]:
    """Where nothing was taken yet."""
    return np.zeros(1, dtype=np.int64)


@intrinsic
def take(typing_context: Any, counter: Any, count: Any) -> Any:
    """``take(counter, count)``: the first of ``count`` numbers that no other call gets, from 0 on."""

    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        address = data_of(context, builder, signature, args, 0)
        # Of the numbers alone: what is read and written by them is ordered by whoever waits for the threads.
        return builder.atomic_rmw("add", address, args[1], "monotonic")

    return types.int64(counter, types.int64), generate
