"""Forecast, with its text of at most 80 columns and its JSON."""

from __future__ import annotations

import math
import textwrap
from dataclasses import dataclass
from typing import Any, Literal

from streaming_pca.estimators.forecast.batches import Shares
from streaming_pca.privacy.errors import ParameterError, require_positive
from streaming_pca.privacy.parameters import Charge

TARGETS = (0.05, 0.10, 0.30)
"""Relative errors of a forecast's table, each with the eigengap that it needs."""

_ENDLESS = 1e15
"""Largest number of records that is named."""
_SHARPNESS = 4
"""Exponent of the saturation; tuned by simulation with 10 to 200 features, rank 1 to 10."""

Route = Literal["covariance", "block"]

_WIDTH, _LABEL = 80, 22
"""Columns of the text, and of a row's label."""
_SHOWN = 5
"""Number of leading batches whose sizes are listed, in addition to the last one."""


@dataclass(frozen=True)
class Forecast:
    """Noise, batches and charge of a stream, and the eigengaps it can resolve.

    Attributes
    ----------
    epsilon, delta : float
        Privacy guarantee of the estimator's mechanisms together.
    contributions : int
        Batches that a unit of privacy may enter.
    tail : float
        The clip radius R (of |x|^2) over the mean of |x|^2.
    route : {"covariance", "block"}
        With "block" the noise is an upper bound.
    batches : tuple of int
        Records of each.
    multiplier, mu : float
        Noise over sensitivity of one batch with a share of 1, and its inverse,
        the cost of a batch in Gaussian DP.
    charge : Charge
        Charge of a record, or of all batches of a user together; with diagnostics,
        where a stream has them.
    entry_noise : float
        Standard deviation of an entry of the mean second moment, off the diagonal
        (block: any entry), as a share of the total variance.
    warnings : tuple of str
        One line each.
    """

    dim: int
    rank: int
    records: int
    epsilon: float
    delta: float
    contributions: int
    tail: float
    route: Route
    batches: tuple[int, ...]
    shares: Shares
    multiplier: float
    mu: float
    charge: Charge
    entry_noise: float
    warnings: tuple[str, ...] = ()

    @property
    def largest_noise(self) -> float:
        """Spectral norm of the noise: 2 s sqrt(d), for a block s (sqrt(d) + sqrt(k))."""
        second = self.dim if self.route == "covariance" else self.rank
        return self.entry_noise * (math.sqrt(self.dim) + math.sqrt(second))

    @property
    def variance_error(self) -> float:
        """Standard error of an explained variance, as a share of the total variance."""
        return self.entry_noise * (math.sqrt(2) if self.route == "covariance" else 1.0)

    @property
    def total_error(self) -> float | None:
        """Relative standard error of the total variance itself; None for the block route."""
        return self.variance_error * math.sqrt(self.dim) if self.route == "covariance" else None

    @property
    def random_error(self) -> float:
        """Root mean square of |U U^T - V V^T|_F of a random subspace: sqrt(2 k (1 - k/d))."""
        return math.sqrt(2 * self.rank * (1 - self.rank / self.dim))

    def error_at(self, gap: float) -> float:
        """Compute the relative error for an eigengap.

        Parameters
        ----------
        gap : float
            lambda_k - lambda_{k+1} as a share of the total variance: at most 1/k.

        Returns
        -------
        float
            Error over :attr:`random_error`, at most 1; 0 where the rank is the dimension.
        """
        return _saturated(self._first_order_gap / self._checked(gap))

    def angle_at(self, gap: float) -> float:
        """Compute the expected largest principal angle to the subspace without noise.

        Parameters
        ----------
        gap : float
            As for :meth:`error_at`.

        Returns
        -------
        float
            Radians, at most pi/2; 0 where the rank is the dimension.
        """
        if self.rank == self.dim:
            return 0.0
        # To first order the norm of k (d - k) normals, at most sqrt(d - k) + sqrt(k) on average.
        edge = math.sqrt(self.dim - self.rank) + math.sqrt(self.rank)
        return math.asin(_saturated(self.entry_noise * edge / self._checked(gap)))

    def gap_for(self, error: float) -> float:
        """Compute the eigengap for a relative error; none above 1/k can exist."""
        return self._first_order_gap / _first_order(error)

    def records_for(self, gap: float, error: float) -> int | None:
        """Compute the records, in equally many batches, for a relative error; None above 10^15."""
        needed = self.records * (self.gap_for(error) / self._checked(gap))
        return math.ceil(needed) if needed <= _ENDLESS else None

    @property
    def _first_order_gap(self) -> float:
        """Gap s sqrt(d), where the first-order error is 1."""
        return self.entry_noise * math.sqrt(self.dim) if self.rank < self.dim else 0.0

    def _checked(self, gap: float) -> float:
        require_positive("gap", gap)
        if gap < 1e-12:
            raise ParameterError(f"gap must be at least 1e-12, not {gap:g}")
        if gap > 1 / self.rank:
            raise ParameterError(
                f"gap = {gap:g} is above 1/rank = {1 / self.rank:.3g}: "
                "k eigenvalues that large exceed the total variance"
            )
        return gap

    def __str__(self) -> str:
        return describe(self)


def _saturated(x: float) -> float:
    """Return an error of first order x, limited by 1."""
    # Large powers would overflow, and the quotient is 1 there.
    return x / (1 + x**_SHARPNESS) ** (1 / _SHARPNESS) if x < 1e6 else 1.0


def _first_order(error: float) -> float:
    """Invert the saturation: return the first-order error of a relative error."""
    if not 0 < error < 1:
        raise ParameterError(f"a relative error must lie between 0 and 1, not {error}")
    return float(error / (1 - error**_SHARPNESS) ** (1 / _SHARPNESS))


def describe(forecast: Forecast, gap: float | None = None) -> str:
    """Write a forecast as text.

    Parameters
    ----------
    gap : float, optional
        Eigengap, as a share of the total variance, whose error is added.
    """
    f = forecast
    unit = "record" if f.contributions == 1 else f"user, in {f.contributions} batches together"
    lines = [f"rank {f.rank} of {f.dim:,} features, {f.records:,} records, {f.route} route"]
    rows = [
        ("charge", f"{_charge(f)} for each {unit}"),
        ("batches", _batches(f.batches)),
        ("one batch", f"mu {f.mu:.3g}; noise multiplier {f.multiplier:.4g}"),
        ("shares of mu²", _shares(f)),
        ("noise, of the total variance:", ""),
        ("  an entry", _share(f.entry_noise)),
        ("  largest eigenvalue", _share(f.largest_noise)),
        ("  explained variance", f"± {_share(f.variance_error)}"),
    ]
    if f.total_error is not None:
        rows.append(("  the total itself", f"± {_share(f.total_error)}"))
    lines += [_row(name, value) for name, value in rows]
    lines += ["", *_needs(f, gap)]
    if gap is not None:
        lines.append(f"with a gap of {_share(gap)} the error is {_share(f.error_at(gap))}")
    notes = [
        "error: as a share of a random subspace's; gap: lambda_k - lambda_(k+1), as a share of the total "
        f"variance. For a clip radius of {f.tail:g} times the mean |x|². Noise alone: clipping and sampling "
        "add to it. The part cut off by clipping adds 2% of an explained variance to its error, "
        "0.2 to 10% on four data sets in five, and more under heavy tails."
    ]
    if f.route == "block":
        notes.append(
            "The block route's noise follows the residuals: this is a bound, "
            "for residuals as large as records."
        )
    notes += [f"warning: {line}" for line in f.warnings]
    return "\n".join([*lines, "", *(textwrap.fill(note, _WIDTH) for note in notes)])


def as_json(forecast: Forecast, gap: float | None = None) -> dict[str, Any]:
    """Collect a forecast's numbers as JSON; parameters as for :func:`describe`."""
    f = forecast
    named = ("dim", "rank", "records", "epsilon", "delta", "contributions", "tail", "route")
    return {
        **{name: getattr(f, name) for name in named},
        "batches": list(f.batches),
        "charge": f.charge.model_dump(mode="json"),
        "mu": f.mu,
        "noise_multiplier": f.multiplier,
        "shares": dict(vars(f.shares)),
        "entry_noise": f.entry_noise,
        "largest_noise": f.largest_noise,
        "explained_variance_error": f.variance_error,
        "total_variance_error": f.total_error,
        "random_error": f.random_error,
        "is_bound": f.route == "block",
        "targets": [_target(f, error, gap) for error in TARGETS],
        "gap": gap,
        "error": None if gap is None else f.error_at(gap),
        "warnings": list(f.warnings),
    }


def _target(f: Forecast, error: float, gap: float | None) -> dict[str, Any]:
    needed = f.gap_for(error)
    return {
        "error": error,
        "gap_needed": needed,
        "attainable": needed <= 1 / f.rank,
        "records_needed": None if gap is None else f.records_for(gap, error),
    }


def _needs(f: Forecast, gap: float | None) -> list[str]:
    """Write the table of target errors."""
    last = "" if gap is None else f"   records for a gap of {_share(gap)}, in as many batches"
    lines = [f"{'error':>6}   {'gap needed':<18}{last}".rstrip()]
    for error in TARGETS:
        needed = f.gap_for(error)
        shown = _share(needed) if needed <= 1 / f.rank else f"none (above 1/{f.rank})"
        records = "" if gap is None else f"   {_count(f.records_for(gap, error))}"
        lines.append(f"{error:>6.0%}   {shown:<18}{records}".rstrip())
    return lines


def _row(name: str, value: str) -> str:
    if not value:
        return name
    return textwrap.fill(value, _WIDTH, initial_indent=f"{name:<{_LABEL}}", subsequent_indent=" " * _LABEL)


def _batches(sizes: tuple[int, ...]) -> str:
    count = len(sizes)
    if len(set(sizes)) == 1:
        return f"{count} of {sizes[0]:,} records"
    shown = [f"{size:,}" for size in sizes]
    if count > _SHOWN + 1:
        shown = [*shown[:_SHOWN], "…", shown[-1]]
    return f"{count}, of {' + '.join(shown)} records"


def _shares(f: Forecast) -> str:
    s = f.shares
    looks = ((s.sizes, "sizes"), (s.centre, "centre"), (s.pilot, "first look"))
    parts = [f"the sum {s.first:.0%}", *(f"{name} {share:.0%}" for share, name in looks if share)]
    first = ", ".join(parts)
    return first if len(f.batches) == 1 else f"{first}; in later batches the sum {s.later:.0%}"


def _charge(f: Forecast) -> str:
    charge = f.charge
    rho = "" if charge.rho is None else f", rho {float(charge.rho):.3g}"
    return f"epsilon {float(charge.epsilon):g}, delta {float(charge.delta):g}{rho}"


def _count(value: int | None) -> str:
    return "above 10^15" if value is None else f"{value:,}"


def _share(value: float) -> str:
    """Write a share as a percentage of three digits."""
    percent = 100 * value
    return f"{percent:.3g}%" if percent < 1000 else "above 1000%"
