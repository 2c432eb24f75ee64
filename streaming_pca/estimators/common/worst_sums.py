"""Trials of the audit: an estimator on two neighbouring streams, and a score of its states.

An estimator's ``worst_cases`` are made of these. Cases of estimators that learn from one clipped sum a batch:

=========  ==================================================================
sum        two huge records in opposite directions, among zeros: the clip, the
           noise of the sum, and whether other records' contributions move
matrix     the same with ``record-kind: matrix``
pairs      the same with ``centering = "pairs"``
user       one user's records in two batches, ``contributions_per_user = 2``
counts     a huge record or the null record; only the noisy counts of both are scored
stream     a record that becomes null before several batches: they move
           if batches are cut by anything but the number of records
mean       with ``centering = "auto"``, a huge record, which moves the mean
=========  ==================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator, Plan
from streaming_pca.estimators.common.centre import most_share
from streaming_pca.estimators.common.clipped_batches import BatchCosts
from streaming_pca.privacy.parameters import PrivacyParameters, parse_rational
from streaming_pca.privacy.randomness import utility_generator

Matrix = NDArray[np.float64]
Record = Matrix | None
AnyEstimator = Estimator[Any, Any]
Cut = Callable[[ArrayBatch, int], int]


@dataclass(frozen=True)
class Claim:
    """Claim that a mechanism is (epsilon, delta)-DP and mu-GDP."""

    epsilon: float
    delta: float
    mu: float
    """No mu is claimed if this is inf."""


def mu_of_pure(epsilon: float) -> float:
    """Return the smallest mu such that every epsilon-DP mechanism is mu-GDP."""
    return float(-2 * scipy.special.ndtri(scipy.special.expit(-epsilon)))


Trial = tuple[Claim, Callable[[bool], float]]
"""A claim, and ``run(second)``: the score of one run on the first or on the second neighbour."""

HUGE = 1e6
"""Norm of the worst records, far above every clip radius."""


def by_count(stream: ArrayBatch, count: int) -> int:
    """Return the end of a batch: after ``count`` records, independent of their contents."""
    return min(count, len(stream))


@dataclass(frozen=True)
class Target:
    """Estimator type at the privacy parameters of an audit."""

    type: type[AnyEstimator]
    epsilon: float
    delta: float
    cut: Cut = by_count
    """``cut(stream, count)``: the end of the next batch; tests replace it by a wrong one."""

    def privacy(self, contributions: int = 1) -> PrivacyParameters:
        return PrivacyParameters(epsilon=self.epsilon, delta=self.delta, contributions=contributions)

    def build(
        self,
        dim: int,
        k: int,
        options: dict[str, Any],
        share: float = 0.0,
        contributions: int = 1,
        **preprocessing: Any,
    ) -> AnyEstimator:
        """Build the estimator; it subtracts no centre unless ``preprocessing`` names one."""
        about = Preprocessing(**{"dim": dim, "centering": "none", **preprocessing})
        privacy = self.privacy(contributions)
        return self.type(dim, k, privacy, about, self.type.options_type(**options), share)

    def claim(self, multiplier: Any) -> Claim:
        """Claim (epsilon, delta), and the mu of one Gaussian of this noise multiplier."""
        return Claim(self.epsilon, self.delta, 1 / float(multiplier))


TrialOf = Callable[[Target], Trial]


def first_state(estimator: AnyEstimator) -> Any:
    """Return the state before any batch; the same in every audit."""
    return estimator.init(utility_generator(0))


def neighbours(
    differing: Sequence[Record], others: Sequence[Record], dim: int, kind: RecordKind = RecordKind.FACTOR
) -> list[ArrayBatch]:
    """Make two batches that differ in their first record."""
    return [ArrayBatch.of_records([record, *others], dim, kind) for record in differing]


def one_batch(
    estimator: AnyEstimator, start: Any, batches: Sequence[ArrayBatch], score: Callable[[Any], float]
) -> Callable[[bool], float]:
    """Return a trial's ``run``: update ``start`` by one of two batches and score the new state."""
    return lambda second: float(score(estimator.update(start, batches[second])))


# Most cases with a basis have vectors of two features: the basis q is on one diagonal, p on the other.
Q, P = np.array([[1.0], [1.0]]) / math.sqrt(2), np.array([[1.0], [-1.0]]) / math.sqrt(2)


def at_q(estimator: AnyEstimator) -> Any:
    """Return the state before any step, with basis q; a start by another estimator has ended."""
    start = first_state(estimator)
    ended = {"warm": None} if hasattr(start, "warm") else {}
    return replace(start, basis=Q, **ended)


def along_p(size: float, kind: RecordKind) -> Matrix:
    """Return a record whose product of q has the part ``size`` p."""
    if kind is RecordKind.MATRIX:
        return size * (P @ Q.T + Q @ P.T)
    return math.sqrt(size) * (Q + P).T


def opposite(kind: RecordKind) -> list[Record]:
    """Return two records whose products of q are huge, and along -p and p."""
    if kind is RecordKind.MATRIX:
        return [along_p(sign * HUGE, kind) for sign in (-1, 1)]
    return [HUGE * (1e-3 * Q + sign * P).T for sign in (-1, 1)]


def zero(dim: int, kind: RecordKind) -> Matrix:
    return np.zeros((dim, dim) if kind is RecordKind.MATRIX else (1, dim))


def multiplier(estimator: AnyEstimator, start: Any, name: str = "sigma_over_sensitivity") -> float:
    return float(estimator.plan(start).parameters[name])


_BATCH = 8  # records of a batch
_STREAM_BATCHES = 6  # batches of the "stream" case: a wrong cut shows with sqrt(6) times mu


@dataclass(frozen=True)
class Setup:
    """Worst records of an estimator, and its sum read back from its states; the clip radius is 1."""

    dim: int
    k: int
    options: Callable[[int], dict[str, Any]]
    """``options(count)``: options for batches of ``count`` records."""
    worst: Callable[[Any, RecordKind], tuple[Matrix, Matrix]]
    """``worst(state, kind)``: two records, norms far above the clip, whose contributions are as far apart as
    two can be."""
    contribution: Callable[[Any, Matrix], Matrix]
    """``contribution(state, A)``: the term of a record of matrix A, before the clip."""
    answer: Callable[[Any, Any, Any, int], Matrix]
    """``answer(estimator, before, after, transformed)``: the noisy sum of ``transformed`` contributions,
    recovered from the states."""
    sensitivity: dict[RecordKind, float]
    """L2 sensitivity of the sum, by record kind."""

    def with_options(self, **more: Any) -> Setup:
        return replace(self, options=lambda count: self.options(count) | more)


@dataclass(frozen=True)
class _Probe:
    """Pair of neighbouring streams.

    ``records(a, b, zero)`` makes both from the two worst records; ``signs`` gives the sign
    of their difference in each batch.
    """

    records: Callable[[Matrix, Matrix, Matrix], tuple[Sequence[Record], Sequence[Record]]]
    signs: tuple[int, ...] = (1,)
    batch: int = _BATCH
    kind: RecordKind = RecordKind.FACTOR
    centering: str = "none"
    contributions: int = 1
    share: float = 0.0


def _one_record(a: Record, b: Matrix, zero: Matrix) -> tuple[list[Record], list[Record]]:
    others: list[Record] = [zero] * (_BATCH - 1)
    return [a, *others], [b, *others]


def _two_batches(a: Matrix, b: Matrix, zero: Matrix) -> tuple[list[Record], list[Record]]:
    first, second = _one_record(a, b, zero)
    return first * 2, second * 2


def _null_before_others(a: Matrix, b: Matrix, zero: Matrix) -> tuple[list[Record], list[Record]]:
    """Make batches of two that would exchange a for b, b for a, ... if a null record did not count."""
    rest: list[Record] = [zero, *(r for t in range(1, _STREAM_BATCHES + 1) for r in ((a, b)[t % 2], zero))]
    return [a, *rest], [None, *rest]


_SUM = _Probe(_one_record)
_PROBES = {
    "sum": _SUM,
    "matrix": replace(_SUM, kind=RecordKind.MATRIX),
    "pairs": replace(_SUM, centering="pairs"),
    # Two such matrices are opposite about any basis that the first batch may lead to.
    "user": _Probe(_two_batches, signs=(1, 1), kind=RecordKind.MATRIX, contributions=2),
    "counts": _Probe(lambda a, b, zero: _one_record(None, b, zero), share=0.5),
    "stream": _Probe(
        _null_before_others,
        signs=tuple((-1) ** t for t in range(_STREAM_BATCHES)),
        batch=2,
        kind=RecordKind.MATRIX,
    ),
}


def _probe_trial(setup: Setup, probe: _Probe, target: Target) -> Trial:
    """Score the projection of the sum on the difference of the two clipped records."""
    ways = {"kind": probe.kind, "centering": probe.centering}
    options = setup.options(probe.batch)
    estimator = target.build(setup.dim, setup.k, options, probe.share, probe.contributions, **ways)
    start = first_state(estimator)
    worst = setup.worst(start, probe.kind)
    lists = probe.records(*worst, np.zeros_like(worst[0]))
    streams = [ArrayBatch.of_records(records, setup.dim, probe.kind) for records in lists]
    plan = estimator.plan(start)
    noise = float(plan.parameters["sigma_over_sensitivity"]) * setup.sensitivity[probe.kind]
    counts = _counts_epsilon(plan)

    def run(second: bool) -> float:
        state, left, score = start, streams[second], 0.0
        for sign in probe.signs:
            count = target.cut(left, estimator.plan(state).count)
            batch, left = left.split([count, len(left) - count])
            after = estimator.update(state, batch)
            if after.counts is not None:
                # Only the counts: the sum's noise would hide a loss that is twice as large.
                score += _log_ratio_of_counts(after.counts, counts)
            else:
                answer = setup.answer(estimator, state, after, count // estimator.preprocessing.units)
                first, other = (_clipped(setup, state, record) for record in worst)
                score += sign * float(np.sum(answer * (other - first))) / noise**2
            state = after
        return score

    claim = Claim(counts, 0.0, mu_of_pure(counts)) if counts else claim_of(plan, probe.contributions)
    return claim, run


def claim_of(plan: Plan, batches: int = 1) -> Claim:
    """Claim the whole charge, and the mu that Gaussian noise and noisy counts compose to.

    c mechanisms of mu_i are sqrt(sum mu_i^2)-GDP together [DongRothSu2022, Corollary 3.3].
    """
    mu = 1 / float(plan.parameters["sigma_over_sensitivity"])
    counts = _counts_epsilon(plan)
    if counts:
        mu = math.hypot(mu, mu_of_pure(counts))
    return Claim(float(plan.charge.epsilon), float(plan.charge.delta), mu * math.sqrt(batches))


def _counts_epsilon(plan: Plan) -> float:
    """Return the epsilon of one batch's noisy counts; 0 without counts."""
    counts = plan.parameters.get("diagnostics")
    return float(parse_rational(counts["epsilon"])) if counts else 0.0


def _log_ratio_of_counts(counts: NDArray[np.int64], epsilon: float) -> float:
    """Return the log-likelihood ratio of one clipped to one null record; Laplace noise of scale 2/epsilon."""
    null, clipped = (int(n) for n in counts)
    return (abs(null - 1) + abs(clipped) - abs(null) - abs(clipped - 1)) * epsilon / 2


def _clipped(setup: Setup, state: Any, record: Matrix) -> Matrix:
    """Return the record's term of the sum, at a clip radius of 1."""
    matrix = record.T @ record if len(record) == 1 else record
    added = setup.contribution(state, matrix)
    return np.asarray(added / max(1.0, float(np.linalg.norm(added))))


def _centre(setup: Setup, target: Target) -> Trial:
    """Score a huge record or its opposite, among others at a right angle; the clip radius is public.

    With many features and few records the last round has the largest share. The claim is
    the share that the centre's rounds may take together, not the rest of the budget.
    """
    dim, radius = 64, 8.0
    multiplier = BatchCosts(target.privacy()).multiplier
    count = max(int(2.5 * math.sqrt(dim) * multiplier / 0.15), 8)
    options = setup.options(count) | {"radius_range": (radius**2, 1.001 * radius**2)}
    estimator = target.build(dim, setup.k, options, centering="auto")
    huge, other = HUGE * np.eye(1, dim, 1), 1.1 * radius * np.eye(1, dim)
    batches = neighbours([-huge, huge], [other] * (count - 1), dim)
    start = first_state(estimator)
    mu = math.sqrt(most_share(dim, count, multiplier)) / multiplier
    claim = replace(claim_of(estimator.plan(start)), mu=mu)
    return claim, one_batch(estimator, start, batches, lambda s: 0.0 if s.mean is None else s.mean[1])


def basis_worst(basis: Matrix, kind: RecordKind) -> tuple[Matrix, Matrix]:
    """Return x = c q +- s p, q in the basis and p outside: x x^T Q turns to +- p q^T as c falls."""
    q = basis[:, :1]
    if kind is RecordKind.MATRIX:
        return HUGE * q @ q.T, -HUGE * q @ q.T
    p = np.linalg.svd(basis, full_matrices=True)[0][:, -1:]
    return HUGE * (0.1 * q + p).T, HUGE * (0.1 * q - p).T


def sum_cases(setup: Setup) -> dict[str, TrialOf]:
    """Return the cases of an estimator whose only mechanism on records is this sum."""
    return {name: partial(_probe_trial, setup, probe) for name, probe in _PROBES.items()}


def centred_sum_cases(setup: Setup) -> dict[str, TrialOf]:
    """Return the cases of an estimator that finds the centre of such a sum."""
    return {**sum_cases(setup), "mean": partial(_centre, setup)}
