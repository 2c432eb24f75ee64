"""Lower bounds on the privacy loss of a mechanism, from samples on two neighbours.

An audit can refute a claim and never prove one. Every output becomes one number, its score, and
a threshold on the scores distinguishes the inputs with error rates FP and FN. One half of the trials
chooses the threshold; on the other half the errors are binomial, so Clopper and Pearson's upper
limits hold for both rates but for a probability of ``risk``. At these limits a mechanism is not

- (epsilon, delta)-DP where 1 - FN > e^epsilon FP + delta or 1 - FP > e^epsilon FN + delta;
- mu-GDP where mu < Phi^-1(1 - FP) - Phi^-1(FN), the sharper bound for Gaussian noise.

Proof: docs/explanation/proofs/errors.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, expit, ndtr, ndtri

from streaming_pca.errors import UserError
from streaming_pca.estimators.common.worst_sums import Claim

Scores = NDArray[np.float64]

REPORTED_AT = 0.05
"""Risk of a reported bound: largest share of audits with a bound above the truth."""

REFUTED_AT = 1e-4
"""Risk of a refutation: largest probability that a true claim is refuted."""

_CHUNK = 100  # trials between two reports of progress

_THRESHOLDS = 400  # most thresholds that are tried


@dataclass(frozen=True)
class Case:
    """Mechanism on two neighbours, and a score of its outputs."""

    id: str
    """Id of an estimator or name of a mechanism, and after a slash the name of the neighbours."""
    claim: Claim
    sample: Callable[[bool, int], Scores]
    """``sample(second, n)``: scores of n independent runs on the first or on the second neighbour."""


def repeated(run: Callable[[bool], float]) -> Callable[[bool, int], Scores]:
    """Make the ``sample`` of a :class:`Case` from a run that returns one score."""
    return lambda second, n: np.array([run(second) for _ in range(n)], dtype=np.float64)


def error_limit(errors: NDArray[np.int64] | int, n: int, risk: float) -> Scores:
    """Return Clopper and Pearson's one-sided upper limit of a rate; ``errors`` in n were seen.

    The rate is above it with probability at most ``risk``.
    """
    wrong = np.asarray(errors, dtype=np.float64)
    limit = betaincinv(wrong + 1, np.maximum(n - wrong, 1), 1 - risk)
    return np.asarray(np.where(wrong >= n, 1.0, limit))


@dataclass(frozen=True)
class Separation:
    """Errors of thresholds among ``n`` outputs on each neighbour, and bounds from them.

    Bounds are lower ones, 0 or above, and wrong with probability ``risk``.
    """

    false_positives: NDArray[np.int64] | int
    false_negatives: NDArray[np.int64] | int
    n: int

    def epsilon(self, delta: float, risk: float) -> Scores:
        """Return a bound on epsilon at ``delta``."""
        a, b = self._limits(risk)
        ratio = np.maximum((1 - b - delta) / a, (1 - a - delta) / b)
        return np.asarray(np.log(np.maximum(ratio, 1.0)))

    def mu(self, risk: float) -> Scores:
        """Return a bound on mu."""
        a, b = self._limits(risk)
        return np.asarray(np.maximum(-ndtri(a) - ndtri(b), 0.0))

    def _limits(self, risk: float) -> tuple[Scores, Scores]:
        a, b = (
            error_limit(wrong, self.n, risk / 2) for wrong in (self.false_positives, self.false_negatives)
        )
        return a, b


@dataclass(frozen=True)
class Finding:
    """Result of the audit of one case."""

    id: str
    claim: Claim
    trials: int
    """Runs on each of the two neighbours."""
    for_epsilon: Separation
    for_mu: Separation
    """Errors on fresh outputs of the thresholds that were best for each of the two bounds."""

    @property
    def epsilon_lower_bound(self) -> float:
        """Lower bound on epsilon at the claim's delta and 95% confidence."""
        return float(self.for_epsilon.epsilon(self.claim.delta, REPORTED_AT))

    @property
    def mu_lower_bound(self) -> float:
        """Lower bound on mu at 95% confidence."""
        return float(self.for_mu.mu(REPORTED_AT))

    @cached_property
    def refuted(self) -> bool:
        """True if either part of the claim is false; wrong with probability at most 1e-4."""
        return bool(
            self.for_epsilon.epsilon(self.claim.delta, REFUTED_AT / 2) > self.claim.epsilon
            or self.for_mu.mu(REFUTED_AT / 2) > self.claim.mu
        )


def least_trials(claim: Claim) -> int:
    """Return the fewest trials that refute a claim if both neighbours share no output."""
    # Without one error in n, the limit u of either rate has (1 - u)^n = risk/2.
    for_epsilon = (1 - claim.delta) * float(expit(-claim.epsilon))
    rate = max(for_epsilon, float(ndtr(-claim.mu / 2)))
    # A rate below 1e-15, which may be 0 in floats, takes more trials than is feasible anyway.
    return 2 * (math.floor(math.log(REFUTED_AT / 4) / math.log1p(-max(rate, 1e-15))) + 1)


def check_trials(case: Case, trials: int) -> None:
    """Raise UserError if ``trials`` are too few to refute the claim by any outcome."""
    needed = least_trials(case.claim)
    if trials < needed:
        raise UserError(
            f"{trials} trials are too few to refute the claim of {case.id} "
            f"at epsilon = {case.claim.epsilon:g}: raise them to {needed} or more, or lower epsilon"
        )


def audit(case: Case, trials: int, advance: Callable[[int], None] = lambda n: None) -> Finding:
    """Run a case and bound its privacy loss from below.

    Of the ``trials`` on each neighbour, one half finds thresholds and the other tests them. ``advance`` is
    called with the number of new runs, 2 ``trials`` in all. UserError as from :func:`check_trials`.
    """
    check_trials(case, trials)
    first, second = (_scores(case, side, trials, advance) for side in (False, True))
    half = trials // 2
    learn, judge = (first[:half], second[:half]), (first[half:], second[half:])

    def best(bound: Callable[[Separation], Scores]) -> Separation:
        thresholds = _thresholds(*learn)
        wrong = _errors(*learn, thresholds)
        straight = bound(Separation(*wrong, half))
        reversed_ = bound(Separation(half - wrong[0], half - wrong[1], half))
        n = trials - half
        at = np.argmax(np.maximum(straight, reversed_))
        positives, negatives = (int(e[0]) for e in _errors(*judge, thresholds[at : at + 1]))
        if reversed_[at] > straight[at]:
            positives, negatives = n - positives, n - negatives
        return Separation(positives, negatives, n)

    return Finding(
        id=case.id,
        claim=case.claim,
        trials=trials,
        for_epsilon=best(lambda errors: errors.epsilon(case.claim.delta, REFUTED_AT / 2)),
        for_mu=best(lambda errors: errors.mu(REFUTED_AT / 2)),
    )


def _scores(case: Case, second: bool, trials: int, advance: Callable[[int], None]) -> Scores:
    parts = []
    for first in range(0, trials, _CHUNK):
        n = min(_CHUNK, trials - first)
        parts.append(case.sample(second, n))
        advance(n)
    scores = np.concatenate(parts)
    if np.isnan(scores).any():
        raise ArithmeticError(f"{case.id} has a score that is not a number")
    return scores


def _thresholds(first: Scores, second: Scores) -> Scores:
    """Return the thresholds to try: all scores, or ``_THRESHOLDS`` quantiles of them."""
    values = np.unique(np.concatenate([first, second]))
    if values.size > _THRESHOLDS:
        values = values[np.linspace(0, values.size - 1, _THRESHOLDS).astype(np.int64)]
    return values


def _errors(first: Scores, second: Scores, thresholds: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Count the errors of assigning every score above a threshold to the second neighbour."""
    positives = first.size - np.searchsorted(np.sort(first), thresholds, side="right")
    negatives = np.searchsorted(np.sort(second), thresholds, side="right")
    return positives.astype(np.int64), negatives.astype(np.int64)
