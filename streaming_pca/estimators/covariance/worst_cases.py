"""Worst cases of the estimators that release a noisy covariance or projector."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.neighbours import (
    HUGE,
    AnyEstimator,
    Claim,
    Matrix,
    Target,
    Trial,
    TrialOf,
    first_state,
    multiplier,
    neighbours,
    one_batch,
)
from streaming_pca.estimators.common.worst_sums import Setup, centred_sum_cases, claim_of

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
