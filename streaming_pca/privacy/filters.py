"""The per-record filter: whether what was charged is still within the cap, exactly.

OPENED names one of two rules. Both are privacy filters: whoever chooses the
next mechanism and its charge after seeing every earlier answer, what was
accepted stays (epsilon, delta)-differentially private at the cap, for each
record, as long as each step is refused that would pass it.

"basic"
    Epsilons and deltas are added (Rogers, Roth, Ullman and Vadhan 2016: with a
    cap that is fixed in advance, adding is valid for adaptive charges).
"zcdp"
    Rhos are added, and (epsilon, delta) is what rho-zCDP implies at the cap's
    delta: epsilon = rho + 2 sqrt(rho ln(1/delta)) (Bun and Steinke 2016,
    Proposition 1.3; a cap on the sum is a filter by Feldman and Zrnic 2021 and
    Whitehouse et al. 2023). A charge that claims no rho never fits.

Ties are decided, not approximated. Sums are rationals, and a sum that equals
the cap is within it. In the zcdp rule ln(1/delta) is irrational for every
rational delta in (0, 1) (Lindemann), so the comparison is never a tie, and
finitely many digits decide it.

A user over several jobs
------------------------
Fix a user. In job j each batch that holds the user is M_j/sqrt(c_j)-GDP for
that user, but for its noisy counts, at most c_j batches do, and (epsilon_j,
delta_j) is what M_j-GDP implies. The counts are e_j/c_j-DP in each batch: over
all batches and jobs they add the sum of the e_j to epsilon, by basic
composition with the rest, and e_j is in job j's charge. (So e_j may not change
from batch to batch: the promise names the share. Half of the batches with no
counts and half with half of epsilon for them would cost up to 2.3 delta by this
argument.) All batches of all such jobs, in whatever order they interleave and
however each was chosen from earlier answers, are sqrt(sum M_j^2)-GDP, the
counts apart (Dong, Roth and Su 2022, Theorem 3.2 and
Corollary 3.3; that a cap on this sum holds adaptively: Smith and Thakurta 2022).
(Estimators with ``in_parts`` have batches that cost (epsilon_j/c_j, delta_j/c_j) each, which add up to
the job's charge in any order, by basic composition with the rest; so has output perturbation
a part of delta.) That is the trade-off of independent Gaussians, one a job, for which adding
(epsilon_j, delta_j) is basic composition and adding rhos is zCDP's. So the rule
that adds the jobs' largest charges is a filter for users as it is for records.
"""

from __future__ import annotations

import math
from decimal import ROUND_HALF_EVEN, Context, Decimal
from fractions import Fraction
from functools import lru_cache

from streaming_pca.privacy.entries import Cap, OffsetSpan, Opened
from streaming_pca.privacy.parameters import Charge, format_rational

__all__ = ["BudgetExceeded", "approximate", "left_of", "within_cap"]

_LONGEST = 60


class BudgetExceeded(Exception):
    """A reservation or a charge would take some record above the topic's cap.

    Parameters
    ----------
    where : OffsetSpan or None
        Those records; None for every record, read or not.
    asked, spent : Charge
    opened : Opened
        Has the cap and the rule.

    Attributes
    ----------
    asked, spent : Charge
    cap : Cap
    """

    def __init__(self, where: OffsetSpan | None, asked: Charge, spent: Charge, opened: Opened) -> None:
        self.asked, self.spent, self.cap = asked, spent, opened.cap
        records = "every record, read or not"
        if where is not None:
            records = f"partition {where.partition}, offsets {where.start} to {where.end}"
        zcdp = opened.filter == "zcdp"
        super().__init__(
            f"{records}: asked {_of(asked, zcdp)}; already charged {_of(spent, zcdp)}; "
            f"the cap is {_of(opened.cap, False)}"
        )


def _of(numbers: Charge | Cap, zcdp: bool) -> str:
    text = f"epsilon {approximate(numbers.epsilon)}, delta {approximate(numbers.delta)}"
    if not zcdp or isinstance(numbers, Cap):
        return text
    return f"{text}, rho {'not claimed' if numbers.rho is None else approximate(numbers.rho)}"


@lru_cache(maxsize=64)
def _log_inverse(delta: Fraction, digits: int) -> tuple[Fraction, Fraction]:
    """Bounds of ln(1/delta), about ``digits`` digits apart, the same on every machine."""
    # Decimal rounds ln correctly, to half a unit of the last digit; libm's log differs by platform.
    context = Context(prec=digits, rounding=ROUND_HALF_EVEN, traps=[])
    top, bottom = (Fraction(context.ln(Decimal(n))) for n in (delta.denominator, delta.numerator))
    error = (top + bottom) / 10 ** (digits - 1)
    return top - bottom - error, top - bottom + error


def within_cap(spent: Charge, cap: Cap, rule: str) -> bool:
    """Whether a record that was charged ``spent`` in all is within the cap.

    Parameters
    ----------
    spent : Charge
        Sum of the charges by basic composition; its ``rho`` is the sum of rhos.
    cap : Cap
    rule : {"basic", "zcdp"}

    Notes
    -----
    The answer is that of exact real numbers: every reader comes to the same side.
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
    while True:
        low, high = _log_inverse(cap.delta, digits)
        if high <= most:
            return True
        if low > most:
            return False
        digits *= 2


def left_of(cap: Fraction | float, spent: Fraction | float) -> Fraction | float:
    """What a cap leaves, of the same type: an infinite one has room for infinity too."""
    if cap == math.inf:
        return cap
    return cap - spent if spent < cap else type(cap)(0)


def approximate(value: Fraction | float) -> str:
    """Write a sum of charges for people: exactly, or to 15 digits where that would be long.

    A sum has as many digits as its parts have together, and Python refuses to
    write integers of more than 4,300.
    """
    if not isinstance(value, Fraction):
        return format_rational(value)
    short = max(value.numerator, value.denominator) < 10**_LONGEST
    return format_rational(value) if short else f"{float(value):.15g}"
