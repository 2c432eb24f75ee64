"""Forecast and its JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
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

_ASSUMED = (0.5, 0.2, 0.05)
"""Assumed gaps, as shares of the largest possible one."""

Route = Literal["covariance", "block"]


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
    by_epsilon, by_records : tuple of (float, float)
        Other epsilons (with diagnostics), and other numbers of records, each with its entry noise;
        those without a forecast are absent.
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
    by_epsilon: tuple[tuple[float, float], ...] = ()
    by_records: tuple[tuple[int, float], ...] = ()
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
        from streaming_pca.estimators.forecast.text import describe

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


def as_json(forecast: Forecast, gap: float | None = None) -> dict[str, Any]:
    """Collect a forecast's numbers as JSON.

    Parameters
    ----------
    gap : float, optional
        Eigengap, as a share of the total variance, of errors and angles; by default angles are for
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
