"""Batches of a forecast, and their shares of the budget."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

from streaming_pca.estimators.common.centre import LATER_SHARE, MEAN_SHARE, ROUNDS, last_share, radius_share
from streaming_pca.estimators.common.clipped_batches import GrowingBatches, least_batch
from streaming_pca.estimators.common.norm_distribution import norm_shares
from streaming_pca.estimators.common.present import present_share
from streaming_pca.estimators.covariance.update import FIRST_LOOK, LATER_LOOK, LATER_NORMS
from streaming_pca.kernels.lattice import MAX_RECORDS
from streaming_pca.privacy.errors import ParameterError, require_count

MOST_RECORDS = 10**10
_MOST_BATCHES = 10_000

Batches = int | Sequence[int] | GrowingBatches
"""Number of equal batches, records of each, or options that decide them."""


@dataclass(frozen=True)
class Shares:
    """Shares of mu^2 for a batch's sum, and for the mechanisms before it."""

    first: float = 0.77
    later: float = 0.94
    """Share of the covariance (or block) sum, in (0, 1], in the first batch and in each later one."""
    sizes: float = 0.03
    centre: float = 0.05
    pilot: float = 0.15
    """Shares in the first batch: of the counts of records and norms, of the centre (at most), and of the
    first look at the covariance. They enter no formula."""

    def __post_init__(self) -> None:
        if not (0 < self.first <= 1 and 0 < self.later <= 1):
            raise ParameterError(
                f"shares of a sum must lie above 0, up to 1, not {self.first} and {self.later}"
            )
        if self.first + self.sizes + self.centre + self.pilot > 1 + 1e-9:
            raise ParameterError("shares of the first batch must not sum to more than 1")

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


def planned_batches(
    records: int, options: GrowingBatches | None = None, multiplier: float = 0.0, per_row: int = 1
) -> tuple[int, ...]:
    """Cut a stream of ``records`` into batches by an estimator's options.

    By default they are an endless stream's: 4,096 records, growing by 1.6 up to 131,072, and at least as many
    as the noise ``multiplier`` of a batch needs. The last one is shorter, as if it closed at
    ``max_wait_seconds``; records that are too few for that are left out. ParameterError if no batch closes.
    """
    if not 1 <= records <= MOST_RECORDS:
        raise ParameterError(f"records must lie between 1 and {MOST_RECORDS}, not {records}")
    options = options or GrowingBatches()
    least = least_batch(multiplier, per_row)
    sizes: list[int] = []
    left = records
    while left:
        size = options.at_least(options.count(len(sizes), records - left), least)
        if left < min(size, least):
            break
        taken = min(size, left)
        # All batches after one of the largest size are as large.
        whole = left // taken if options.n_records is None and size >= options.max_batch else 1
        sizes += [taken] * whole
        left -= whole * taken
    if not sizes:
        raise ParameterError(
            f"{records} records do not fill a batch of at least {min(size, least):.9g}: "
            "take more records or a larger epsilon"
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


def checked_batches(records: int, batches: Batches, multiplier: float, per_row: int) -> tuple[int, ...]:
    """Return the records of each batch, with ``per_row`` records for each summed row.

    ``multiplier`` is the noise multiplier of a batch. ParameterError if one would be too small or too large.
    """
    if isinstance(batches, int):
        require_count("batches", batches)
        if batches > _MOST_BATCHES:
            raise ParameterError(f"batches must be at most {_MOST_BATCHES}, not {batches}")
        whole, rest = divmod(records, batches)
        sizes = (*[whole + 1] * rest, *[whole] * (batches - rest))
    elif isinstance(batches, GrowingBatches):
        sizes = planned_batches(records, batches, multiplier, per_row)
    else:
        sizes = tuple(batches)
        for size in sizes:
            require_count("batches", size)
        if sum(sizes) != records:
            raise ParameterError(f"batches hold {sum(sizes)} records together, not {records}")
    least = 2 * per_row
    if min(sizes) < least:
        raise ParameterError(f"{records} records do not fill {len(sizes)} batches of at least {least}")
    if max(sizes) > MAX_RECORDS:
        needed = math.ceil(records / MAX_RECORDS)
        raise ParameterError(
            f"a batch would hold {max(sizes)} records, but at most {MAX_RECORDS} are allowed: "
            f"take {needed} batches or more"
        )
    return sizes
