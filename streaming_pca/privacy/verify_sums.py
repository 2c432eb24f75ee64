"""The verifier's own arithmetic: sums of charges along a partition, compared exactly with the cap.

The ledger keeps a map of what each offset was charged; this sums what meets
there, by a sweep, and encloses ln(1/delta) by a series of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from fractions import Fraction

from streaming_pca.privacy.entries import Cap, Opened
from streaming_pca.privacy.parameters import Charge

__all__ = ["Most", "Total", "log_bounds", "shown", "sweep", "upper"]


class Total:
    """A sum of charges from which charges can be taken away again, infinite ones too."""

    def __init__(self) -> None:
        self.count = 0
        self._sums = [Fraction(0)] * 3
        self._infinite = [0] * 3
        self._without_rho = 0

    def change(self, charge: Charge, sign: int) -> None:
        self.count += sign
        for i, part in enumerate((charge.epsilon, charge.delta, charge.rho)):
            if part is None:
                self._without_rho += sign
            elif isinstance(part, Fraction):
                self._sums[i] += sign * part
            else:
                self._infinite[i] += sign

    @property
    def epsilon(self) -> Fraction | float:
        return math.inf if self._infinite[0] else self._sums[0]

    @property
    def delta(self) -> Fraction | float:
        return math.inf if self._infinite[1] else self._sums[1]

    @property
    def rho(self) -> Fraction | float | None:
        if self._without_rho:
            return None
        return math.inf if self._infinite[2] else self._sums[2]

    def within(self, opened: Opened) -> bool:
        """Whether a record that was charged this is within the cap, by OPENED's filter."""
        cap = opened.cap
        if opened.filter == "basic":
            return self.epsilon <= cap.epsilon and self.delta <= cap.delta
        return cap.epsilon == math.inf or _zcdp_within(self.rho, cap)


def _zcdp_within(rho: Fraction | float | None, cap: Cap) -> bool:
    """Whether rho + 2 sqrt(rho ln(1/delta)) <= epsilon, in real numbers."""
    if not isinstance(rho, Fraction) or not isinstance(cap.epsilon, Fraction):
        return False
    if rho == 0 or cap.delta >= 1:
        return True
    if cap.delta == 0 or cap.epsilon < rho:
        return False
    assert isinstance(cap.delta, Fraction)
    # The logarithm of a rational other than 1 is irrational: more bits always decide.
    bits = 64
    while True:
        low, high = log_bounds(1 / cap.delta, bits)
        rest = (cap.epsilon - rho) ** 2
        if 4 * rho * high <= rest:
            return True
        if 4 * rho * low > rest:
            return False
        bits *= 2


def log_bounds(x: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals below and above ln(x), x > 1: x = m 2**k, ln x = 2 artanh((m-1)/(m+1)) + 2k artanh(1/3)."""
    k = x.numerator.bit_length() - x.denominator.bit_length()
    k -= x < Fraction(2) ** k
    m = x / Fraction(2) ** k
    parts = ((2, _artanh_bounds((m - 1) / (m + 1), bits)), (2 * k, _artanh_bounds(Fraction(1, 3), bits)))
    return (
        sum((n * low for n, (low, _) in parts), Fraction(0)),
        sum((n * high for n, (_, high) in parts), Fraction(0)),
    )


def _artanh_bounds(y: Fraction, bits: int) -> tuple[Fraction, Fraction]:
    """Rationals below and above artanh(y) = y + y^3/3 + y^5/5 + ..., 0 <= y <= 1/3, in fixed point."""
    one = 1 << bits
    square = y * y
    power, total, n = math.floor(y * one), 0, 0
    while power:
        total += power // (2 * n + 1)
        power = power * square.numerator // square.denominator
        n += 1
    # Every step rounds down: each power is less than 9/8 units short, each term one more,
    # and what follows the last term is less than that.
    return Fraction(total, one), Fraction(total + 3 * n + 3, one)


def upper(one: Charge, other: Charge) -> Charge:
    """The larger epsilon, delta and rho of two; no rho is larger than any."""
    rhos = (one.rho, other.rho)
    return Charge(
        epsilon=other.epsilon if one.epsilon < other.epsilon else one.epsilon,
        delta=other.delta if one.delta < other.delta else one.delta,
        rho=None if None in rhos else max(rho for rho in rhos if rho is not None),
    )


def shown(value: Fraction | float) -> str:
    """For people: a long ratio as a decimal, for Python refuses to write the digits of a huge one."""
    text = value if value == math.inf or max(value.as_integer_ratio()) < 2**256 else float(value)
    return str(text)


def sweep(
    ranges: Iterable[tuple[int, int, Charge]], everywhere: Iterable[Charge] = ()
) -> Iterator[tuple[int, int, Total]]:
    """Yield (start, end, total) of every stretch between boundaries; the total changes in place.

    Charges that lie everywhere are in each total, but not in its ``count``.
    """
    real = [r for r in ranges if r[0] < r[1]]
    events = [(start, 1, charge) for start, _, charge in real]
    events += [(end, -1, charge) for _, end, charge in real]
    events.sort(key=lambda event: event[0])
    total = Total()
    for charge in everywhere:
        total.change(charge, 1)
    total.count = 0
    for i, (at, sign, charge) in enumerate(events):
        total.change(charge, sign)
        if i + 1 < len(events) and events[i + 1][0] > at:
            yield at, events[i + 1][0], total


@dataclass
class Most:
    """The largest charges that any record bears."""

    epsilon: Fraction | float = Fraction(0)
    delta: Fraction | float = Fraction(0)
    rho: Fraction | float | None = Fraction(0)
    offsets: int = 0

    def take(self, start: int, end: int, total: Total) -> None:
        self.offsets += end - start
        self.take_charge(total)

    def take_charge(self, total: Total) -> None:
        self.epsilon = max(self.epsilon, total.epsilon)
        self.delta = max(self.delta, total.delta)
        rho = total.rho
        self.rho = None if rho is None or self.rho is None else max(self.rho, rho)
