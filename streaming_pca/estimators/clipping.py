"""What the private routes share: settings of the clip, what a batch's parts cost, how they are cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from streaming_pca.estimators.base import Plan, State
from streaming_pca.estimators.batching import GrowingBatches
from streaming_pca.linalg.lattice import RADIUS
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.privacy.calibration import gaussian_rho, lattice_sigma, least_multiplier, pure_epsilon
from streaming_pca.privacy.parameters import Charge, PrivacyParameters
from streaming_pca.records import Batch

__all__ = ["ClippedBatches", "PartCosts", "clipped_plan", "deal_parts", "size_range", "split_parts"]

LEAST_RADIUS, GREATEST_RADIUS = 1e-70, 1e70


class ClippedBatches(GrowingBatches):
    """Settings of an estimator that clips, besides those of its batches."""

    # Whether more batches will come has a say in the clip radius.
    sizing: ClassVar[frozenset[str]] = GrowingBatches.sizing - {"n_records"}

    clip_quantile: float | None = Field(default=None, gt=0, lt=1)
    """The private quantile of the records' sizes that becomes the clip radius; by itself
    the estimator weighs the noise of each radius against the bias."""
    clip_radius: float | None = Field(default=None, ge=LEAST_RADIUS, le=GREATEST_RADIUS)
    """A public radius instead: no record is spent on finding one."""
    radius_range: tuple[float, float] = (2.0**-40, 2.0**60)
    """Low and high: where the radius is looked for when no ``bounds`` tell; public."""
    half_life: Annotated[float, Field(ge=1)] | Literal["auto"] | None = None
    """For streams that drift: records after which a batch counts half, or "auto", to forget as fast
    as new estimates disagree with old ones beyond their noise. By default all records count alike."""

    @model_validator(mode="after")
    def _check_radius(self) -> ClippedBatches:
        low, high = self.radius_range
        if not LEAST_RADIUS <= low < high <= GREATEST_RADIUS:
            raise ValueError(f"radius_range must rise, between {LEAST_RADIUS:g} and {GREATEST_RADIUS:g}")
        if self.clip_quantile is not None and self.clip_radius is not None:
            raise ValueError("clip_quantile and clip_radius exclude each other")
        return self


_GREATEST_SENSITIVITY = 2.0 * RADIUS**2
"""Of any sum of a batch, in lattice units."""


class PartCosts:
    """What the disjoint parts of a batch cost: a Gaussian sum, or a histogram of sizes.

    Each record is in one part and there in one mechanism: a sum, which is
    (epsilon, delta)-DP, or a histogram, which is epsilon-DP. So a batch costs the
    larger of the two, and every record (epsilon, delta). A user may enter c
    batches: then both are mu-GDP for the mu of which c compose to (epsilon,
    delta), whichever parts the user's records meet
    (:func:`~streaming_pca.privacy.calibration.pure_epsilon`).

    Parameters
    ----------
    privacy : PrivacyParameters

    Attributes
    ----------
    multiplier : float
        Of every sum: noise scale over sensitivity, the least that the promise asks for.
    size_epsilon : float
        Of one batch's histogram.
    """

    def __init__(self, privacy: PrivacyParameters) -> None:
        self.privacy = privacy
        self.multiplier = least_multiplier(privacy.epsilon, privacy.delta, privacy.contributions)
        self.size_epsilon = privacy.epsilon
        if privacy.contributions > 1:
            self.size_epsilon = min(pure_epsilon(self.multiplier), privacy.epsilon)
        # More noise than int64 holds is refused here, before a batch is charged.
        self.sigma(_GREATEST_SENSITIVITY)

    def sigma(self, sensitivity: float) -> float:
        """Noise scale of a sum, in lattice units: the same in every part of every batch."""
        p = self.privacy
        return lattice_sigma(p.epsilon, p.delta, sensitivity, contributions=p.contributions)

    def charge(self, with_sizes: bool) -> Charge:
        """Of a batch, with a histogram among its parts or without."""
        batches = self.privacy.contributions
        total = self.privacy.charge(batches * gaussian_rho(self.multiplier))
        if not with_sizes:
            return total
        epsilon = Fraction(repr(self.size_epsilon))
        return total | Charge(epsilon=0, delta=0, rho=batches * epsilon * epsilon / 2)

    def least(self, granularity: int) -> int:
        """The fewest records that a batch is worth: less could not resolve a radius."""
        return math.ceil(max(400, 1000 / self.size_epsilon) / granularity) * granularity


def size_range(preprocessing: Preprocessing, options: ClippedBatches) -> tuple[float, float]:
    """Where sizes of records are looked for; public."""
    bound = preprocessing.largest_squared_norm
    if bound is None:
        return options.radius_range
    high = min(max(bound, LEAST_RADIUS * 2.0**30), GREATEST_RADIUS)
    return high * 2.0**-30, high


def clipped_plan(
    mechanism: str,
    state: State,
    preprocessing: Preprocessing,
    options: ClippedBatches,
    costs: PartCosts,
    own: Mapping[str, Any],
) -> Plan:
    """The next batch of an estimator that cuts it into disjoint parts.

    Parameters
    ----------
    mechanism : str
        As the reservation names it.
    state : State
    preprocessing : Preprocessing
    options : ClippedBatches
    costs : PartCosts
    own : mapping
        What its mechanisms depend on besides.
    """
    granularity = preprocessing.granularity
    wanted = options.count(state.batch, state.records)
    count = max(wanted // granularity * granularity, granularity)
    parameters = {
        "mechanism": mechanism,
        "clip_quantile": options.clip_quantile,
        "clip_radius": options.clip_radius,
        "radius_range": list(size_range(preprocessing, options)),
        "half_life": options.half_life,
        "n_records": options.n_records,
        **own,
        "sigma_over_sensitivity": costs.multiplier,
    }
    charge = costs.charge(with_sizes=options.clip_radius is None)
    return Plan(count, min(costs.least(granularity), count), granularity, charge, parameters)


def split_parts(batch: Batch, wanted: Sequence[int], granularity: int) -> tuple[Batch, ...]:
    """Parts of about the wanted numbers of records, one after the other, and the rest: by position."""
    return batch.split(_whole_counts(batch, wanted, granularity))


def deal_parts(batch: Batch, wanted: Sequence[int], granularity: int) -> tuple[Batch, ...]:
    """The same, each part spread over the batch: what a small one says holds for all of a drifting batch."""
    return batch.deal(_whole_counts(batch, wanted, granularity), granularity)


def _whole_counts(batch: Batch, wanted: Sequence[int], granularity: int) -> list[int]:
    counts: list[int] = []
    left = len(batch)
    for count in wanted:
        taken = min(count // granularity * granularity, left // granularity * granularity)
        counts.append(taken)
        left -= taken
    return [*counts, left]
