"""The joint cost of several mechanisms, on top of dp-accounting: the judge of the package's rules.

Arguments for each mechanism of :mod:`mechanisms`, adjacency replace-one:

==================================================  =======================================
gaussian_on_vector, _symmetric, _symmetric_space    ``Gaussian(multiplier)``
laplace_on_vector,
AboveThreshold (all its answers)                    ``Pure(epsilon)``
stability_histogram                                 ``Approximate(epsilon, delta)``
one of several, on disjoint parts of a batch        ``Parallel(...)``
==================================================  =======================================

Three routes, all upper bounds:

- **zcdp**: rhos add, also when each mechanism is chosen after the answers of
  the earlier ones (Bun and Steinke 2016).
- **gdp**: squares of mu add, adaptively too (Dong, Roth and Su 2022). Exact for
  Gaussians; a pure mechanism counts as the Gaussian that dominates it.
- **pld**: dp-accounting's privacy loss distributions, with its pessimistic
  rounding; the tightest for mixtures, for a schedule that is fixed in advance.

Gaussian answers are rounded, which is post-processing. Importing this module takes over
a second, because of dp-accounting.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import dp_accounting
import numpy as np
from dp_accounting.pld import common, privacy_loss_distribution
from dp_accounting.rdp import RdpAccountant
from scipy.special import ndtri_exp

from streaming_pca.privacy.calibration.multipliers import gaussian_delta
from streaming_pca.privacy.errors import ParameterError, require_count, require_open_unit, require_positive

# The possible error of a delta from FFTs in float64 (about 1e-15 each), added on the route pld.
_PLD_ROUNDING = 1e-12

# Discretisation intervals per typical privacy loss of the smallest and the largest mechanism: rounding up
# covers the loss of a small mechanism in the coarse interval of a large one.
_PLD_STEPS, _PLD_MOST_STEPS = 1000, 20_000

# Typical loss of a mechanism whose distribution would fill the memory.
_PLD_GREATEST_LOSS = 30.0

# A larger epsilon promises nothing, and e^epsilon approaches the limit of floats.
_GREATEST_EPSILON = 500.0

_RENYI_ORDERS = [1 + 10 ** (i / 40) for i in range(-120, 241)]


class Route(StrEnum):
    """The rule for adding up costs."""

    ZCDP = "zcdp"
    GDP = "gdp"
    PLD = "pld"


@dataclass(frozen=True)
class Gaussian:
    """A Gaussian of ``multiplier`` = noise scale over L2 sensitivity."""

    multiplier: float

    def __post_init__(self) -> None:
        require_positive("multiplier", self.multiplier)

    @property
    def rho(self) -> float:
        """Return rho by Bun and Steinke 2016, Proposition 1.6."""
        return 1 / (2 * self.multiplier**2)

    @property
    def mu(self) -> float:
        """Return the Gaussian-DP parameter."""
        return 1 / self.multiplier

    @property
    def aside(self) -> float:
        """Return the delta that adds to the rest."""
        return 0.0

    def pld(self, interval: float) -> Any:
        """Return the privacy loss distribution: REPLACE_ONE would double the sensitivity."""
        return privacy_loss_distribution.from_gaussian_mechanism(
            self.multiplier,
            value_discretization_interval=interval,
            neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_SPECIAL,
        )


@dataclass(frozen=True)
class Approximate:
    """Any (epsilon, delta)-DP mechanism: epsilon-DP except for a part delta of its answers.

    Kairouz, Oh and Viswanath 2015, Theorem 3.1: it is a post-processing of a mechanism
    that reveals everything with probability delta and is randomised response otherwise.
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        _check_epsilon(self.epsilon)
        require_open_unit("delta", self.delta)

    @property
    def rho(self) -> float:
        """Return rho by Bun and Steinke 2016, Proposition 1.4."""
        return self.epsilon**2 / 2

    @property
    def mu(self) -> float:
        """Return the inverse of :func:`calibration.pure_epsilon`, rounded up."""
        return -2 * float(ndtri_exp(-np.logaddexp(0, self.epsilon))) * (1 + 1e-12) + 1e-15

    @property
    def aside(self) -> float:
        """Return the delta that adds to the rest."""
        return self.delta

    def pld(self, interval: float) -> Any:
        """Return randomised response's distribution: no epsilon-DP mechanism is worse."""
        parameters = common.DifferentialPrivacyParameters(self.epsilon, 0.0)
        return privacy_loss_distribution.from_privacy_parameters(parameters, interval)


class Pure(Approximate):
    """Any epsilon-DP mechanism."""

    def __init__(self, epsilon: float) -> None:
        _check_epsilon(epsilon)
        object.__setattr__(self, "epsilon", epsilon)
        object.__setattr__(self, "delta", 0.0)


Mechanism = Gaussian | Approximate


@dataclass(frozen=True)
class Parallel:
    """Mechanisms on disjoint parts of a batch: a record enters one of them, possibly the worst.

    On the routes zcdp and gdp this also holds where earlier answers decide
    which part a user's next record enters; the route pld tries every fixed
    choice.
    """

    parts: tuple[Mechanism, ...]

    def __init__(self, *parts: Mechanism) -> None:
        if not parts:
            raise ParameterError("parts must name at least one mechanism")
        object.__setattr__(self, "parts", parts)


Mechanisms = Sequence[Mechanism | Parallel]


def delta_of(mechanisms: Mechanisms, epsilon: float, route: Route, contributions: int = 1) -> float:
    """Return the joint delta, at most 1, of all mechanisms that one batch, or estimator, runs on a record.

    With ``privacy_unit = "user"`` a user is charged this for at most ``contributions`` batches, each with
    these mechanisms. A parameter out of its range, or a mechanism that the route does not know, is a
    ParameterError.
    """
    _check_epsilon(epsilon)
    return min(_Composition(mechanisms, route, contributions).delta(epsilon), 1.0)


def epsilon_of(mechanisms: Mechanisms, delta: float, route: Route, contributions: int = 1) -> float:
    """Return the smallest joint epsilon to a part in 10**9, rounded up; infinity if it is above 500."""
    require_open_unit("delta", delta)
    composition = _Composition(mechanisms, route, contributions)
    low, high = 0.0, 1e-6
    # Increase epsilon to the first sufficient value.
    while composition.delta(high) > delta:
        low, high = high, 1.25 * high
        if high > _GREATEST_EPSILON:
            return math.inf
    while high - low > 1e-9 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if composition.delta(middle) <= delta else (middle, high)
    return high


class _Composition:
    """The composed mechanisms, ready for a query at any epsilon."""

    def __init__(self, mechanisms: Mechanisms, route: Route, contributions: int) -> None:
        require_count("contributions", contributions)
        if not mechanisms:
            raise ParameterError("mechanisms must name at least one")
        choices = [m.parts if isinstance(m, Parallel) else (m,) for m in mechanisms]
        self._aside = contributions * sum(max(m.aside for m in parts) for parts in choices)
        match route:
            case Route.ZCDP:
                rho = contributions * sum(max(m.rho for m in parts) for parts in choices)
                accountant = RdpAccountant(_RENYI_ORDERS, dp_accounting.NeighboringRelation.REPLACE_ONE)
                accountant.compose(dp_accounting.ZCDpEvent(rho=rho, xi=0.0))
                self._core = accountant.get_delta
            case Route.GDP:
                squares = contributions * math.fsum(max(m.mu for m in parts) ** 2 for parts in choices)
                multiplier = 1 / (math.sqrt(squares) * (1 + 1e-12))
                self._core = lambda epsilon: gaussian_delta(epsilon, multiplier)
            case _:
                self._aside += _PLD_ROUNDING
                plds = [_composed_pld(chosen) for chosen in _selections(choices, contributions)]
                self._core = lambda epsilon: max(float(p.get_delta_for_epsilon(epsilon)) for p in plds)

    def delta(self, epsilon: float) -> float:
        return float(self._core(epsilon)) + self._aside


def _selections(choices: Sequence[tuple[Mechanism, ...]], contributions: int) -> Iterator[Counter[Mechanism]]:
    """Yield every way to meet one mechanism of each choice, ``contributions`` times, in any order."""
    kinds = Counter({parts: 0 for parts in choices})
    for parts in choices:
        kinds[parts] += contributions
    for selected in itertools.product(
        *(itertools.combinations_with_replacement(dict.fromkeys(parts), n) for parts, n in kinds.items())
    ):
        yield Counter(itertools.chain.from_iterable(selected))


def _composed_pld(mechanisms: Counter[Mechanism]) -> Any:
    losses = [m.epsilon if isinstance(m, Approximate) else math.sqrt(2 * m.rho) for m in mechanisms]
    if max(losses) > _PLD_GREATEST_LOSS:
        raise ParameterError(
            f"mechanisms must cost at most {_PLD_GREATEST_LOSS:g} each on the route pld: use another route"
        )
    interval = max(min(1.0, *losses) / _PLD_STEPS, max(losses) / _PLD_MOST_STEPS)
    composed = privacy_loss_distribution.identity(interval)
    for mechanism, times in mechanisms.items():
        composed = composed.compose(mechanism.pld(interval).self_compose(times))
    return composed


def _check_epsilon(epsilon: float) -> None:
    require_positive("epsilon", epsilon)
    if epsilon > _GREATEST_EPSILON:
        raise ParameterError(f"epsilon must be at most {_GREATEST_EPSILON:g}, not {epsilon!r}")
