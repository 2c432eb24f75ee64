"""Costs of the mechanisms that a reservation names.

A reservation carries the noise of every mechanism of its batch. These numbers alone determine

- whether all batches that one unit may enter keep epsilon and delta of the privacy contract
  (:func:`check_mechanisms`), and
- a lower bound of their zCDP cost (:func:`least_rho`).

A Gaussian of ``sigma_over_sensitivity`` z is (1/z)-GDP and costs a rho of 1/(2 z^2). A mechanism that is
epsilon-DP costs epsilon^2/2, and is (1/z)-GDP for ``epsilon`` up to ``pure_epsilon(z)``
([BunSteinke2016], Propositions 1.6 and 1.4; [DongRothSu2022]). On the same records rhos and squares of mu
add up, disjoint parts of a batch compose in parallel, and a user's ``contributions_per_user`` batches add up.

``_MECHANISMS`` has the readings of each mechanism of a batch. The cost of a histogram is not a number of the
entry: it is part of the mechanism's definition, and the other numbers are checked here.

All rhos are rationals, so every reader gets the same result of their comparison. The test of
(epsilon, delta) uses :mod:`~streaming_pca.privacy.calibration`, with a slack of one part in 10^12.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from streaming_pca.privacy.calibration.multipliers import gaussian_multiplier, greatest_rho, pure_epsilon
from streaming_pca.privacy.parameters import format_number, parse_rational

TOLERANCE = Fraction(1, 10**12)
"""Relative slack of every comparison; roundings of honest writers are below 1e-14."""

Parameters = dict[str, Any]
Cost = Fraction | float

_RHO_TOLERANCE = 1e-9  # relative slack of a rho from :func:`greatest_rho`, whose orders lie on a grid


def is_of_reports(contract: Parameters, parameters: Parameters) -> bool:
    """Return whether records are reports: batches then have no mechanism and cost nothing."""
    return (
        contract.get("local") is True
        and contract.get("record_kind") == "local"
        and parameters.get("mechanism") == "none"
    )


def least_rho(contract: Parameters, parameters: Parameters) -> Cost:
    """Bound from below the joint cost of all batches that one unit may enter.

    Raises ValueError if parameters are missing or invalid, or the mechanism is not known here.
    """
    if is_of_reports(contract, parameters):
        return Fraction(0)
    readings, _ = _readings(contract, parameters)
    cost = math.inf if parameters["mechanism"] in _UNBOUNDED else max(reading.rho for reading in readings)
    return _contributions(contract) * (cost + _of_counts(parameters) ** 2 / 2) * (1 - TOLERANCE)


def check_mechanisms(contract: Parameters, parameters: Parameters) -> str:
    """Return why mechanisms do not keep epsilon and delta of a private contract; "" if they do.

    The stream is private and does not read reports; the parameters are those of one batch's reservation.
    """
    try:
        epsilon, delta = _number(contract, "epsilon"), _number(contract, "delta")
        if delta >= 1:
            return f"delta must lie below 1, not {format_number(delta)}"
        batches = _contributions(contract)
        readings, in_parts = _readings(contract, parameters)
        counts = batches * _of_counts(parameters)
        left = epsilon - counts
        if left <= 0:
            has, cost = format_number(epsilon), format_number(counts)
            return f"its counts cost epsilon {cost}, which leaves nothing of the {has} in its contract"
        # Each batch keeps its part by itself, or all of them together the whole.
        times, shared = (1, batches) if in_parts else (batches, 1)
        whole = left / shared, delta / shared
        wrong = next((r for r in readings if not r.keeps(*whole, times)), None)
    except (ValueError, OverflowError) as error:
        # Includes a calibration's errors about numbers outside its range.
        return f"its privacy cannot be checked: {error}"
    if wrong is None:
        return ""
    needs = f"epsilon {format_number(left)}, delta {format_number(delta)}"
    of_batches = f" of {batches} batches" if batches > 1 else ""
    return f"{wrong.what} has too little noise for {needs}{of_batches}"


def check_composition(contract: Parameters, first: Parameters, parameters: Parameters) -> str:
    """Return why a batch composes otherwise than its job's ``first`` where users enter several; "" if not.

    Otherwise the parts of different batches could exceed the whole (docs/explanation/ledger.md).
    """
    if contract.get("privacy_unit") != "user" or _composition(first) == _composition(parameters):
        return ""
    return "its mechanism or its counts compose otherwise than those of the job's first batch"


def _composition(parameters: Parameters) -> tuple[bool, Fraction]:
    return parameters.get("mechanism") in _IN_PARTS, _of_counts(parameters)


@dataclass(frozen=True)
class _Composed:
    """Gaussians, and pure mechanisms, on the same records."""

    what: str  # name in messages
    gaussians: tuple[tuple[Fraction, int], ...] = ()  # pairs (multiplier, number)
    pure: tuple[tuple[Fraction, int], ...] = ()  # pairs (epsilon, number)
    failure: Fraction = Fraction(0)  # probability of an event that the guarantee excludes, in each batch
    share: Fraction = Fraction(1)  # part of epsilon and delta that is theirs

    @property
    def rho(self) -> Cost:
        costs = [number / (2 * z * z) for z, number in self.gaussians]
        return sum(costs + [number * epsilon**2 / 2 for epsilon, number in self.pure], Fraction(0))

    def keeps(self, epsilon: Fraction, delta: Fraction, batches: int) -> bool:
        """Return whether this number of batches is (epsilon, delta)-DP together."""
        epsilon, delta = epsilon * self.share, delta * self.share
        if batches == 1 and not self.gaussians:
            # Pure mechanisms of one batch need no conversion, and exclude nothing.
            return sum(e * number for e, number in self.pure) <= epsilon * (1 + TOLERANCE)
        rest = delta - batches * self.failure
        if rest <= 0:
            return False
        # Squares of mu add up, over batches too.
        needed = Fraction(gaussian_multiplier(float(epsilon), float(rest)))
        allowed = (1 + 2 * TOLERANCE) / (needed * needed * batches)
        left = allowed - sum((number / (z * z) for z, number in self.gaussians), Fraction(0))
        if not self.pure:
            return left >= 0
        (pure, number), *others = self.pure
        assert not others, "a mechanism has at most one kind of pure noise"
        return left > 0 and pure <= Fraction(pure_epsilon(math.sqrt(number / left))) * (1 + TOLERANCE)


@dataclass(frozen=True)
class _OfCentre:
    """Centre of ``rho`` and a Gaussian on the same records; bins stay unseen."""

    what: str
    multiplier: Fraction
    centre: Fraction
    unseen: Fraction

    rho = math.inf
    """Not added up: a histogram reads the batch, too."""

    def keeps(self, epsilon: Fraction, delta: Fraction, batches: int) -> bool:
        assert batches == 1
        rest = float(delta) - (1 + math.exp(epsilon)) * float(self.unseen)
        if rest <= 0:
            return False
        total = 1 / (2 * self.multiplier**2) + self.centre
        return float(total) <= greatest_rho(float(epsilon), rest) * (1 + _RHO_TOLERANCE)


@dataclass(frozen=True)
class _InSecretOrder:
    """Gaussian messages in a secret order."""

    what: str
    multiplier: Fraction
    messages: int

    @property
    def rho(self) -> Cost:
        # The order does not help zCDP.
        return 1 / (2 * self.multiplier**2)

    def keeps(self, epsilon: Fraction, delta: Fraction, batches: int) -> bool:
        assert batches == 1
        slack = 1 + float(TOLERANCE)
        return _hides(float(epsilon) * slack, float(delta), float(self.multiplier) * slack, self.messages)


@lru_cache(maxsize=1024)
def _hides(epsilon: float, delta: float, multiplier: float, messages: int) -> bool:
    # It needs scipy, which no other mechanism does.
    from streaming_pca.privacy.calibration.shuffling import is_shuffle_private

    return is_shuffle_private(epsilon, delta, multiplier, messages)


_Reading = _Composed | _OfCentre | _InSecretOrder


def _readings(contract: Parameters, parameters: Parameters) -> tuple[list[_Reading], bool]:
    """Return the readings of disjoint parts of a batch, and whether batches cost parts."""
    name = parameters.get("mechanism")
    if not isinstance(name, str) or name not in _MECHANISMS:
        raise ValueError(f"the mechanism {str(name)[:60]!r} is not known")
    own = _MECHANISMS[name](name, contract, parameters)
    mean = _section(parameters, "mean", "mean")
    if mean is not None:
        # Of versions up to 0.5: a Gaussian and, in parallel, a quantile. If an event is excluded, a user's
        # other batches exclude it too.
        failure = max((r.failure for r in own if isinstance(r, _Composed)), default=Fraction(0))
        gaussian = ((_number(mean, "sigma_over_sensitivity"), 1),)
        own.append(_Composed("its mean", gaussian, failure=failure))
        own.append(_Composed("its mean", pure=((_number(mean, "radius_epsilon"), 1),), failure=failure))
    return own, name in _IN_PARTS


def _one_gaussian(name: str, contract: Parameters, parameters: Parameters) -> list[_Reading]:
    return [_Composed(name, _gaussians(parameters, 1))]


def _searches(name: str, contract: Parameters, parameters: Parameters) -> list[_Reading]:
    rounds = _count(parameters, "rounds")
    pure = ((_number(parameters, "search_epsilon"), rounds),)
    return [_Composed(name, _gaussians(parameters, rounds), pure)]


def _of_gap(name: str, contract: Parameters, parameters: Parameters) -> list[_Reading]:
    variances: tuple[tuple[Fraction, int], ...] = ()
    if parameters.get("variance_sigma_over_sensitivity") is not None:
        variances = _gaussians(parameters, 1, "variance_sigma_over_sensitivity")
    if contract.get("rank") == contract.get("dim"):
        # The projector is the identity for all records: neither gap nor projector is measured.
        return [_Composed(name, variances)]
    gaussians = variances + _gaussians(parameters, 1, "projector_sigma_over_sensitivity")
    pure: tuple[tuple[Fraction, int], ...] = ()
    if "gap_epsilon" in parameters:
        pure = ((_number(parameters, "gap_epsilon"), 1),)
    else:
        gaussians += _gaussians(parameters, 1, "gap_sigma_over_sensitivity")
    return [_Composed(name, gaussians, pure, _number(parameters, "gap_failure_delta"))]


def _of_range(name: str, contract: Parameters, parameters: Parameters) -> list[_Reading]:
    """Read the halves of a batch: a histogram of the whole guarantee, and a histogram with a Gaussian."""
    accounting = parameters.get("accounting")
    if accounting == "paper":
        # The other half pays for the histogram.
        return [_Composed(name, _gaussians(parameters, 1), share=Fraction(1, 2))]
    if accounting == "zcdp":
        numbers = (_number(parameters, n) for n in ("sigma_over_sensitivity", "centre_rho", "centre_delta"))
        return [_OfCentre(name, *numbers)]
    raise ValueError(f"its accounting {str(accounting)[:60]!r} is not known")


def _of_start(name: str, contract: Parameters, parameters: Parameters) -> list[_Reading]:
    start = parameters.get("start")
    if start is None:
        return _of_range(name, contract, parameters)
    if not isinstance(start, str) or start not in _MECHANISMS or start == name:
        raise ValueError(f"the start {str(start)[:60]!r} is not known")
    return _MECHANISMS[start](f"{name}'s start", contract, parameters)


_MECHANISMS: dict[str, Callable[[str, Parameters, Parameters], list[_Reading]]] = {
    # Any estimator may name "gaussian".
    **dict.fromkeys(("private-oja", "tensor-private", "gaussian"), _one_gaussian),
    # One, whose budget all mechanisms of the batch share.
    **dict.fromkeys(("analyze-gauss", "adaptive", "block"), _one_gaussian),
    "noisy-power": lambda name, _, own: [_Composed(name, _gaussians(own, _count(own, "iterations")))],
    "adaptive-power": _searches,
    "output-perturbation": _of_gap,
    "k-dp-ojas": lambda name, _, own: [
        _InSecretOrder(name, _number(own, "sigma_over_sensitivity"), _count(own, "secret_order_of"))
    ],
    **dict.fromkeys(("adadpo", "dp-pca", "k-dp-pca"), _of_range),
    "tadadpo": _of_start,
}
_IN_PARTS = {"k-dp-ojas", "adadpo", "dp-pca", "k-dp-pca", "tadadpo"}
"""Mechanisms whose batches each cost a user a part (basic composition); others compose as Gaussians."""
_UNBOUNDED = {"adadpo", "dp-pca", "k-dp-pca", "tadadpo", "output-perturbation"}
"""Mechanisms whose answer may reveal everything, with a probability below delta: they have no finite rho."""


def _gaussians(
    parameters: Parameters, number: int, name: str = "sigma_over_sensitivity"
) -> tuple[tuple[Fraction, int], ...]:
    return ((_number(parameters, name), number),)


def _of_counts(parameters: Parameters) -> Fraction:
    diagnostics = _section(parameters, "diagnostics", "counts")
    return Fraction(0) if diagnostics is None else _number(diagnostics, "epsilon")


def _section(parameters: Parameters, name: str, mechanism: str) -> Parameters | None:
    section = parameters.get(name)
    if section is None:
        return None
    if not isinstance(section, dict) or section.get("mechanism") != mechanism:
        raise ValueError(f"{name} is not a table with the mechanism {mechanism!r}")
    return section


def _number(parameters: Parameters, name: str) -> Fraction:
    """Return a finite number above 0; a float is read as its printed decimal, as in charges."""
    value = parameters.get(name)
    try:
        number = parse_rational(value)
    except ValueError as error:
        raise ValueError(f"{name} {error}") from None
    if not isinstance(number, Fraction) or not number:
        raise ValueError(f"{name} must be a finite number above 0, not {str(value)[:60]!r}")
    return number


def _count(parameters: Parameters, name: str) -> int:
    count = parameters.get(name)
    if type(count) is not int or count < 1:
        raise ValueError(f"{name} must be a whole number above 0, not {str(count)[:60]!r}")
    return count


def _contributions(contract: Parameters) -> int:
    return _count(contract, "contributions_per_user") if contract.get("privacy_unit") == "user" else 1
