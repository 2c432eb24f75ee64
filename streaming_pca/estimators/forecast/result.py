"""Forecast, with its text of at most 80 columns and its JSON."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from streaming_pca.estimators.common.centre import LATER_SHARE, MEAN_SHARE, ROUNDS, last_share, radius_share
from streaming_pca.estimators.common.norm_distribution import norm_shares
from streaming_pca.estimators.common.present import present_share
from streaming_pca.estimators.covariance.update import FIRST_LOOK, LATER_LOOK, LATER_NORMS
from streaming_pca.privacy.errors import ParameterError, require_positive
from streaming_pca.privacy.parameters import Charge

TARGETS = (0.05, 0.10, 0.30)
"""Relative errors of a forecast's table, each with the eigengap that it needs."""

_ENDLESS = 1e15  # largest number of records that is named
_SHARPNESS = 4  # exponent of the saturation; tuned by simulation with 10 to 200 features, rank 1 to 10

_ASSUMED = (0.5, 0.2, 0.05)  # assumed gaps, as shares of the largest possible one

Route = Literal["covariance", "block"]

_WIDTH, _LABEL = 80, 22  # columns of the text, and of a row's label
_SHOWN = 5  # number of leading batches whose sizes are listed, in addition to the last one
_LEAST = math.radians(0.01)  # a smaller angle is shown as less than this one
_LOST = math.radians(60)  # a subspace that noise turns by more than this angle is called lost
_STEPS = (0.25, 0.5, 1.0, 2.0, 4.0)  # multiples of the given epsilon and of the given records in the tables

MEASURED = (
    "Fits to nine data sets measured 0.2 to 2 times the forecast angle; under heavy tails up to 50 times, "
    "and more for a larger epsilon, as clips do not shrink like noise."
)
"""Forecasts judged by fits; table in docs/explanation/proofs/errors.md."""


@dataclass(frozen=True)
class Shares:
    """Shares of mu^2 for a batch's sum, and for the mechanisms before it."""

    first: float
    later: float
    """Share of the covariance (or block) sum, in (0, 1], in the first batch and in each later one."""
    sizes: float
    centre: float
    pilot: float
    """Shares in the first batch: of the counts of records and norms, of the centre (at most), and of the
    first look at the covariance. They enter no formula."""

    @classmethod
    def from_batches(cls, dim: int, sizes: Sequence[int], multiplier: float) -> Shares:
        """Return the default's shares with ``centering = "auto"`` and without weights.

        ``sizes`` are the records of each batch, ``multiplier`` is the noise multiplier of a whole batch.
        """
        first = sum(norm_shares(sizes[0], multiplier)) + present_share(sizes[0], multiplier)
        radius = radius_share(sizes[0], multiplier)
        centre = ROUNDS * (radius + MEAN_SHARE) + radius + last_share(dim, sizes[0], multiplier)
        tail = norm_shares(sizes[-1], multiplier, LATER_NORMS)[1]
        again = tail + present_share(sizes[-1], multiplier)
        later = 1 - again - radius_share(sizes[-1], multiplier) - LATER_SHARE - LATER_LOOK
        return cls(1 - first - centre - FIRST_LOOK, later, first, centre, FIRST_LOOK)

    @classmethod
    def from_one_sum(cls, sizes: Sequence[int], multiplier: float) -> Shares:
        """Give the sum all but the count of present records: the clip radius is public."""
        first, later = (present_share(size, multiplier) for size in (sizes[0], sizes[-1]))
        return cls(first=1 - first, later=1 - later, sizes=first, centre=0.0, pilot=0.0)


@dataclass(frozen=True)
class Forecast:
    """Noise, batches and charge of a stream, and the eigengaps it can resolve."""

    dim: int
    rank: int
    records: int
    epsilon: float
    delta: float
    """Privacy guarantee of the estimator's mechanisms together."""
    contributions: int
    """Batches that a unit of privacy may enter."""
    tail: float
    """The clip radius R (of |x|^2) over the mean of |x|^2."""
    route: Route
    """The noise is an upper bound if it is "block"."""
    batches: tuple[int, ...]
    """Records of each."""
    shares: Shares
    multiplier: float
    mu: float
    """Noise over sensitivity of one batch with a share of 1, and its inverse, its cost in Gaussian DP."""
    charge: Charge
    """Charge of a record, or of all batches of a user together, with diagnostics where a stream has them."""
    entry_noise: float
    """Standard deviation of an entry of the mean second moment, off the diagonal (block: any entry), as a
    share of the total variance."""
    by_epsilon: tuple[tuple[float, float], ...] = ()
    by_records: tuple[tuple[int, float], ...] = ()
    """Other epsilons (with diagnostics), and other numbers of records, each with its entry noise; those
    without a forecast are absent."""
    warnings: tuple[str, ...] = ()
    """One line each."""

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
    def variance_lost(self) -> float | None:
        """Most of the total variance that noise costs the subspace on average, for any spectrum.

        The best subspace keeps <A, P>, the found one <A, P'>; the difference is at most <N, P'> - <N, P>
        for the noise N, so on average at most the sum of N's k largest eigenvalues. None for the block route.
        """
        if self.route == "block":
            return None
        return 0.0 if self.rank == self.dim else min(self.rank * self.largest_noise, 1.0)

    @property
    def gaps(self) -> tuple[float, ...]:
        """Gaps to assume if none is known: a half, a fifth and a twentieth of the largest, 1/k."""
        return tuple(share / self.rank for share in _ASSUMED)

    def with_noise(self, entry_noise: float) -> Forecast:
        """Return this forecast with another noise, such as a point of a curve has."""
        return replace(self, entry_noise=entry_noise)

    @property
    def random_error(self) -> float:
        """Root mean square of |U U^T - V V^T|_F of a random subspace: sqrt(2 k (1 - k/d))."""
        return math.sqrt(2 * self.rank * (1 - self.rank / self.dim))

    def error_at(self, gap: float) -> float:
        """Compute the relative error for an eigengap: over :attr:`random_error`, at most 1.

        ``gap`` is lambda_k - lambda_{k+1} as a share of the total variance, at most 1/k. The error is 0 where
        the rank is the dimension.
        """
        return _saturated(self._first_order_gap / self._checked(gap))

    def angle_at(self, gap: float) -> float:
        """Compute the expected largest principal angle to the subspace without noise.

        It is in radians, at most pi/2, and 0 where the rank is the dimension. ``gap`` is as for
        :meth:`error_at`.
        """
        if self.rank == self.dim:
            return 0.0
        # To first order the norm of k (d - k) normals, at most sqrt(d - k) + sqrt(k) on average.
        edge = math.sqrt(self.dim - self.rank) + math.sqrt(self.rank)
        return math.asin(_saturated(self.entry_noise * edge / self._checked(gap)))

    def gap_for(self, error: float) -> float:
        """Compute the eigengap for a relative error; none above 1/k can exist."""
        if not 0 < error < 1:
            raise ParameterError(f"a relative error must lie between 0 and 1, not {error}")
        return self._first_order_gap / float(error / (1 - error**_SHARPNESS) ** (1 / _SHARPNESS))

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
                f"gap = {gap:g} is above 1/{self.rank} = {1 / self.rank:.3g}: "
                "eigenvalues that large exceed the total variance"
            )
        return gap

    def __str__(self) -> str:
        return describe(self)


def _saturated(x: float) -> float:
    """Return an error of first order x, limited by 1."""
    # Large powers would overflow, and the quotient is 1 there.
    return x / (1 + x**_SHARPNESS) ** (1 / _SHARPNESS) if x < 1e6 else 1.0


def describe(
    forecast: Forecast, gap: float | None = None, *, verbose: bool = False, settings: str | None = None
) -> str:
    """Write a forecast as text.

    ``gap`` is an eigengap, as a share of the total variance; by default three gaps are assumed. ``verbose``
    adds the charge's rho, mu, the noise multiplier, the shares and the noise. ``settings`` is a line on the
    source of the settings.
    """
    f = forecast
    gaps = f.gaps if gap is None else (gap,)
    blocks = [_filled(_headline(f, gaps)), *(_filled(f"warning: {line}") for line in f.warnings)]
    if f.rank < f.dim and f.by_epsilon and f.by_records:
        epsilon = float(f.charge.epsilon)
        blocks += [
            _table(f"Expected angle against epsilon, with {f.records:,} records:", "epsilon", f, gaps,
                   f.by_epsilon, epsilon),
            _table(f"Expected angle against records, with epsilon {epsilon:g}:", "records", f, gaps,
                   f.by_records, f.records),
            _filled(_reading(f, gap)),
        ]  # fmt: skip
    notes = [settings] if settings else []
    notes.append(_limits(f))
    if verbose:
        blocks.append("\n".join(_details(f, gap)))
    return "\n\n".join([*blocks, "\n".join(map(_filled, notes))])


def _headline(f: Forecast, gaps: Sequence[float]) -> str:
    unit = "record" if f.contributions == 1 else f"user, in {f.contributions} batches together"
    features = f"{f.dim:,} feature{'s' * (f.dim > 1)}"
    epsilon = float(f.charge.epsilon)
    start = f"With {f.records:,} records of {features} and epsilon {epsilon:g},"
    charged = f"Each {unit} is charged epsilon {epsilon:g} and delta {float(f.charge.delta):g}."
    if f.rank == f.dim:
        return f"{start} the {f.rank} components span the whole space, which noise cannot turn. {charged}"
    subject = "the leading direction" if f.rank == 1 else f"the subspace of {f.rank} components"
    middle = gaps[len(gaps) // 2]
    angle, about = f.angle_at(middle), "at most about" if f.route == "block" else "about"
    if angle < _LEAST:
        about = "less than"
    expected = f"is expected {about} {_degrees(angle)} degrees from the one without noise"
    if angle > _LOST:
        expected = "is expected to be lost in noise"
    condition = f"if variance {f.rank} exceeds the next one by {_percent(middle)} of the total variance"
    sizes = "the records have one size" if f.tail == 1 else f"the tail is {f.tail:g}"
    keeps = ""
    if f.variance_lost is not None and f.variance_lost < 1:
        lost = _percent(f.variance_lost)
        keeps = f" For any spectrum, noise costs it at most {lost} of the total variance, on average."
    return f"{start} {subject} {expected}, {condition} and {sizes}.{keeps} {charged}"


def _table(
    title: str,
    name: str,
    f: Forecast,
    gaps: Sequence[float],
    points: Sequence[tuple[float, float]],
    base: float,
) -> str:
    """Write the rows of a curve at the multiples :data:`_STEPS` of its middle."""
    lines = [title, f"{name:>14}" + "".join(f"{f'gap {_percent(gap)}':>13}" for gap in gaps)]
    for step in _STEPS:
        value, noise = min(points, key=lambda point: abs(math.log(point[0] / (base * step))))
        if abs(value / (base * step) - 1) > 0.05:
            # No forecast exists there.
            continue
        angles = [f.with_noise(noise).angle_at(gap) for gap in gaps]
        lines.append(
            f"{f'{value:,.6g}' if value < 1e6 else f'{value:,.0f}':>14}"
            + "".join(f"{_cell(a):>13}" for a in angles)
        )
    return "\n".join(lines)


def _cell(angle: float) -> str:
    return "lost" if angle > _LOST else f"{'<' * (angle < _LEAST)}{_degrees(angle)}°"


def _degrees(angle: float) -> str:
    """Write an angle in degrees with two digits, at least 0.01."""
    degrees = math.degrees(max(angle, _LEAST))
    digits = 0 if degrees >= 9.95 else 1 if degrees >= 0.995 else 2
    return f"{degrees:.{digits}f}"


def _percent(share: float) -> str:
    percent = 100 * share
    return f"{percent:.0f}%" if percent >= 99.5 else f"{percent:.2g}%"


def _reading(f: Forecast, gap: float | None) -> str:
    last = "" if gap is not None else "; assumed are a half, a fifth and a twentieth of that"
    return (
        f'angle: the largest between the subspaces with and without noise, "lost" above '
        f"{math.degrees(_LOST):.0f}°. gap: variance {f.rank} less variance {f.rank + 1}, as a share of the "
        f"total variance, at most {'1/' * (f.rank > 1)}{f.rank}{last}."
    )


def _limits(f: Forecast) -> str:
    text = (
        f"The forecast covers noise alone, for a tail (clip radius over mean |x|²) of {f.tail:g}; 2 to 5 is "
        f"usual. Clipping and sampling add to it. {MEASURED}"
    )
    if f.route == "block":
        text += " Above 512 features it is a bound, for residuals as large as records."
    return text


def _details(f: Forecast, gap: float | None) -> list[str]:
    """Write the numbers that the angles follow from."""
    unit = "record" if f.contributions == 1 else f"user, in {f.contributions} batches together"
    rows = [
        ("route", f.route),
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
    lines = [_row(name, value) for name, value in rows]
    lines += ["", *_needs(f, gap)]
    if gap is not None:
        lines.append(f"with a gap of {_share(gap)} the error is {_share(f.error_at(gap))}")
    note = (
        "error: as a share of a random subspace's. The part cut off by clipping adds 2% of an explained "
        "variance to its error, 0.2 to 10% on four data sets in five, and more under heavy tails."
    )
    return [*lines, "", _filled(note)]


def _filled(text: str) -> str:
    return textwrap.fill(text, _WIDTH, break_on_hyphens=False, break_long_words=False)


def _needs(f: Forecast, gap: float | None) -> list[str]:
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


def as_json(forecast: Forecast, gap: float | None = None) -> dict[str, Any]:
    """Collect a forecast's numbers as JSON.

    ``gap`` is the eigengap, as a share of the total variance, of errors and angles; by default angles are for
    :attr:`Forecast.gaps`.
    """
    f = forecast
    gaps = f.gaps if gap is None else (gap,)
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
        "variance_lost": f.variance_lost,
        "gaps": list(gaps),
        "angles": [f.angle_at(each) for each in gaps],
        "by_epsilon": [{"epsilon": value, **_point(f, noise, gaps)} for value, noise in f.by_epsilon],
        "by_records": [{"records": value, **_point(f, noise, gaps)} for value, noise in f.by_records],
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


def _point(f: Forecast, noise: float, gaps: Sequence[float]) -> dict[str, Any]:
    other = f.with_noise(noise)
    return {"entry_noise": noise, "angles": [other.angle_at(gap) for gap in gaps]}
