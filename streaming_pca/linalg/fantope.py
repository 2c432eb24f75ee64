"""Sparse principal subspaces: linear functions with an entrywise penalty, over the Fantope.

The Fantope of rank k is {X symmetric : 0 <= X <= I, tr X = k}, the convex hull of the
projections of rank k. Source: 002, equation (5) and Algorithm 2, lines 6-12 (lines
225-249 of the text), which take both from Vu, Cho, Lei and Rohe 2013.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from streaming_pca.linalg.subspace import leading_eigenpairs

__all__ = [
    "FantopeIterate",
    "FantopeSolution",
    "fantope_projection",
    "fantope_weights",
    "features_in_play",
    "noise_penalty",
    "soft_threshold",
    "sparse_subspace",
]

Matrix = NDArray[np.float64]
Indices = NDArray[np.int64]

_UNBALANCED = 3.0
"""Ratio of the residuals at which the step doubles or halves."""


@dataclass(frozen=True)
class FantopeIterate:
    """Where the iteration stands; all is zero outside of ``features``.

    Attributes
    ----------
    features : (m,) int64, ascending
        Of the d features, those in play.
    sparse : (m, m) float64
        Y: entries that are zero are exactly so. Differs from X by the primal residual.
    dual : (m, m) float64
        Z, entries within the penalty: S - Z has its k leading eigenvectors in the optimum.
    step : float
        The augmented Lagrangian's.
    """

    features: Indices
    sparse: Matrix
    dual: Matrix
    step: float

    def largest(self, count: int) -> FantopeIterate:
        """The same of the ``count`` features with the largest weights Y_ii, at most."""
        order = np.argsort(-np.diagonal(self.sparse), kind="stable")
        kept = np.sort(order[:count])
        block = np.ix_(kept, kept)
        return FantopeIterate(self.features[kept], self.sparse[block], self.dual[block], self.step)


@dataclass(frozen=True)
class FantopeSolution(FantopeIterate):
    """What maximises <S, X> - penalty |X|_1, and how well.

    Attributes
    ----------
    feasible : (m, m) float64
        X: in the Fantope.
    iterations : int
    converged : bool
        Whether both residuals fell below the tolerance before the iterations ended.
    gap : float
        In units of S: no X of the Fantope, of all d features, is better than
        ``feasible`` by more (but for rounding).
    """

    feasible: Matrix
    iterations: int
    converged: bool
    gap: float

    def support(self, tolerance: float) -> Indices:
        """Features i with Y_ii above the tolerance, ascending."""
        return self.features[np.diagonal(self.sparse) > tolerance]

    def components(self, k: int, dim: int) -> Matrix:
        """The k leading eigenvectors of Y as rows (k, dim); 002, Algorithm 2, line 13."""
        rows = np.zeros((k, dim))
        rows[:, self.features] = leading_eigenpairs(self.sparse, k)[1].T
        return rows


def noise_penalty(dim: int, sigma: float, failure: float = 0.05) -> float:
    """What no entry of a symmetric Gaussian matrix exceeds, but with probability ``failure``.

    Parameters
    ----------
    dim : int
        d.
    sigma : float
        Standard deviation of each of the d(d+1)/2 entries.
    failure : float

    Returns
    -------
    float
        sigma sqrt(2 ln(d(d+1)/(2 failure))): P(|g| > t) <= exp(-t^2/2), and the union
        bound. The rate is that of 002, Theorems 4 and 5, whose constant is not given.
    """
    return sigma * math.sqrt(2 * math.log(dim * (dim + 1) / (2 * failure)))


def soft_threshold(matrix: Matrix, threshold: float) -> Matrix:
    """Entries moved towards zero by the threshold, and not past it; 002, Algorithm 2, line 9."""
    return np.asarray(matrix - np.clip(matrix, -threshold, threshold))


def fantope_weights(values: Matrix, k: int) -> Matrix:
    """Numbers in [0, 1] with sum k that are nearest to ``values`` (m,), m >= k.

    They are min(max(v - t, 0), 1) for a shift t. Their sum falls from m to 0 in t,
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
    # Between the two breaks these numbers fall as fast as t rises; no other moves.
    falling = np.count_nonzero((values > breaks[low]) & (values - 1.0 <= breaks[low]))
    shift = breaks[low] + (start.sum() - k) / max(falling, 1)
    return np.asarray(np.clip(values - min(shift, breaks[high]), 0.0, 1.0))


def fantope_projection(matrix: Matrix, k: int) -> Matrix:
    """The nearest matrix, in Frobenius norm, of the Fantope of rank k; matrix (m, m) symmetric."""
    return _projected(matrix, k, len(matrix))[0]


def _projected(matrix: Matrix, k: int, guess: int) -> tuple[Matrix, int]:
    """The projection, and its rank; ``guess`` eigenpairs are tried first."""
    m = len(matrix)
    count = min(max(guess, k + 1), m)
    while True:
        values, vectors = leading_eigenpairs(matrix, count)
        weights = fantope_weights(values, k)
        # Where the least of these has no weight, those below it have none.
        if count == m or weights[-1] == 0.0:
            break
        count = min(2 * count, m)
    kept = weights > 0
    half = vectors[:, kept] * np.sqrt(weights[kept])
    return np.asarray(half @ half.T), int(np.count_nonzero(kept))


def features_in_play(matrix: Matrix, k: int, penalty: float) -> Indices:
    """Features outside of which some optimum is zero, ascending; at least k.

    Parameters
    ----------
    matrix : (d, d) float64
        S, symmetric.
    k : int
    penalty : float

    Notes
    -----
    Join i and j where |S_ij| > penalty. For an optimal X, drop all entries between
    different components: what is left is an average of conjugates of X by diagonal
    signs, so in the Fantope, and each dropped entry loses at most |S_ij| |X_ij| and
    saves penalty |X_ij|. So some optimum is block diagonal. A feature that is joined
    to none gains (S_ii - penalty) X_ii: weight moved to those of the largest S_ii,
    each up to 1, loses nothing, and k of them have room for all.
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
    """Maximise <S, X> - penalty sum_ij |X_ij| over the Fantope; 002, Algorithm 2, lines 6-12.

    Parameters
    ----------
    matrix : (d, d) float64
        S, symmetric and finite.
    k : int
    penalty : float
        At least 0, in units of S. lambda in 002.
    start : FantopeIterate, optional
        Of a similar problem: the iteration goes on from there. Changes what is found
        by no more than the tolerance.
    tolerance : float
        Ends the iteration where |X - Y|_F <= tolerance sqrt(k) and the step times the
        change of Y, |.|_F, is at most tolerance sqrt(k) |S|_2.
    max_iterations : int

    Notes
    -----
    Only the features in play are worked on (:func:`features_in_play`), which loses
    nothing: the reduced problem has the same optimum.

    The step (rho in 002, a constant there) starts at |S|_2 and is doubled or halved
    where one residual is three times the other, in the first half of the iterations:
    with a constant step from some time on ADMM converges (Boyd et al. 2011, 3.4.1).
    What is kept is Z = step U, which such a change leaves alone. Without ``start`` it
    is S clipped to the penalty, so that the first X is that of the thresholded S; 0 in
    002. Optimal solutions need not be unique; the gap is what is certain.

    After every iteration Z = step U is within the penalty, entry by entry (U is what
    soft thresholding takes off). So the k leading eigenvalues of S - Z sum to at
    least <S, X> - penalty |X|_1 for every X of the Fantope: that is the gap.
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
        feasible, rank = _projected(sparse + (s - dual) / step, k, rank + 2)
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
