"""What the empirical audit knows of each estimator: its worst records, and how to read its states."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import Estimator, Plan, State
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.privacy.audit import Case, Claim, mu_of_pure, repeated
from streaming_pca.privacy.parameters import PrivacyParameters, parse_rational
from streaming_pca.privacy.randomness import utility_generator
from streaming_pca.records import Batch, RecordKind

__all__ = ["SETUPS", "AnyEstimator", "Matrix", "Record", "Setup", "claim_of", "counts_epsilon", "unreachable"]

Matrix = NDArray[np.float64]
Record = Matrix | None
AnyEstimator = Estimator[Any, Any]

_HUGE = 1e6


@dataclass(frozen=True)
class Setup:
    """What the audit has to know of an estimator. The clip radius is 1 in all cases but "floats".

    Attributes
    ----------
    dim, k : int
    options : callable
        Its options for batches of so many records.
    worst : callable
        ``worst(state, kind)``: two records, norms far above the clip, whose
        contributions are as far apart as two can be.
    contribution : callable
        ``contribution(state, A)``: what a record of matrix A adds to the sum, before the clip.
    answer : callable
        ``answer(estimator, before, after, transformed)``: the noisy sum of that
        many contributions, recovered from the states.
    sensitivity : dict
        Of the sum, at a clip radius of 1, by record kind.
    more : callable
        ``more(type, epsilon, delta)``: cases of its own.
    """

    dim: int
    k: int
    options: Callable[[int], dict[str, Any]]
    worst: Callable[[Any, RecordKind], tuple[Matrix, Matrix]]
    contribution: Callable[[Any, Matrix], Matrix]
    answer: Callable[[Any, Any, Any, int], Matrix]
    sensitivity: dict[RecordKind, float]
    more: Callable[[type[AnyEstimator], float, float], list[Case]] = field(default=lambda *_: [])


def claim_of(plan: Plan, batches: int = 1) -> Claim:
    """The whole charge, and what Gaussian noise and noisy counts compose to in Gaussian DP.

    c mechanisms of mu_i are sqrt(sum mu_i^2)-GDP together (Dong, Roth and Su
    2022, Corollary 3.3).
    """
    mu = 1 / float(plan.parameters["sigma_over_sensitivity"])
    counts = counts_epsilon(plan)
    if counts:
        mu = math.hypot(mu, mu_of_pure(counts))
    return Claim(float(plan.charge.epsilon), float(plan.charge.delta), mu * math.sqrt(batches))


def counts_epsilon(plan: Plan) -> float:
    """Of one batch's noisy counts; 0 without."""
    counts = plan.parameters.get("diagnostics")
    return float(parse_rational(counts["epsilon"])) if counts else 0.0


# Analyze Gauss.


def _covariance_worst(state: State, kind: RecordKind) -> tuple[Matrix, Matrix]:
    x, y = _HUGE * np.eye(2)[:, None, :]
    return (x, y) if kind is RecordKind.FACTOR else (x.T @ x, -x.T @ x)


def _covariance_more(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> list[Case]:
    return [_radius(estimator_type, epsilon, delta), _floats(estimator_type, epsilon, delta)]


def _radius(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> Case:
    """Ten records find the radius: four below 1, five at 1, one above; one below becomes one above.

    The sum's records are null, so the state is noise in proportion to the radius.
    """
    dim = 2
    options: dict[str, Any] = {
        "first_batch": 50,
        "max_batch": 50,
        "clip_quantile": 0.5,
        "radius_range": (2.0**-40, 2.0**40),
    }
    estimator = estimator_type(
        dim,
        1,
        PrivacyParameters(epsilon=epsilon, delta=delta),
        Preprocessing(dim=dim, centering="none"),
        estimator_type.options_type(**options),
    )
    start = estimator.init(utility_generator(0))
    one, huge = np.array([[1.0, 0.0]]), np.array([[2.0**60, 0.0]])
    rest: list[Record] = [None] * 3 + [one] * 5 + [huge] + [None] * 40
    batches = [Batch.of_records([record, *rest], dim) for record in (None, huge)]
    charge = estimator.plan(start).charge

    def run(second: bool) -> float:
        return math.log(float(np.linalg.norm(estimator.update(start, batches[second]).total)))

    claim = Claim(float(charge.epsilon), float(charge.delta), mu_of_pure(float(charge.epsilon)))
    return Case(f"{estimator.card.id}/radius", estimator.card.id, claim, repeated(run))


def _floats(estimator_type: type[AnyEstimator], epsilon: float, delta: float) -> Case:
    """A null record or x, below the radius: can the answer be x x^T plus any float noise?"""
    x = np.array([[1.1, 0.9, 1.3]])
    dim = x.shape[1]
    options: dict[str, Any] = {"first_batch": 2, "max_batch": 2, "clip_radius": 3.8}
    estimator = estimator_type(
        dim,
        1,
        PrivacyParameters(epsilon=epsilon, delta=delta),
        Preprocessing(dim=dim, centering="none"),
        estimator_type.options_type(**options),
    )
    start = estimator.init(utility_generator(0))
    batches = [Batch.of_records([record, None], dim) for record in (None, x)]
    exact = x.T * x
    plan = estimator.plan(start)

    def run(second: bool) -> float:
        return -float(np.count_nonzero(unreachable(estimator.update(start, batches[second]).total, exact)))

    return Case(f"{estimator.card.id}/floats", estimator.card.id, claim_of(plan), repeated(run))


def unreachable(answers: Matrix, sums: Matrix) -> NDArray[np.bool_]:
    """Which answers cannot be a float64 sum of ``sums`` and a float64 noise, whatever its sampler.

    If the float s + n rounds to y, n lies within an ulp of y - s. Where y is
    closer to 0 than s, or noise and s have opposite signs, y - s needs more bits
    than a double has for many y, and a sum without s shows such y (Mironov 2012).
    """
    noise = answers - sums
    near = (noise, np.nextafter(noise, np.inf), np.nextafter(noise, -np.inf))
    return np.asarray(~np.any([sums + n == answers for n in near], axis=0))


# Private Oja.

_RATE = 1e-2


def _block_worst(state: Any, kind: RecordKind) -> tuple[Matrix, Matrix]:
    """x = c q +- s p, q in the basis and p outside: x x^T Q turns to +- p q^T as c falls."""
    q = state.basis[:, :1]
    if kind is RecordKind.MATRIX:
        return _HUGE * q @ q.T, -_HUGE * q @ q.T
    p = np.linalg.svd(state.basis, full_matrices=True)[0][:, -1:]
    return _HUGE * (0.1 * q + p).T, _HUGE * (0.1 * q - p).T


def _block_answer(estimator: AnyEstimator, before: Any, after: Any, transformed: int) -> Matrix:
    """The noisy sum M m, from B = orth(Q + eta M) and the inner B^T Q (Q^T M) Q^T B.

    Q + eta M = B T, so Q^T B T = I + eta Q^T M.
    """
    q, b = before.basis, after.basis
    turn = q.T @ b
    inner = np.linalg.solve(turn.T, np.linalg.solve(turn.T, after.inner).T)
    eta = estimator.options.rate(after.batch)
    mean = (b @ np.linalg.solve(turn, np.eye(estimator.k) + eta * inner) - q) / eta
    return np.asarray(mean * transformed)


SETUPS: dict[str, Setup] = {
    "analyze-gauss": Setup(
        dim=2,
        k=1,
        options=lambda batch: {"first_batch": batch, "max_batch": batch, "clip_radius": 1.0},
        worst=_covariance_worst,
        contribution=lambda state, matrix: matrix,
        answer=lambda estimator, before, after, transformed: after.total - before.total,
        sensitivity={RecordKind.FACTOR: math.sqrt(2), RecordKind.MATRIX: 2.0},
        more=_covariance_more,
    ),
    "private-oja": Setup(
        dim=3,
        k=2,
        options=lambda batch: {"batch_size": batch, "clip_radius": 1.0, "learning_rate": _RATE},
        worst=_block_worst,
        contribution=lambda state, matrix: matrix @ state.basis,
        answer=_block_answer,
        sensitivity={RecordKind.FACTOR: 2.0, RecordKind.MATRIX: 2.0},
    ),
}
"""By id; an estimator of the registry without a setup fails a test."""
