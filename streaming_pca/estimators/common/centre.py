"""Private mean of the records by coarse-to-fine rounds on a batch's shared budget.

A round finds a radius, a quantile of |x - c|, and the mean of the x - c clipped to it;
the next round clips about the new centre. Steps, and the reason for the last round's share:
docs/explanation/default-estimator.md ("Centre").
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Block
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.norm_distribution import norm_shares, private_quantile_radius
from streaming_pca.estimators.record_reader import NormKernel, RecordReader, added_up
from streaming_pca.kernels.lattice import BLOCK, lattice_unit
from streaming_pca.kernels.reading import RecordsView
from streaming_pca.kernels.record_means import MEAN_RADIUS, record_mean_norms, sum_record_means
from streaming_pca.privacy.mechanisms import gaussian_on_vector

Vector = NDArray[np.float64]

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
ROUNDS = 2
"""Most coarse rounds of a first batch, before the last one."""
RADIUS_SHARE, MEAN_SHARE = 0.004, 0.01
"""Least share of a round's radius, and share of a coarse round's mean: trades a far mean against budget."""
LATER_SHARE = 0.01
"""Share of the mean in a later batch."""
_MOST_LAST = 0.15  # largest share of the last round's mean: trades the centre's error against the sum's noise
_ENOUGH = 2.5
"""Factor of sqrt(d)/(n mu) in the last round's share. At that share the square of the centre's error is
about the largest eigenvalue of the covariance's noise."""
_SEEN = 2.0
"""Standard deviations above the noise's norm that show a mean: trades small means against moves by noise."""
_CUT = 4.0
"""Share of the records that a round clips, over the length of its noise in radii: records far out on one
side alone cut the most, and noise harms the components in any case."""
_MOST_CUT = 0.25
"""Largest share of the records that a round clips, for few records: trades noise against clipping."""
_MOST_RADIUS = 0.03  # largest share of the radius of a round, for few records
_SURE = 6.0
"""Deviations of a count that a round treats as noise: above some 250z records 1e-7 in all its rounds."""
_LEAST = 100.0  # records, at multiplier 1, below which no mean is measured


def last_share(dim: int, count: int, multiplier: float) -> float:
    """Return the last round's share: enough to hide the centre's squared error in the covariance's noise."""
    return min(max(_ENOUGH * math.sqrt(dim) * multiplier / max(count, 1), MEAN_SHARE), _MOST_LAST)


def most_share(dim: int, count: int, multiplier: float) -> float:
    """Return the largest share that all rounds of a first batch take together."""
    rounds = (ROUNDS + 1) * radius_share(count, multiplier) + ROUNDS * MEAN_SHARE
    return rounds + last_share(dim, count, multiplier)


def radius_share(count: int, multiplier: float) -> float:
    """Return the share of a round's radius: more for few records, whose counts noise would hide."""
    return max(min(norm_shares(count, multiplier)[0], _MOST_RADIUS), RADIUS_SHARE)


def resolves_radius(count: int, multiplier: float) -> bool:
    """Return whether a radius can be found: below 100 z records noise is a fifth of its counts."""
    return count >= _LEAST * multiplier


def coarse_to_fine(
    batch: Batch,
    preprocessing: Preprocessing,
    start: Vector,
    radii: tuple[float, float],
    budget: Budget,
    last: float,
    present: float = 1.0,
) -> tuple[Vector, bool, float, float]:
    """Find the mean of a first batch by rounds of :func:`refine`.

    The first round is about the public ``start``, (d,); ``last`` is the share of the last one's mean. It
    returns the mean in units of the data, whether any round saw more than its noise, and the last one's
    noise variance and radius.
    """
    centre, known = start, False
    for _ in range(ROUNDS):
        step, seen, *_ = refine(batch, preprocessing, centre, radii, budget, MEAN_SHARE, present)
        centre, known = centre + step, known or seen
        if not seen:
            break
    step, seen, noise, radius = refine(batch, preprocessing, centre, radii, budget, last, present)
    return centre + step, known or seen, noise, radius


def refine(
    batch: Batch,
    preprocessing: Preprocessing,
    centre: Vector,
    radii: tuple[float, float],
    budget: Budget,
    share: float,
    present: float = 1.0,
    origin: Vector | None = None,
) -> tuple[Vector, bool, float, float]:
    """Estimate the mean's distance from an origin, by default from the centre of the clip.

    Returns the distance, (d,), in units of the data; True if it is more than noise; the noise variance of
    each coordinate and the clip's radius, in scaled units. From the centre the distance is shrunk, to zeros
    if noise explains it.

    Records are clipped about ``centre``: near the mean, as clips pull towards it. ``radii``: public range of
    the radius of |S (x - c)|, S the scale. ``share``: share of the mean; its radius costs a further
    :func:`radius_share`. ``present``: share of the records that are not null, an earlier answer.

    Adjacency: replace-one. Released: a quantile's noisy counts
    (:func:`~streaming_pca.estimators.common.norm_distribution.private_quantile_radius`) and the sum
    of the clipped x - c with Gaussian noise. The terms are integer vectors of norm
    2**40 at most, so the sum's sensitivity is 2**41. Radius and centre are earlier outputs.
    Post-processing: a noisy mean no longer than noise counts as 0, any other is shrunk by the part
    that noise explains [JamesStein1961], so noise alone moves no centre.
    """
    about = preprocessing.about(centre)
    norms = batch.map(MeanNorms(about))
    shared = radius_share(len(norms), budget.multiplier)
    # Noise is 2 sqrt(d/share)/(n mu) radii long; a clip moves the mean by at most as many as its share.
    cut = _CUT * 2 * math.sqrt(len(centre) / share) * budget.multiplier / max(len(norms), 1)
    quantile = 1 - min(cut, _MOST_CUT)
    radius, _ = private_quantile_radius(norms, *radii, quantile, budget, shared, _SURE)
    sigma = budget.sigma(budget.take(share), 2.0 * MEAN_RADIUS)
    noisy = gaussian_on_vector(clipped_mean_sum(batch, about, radius), sigma)
    unit = lattice_unit(radius, MEAN_RADIUS) / (max(len(batch), 1) * present)
    step, noise = np.asarray(noisy, dtype=np.float64) * unit, (sigma * unit) ** 2
    scale = 1.0 if about.scale is None else np.asarray(about.scale)
    with np.errstate(all="ignore"):
        if origin is not None:
            step = step + (centre - origin) * scale
        square = float(step @ step)
        seen = is_beyond_noise(square, len(step), noise) and bool(np.isfinite(step / scale).all())
        if origin is None:
            step = (1 - len(step) * noise / square if seen else 0.0) * step
        return np.nan_to_num(step / scale), seen, noise, radius


def is_beyond_noise(square: float, dim: int, noise: float) -> bool:
    """Return whether a vector of this squared length is more than noise of this variance."""
    return square > dim * noise * (1 + _SEEN * math.sqrt(2 / dim))


def mean_limits(preprocessing: Preprocessing) -> tuple[Vector, Vector]:
    """Return lower and upper limits of every mean: the bounds, or -1e300 and 1e300."""
    bounds = (-1e300, 1e300) if preprocessing.bounds is None else preprocessing.bounds
    lower, upper = (
        np.broadcast_to(np.asarray(bound, dtype=np.float64), (preprocessing.dim,)) for bound in bounds
    )
    return lower, upper


def mean_start(preprocessing: Preprocessing) -> Vector:
    """Return the (d,) centre before any record: the middle of the bounds, or 0."""
    lower, upper = mean_limits(preprocessing)
    return np.asarray(lower / 2 + upper / 2)


def _refuse_pairs(preprocessing: Preprocessing) -> None:
    """Raise ValueError for pairs, which have no mean: kernels read record by record."""
    if preprocessing.units > 1:
        raise ValueError("pairs have no mean")


class _MeanSum:
    """Kernel of :meth:`Batch.sum` that adds up clipped, rounded means."""

    limit = BLOCK

    def __init__(self, preprocessing: Preprocessing, per_unit: float) -> None:
        self.records, self.per_unit = RecordReader(preprocessing), per_unit
        _refuse_pairs(preprocessing)
        self.whole = self.records.whole
        self.shape: tuple[int, ...] = (preprocessing.dim,)

    def __call__(self, batch: Block) -> NDArray[np.int64]:
        read = self.records.read(batch)

        def part(first: int, last: int) -> NDArray[np.int64]:
            room, total = np.empty((read.longest, self.shape[0])), np.zeros(self.shape, dtype=np.int64)
            sum_record_means(read, first, last, self.records.how, self.per_unit, room, total)
            return total

        return added_up(read, part, self.shape, self.records.step)


def clipped_mean_sum(batch: Batch, preprocessing: Preprocessing, radius: float) -> NDArray[np.int64]:
    """Sum the records' clipped, centred and scaled means exactly.

    ``radius`` is R, in scaled units of the data. Returns (d,), in units of R 2**-40. Replace-one sensitivity
    2**41 in L2.
    """
    return batch.sum(_MeanSum(preprocessing, 1 / lattice_unit(radius, MEAN_RADIUS)))


class MeanNorms(NormKernel):
    """Norm of the mean of each record's rows, transformed; 0 for null records."""

    def __init__(self, preprocessing: Preprocessing) -> None:
        super().__init__(RecordReader(preprocessing))
        _refuse_pairs(preprocessing)

    def fill(self, read: RecordsView, first: int, last: int, out: Vector) -> None:
        room = np.empty((read.longest, read.rows.shape[1]))
        record_mean_norms(read, first, last, self.records.how, room, out)
