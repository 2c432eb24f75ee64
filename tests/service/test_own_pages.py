"""Chunks of batches go back to the system."""

from __future__ import annotations

import numpy as np
import psutil

from streaming_pca.service.own_pages import on_own_pages


def test_a_large_array_is_copied_to_pages_that_go_when_it_goes() -> None:
    process = psutil.Process()
    x = np.random.default_rng(0).standard_normal((2**12, 2**10))
    arrays = [on_own_pages(x) for _ in range(8)]
    for array in arrays:
        assert np.array_equal(array, x)
        assert (array.dtype, array.shape) == (x.dtype, x.shape)
        assert not np.shares_memory(array, x)
    part = arrays[0][5:7]
    before = process.memory_info().rss
    del arrays, array
    # The first is still there, for a part of it is.
    assert before - process.memory_info().rss > 6.9 * x.nbytes
    assert np.array_equal(part, x[5:7])


def test_a_small_array_and_one_without_rows_stay_where_they_are() -> None:
    for x in (np.zeros((0, 5), np.float32), np.ones((100, 5), np.float32)):
        assert on_own_pages(x) is x
