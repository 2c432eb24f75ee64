"""Privacy parameters and charges, as exact numbers."""

from __future__ import annotations

import math
import re
from decimal import Context, Decimal
from fractions import Fraction
from typing import Annotated, Any

from pydantic import (
    BaseModel,
    ConfigDict,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    model_validator,
)

from streaming_pca.privacy.errors import ParameterError

_MOST = 10**12
_LARGE_DELTA = 1e-3
_LARGE_EPSILON = 20.0  # twice the largest value that [PonomarevaEtAl2023] calls reasonable
_HUGE_EXPONENT = re.compile(r"[eE][+-]?[0-9]{4}")
# Not Fraction's own grammar: versions of Python differ on spaces around "/", and underscores hide a huge
# exponent. Readers of a ledger must agree on every number.
_NUMBER = re.compile(r"[+-]?([0-9]+/[0-9]+|([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)")


def parse_rational(value: Any) -> Fraction | float:
    """Read a non-negative exact number from a Fraction, int, float or string.

    A string is a decimal ("0.1", "1e-6"), a ratio ("1/3") or "inf". A
    float is read as the decimal that prints it, so 0.1 is one tenth.
    """
    if isinstance(value, bool):
        raise ValueError("must be a number")
    if isinstance(value, float):
        value = repr(value)
    if isinstance(value, str) and value.strip().lower() in {"inf", "infinity"}:
        return math.inf
    # Fraction("1e999999999") would be computed in full.
    if isinstance(value, str) and (len(value) > 4000 or _HUGE_EXPONENT.search(value)):
        raise ValueError("must be a number of at most 4000 characters and an exponent below 1000")
    try:
        if isinstance(value, str) and not _NUMBER.fullmatch(value.strip()):
            raise ValueError
        number = Fraction(value)
    except (ValueError, TypeError, ZeroDivisionError, OverflowError) as error:
        raise ValueError(f"must be a number, a ratio or 'inf', not {value!r}") from error
    if number < 0:
        raise ValueError("must not be negative")
    # Sums with infinity pass through float, which must not overflow.
    if number > _MOST:
        raise ValueError("must be at most 1e12, or 'inf'")
    return number


def format_rational(value: Fraction | float) -> str:
    """Write an exact number so that :func:`parse_rational` reads the same one."""
    return str(value) if isinstance(value, Fraction) else "inf"


def format_number(value: Fraction | float | str) -> str:
    """Write a number, or a string of :func:`format_rational`, for people: 1e-06, at most 12 digits."""
    exact = Fraction(value) if value not in ("inf", math.inf) else None
    number = math.inf if exact is None else float(exact)
    if exact is not None and exact.denominator == 1 and exact <= _MOST:
        return str(exact.numerator)
    if exact and not number:
        # Too small for a float.
        quotient = Context(prec=6).divide(Decimal(exact.numerator), Decimal(exact.denominator))
        return str(quotient.normalize()).lower()
    return f"{number:.12g}"


Rational = Annotated[
    Fraction | float,
    PlainValidator(parse_rational),
    PlainSerializer(format_rational, return_type=str),
    WithJsonSchema({"type": "string", "pattern": r"^([0-9]+(/[1-9][0-9]*)?|inf)$"}, mode="serialization"),
]
"""Exact non-negative rational, or infinity; a string on the wire."""


class Charge(BaseModel):
    """Cost of one mechanism to each record that enters it."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        json_schema_serialization_defaults_required=True,
    )

    epsilon: Rational
    """Exact: the mechanism is (epsilon, delta)-differentially private."""
    delta: Rational
    """Exact."""
    rho: Rational | None = None
    """The mechanism is also rho-zCDP; null where no such bound is claimed."""

    def __add__(self, other: Charge) -> Charge:
        """Compose with a mechanism on the same record: basic composition."""
        rho = None if self.rho is None or other.rho is None else self.rho + other.rho
        # Not checked again: a sum may be above the most that one charge may name.
        return Charge.model_construct(
            epsilon=self.epsilon + other.epsilon, delta=self.delta + other.delta, rho=rho
        )

    def __or__(self, other: Charge) -> Charge:
        """Compose with a mechanism on disjoint records: parallel composition."""
        rho = None if self.rho is None or other.rho is None else max(self.rho, other.rho)
        return Charge.model_construct(
            epsilon=max(self.epsilon, other.epsilon), delta=max(self.delta, other.delta), rho=rho
        )

    @classmethod
    def nothing(cls) -> Charge:
        """Return the charge of no mechanism."""
        return cls(epsilon=Fraction(0), delta=Fraction(0), rho=Fraction(0))

    @classmethod
    def unbounded(cls) -> Charge:
        """Return the charge of an estimator that is not private."""
        return cls(epsilon=math.inf, delta=math.inf, rho=math.inf)


class PrivacyParameters(BaseModel):
    """Privacy guarantee of a stream: (epsilon, delta) per unit, for all releases together.

    The adjacency is only replace-one: batches are cut on public counts, which add/remove would change.
    ``contributions`` are the batches that one unit may enter: 1 if the unit is a record, more if it is a
    user. (epsilon, delta) is their cost together.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    epsilon: float
    delta: float
    contributions: int = 1

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            problem = error.errors()[0]
            where = ".".join(map(str, problem["loc"]))
            message = problem["msg"].removeprefix("Value error, ")
            raise ParameterError(f"{where}: {message}" if where else message) from None

    @model_validator(mode="after")
    def _check(self) -> PrivacyParameters:
        problems = []
        if not (math.isfinite(self.epsilon) and self.epsilon > 0):
            problems.append(f"epsilon must be a finite number above 0, not {self.epsilon:g}")
        if not 0 < self.delta < 1:
            problems.append(f"delta must lie between 0 and 1, not {self.delta:g}")
        if self.contributions < 1:
            problems.append(f"contributions must be at least 1, not {self.contributions}")
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def batch_guarantee(self) -> tuple[float, float]:
        """(epsilon, delta) of each of ``contributions`` batches, by basic composition."""
        if self.contributions == 1:
            return self.epsilon, self.delta
        # Slightly less than the part: roundings must not add up to more than the whole.
        part = (1 - 1e-12) / self.contributions
        return self.epsilon * part, self.delta * part

    def charge(self, rho: Fraction | float | None = None) -> Charge:
        """Return the whole guarantee as one charge."""
        return Charge(epsilon=parse_rational(self.epsilon), delta=parse_rational(self.delta), rho=rho)


def guarantee_warnings(epsilon: float, delta: float, records: int | None = None) -> list[str]:
    """Explain why a guarantee protects too little, one line a reason; ``records`` if known."""
    warnings = []
    if epsilon > _LARGE_EPSILON:
        warnings.append(
            f"epsilon = {epsilon:g} is above {_LARGE_EPSILON:g}: results may reveal a record almost with "
            "certainty, so it offers hardly any protection; lower it, if possible to 1, and to 10 at most"
        )
    if records is not None and delta * records >= 1:
        warnings.append(
            f"delta = {delta:g} is not below 1/records = {1 / records:.2g}: "
            "publishing one record, chosen at random, would satisfy it; lower delta"
        )
    elif delta > _LARGE_DELTA:
        warnings.append(
            f"delta = {delta:g} is above {_LARGE_DELTA:g}: publishing each record with that probability "
            "would satisfy it; lower it below 1/records, for example to 1e-6"
        )
    return warnings
