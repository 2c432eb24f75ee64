"""Compiling the kernels of record sums before the first batch needs them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from streaming_pca.estimators.contributions import block_sum, covariance_sum, record_sizes, residual_sizes
from streaming_pca.linalg.image_sums import sum_images
from streaming_pca.linalg.matrix_sums import sum_matrix_images
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.records import Batch, RecordKind

__all__ = ["are_cached", "compile_apart", "compile_kernels"]

_DIM, _RANK = 3, 2


def compile_kernels(kind: RecordKind) -> None:
    """Compile, or load from numba's cache, what sums records of a kind; float32 ones and float64 ones.

    Some 20 seconds on a new machine, less than one after that. Kernels are for any number of
    features and any rank. Those that one estimator alone has compile when it first needs them.
    No record is read: it sums records of ones.
    """
    if kind is RecordKind.LOCAL:
        return
    preprocessing = Preprocessing(dim=_DIM, kind=kind, centering="none")
    basis = np.eye(_DIM)[:, :_RANK]
    for dtype in (np.float32, np.float64):
        ones = np.ones((_DIM if kind is RecordKind.MATRIX else 1, _DIM), dtype=dtype)
        batch = Batch.of_records([ones, ones], _DIM, kind)
        record_sizes(batch, preprocessing)
        covariance_sum(batch, preprocessing, 1.0)
        residual_sizes(batch, preprocessing, basis, basis)
        block_sum(batch, preprocessing, basis, 1.0)
        for radius in (1.0, 1e-3):
            block_sum(batch, preprocessing, basis, radius, basis)


def are_cached(kinds: Iterable[RecordKind]) -> bool:
    """Whether numba's cache has kernels of these kinds; perhaps for another processor."""
    largest: dict[RecordKind, Any] = {RecordKind.FACTOR: sum_images, RecordKind.MATRIX: sum_matrix_images}
    for kind in kinds:
        kernel = largest.get(kind)
        if kernel is None:
            continue
        function = kernel.py_func
        if not any(Path(kernel.stats.cache_path).glob(f"*.{function.__name__}-*.nbi")):
            return False
    return True


def compile_apart(kinds: Iterable[RecordKind]) -> None:
    """Fill numba's cache in a process of its own, whose memory ends with it: the compiler takes 300 MB.

    If that fails, kernels are compiled where they are needed.
    """
    command = [sys.executable, "-P", "-m", __spec__.name, *kinds]
    subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True)


if __name__ == "__main__":
    for _kind in sys.argv[1:]:
        compile_kernels(RecordKind(_kind))
