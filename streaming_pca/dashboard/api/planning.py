"""Route of forecasts."""

from __future__ import annotations

from typing import Annotated, Literal

from fastapi import FastAPI, Query, Request, Response
from pydantic import Field, FiniteFloat, ValidationError

from streaming_pca.dashboard.api.conditional import answer
from streaming_pca.dashboard.api.routes import Context
from streaming_pca.dashboard.models import Answer, Charge
from streaming_pca.estimators.common.clipped_batches import GrowingBatches
from streaming_pca.estimators.forecast.forecast import MOST_RECORDS, forecast
from streaming_pca.estimators.forecast.result import as_json
from streaming_pca.privacy.errors import ParameterError


class PlanShares(Answer):
    """Shares of mu² in a batch."""

    first: FiniteFloat
    """Share of the sum in the first batch."""
    later: FiniteFloat
    """Share of the sum in each later batch."""
    sizes: FiniteFloat
    """Share of the counts of norms."""
    centre: FiniteFloat
    """Largest share of the centre."""
    pilot: FiniteFloat
    """Share of the pilot estimate of the covariance."""


class PlanTarget(Answer):
    """Relative error and the eigengap that it requires."""

    error: FiniteFloat
    """Error, relative to the error of a random subspace."""
    gap_needed: FiniteFloat
    """Eigengap that the error requires, as a share of the total variance."""
    attainable: bool
    """False if the required eigengap is impossible."""
    records_needed: int | None
    """Number of records for this error at the given gap; null without a gap, or above 10^15."""


class _Point(Answer):
    entry_noise: FiniteFloat
    """Standard deviation of an entry of the mean second moment, as a share of the total variance."""
    angles: list[FiniteFloat]
    """Expected angle at each of the plan's `gaps`, in radians."""


class PlanOfEpsilon(_Point):
    """Forecast for another epsilon."""

    epsilon: FiniteFloat
    """Epsilon of the guarantee."""


class PlanOfRecords(_Point):
    """Forecast for another number of records."""

    records: int
    """Records of the whole stream."""


class Plan(Answer):
    """Forecast from public numbers, as in `streaming-pca plan --batches growing --json`."""

    dim: int
    """Number d of features."""
    rank: int
    """Number k of components."""
    records: int
    """Records of the whole stream."""
    epsilon: FiniteFloat
    """Epsilon of the guarantee."""
    delta: FiniteFloat
    """Delta of the guarantee."""
    contributions: int
    """Largest number of batches of one user."""
    tail: FiniteFloat
    """Clip radius of |x|² divided by the mean of |x|²."""
    route: Literal["covariance", "block"]
    """Route of the estimator."""
    batches: list[int]
    """Records of each batch."""
    charge: Charge
    """Charge of a record, or of a user over all batches."""
    mu: FiniteFloat
    """Cost of a batch in Gaussian differential privacy."""
    noise_multiplier: FiniteFloat
    """Noise divided by sensitivity, for one batch."""
    shares: PlanShares
    """Shares of mu²."""
    entry_noise: FiniteFloat
    """Standard deviation of an entry of the mean second moment, as a share of the total variance."""
    largest_noise: FiniteFloat
    """Spectral norm of the noise, as a share of the total variance."""
    explained_variance_error: FiniteFloat
    """Standard error of an explained variance, as a share of the total variance."""
    total_variance_error: FiniteFloat | None
    """Relative standard error of the total variance; null for the block route."""
    random_error: FiniteFloat
    """Error of a random subspace."""
    is_bound: bool
    """True if the noise is an upper bound."""
    targets: list[PlanTarget]
    """Errors and the eigengaps that they require."""
    variance_lost: FiniteFloat | None
    """Most of the total variance that noise costs the subspace on average; null for the block route."""
    gaps: list[FiniteFloat]
    """Eigengaps of the angles: the given one, or three assumed ones."""
    angles: list[FiniteFloat]
    """Expected largest angle to the subspace without noise at each of these gaps, in radians."""
    by_epsilon: list[PlanOfEpsilon]
    """The same against epsilon."""
    by_records: list[PlanOfRecords]
    """The same against the number of records."""
    gap: FiniteFloat | None = Field(default=None)
    """Given eigengap."""
    error: FiniteFloat | None = None
    """Relative error at that eigengap."""
    warnings: list[str]
    """One line each."""


_Dim = Annotated[int, Query(description="Number of features.", ge=1, le=2**13, examples=[50])]
_Rank = Annotated[
    int, Query(description="Number of components, at most `dim`.", ge=1, le=2**13, examples=[2])
]
_Records = Annotated[
    int, Query(description="Records of the whole stream.", ge=1, le=MOST_RECORDS, examples=[100_000])
]
_Epsilon = Annotated[float, Query(description="Epsilon of the guarantee.", gt=0, le=1e12, examples=[1.0])]
_Delta = Annotated[
    float, Query(description="Delta of the guarantee, below 1/records.", gt=0, lt=1, examples=[1e-6])
]
_Gap = Annotated[
    float | None,
    Query(description="Eigengap as a share of the total variance, at most 1/rank.", ge=1e-12, le=1),
]
_Tail = Annotated[
    float,
    Query(description="Clip radius of |x|² over the mean of |x|²: 2 to 5 for heavy tails.", ge=1e-3, le=1e6),
]
_Batches = Annotated[
    int | None,
    Query(description="Number of equal batches; by default those of an endless stream.", ge=1, le=10_000),
]
_Contributions = Annotated[
    int, Query(description='Most batches of one user, with privacy_unit = "user".', ge=1, le=10_000)
]


def add_planning(app: FastAPI, context: Context) -> None:

    @app.get("/v1/plan", response_model=Plan, tags=["plan"], operation_id="getPlan")
    async def get_plan(
        request: Request,
        dim: _Dim,
        rank: _Rank,
        records: _Records,
        epsilon: _Epsilon,
        delta: _Delta,
        gap: _Gap = None,
        tail: _Tail = 1.0,
        batches: _Batches = None,
        contributions: _Contributions = 1,
    ) -> Response:
        """Predict noise, charges and attainable errors before spending any budget."""

        def plan() -> Plan:
            try:
                found = forecast(
                    dim,
                    rank,
                    records,
                    epsilon,
                    delta,
                    batches=GrowingBatches() if batches is None else batches,
                    contributions=contributions,
                    tail=tail,
                )
                return Plan(**as_json(found, gap))
            except (ValidationError, OverflowError, ZeroDivisionError):
                raise ParameterError(
                    "the forecast has no finite numbers: take a larger epsilon or delta"
                ) from None

        return answer(request, await context.plans.call(plan))
