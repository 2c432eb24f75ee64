"""Worst cases of the private versions of Oja's algorithm."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Outcome
from streaming_pca.estimators.common.neighbours import (
    AnyEstimator,
    Claim,
    Matrix,
    P,
    Q,
    Record,
    Target,
    Trial,
    TrialOf,
    along_p,
    at_q,
    first_state,
    multiplier,
    neighbours,
    one_batch,
    opposite,
    zero,
)
from streaming_pca.estimators.common.worst_sums import Setup, basis_worst, sum_cases

_RATE = 1e-2  # learning rate of Oja's steps; small, so that the sum can be read back from the states


def oja_answer(estimator: AnyEstimator, before: Any, after: Any, transformed: int) -> Matrix:
    """Return the noisy sum M m of an Oja step.

    The state holds B = orth(Q + eta M) and the inner B^T Q (Q^T M) Q^T B.
    Q + eta M = B T, so Q^T B T = I + eta Q^T M.
    """
    q, b = before.basis, after.basis
    turn = q.T @ b
    inner = np.linalg.solve(turn.T, np.linalg.solve(turn.T, after.inner).T)
    eta = estimator.options.rate(after.batch)
    mean = (b @ np.linalg.solve(turn, np.eye(estimator.k) + eta * inner) - q) / eta
    return np.asarray(mean * transformed)


PRIVATE_OJA_CASES = sum_cases(
    Setup(
        dim=3,
        k=2,
        options=lambda count: {"batch_size": count, "clip_radius": 1.0, "learning_rate": _RATE},
        worst=lambda state, kind: basis_worst(state.basis, kind),
        contribution=lambda state, matrix: matrix @ state.basis,
        answer=oja_answer,
        sensitivity={RecordKind.FACTOR: 2.0, RecordKind.MATRIX: 2.0},
    )
)

# Estimators with a private range, a private centre and a clipped mean.

_RANGE_OPTIONS = {"learning_rate": 1e-2, "range_constant": 8.0}

Answer = Callable[[AnyEstimator, Any, Any, int], Matrix]
"""``answer(estimator, before, after, count)``: the noisy sum over ``count`` records of a batch."""


def _component_answer(estimator: Any, before: Any, after: Any, count: int) -> Matrix:
    """Return deflation's first noisy sum: c b = w + eta g, and its value is w^T g."""
    w, b, value = before.basis, after.basis, float(after.values[0])
    eta = estimator.options.rate(1)
    c = (1 + eta * value) / float(np.sum(w * b))
    return np.asarray((c * b - w) / eta * count)


def _range_records(sizes: list[float], kind: RecordKind) -> list[Record]:
    """Return a pair a block: the null record, and one with ``size`` p in its product of q."""
    return [record for size in sizes for record in (None, along_p(size, kind))]


def _adaptive_sum(
    answer: Answer, target: Target, kind: RecordKind = RecordKind.FACTOR, **options: Any
) -> Trial:
    """Put products of q in opposite corners of the box; all other records of the half are zero."""
    estimator: Any = target.build(2, 1, _RANGE_OPTIONS | options, kind=kind)
    start = at_q(estimator)
    blocks = estimator._range_blocks(1)
    first, count = _range_records([1.0] * blocks, kind), 2 * blocks
    rest: list[Record] = [zero(2, kind)] * (count - 1)
    batches = [ArrayBatch.of_records([*first, record, *rest], 2, kind) for record in opposite(kind)]

    def score(after: Any) -> float:
        if after.outcome != Outcome.LEARNT:
            return 0.0
        radius = estimator._radius(after.scale, len(batches[0]), 1)
        found = answer(estimator, start, after, count)
        return float(np.sum(found * P) / float(radius))

    return target.claim(multiplier(estimator, start)), one_batch(estimator, start, batches, score)


def _range(target: Target) -> Trial:
    """Put half of the blocks in one bin, half in another: a record moves one of them."""
    estimator: Any = target.build(2, 1, _RANGE_OPTIONS)
    start = at_q(estimator)
    blocks = estimator._range_blocks(1)
    batches = []
    for in_first in (blocks // 2 + 1, blocks // 2):
        # The record that differs is in the same place on both sides.
        records = _range_records([1.1] * in_first + [2.2] * (blocks - in_first), RecordKind.FACTOR)
        batches.append(ArrayBatch.of_records([*records, *[None] * len(records)], 2))
    # No mu: an event of probability delta may reveal everything.
    claim = Claim(target.epsilon, target.delta, math.inf)
    return claim, one_batch(
        estimator, start, batches, lambda s: 0.0 if s.scale is None else math.log(s.scale)
    )


def _adaptive_cases(answer: Answer) -> dict[str, TrialOf]:
    return {
        "sum": partial(_adaptive_sum, answer),
        "matrix": partial(_adaptive_sum, answer, kind=RecordKind.MATRIX),
        "range": _range,
    }


BLOCK_RANGE_CASES = _adaptive_cases(oja_answer)
COMPONENT_RANGE_CASES = _adaptive_cases(_component_answer)


def _message(target: Target, count: int = 1, kind: RecordKind = RecordKind.FACTOR) -> Trial:
    """Send messages of q in opposite directions, seen by the turn of the iterate; all others are zero.

    One record alone has its own noise. Among others it has theirs too, in an order that is secret.
    """
    options = {
        "clip_radius": 1.0,
        "batch_size": count,
        "learning_rate": 1e-3,
        "offset": 0.0 if count == 1 else 1e3,
    }
    estimator = target.build(2, 1, options, kind=kind)
    start = replace(first_state(estimator), basis=Q)
    batches = neighbours(opposite(kind), [zero(2, kind)] * (count - 1), 2, kind)
    # A sum of messages has the noise of all of them.
    claim = target.claim(multiplier(estimator, start) * math.sqrt(count))
    return claim, one_batch(
        estimator, start, batches, lambda state: np.sum(state.basis * P) / np.sum(state.basis * Q)
    )


DP_OJAS_CASES: dict[str, TrialOf] = {
    "sum": _message,
    "matrix": partial(_message, kind=RecordKind.MATRIX),
    "order": partial(_message, count=8),
}
