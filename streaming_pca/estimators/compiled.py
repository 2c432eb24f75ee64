"""Compiling the kernels of record sums before the first batch needs them."""

from __future__ import annotations

import numpy as np

from streaming_pca.estimators.contributions import block_sum, covariance_sum, record_sizes, residual_sizes
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.records import Batch, RecordKind

__all__ = ["compile_kernels"]

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
