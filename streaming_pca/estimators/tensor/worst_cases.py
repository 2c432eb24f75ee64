"""Worst cases of the private tensor estimator."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.estimators.common.neighbours import (
    HUGE,
    Record,
    Target,
    Trial,
    TrialOf,
    first_state,
    multiplier,
    neighbours,
    one_batch,
)
from streaming_pca.linalg.tensors import Whitening

_BATCH = 8  # records of a batch


def _products(target: Target, whitening: Whitening | None = None) -> Trial:
    """Refine two components that are equal: their mean products are half of the noisy ones."""
    options = {"batch_size": _BATCH, "clip_radius": 1.0, "whitening": whitening is not None}
    estimator = target.build(2, 2, options)
    start = first_state(estimator)
    along = np.eye(1, 2)
    found = replace(start.search, components=np.vstack([along, along]), found=2)
    start = replace(start, batch=1, search=found, whitening=whitening or start.whitening)
    batches = neighbours([-HUGE * along, HUGE * along], [np.zeros((1, 2))] * (_BATCH - 1), 2)
    claim = target.claim(multiplier(estimator, start))
    return claim, one_batch(estimator, start, batches, lambda state: state.search.products[:, 0].sum())


def _moment(target: Target) -> Trial:
    """Add a record to many along both axes, whose eigenvalues stand out from the noise."""
    estimator = target.build(2, 2, {"batch_size": _BATCH, "clip_radius": 1.0})
    start = first_state(estimator)
    claim = target.claim(multiplier(estimator, start))
    x, y = HUGE * np.eye(2)[:, None, :]
    others: list[Record] = [x, y] * math.ceil(10 + 20 / claim.mu)
    batches = [ArrayBatch.of_records([*others, last], 2) for last in (y, x)]

    def score(after: Any) -> float:
        moment = after.whitening.unwhiten @ after.whitening.unwhiten.T
        return float(moment[0, 0] - moment[1, 1])

    return claim, one_batch(estimator, start, batches, score)


TENSOR_CASES: dict[str, TrialOf] = {
    "sum": _products,
    "whitened": partial(_products, whitening=Whitening(np.eye(2), np.array([1e-2, 2.0]))),
    "moment": _moment,
}
