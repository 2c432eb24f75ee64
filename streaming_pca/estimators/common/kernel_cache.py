"""Compilation of the kernels of record sums before the first batch needs them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.clipped_sums import (
    block_residual_norms,
    block_sum,
    covariance_sum,
    record_norms,
)
from streaming_pca.kernels.block.matrix_sums import sum_matrix_products
from streaming_pca.kernels.block.sums import sum_products

__all__ = ["COMPILING", "are_cached", "compile_apart", "compile_kernels"]

COMPILING = "compiling kernels (first run)"
"""Words for a display."""

_DIM, _RANK = 3, 2
_DTYPES = (np.float32, np.float64)


def compile_kernels(kind: RecordKind) -> None:
    """Compile the kernels that sum records of a kind, or load them from numba's cache.

    It takes half a minute of one core on a new machine, and less than one second from the cache. The
    kernels serve any number of features, any rank, and float32 and float64 records. Kernels of
    single estimators compile at their first use. It sums records of ones, no record of a stream.
    """
    if kind is RecordKind.LOCAL:
        return
    preprocessing = Preprocessing(dim=_DIM, kind=kind, centering="none")
    basis = np.eye(_DIM)[:, :_RANK]
    for dtype in _DTYPES:
        ones = np.ones((_DIM if kind is RecordKind.MATRIX else 1, _DIM), dtype=dtype)
        batch = ArrayBatch.of_records([ones, ones], _DIM, kind)
        record_norms(batch, preprocessing)
        covariance_sum(batch, preprocessing, 1.0)
        block_residual_norms(batch, preprocessing, basis, basis)
        block_sum(batch, preprocessing, basis, 1.0)
        for radius in (1.0, 1e-3):
            block_sum(batch, preprocessing, basis, radius, basis)


def are_cached(kinds: Iterable[RecordKind]) -> bool:
    """Return whether numba's cache has all kernels of these kinds for this processor."""
    last: dict[RecordKind, Any] = {RecordKind.FACTOR: sum_products, RecordKind.MATRIX: sum_matrix_products}
    for kernel in (last[kind] for kind in kinds if kind in last):
        processor, files = kernel.targetctx.codegen().magic_tuple(), kernel._cache._cache_file
        # numba's own key of a cached kernel: (signature, processor and its instructions, code). Its index
        # comes first: a full disk may have had no room for the kernel.
        names = [name for key, name in files._load_index().items() if key[1] == processor]
        found = [name for name in names if Path(files._data_path(name)).exists()]
        # One for each dtype: fewer where a process ended while it compiled.
        if len(found) < len(_DTYPES):
            return False
    return True


def compile_apart(kinds: Iterable[RecordKind]) -> subprocess.Popen[bytes]:
    """Begin to fill numba's cache in a separate process.

    Its end frees the compiler's 300 MB. Kill it to stop at once: a thread that compiles cannot be
    stopped. Kernels that it leaves out compile at their first use.
    """
    command = [sys.executable, "-P", "-m", __spec__.name, *kinds]
    silent = subprocess.DEVNULL
    # Without passwords and tokens: nothing there needs one, and it does not protect its memory.
    environment = {name: v for name, v in os.environ.items() if not name.upper().startswith("STREAMING_PCA_")}
    # A terminal's Ctrl-C is for the caller, who kills it.
    return subprocess.Popen(  # nosec B603  # this Python, and our module
        command, stdin=silent, stdout=silent, stderr=silent, env=environment, start_new_session=True
    )


if __name__ == "__main__":
    for _kind in sys.argv[1:]:
        compile_kernels(RecordKind(_kind))
