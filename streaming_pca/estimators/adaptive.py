"""The default estimator: the covariance route or the block route, as the stream asks for."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar, Literal

import numpy as np

from streaming_pca.estimators.base import Card, Estimator, Plan, State, Subspace
from streaming_pca.estimators.block import QUANTILE, learn_block
from streaming_pca.estimators.block_release import block_subspace
from streaming_pca.estimators.block_route import BlockMemory, BlockRoute
from streaming_pca.estimators.clipping import (
    ClippedBatches,
    PartCosts,
    clipped_plan,
    deal_parts,
    size_range,
    split_parts,
)
from streaming_pca.estimators.covariance_memory import MAX_SHAPE_DIM, CovarianceMemory
from streaming_pca.estimators.covariance_release import covariance_subspace
from streaming_pca.estimators.covariance_route import Choice, CovarianceRoute, Pilot
from streaming_pca.estimators.total_variance import (
    TotalVariance,
)
from streaming_pca.linalg.subspace import augmented_mean, orthonormalise, ritz_pairs
from streaming_pca.records import Batch

__all__ = ["AdaptiveOptions", "AdaptivePCA", "AdaptiveState"]

_RESOLVED = 1.5
_TO_BLOCK, _TO_COVARIANCE = 0.16, 0.3
_PROBE_SHARE, _MOST_PROBES, _SECOND_SHARE = 0.01, 0.05, 0.05
_MOST_QUANTILE = 0.97
"""Records that need more of their tail are too skewed for the block route."""

Route = Literal["covariance", "block"]


class AdaptiveOptions(ClippedBatches):
    """Settings of :class:`AdaptivePCA`; none has to be set."""

    route: Literal["auto", "covariance", "block"] = "auto"
    """Which of the two routes; by itself it decides, and decides again, from private quantities. With
    a ``clip_radius`` it is the covariance route."""


@dataclass(frozen=True)
class AdaptiveState(State):
    """The memories of both routes, and which of them answers."""

    route: str
    """"covariance" or "block": the one that learnt from the last batch."""
    covariance: CovarianceMemory
    block: BlockMemory
    total: TotalVariance


class AdaptivePCA(Estimator[AdaptiveState, AdaptiveOptions]):
    """The better of two routes, found out on the way.

    *The covariance route* (:mod:`~streaming_pca.estimators.covariance_route`) has
    noise in proportion to |x|^2, and carries moderate d, slow spectra and records
    that are skewed. *The block route* (:mod:`~streaming_pca.estimators.block_route`)
    has noise in proportion to |A Q - C|, far less where records agree or d is large.

    The choice, in each batch anew:

    - d > 512: the block route, a public rule (a covariance's noise and cost grow
      with d, a block's with the rank).
    - Else from two small parts of the batch: the covariance route's radius R_c,
      which already weighs noise against bias, and the residuals' radius R_b at
      the same quantile, about the leading eigenvectors so far. The noise of an
      entry is R_c against 2 R_b; the block route, which has to part with records
      for its rounds and sees less of the spectrum, is taken where R_b < 0.16 R_c,
      and left again where R_b > 0.3 R_c. Comparing at one quantile is what keeps
      skewed records (flights) off the block route, whose bias is not seen.
    - Where the leading eigenvectors are not resolved (lambda_k within 1.5 of the
      noise's own largest eigenvalue) their residuals say nothing: covariance, after
      a second, closer look in the first batch.

    The block route starts from those eigenvectors, with rounds that grow by 4.

    Measured, and left out: clipping in weighted coordinates (a radius a
    direction, from the tail's shape; 0-15% better on Gaussian records, up to
    twice worse on flights with bounds and on slow spectra), the noisy covariance of the
    complement instead of the shift in the block's step (up to 10 times worse where
    it is noisy), block rounds inside a subspace of 2k to 4k columns (worse, as the
    residuals grow with the columns). The thresholds were set on seeds below 100.

    Privacy
    -------
    Replace-one; the parts of a batch are disjoint, and which mechanism a part
    meets is decided by earlier outputs alone:
    :class:`~streaming_pca.estimators.clipping.PartCosts`. What is released: the
    sizes' distributions, the noisy sums of either route, the noisy totals.
    """

    card = Card(
        id="adaptive",
        name="AdaptivePCA",
        source="this project, after 003 Algorithm 2 and Dwork et al. 2014",
        adjacency="replace-one",
        private=True,
        needs="nothing to tune; bounds help",
        summary="the better of the covariance and the block route: the default",
    )
    options_type: ClassVar[type[AdaptiveOptions]] = AdaptiveOptions
    state_type: ClassVar[type[AdaptiveState]] = AdaptiveState
    centerings: ClassVar[tuple[str, ...]] = ("augment", *Estimator.centerings)

    def init(self, rng: np.random.Generator) -> AdaptiveState:
        """No records; a uniformly random basis for the block route to start from."""
        basis = orthonormalise(rng.standard_normal((self.dim, self.k)))
        block = BlockMemory.start(basis, self.preprocessing.centering == "augment")
        covariance = CovarianceMemory.nothing(self.preprocessing.output_dim)
        if self.fixed_route == "block":
            covariance = replace(covariance, moment=np.zeros((0, 0)), shape=np.zeros((0, 0, 0)))
        route = self.fixed_route or "covariance"
        return AdaptiveState(0, 0, route, covariance, block, TotalVariance())

    @property
    def fixed_route(self) -> Route | None:
        """The route that settings or the public dimension fix."""
        if self.options.route != "auto":
            return self.options.route
        if self.options.clip_radius is not None:
            return "covariance"
        return "block" if self.preprocessing.output_dim > MAX_SHAPE_DIM else None

    def _plan(self, state: AdaptiveState) -> Plan:
        """Disjoint parts, whichever route they will serve."""
        own = {"route": self.options.route}
        return clipped_plan("adaptive", state, self.preprocessing, self.options, self.costs, own)

    @cached_property
    def costs(self) -> PartCosts:
        """Of a batch's parts, in either route."""
        return PartCosts(self.privacy)

    def _update(self, state: AdaptiveState, batch: Batch) -> tuple[AdaptiveState, int]:
        """Learn by one route; charged as :meth:`plan` says."""
        records = state.records + len(batch)
        learner = _Learner(self, state, self.options.more_after(records))
        if self.fixed_route == "block":
            clipped = learner.by_block(batch, None, QUANTILE)
        else:
            clipped = learner.by_either(batch, self.fixed_route is None)
        new = AdaptiveState(
            state.batch + 1,
            records,
            learner.route,
            learner.covariance,
            learner.block,
            learner.total,
        )
        return new, clipped

    def _release(self, state: AdaptiveState) -> Subspace:
        """Of the route that learnt last."""
        if state.route == "block":
            return block_subspace(state.block, state.total, self.k)
        return covariance_subspace(state.covariance, self.preprocessing, self.k)


def _quantile(choice: Choice) -> float:
    """Of the residuals: that of the sizes, as far as a small part's histogram resolves it."""
    return min(max(choice.quantile, QUANTILE), _MOST_QUANTILE)


class _Learner:
    """One batch's work on the memories of a state."""

    def __init__(self, estimator: AdaptivePCA, state: AdaptiveState, more: bool) -> None:
        self.k, self.options, self.costs = estimator.k, estimator.options, estimator.costs
        self.preprocessing, self.granularity = estimator.preprocessing, estimator.preprocessing.granularity
        self.sizes = size_range(self.preprocessing, self.options)
        self.route, self.covariance = state.route, state.covariance
        self.block, self.total = state.block, state.total
        if not self.covariance.moment.size and estimator.fixed_route != "block":
            # A stream that had the block route alone.
            self.covariance = CovarianceMemory.nothing(self.preprocessing.output_dim)
        self.more = more
        self.block_route = BlockRoute(self.block.basis.shape[1], self.preprocessing, self.costs, self.sizes)

    def by_either(self, batch: Batch, free: bool) -> int:
        """The covariance route, but the block route where that is free and promises more."""
        options = self.options
        route = CovarianceRoute(self.k, self.preprocessing, self.costs, self.sizes)
        if options.clip_radius is not None:
            return self._by_covariance(route, batch, Choice(options.clip_radius))
        count = len(batch)
        wanted = [route.size_records(count), route.shape_records(count)]
        looked, shaped, rest = deal_parts(batch, wanted, self.granularity)
        found = route.sizes(looked)
        self.covariance, pilot = route.pilot(self.covariance, found, shaped, options.half_life)
        if options.clip_quantile is not None:
            choice = route.at_quantile(found, options.clip_quantile)
        else:
            choice = route.choose(self.covariance, pilot, len(rest) // self.preprocessing.units, self.more)
        start = self._start_of_block(pilot) if free else None
        if free and start is None and not self.covariance.weight and self._probes(count):
            closer, rest = split_parts(rest, [int(_SECOND_SHARE * count)], self.granularity)
            start = self._start_of_block(route.second_pilot(pilot, closer))
        if start is not None and self._probes(count):
            wanted = [self._probes(count)]
            probed, rest = split_parts(rest, wanted, self.granularity)
            if self._prefers_block(start, choice, probed):
                return self.by_block(rest, None if self.route == "block" else start, _quantile(choice))
        return self._by_covariance(route, rest, choice)

    def _by_covariance(self, route: CovarianceRoute, part: Batch, choice: Choice) -> int:
        self.route = "covariance"
        self.covariance, clipped = route.learn(self.covariance, part, choice, self.options.half_life)
        return clipped

    def _probes(self, count: int) -> int:
        """Records whose residuals decide on the route; 0 where a batch is too small to spare enough."""
        least = 1000 / self.costs.size_epsilon
        return int(max(_PROBE_SHARE * count, least)) if least <= _MOST_PROBES * count else 0

    def _prefers_block(self, start: BlockMemory, choice: Choice, probed: Batch) -> bool:
        """Compare the two routes' noise at one quantile."""
        if choice.quantile > _MOST_QUANTILE:
            return False
        memory = self.block if self.route == "block" else start
        radius, _ = self.block_route.radius(memory, probed, _quantile(choice))
        limit = _TO_COVARIANCE if self.route == "block" else _TO_BLOCK
        return radius < limit * choice.radius

    def _start_of_block(self, pilot: Pilot) -> BlockMemory | None:
        """The leading eigenvectors so far as a basis, with their images; None where they are not resolved."""
        moment, noise = pilot.moment, pilot.noise
        if self.covariance.weight and math.sqrt(self.covariance.noise / 2) < noise:
            moment, noise = self.covariance.moment, math.sqrt(self.covariance.noise / 2)
        if moment is None:
            return None
        d, k = self.block.basis.shape
        augmented = self.block.augmented
        block = BlockMemory.start(np.eye(d)[:, :k], augmented)
        centred = moment
        if augmented:
            mean, kept = augmented_mean(moment[:, d])
            if not kept:
                return None
            centred = moment[:d, :d] - kept * np.outer(mean, mean)
        values, basis = ritz_pairs(centred, k)
        edge = 2 * noise * math.sqrt(d)
        rest = (float(np.trace(centred)) - float(values.sum())) / max(d - k, 1)
        if not values[-1] - max(rest, 0.0) > _RESOLVED * edge:
            return None
        block = replace(block, basis=basis)
        image = moment @ block.whole_basis
        # A centre, no more: it was clipped at the median.
        return replace(block, image=image, level=max(rest, 0.0))

    def by_block(self, batch: Batch, start: BlockMemory | None, quantile: float) -> int:
        """Rounds of the block route: from these eigenvectors, or from where it stands."""
        if start is not None:
            self.block = start
        self.route = "block"
        self.block, self.total, clipped = learn_block(
            self.block_route, self.block, self.total, batch, self.options, quantile
        )
        return clipped
