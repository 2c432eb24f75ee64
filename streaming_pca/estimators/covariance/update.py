"""Covariance route: one noisy covariance, with a private clip radius and coordinates.

Every mechanism of a batch reads all of its records with a share of the batch's budget
(:class:`~streaming_pca.estimators.common.budget.Budget`):

1. *Norms*: noisy counts of the median and of the tail above it give a grid of radii.
2. *A look* at the covariance at all radii at once, by layers with independent noise.
3. *The choice*: the radius with the least sum of noise and bias.
4. *Coordinates*, in the first batch: a second look with weighted directions, where these
   promise much less noise; they stay if the second look confirms it.
5. *The sum*, at the chosen radius, with the rest of the budget.

Later batches look again with a smaller share: each of the first ones, then after each growth
of the records by a quarter. Formulas: docs/explanation/default-estimator.md.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import Batch, RecordKind, RecordValues
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.clipped_batches import ClippedBatches
from streaming_pca.estimators.common.forgetting import HalfLife, kept_share, process_noise
from streaming_pca.estimators.common.norm_distribution import (
    BELOW_MEDIAN,
    NormCounts,
    NormDistribution,
    norm_shares,
    private_norm_counts,
    private_quantile_radius,
)
from streaming_pca.estimators.covariance.layered_sums import Coordinates
from streaming_pca.estimators.covariance.radius_choice import (
    AGAIN,
    ONCE,
    Reading,
    read_radii,
)
from streaming_pca.estimators.covariance.state import SLOTS, CovarianceEstimate
from streaming_pca.privacy.mechanisms import gaussian_on_symmetric

__all__ = [
    "FIRST_LOOK",
    "LATER_LOOK",
    "LATER_NORMS",
    "CovarianceUpdate",
    "direction_weights",
    "rank_of_radius",
]

Matrix = NDArray[np.float64]

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
FIRST_LOOK, SECOND_LOOK, LATER_LOOK = 0.15, 0.08, 0.1
"""Shares of a look: in a first batch, in weighted coordinates, in later batches. Choice against sum."""
LATER_NORMS, _SECOND_NORMS = 0.25, 0.5
"""Price of later counts of norms, and of those in weighted coordinates, over the price of a first count."""
_COMPARABLE = 0.25
"""Least records of a batch that looks, over those of the largest batch."""
_ALWAYS, _MORE = 16, 1.25
"""Number of first looks in a row; growth of the records from one later look to the next."""
_SPANS = 4
"""Features, over the rank of the radius where k is above d/2, or not fixed: a smaller rank clips less, a
larger one has less noise. Judged on scale-mixed normal data, d = 10 and 50."""
_RATIO = 1.4
"""Least ratio of neighbouring radii: fineness of the grid against noise."""
_CUT, _FEWEST = 0.004, 5
"""Share of the total norm cut off, and number of records above, at which the grid ends."""
_WORTH = 0.35
"""Expected squared error with weights, over that with equal ones, from which on weights are not tried."""
_LEAST_AGREEMENT = 0.3
"""Least agreement at the chosen radius for weights."""
_SHRINKS = 1e-4
"""Smallest variance that weights assume, over the largest."""
_ITERATIONS = 80
"""Fixed-point steps for the weights."""


class CovarianceUpdate:
    """Mechanisms of the covariance route, and their post-processing.

    Parameters
    ----------
    k : int
        Rank of the subspace.
    preprocessing : Preprocessing
        With its centre.
    multiplier : float
        Noise multiplier of a whole batch.
    norm_range : (float, float)
        Public range of the records' norms.
    half_life : float, "auto" or None
    weighted : bool
        True to allow weights of directions.
    present : float
        Share of the batch's records that are not null: what is summed counts as a mean over these.
    """

    def __init__(
        self,
        k: int,
        preprocessing: Preprocessing,
        multiplier: float,
        norm_range: tuple[float, float],
        half_life: HalfLife,
        weighted: bool = True,
        present: float = 1.0,
    ) -> None:
        self.preprocessing, self.multiplier, self.norm_range = preprocessing, multiplier, norm_range
        self.half_life = half_life
        self.present = present
        self.k = k
        self.weighted = weighted and preprocessing.kind is RecordKind.FACTOR and k < preprocessing.output_dim

    def learn(
        self, estimate: CovarianceEstimate, batch: Batch, budget: Budget, future: float
    ) -> tuple[CovarianceEstimate, int]:
        """Run all steps on one batch.

        Parameters
        ----------
        estimate : CovarianceEstimate
        batch : Batch
        budget : Budget
            Rest of the batch's budget.
        future : float
            Records expected after this batch.

        Returns
        -------
        CovarianceEstimate, int
            The last is the number of records that the sum's clip changed.
        """
        estimate, reading = self.look(estimate, batch, budget, future)
        if reading is not None and not estimate.records:
            estimate = self.weigh(estimate, reading, batch, budget, future)
        return self.sum(estimate, batch, budget)

    def look(
        self, estimate: CovarianceEstimate, batch: Batch, budget: Budget, future: float
    ) -> tuple[CovarianceEstimate, Reading | None]:
        """Run steps 1 to 3 where they are due; returns the reading of the choice, or None."""
        count = self._count(batch)
        estimate = estimate.discounted(kept_share(self.half_life, count))
        if not estimate.used:
            start = CovarianceEstimate.empty(self.preprocessing.output_dim)
            estimate, reading = self._look_at_radii(start, batch, budget, FIRST_LOOK, 1.0, future)
        elif self._is_look_due(estimate, count):
            estimate, reading = self._look_at_radii(estimate, batch, budget, LATER_LOOK, LATER_NORMS, future)
        else:
            return estimate, None
        return replace(estimate, chosen=reading.best, looks=estimate.looks + 1), reading

    def at_fixed_radius(
        self, estimate: CovarianceEstimate, batch: Batch, budget: Budget, options: ClippedBatches
    ) -> tuple[CovarianceEstimate, int]:
        """Add one sum at a public radius, or at a private quantile of the norms."""
        count = self._count(batch)
        estimate = estimate.discounted(kept_share(self.half_life, count))
        coordinates = Coordinates(self.preprocessing)
        radius, found, sizes = options.clip_radius, None, NormCounts.empty()
        if radius is None:
            assert options.clip_quantile is not None
            norms = coordinates.norms(batch)
            shares = norm_shares(len(norms), self.multiplier)
            if options.clip_quantile < 0.5:
                radius, _ = private_quantile_radius(
                    norms, *self.norm_range, options.clip_quantile, budget, shares[0]
                )
            else:
                sizes = private_norm_counts(sizes, norms, *self.norm_range, budget, shares)
                found = sizes.distribution(self.norm_range[1])
                radius = found.quantile(options.clip_quantile)
        if estimate.used:
            at = self._with_norms(replace(estimate.at_radius(radius), sizes=sizes), found)
            return self.sum(at, batch, budget)
        moment, variance, clipped = self._measure_radius(coordinates, batch, radius, budget.take_rest())
        begun = estimate.with_first_look(np.array([radius]), moment[None], np.array([[variance]]), count)
        return self._with_records(self._with_norms(replace(begun, sizes=sizes), found), batch), clipped

    def _count(self, batch: Batch) -> float:
        """Return the number of records of a batch that are not null, one at least."""
        return max(len(batch) / self.preprocessing.units, 1.0) * self.present

    def _is_look_due(self, estimate: CovarianceEstimate, count: float) -> bool:
        """Return whether a later batch of ``count`` records looks at all radii."""
        # A batch far smaller than others is too noisy to choose by.
        if estimate.used < 2 or count < _COMPARABLE * estimate.largest:
            return False
        return estimate.looks < _ALWAYS or estimate.records + count >= _MORE * estimate.looked

    def weigh(
        self, estimate: CovarianceEstimate, reading: Reading, batch: Batch, budget: Budget, future: float
    ) -> CovarianceEstimate:
        """Run step 4: a second look in weighted coordinates, where it is worth its price."""
        best = estimate.chosen
        values = reading.values[best]
        if not self.weighted or reading.agreement[best] < _LEAST_AGREEMENT or not values[self.k - 1] > 0:
            return estimate
        noise = math.sqrt(estimate.noise[best, best] / 2)
        largest = abs(float(values[0] + reading.level[best]))
        variances = np.maximum(values + reading.level[best], max(noise, _SHRINKS * largest))
        weights, gain = direction_weights(variances, values, self.k, noise)
        if gain >= _WORTH:
            return estimate
        basis = np.ascontiguousarray(reading.eigenvectors[best])
        start = replace(CovarianceEstimate.empty(len(weights)), basis=basis, weights=weights)
        second, promised = self._look_at_radii(start, batch, budget, SECOND_LOOK, _SECOND_NORMS, future)
        if not promised.least < reading.least:
            return estimate
        return replace(second, chosen=promised.best, looks=estimate.looks)

    def _look_at_radii(
        self,
        estimate: CovarianceEstimate,
        batch: Batch,
        budget: Budget,
        share: float,
        part: float,
        future: float,
    ) -> tuple[CovarianceEstimate, Reading]:
        """Count norms, and measure the covariance at all radii of the grid.

        An empty estimate gets a grid; another one's is extended where the counts now show a
        longer tail.
        """
        coordinates = Coordinates(self.preprocessing, estimate.turn)
        norms = coordinates.norms(batch)
        count = self._count(batch)
        shares = norm_shares(len(norms), self.multiplier, part)
        known = estimate.sizes
        counts = private_norm_counts(known, norms, *self.norm_range, budget, shares)
        if known.records:
            there = known.present * known.records + self.present * len(norms)
            counts = replace(counts, present=min(there / counts.records, 1.0))
        found = counts.distribution(self.norm_range[1])
        radii, is_first = self._grid(found, int(counts.records)), not estimate.used
        estimate = replace(estimate, sizes=counts)
        if not is_first:
            estimate = estimate.extended_to(float(radii[-1]))
            radii = estimate.radii[: estimate.used]
        moments, noise = self._measure_layers(
            coordinates, batch, radii, norms, estimate.weights, budget, share
        )
        if is_first:
            estimate = estimate.with_first_look(radii, moments, noise, count)
        else:
            estimate = estimate.with_look(moments, noise, count)
        estimate = replace(self._with_norms(estimate, found), looked=estimate.records + count)
        return estimate, self._read_radii(estimate, budget, count, future)

    def _with_norms(self, estimate: CovarianceEstimate, found: NormDistribution | None) -> CovarianceEstimate:
        """Set excess and share above each radius, where the norms' distribution is known."""
        excess, squared, above = np.zeros(SLOTS), np.zeros(SLOTS), np.zeros(SLOTS)
        if found is not None:
            for slot, radius in enumerate(estimate.radii[: estimate.used]):
                excess[slot], squared[slot] = float(found.excess(radius)), found.squared_excess(radius)
                above[slot] = float(found.share_above(radius)) / found.present
        return replace(estimate, excess=excess, squared_excess=squared, above=above)

    def _grid(self, found: NormDistribution, count: int) -> Matrix:
        """Return radii from the median to where little is cut off, or counts end."""
        low = float(found.radii[0])
        whole = float(found.excess(low)) + BELOW_MEDIAN * low
        # With less noise, the largest radius must cut off less.
        noise = math.sqrt(self.preprocessing.output_dim) * self.multiplier / max(count, 1)
        enough = found.excess(found.radii) / whole <= min(_CUT, noise)
        enough |= found.above * count < _FEWEST
        last = np.flatnonzero(enough)
        high = float(found.radii[int(last[0]) if last.size else len(found.radii) - 1])
        if high <= 1.05 * low:
            high = low * math.sqrt(2)
        radii = min(max(math.ceil(math.log(high / low) / math.log(_RATIO)) + 1, 2), SLOTS)
        return np.geomspace(low, high, radii)

    def _measure_layers(
        self,
        coordinates: Coordinates,
        batch: Batch,
        radii: Matrix,
        norms: RecordValues,
        weights: Matrix,
        budget: Budget,
        share: float,
    ) -> tuple[Matrix, Matrix]:
        """Measure mean second moments clipped at all radii, and the covariance of their noise.

        Adjacency: replace-one. Released: one noisy matrix a layer. A layer's sensitivity is
        sqrt(2) D_l (2 D_l for matrices), as :mod:`~streaming_pca.estimators.covariance.layered_sums`
        shows; its Gaussian noise has the layer's part of the share.
        """
        depths = np.diff(radii, prepend=0.0)
        parts = np.sqrt(depths)
        parts = share * parts / parts.sum()
        count = self._count(batch)
        scale = np.sqrt(np.outer(weights, weights))
        moments, variances = [], []
        total: Matrix = np.zeros((len(weights), len(weights)))
        for exact, part in zip(coordinates.layers(batch, radii.tolist(), norms), parts, strict=True):
            sigma = budget.sigma(budget.take(float(part)), exact.sensitivity)
            total = total + gaussian_on_symmetric(exact.total, sigma) * (exact.unit / count)
            moments.append(total * scale)
            variances.append((sigma * exact.unit / count) ** 2)
        known = np.cumsum(variances)
        return np.stack(moments), np.minimum.outer(known, known)

    @property
    def _rank_of_radius(self) -> int:
        """Rank of the subspaces that radii are judged by: k, or d/4 where k is above d/2."""
        # The span of nearly all features is no news: a clip would spoil the variances unseen.
        dim = self.preprocessing.output_dim
        return rank_of_radius(dim) if 2 * self.k > dim else self.k

    def _read_radii(
        self, estimate: CovarianceEstimate, budget: Budget, count: float, future: float
    ) -> Reading:
        """Estimate noise and bias at every radius, with all later sums clipped there."""
        used = estimate.used
        rest = max(budget.rest(), 1e-6)
        sums = 2 * (estimate.radii[:used] * self.multiplier / count) ** 2 / rest
        doubt, noise = np.diagonal(estimate.doubt)[:used], np.diagonal(estimate.noise)[:used]
        gain = doubt / (doubt + sums * count)
        after = (1 - gain) ** 2 * noise + gain**2 * sums
        seen, future = estimate.records + count, future * self.present
        # Future batches are assumed to be as large as the largest so far.
        typical = max(count, estimate.largest)
        final = (seen**2 * after + future * count**2 / typical * sums) / (seen + future) ** 2
        return read_radii(
            estimate.all_moments(),
            estimate.noise[:used, :used],
            estimate.weights,
            self._rank_of_radius,
            final,
            estimate.excess[:used],
            estimate.squared_excess[:used],
            seen + future,
            ONCE if not estimate.records and not future else AGAIN,
        )

    def _measure_radius(
        self, coordinates: Coordinates, batch: Batch, radius: float, multiplier: float
    ) -> tuple[Matrix, float, int]:
        """Measure a mean second moment in the coordinates.

        Adjacency: replace-one. Released: the sum of clipped records with Gaussian noise of this
        multiplier, for the sum's sensitivity (:func:`covariance_sensitivity`).

        Returns
        -------
        (d', d') float64, float, int
            The moment, the noise variance on its diagonal, and the number of clipped records.
        """
        count = self._count(batch)
        exact = coordinates.sum(batch, radius)
        sigma = Budget(multiplier, 1.0).sigma(multiplier, exact.sensitivity)
        moment = gaussian_on_symmetric(exact.total, sigma) * (exact.unit / count)
        return moment, (sigma * exact.unit / count) ** 2, exact.clipped

    def sum(
        self, estimate: CovarianceEstimate, batch: Batch, budget: Budget
    ) -> tuple[CovarianceEstimate, int]:
        """Run step 5: one sum at the chosen radius, with the rest of the budget."""
        coordinates = Coordinates(self.preprocessing, estimate.turn)
        count = self._count(batch)
        slot = estimate.chosen
        moment, variance, clipped = self._measure_radius(
            coordinates, batch, float(estimate.radii[slot]), budget.take_rest()
        )
        if estimate.weighted:
            moment = moment * np.sqrt(np.outer(estimate.weights, estimate.weights))
        if self.half_life == "auto" and estimate.records:
            estimate = estimate.discounted(1.0, count * self._movement(estimate, slot, moment, variance))
        estimate = estimate.with_sum(slot, moment, variance, count)
        return self._with_records(estimate, batch), clipped

    def _with_records(self, estimate: CovarianceEstimate, batch: Batch) -> CovarianceEstimate:
        """Count the records of a sum about the present centre."""
        count = self._count(batch) if len(batch) else 0.0
        records, largest = estimate.records + count, max(estimate.largest, count)
        centre = estimate.centre
        if self.preprocessing.centre is not None and records:
            scale = 1.0 if self.preprocessing.scale is None else np.asarray(self.preprocessing.scale)
            with np.errstate(all="ignore"):
                here = np.asarray(self.preprocessing.centre) * scale
                centre = centre + (count / records) * (here - centre)
        return replace(estimate, records=records, largest=largest, centre=centre)

    def _movement(self, estimate: CovarianceEstimate, slot: int, moment: Matrix, variance: float) -> float:
        """Estimate the variance of the moment's drift beyond noise and sampling."""
        before = estimate.moment(slot)
        dim = len(before)
        noise = float(np.mean(np.outer(estimate.weights, estimate.weights))) * (1 + 1 / dim) / 2
        sampling = (max(float(np.trace(before)), 0.0) / dim) ** 2 * (1 + 1 / dim)
        expected = noise * (variance + float(estimate.noise[slot, slot]))
        return process_noise(moment - before, expected + 2 * sampling / max(estimate.records, 1.0))


def rank_of_radius(dim: int) -> int:
    """Return the rank that judges radii where the release's rank cannot."""
    return max(dim // _SPANS, 1)


def direction_weights(variances: Matrix, values: Matrix, k: int, noise: float) -> tuple[Matrix, float]:
    """Compute the weights u of the directions that lower the subspace's noise most.

    In coordinates x_i/sqrt(u_i) a clip at R puts the same noise on every entry, and so
    sqrt(u_i u_j) times as much on entry ij in the records' own. With variances lambda_i, R grows
    with sum lambda_i/u_i, and the effect of entry ij on the leading subspace with
    1/(lambda_i - lambda_j)^2. So u minimises

        (sum_i lambda_i/u_i)^2  sum_{i <= k < j} u_i u_j/(lambda_i - lambda_j)^2.

    Parameters
    ----------
    variances : (d,) float64, above 0
        Variance along each direction, decreasing.
    values : (d,) float64
        Variances less the noise's contribution; gaps are differences of these.
    k : int
        k < d.
    noise : float
        Smaller gaps are replaced by it.

    Returns
    -------
    weights : (d,) float64
        Of geometric mean 1.
    gain : float
        Factor on the expected squared error, to first order; 1 for equal weights.
    """
    gaps = np.maximum(values[:k, None] - values[None, k:], noise)
    costs = 1 / (gaps / gaps.min()) ** 2
    u = np.ones(len(variances))
    for _ in range(_ITERATIONS):
        trace = (variances / u).sum()
        turned = (u[:k, None] * u[None, k:] * costs).sum()
        slopes = np.concatenate([costs @ u[k:], costs.T @ u[:k]])
        # Half a step, in logarithms, towards a zero derivative by each weight.
        u = np.sqrt(u * np.sqrt(variances * turned / (trace * slopes)))
        u /= np.exp(np.log(u).mean())

    def cost(weights: Matrix) -> float:
        return float((variances / weights).sum() ** 2 * (weights[:k, None] * weights[None, k:] * costs).sum())

    return u, cost(u) / cost(np.ones(len(u)))
