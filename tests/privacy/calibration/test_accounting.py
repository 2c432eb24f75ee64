"""Composition: the routes agree with each other and with exact results."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import mpmath
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from streaming_pca.privacy.calibration.multipliers import (
    gaussian_delta,
    gaussian_multiplier,
    lattice_sigma,
    pure_epsilon,
)
from streaming_pca.privacy.errors import ParameterError
from streaming_pca.privacy.ledger.cap import within_cap
from streaming_pca.privacy.ledger.entries import Cap
from streaming_pca.privacy.parameters import Charge
from tests.privacy.calibration.accounting import (
    Approximate,
    Gaussian,
    Mechanism,
    Parallel,
    Pure,
    Route,
    delta_of,
    epsilon_of,
)

ROUTES = list(Route)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize(("epsilon", "delta"), [(0.2, 1e-6), (1.0, 1e-6), (3.0, 1e-2)])
def test_one_gaussian_costs_what_it_was_calibrated_for(epsilon: float, delta: float, route: Route) -> None:
    """The exact routes give exactly this; zCDP gives at least it, and at most a fifth more epsilon."""
    found = epsilon_of([Gaussian(gaussian_multiplier(epsilon, delta))], delta, route)
    assert epsilon * (1 - 1e-9) <= found <= epsilon * (1.2 if route is Route.ZCDP else 1 + 1e-5)


@pytest.mark.parametrize("route", ROUTES)
def test_gaussians_compose_by_the_squares_of_their_inverse_multipliers(route: Route) -> None:
    parts = [Gaussian(3.0), Gaussian(4.0), Gaussian(4.0)]
    whole = Gaussian(1 / math.sqrt(1 / 9 + 2 / 16))
    assert delta_of(parts, 2.0, route) == pytest.approx(delta_of([whole], 2.0, route), rel=1e-4)
    if route is not Route.ZCDP:
        assert delta_of(parts, 2.0, route) == pytest.approx(gaussian_delta(2.0, whole.multiplier), rel=1e-4)


@pytest.mark.parametrize("route", ROUTES)
def test_replacing_a_record_costs_a_gaussian_its_sensitivity_once(route: Route) -> None:
    """REPLACE_ONE of dp-accounting would double it: multiplier 4 would then cost as 2 does."""
    assert delta_of([Gaussian(4.0)], 1.0, route) < 1e-2 * delta_of([Gaussian(2.0)], 1.0, route)


def test_pure_mechanisms_compose_as_randomised_response_by_pld() -> None:
    """Kairouz, Oh and Viswanath 2015: delta of k randomised responses, summed exactly."""
    epsilon, k, target = 0.5, 6, 1.2
    with mpmath.workdps(40):
        truth = 1 / (1 + mpmath.exp(-mpmath.mpf(epsilon)))
        losses = [
            (mpmath.binomial(k, i) * truth ** (k - i) * (1 - truth) ** i, (k - 2 * i) * mpmath.mpf(epsilon))
            for i in range(k + 1)
        ]
        exact = mpmath.fsum(p * max(1 - mpmath.exp(target - loss), 0) for p, loss in losses)
    assert delta_of([Pure(epsilon)] * k, target, Route.PLD) == pytest.approx(float(exact), rel=1e-6)
    for route in (Route.ZCDP, Route.GDP):
        assert delta_of([Pure(epsilon)] * k, target, route) >= exact


def test_epsilon_of_a_pure_mechanism_is_its_own_by_pld() -> None:
    assert epsilon_of([Pure(0.7)], 1e-9, Route.PLD) == pytest.approx(0.7, rel=1e-6)
    # Never above the sum.
    assert epsilon_of([Pure(0.7)] * 4, 1e-9, Route.PLD) <= 2.8 * (1 + 1e-6)


@pytest.mark.parametrize("route", ROUTES)
def test_the_delta_of_an_approximate_mechanism_stands_beside_the_rest(route: Route) -> None:
    with_delta = delta_of([Approximate(0.3, 1e-5), Gaussian(5.0)], 1.5, route)
    assert with_delta == pytest.approx(delta_of([Pure(0.3), Gaussian(5.0)], 1.5, route) + 1e-5, rel=1e-9)


def test_disjoint_parts_cost_the_worst_of_them() -> None:
    gaussian, pure = Gaussian(5.0), Pure(0.9)
    for route in ROUTES:
        alone = max(delta_of([gaussian], 0.5, route), delta_of([pure], 0.5, route))
        assert delta_of([Parallel(gaussian, pure)], 0.5, route) == pytest.approx(alone, rel=1e-9)
        # One part of a batch, and then a mechanism on the whole: the worst part counts.
        after = Gaussian(8.0)
        both = max(delta_of([part, after], 0.5, route) for part in (gaussian, pure))
        found = delta_of([Parallel(gaussian, pure), after], 0.5, route)
        assert both * (1 - 1e-4) <= found
        assert found == pytest.approx(both, rel=1e-2)


@pytest.mark.parametrize("contributions", [1, 2, 5])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.3, 1e-6), (1.0, 1e-6), (4.0, 1e-3)])
def test_the_rule_for_users_covers_every_mixture_and_wastes_nothing(
    epsilon: float, delta: float, contributions: int
) -> None:
    """Gaussians have sqrt(c) times the multiplier, pure parts `pure_epsilon`, in any mixture.

    The numerical bounds on every fixed choice of parts stay within the promise
    (1e-5 for their pessimistic rounding), and the worst choice reaches it, so
    no rule could be cheaper by more than that.
    """
    sigma = lattice_sigma(epsilon, delta, 2.0**40, contributions=contributions)
    gaussian = Gaussian(sigma / 2.0**40)
    batch = Parallel(gaussian, Pure(pure_epsilon(sigma / 2.0**40)))
    by_rule = epsilon_of([batch], delta, Route.GDP, contributions)
    by_pld = epsilon_of([batch], delta, Route.PLD, contributions)
    assert by_rule == pytest.approx(epsilon, rel=1e-7)
    assert epsilon * (1 - 1e-5) <= by_pld <= epsilon * (1 + 1e-5)
    assert by_rule <= epsilon_of([batch], delta, Route.ZCDP, contributions)
    # Pure parts alone cost less, so the Gaussian ones determine the price.
    pure = [p for p in batch.parts if isinstance(p, Pure)]
    assert epsilon_of(pure, delta, Route.PLD, contributions) < epsilon


def test_the_rule_for_users_would_fail_with_a_pure_part_at_the_whole_epsilon() -> None:
    """A pure part with the whole epsilon fails over several batches: the test above can fail."""
    sigma = lattice_sigma(1.0, 1e-6, 2.0**40, contributions=3)
    batch = Parallel(Gaussian(sigma / 2.0**40), Pure(1.0))
    assert epsilon_of([batch], 1e-6, Route.PLD, 3) > 2
    assert epsilon_of([batch], 1e-6, Route.GDP, 3) > 2


@settings(max_examples=12, deadline=None)
@given(
    multipliers=st.lists(st.floats(1, 10), min_size=1, max_size=3),
    epsilons=st.lists(st.floats(0.2, 1), min_size=1, max_size=3),
    target=st.floats(0.2, 4),
)
def test_no_route_is_below_the_tightest(multipliers: list[float], epsilons: Any, target: float) -> None:
    """PLD is exact to its rounding, so zCDP and GDP exceed it, less a thousandth."""
    mechanisms: Sequence[Mechanism] = [*map(Gaussian, multipliers), *map(Pure, epsilons)]
    tightest = delta_of(mechanisms, target, Route.PLD)
    for route in (Route.ZCDP, Route.GDP):
        assert delta_of(mechanisms, target, route) >= tightest * (1 - 1e-3) - 1e-9


@pytest.mark.parametrize("route", ROUTES)
def test_mechanisms_of_very_different_cost_compose(route: Route) -> None:
    """The route pld rounds the small mechanism up to the large one's interval."""
    alone = epsilon_of([Gaussian(0.5)], 1e-6, route)
    assert alone <= epsilon_of([Gaussian(0.5), Pure(1e-6)], 1e-6, route) <= 1.002 * alone


def test_epsilon_and_delta_are_inverse() -> None:
    mechanisms = [Gaussian(3.0), Pure(0.4), Approximate(0.2, 1e-9)]
    for route in ROUTES:
        epsilon = epsilon_of(mechanisms, 1e-5, route)
        assert delta_of(mechanisms, epsilon, route) <= 1e-5
        assert delta_of(mechanisms, epsilon * (1 - 1e-6), route) > 1e-5


# The ledger's filter, with an adversary who sees the remaining budget.

SMALL = st.fractions(Fraction(0), Fraction(2), max_denominator=10**6)


@settings(max_examples=100, deadline=None)
@given(
    cap=st.tuples(
        st.fractions(Fraction(1, 100), Fraction(5), max_denominator=1000),
        st.fractions(Fraction(1, 10**9), Fraction(1, 10), max_denominator=10**9),
    ),
    rule=st.sampled_from(["basic", "zcdp"]),
    moves=st.lists(st.tuples(st.sampled_from(["all", "half", "more", "free"]), SMALL), max_size=30),
)
def test_charges_chosen_from_what_is_left_never_pass_the_cap(
    cap: tuple[Fraction, Fraction], rule: str, moves: list[tuple[str, Fraction]]
) -> None:
    """The filter accepts or rejects charges; accepted ones are judged separately, at 60 digits."""
    limit = Cap(epsilon=cap[0], delta=cap[1])
    spent = Charge.nothing()
    accepted: list[Charge] = []
    with mpmath.workdps(60):
        log = mpmath.log(mpmath.mpf(cap[1].denominator) / cap[1].numerator)
        most = (mpmath.sqrt(log + mpmath.mpf(cap[0].numerator) / cap[0].denominator) - mpmath.sqrt(log)) ** 2
    largest_rho = Fraction(mpmath.nstr(most, 40))
    for move, amount in moves:
        left = (cap[0] - spent.epsilon, cap[1] - spent.delta, largest_rho - Fraction(spent.rho or 0))
        shares = {"all": Fraction(1), "half": Fraction(1, 2), "more": 1 + Fraction(1, 10**15)}
        by = shares.get(move, amount)
        epsilon, delta, rho = (max(Fraction(part) * by, Fraction(0)) for part in left)
        charge = Charge(epsilon=epsilon, delta=delta, rho=rho)
        if within_cap(spent + charge, limit, rule):
            spent += charge
            accepted.append(charge)
    if rule == "basic":
        assert sum(Fraction(c.epsilon) for c in accepted) <= cap[0]
        assert sum(Fraction(c.delta) for c in accepted) <= cap[1]
    else:
        total = sum((Fraction(c.rho or 0) for c in accepted), Fraction(0))
        with mpmath.workdps(60):
            rho = mpmath.mpf(total.numerator) / total.denominator
            assert rho + 2 * mpmath.sqrt(rho * log) <= mpmath.mpf(cap[0].numerator) / cap[0].denominator
        # By the exact formula, the real cost of a Gaussian with that rho is within the cap, too.
        if total > 0:
            assert gaussian_delta(float(cap[0]), 1 / math.sqrt(2 * total)) <= cap[1]


@pytest.mark.parametrize(
    ("make", "name"),
    [
        *((lambda: Gaussian(0.0), "multiplier"), (lambda: Gaussian(math.nan), "multiplier")),
        *((lambda: Pure(0.0), "epsilon"), (lambda: Pure(math.inf), "epsilon")),
        (lambda: Pure(1000.0), "epsilon"),
        (lambda: delta_of([Pure(1.0)], 1000.0, Route.GDP), "epsilon"),
        (lambda: delta_of([Gaussian(0.01)], 1.0, Route.PLD), "mechanisms"),
        *((lambda: Approximate(1.0, 0.0), "delta"), (lambda: Approximate(1.0, 1.0), "delta")),
        *((lambda: Parallel(), "parts"), (lambda: delta_of([], 1.0, Route.PLD), "mechanisms")),
        (lambda: delta_of([Pure(1.0)], math.nan, Route.PLD), "epsilon"),
        (lambda: delta_of([Pure(1.0)], 1.0, Route.PLD, 0), "contributions"),
        (lambda: epsilon_of([Pure(1.0)], 0.0, Route.GDP), "delta"),
        (lambda: epsilon_of([Pure(1.0)], 1.0, Route.GDP), "delta"),
    ],
)
def test_a_parameter_out_of_its_range_is_named(make: object, name: str) -> None:
    assert callable(make)
    with pytest.raises(ParameterError, match=f"^{name} "):
        make()
