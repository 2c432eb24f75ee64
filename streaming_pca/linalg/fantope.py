"""Sparse principal subspaces: linear functions with an entrywise penalty, over the Fantope.

The Fantope of rank k is {X symmetric : 0 <= X <= I, tr X = k}, the convex hull of the projections of rank k.
Source: [WangXu2020, equation (5) and Alg. 2, steps 6 to 12], from [VuEtAl2013].

Proofs: docs/explanation/proofs/errors.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.subspace import leading_eigenpairs

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]

_UNBALANCED = 3.0
"""Ratio of the residuals that doubles or halves the step: trades faster balance against oscillation."""


@dataclass(frozen=True)
class FantopeIterate:
    """Iterate of the solver; all is zero outside ``features``."""

    features: Indices
    """(m,), ascending: indices of the selected features."""
    sparse: Matrix
    """(m, m) Y: zero entries are exactly zero. Differs from X by the primal residual."""
    dual: Matrix
    """(m, m) Z, entries within the penalty: S - Z has its k leading eigenvectors in the optimum."""
    step: float
    """Step of the augmented Lagrangian."""

    def largest(self, count: int) -> FantopeIterate:
        """Restrict to at most ``count`` features: those of the largest weights Y_ii."""
        kept = np.sort(np.argsort(-np.diagonal(self.sparse), kind="stable")[:count])
        block = np.ix_(kept, kept)
        return FantopeIterate(self.features[kept], self.sparse[block], self.dual[block], self.step)


@dataclass(frozen=True)
class FantopeSolution(FantopeIterate):
    """Maximiser of <S, X> - penalty |X|_1, and its accuracy."""

    feasible: Matrix
    """(m, m) X: in the Fantope."""
    iterations: int
    converged: bool
    """True if both residuals fell below the tolerance before the iterations ended."""
    gap: float
    """In units of S: no X of the Fantope, of all d features, is better than ``feasible`` by more (except for
    rounding)."""

    def support(self, tolerance: float) -> Indices:
        """Return the features i with Y_ii above the tolerance, ascending."""
        return self.features[np.diagonal(self.sparse) > tolerance]

    def components(self, k: int, dim: int) -> Matrix:
        """Return the k leading eigenvectors of Y as rows (k, dim); [WangXu2020, Alg. 2, step 13]."""
        rows = np.zeros((k, dim))
        rows[:, self.features] = leading_eigenpairs(self.sparse, k)[1].T
        return rows


def noise_penalty(dim: int, sigma: float, failure: float = 0.05) -> float:
    """Bound the largest entry of symmetric Gaussian noise of order d, except with probability ``failure``.

    It is sigma sqrt(2 ln(d(d+1)/(2 failure))), for entries of standard deviation sigma: P(|g| > t) <=
    exp(-t^2/2), and the union bound. The rate is from [WangXu2020, Theorems 4 and 5], which give no constant.
    """
    return sigma * math.sqrt(2 * math.log(dim * (dim + 1) / (2 * failure)))


def soft_threshold(matrix: Matrix, threshold: float) -> Matrix:
    """Move entries towards zero by the threshold, not past it; [WangXu2020, Alg. 2, step 9]."""
    return np.asarray(matrix - np.clip(matrix, -threshold, threshold))


def fantope_weights(values: Matrix, k: int) -> Matrix:
    """Return the numbers in [0, 1] with sum k that are nearest to ``values`` (m,).

    For m >= k. They are min(max(v - t, 0), 1) for a shift t. Their sum falls from m to 0 in t,
    linearly between the numbers v and v - 1: bisection over these, then one division.
    """
    breaks = np.sort(np.concatenate([values, values - 1.0]))
    low, high = 0, len(breaks) - 1
    while high - low > 1:
        middle = (low + high) // 2
        if np.clip(values - breaks[middle], 0.0, 1.0).sum() >= k:
            low = middle
        else:
            high = middle
    start = np.clip(values - breaks[low], 0.0, 1.0)
    # Between the two breaks these numbers fall as fast as t rises; the others do not move.
    falling = np.count_nonzero((values > breaks[low]) & (values - 1.0 <= breaks[low]))
    shift = breaks[low] + (start.sum() - k) / max(falling, 1)
    return np.asarray(np.clip(values - min(shift, breaks[high]), 0.0, 1.0))


def fantope_projection(matrix: Matrix, k: int, guess: int) -> tuple[Matrix, int]:
    """Project a symmetric matrix (m, m) onto the Fantope of rank k, in Frobenius norm; returns its rank, too.

    ``guess`` eigenpairs are tried first.
    """
    m = len(matrix)
    count = min(max(guess, k + 1), m)
    while True:
        values, vectors = leading_eigenpairs(matrix, count)
        weights = fantope_weights(values, k)
        # If the least of these has no weight, neither has any below it.
        if count == m or weights[-1] == 0.0:
            break
        count = min(2 * count, m)
    kept = weights > 0
    half = vectors[:, kept] * np.sqrt(weights[kept])
    return np.asarray(half @ half.T), int(np.count_nonzero(kept))


def features_in_play(matrix: Matrix, k: int, penalty: float) -> Indices:
    """Return features that include the support of some optimum for S, ascending; at least k.

    They are the features with an entry |S_ij| > penalty off the diagonal, and the k largest
    S_ii of the others. Proof: docs/explanation/proofs/errors.md.
    """
    joined = np.abs(matrix) > penalty
    np.fill_diagonal(joined, False)
    inside = joined.any(axis=1)
    alone = np.flatnonzero(~inside)
    best = alone[np.argsort(-np.diagonal(matrix)[alone], kind="stable")[:k]]
    return np.sort(np.concatenate([np.flatnonzero(inside), best])).astype(np.int64)


def sparse_subspace(
    matrix: Matrix,
    k: int,
    penalty: float,
    *,
    start: FantopeIterate | None = None,
    tolerance: float = 1e-5,
    max_iterations: int = 1000,
) -> FantopeSolution:
    """Maximise <S, X> - penalty sum_ij |X_ij| over the Fantope; [WangXu2020, Alg. 2].

    S, ``matrix``, is symmetric and finite; ``penalty``, lambda in the paper, is at least 0, in units of S.
    The iteration continues from ``start``, the iterate of a similar problem, which changes the solution by at
    most the tolerance. It ends where |X - Y|_F <= tolerance sqrt(k) and the step times the change of Y,
    |.|_F, is at most tolerance sqrt(k) |S|_2.

    ADMM on the selected features, which loses nothing. The step (rho in the paper, a constant there) doubles
    or halves where one residual is three times the other, in the first half of the iterations. Optimal
    solutions need not be unique; the gap, from the dual solution Z, is certain.
    """
    features = features_in_play(matrix, k, penalty)
    s = np.ascontiguousarray(matrix[np.ix_(features, features)])
    scale = float(np.abs(np.linalg.eigvalsh(s)).max()) or 1.0
    sparse, dual = np.zeros_like(s), np.clip(s, -penalty, penalty)
    step = scale
    if start is not None:
        step = start.step
        _, here, there = np.intersect1d(features, start.features, assume_unique=True, return_indices=True)
        sparse[np.ix_(here, here)] = start.sparse[np.ix_(there, there)]
        dual[np.ix_(here, here)] = np.clip(start.dual[np.ix_(there, there)], -penalty, penalty)
    allowed = tolerance * math.sqrt(k)
    rank, converged, iteration = k, False, 0
    feasible = sparse
    while not converged and iteration < max_iterations:
        iteration += 1
        feasible, rank = fantope_projection(sparse + (s - dual) / step, k, rank + 2)
        moved = feasible + dual / step
        before, sparse = sparse, soft_threshold(moved, penalty / step)
        dual = step * (moved - sparse)
        primal = float(np.linalg.norm(feasible - sparse))
        change = float(np.linalg.norm(sparse - before)) * step / scale
        converged = primal <= allowed and change <= allowed
        if not converged and iteration < max_iterations // 2:
            if primal > _UNBALANCED * change:
                step *= 2
            elif change > _UNBALANCED * primal:
                step /= 2
    value = float(np.sum(s * feasible)) - penalty * float(np.abs(feasible).sum())
    bound = float(np.linalg.eigvalsh(s - dual)[-k:].sum())
    return FantopeSolution(features, sparse, dual, step, feasible, iteration, converged, bound - value)
