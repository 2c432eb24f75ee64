"""Worst cases of the estimators, for the audit; those of one clipped sum: `common.worst_sums`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Outcome
from streaming_pca.estimators.common.clipped_batches import BatchCosts
from streaming_pca.estimators.common.worst_sums import (
    HUGE,
    AnyEstimator,
    Claim,
    Matrix,
    P,
    Q,
    Record,
    Setup,
    Target,
    Trial,
    TrialOf,
    along_p,
    at_q,
    basis_worst,
    centred_sum_cases,
    claim_of,
    first_state,
    mu_of_pure,
    multiplier,
    neighbours,
    one_batch,
    opposite,
    sum_cases,
    zero,
)
from streaming_pca.linalg.tensors import Whitening

_BATCH = 8  # records of a batch of noisy power, and of the tensor estimator


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


_MANY = 160  # records of a batch that also chooses its clip radius: fewer spend more on their median


def _covariance_worst(state: Any, kind: RecordKind) -> tuple[Matrix, Matrix]:
    x, y = HUGE * np.eye(2)[:, None, :]
    return (x, y) if kind is RecordKind.FACTOR else (x.T @ x, -x.T @ x)


def _covariance_answer(estimator: AnyEstimator, before: Any, after: Any, transformed: int) -> Matrix:
    new, old = after.covariance, before.covariance
    return np.asarray(new.released_moment() * new.records - old.released_moment() * old.records)


def _radius_search(target: Target) -> tuple[AnyEstimator, Any, Claim]:
    """Build an estimator that searches its radius, between public numbers far below the worst records."""
    options: dict[str, Any] = {"first_batch": _MANY, "max_batch": _MANY, "radius_range": (1.0, 64.0)}
    if "route" in target.type.options_type.model_fields:
        options["route"] = "covariance"
    estimator = target.build(2, 1, options)
    start = first_state(estimator)
    return estimator, start, claim_of(estimator.plan(start))


def _zeros() -> list[Matrix]:
    """Return the other records of a batch: null ones would leave it out."""
    return [np.zeros((1, 2))] * (_MANY - 1)


def _layers(target: Target) -> Trial:
    """Score a huge record of one direction or of another, in all sums.

    The state combines the answers at the chosen radius; that combination, in units of the
    noise that the state names, distinguishes the two best.
    """
    estimator, start, claim = _radius_search(target)

    def score(state: Any) -> float:
        memory = state.covariance
        noise = math.sqrt(memory.released_noise)
        return float(memory.released_moment()[1, 1] - memory.released_moment()[0, 0]) / noise

    batches = neighbours(list(HUGE * np.eye(2)[:, None, :]), _zeros(), 2)
    return claim, one_batch(estimator, start, batches, score)


def _sizes(target: Target) -> Trial:
    """Score a huge record or a null one: the evidence of norm counts and sums, added up."""
    estimator, start, claim = _radius_search(target)

    def score(state: Any) -> float:
        memory = state.covariance
        added = float(memory.radii[memory.chosen]) / _MANY
        of_sum = float(memory.released_moment()[0, 0]) * added / memory.released_noise
        return float(of_sum + memory.sizes.counts[-1] / memory.sizes.variance)

    batches = neighbours([None, np.array([[HUGE, 0.0]])], _zeros(), 2)
    return claim, one_batch(estimator, start, batches, score)


def _floats(target: Target) -> Trial:
    """Score a null record or x, below the radius: can the answer be x x^T plus any float noise?"""
    x = np.array([[1.1, 0.9, 1.3]])
    exact = x.T * x
    estimator = target.build(3, 1, {"first_batch": 2, "max_batch": 2, "clip_radius": 3.8})
    start = first_state(estimator)

    def score(state: Any) -> float:
        after = state.covariance
        return -float(np.count_nonzero(unreachable(after.released_moment() * after.records, exact)))

    batches = neighbours([None, x], [None], 3)
    return claim_of(estimator.plan(start)), one_batch(estimator, start, batches, score)


def unreachable(answers: Matrix, sums: Matrix) -> NDArray[np.bool_]:
    """Mark answers that are not a float64 sum of ``sums`` and any float64 noise.

    If the float s + n rounds to y, n lies within an ulp of y - s. Where y is
    closer to 0 than s, or noise and s have opposite signs, y - s needs more bits
    than a double has for many y, and a sum without s shows such y [Mironov2012].
    """
    noise = answers - sums
    near = (noise, np.nextafter(noise, np.inf), np.nextafter(noise, -np.inf))
    return np.asarray(~np.any([sums + n == answers for n in near], axis=0))


COVARIANCE = Setup(
    dim=2,
    k=1,
    options=lambda count: {"first_batch": count, "max_batch": count, "clip_radius": 1.0},
    worst=_covariance_worst,
    contribution=lambda state, matrix: matrix,
    answer=_covariance_answer,
    sensitivity={RecordKind.FACTOR: math.sqrt(2), RecordKind.MATRIX: 2.0},
)
RADIUS_CASES: dict[str, TrialOf] = {"layers": _layers, "sizes": _sizes}
ANALYZE_GAUSS_CASES = centred_sum_cases(COVARIANCE) | RADIUS_CASES | {"floats": _floats}


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
    claim = target.claim(multiplier(estimator, start, "gap_sigma_over_sensitivity"))
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
    claim = target.claim(multiplier(estimator, start, "projector_sigma_over_sensitivity"))
    return claim, one_batch(estimator, start, batches, lambda state: state.projector[0, 1])


OUTPUT_PERTURBATION_CASES: dict[str, TrialOf] = {
    "sum": _gap,
    "matrix": partial(_gap, kind=RecordKind.MATRIX),
    "projector": _projector,
}


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
