"""How much privacy is lost at the least: lower bounds from samples of a mechanism on two neighbours.

An audit can refute a claim and never prove one. It runs a mechanism many times
on each of two neighbouring inputs, turns every output into one number (its
score: any function of the output, so post-processing) and asks how well a
threshold on the scores tells the inputs apart.

Let S be a set of outputs, FP the probability that an output on the first input
lies in S, FN that one on the second does not. A mechanism that is

- (epsilon, delta)-DP has 1 - FN <= e^epsilon FP + delta, and, for the
  complement with the inputs' roles exchanged, 1 - FP <= e^epsilon FN + delta;
- mu-GDP has FN >= Phi(Phi^-1(1 - FP) - mu) (Dong, Roth and Su 2022, Definition
  2.6), that is, mu >= Phi^-1(1 - FP) - Phi^-1(FN).

S is chosen on one half of the trials: among thresholds in both directions,
whichever gives the largest bound there. The other half is independent of that
choice, so that given S the numbers of outputs on the wrong side are binomial,
and Clopper and Pearson's one-sided upper limits hold for FP and for FN, each
but for a probability of risk/2. All bounds above fall as FP or FN rise, so at
the limits they are lower bounds but for a probability of risk: together for
both directions, as these use the same two limits.

The bound on epsilon is direct and needs no more assumptions. At a small delta
it is loose: with n trials in the second half it cannot pass about log(n/4). The
bound on mu is far sharper for Gaussian mechanisms, whose mu is 1/(noise
multiplier). An epsilon-DP mechanism is mu-GDP at mu = 2 Phi^-1(e^epsilon/(1 +
e^epsilon)) and no less, so the same bound serves there.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv, expit, ndtr, ndtri

__all__ = [
    "REFUTED_AT",
    "REPORTED_AT",
    "AuditError",
    "Case",
    "Claim",
    "Finding",
    "Separation",
    "audit",
    "check_trials",
    "epsilon_bound",
    "error_limit",
    "least_trials",
    "mu_bound",
    "mu_of_pure",
    "repeated",
]

Scores = NDArray[np.float64]

REPORTED_AT = 0.05
"""Risk of a reported bound: it is above the truth in at most this share of audits."""

REFUTED_AT = 1e-4
"""Risk of a refutation: a true claim is refuted with at most this probability."""

_CHUNK = 100
_THRESHOLDS = 400


class AuditError(ValueError):
    """An audit that cannot be run as asked."""


@dataclass(frozen=True)
class Claim:
    """What a mechanism says of itself.

    Attributes
    ----------
    epsilon, delta : float
        It is (epsilon, delta)-differentially private.
    mu : float
        It is mu-Gaussian-differentially private; inf where nothing is claimed.
    """

    epsilon: float
    delta: float
    mu: float


@dataclass(frozen=True)
class Case:
    """A mechanism on two neighbours, and what to look at.

    Attributes
    ----------
    id : str
        The subject, and behind a slash which neighbours these are.
    subject : str
        Id of an estimator, or name of a mechanism.
    claim : Claim
    sample : callable
        ``sample(second, n)``: scores of n independent runs on the first or on
        the second neighbour.
    """

    id: str
    subject: str
    claim: Claim
    sample: Callable[[bool, int], Scores]


def repeated(run: Callable[[bool], float]) -> Callable[[bool, int], Scores]:
    """A :class:`Case`'s ``sample`` from one run's score."""
    return lambda second, n: np.array([run(second) for _ in range(n)], dtype=np.float64)


def mu_of_pure(epsilon: float) -> float:
    """Smallest mu for which every epsilon-DP mechanism is mu-GDP.

    Its trade-off function meets the diagonal at 1/(1 + e^epsilon), and G_mu at
    Phi(-mu/2); G_mu is convex, the other consists of two chords.
    """
    return float(-2 * ndtri(expit(-epsilon)))


def error_limit(errors: NDArray[np.int64] | int, n: int, risk: float) -> Scores:
    """Clopper and Pearson's one-sided upper limit of a rate, of which ``errors`` in n were seen.

    The rate is above it with probability at most ``risk`` (1934).
    """
    wrong = np.asarray(errors, dtype=np.float64)
    limit = betaincinv(wrong + 1, np.maximum(n - wrong, 1), 1 - risk)
    return np.asarray(np.where(wrong >= n, 1.0, limit))


def epsilon_bound(
    false_positives: NDArray[np.int64] | int,
    false_negatives: NDArray[np.int64] | int,
    n: int,
    delta: float,
    risk: float,
) -> Scores:
    """Lower bound on epsilon at ``delta`` from wrong answers in n trials on each neighbour, 0 or above.

    See the module for why it holds but for a probability of ``risk``.
    """
    a = error_limit(false_positives, n, risk / 2)
    b = error_limit(false_negatives, n, risk / 2)
    ratio = np.maximum((1 - b - delta) / a, (1 - a - delta) / b)
    return np.asarray(np.log(np.maximum(ratio, 1.0)))


def mu_bound(
    false_positives: NDArray[np.int64] | int,
    false_negatives: NDArray[np.int64] | int,
    n: int,
    risk: float,
) -> Scores:
    """Lower bound on mu; parameters as for :func:`epsilon_bound`."""
    a = error_limit(false_positives, n, risk / 2)
    b = error_limit(false_negatives, n, risk / 2)
    return np.asarray(np.maximum(-ndtri(a) - ndtri(b), 0.0))


@dataclass(frozen=True)
class Separation:
    """How a threshold chosen elsewhere told two neighbours apart.

    Attributes
    ----------
    false_positives, false_negatives : int
        Of ``n`` outputs on the first, and on the second neighbour.
    n : int
    """

    false_positives: int
    false_negatives: int
    n: int


@dataclass(frozen=True)
class Finding:
    """What an audit saw of one case.

    Attributes
    ----------
    id : str
    claim : Claim
    trials : int
        Runs on each of the two neighbours.
    for_epsilon, for_mu : Separation
        By the thresholds that were best for each of the two bounds.
    """

    id: str
    claim: Claim
    trials: int
    for_epsilon: Separation
    for_mu: Separation

    def epsilon_above(self, delta: float, risk: float) -> float:
        """Lower bound on epsilon at any delta, wrong with probability at most ``risk``."""
        s = self.for_epsilon
        return float(epsilon_bound(s.false_positives, s.false_negatives, s.n, delta, risk))

    def mu_above(self, risk: float) -> float:
        """Lower bound on mu, wrong with probability at most ``risk``."""
        s = self.for_mu
        return float(mu_bound(s.false_positives, s.false_negatives, s.n, risk))

    @property
    def epsilon_lower_bound(self) -> float:
        """At the claim's delta and 95% confidence."""
        return self.epsilon_above(self.claim.delta, REPORTED_AT)

    @property
    def mu_lower_bound(self) -> float:
        """At 95% confidence."""
        return self.mu_above(REPORTED_AT)

    @cached_property
    def refuted(self) -> bool:
        """Whether either part of the claim is false; wrong with probability at most 1e-4."""
        return bool(
            self.epsilon_above(self.claim.delta, REFUTED_AT / 2) > self.claim.epsilon
            or self.mu_above(REFUTED_AT / 2) > self.claim.mu
        )


def least_trials(claim: Claim) -> int:
    """Fewest trials that refute a claim if the two neighbours' outputs have nothing in common."""
    # Without one error in n, the limit u of either rate has (1 - u)^n = risk/2.
    for_epsilon = (1 - claim.delta) * float(expit(-claim.epsilon))
    rate = max(for_epsilon, float(ndtr(-claim.mu / 2)))
    # Below this rate it takes more trials than anybody runs, however small it is; it may be 0 in floats.
    n = math.floor(math.log(REFUTED_AT / 4) / math.log1p(-max(rate, 1e-15))) + 1
    return 2 * n


def check_trials(case: Case, trials: int) -> None:
    """Raise AuditError if so few trials could not refute the claim whatever they show."""
    needed = least_trials(case.claim)
    if trials < needed:
        raise AuditError(
            f"{trials} trials can refute nothing of {case.id} at epsilon = {case.claim.epsilon:g}:"
            f" raise them to {needed} or more, or lower epsilon"
        )


def audit(case: Case, trials: int, advance: Callable[[int], None] = lambda n: None) -> Finding:
    """Run a case and bound what it loses.

    Parameters
    ----------
    case : Case
    trials : int
        Runs on each neighbour; one half finds thresholds, the other judges them.
    advance : callable
        Told now and then how many runs were added, of 2 ``trials``.

    Raises
    ------
    AuditError
        If so few trials could not refute the claim whatever they show.
    """
    check_trials(case, trials)
    first, second = (_scores(case, side, trials, advance) for side in (False, True))
    half = trials // 2
    learn, judge = (first[:half], second[:half]), (first[half:], second[half:])
    delta = case.claim.delta

    def best(bound: Callable[[NDArray[np.int64], NDArray[np.int64]], Scores]) -> Separation:
        thresholds = _thresholds(*learn)
        wrong = _errors(*learn, thresholds)
        ahead, behind = bound(*wrong), bound(half - wrong[0], half - wrong[1])
        n = trials - half
        at = np.argmax(np.maximum(ahead, behind))
        positives, negatives = (int(e[0]) for e in _errors(*judge, thresholds[at : at + 1]))
        if behind[at] > ahead[at]:
            positives, negatives = n - positives, n - negatives
        return Separation(positives, negatives, n)

    return Finding(
        id=case.id,
        claim=case.claim,
        trials=trials,
        for_epsilon=best(lambda a, b: epsilon_bound(a, b, half, delta, REFUTED_AT / 2)),
        for_mu=best(lambda a, b: mu_bound(a, b, half, REFUTED_AT / 2)),
    )


def _scores(case: Case, second: bool, trials: int, advance: Callable[[int], None]) -> Scores:
    parts = []
    for first in range(0, trials, _CHUNK):
        n = min(_CHUNK, trials - first)
        parts.append(case.sample(second, n))
        advance(n)
    scores = np.concatenate(parts)
    if np.isnan(scores).any():
        raise ArithmeticError(f"{case.id} has a score that is no number")
    return scores


def _thresholds(first: Scores, second: Scores) -> Scores:
    """Values between which the scores are cut: all of them, or as many quantiles."""
    values = np.unique(np.concatenate([first, second]))
    if values.size > _THRESHOLDS:
        values = values[np.linspace(0, values.size - 1, _THRESHOLDS).astype(np.int64)]
    return values


def _errors(first: Scores, second: Scores, thresholds: Scores) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """False positives and negatives of calling a score above a threshold one of the second neighbour."""
    positives = first.size - np.searchsorted(np.sort(first), thresholds, side="right")
    negatives = np.searchsorted(np.sort(second), thresholds, side="right")
    return positives.astype(np.int64), negatives.astype(np.int64)
