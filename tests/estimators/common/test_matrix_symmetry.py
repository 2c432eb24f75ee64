"""Matrices that are only symmetric to a tolerance cannot evade the clip."""

from __future__ import annotations

import numpy as np

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind, is_symmetric
from streaming_pca.estimators.common.clipped_sums import covariance_sum
from streaming_pca.kernels.lattice import MATRIX_RADIUS


def test_the_upper_triangle_alone_decides_what_is_clipped() -> None:
    d = 60
    a = np.triu(np.full((d, d), 1e-6), 1)
    a[0, 0] = 1.0
    assert is_symmetric(a)
    batch = ArrayBatch(a, np.array([0, d], dtype=np.int64), RecordKind.MATRIX)
    preprocessing = Preprocessing(dim=d, kind=RecordKind.MATRIX, centering="none")
    total = covariance_sum(batch, preprocessing, radius=1e-3).total
    assert np.array_equal(total, total.T)
    assert total[0, 1] != 0
    # The noise of gaussian_on_symmetric is calibrated to this.
    paid = sum(int(v) ** 2 for v in np.diagonal(total)) + 2 * sum(
        int(v) ** 2 for v in total[np.triu_indices(d, 1)]
    )
    assert paid <= MATRIX_RADIUS**2
