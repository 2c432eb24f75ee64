"""Exact cost of Gaussian noise and of zCDP, and noise scales for a guarantee.

All is about replace-one adjacency: ``sensitivity`` is always the largest L2 distance between the sums of
two inputs that differ in one unit. :class:`~streaming_pca.privacy.parameters.Charge` reads a float as the
decimal that prints it, so ``epsilon`` and ``delta`` are read as the smaller of float and decimal here, and
every result is rounded towards more noise. A parameter out of its range is a
:class:`~streaming_pca.privacy.errors.ParameterError`.

Proofs: docs/explanation/proofs/noise.md.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from fractions import Fraction
from functools import cache, lru_cache
from importlib import import_module
from threading import Lock
from typing import Any

import numpy as np

from streaming_pca.privacy.errors import (
    CalibrationError,
    ParameterError,
    require_count,
    require_open_unit,
    require_positive,
)
from streaming_pca.privacy.noise import GREATEST_SIGMA

_GREATEST_EPSILON = 1e12  # largest epsilon of a charge; further out, arguments outgrow the evaluations

_LEAST_MULTIPLIER = 1e-50  # less noise than any charge allows

_DIGITS = 60  # decimal digits of the evaluations; they lose only the last ones to rounding

# At its first use: the import takes 80 ms, and most commands calibrate nothing. Kept: making it takes 2 ms.
_context = cache(lambda: import_module("mpmath").MPContext())
_evaluating = Lock()
if hasattr(os, "register_at_fork"):
    # A child that is forked while another thread evaluates would wait for it for ever.
    os.register_at_fork(
        before=_evaluating.acquire, after_in_parent=_evaluating.release, after_in_child=_evaluating.release
    )


def gaussian_delta(epsilon: float, multiplier: float) -> float:
    """Return the delta of a Gaussian mechanism, rounded up.

    The multiplier z is its noise standard deviation over its sensitivity.

    [BalleWang2018, Theorem 8]: delta = Phi(a) - e^epsilon Phi(b) with
    a = 1/(2 z) - epsilon z and b = -1/(2 z) - epsilon z.
    """
    _check_epsilon(epsilon)
    _check_multiplier(multiplier)
    # Phi(-1e6) is e**-(5e11): far below the smallest float.
    if epsilon * multiplier - 0.5 / multiplier > 1e6:
        return math.ulp(0.0)
    with _evaluation(_digits(multiplier)) as mpmath:
        delta = float(_delta(mpmath, mpmath.mpf(epsilon), 1 / mpmath.mpf(multiplier)))
    return math.nextafter(delta, math.inf)


@lru_cache(maxsize=1024, typed=True)
def gaussian_multiplier(epsilon: float, delta: float) -> float:
    """Return the least noise multiplier of a Gaussian that is (epsilon, delta)-private.

    It is of the analytic Gaussian mechanism [BalleWang2018, Alg. 1], rounded up: its exact delta is never
    above ``delta`` and no multiplier smaller by 1e-15 (relative) is enough. :class:`CalibrationError` if
    no float is large enough.
    """
    _check_epsilon(epsilon)
    require_open_unit("delta", delta)
    # Imported here: most commands calibrate nothing. Not scipy, which producers skip.
    from statistics import NormalDist

    start = _least_mu(epsilon, -NormalDist().inv_cdf(delta))
    with _evaluation(_digits(start)) as mpmath:
        e, target = (min(mpmath.mpf(repr(x)), mpmath.mpf(x)) for x in (float(epsilon), float(delta)))
        mu = mpmath.mpf(start)
        # Newton's method on log delta over log mu. The check below does not depend on its convergence.
        for _ in range(1000):
            value = _delta(mpmath, e, mu)
            step = mpmath.log(target / value) * value / (mu * mpmath.npdf(mu / 2 - e / mu))
            mu *= mpmath.exp(step)
            if abs(step) < mpmath.mpf(10) ** -25:
                break
        multiplier = float(1 / mu)
        # The evaluation's own error is about 1e-50 of delta.
        allowed = target * (1 - mpmath.mpf(10) ** -40)
        while multiplier < math.inf and _delta(mpmath, e, 1 / mpmath.mpf(multiplier)) > allowed:
            multiplier = math.nextafter(multiplier, math.inf)
    if multiplier == math.inf:
        raise CalibrationError(f"epsilon = {epsilon:g} needs more noise than a float holds: raise epsilon")
    return multiplier


@lru_cache(maxsize=1024, typed=True)
def pure_epsilon(multiplier: float) -> float:
    """Return the largest epsilon whose pure mechanisms cost at most one Gaussian of multiplier z.

    Rounded down: every epsilon-DP mechanism is (1/z)-GDP.

    epsilon = log(Phi(mu/2)/Phi(-mu/2)) with mu = 1/z [DongRothSu2022].
    """
    _check_multiplier(multiplier)
    with _evaluation(_digits(multiplier)) as mpmath:
        x = 1 / (2 * mpmath.sqrt(2) * mpmath.mpf(multiplier))
        exact = mpmath.log(mpmath.erfc(-x) / mpmath.erfc(x)) * (1 - mpmath.mpf(10) ** -25)
        epsilon = float(exact)
        # The decimal that prints it is charged, and may be larger.
        while mpmath.mpf(epsilon) > exact or mpmath.mpf(repr(epsilon)) > exact:
            epsilon = math.nextafter(epsilon, 0.0)
    return epsilon


@lru_cache(maxsize=1024, typed=True)
def greatest_rho(epsilon: float, delta: float) -> float:
    """Return the largest rho, to 1e-4 and rounded down, whose zCDP implies (epsilon, delta)-DP.

    [CanonneKamathSteinke2020, Corollary 13]: for every alpha > 1, rho-zCDP
    gives delta = exp((alpha - 1)(alpha rho - epsilon)) (1 - 1/alpha)^alpha/(alpha - 1).
    Solved for rho; any alpha is sound, so a grid of them is enough.
    """
    _check_epsilon(epsilon)
    require_open_unit("delta", delta)
    orders = 1 + np.exp(np.linspace(-14.0, 40.0, 20_001))
    tails = math.log(delta) + np.log(orders - 1) - orders * np.log1p(-1 / orders)
    best = float(orders[np.argmax((epsilon + tails / (orders - 1)) / orders)])
    with _evaluation(_DIGITS) as mpmath:
        e, d = (min(mpmath.mpf(repr(x)), mpmath.mpf(x)) for x in (float(epsilon), float(delta)))
        a = mpmath.mpf(best)
        tail = mpmath.log(d) + mpmath.log(a - 1) - a * mpmath.log1p(-1 / a)
        rho = float((e + tail / (a - 1)) / a * (1 - mpmath.mpf(10) ** -12))
    if not rho > 0:
        raise CalibrationError(f"epsilon = {epsilon:g} is too small for zCDP: raise epsilon or delta")
    return rho


def textbook_multiplier(epsilon: float, delta: float) -> float:
    """Return sqrt(2 ln(1.25/delta))/epsilon, the constant of textbooks.

    Valid for epsilon <= 1 only; above that the analytic value is returned.
    Only for estimators that follow a paper with this constant.
    """
    require_positive("epsilon", epsilon)
    require_open_unit("delta", delta)
    if epsilon > 1:
        return gaussian_multiplier(epsilon, delta)
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def least_multiplier(epsilon: float, delta: float, contributions: int = 1) -> float:
    """Return the least multiplier of c Gaussians that are (epsilon, delta)-DP together.

    Rounded up; c is ``contributions``. It is the same for sums of any sensitivity, lattice and number
    of coordinates, so a unit's c batches may hold any mix of sums. Parameters, errors and proof:
    :func:`lattice_sigma`.
    """
    require_count("contributions", contributions)
    root = math.sqrt(contributions)
    if Fraction(root) ** 2 < contributions:
        root = math.nextafter(root, math.inf)
    return product_up(gaussian_multiplier(epsilon, delta), root)


@lru_cache(maxsize=1024, typed=True)
def lattice_sigma(
    epsilon: float, delta: float, sensitivity: float, multiplier: float | None = None, contributions: int = 1
) -> float:
    """Return the noise scale, in lattice units, of Gaussians that are (epsilon, delta)-private together.

    (epsilon, delta) is the guarantee for one unit, over all its batches; it may enter ``contributions`` of
    them. ``sensitivity`` is L2, replace-one, of one batch's sum in lattice units. ``multiplier`` is a larger
    noise multiplier of one batch, as from a paper; it is checked. Raises CalibrationError if int64 is too
    narrow for the noise, or the given multiplier is too small.

    A Gaussian of multiplier z is (1/z)-GDP, and c mechanisms that are mu-GDP each are sqrt(c) mu-GDP
    together, also when each is chosen after seeing the earlier ones' answers [DongRothSu2022, Theorem 3.2],
    and when these decide which batches the unit enters [SmithThakurta2022; KoskelaTobabenHonkela2023]. So a
    batch's multiplier is sqrt(c) times the multiplier of a single Gaussian. Sums are integers and answers are
    rounded (:mod:`~streaming_pca.privacy.noise`), which changes nothing: neither the number of coordinates
    nor the lattice's unit matters.
    """
    require_positive("sensitivity", sensitivity)
    needed = least_multiplier(epsilon, delta, contributions)
    if multiplier is not None:
        require_positive("multiplier", multiplier)
        if multiplier < needed:
            raise CalibrationError(f"noise multiplier {multiplier} is below the needed {needed}")
        needed = multiplier
    return require_room(product_up(needed, sensitivity), epsilon)


def require_room(sigma: float, epsilon: float) -> float:
    """Return sigma; CalibrationError if int64 cannot hold such noise in addition to a sum."""
    if sigma > GREATEST_SIGMA:
        raise CalibrationError(f"epsilon = {epsilon:g} needs more noise than int64 sums hold: raise epsilon")
    return sigma


def gaussian_rho(multiplier: float) -> Fraction:
    """Return the zCDP parameter 1/(2 z^2), rounded up to 12 digits.

    [BunSteinke2016, Proposition 1.6]; the discrete Gaussian of older streams
    has the same [CanonneKamathSteinke2020, Theorem 4]. The multiplier may be
    a rounded quotient: an excess of 1e-15 over the true one is covered.
    """
    require_positive("multiplier", multiplier)
    exact = (1 + Fraction(1, 2**48)) / (2 * Fraction(multiplier) ** 2)
    return Fraction(math.ceil(exact * 10**12), 10**12)


@contextmanager
def _evaluation(digits: int) -> Iterator[Any]:
    """Yield mpmath with a number of digits, to one thread at a time.

    Its usual context has one precision for all threads, so any of them may take another's digits away in the
    middle of a proof. The constants of all contexts share a memory, which two threads may confuse.
    """
    with _evaluating:
        context = _context()
        context.dps = digits
        yield context


def _check_epsilon(epsilon: float) -> None:
    require_positive("epsilon", epsilon)
    if epsilon > _GREATEST_EPSILON:
        raise ParameterError(f"epsilon must be at most {_GREATEST_EPSILON:g}, not {epsilon!r}")


def _check_multiplier(multiplier: float) -> None:
    require_positive("multiplier", multiplier)
    if multiplier < _LEAST_MULTIPLIER:
        raise ParameterError(f"multiplier must be at least {_LEAST_MULTIPLIER:g}, not {multiplier!r}")


def _digits(scale: float) -> int:
    """Return the precision: a small mu makes the terms of delta nearly equal, a large one their arguments."""
    return _DIGITS + 2 * math.ceil(abs(math.log10(scale)))


def _least_mu(epsilon: float, tail: float) -> float:
    """Solve mu/2 - epsilon/mu = -tail."""
    root = math.sqrt(tail * tail + 2 * epsilon)
    # A root is above 0, but may round to 0.
    return max(2 * epsilon / (root + tail), math.ulp(0.0)) if tail > 0 else root - tail


def _delta(mpmath: Any, epsilon: Any, mu: Any) -> Any:
    """Evaluate [BalleWang2018, Theorem 8]; erfc keeps the digits of far tails."""
    root = mpmath.sqrt(2)
    first = mpmath.erfc((epsilon / mu - mu / 2) / root)
    second = mpmath.erfc((epsilon / mu + mu / 2) / root)
    return (first - mpmath.exp(epsilon) * second) / 2


def product_up(a: float, b: float) -> float:
    product = a * b
    if product < math.inf and Fraction(product) < Fraction(a) * Fraction(b):
        product = math.nextafter(product, math.inf)
    return product
