"""The audit's statistics, checked by exact sums over binomial counts; only scores are random."""

from __future__ import annotations

import math

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from streaming_pca.audit.bounds import (
    REFUTED_AT,
    Case,
    Finding,
    Separation,
    audit,
    error_limit,
    least_trials,
)
from streaming_pca.errors import UserError
from streaming_pca.estimators.common.worst_sums import Claim, mu_of_pure
from streaming_pca.privacy.calibration.multipliers import pure_epsilon


def chance(event: NDArray[np.bool_], n: int, a: float, b: float) -> float:
    """Return the probability of a set of count pairs at rates a and b; shape (n + 1, n + 1)."""
    counts = np.arange(n + 1)
    return float(stats.binom.pmf(counts, n, a) @ event @ stats.binom.pmf(counts, n, b))


def grid(n: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    a, b = np.meshgrid(np.arange(n + 1), np.arange(n + 1), indexing="ij")
    return a, b


def normal_case(mu: float, claimed: float, sign: int = 1, epsilon: float = 30.0) -> Case:
    rng = np.random.default_rng(0)
    return Case(
        "normal",
        Claim(epsilon, 1e-6, claimed),
        lambda second, n: sign * (rng.standard_normal(n) + mu * second),
    )


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (9, 10), (40, 1500)])
def test_a_limit_is_the_rate_at_which_so_few_errors_have_the_risk(k: int, n: int) -> None:
    limit = float(error_limit(k, n, 0.01))
    assert stats.binom.cdf(k, n, limit) == pytest.approx(0.01, rel=1e-9)


def test_nothing_is_known_where_all_are_errors() -> None:
    assert error_limit(10, 10, 0.01) == 1.0


@pytest.mark.parametrize("rate", [0.003, 0.05, 0.3, 0.5, 0.97])
def test_a_limit_is_passed_with_at_most_the_risk(rate: float) -> None:
    n, risk = 60, 0.05
    counts = np.arange(n + 1)
    below = error_limit(counts, n, risk) < rate
    assert stats.binom.pmf(counts, n, rate)[below].sum() <= risk


@pytest.mark.parametrize("mu", [0.2, 1.0, 3.0])
@pytest.mark.parametrize("at", [-1.0, 0.5, 2.0])
def test_a_gaussian_is_bounded_above_its_mu_with_at_most_the_risk(mu: float, at: float) -> None:
    n, risk = 80, 0.05
    rates = float(stats.norm.sf(at)), float(stats.norm.cdf(at - mu))
    assert chance(Separation(*grid(n), n).mu(risk) > mu * (1 + 1e-9), n, *rates) <= risk


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("delta", [0.0, 0.01])
def test_an_answer_at_random_is_bounded_above_its_epsilon_with_at_most_the_risk(
    epsilon: float, delta: float
) -> None:
    """Randomised response is the worst of all mechanisms with its (epsilon, delta)."""
    n, risk = 80, 0.05
    wrong = (1 - delta) / (1 + math.exp(epsilon))
    above = Separation(*grid(n), n).epsilon(delta, risk) > epsilon * (1 + 1e-9)
    assert chance(above, n, wrong, wrong) <= risk
    # The other direction alone is as safe: an event that has probability delta only on the second neighbour.
    assert chance(above, n, 0.1, 1 - min(0.1 * math.exp(epsilon) + delta, 1)) <= risk


@pytest.mark.parametrize("mu", [0.24, 0.84, 1.5])
def test_a_true_gaussian_claim_is_hardly_ever_refuted(mu: float) -> None:
    """The audit promises 1e-4; as both rates would have to be off, the probability is below 1e-6."""
    n = 750
    rate = float(stats.norm.sf(mu / 2))
    assert chance(Separation(*grid(n), n).mu(REFUTED_AT / 2) > mu, n, rate, rate) < 1e-6


@pytest.mark.parametrize("epsilon", [0.05, 1.0, 5.0])
def test_mu_of_a_pure_mechanism_is_the_one_that_accounting_uses(epsilon: float) -> None:
    assert pure_epsilon(1 / mu_of_pure(epsilon)) == pytest.approx(epsilon, rel=1e-12)


@pytest.mark.parametrize("sign", [1, -1])
def test_an_audit_finds_the_direction_and_stays_below_the_truth(sign: int) -> None:
    """The seed is fixed: with another seed the bound exceeds the truth in less than 5% of runs."""
    finding = audit(normal_case(1.0, claimed=1.0, sign=sign), 4000)
    assert 0.8 < finding.mu_lower_bound < 1.0
    assert not finding.refuted
    # At this delta the Gaussian of mu = 1 has epsilon = 4.9.
    assert 1.5 < finding.epsilon_lower_bound < 4.9


def test_a_claim_is_refuted_by_either_bound() -> None:
    assert audit(normal_case(2.0, claimed=1.0), 2000).refuted
    assert audit(normal_case(20.0, claimed=math.inf, epsilon=2.0), 2000).refuted
    assert not audit(normal_case(2.0, claimed=math.inf, epsilon=5.0), 4000).refuted


def test_equal_scores_tell_nothing() -> None:
    case = Case("constant", Claim(0.1, 1e-6, 0.1), lambda second, n: np.zeros(n))
    finding = audit(case, 500)
    assert finding.epsilon_lower_bound == finding.mu_lower_bound == 0
    assert not finding.refuted


def test_what_the_choosing_half_shows_does_not_count() -> None:
    seen: list[int] = []

    def sample(second: bool, n: int) -> NDArray[np.float64]:
        seen.append(n)
        # The neighbours differ in the first 500 runs each, and are equal afterwards.
        return np.full(n, float(second and sum(seen) <= 1500))

    finding = audit(Case("early", Claim(1.0, 1e-6, 1.0), sample), 1000)
    assert sum(seen) == 2000
    assert finding.epsilon_lower_bound == finding.mu_lower_bound == 0


def test_a_score_that_is_no_number_is_a_bug() -> None:
    case = Case("nan", Claim(1.0, 1e-6, 1.0), lambda second, n: np.full(n, np.nan))
    with pytest.raises(ArithmeticError, match="nan"):
        audit(case, 500)


@pytest.mark.parametrize(
    "claim",
    [Claim(2.0, 0.0, math.inf), Claim(50.0, 1e-6, 1.5), Claim(1.0, 0.3, 9.0), Claim(9.0, 0.0, 1.0)],
)
def test_the_least_trials_are_those_that_can_refute(claim: Claim) -> None:
    trials = least_trials(claim)
    apart = Separation(0, 0, trials // 2)
    assert Finding("apart", claim, trials, apart, apart).refuted
    fewer = Separation(0, 0, trials // 2 - 1)
    assert not Finding("apart", claim, trials, fewer, fewer).refuted
    case = Case("apart", claim, lambda second, n: np.full(n, float(second)))
    with pytest.raises(UserError, match=f"raise them to {trials}"):
        audit(case, trials - 1)


@pytest.mark.parametrize("claim", [Claim(800.0, 0.0, math.inf), Claim(1000.0, 1e-6, 45.0)])
def test_a_claim_that_no_number_of_trials_refutes_is_said_to_be_one(claim: Claim) -> None:
    case = Case("vast", claim, lambda second, n: np.full(n, float(second)))
    with pytest.raises(UserError, match="too few to refute the claim of vast"):
        audit(case, 1000)
