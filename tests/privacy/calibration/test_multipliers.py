"""The noise that a promise requires, judged at 60 digits or more."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from threading import Event, Thread, current_thread
from typing import Any

import mpmath
import pytest
from dp_accounting import get_sigma_gaussian

from streaming_pca.privacy.calibration import multipliers
from streaming_pca.privacy.calibration.multipliers import (
    gaussian_delta,
    gaussian_multiplier,
    gaussian_rho,
    lattice_sigma,
    pure_epsilon,
    textbook_multiplier,
)
from streaming_pca.privacy.errors import CalibrationError, ParameterError
from tests.data.refusals import refuses
from tests.waiting import LIMIT

EPSILONS = [1e-6, 1e-3, 0.1, 0.5, 1.0, 3.0, 10.0, 30.0, 100.0]
DELTAS = [1e-300, 1e-100, 1e-15, 1e-9, 1e-6, 1e-2, 0.3, 0.5]


def exact_delta(epsilon: float, multiplier: float | Fraction) -> mpmath.mpf:
    """Return delta by Balle and Wang 2018, Theorem 8."""
    with mpmath.workdps(80):
        e = mpmath.mpf(epsilon)
        z = mpmath.mpf(Fraction(multiplier).numerator) / Fraction(multiplier).denominator
        half = 1 / (2 * z)
        return mpmath.ncdf(half - e * z) - mpmath.exp(e) * mpmath.ncdf(-half - e * z)


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("multiplier", [0.1, 0.3, 1.0, 4.0, 50.0, 3000.0])
def test_delta_is_that_of_the_analytic_gaussian_mechanism(epsilon: float, multiplier: float) -> None:
    exact = exact_delta(epsilon, multiplier)
    assert exact <= gaussian_delta(epsilon, multiplier) <= exact * (1 + 1e-15) + 1e-323


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_the_multiplier_is_private_and_tight(epsilon: float, delta: float) -> None:
    multiplier = gaussian_multiplier(epsilon, delta)
    assert exact_delta(epsilon, multiplier) <= delta
    assert exact_delta(epsilon, multiplier * (1 - 1e-12)) > delta


def test_threads_take_no_digits_from_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation with fewer digits begins within the first one, and outlasts it: each keeps its own."""
    first_ends, second_comes = Event(), Event()
    digits: tuple[set[int], set[int]] = (set(), set())
    lock, delta = multipliers._evaluating, multipliers._delta

    class Watched:
        def __enter__(self) -> None:
            if current_thread() is second:
                second_comes.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def watched(context: Any, *arguments: Any) -> Any:
        own = digits[current_thread() is second]
        own.add(context.dps)
        if current_thread() is second:
            second_comes.set()
            first_ends.wait()
        elif second.ident is None:
            second.start()
            # It comes to the lock; without one it would come here.
            second_comes.wait(LIMIT)
        own.add(context.dps)
        return delta(context, *arguments)

    second = Thread(target=gaussian_multiplier.__wrapped__, args=(1.0, 1e-6))
    monkeypatch.setattr(multipliers, "_evaluating", Watched())
    monkeypatch.setattr(multipliers, "_delta", watched)
    gaussian_multiplier.__wrapped__(1e-9, 1e-300)
    first_ends.set()
    second.join()
    (most,), (least,) = digits
    assert most > least > 60


@pytest.mark.parametrize("epsilon", EPSILONS)
@pytest.mark.parametrize("delta", DELTAS)
def test_the_multiplier_agrees_with_dp_accounting(epsilon: float, delta: float) -> None:
    """dp-accounting errs by up to 4e-8 at epsilon 1e-6 and 2e-10 at 1e-3; also towards too little noise."""
    tolerance = 1e-7 if epsilon <= 1e-3 else 1e-10
    theirs = get_sigma_gaussian(epsilon, delta)
    assert gaussian_multiplier(epsilon, delta) == pytest.approx(theirs, rel=tolerance)


@pytest.mark.parametrize(
    ("epsilon", "delta"),
    [(0.1, 0.3), (0.3, 1e-6), (0.07, 0.1), (1e12, 1e-300), (1e-200, 1e-6), (1.0, 5e-324)],
)
def test_the_multiplier_is_private_at_the_decimals_that_are_charged(epsilon: float, delta: float) -> None:
    """The decimals count, rather than the nearest floats; this includes extreme values."""
    with mpmath.workdps(800):
        e, z = mpmath.mpf(repr(epsilon)), mpmath.mpf(gaussian_multiplier(epsilon, delta))
        half = 1 / (2 * z)
        # ncdf rounds its argument to the working precision, which must distinguish the two arguments.
        reached = mpmath.ncdf(half - e * z) - mpmath.exp(e) * mpmath.ncdf(-half - e * z)
        promised = min(mpmath.mpf(repr(delta)), mpmath.mpf(delta))
        assert promised * (1 - mpmath.mpf("1e-8")) <= reached <= promised


@pytest.mark.parametrize("delta", [1e-300, 1e-12, 1e-6, 1e-2, 0.5, 0.99])
def test_the_textbook_multiplier_is_private_wherever_it_is_used(delta: float) -> None:
    for epsilon in (1e-3, 0.01, 0.5, 1.0):
        assert textbook_multiplier(epsilon, delta) >= gaussian_multiplier(epsilon, delta)
    assert textbook_multiplier(2.0, delta) == gaussian_multiplier(2.0, delta)


@pytest.mark.parametrize("multiplier", [0.05, 0.3, 1.0, 4.2, 30.0, 1e4, 1e12])
def test_at_the_pure_epsilon_a_mechanism_is_no_easier_to_tell_than_a_gaussian(multiplier: float) -> None:
    """Its type II error is nowhere below the Gaussian's; at 1e-9 more epsilon it is, on the diagonal."""

    def margin(epsilon: mpmath.mpf, alpha: mpmath.mpf) -> mpmath.mpf:
        pure = max(1 - mpmath.exp(epsilon) * alpha, mpmath.exp(-epsilon) * (1 - alpha))
        quantile = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * alpha)
        return pure - mpmath.ncdf(quantile - 1 / mpmath.mpf(multiplier))

    with mpmath.workdps(60):
        epsilon = mpmath.mpf(pure_epsilon(multiplier))
        corner = 1 / (1 + mpmath.exp(epsilon))
        for part in ("1e-9", "0.001", "0.3", "0.9", "0.999999", "1"):
            assert margin(epsilon, corner * mpmath.mpf(part)) >= 0
            assert margin(epsilon, 1 - (1 - corner) * mpmath.mpf(part)) >= 0
        assert margin(epsilon * (1 + mpmath.mpf("1e-9")), 1 / (1 + mpmath.exp(epsilon))) < 0


@pytest.mark.parametrize("epsilon", [0.01, 1.0, 10.0, 100.0])
@pytest.mark.parametrize("delta", [1e-9, 1e-2])
@pytest.mark.parametrize("sensitivity", [1.0, 2.0**40])
@pytest.mark.parametrize("contributions", [1, 3, 1000])
def test_the_lattice_scale_is_that_of_one_gaussian_and_no_larger(
    epsilon: float, delta: float, sensitivity: float, contributions: int
) -> None:
    """c batches are one Gaussian of sqrt(c) times the sensitivity, for any lattice and values."""
    sigma = lattice_sigma(epsilon, delta, sensitivity, contributions=contributions)
    with mpmath.workdps(40):
        together = mpmath.mpf(sigma) / sensitivity / mpmath.sqrt(contributions)
    assert exact_delta(epsilon, Fraction(mpmath.nstr(together, 38))) <= delta
    least = gaussian_multiplier(epsilon, delta) * math.sqrt(contributions) * sensitivity
    assert sigma <= (1 + 1e-15) * least


def test_a_larger_multiplier_is_kept_and_a_smaller_one_refused() -> None:
    for contributions in (1, 4):
        needed = gaussian_multiplier(1.0, 1e-6) * math.sqrt(contributions)
        kept = lattice_sigma(1.0, 1e-6, 2.0**40, 2 * needed, contributions)
        assert kept == 2 * needed * 2.0**40
        with pytest.raises(CalibrationError, match="noise multiplier"):
            lattice_sigma(1.0, 1e-6, 2.0**40, 0.99 * needed, contributions)


@pytest.mark.parametrize(("epsilon", "delta"), [(1e-7, 1e-9), (1e-320, 5e-324)])
def test_a_promise_that_int64_cannot_keep_is_refused(epsilon: float, delta: float) -> None:
    refuses("raise epsilon", lattice_sigma, epsilon, delta, 2.0**40, error=CalibrationError)


@pytest.mark.parametrize("multiplier", [0.1, 1.0, 4.2246, 1e4])
def test_rho_is_rounded_up(multiplier: float) -> None:
    exact = 1 / (2 * Fraction(multiplier) ** 2)
    assert exact <= gaussian_rho(multiplier) <= exact * (1 + Fraction(1, 10**14)) + Fraction(1, 10**12)


NO_NUMBERS = [0.0, -1.0, math.nan, math.inf, -math.inf, True, "1", None, 10**400]
NO_SHARES = [0.0, 1.0, -0.1, 1.5, math.nan, math.inf, False, "0.1"]
CASES: list[tuple[Callable[..., object], dict[str, object], dict[str, list[object]]]] = [
    (gaussian_delta, {"epsilon": 1.0, "multiplier": 1.0}, {"epsilon": NO_NUMBERS, "multiplier": NO_NUMBERS}),
    (gaussian_multiplier, {"epsilon": 1.0, "delta": 0.1}, {"epsilon": NO_NUMBERS, "delta": NO_SHARES}),
    (textbook_multiplier, {"epsilon": 1.0, "delta": 0.1}, {"epsilon": NO_NUMBERS, "delta": NO_SHARES}),
    (pure_epsilon, {"multiplier": 1.0}, {"multiplier": [*NO_NUMBERS, 1e-300]}),
    (gaussian_rho, {"multiplier": 1.0}, {"multiplier": NO_NUMBERS}),
    (
        lattice_sigma,
        {"epsilon": 1.0, "delta": 1e-6, "sensitivity": 2.0**40},
        {
            "epsilon": [*NO_NUMBERS, 1e13],
            "delta": NO_SHARES,
            "sensitivity": NO_NUMBERS,
            "multiplier": [n for n in NO_NUMBERS if n is not None],
            "contributions": [0, -1, 1.5, math.nan, True],
        },
    ),
]


@pytest.mark.parametrize(
    ("function", "good", "name", "bad"),
    [
        (function, good, name, bad)
        for function, good, wrong in CASES
        for name, values in wrong.items()
        for bad in values
    ],
)
def test_a_parameter_out_of_its_range_is_named(
    function: Callable[..., object], good: dict[str, object], name: str, bad: object
) -> None:
    function(**good)
    refuses(f"^{name} must ", function, **{**good, name: bad}, error=ParameterError)


def test_the_smallest_epsilon_has_a_multiplier() -> None:
    """At epsilon = 0 delta is 2 Phi(1/(2 z)) - 1: about 0.4/z."""
    for delta in (1e-3, 1e-300):
        assert gaussian_multiplier(math.ulp(0.0), delta) * delta == pytest.approx(0.3989422804, rel=1e-6)
