"""Threads draw numbers from one counter, each number once."""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from streaming_pca.kernels import njit
from streaming_pca.kernels.block.sums import new_counter, next_chunk

COUNT, THREADS = 200_000, 4


@njit(nogil=True)
def _take_all(counter: NDArray[np.int64], share: int, most: int, taken: NDArray[np.int64]) -> int:
    n = 0
    first = next_chunk(counter, share)
    while first < most:
        taken[n] = first
        n += 1
        first = next_chunk(counter, share)
    return n


def test_numbers_are_taken_from_0_on() -> None:
    counter, taken = new_counter(), np.zeros(10, dtype=np.int64)
    assert _take_all(counter, 3, 10, taken) == 4
    assert taken[:4].tolist() == [0, 3, 6, 9]
    assert _take_all(counter, 3, 10, taken) == 0


def test_no_number_is_taken_twice_or_left() -> None:
    _take_all(new_counter(), 1, 1, np.zeros(1, dtype=np.int64))
    for share in (1, 7):
        counter, found = new_counter(), []
        meeting = threading.Barrier(THREADS)

        def work(counter: NDArray[np.int64] = counter, share: int = share) -> None:
            taken = np.zeros(COUNT, dtype=np.int64)
            meeting.wait(120)  # noqa: B023
            found.append(taken[: _take_all(counter, share, COUNT, taken)])  # noqa: B023

        workers = [threading.Thread(target=work) for _ in range(THREADS)]
        for w in workers:
            w.start()
        for w in workers:
            w.join()
        assert np.array_equal(np.sort(np.concatenate(found)), np.arange(0, COUNT, share))
