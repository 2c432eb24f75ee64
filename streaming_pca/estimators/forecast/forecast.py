"""Forecast of the default estimator's error from public numbers, before any charge.

Only the noise is forecast, not the effects of clipping and of sampling. All noise is in units of the total
variance, the sum of all d eigenvalues of the covariance. Derivation: docs/explanation/proofs/errors.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, chain, pairwise, repeat
from typing import Any, TypeVar

from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Estimator
from streaming_pca.estimators.common.clipped_batches import ClippedBatches, GrowingBatches, least_batch
from streaming_pca.estimators.common.forgetting import HalfLife, batch_doubt, kept_share
from streaming_pca.estimators.covariance.state import MAX_COVARIANCE_DIM
from streaming_pca.estimators.forecast.result import TARGETS, Forecast, Route, Shares
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, least_multiplier
from streaming_pca.privacy.errors import ParameterError, require_count, require_positive
from streaming_pca.privacy.parameters import PrivacyParameters, guarantee_warnings

MOST_RECORDS = 10**10
_MOST_BATCHES = 10_000

Batches = int | Sequence[int] | GrowingBatches
"""Number of equal batches, records of each, or options that decide them."""


def planned_batches(
    records: int,
    options: GrowingBatches | None = None,
    multiplier: float = 0.0,
    per_row: int = 1,
    only_full: bool = False,
) -> tuple[int, ...]:
    """Cut a stream of ``records`` into batches by an estimator's options.

    By default they are an endless stream's: 4,096 records, growing by 1.6 up to 131,072, and at least as many
    as the noise ``multiplier`` of a batch needs. The last one is shorter, as if it closed at
    ``max_wait_seconds``, unless ``only_full``; too few records are left out. ParameterError if none closes.
    """
    if not 1 <= records <= MOST_RECORDS:
        raise ParameterError(f"records must lie between 1 and {MOST_RECORDS}, not {records}")
    options = options or GrowingBatches()
    least = least_batch(multiplier, per_row)
    sizes: list[int] = []
    left = records
    while left:
        size = options.at_least(options.count(len(sizes), records - left), least)
        if left < (size if only_full else min(size, least)):
            break
        taken = min(size, left)
        # All batches after one of the largest size are as large.
        whole = left // taken if options.n_records is None and size >= options.max_batch else 1
        sizes += [taken] * whole
        left -= whole * taken
    if not sizes:
        late = "set stream.max_wait_seconds", size
        cure, wanted = late if only_full and records >= least else ("a larger epsilon", min(size, least))
        raise ParameterError(
            f"{records} records do not fill a batch of at least {wanted:.9g}: take more records or {cure}"
        )
    return tuple(sizes)


def resized_batches(batches: Batches, records: int, count: int) -> Batches:
    """Return the batches of ``count`` records in place of ``records``.

    Sizes keep their ratios, and options their numbers, with more batches if these would be too large.
    """
    if isinstance(batches, int):
        return max(batches, math.ceil(count / MAX_RECORDS))
    if not isinstance(batches, GrowingBatches):
        ends = [round(count * (end / records)) for end in accumulate(batches)]
        return [end - start for start, end in pairwise([0, *ends])]
    if batches.n_records is None:
        return batches
    # Equal batches stay below the limit; a cut at even numbers adds at most 2 records.
    least = math.ceil(count / (MAX_RECORDS - 2))
    growth = {} if least <= batches.n_batches else {"n_batches": least, "growth": 1.0}
    given = batches.model_dump(exclude_unset=True) | {"n_records": count} | growth
    return type(batches)(**given)


_MOST_DIM = 2**13
FACTORS = tuple(2 ** (i / 2) for i in range(-6, 7))
"""Epsilons and records of a forecast's curves, as multiples of the given ones."""


def forecast(
    dim: int,
    rank: int,
    records: int,
    epsilon: float,
    delta: float,
    *,
    batches: Batches = 1,
    contributions: int = 1,
    tail: float = 1.0,
    public_radius: bool = False,
    route: Route | None = None,
    per_row: int = 1,
    only_full: bool = False,
    rows: int = 1,
    half_life: HalfLife = None,
) -> Forecast:
    """Forecast noise and attainable errors; pure, and free of charge.

    Raises ParameterError with one line that names the parameter.

    Parameters
    ----------
    dim, rank, records : features d, dimension k of the subspace, records N of the whole stream.
    epsilon, delta : privacy guarantee of the stream.
    batches : a number of equal batches, the records of each (their sum is N), or an estimator's options.
    contributions : batches that a user may enter; 1 where a record is the unit.
    tail : clip radius over the mean of |x|^2: 1 for records of one size; 2 to 5 where
        few directions hold most of the variance, or tails are heavy.
    public_radius : True with a public clip radius: no share is spent on a search.
    route : by default block above 512 features, as the default estimator decides.
    per_row : records for each summed row: 2 with ``centering = "pairs"``.
    only_full : True if batches of an estimator's options wait until they are full.
    rows : records for each message, which an estimator's options count, with ``privacy_unit = "row"``.
    half_life : records after which a batch counts half, as in an estimator's options.
    """
    counts = {"dim": dim, "rank": rank, "records": records, "per_row": per_row, "rows": rows}
    for name, value in counts.items():
        require_count(name, value)
    require_positive("tail", tail)
    if not 1e-3 <= tail <= 1e6:
        raise ParameterError(f"tail must lie between 0.001 and 1e6, not {tail:g}")
    if dim > _MOST_DIM:
        raise ParameterError(f"dim must be at most {_MOST_DIM}, not {dim}")
    if rank > dim:
        raise ParameterError(f"rank = {rank} is above dim = {dim}")
    if records > MOST_RECORDS:
        raise ParameterError(f"records must be at most {MOST_RECORDS}, not {records}")
    privacy = PrivacyParameters(epsilon=epsilon, delta=delta, contributions=contributions)
    multiplier = least_multiplier(epsilon, delta, contributions)
    try:
        charge = privacy.charge(contributions * gaussian_rho(multiplier))
    except ParameterError:
        raise
    except ValueError as error:
        raise ParameterError(f"epsilon = {epsilon:g} and delta = {delta:g} cannot be charged") from error
    route = route or ("block" if dim > MAX_COVARIANCE_DIM else "covariance")
    law = _Noise(dim, delta, contributions, tail, public_radius, route, per_row, only_full, rows, half_life)
    try:
        sizes = law.checked(records, batches, multiplier)
        shares = law.shares(sizes, multiplier)
    except OverflowError:
        raise ParameterError(
            f"epsilon = {epsilon:g} and delta = {delta:g} need more noise than a float holds"
        ) from None
    known = (dim, rank, records, epsilon, delta, contributions, tail, route, sizes, shares, multiplier)
    curves = law.by_epsilon(records, batches, epsilon), law.by_records(records, batches, multiplier)
    found = Forecast(*known, 1 / multiplier, charge, law.entry(sizes, multiplier), *curves)
    return replace(found, warnings=_warnings(found))


@dataclass(frozen=True)
class _Noise:
    """Law of a forecast's noise: the deviation of an entry of the mean second moment."""

    dim: int
    delta: float
    contributions: int
    tail: float
    public_radius: bool
    route: Route
    per_row: int
    only_full: bool
    rows: int
    half_life: HalfLife

    def shares(self, sizes: Sequence[int], multiplier: float) -> Shares:
        if self.public_radius:
            return Shares.from_one_sum(sizes, multiplier)
        return Shares.from_batches(self.dim, sizes, multiplier)

    def checked(self, records: int, batches: Batches, multiplier: float) -> tuple[int, ...]:
        """Return the records of each batch; ParameterError if one would be too small or too large.

        ``multiplier`` is the noise multiplier of a batch.
        """
        if isinstance(batches, int):
            require_count("batches", batches)
            if batches > _MOST_BATCHES:
                raise ParameterError(f"batches must be at most {_MOST_BATCHES}, not {batches}")
            whole, rest = divmod(records, batches)
            sizes = (*[whole + 1] * rest, *[whole] * (batches - rest))
        elif isinstance(batches, GrowingBatches):
            messages = records // self.rows
            if not messages:
                raise ParameterError(f"{records} records do not fill a message of {self.rows} rows")
            sizes = planned_batches(messages, batches, multiplier, self.per_row, self.only_full)
            sizes = tuple(size * self.rows for size in sizes)
        else:
            sizes = tuple(batches)
            for size in sizes:
                require_count("batches", size)
            if sum(sizes) != records:
                raise ParameterError(f"batches hold {sum(sizes)} records together, not {records}")
        least = 2 * self.per_row
        if min(sizes) < least:
            raise ParameterError(f"{records} records do not fill {len(sizes)} batches of at least {least}")
        if max(sizes) > MAX_RECORDS:
            needed = math.ceil(records / MAX_RECORDS)
            raise ParameterError(
                f"a batch would hold {max(sizes)} records, but at most {MAX_RECORDS} are allowed: "
                f"take {needed} batches or more"
            )
        return sizes

    def entry(self, sizes: Sequence[int], multiplier: float) -> float:
        shares = self.shares(sizes, multiplier)
        # Long streams have many batches of few sizes, which forgetting makes unlike.
        records, later = sum(sizes), repeat(shares.later)
        kept = (kept_share(self.half_life, records - end) for end in accumulate(sizes))
        parts = Counter(zip(sizes, kept, chain([shares.first], later), strict=False))
        square = whole = 0.0
        for (size, factor, share), count in parts.items():
            rows = size / self.per_row
            weight = factor / batch_doubt(self.dim, rows, multiplier)
            square += count * (weight / rows) ** 2 / share
            whole += count * weight
        spread = math.sqrt(square) / whole
        return (2 if self.route == "block" else 1) * self.tail * multiplier * spread

    def by_epsilon(self, records: int, batches: Batches, epsilon: float) -> tuple[tuple[float, float], ...]:
        """Return epsilons around the given one, with the noise of each."""

        def noise(value: float) -> float:
            multiplier = least_multiplier(value, self.delta, self.contributions)
            return self.entry(self.checked(records, batches, multiplier), multiplier)

        return _points([epsilon * factor for factor in FACTORS], noise)

    def by_records(self, records: int, batches: Batches, multiplier: float) -> tuple[tuple[int, float], ...]:
        """Return numbers of records around the given one, with the noise of each."""

        def noise(count: int) -> float:
            if count > MOST_RECORDS:
                raise ParameterError("too many records")
            other = resized_batches(batches, records, count)
            return self.entry(self.checked(count, other, multiplier), multiplier)

        counts = [round(records * factor) // self.per_row * self.per_row for factor in FACTORS]
        return _points(counts, noise)


N = TypeVar("N", int, float)


def _points(values: Sequence[N], noise: Callable[[N], float]) -> tuple[tuple[N, float], ...]:
    """Evaluate a curve where it exists; outside, for example, batches are too small."""
    points = []
    for value in values:
        try:
            found = noise(value)
        except (ValueError, OverflowError, ZeroDivisionError):
            continue
        if math.isfinite(found):
            points.append((value, found))
    return tuple(points)


def _warnings(f: Forecast) -> tuple[str, ...]:
    """Name doubtful parameters, one line each."""
    found = guarantee_warnings(float(f.charge.epsilon), f.delta, f.records)
    if left := f.records - sum(f.batches):
        found.append(f"the last {left:,} records do not fill a batch: they are not learned from")
    if f.contributions > len(f.batches):
        found.append(
            f"contributions = {f.contributions} is above the number of batches, {len(f.batches)}: "
            "a lower one needs less noise"
        )
    if f.rank < f.dim and f.gap_for(TARGETS[-1]) > 1 / f.rank:
        helps = ["more records", "a larger epsilon"]
        helps += ["fewer batches"] if len(f.batches) > 1 else []
        helps += ["fewer components"] if f.rank > 1 else []
        least = f"{math.degrees(f.angle_at(1 / f.rank)):.0f} degrees, even if it has all the variance"
        found.append(f"the noise turns the subspace by {least}: take {', '.join(helps[:-1])} or {helps[-1]}")
    return tuple(found)


def forecast_estimator(
    estimator: Estimator[Any, Any],
    records: int,
    *,
    batches: Batches | None = None,
    tail: float = 1.0,
    only_full: bool = False,
    rows: int = 1,
) -> Forecast:
    """Forecast for a configured estimator, the default or one of its two routes.

    ``batches``, ``only_full`` and ``rows`` are as for :func:`forecast`, by default those of its options.
    Raises ParameterError with one line, also where no forecast is known for the estimator.
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
    privacy = estimator.privacy
    half_life = options.half_life
    found = forecast(
        *(estimator.dim, estimator.k, records, privacy.epsilon, privacy.delta),
        batches=options if batches is None else batches,
        contributions=privacy.contributions,
        tail=tail,
        public_radius=options.clip_radius is not None,
        route=route or "covariance",
        per_row=preprocessing.units,
        only_full=only_full,
        rows=rows,
        half_life=half_life,
    )
    if half_life == "auto":
        text = 'half_life = "auto": while the records drift, earlier batches count less and the noise more'
        found = replace(found, warnings=(*found.warnings, text))
    if estimator.diagnostics is None:
        return found
    charge = found.charge + estimator.diagnostics.charge
    whole = float(charge.epsilon) / found.epsilon
    by_epsilon = tuple((float(f"{own * whole:.12g}"), noise) for own, noise in found.by_epsilon)
    return replace(found, charge=charge, by_epsilon=by_epsilon)
