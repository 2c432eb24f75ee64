"""Worst-case neighbours of estimators whose records meet several mechanisms.

The cost of such an estimator is a composition, and no one pair of
neighbours shows all of it. Each case has records that differ in one mechanism
alone, and claims the cost of that mechanism: a noise of the wrong scale
or a clip that is not applied shows there, while a case of the whole would
let the others hide it.

=========  ==================================================================
sum        the sum's noise: a record in one corner of the clip, or the opposite
matrix     the same with ``record-kind: matrix``
order      a message among those of other records, in a secret order
projector  the released subspace: a record that turns it one way, or the other
search     a record above or below the one threshold that AboveThreshold compares with
range      PrivRange: a record that moves one block from one full bin to another
whitened   "sum" in whitened coordinates
moment     the second moment that a tensor estimator whitens by
=========  ==================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from streaming_pca.audit.bounds import Claim, mu_of_pure
from streaming_pca.audit.neighbours import (
    HUGE,
    AnyEstimator,
    Matrix,
    Record,
    Target,
    Trial,
    TrialOf,
    first_state,
    neighbours,
    one_batch,
)
from streaming_pca.audit.sums import oja_answer
from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Outcome
from streaming_pca.linalg.tensors import Whitening

_BATCH = 8
"""Records of a batch."""

# Most cases have vectors of two features: the basis q is on one diagonal, p on the other.
_Q, _P = np.array([[1.0], [1.0]]) / math.sqrt(2), np.array([[1.0], [-1.0]]) / math.sqrt(2)


def _at_q(estimator: AnyEstimator) -> Any:
    """Return the state before any step, with basis q; a start by another estimator has ended."""
    start = first_state(estimator)
    ended = {"warm": None} if hasattr(start, "warm") else {}
    return replace(start, basis=_Q, **ended)


def _along_p(size: float, kind: RecordKind) -> Matrix:
    """Return a record whose product of q has the part ``size`` p."""
    if kind is RecordKind.MATRIX:
        return size * (_P @ _Q.T + _Q @ _P.T)
    return math.sqrt(size) * (_Q + _P).T


def _opposite(kind: RecordKind) -> list[Record]:
    """Return two records whose products of q are huge, and along -p and p."""
    if kind is RecordKind.MATRIX:
        return [_along_p(sign * HUGE, kind) for sign in (-1, 1)]
    return [HUGE * (1e-3 * _Q + sign * _P).T for sign in (-1, 1)]


def _zero(dim: int, kind: RecordKind) -> Matrix:
    return np.zeros((dim, dim) if kind is RecordKind.MATRIX else (1, dim))


def _multiplier(estimator: AnyEstimator, start: Any, name: str = "sigma_over_sensitivity") -> float:
    return float(estimator.plan(start).parameters[name])


# Estimators with a private range, a private centre and a clipped mean.

_RANGE_OPTIONS = {"learning_rate": 1e-2, "range_constant": 8.0}

Answer = Callable[[AnyEstimator, Any, Any, int, int], Matrix]
"""``answer(estimator, before, after, records, count)``: the noisy sum over ``count`` records of a batch."""


def _block_answer(estimator: AnyEstimator, before: Any, after: Any, records: int, count: int) -> Matrix:
    return oja_answer(estimator, before, after, count)


def _component_answer(estimator: Any, before: Any, after: Any, records: int, count: int) -> Matrix:
    """Return deflation's first noisy sum: c b = w + eta g, and its value is w^T g."""
    w, b, value = before.basis, after.basis, float(after.values[0])
    eta = estimator.options.rate(1)
    c = (1 + eta * value) / float(np.sum(w * b))
    return np.asarray((c * b - w) / eta * count)


def _range_records(sizes: list[float], kind: RecordKind) -> list[Record]:
    """Return a pair a block: the null record, and one with ``size`` p in its product of q."""
    return [record for size in sizes for record in (None, _along_p(size, kind))]


def _adaptive_sum(
    answer: Answer, target: Target, kind: RecordKind = RecordKind.FACTOR, **options: Any
) -> Trial:
    """Put products of q in opposite corners of the box; all other records of the half are zero."""
    estimator: Any = target.build(2, 1, _RANGE_OPTIONS | options, kind=kind)
    start = _at_q(estimator)
    blocks = estimator._range_blocks(1)
    first, count = _range_records([1.0] * blocks, kind), 2 * blocks
    rest: list[Record] = [_zero(2, kind)] * (count - 1)
    batches = [ArrayBatch.of_records([*first, record, *rest], 2, kind) for record in _opposite(kind)]

    def score(after: Any) -> float:
        if after.outcome != Outcome.LEARNT:
            return 0.0
        radius = estimator._radius(after.scale, len(batches[0]), 1)
        found = answer(estimator, start, after, len(batches[0]), count)
        return float(np.sum(found * _P) / float(radius))

    return target.claim(_multiplier(estimator, start)), one_batch(estimator, start, batches, score)


def _range(target: Target) -> Trial:
    """Put half of the blocks in one bin, half in another: a record moves one of them."""
    estimator: Any = target.build(2, 1, _RANGE_OPTIONS)
    start = _at_q(estimator)
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


# Adaptive power, of one round.

_ONE_ROUND = {"clip_radius": 1.0, "rounds": 1, "octaves": 1}


def _power_sum(target: Target, kind: RecordKind = RecordKind.FACTOR) -> Trial:
    """Put all records above the bound, so that no threshold fires; the worst two are scaled down to it."""
    estimator: Any = target.build(2, 1, _ONE_ROUND, kind=kind)
    start = _at_q(estimator)
    count: int = 2 * estimator._slack
    other = HUGE * _Q @ _Q.T if kind is RecordKind.MATRIX else HUGE * _Q.T
    batches = neighbours(_opposite(kind), [other] * (count - 1), 2, kind)

    def score(after: Any) -> float:
        if after.scale != 1.0:
            return 0.0
        mean = after.basis * float(after.values[0]) / float(np.sum(start.basis * after.basis))
        return float(np.sum(mean * _P)) * count

    return target.claim(_multiplier(estimator, start)), one_batch(estimator, start, batches, score)


def _power_search(target: Target) -> Trial:
    """Put a record above half of the bound, or below; the others above are as many as the search allows."""
    estimator: Any = target.build(2, 1, _ONE_ROUND)
    start = _at_q(estimator)
    count = 2 * estimator._slack
    batches = []
    for above in (estimator._slack, estimator._slack + 1):
        sizes = [0.9] * above + [0.01] * (count - above)
        batches.append(ArrayBatch.of_vectors(np.sqrt(sizes)[:, None] * _Q.T))
    epsilon = _multiplier(estimator, start, "search_epsilon")
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
    batches = neighbours([HUGE * x for x in worst], [_zero(3, kind)] * (_BATCH - 1), 3, kind)
    products = [(x.T @ x if kind is RecordKind.FACTOR else x) @ start.start for x in worst]
    claim = Claim(target.epsilon, target.delta, apart / 2 / _multiplier(estimator, start))
    return claim, one_batch(
        estimator, start, batches, lambda state: np.sum(state.product * (products[1] - products[0]))
    )


# Output perturbation: the gap, and the projector.


def _gap(target: Target, kind: RecordKind = RecordKind.FACTOR) -> Trial:
    """Make the eigengap 2 R or 0 by factors alike or at a right angle; R the clip radius.

    Matrices that turn its two vectors round make it 2 sqrt(2) R more or less.
    """
    options = {"clip_radius": 1.0, "batch_size": 2, "gap_share": 0.9, "variance_share": 0.0}
    estimator = target.build(2, 1, options, kind=kind)
    start = first_state(estimator)
    x, y = HUGE * np.eye(2)[:, None, :]
    first, lasts = x, (y, x)
    if kind is RecordKind.MATRIX:
        first = HUGE * np.diag([1.0, -1.0])
        lasts = (-first, first)
    batches = [ArrayBatch.of_records([first, last], 2, kind) for last in lasts]
    claim = target.claim(_multiplier(estimator, start, "gap_sigma_over_sensitivity"))
    return claim, one_batch(estimator, start, batches, lambda state: state.gap)


def _projector(target: Target) -> Trial:
    """Let the last of many records turn the leading direction one way, or the other."""
    options = {"clip_radius": 1.0, "batch_size": 4_000, "gap_share": 0.05, "variance_share": 0.0}
    small: Any = target.build(2, 1, options)
    count = 8 * small.plan(first_state(small)).least
    estimator = target.build(2, 1, {**options, "batch_size": count})
    start = first_state(estimator)
    x = HUGE * np.eye(2)
    rest = np.tile(x[0], (count - 1, 1))
    batches = [ArrayBatch.of_vectors(np.vstack([rest, x[0] + sign * x[1]])) for sign in (1, -1)]
    claim = target.claim(_multiplier(estimator, start, "projector_sigma_over_sensitivity"))
    return claim, one_batch(estimator, start, batches, lambda state: state.projector[0, 1])


# k-DP-Ojas.


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
    start = replace(first_state(estimator), basis=_Q)
    batches = neighbours(_opposite(kind), [_zero(2, kind)] * (count - 1), 2, kind)
    # A sum of messages has the noise of all of them.
    claim = target.claim(_multiplier(estimator, start) * math.sqrt(count))
    return claim, one_batch(
        estimator, start, batches, lambda state: np.sum(state.basis * _P) / np.sum(state.basis * _Q)
    )


# Tensors.


def _products(target: Target, whitening: Whitening | None = None) -> Trial:
    """Refine two components that are equal: their mean products are half of the noisy ones."""
    options = {"batch_size": _BATCH, "clip_radius": 1.0, "whitening": whitening is not None}
    estimator = target.build(2, 2, options)
    start = first_state(estimator)
    along = np.eye(1, 2)
    found = replace(start.search, components=np.vstack([along, along]), found=2)
    start = replace(start, batch=1, search=found, whitening=whitening or start.whitening)
    batches = neighbours([-HUGE * along, HUGE * along], [np.zeros((1, 2))] * (_BATCH - 1), 2)
    claim = target.claim(_multiplier(estimator, start))
    return claim, one_batch(estimator, start, batches, lambda state: state.search.products[:, 0].sum())


def _moment(target: Target) -> Trial:
    """Add a record to many along both axes, whose eigenvalues stand out from the noise."""
    estimator = target.build(2, 2, {"batch_size": _BATCH, "clip_radius": 1.0})
    start = first_state(estimator)
    claim = target.claim(_multiplier(estimator, start))
    x, y = HUGE * np.eye(2)[:, None, :]
    others: list[Record] = [x, y] * math.ceil(10 + 20 / claim.mu)
    batches = [ArrayBatch.of_records([*others, last], 2) for last in (y, x)]

    def score(after: Any) -> float:
        moment = after.whitening.unwhiten @ after.whitening.unwhiten.T
        return float(moment[0, 0] - moment[1, 1])

    return claim, one_batch(estimator, start, batches, score)


COMPOSED_CASES: dict[str, dict[str, TrialOf]] = {
    "adadpo": _adaptive_cases(_block_answer),
    "adaptive-power": {
        "sum": _power_sum,
        "matrix": partial(_power_sum, kind=RecordKind.MATRIX),
        "search": _power_search,
    },
    "dp-pca": _adaptive_cases(_component_answer),
    "k-dp-ojas": {
        "sum": _message,
        "matrix": partial(_message, kind=RecordKind.MATRIX),
        "order": partial(_message, count=8),
    },
    "k-dp-pca": _adaptive_cases(_component_answer),
    "noisy-power": {"sum": _pass, "matrix": partial(_pass, kind=RecordKind.MATRIX)},
    "output-perturbation": {
        "sum": _gap,
        "matrix": partial(_gap, kind=RecordKind.MATRIX),
        "projector": _projector,
    },
    "tadadpo": _adaptive_cases(_block_answer),
    "tensor-private": {
        "sum": _products,
        "whitened": partial(_products, whitening=Whitening(np.eye(2), np.array([1e-2, 2.0]))),
        "moment": _moment,
    },
}
"""Trials by estimator id and case name; ``audit.sums`` has the others."""
