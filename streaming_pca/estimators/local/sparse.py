"""Sparse PCA of locally private reports: the penalised Fantope programme on their mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from streaming_pca.estimators.base import EstimatorInfo, Subspace, SuiteOptions
from streaming_pca.estimators.local.base import LocalEstimator, LocalOptions, LocalState
from streaming_pca.linalg.fantope import FantopeIterate, noise_penalty, sparse_subspace
from streaming_pca.linalg.packed import pack_symmetric, packed_size, unpack_symmetric
from streaming_pca.linalg.subspace import leading_eigenpairs, ritz_pairs

_MOST_STORED = 512  # most features of a stored start: more would make the state much larger
_LEAST_WEIGHT = 10.0
"""Least weight of a feature that counts, in tolerances of the solver: a smaller one may be 0."""


class SparseLocalOptions(LocalOptions):
    """Settings of :class:`SparseLocalPCA`."""

    penalty_constant: float = Field(default=0.75, gt=0, le=100, allow_inf_nan=False)
    """The penalty, in units of the bound that no entry of the mean's noise exceeds except with probability
    0.05. 1 is the value of the theorems; more finds fewer features. Up to some 500 features 0.4 errs less;
    above, it makes the solver slow."""
    refit: bool = True
    """Variances and directions are those of the mean on the selected features, without the penalty's bias;
    else those of the sparse solution, as printed."""
    tolerance: float = Field(default=1e-5, ge=1e-9, le=1e-2)
    """Tolerance of the solver's residuals, relative to the largest variance."""
    max_iterations: int = Field(default=300, ge=1, le=100_000)
    """Most iterations of the solver for each batch; the next batch continues from there."""


@dataclass(frozen=True)
class StoredIterate:
    """Solver iterate in arrays of fixed size, for any number of selected features."""

    features: NDArray[np.int64]
    """(r,) ascending, then -1."""
    sparse: NDArray[np.float64]
    """(r (r + 1)/2,) packed, then 0."""
    dual: NDArray[np.float64]
    """(r (r + 1)/2,) packed, then 0."""
    step: float

    @classmethod
    def empty(cls, dim: int) -> StoredIterate:
        """Return arrays for :data:`_MOST_STORED` features, or all, without an iterate."""
        room = min(dim, _MOST_STORED)
        size = packed_size(room)
        return cls(np.full(room, -1, dtype=np.int64), np.zeros(size), np.zeros(size), 1.0)

    def holding(self, iterate: FantopeIterate) -> StoredIterate:
        """Store an iterate, or only its largest weights if not all fit."""
        kept = iterate.largest(len(self.features))
        features = np.full_like(self.features, -1)
        features[: len(kept.features)] = kept.features
        return StoredIterate(features, self._filled(kept.sparse), self._filled(kept.dual), kept.step)

    def _filled(self, matrix: NDArray[np.float64]) -> NDArray[np.float64]:
        array = np.zeros_like(self.sparse)
        array[: packed_size(len(matrix))] = pack_symmetric(matrix)
        return array

    @property
    def iterate(self) -> FantopeIterate | None:
        m = int(np.count_nonzero(self.features >= 0))
        if not m:
            return None
        sparse, dual = (unpack_symmetric(array[: packed_size(m)], m) for array in (self.sparse, self.dual))
        return FantopeIterate(self.features[:m], sparse, dual, self.step)


@dataclass(frozen=True)
class SparseLocalState(LocalState):
    """Sum of the reports, the solution for their mean, and the solver's iterate."""

    support: NDArray[np.float64]
    """(d,) 1 for selected features, else 0."""
    room: StoredIterate
    iterations: int = field(default=0, kw_only=True)
    """Iterations of the solver for the last batch."""
    gap: float = field(default=0.0, kw_only=True)
    """Bound of the distance between its solution and the optimum, in units of the variances."""


class SparseLocalPCA(LocalEstimator[SparseLocalState, SparseLocalOptions]):
    """Sparse PCA of the mean of reports [WangXu2020, Alg. 2].

    For more features than the reports can distinguish.

    ============  ==================================================================
    steps 1 - 3   the producer: :class:`streaming_pca.local.LocalGaussian`
    step 4        ``update``, by :func:`~streaming_pca.kernels.record_means.add_reports`
    steps 5 - 12  ``update``, by :func:`~streaming_pca.linalg.fantope.sparse_subspace`
    step 13       ``update``: see Refit
    ============  ==================================================================

    Deviations from the paper
    -------------------------
    - Noise, and the clip: as in :class:`~streaming_pca.estimators.local.gaussian.LocalGaussianPCA`.
    - Penalty. Printed: O(sqrt(log p/n)), and in Theorem 5 a constant of unknown
      quantities. Here ``penalty_constant`` times the bound that no entry of the mean's known
      noise exceeds except with probability 0.05:
      :func:`~streaming_pca.linalg.fantope.noise_penalty`.
    - Step size and end: the paper has a constant rho and a loop without end. Here the step balances the
      residuals, and the iteration ends by them; the state has its gap, from a dual solution.
    - Streaming: the solver starts from its last iterate, so the solution depends on how the
      stream is cut, within its tolerance.
    - Refit. Step 13 takes the eigenvectors of Y, which the penalty biases: with the penalty that finds the
      right features, that can cost more than sparsity gains. Here, unless ``refit = false``, the penalty only
      chooses the features, and the eigenvectors are those of the mean on them.
    - Variances: those of the mean, without the penalty, along the rows, which are rotated
      to its Ritz vectors; with ``refit``, without the part that noise adds to them.
    - Support: the features whose weight Y_ii exceeds ten tolerances; Theorem 5 states
      when they are the true ones.

    Privacy
    -------
    No mechanism runs here, and a batch is charged nothing: see
    :class:`~streaming_pca.estimators.local.base.LocalEstimator`.

    Cost
    ----
    A report has 2 d (d + 1) bytes; the state twice that, and up to 2 MB. A batch costs one
    run of the solver, on the features whose entries pass the penalty: a few dozen
    of 2000, and 0.4 s with the scan of the mean. If a small penalty admits all of
    them, an iteration costs their leading eigenpairs, 0.7 s at 2000.
    """

    info = EstimatorInfo(
        id="local-sparse",
        source="WangXu2020, Algorithm 2",
        private=True,
        needs='reports of producers (record_kind = "local"), and a subspace that few features span',
        summary="local model: sparse subspace of the mean of private reports, and its features",
        local=True,
    )
    suite_options: ClassVar[SuiteOptions] = SuiteOptions({"batch_size": 64})

    def init(self, rng: np.random.Generator) -> SparseLocalState:
        d, k = self.dim, self.k
        nothing = np.zeros(packed_size(d))
        return SparseLocalState(
            0, 0, nothing, 0, np.eye(k, d), np.zeros(k), np.zeros(d), StoredIterate.empty(d)
        )

    def _solved(self, state: SparseLocalState) -> SparseLocalState:
        mean = unpack_symmetric(state.total / state.reports, self.dim)
        options = self.options
        found = sparse_subspace(
            mean,
            self.k,
            options.penalty_constant * noise_penalty(self.dim, self._mean_sigma(state.reports)),
            start=state.room.iterate,
            tolerance=options.tolerance,
            max_iterations=options.max_iterations,
        )
        seen = found.support(_LEAST_WEIGHT * options.tolerance)
        if options.refit and len(seen) >= self.k:
            rows = np.zeros((self.k, self.dim))
            rows[:, seen] = leading_eigenpairs(mean[np.ix_(seen, seen)], self.k)[1].T
        else:
            rows = found.components(self.k, self.dim)
        variances, turn = ritz_pairs(rows @ mean @ rows.T, self.k)
        support = np.zeros(self.dim)
        support[seen] = 1.0
        return replace(
            state,
            basis=np.ascontiguousarray(turn.T @ rows),
            variances=variances,
            trace=float(np.trace(mean)),
            support=support,
            room=state.room.holding(found),
            iterations=found.iterations,
            gap=found.gap,
        )

    def learnt_subspace(self, state: SparseLocalState) -> Subspace:
        """Return the solution and its features."""
        found = super().learnt_subspace(state)
        if not state.reports:
            return found
        seen = np.flatnonzero(state.support)
        if self.options.refit and len(seen) >= self.k:
            mean = unpack_symmetric(state.total / state.reports, self.dim)
            trace, m = float(mean.diagonal()[seen].sum()), len(seen)
            # Noise also chose the features, among all subsets of this size.
            found = self._unlifted(found, state, trace, m, m * (1 + math.log(self.dim / m)))
        return replace(found, support=tuple(seen.tolist()))
