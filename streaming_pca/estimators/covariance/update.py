"""Covariance route: one noisy covariance, with a private clip radius and coordinates.

Every mechanism of a batch reads all of its records with a share of the batch's budget
(:class:`~streaming_pca.estimators.common.budget.Budget`):

1. *Norms*: noisy counts of the median and of the tail above it give a grid of radii.
2. *A look* at the covariance at all radii together, by layers with independent noise.
3. *The choice*: the radius with the least sum of noise and bias.
4. *Coordinates*, in the first batch: a second look with weighted directions, where these
   promise much less noise; they stay if the second look confirms it.
5. *The sum*, at the chosen radius, with the rest of the budget: the layers up to it again.

Later batches look again with a smaller share: each of the first ones, then after each growth
of the records by a quarter. Formulas: docs/explanation/default-estimator.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.batch import Batch
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.budget import Budget
from streaming_pca.estimators.common.clipped_batches import ClippedBatches
from streaming_pca.estimators.common.forgetting import HalfLife, batch_doubt, kept_share, process_noise
from streaming_pca.estimators.common.mean_offset import MeanShift
from streaming_pca.estimators.common.norm_distribution import (
    BELOW_MEDIAN,
    STEPS,
    NormCounts,
    NormDistribution,
    norm_shares,
    private_norm_counts,
)
from streaming_pca.estimators.covariance.layered_sums import Coordinates
from streaming_pca.estimators.covariance.radius_choice import ONCE, Reading, read_radii
from streaming_pca.estimators.covariance.state import SLOTS, CovarianceEstimate
from streaming_pca.kernels.lattice import LatticeSum
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.privacy.mechanisms import gaussian_on_symmetric

Matrix = NDArray[np.float64]

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
FIRST_LOOK, SECOND_LOOK, LATER_LOOK = 0.15, 0.08, 0.1
"""Shares of a look: in a first batch, in weighted coordinates, in later batches: choice against sum."""
LATER_NORMS, _SECOND_NORMS = 0.5, 0.5
"""Price of later counts of norms, and of those in weighted coordinates, over the price of a first count."""
_COMPARABLE = 0.25  # least records of a batch that looks, over those of the largest batch
_ALWAYS, _MORE = 16, 1.25
"""Number of first looks in a row; growth of the records from one later look to the next."""
_BEYOND = 0.05
"""Share, in a batch that does not look, for the layers beyond the chosen radius, at the sum's cost."""
_LEAST_PART = 0.003  # least part of a share that a layer gets
_FUTURE = (0.0, 0.5, 1.0)
"""Parts of the records to come, after which the error of a radius is judged: a change must pay on average."""
_TESTS = 3  # false alarms fall with this power of the number of looks, so the radius of a steady stream stays
_SPANS = 4
"""Features, over the rank that judges radii if k is above d/2, or not fixed: a smaller rank clips less, a
larger one has less noise. Judged on scale-mixed normal data, d = 10 and 50."""
_RATIO = 1.4
"""Largest ratio of neighbouring radii, as far as ten of them reach: trades fineness against noise."""
_DISCRETE = 0.02  # share of the last filled bin of norms above which these may have one value, its end
_CUT, _FEWEST = 0.004, 5
"""The grid ends where at most this share of the total norm is cut off, or fewer records lie above."""
_WORTH = 0.35
"""Expected squared error with weights, over the error with equal ones, above which weights are not tried."""
_LEAST_AGREEMENT = 0.3  # least agreement at the chosen radius for weights
_SHRINKS = 1e-4  # smallest variance that weights assume, over the largest
_ITERATIONS = 80  # fixed-point steps for the weights


@dataclass(frozen=True)
class Look:
    """A batch's look at all radii."""

    reading: Reading
    exact: list[LatticeSum]
    """Its exact layers, as secret as the records; the sum measures its layers again with fresh noise."""
    before: CovarianceEstimate
    """Estimate without this batch, at the same radii."""
    layers: Matrix
    """(l, d', d') its measurements."""
    noise: Matrix
    """(l,) variances of their noise."""
    known: NormCounts
    """Counts of norms of earlier looks."""
    counts: NormCounts
    """Counts of norms of this batch alone."""
    covered: float
    """Part of the earlier records, by weight, that earlier looks represent."""


class CovarianceUpdate:
    """Mechanisms of the covariance route, and their post-processing.

    ``multiplier`` is the noise multiplier of a whole batch, ``norm_range`` the public range of the records'
    norms, and ``shift`` leads from the centre of all sums to this batch's centre. ``weighted`` allows weights
    of directions. ``present`` is the share of the records that are not null: sums count as means over these.
    """

    def __init__(
        self,
        k: int,
        preprocessing: Preprocessing,
        multiplier: float,
        norm_range: tuple[float, float],
        half_life: HalfLife,
        shift: MeanShift,
        weighted: bool = True,
        present: float = 1.0,
    ) -> None:
        self.shift = shift
        self.preprocessing, self.multiplier, self.norm_range = preprocessing, multiplier, norm_range
        self.k, self.half_life, self.present = k, half_life, present
        self.weighted = weighted and preprocessing.kind is RecordKind.FACTOR and k < preprocessing.dim

    def learn(
        self, estimate: CovarianceEstimate, batch: Batch, budget: Budget, future: float
    ) -> tuple[CovarianceEstimate, int]:
        """Run all steps on one batch; returns clipped records, too. ``future`` records are still to come."""
        estimate, look = self.look(estimate, batch, budget, future)
        if look is not None and not estimate.records:
            estimate, look = self.weigh(estimate, look, batch, budget, future)
        return self.sum(estimate, batch, budget, look)

    def look(
        self, estimate: CovarianceEstimate, batch: Batch, budget: Budget, future: float
    ) -> tuple[CovarianceEstimate, Look | None]:
        """Run steps 1 to 3 where they are due; returns the look, or None."""
        count = self._count(batch)
        estimate = estimate.discounted(kept_share(self.half_life, len(batch)))
        if not estimate.used:
            start = CovarianceEstimate.empty(self.preprocessing.dim)
            estimate, look = self._look_at_radii(start, batch, budget, FIRST_LOOK, 1.0, future)
        elif self._is_look_due(estimate, count):
            estimate, look = self._look_at_radii(estimate, batch, budget, LATER_LOOK, LATER_NORMS, future)
        else:
            return estimate, None
        chosen = look.reading.choice(estimate.chosen if estimate.looks else None)
        return replace(estimate, chosen=chosen, looks=estimate.looks + 1), look

    def at_fixed_radius(
        self, estimate: CovarianceEstimate, batch: Batch, budget: Budget, options: ClippedBatches
    ) -> tuple[CovarianceEstimate, int]:
        """Add one sum at a public radius, or at a private quantile of the norms."""
        estimate = estimate.discounted(kept_share(self.half_life, len(batch)))
        radius, found, sizes = options.clip_radius, None, NormCounts.empty()
        if radius is None:
            assert options.clip_quantile is not None
            norms = Coordinates(self.preprocessing).norms(batch)
            shares = norm_shares(len(norms), self.multiplier)
            sizes = private_norm_counts(sizes, norms, *self.norm_range, budget, shares)
            found = self._distribution(sizes)
            radius = found.quantile(options.clip_quantile)
        gain = estimate.gain(self._doubt(self._count(batch))) if estimate.used == 1 else 1.0
        before = estimate.at_radius(radius)
        estimate = self._with_norms(replace(before, sizes=sizes), found)
        # Each sum was cut off at a radius of its own.
        excess = before.excess + gain * (estimate.excess - before.excess)
        return self.sum(replace(estimate, excess=excess), batch, budget)

    def _count(self, batch: Batch) -> float:
        """Return the number of records of a batch that are not null, at least one."""
        return max(len(batch) / self.preprocessing.units, 1.0) * self.present

    def _is_look_due(self, estimate: CovarianceEstimate, count: float) -> bool:
        # A batch far smaller than others is too noisy to choose by.
        if estimate.used < 2 or count < _COMPARABLE * estimate.largest:
            return False
        return estimate.looks < _ALWAYS or estimate.records + count >= _MORE * estimate.looked

    def weigh(
        self, estimate: CovarianceEstimate, look: Look, batch: Batch, budget: Budget, future: float
    ) -> tuple[CovarianceEstimate, Look]:
        """Run step 4: a second look in weighted coordinates, where it is worth its price."""
        best, reading = estimate.chosen, look.reading
        values = reading.values[best]
        if not self.weighted or reading.agreement[best] < _LEAST_AGREEMENT or not values[self.k - 1] > 0:
            return estimate, look
        noise = math.sqrt(estimate.released_noise / 2)
        largest = abs(float(values[0] + reading.level[best]))
        variances = np.maximum(values + reading.level[best], max(noise, _SHRINKS * largest))
        weights, gain = direction_weights(variances, values, self.k, noise)
        if gain >= _WORTH:
            return estimate, look
        basis = np.ascontiguousarray(reading.eigenvectors[best])
        start = replace(CovarianceEstimate.empty(len(weights)), basis=basis, weights=weights)
        second, again = self._look_at_radii(start, batch, budget, SECOND_LOOK, _SECOND_NORMS, future)
        chosen, k = again.reading.best, self._rank_of_radius
        # Weights may hide large records, so the second look's subspace is compared with the first look.
        leading = basis @ again.reading.eigenvectors[chosen][:, :k]
        unseen = reading.apart(leading, float(again.reading.own[chosen]), best)
        if not again.reading.least + unseen < reading.least:
            return estimate, look
        return replace(second, chosen=chosen, looks=estimate.looks), again

    def _look_at_radii(
        self,
        estimate: CovarianceEstimate,
        batch: Batch,
        budget: Budget,
        share: float,
        part: float,
        future: float,
    ) -> tuple[CovarianceEstimate, Look]:
        """Count norms, and measure the covariance at all radii of the grid.

        An empty estimate gets a grid; an existing grid is extended if the counts now show a longer tail.
        """
        coordinates = Coordinates(self.preprocessing, estimate.turn)
        norms = coordinates.norms(batch)
        count = self._count(batch)
        shares = norm_shares(len(norms), self.multiplier, part)
        known = estimate.sizes
        counts = private_norm_counts(known, norms, *self.norm_range, budget, shares)
        if known.records:
            counts = replace(counts, present=min(self.present, 1.0))
        covered = min(estimate.looked / estimate.records, 1.0) if estimate.records else 1.0
        sizes = known.averaged(counts, self._weight_of_counts(estimate, covered, count))
        found = self._distribution(sizes, float(estimate.weights.min()))
        radii = self._grid(found, int(sizes.records))
        estimate = replace(estimate, sizes=sizes)
        estimate = estimate.extended_to(float(radii[-1])) if estimate.used else estimate.on_grid(radii)
        estimate = self._with_norms(estimate, found)
        exact = coordinates.layers(batch, estimate.radii[: estimate.used].tolist(), norms)
        multipliers = _multipliers(budget, share, np.sqrt(estimate.depths))
        layers, noise = self._measure(estimate, exact, multipliers, count)
        layers = self._shifted(estimate, layers)
        before = replace(estimate, looked=estimate.records + count)
        estimate = before.with_layers(layers, noise, self._doubt(count))
        reading = self._read_radii(before, estimate, noise, budget, count, future)
        return estimate, Look(reading, exact, before, layers, noise, known, counts, covered)

    def _weight_of_counts(self, estimate: CovarianceEstimate, covered: float, count: float) -> float:
        """Return the weight of a batch's counts of norms, from the weights of the sums.

        Batches since the last look have no counts of their own: this look's represent them, too. ``covered``
        is the part of the earlier weight that earlier looks represent.
        """
        return 1 - (1 - estimate.gain(self._doubt(count))) * covered

    def _with_norms(self, estimate: CovarianceEstimate, found: NormDistribution | None) -> CovarianceEstimate:
        """Set excess and share above each radius, where the norms' distribution is known."""
        excess, squared, above = np.zeros(SLOTS), np.zeros(SLOTS), np.zeros(SLOTS)
        if found is not None:
            for slot, radius in enumerate(estimate.radii[: estimate.used]):
                excess[slot] = float(found.excess(radius))
                # The two others are per record that is not null.
                squared[slot] = found.squared_excess(radius) / found.present
                above[slot] = float(found.share_above(radius)) / found.present
        return replace(estimate, excess=excess, squared_excess=squared, above=above)

    def _grid(self, found: NormDistribution, count: int) -> Matrix:
        """Return radii from the median to where little is cut off, or counts end."""
        low = float(found.radii[0])
        excess = found.excess(found.radii) / found.present  # per record that is not null
        whole = float(excess[0]) + BELOW_MEDIAN * low
        # With less noise, the largest radius must cut off less.
        noise = math.sqrt(self.preprocessing.dim) * self.multiplier / max(count * found.present, 1)
        enough = excess / whole <= min(_CUT, noise)
        enough |= found.above * count < _FEWEST
        last = np.flatnonzero(enough)
        high = float(found.radii[int(last[0]) if last.size else len(found.radii) - 1])
        end = min(int(np.count_nonzero(found.above)), len(found.radii) - 1)
        if found.above[max(end - (STEPS if end > 2 * STEPS else STEPS // 2), 0)] > _DISCRETE * found.present:
            # The records of the last filled bin may all have the norm of its end.
            high = max(high, float(found.radii[end]))
        if high <= 1.05 * low:
            high = low * math.sqrt(2)
        radii = min(max(math.ceil(math.log(high / low) / math.log(_RATIO)) + 1, 2), SLOTS)
        return np.geomspace(low, high, radii)

    def _measure(
        self, estimate: CovarianceEstimate, exact: list[LatticeSum], multipliers: list[float], count: float
    ) -> tuple[Matrix, Matrix]:
        """Measure the first layers with noise of these multipliers; returns layers and noise variances.

        Adjacency: replace-one. Released: one noisy matrix a layer. A layer's sensitivity is
        sqrt(2) D_l (2 D_l for matrices), as :mod:`~streaming_pca.estimators.covariance.layered_sums`
        shows; its Gaussian noise is fresh, also for a sum that was measured before.
        """
        scale = np.sqrt(np.outer(estimate.weights, estimate.weights))
        layers, noise = [], []
        for layer, multiplier in zip(exact, multipliers, strict=True):
            sigma = Budget(multiplier, 1.0).sigma(multiplier, layer.sensitivity)
            layers.append(gaussian_on_symmetric(layer.total, sigma) * (layer.unit / count) * scale)
            noise.append((sigma * layer.unit / count) ** 2)
        return np.array(layers).reshape(-1, *scale.shape), np.array(noise)

    def _shifted(self, estimate: CovarianceEstimate, layers: Matrix) -> Matrix:
        """Carry a batch's layers to the centre of all sums: its mean is not clipped, so in the first one."""
        if self.shift.moved.any():
            layers[0] += estimate.basis.T @ self.shift.excess(estimate.basis)
        return layers

    def _doubt(self, count: float) -> float:
        return batch_doubt(self.preprocessing.dim, count, self.multiplier)

    @property
    def _rank_of_radius(self) -> int:
        """Rank of the subspaces that judge radii: k, or d/4 where k is above d/2."""
        # Nearly all features' span barely depends on the radius: a clip would spoil variances unnoticed.
        dim = self.preprocessing.dim
        return rank_of_radius(dim) if 2 * self.k > dim else self.k

    def _read_radii(
        self,
        before: CovarianceEstimate,
        estimate: CovarianceEstimate,
        looked: Matrix,
        budget: Budget,
        count: float,
        future: float,
    ) -> Reading:
        """Estimate noise and bias at every radius, with all later sums clipped there.

        ``estimate`` is ``before`` with a look of noise ``looked``.
        """
        used, depths = estimate.used, estimate.depths
        rest = max(budget.rest(), 1e-6)
        if isinstance(self.half_life, int | float):
            # Of older records little is left.
            future = min(future, self.half_life / math.log(2))
        seen, future = estimate.records + count, future / self.preprocessing.units * self.present
        # Future batches are assumed to be as large as the largest so far.
        typical = max(count, estimate.largest)
        # Row m: noise of each layer if this batch's sum, and all later ones, are clipped at radius m.
        # Their sensitivity is sqrt(2) R; 2 R for matrices.
        squared = 2 if self.preprocessing.kind is RecordKind.FACTOR else 4
        sums = squared * np.outer(estimate.radii[:used], depths) * (self.multiplier / count) ** 2 / rest
        gain, doubt = before.gain(self._doubt(count)), self._doubt(typical)
        both = estimate.noise[:used] + gain**2 * (looked / (1 + looked / sums) - looked)
        later = sums * (count / typical) ** 2
        expected = []
        for part in _FUTURE:
            batches = part * future / typical
            left = doubt / (doubt + estimate.doubt * batches)
            noise = left**2 * both + (1 - left) ** 2 * later / max(batches, 1e-9)
            expected.append(np.tril(noise).sum(axis=1))
        offset = estimate.basis.T @ self.shift.after(gain, self.shift.before)
        return read_radii(
            estimate.all_moments() - np.outer(offset, offset),
            estimate.noise_of_moments(),
            estimate.weights,
            self._rank_of_radius,
            np.mean(expected, axis=0),
            estimate.excess[:used],
            estimate.squared_excess[:used],
            seen + future,
            self._deviations(estimate, future),
        )

    def _deviations(self, estimate: CovarianceEstimate, future: float) -> float:
        """Return the deviations that count as bias: few false alarms over an endless stream.

        A comparison's chance is one in pairs times looks cubed, so its sum over all looks is finite.
        """
        if not estimate.records and not future:
            return ONCE
        pairs = SLOTS * (SLOTS - 1) / 2
        return math.sqrt(2 * math.log(pairs * (estimate.looks + 1) ** _TESTS))

    def sum(
        self, estimate: CovarianceEstimate, batch: Batch, budget: Budget, look: Look | None = None
    ) -> tuple[CovarianceEstimate, int]:
        """Run step 5: the layers up to the chosen radius, with the rest of the budget.

        A layer's share is in proportion to its depth D_l: together they have the noise of one sum
        at the radius. ``look`` is the batch's own, if it looked.
        """
        last, count = estimate.chosen + 1, self._count(batch)
        depths = estimate.depths
        if look is None:
            coordinates = Coordinates(self.preprocessing, estimate.turn)
            radii = estimate.radii[: estimate.used].tolist()
            exact = coordinates.layers(batch, radii, coordinates.norms(batch))
            # All batches count alike in the layers beyond, too.
            multipliers = _multipliers(budget, _BEYOND, np.sqrt(depths[last:]))
            beyond, their_noise = self._measure(estimate, exact[last:], multipliers, count)
        else:
            exact, beyond, their_noise = look.exact, look.layers[last:], look.noise[last:]
            # Look and sum measure one sample: average them before combining with other batches.
            estimate = replace(look.before, chosen=estimate.chosen, looks=estimate.looks)
        multipliers = _multipliers(budget, budget.rest(), depths[:last])
        layers, noise = self._measure(estimate, exact[:last], multipliers, count)
        layers = self._shifted(estimate, layers)
        if look is not None:
            weight = look.noise[:last] / (look.noise[:last] + noise)
            layers = look.layers[:last] + weight[:, None, None] * (layers - look.layers[:last])
            noise = weight * noise
        if estimate.records:
            before = estimate.moment(estimate.chosen)
            measured = (before, layers.sum(axis=0) - before, float(noise.sum()))
            moved = self._movement(estimate, *measured)
            differs = bool(moved) or (self.half_life != "auto" and self._turned(estimate, *measured, count))
            if differs:
                if self.half_life == "auto":
                    estimate = estimate.discounted(1.0, moved / float(estimate.radii[last - 1]) ** 2)
                else:
                    # Of unlike batches the mean is one of all records: each weighs by its own.
                    estimate = replace(estimate, doubt=self._doubt(count) * count / estimate.records)
                if look is not None:
                    # The sum has shown a drift: the look's counts of norms weigh more, too.
                    gain = self._weight_of_counts(estimate, look.covered, count)
                    sizes = look.known.averaged(look.counts, gain)
                    estimate = replace(estimate, sizes=sizes, looked=estimate.records + count)
                    found = self._distribution(sizes, float(estimate.weights.min()))
                    estimate = self._with_norms(estimate, found)
        layers, noise = np.concatenate([layers, beyond]), np.append(noise, their_noise)
        estimate = self._with_centre(estimate, count)
        estimate = estimate.with_layers(layers, noise, self._doubt(count))
        counted = count if len(batch) else 0.0
        records, largest = estimate.records + counted, max(estimate.largest, counted)
        return replace(estimate, records=records, largest=largest), exact[last - 1].clipped

    def _distribution(self, sizes: NormCounts, least_weight: float = 1.0) -> NormDistribution:
        """Return the norms' distribution, without noise beyond the bound of a row."""
        bound = self.preprocessing.largest_squared_norm
        kept = sizes if bound is None else sizes.within(bound / least_weight)
        return kept.distribution(self.norm_range[1])

    def _with_centre(self, estimate: CovarianceEstimate, count: float) -> CovarianceEstimate:
        """Average the present centre into the sums' centre, with the weight of this sum."""
        if self.preprocessing.centre is None:
            return estimate
        gain = estimate.gain(self._doubt(count)) if estimate.records else 1.0
        scale = 1.0 if self.preprocessing.scale is None else np.asarray(self.preprocessing.scale)
        with np.errstate(all="ignore"):
            moved = self.shift.moved / math.sqrt(self.shift.rows)
            here = np.asarray(self.preprocessing.centre) * scale - moved
            return replace(estimate, centre=estimate.centre + gain * (here - estimate.centre))

    def _movement(
        self, estimate: CovarianceEstimate, before: Matrix, changes: Matrix, variance: float
    ) -> float:
        """Estimate the variance of the released moment's drift beyond noise and sampling."""
        dim = len(before)
        noise = float(np.mean(np.outer(estimate.weights, estimate.weights))) * (1 + 1 / dim) / 2
        sampling = (max(float(np.trace(before)), 0.0) / dim) ** 2 * (1 + 1 / dim)
        expected = noise * (variance + estimate.released_noise)
        return process_noise(changes, expected + 2 * sampling / max(estimate.records, 1.0))

    def _turned(
        self, estimate: CovarianceEstimate, before: Matrix, changes: Matrix, variance: float, count: float
    ) -> bool:
        """Return whether variances along the components, or their total, differ beyond noise and sampling."""
        values, vectors = ritz_pairs(before, min(self.k, len(before)))
        apart = np.append(np.sum(vectors * (changes @ vectors), axis=0), np.trace(changes))
        squares = np.append((vectors.T**2 @ estimate.weights) ** 2, np.sum(estimate.weights**2))
        noise = squares * (variance + estimate.released_noise)
        sampling = 2 * np.append(values**2, np.sum(before**2)) * (1 / count + 1 / estimate.records)
        return process_noise(apart / np.sqrt(np.maximum(noise + sampling, 1e-300)), 1.0) > 0


def _multipliers(budget: Budget, share: float, parts: Matrix) -> list[float]:
    """Take a share of the budget in parts; a share of all the rest rounds its first part up."""
    # No layer may need more noise than a number holds.
    parts = np.maximum(parts / parts.sum(), _LEAST_PART)
    taken = [float(part) for part in share * parts / parts.sum()]
    if share < budget.rest():
        return [budget.take(part) for part in taken]
    others = [budget.take(part) for part in taken[1:]]
    return [budget.take_rest(), *others]


def rank_of_radius(dim: int) -> int:
    """Return the rank that judges radii where the release's rank cannot."""
    return max(dim // _SPANS, 1)


def direction_weights(variances: Matrix, values: Matrix, k: int, noise: float) -> tuple[Matrix, float]:
    """Compute the weights u of the directions that lower the subspace's noise most.

    In coordinates x_i/sqrt(u_i) a clip at R puts the same noise on every entry, and so sqrt(u_i u_j) times as
    much on entry ij in the records' own. With variances lambda_i, R grows with sum lambda_i/u_i, and the
    effect of entry ij on the leading subspace with 1/(lambda_i - lambda_j)^2. So u minimises

        (sum_i lambda_i/u_i)^2  sum_{i <= k < j} u_i u_j/(lambda_i - lambda_j)^2.

    ``variances``, (d,), are above 0 and decreasing; ``values`` are these less the noise's contribution; gaps
    are differences of these, and k < d; smaller gaps are replaced by the noise. Returns (d,): weights of
    geometric mean 1, and the factor on the expected squared error, to first order.
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
