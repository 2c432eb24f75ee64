"""Covariance sums in compiled code use BLAS without the interpreter, in blocks exact in float64."""

from __future__ import annotations

import sys
import threading
import time

import numpy as np
import pytest

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.estimators.common.clipped_sums import covariance_sum
from streaming_pca.kernels.blas import add_gram, dsyrk_address
from streaming_pca.kernels.lattice import BLOCK
from tests.threads import limited_threads


@pytest.mark.parametrize(("n", "d"), [(0, 3), (1, 1), (5, 4), (1000, 17), (64, 257)])
def test_a_gram_matrix_is_added_below_the_diagonal_alone(n: int, d: int) -> None:
    rng = np.random.default_rng(n + d)
    rows = np.rint(rng.standard_normal((n + 3, d)) * 2**18)
    total = np.rint(rng.standard_normal((d, d)) * 2**40)
    before, exact = total.copy(), rows[:n].astype(np.int64).T @ rows[:n].astype(np.int64)
    add_gram(dsyrk_address(), rows, n, total)
    assert np.array_equal(np.tril(total), np.tril(before + exact))
    assert np.array_equal(np.triu(total, 1), np.triu(before, 1))


@pytest.mark.parametrize("centering", ["none", "pairs"])
def test_more_records_than_float64_holds_are_exact(centering: str) -> None:
    """Every record has norm R: one block more in float64 would be beyond 2**53."""
    m = 3 * BLOCK + 6
    rng = np.random.default_rng(5)
    x = rng.standard_normal((m, 3))
    x[::2] = [1.0, 0.0, 0.0]
    p = Preprocessing(dim=3, centering=centering)
    whole = covariance_sum(ArrayBatch.of_vectors(x), p, 1e-3)
    parts = [
        covariance_sum(ArrayBatch.of_vectors(part), p, 1e-3) for part in np.split(x, [2000, 9000, 20000])
    ]
    assert np.array_equal(whole.total, sum(part.total for part in parts))
    assert whole.clipped == sum(part.clipped for part in parts) > 0


def test_a_sum_does_not_wait_for_the_interpreter() -> None:
    """The other thread never yields: 100 waits for the lock would take 100 switch intervals."""
    batch = ArrayBatch.of_vectors(np.random.default_rng(0).standard_normal((100_000, 8)))
    p = Preprocessing(dim=8, centering="none")
    covariance_sum(batch, p, 1.0)
    stopping, interval = threading.Event(), sys.getswitchinterval()

    def busy() -> None:
        while not stopping.is_set():
            sum(range(1000))

    other = threading.Thread(target=busy)
    other.start()
    try:
        sys.setswitchinterval(0.5)
        begun = time.perf_counter()
        with limited_threads(1):
            covariance_sum(batch, p, 1.0)
        taken = time.perf_counter() - begun
    finally:
        stopping.set()
        sys.setswitchinterval(interval)
        other.join()
    # 98 blocks: one wait each would be 49 s.
    assert taken < 30
