"""Lower bounds of the zCDP cost of the mechanisms that a reservation names.

A Gaussian of ``sigma_over_sensitivity`` m costs 1/(2 m^2), a mechanism that is
epsilon-DP epsilon^2/2 ([BunSteinke2016], Propositions 1.6 and 1.4). Costs on
the same records add up, those of a batch's disjoint parts compose in parallel, and
a user's ``contributions_per_user`` batches add up.

========================================  =====================================================
mechanism                                 cost of one batch
========================================  =====================================================
private-oja, tensor-private, k-dp-ojas    one Gaussian; a secret order is of no help to zCDP
analyze-gauss, adaptive, block            one Gaussian, whose budget all their mechanisms share
noisy-power                               ``iterations`` Gaussians
adaptive-power                            ``rounds`` Gaussians and searches of ``search_epsilon``
adadpo, dp-pca, k-dp-pca, tadadpo,        infinite: with some probability below delta an
output-perturbation                       answer may reveal everything
none                                      infinite, but 0 where records are reports
``mean``                                  in parallel: a Gaussian, or a quantile of
                                          ``radius_epsilon``
``diagnostics``                           added: counts of ``epsilon``
========================================  =====================================================

All numbers are rationals, so every reader gets the same result of a comparison.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from streaming_pca.privacy.parameters import parse_rational

__all__ = ["TOLERANCE", "UnknownCost", "is_of_reports", "least_rho"]

TOLERANCE = Fraction(1, 10**12)
"""Relative slack of every comparison; roundings of honest writers are below 1e-14."""

Parameters = dict[str, Any]
Cost = Fraction | float


class UnknownCost(ValueError):
    """Parameters from which the cost of their mechanisms cannot be computed."""


def is_of_reports(contract: Parameters, parameters: Parameters) -> bool:
    """Return whether records are reports: batches then have no mechanism and cost nothing."""
    return (
        contract.get("local") is True
        and contract.get("record_kind") == "local"
        and parameters.get("mechanism") == "none"
    )


def least_rho(contract: Parameters, parameters: Parameters) -> Cost:
    """Bound from below the joint cost of all batches that one unit may enter.

    Raises
    ------
    UnknownCost
        If parameters are missing or invalid, or the mechanism is not known here.
    """
    if is_of_reports(contract, parameters):
        return Fraction(0)
    mechanism = parameters.get("mechanism")
    if not isinstance(mechanism, str) or mechanism not in _COSTS:
        raise UnknownCost(f"the mechanism {str(mechanism)[:60]!r} is not known")
    cost = _COSTS[mechanism](contract, parameters)
    mean = _section(parameters, "mean")
    if mean is not None:
        cost = max(cost, _gaussian(mean), _pure(_number(mean, "radius_epsilon")))
    return _contributions(contract) * (cost + _pure(_of_counts(parameters))) * (1 - TOLERANCE)


# -- the mechanisms ----------------------------------------------------------------


def _one_gaussian(contract: Parameters, parameters: Parameters) -> Cost:
    return _gaussian(parameters)


def _passes(contract: Parameters, parameters: Parameters) -> Cost:
    return _count(parameters, "iterations") * _gaussian(parameters)


def _searches(contract: Parameters, parameters: Parameters) -> Cost:
    search = _pure(_number(parameters, "search_epsilon"))
    return _count(parameters, "rounds") * (_gaussian(parameters) + search)


def _unbounded(contract: Parameters, parameters: Parameters) -> Cost:
    return math.inf


_COSTS: dict[str, Callable[[Parameters, Parameters], Cost]] = {
    **dict.fromkeys(("private-oja", "tensor-private", "k-dp-ojas"), _one_gaussian),
    **dict.fromkeys(("analyze-gauss", "adaptive", "block"), _one_gaussian),
    "noisy-power": _passes,
    "adaptive-power": _searches,
    **dict.fromkeys(("adadpo", "dp-pca", "k-dp-pca", "tadadpo", "output-perturbation", "none"), _unbounded),
}


# -- numbers -----------------------------------------------------------------------


def _gaussian(parameters: Parameters) -> Fraction:
    return 1 / (2 * _number(parameters, "sigma_over_sensitivity") ** 2)


def _pure(epsilon: Fraction) -> Fraction:
    return epsilon * epsilon / 2


def _of_counts(parameters: Parameters) -> Fraction:
    diagnostics = _section(parameters, "diagnostics")
    return Fraction(0) if diagnostics is None else _number(diagnostics, "epsilon")


def _section(parameters: Parameters, name: str) -> Parameters | None:
    section = parameters.get(name)
    if section is not None and not isinstance(section, dict):
        raise UnknownCost(f"{name} is no table")
    return section


def _number(parameters: Parameters, name: str) -> Fraction:
    """Return a finite number above 0; a float is read as its printed decimal, as in charges."""
    value = parameters.get(name)
    try:
        number = parse_rational(value)
    except ValueError as error:
        raise UnknownCost(f"{name} {error}") from None
    if not isinstance(number, Fraction) or not number:
        raise UnknownCost(f"{name} must be a finite number above 0, not {str(value)[:60]!r}")
    return number


def _count(parameters: Parameters, name: str) -> int:
    count = parameters.get(name)
    if type(count) is not int or count < 1:
        raise UnknownCost(f"{name} must be a whole number above 0, not {str(count)[:60]!r}")
    return count


def _contributions(contract: Parameters) -> int:
    return _count(contract, "contributions_per_user") if contract.get("privacy_unit") == "user" else 1
