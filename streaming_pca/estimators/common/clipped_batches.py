"""Settings of batches and clip, and cost of a batch, of estimators with one budget."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field, model_validator

from streaming_pca.estimators.base import Options
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.kernels.lattice import MAX_RECORDS, RADIUS
from streaming_pca.privacy.calibration.multipliers import gaussian_rho, least_multiplier
from streaming_pca.privacy.parameters import Charge, PrivacyParameters


class GrowingBatches(Options):
    """Settings of batches that grow to a limit, or add up to a known number."""

    sizing: ClassVar[frozenset[str]] = frozenset(
        {"first_batch", "growth", "max_batch", "n_records", "n_batches"}
    )

    first_batch: int = Field(default=4096, ge=2, le=MAX_RECORDS)
    """Records of the first batch of an endless stream."""
    growth: float = Field(default=1.6, ge=1, le=64)
    """Each batch has this many times the records of the previous one."""
    max_batch: int = Field(default=131_072, ge=2, le=MAX_RECORDS)
    """Largest batch of an endless stream; a worker's memory is two of them."""
    n_records: int | None = Field(default=None, ge=2, le=2**40)
    """Total number of records of the stream, if it is known: ``n_batches`` batches, growing by
    ``growth``, then add up to it exactly."""
    n_batches: int = Field(default=9, ge=1, le=10_000)
    """Number of batches that ``n_records`` are cut into."""

    @model_validator(mode="after")
    def _check(self) -> GrowingBatches:
        if self.n_records is None and self.first_batch > self.max_batch:
            raise ValueError("first_batch must not be above max_batch")
        if max(self._schedule, default=0) > MAX_RECORDS:
            raise ValueError(f"a batch may hold {MAX_RECORDS} records at most: raise n_batches")
        return self

    @cached_property
    def _schedule(self) -> tuple[int, ...]:
        """Sizes of batches that add up to ``n_records``, all even except the last."""
        if self.n_records is None:
            return ()
        # The last weight is 1, as powers above it could overflow.
        weights = [self.growth ** (i + 1 - self.n_batches) for i in range(self.n_batches)]
        sizes: list[int] = []
        taken, mass = 0, 0.0
        for weight in weights[:-1]:
            mass += weight
            end = int(self.n_records * mass / sum(weights)) // 2 * 2
            if end > taken:
                sizes.append(end - taken)
                taken = end
        return (*sizes, self.n_records - taken)

    @property
    def largest_batch(self) -> int:
        return max(self._schedule, default=self.max_batch)

    def future_records(self, records: int) -> float:
        """Return the records to expect after ``records``; as many again for an endless stream."""
        return float(records if self.n_records is None else max(self.n_records - records, 0))

    def count(self, batch: int, records: int = 0) -> int:
        """Return the size of batch number ``batch``, from 0, after ``records`` records."""
        if self._schedule:
            planned = self._schedule[min(batch, len(self._schedule) - 1)]
            # Earlier batches may have closed early, so the last may differ from its plan.
            left = self.n_records - records if self.n_records is not None else 0
            return min(planned, left) if left > 0 else planned
        size = float(self.first_batch)
        for _ in range(batch if self.growth > 1 else 0):
            size *= self.growth
            if size >= self.max_batch:
                return self.max_batch
        return min(int(size) // 2 * 2, self.max_batch)

    def at_least(self, count: int, least: int) -> int:
        """Return the records of a batch; with the default sizes of an endless stream at least ``least``."""
        has_sizes = self.n_records is not None or self.model_fields_set & {"first_batch", "max_batch"}
        return count if has_sizes else max(count, least)


LEAST_RADIUS, GREATEST_RADIUS = 1e-70, 1e70
"""Limits of clip radii, whose squares stay finite and above 0."""


class ClippedBatches(GrowingBatches):
    """Settings of an estimator that clips, in addition to settings of its batches."""

    # n_records is not only a size: records still to come influence the choice of the clip radius.
    sizing: ClassVar[frozenset[str]] = GrowingBatches.sizing - {"n_records"}

    clip_quantile: float | None = Field(default=None, ge=0.5, lt=1)
    """Private quantile of the records' |x|^2 (norms of matrices) that becomes the clip radius. By
    default the radius with the least sum of noise and bias is chosen."""
    clip_radius: float | None = Field(default=None, ge=LEAST_RADIUS, le=GREATEST_RADIUS)
    """Public clip radius of |x|^2 (norms of matrices): no budget is spent on finding one. Variances and
    their errors are then of clipped records, and no doubt shows that the radius is too small."""
    radius_range: tuple[float, float] = (2.0**-232, 2.0**232)
    """Public search range of the radius, low and high, if no ``bounds`` are set; larger records are
    clipped to its end."""
    half_life: Annotated[float, Field(ge=1)] | Literal["auto"] | None = None
    """Records after which a batch counts half, for streams that drift; or "auto", to forget as fast
    as new estimates disagree with old ones beyond their noise. By default all records count alike."""

    @model_validator(mode="after")
    def _check_radius(self) -> ClippedBatches:
        low, high = self.radius_range
        if not LEAST_RADIUS <= low < high <= GREATEST_RADIUS:
            raise ValueError(f"radius_range must increase, between {LEAST_RADIUS:g} and {GREATEST_RADIUS:g}")
        if self.clip_quantile is not None and self.clip_radius is not None:
            raise ValueError("clip_quantile and clip_radius exclude each other")
        return self


_GREATEST_SENSITIVITY = 2.0 * RADIUS**2  # largest sensitivity of a batch's sums, in lattice units

_LEAST_SHARE = 1e-3  # least share of the budget that such a sum gets


class BatchCosts:
    """Cost of a batch whose mechanisms all read all of its records: one Gaussian's.

    The mechanisms share the budget of that Gaussian
    (:class:`~streaming_pca.estimators.common.budget.Budget`). A user may enter c batches:
    each is mu-GDP, and c such batches compose to (epsilon, delta). ``multiplier`` is the noise scale
    over the sensitivity of that Gaussian: the least that (epsilon, delta) allows.
    """

    def __init__(self, privacy: PrivacyParameters) -> None:
        self.privacy = privacy
        self.multiplier = least_multiplier(privacy.epsilon, privacy.delta, privacy.contributions)
        # Refuse more noise than int64 holds before a batch is charged.
        budget = self.budget()
        budget.sigma(budget.take(_LEAST_SHARE), _GREATEST_SENSITIVITY)

    def budget(self) -> Budget:
        return Budget(self.multiplier, self.privacy.epsilon)

    @property
    def charge(self) -> Charge:
        """Charge of a batch, or of a user's batches together."""
        return self.privacy.charge(self.privacy.contributions * gaussian_rho(self.multiplier))


def least_batch(multiplier: float, granularity: int) -> int:
    """Return the least records of a batch: with fewer a radius could not be resolved."""
    return math.ceil(max(400, 200 * multiplier) / granularity) * granularity
