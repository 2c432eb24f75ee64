"""Worst cases of the block route."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.clipped_batches import BatchCosts
from streaming_pca.estimators.common.neighbours import AnyEstimator, Matrix
from streaming_pca.estimators.common.worst_sums import Setup, basis_worst


def _block_answer(estimator: AnyEstimator, before: Any, after: Any, transformed: int) -> Matrix:
    """Return the noisy sum about the centre C = ``before.block.product``, less the sum of zeros.

    It is found from the estimate S before it was carried to the new basis.

    Without a share for the total variance the step is Q' T = S, and with Q^T S
    symmetric the carried estimate Y = S Q^T Q' + Q S^T Q' - Q Q^T S Q^T Q' has
    Q^T Y = S^T Q' = T^T. S moved from C by a gain that follows from the variances.
    """
    old, new = before.block, after.block
    estimate = new.basis @ (old.basis.T @ new.product).T
    noise = BatchCosts(estimator.privacy).multiplier * 2 / transformed
    gain = 1.0
    if math.isfinite(old.variance):
        gain = old.variance / (old.variance + noise**2 + 1 / (old.basis.size * transformed))
    of_zero = -old.product / max(1.0, float(np.linalg.norm(old.product)))
    return np.asarray(((estimate - old.product) / gain - of_zero) * transformed)


BLOCK = Setup(
    dim=3,
    k=1,
    options=lambda count: {"first_batch": count, "max_batch": count, "clip_radius": 1.0},
    worst=lambda state, kind: basis_worst(state.block.basis, kind),
    contribution=lambda state, matrix: np.asarray(matrix @ state.block.basis - state.block.product),
    answer=_block_answer,
    sensitivity={RecordKind.FACTOR: 2.0, RecordKind.MATRIX: 2.0},
)
