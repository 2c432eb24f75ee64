"""Compilation of the kernels of record sums before the first batch needs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Batch, RecordKind
from streaming_pca.estimators.common.clipped_sums import (
    block_residual_norms,
    block_sum,
    covariance_sum,
    record_norms,
)
from streaming_pca.kernels.block.matrix_sums import sum_matrix_products
from streaming_pca.kernels.block.sums import sum_products

__all__ = ["are_cached", "compile_apart", "compile_kernels"]

_DIM, _RANK = 3, 2


def compile_kernels(kind: RecordKind) -> None:
    """Compile the kernels that sum records of a kind, or load them from numba's cache.

    It takes some 20 seconds on a new machine, and less than one second from the cache. The
    kernels serve any number of features, any rank, and float32 and float64 records. Kernels of
    single estimators compile at their first use. It sums records of ones, no record of a stream.
    """
    if kind is RecordKind.LOCAL:
        return
    preprocessing = Preprocessing(dim=_DIM, kind=kind, centering="none")
    basis = np.eye(_DIM)[:, :_RANK]
    for dtype in (np.float32, np.float64):
        ones = np.ones((_DIM if kind is RecordKind.MATRIX else 1, _DIM), dtype=dtype)
        batch = Batch.of_records([ones, ones], _DIM, kind)
        record_norms(batch, preprocessing)
        covariance_sum(batch, preprocessing, 1.0)
        block_residual_norms(batch, preprocessing, basis, basis)
        block_sum(batch, preprocessing, basis, 1.0)
        for radius in (1.0, 1e-3):
            block_sum(batch, preprocessing, basis, radius, basis)


def are_cached(kinds: Iterable[RecordKind]) -> bool:
    """Return whether numba's cache has kernels of these kinds, perhaps for another processor."""
    largest: dict[RecordKind, Any] = {RecordKind.FACTOR: sum_products, RecordKind.MATRIX: sum_matrix_products}
    for kind in kinds:
        kernel = largest.get(kind)
        if kernel is None:
            continue
        function = kernel.py_func
        if not any(Path(kernel.stats.cache_path).glob(f"*.{function.__name__}-*.nbi")):
            return False
    return True


def compile_apart(kinds: Iterable[RecordKind]) -> None:
    """Fill numba's cache in a separate process, whose end frees the compiler's 300 MB.

    If that fails, kernels compile at their first use.
    """
    command = [sys.executable, "-P", "-m", __spec__.name, *kinds]
    subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True)


if __name__ == "__main__":
    for _kind in sys.argv[1:]:
        compile_kernels(RecordKind(_kind))
