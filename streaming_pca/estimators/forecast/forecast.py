"""Forecast of the default estimator's error from public numbers, before any charge.

Only the noise is forecast, not the effects of clipping and of sampling. All noise is in
units of the total variance, the sum of all d eigenvalues of the covariance.
Derivation: docs/explanation/proofs/errors.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.common.clipped_batches import ClippedBatches
from streaming_pca.estimators.common.forgetting import batch_doubt
from streaming_pca.estimators.covariance.state import MAX_COVARIANCE_DIM
from streaming_pca.estimators.forecast.batches import MOST_RECORDS, Shares, checked_batches, planned_batches
from streaming_pca.estimators.forecast.result import TARGETS, Forecast, Route
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, least_multiplier
from streaming_pca.privacy.errors import ParameterError, require_count, require_positive
from streaming_pca.privacy.parameters import PrivacyParameters, delta_warning

_MOST_DIM = 2**13


def forecast(
    dim: int,
    rank: int,
    records: int,
    epsilon: float,
    delta: float,
    *,
    batches: int | Sequence[int] = 1,
    contributions: int = 1,
    tail: float = 1.0,
    shares: Shares | None = None,
    public_radius: bool = False,
    route: Route | None = None,
    per_row: int = 1,
) -> Forecast:
    """Forecast noise and attainable errors; pure, and free of charge.

    Parameters
    ----------
    dim, rank, records : int
        Features d, dimension k of the subspace, records N of the whole stream.
    epsilon, delta : float
        Privacy guarantee of the stream.
    batches : int or sequence of int
        A number of equal batches, or the records of each (their sum is N).
    contributions : int
        Batches that a user may enter; 1 where a record is the unit.
    tail : float
        Clip radius over the mean of |x|^2: 1 for records of one size; 2 to 5 where
        few directions hold most of the variance, or tails are heavy.
    shares : Shares, optional
        Shares of mu^2; by default those of the default estimator.
    public_radius : bool
        True with a public clip radius: no share is spent on a search.
    route : {"covariance", "block"}, optional
        By default block above 512 features, as the default estimator decides.
    per_row : int
        Records for each summed row: 2 with ``centering = "pairs"``.

    Raises
    ------
    ParameterError
        One line that names the parameter.
    """
    require_count("dim", dim)
    require_count("rank", rank)
    require_count("records", records)
    require_count("per_row", per_row)
    require_positive("tail", tail)
    if not 1e-3 <= tail <= 1e6:
        raise ParameterError(f"tail must lie between 0.001 and 1e6, not {tail:g}")
    if dim > _MOST_DIM:
        raise ParameterError(f"dim must be at most {_MOST_DIM}, not {dim}")
    if rank > dim:
        raise ParameterError(f"rank = {rank} is above dim = {dim}")
    if records > MOST_RECORDS:
        raise ParameterError(f"records must be at most {MOST_RECORDS}, not {records}")
    sizes = checked_batches(records, batches, per_row)
    privacy = PrivacyParameters(epsilon=epsilon, delta=delta, contributions=contributions)
    multiplier = least_multiplier(epsilon, delta, contributions)
    try:
        charge = privacy.charge(contributions * gaussian_rho(multiplier))
    except ParameterError:
        raise
    except ValueError as error:
        raise ParameterError(f"epsilon = {epsilon:g} and delta = {delta:g} cannot be charged") from error
    try:
        if shares is None and public_radius:
            shares = Shares.from_one_sum(sizes, multiplier)
        shares = shares or Shares.from_batches(dim, sizes, multiplier)
    except OverflowError:
        raise ParameterError(
            f"epsilon = {epsilon:g} and delta = {delta:g} need more noise than a float holds"
        ) from None
    route = route or ("block" if dim > MAX_COVARIANCE_DIM else "covariance")
    rows = [size / per_row for size in sizes]
    weights = [1 / batch_doubt(dim, count, multiplier) for count in rows]
    parts = zip(weights, rows, shares.sum_shares(len(sizes)), strict=True)
    spread = math.sqrt(sum((w / n) ** 2 / share for w, n, share in parts)) / sum(weights)
    noise = (2 if route == "block" else 1) * tail * multiplier * spread
    found = Forecast(
        dim,
        rank,
        records,
        epsilon,
        delta,
        contributions,
        tail,
        route,
        sizes,
        shares,
        multiplier,
        1 / multiplier,
        charge,
        noise,
    )
    return replace(found, warnings=_warnings(found))


def _warnings(f: Forecast) -> tuple[str, ...]:
    """Name doubtful parameters, one line each."""
    found = list(filter(None, [delta_warning(f.delta, f.records)]))
    if f.contributions > len(f.batches):
        found.append(
            f"contributions = {f.contributions} is above the number of batches, {len(f.batches)}: "
            "a lower one needs less noise"
        )
    if f.rank < f.dim and f.gap_for(TARGETS[-1]) > 1 / f.rank:
        found.append(
            f"the noise hides any subspace of rank {f.rank}: take more records, fewer batches, "
            "a larger epsilon or a lower rank"
        )
    return tuple(found)


def forecast_estimator(
    estimator: Estimator[Any, Any], records: int, *, batches: int | None = None, tail: float = 1.0
) -> Forecast:
    """Forecast for a configured estimator.

    Parameters
    ----------
    estimator : Estimator
        The default or one of its two routes.
    batches : int, optional
        Number of equal batches; by default the batches of its options.

    Raises
    ------
    ParameterError
        One line, also where no forecast is known for the estimator.
    """
    routes: dict[str, Route | None] = {"adaptive": None, "analyze-gauss": "covariance", "block": "block"}
    name, options = estimator.info.id, estimator.options
    if name not in routes or not isinstance(options, ClippedBatches):
        raise ParameterError(f"forecasts exist for {', '.join(routes)}, not for {name}")
    preprocessing = estimator.preprocessing
    if preprocessing.kind is not RecordKind.FACTOR:
        raise ParameterError(
            f'forecasts exist for vectors and factors, not for record_kind = "{preprocessing.kind}"'
        )
    route = routes[name] or getattr(estimator, "fixed_route", None)
    found = forecast(
        estimator.dim,
        estimator.k,
        records,
        estimator.privacy.epsilon,
        estimator.privacy.delta,
        batches=planned_batches(records, options) if batches is None else batches,
        contributions=estimator.privacy.contributions,
        tail=tail,
        public_radius=options.clip_radius is not None,
        route=route or "covariance",
        per_row=preprocessing.units,
    )
    if estimator.diagnostics is None:
        return found
    return replace(found, charge=found.charge + estimator.diagnostics.charge)
