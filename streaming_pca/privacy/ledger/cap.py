"""Per-record privacy filter: exact comparison of charges with the cap.

OPENED names one of two rules. With either, the accepted steps are (epsilon, delta)-differentially private at
the cap, for each record, if mechanisms and charges are chosen after seeing every earlier answer.

"basic"
    Epsilons and deltas are added [RogersEtAl2016].
"zcdp"
    Rhos are added, and (epsilon, delta) is what rho-zCDP implies at the cap's delta: epsilon = rho + 2
    sqrt(rho ln(1/delta)) ([BunSteinke2016, Prop. 1.3]; a cap on the sum is a filter by [FeldmanZrnic2021] and
    [WhitehouseEtAl2023]). A charge that claims no rho never fits.

Why both hold, also for users over several jobs, and are decided exactly: docs/explanation/ledger.md.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from functools import lru_cache
from typing import Self

from streaming_pca.errors import UserError
from streaming_pca.privacy.ledger.entries import Cap, OffsetSpan, Opened
from streaming_pca.privacy.parameters import Charge, format_number, format_rational
from streaming_pca.text import offsets_text

_LONGEST = 60


class BudgetExceeded(UserError):
    """Refusal of an entry that would take records ``where`` above the cap; None: every record."""

    exit_status = 3

    def __init__(self, where: OffsetSpan | None, asked: Charge, spent: Charge, opened: Opened) -> None:
        records = "every record, read or not"
        if where is not None:
            records = f"partition {where.partition}, {offsets_text(where.start, where.end)}"
        zcdp = opened.filter == "zcdp"
        super().__init__(
            f"{records}: asked {_charge_text(asked, zcdp)}; already charged {_charge_text(spent, zcdp)}; "
            f"the cap is {_charge_text(opened.cap, False)}"
        )

    def with_remedy(self, remedy: str) -> Self:
        self.args = (f"{self}; {remedy}",)
        return self


def _charge_text(numbers: Charge | Cap, zcdp: bool) -> str:
    text = f"epsilon {format_number(numbers.epsilon)}, delta {format_number(numbers.delta)}"
    if not zcdp or isinstance(numbers, Cap):
        return text
    return f"{text}, rho {'not claimed' if numbers.rho is None else format_number(numbers.rho)}"


@lru_cache(maxsize=64)
def _log_inverse(delta: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Bound ln(1/delta) to about ``digits`` digits, equally on every machine."""
    # Decimal rounds ln correctly, to half a unit of the last digit; libm's log differs by platform.
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN, traps=[])
    top, bottom = (Fraction(context.ln(Decimal(n))) for n in (delta.denominator, delta.numerator))
    error = (top + bottom) / 10 ** (digits - 1)
    return top - bottom - error, top - bottom + error


def within_cap(spent: Charge, cap: Cap, rule: str) -> bool:
    """Return whether a record with a total charge ``spent`` is within the cap.

    The total is the sum of the charges by basic composition; its ``rho`` is the sum of rhos. The
    comparison is exact, in real numbers, so every reader gets the same result.
    """
    if rule == "basic":
        return spent.epsilon <= cap.epsilon and spent.delta <= cap.delta
    if cap.epsilon == math.inf:
        return True
    rho = spent.rho
    if rho is None or not isinstance(rho, Fraction) or not isinstance(cap.epsilon, Fraction):
        return False
    if rho == 0:
        return True
    if not isinstance(cap.delta, Fraction) or cap.delta >= 1:
        return True
    if cap.delta == 0 or rho > cap.epsilon:
        return False
    # rho + 2 sqrt(rho L) <= eps  <=>  L <= (eps - rho)^2 / (4 rho), as rho <= eps
    most = (cap.epsilon - rho) ** 2 / (4 * rho)
    digits = 30
    # Enough digits decide: ln(1/delta) is irrational, so a tie is impossible.
    while True:
        low, high = _log_inverse(cap.delta, digits)
        if high <= most:
            return True
        if low > most:
            return False
        digits *= 2


def remainder(cap: Fraction | float, spent: Fraction | float) -> Fraction | float:
    """Return the rest of a cap, of the same type; an infinite cap leaves infinity."""
    if cap == math.inf:
        return cap
    return cap - spent if spent < cap else type(cap)(0)


def approximate(value: Fraction | float) -> str:
    """Format a sum of charges: exactly, or to 15 digits if that would be long.

    A sum has as many digits as its parts have together, and Python refuses to
    write integers of more than 4,300.
    """
    if not isinstance(value, Fraction):
        return format_rational(value)
    short = max(value.numerator, value.denominator) < 10**_LONGEST
    return format_rational(value) if short else f"{float(value):.15g}"
