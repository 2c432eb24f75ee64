"""Trials of the audit: an estimator on two neighbouring streams, and a score of its states.

An estimator's ``worst_cases`` are made of these.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import scipy
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator
from streaming_pca.privacy.parameters import PrivacyParameters
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
        """Return the parameters as an estimator takes them."""
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
