"""Worst-case neighbours of the tensor estimator, for the empirical audit.

A record meets one of its mechanisms: each case has one of them.

========  =================================================================
sum       images of two candidates that are one: where rho is largest, a
          record along them or its opposite
whitened  the same, of records that the whitening makes longer than its clip
moment    the second moment that the whitening is found on: records at a right angle
========  =================================================================
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np

from streaming_pca.estimators.audit_setups import AnyEstimator, Record, case_of, made
from streaming_pca.linalg.tensors import Whitening
from streaming_pca.privacy.audit import Case, Claim
from streaming_pca.privacy.parameters import PrivacyParameters
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.records import Batch

__all__ = ["tensor_cases"]

_HUGE = 1e6
_BATCH = 8


def tensor_cases(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> list[Case]:
    """All of them."""
    privacy = PrivacyParameters(epsilon=epsilon, delta=delta)
    return [
        _images("sum", estimator_type, privacy, None),
        _images("whitened", estimator_type, privacy, Whitening(np.eye(2), np.array([1e-2, 2.0]))),
        _moment(estimator_type, privacy),
    ]


def _claim(estimator: AnyEstimator, state: Any, privacy: PrivacyParameters) -> Claim:
    multiplier = float(estimator.plan(state).parameters["sigma_over_sensitivity"])
    return Claim(privacy.epsilon, privacy.delta, 1 / multiplier)


def _images(
    name: str,
    estimator_type: type[AnyEstimator],
    privacy: PrivacyParameters,
    whitening: Whitening | None,
) -> Case:
    """A refinement of two components that are one: its mean images are half of the noisy ones."""
    options = {"batch_size": _BATCH, "clip_radius": 1.0, "whitening": whitening is not None}
    estimator: Any = made(estimator_type, 2, 2, privacy, options)
    start = estimator.init(utility_generator(0))
    along = np.eye(1, 2)
    found = replace(start.search, components=np.vstack([along, along]), found=2)
    start = replace(start, batch=1, search=found, whitening=whitening or start.whitening)
    rest: list[Record] = [np.zeros((1, 2))] * (_BATCH - 1)
    batches = [Batch.of_records([sign * _HUGE * along, *rest], 2) for sign in (-1, 1)]

    def run(second: bool) -> float:
        return float(estimator.update(start, batches[second]).search.images[:, 0].sum())

    return case_of(estimator, name, _claim(estimator, start, privacy), run)


def _moment(estimator_type: type[AnyEstimator], privacy: PrivacyParameters) -> Case:
    """The last of so many records along both axes that no eigenvalue is lost in the noise."""
    options = {"batch_size": _BATCH, "clip_radius": 1.0}
    estimator: Any = made(estimator_type, 2, 2, privacy, options)
    start = estimator.init(utility_generator(0))
    claim = _claim(estimator, start, privacy)
    x, y = _HUGE * np.eye(2)[:, None, :]
    others: list[Record] = [x, y] * math.ceil(10 + 20 / claim.mu)
    batches = [Batch.of_records([*others, last], 2) for last in (y, x)]

    def run(second: bool) -> float:
        found = estimator.update(start, batches[second]).whitening
        moment = found.unwhiten @ found.unwhiten.T
        return float(moment[0, 0] - moment[1, 1])

    return case_of(estimator, "moment", claim, run)
