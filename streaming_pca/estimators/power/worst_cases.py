"""Worst cases of the power methods."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.neighbours import (
    HUGE,
    Claim,
    P,
    Q,
    Target,
    Trial,
    TrialOf,
    at_q,
    first_state,
    mu_of_pure,
    multiplier,
    neighbours,
    one_batch,
    opposite,
    zero,
)

_BATCH = 8  # records of a batch of noisy power

# Adaptive power, of one round.

_ONE_ROUND = {"clip_radius": 1.0, "rounds": 1, "octaves": 1}


def _power_sum(target: Target, kind: RecordKind = RecordKind.FACTOR) -> Trial:
    """Put all records above the bound, so that no threshold fires; the worst two are scaled down to it."""
    estimator: Any = target.build(2, 1, _ONE_ROUND, kind=kind)
    start = at_q(estimator)
    count: int = 2 * estimator._slack
    other = HUGE * Q @ Q.T if kind is RecordKind.MATRIX else HUGE * Q.T
    batches = neighbours(opposite(kind), [other] * (count - 1), 2, kind)

    def score(after: Any) -> float:
        if after.scale != 1.0:
            return 0.0
        mean = after.basis * float(after.values[0]) / float(np.sum(start.basis * after.basis))
        return float(np.sum(mean * P)) * count

    return target.claim(multiplier(estimator, start)), one_batch(estimator, start, batches, score)


def _power_search(target: Target) -> Trial:
    """Put a record above half of the bound, or below; the others above are as many as the search allows."""
    estimator: Any = target.build(2, 1, _ONE_ROUND)
    start = at_q(estimator)
    count = 2 * estimator._slack
    batches = []
    for above in (estimator._slack, estimator._slack + 1):
        sizes = [0.9] * above + [0.01] * (count - above)
        batches.append(ArrayBatch.of_vectors(np.sqrt(sizes)[:, None] * Q.T))
    epsilon = multiplier(estimator, start, "search_epsilon")
    claim = Claim(epsilon, 0.0, mu_of_pure(epsilon))
    return claim, one_batch(estimator, start, batches, lambda state: state.scale)


# Noisy power: one pass, so that one sum meets the noise.


def _pass(target: Target, kind: RecordKind = RecordKind.FACTOR) -> Trial:
    """Send a record of the first or the second basis vector, or opposite matrices; all others are zero.

    Products of two such factors are sqrt(2) apart, of matrices 2. The claim scales its mu to that.
    """
    estimator = target.build(3, 2, {"batch_size": _BATCH, "clip_l2": 1.0, "iterations": 1}, kind=kind)
    start = first_state(estimator)
    q, r = start.start[:, :1], start.start[:, 1:]
    worst, apart = ([q.T, r.T], math.sqrt(2)) if kind is RecordKind.FACTOR else ([q @ q.T, -q @ q.T], 2.0)
    batches = neighbours([HUGE * x for x in worst], [zero(3, kind)] * (_BATCH - 1), 3, kind)
    products = [(x.T @ x if kind is RecordKind.FACTOR else x) @ start.start for x in worst]
    claim = Claim(target.epsilon, target.delta, apart / 2 / multiplier(estimator, start))
    return claim, one_batch(
        estimator, start, batches, lambda state: np.sum(state.product * (products[1] - products[0]))
    )


ADAPTIVE_POWER_CASES: dict[str, TrialOf] = {
    "sum": _power_sum,
    "matrix": partial(_power_sum, kind=RecordKind.MATRIX),
    "search": _power_search,
}
NOISY_POWER_CASES: dict[str, TrialOf] = {"sum": _pass, "matrix": partial(_pass, kind=RecordKind.MATRIX)}
