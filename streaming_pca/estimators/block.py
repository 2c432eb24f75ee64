"""The block route by itself."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import numpy as np
from pydantic import Field

from streaming_pca.estimators.base import Card, Estimator, Plan, State, Subspace
from streaming_pca.estimators.block_release import block_subspace, centred_total
from streaming_pca.estimators.block_route import BlockMemory, BlockRoute
from streaming_pca.estimators.clipping import (
    ClippedBatches,
    PartCosts,
    clipped_plan,
    size_range,
    split_parts,
)
from streaming_pca.estimators.rounds import rounds
from streaming_pca.estimators.total_variance import (
    TotalVariance,
    take_total,
)
from streaming_pca.linalg.subspace import orthonormalise
from streaming_pca.records import Batch

__all__ = ["BlockOptions", "BlockPCA", "BlockState", "learn_block"]

QUANTILE = 0.5
"""Of the residuals' norms, where no other is set: the best on light tails, as clipping
shrinks residuals without turning them, and what it shrinks is known."""


class BlockOptions(ClippedBatches):
    """Settings of :class:`BlockPCA`."""

    oversampling: int = Field(default=0, ge=0, le=2**10)
    """Columns beyond the rank, for slowly falling spectra; each adds noise. What a stream
    begins with it keeps."""


@dataclass(frozen=True)
class BlockState(State):
    """What the route works on, and the records' traces."""

    block: BlockMemory
    total: TotalVariance


def learn_block(
    route: BlockRoute,
    memory: BlockMemory,
    total: TotalVariance,
    batch: Batch,
    options: ClippedBatches,
    quantile: float = QUANTILE,
) -> tuple[BlockMemory, TotalVariance, int]:
    """The total's share and the rounds of one batch, on disjoint parts of it.

    With a public radius there is neither a share nor a histogram, and one round.

    Parameters
    ----------
    route : BlockRoute
    memory : BlockMemory
        Several rounds follow where it is a start, one where it has learnt.
    total : TotalVariance
    batch : Batch
    options : ClippedBatches
    quantile : float
        Of the residuals, where ``options`` name none.

    Returns
    -------
    BlockMemory, TotalVariance, and the number of clipped records
    """
    if options.clip_quantile is not None:
        quantile = options.clip_quantile
    granularity, rest, counts = route.preprocessing.granularity, batch, [len(batch)]
    if options.clip_radius is None:
        total, rest = take_total(total, batch, route.preprocessing, route.costs, route.sizes)
        counts = [len(rest)]
        if not memory.spectrum.any():
            # Where there is no image either, the basis is a guess.
            least = math.ceil(1000 / route.costs.size_epsilon)
            counts = rounds(len(rest), least, cold=not memory.image.any())
    clipped = 0
    for part in split_parts(rest, counts[:-1], granularity):
        if options.clip_radius is not None:
            radius, weight, summed = options.clip_radius, 1.0, part
        else:
            looked, summed = split_parts(part, [route.size_records(len(part))], granularity)
            radius, weight = route.radius(memory, looked, quantile)
        memory, more = route.learn(memory, summed, radius, weight, options.half_life)
        clipped += more
        memory = route.step(memory, centred_total(memory, total))
    return memory, total, clipped


class BlockPCA(Estimator[BlockState, BlockOptions]):
    """Power steps on noisy, clipped block means about a free centre.

    The idea is 003 Algorithm 2's (ADADPO): clip around a private centre, at a
    private scale, with noise inside the symmetric space. Four changes make it
    accurate: a Frobenius clip, of sensitivity 2R/m, for the box of coordinates;
    a centre that costs nothing; a scale from one histogram; and no learning rate.
    See :mod:`~streaming_pca.estimators.block_route`.

    A first batch is cut into rounds that grow by 2.2, each with a basis of its own
    (:mod:`~streaming_pca.estimators.rounds`); a later one is one round.
    Oversampling was measured on spiked, Gaussian and wide records: with the shifted
    step it costs more noise than it gains, so it is 0 by default; on slow spectra,
    where it would help, the covariance route is far better than either.

    Privacy
    -------
    Replace-one; each record is in one batch, there in one round, and there in a
    histogram of residuals or in the sum; a small share of each batch goes to the
    total variance (:mod:`~streaming_pca.estimators.total_variance`). So each record
    meets one mechanism: :class:`~streaming_pca.estimators.clipping.PartCosts`.
    What is released: the sizes' distributions, the noisy means and totals.
    """

    card = Card(
        id="block",
        name="BlockPCA",
        source="this project, after 003 Algorithm 2",
        adjacency="replace-one",
        private=True,
        needs="records that agree, or many features",
        summary="clipped block power steps about a free centre",
    )
    options_type: ClassVar[type[BlockOptions]] = BlockOptions
    state_type: ClassVar[type[BlockState]] = BlockState
    centerings: ClassVar[tuple[str, ...]] = ("augment", *Estimator.centerings)

    def init(self, rng: np.random.Generator) -> BlockState:
        """A uniformly random basis."""
        columns = min(self.k + self.options.oversampling, self.dim)
        basis = orthonormalise(rng.standard_normal((self.dim, columns)))
        block = BlockMemory.start(basis, self.preprocessing.centering == "augment")
        return BlockState(0, 0, block, TotalVariance())

    def _plan(self, state: BlockState) -> Plan:
        """Rounds, and the total's share."""
        own = {"columns": state.block.basis.shape[1]}
        return clipped_plan("block", state, self.preprocessing, self.options, self.costs, own)

    @cached_property
    def costs(self) -> PartCosts:
        """Of a batch's parts."""
        return PartCosts(self.privacy)

    def _update(self, state: BlockState, batch: Batch) -> tuple[BlockState, int]:
        """The rounds of one batch; charged as :meth:`plan` says."""
        columns = state.block.basis.shape[1]
        sizes = size_range(self.preprocessing, self.options)
        route = BlockRoute(columns, self.preprocessing, self.costs, sizes)
        block, total, clipped = learn_block(route, state.block, state.total, batch, self.options)
        return BlockState(state.batch + 1, state.records + len(batch), block, total), clipped

    def _release(self, state: BlockState) -> Subspace:
        """Leading Ritz vectors of the basis."""
        return block_subspace(state.block, state.total, self.k)
