"""Mean second moments, the sums of locally private reports, for the figures of [WangXu2020].

A report is x x^T with one Gaussian number added to each entry of its upper triangle, and the estimators use
only the mean of the reports. The mean of n such numbers is one Gaussian number with 1/sqrt(n) times the
deviation. Therefore an experiment draws that number: the same distribution, with one draw per entry instead
of n. For the same reason n can be arbitrarily large.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from experiments.papers.synthetic_data import DATA_SETS, moment_of
from experiments.settings import Measure, generator
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs, subspace_error
from streaming_pca.privacy.randomness import utility_generator

__all__ = ["MODEL", "MomentDraw", "MomentSetting", "sparse_subspace"]

Matrix = NDArray[np.float64]

MODEL = "model"
"""Name of the source for the paper's N(0, Sigma)."""

_TRUTH, _RECORDS, _NOISE = range(3)
_MOST_VALUES = 2_000_000
"""Largest n p to draw records; above it, the moment is drawn directly."""
_STARTS, _ROUNDS = 50, 60
"""Runs and rounds of the search for a sparse target; the paper uses fifty runs."""


@dataclass(frozen=True)
class MomentSetting:
    """Point of a figure of the local model.

    Attributes
    ----------
    source : str
        "model": N(0, strength/(5 p (strength + 1)) V V^T + I/(5 p (strength + 1))), with p = ``dim``
        ([WangXu2020, section 6.1]). Or a key of :data:`~experiments.papers.synthetic_data.DATA_SETS`.
    n, dim, k : int
    epsilon, delta : float
        Privacy parameters of each report.
    sparsity : int
        Number of features of the target subspace; 0 means all.
    total : int
        Number of records of the data set that define the target; for "model", the population defines it.
    strength : float
        lambda of the model.
    """

    source: str
    n: int
    dim: int
    k: int
    epsilon: float
    delta: float
    sparsity: int = 0
    total: int = 0
    strength: float = 1.0

    @property
    def bytes(self) -> int:
        """Peak memory of a draw: a few matrices, and the records for one of them."""
        rows = _MOST_VALUES if self.source == MODEL else 2**11 * DATA_SETS[self.source].dim
        return 8 * (6 * self.dim**2 + 2 * rows)

    @property
    def gap(self) -> float:
        """lambda_k - lambda_(k+1) of the model."""
        return self.strength / (5 * self.dim * (self.strength + 1))

    @property
    def floor(self) -> float:
        """lambda_(k+1) of the model."""
        return 1 / (5 * self.dim * (self.strength + 1))

    def as_json(self) -> dict[str, Any]:
        """Return everything that determines a moment, except the seed."""
        return asdict(self)

    def draw(self, seed: int) -> MomentDraw:
        """Draw the moment and noise of a seed."""
        return MomentDraw(self, seed)

    def random_error(self, measure: Measure) -> float:
        """Return the error of a uniformly random subspace.

        The mean of |U^T v|^2 is k/d, whether V is sparse or not.
        """
        _check(measure)
        return math.sqrt(2 * self.k * (1 - self.k / self.dim))


class MomentDraw:
    """Second moment of a setting for one seed.

    Attributes
    ----------
    truth : (k, d) float64
        Orthonormal rows: the target subspace.
    moment : (d, d) float64
        Mean of x x^T over the records, without noise.
    """

    def __init__(self, setting: MomentSetting, seed: int) -> None:
        self.setting, self._seed = setting, seed
        if setting.source == MODEL:
            self.truth = _sparse_basis(setting, generator(seed, _TRUTH))
            self.moment = self._model_moment()
        else:
            total = setting.total or setting.n
            self.truth = _truth_of(setting.source, total, setting.dim, setting.k, setting.sparsity)
            self.moment = moment_of(setting.source, setting.n, setting.dim)

    def noisy(self, sigma: float) -> Matrix:
        """Return the mean of n reports with noise ``sigma`` on the upper triangle.

        The standard Gaussian numbers are the same for any ``sigma``, so that methods on a draw differ only in
        ``sigma``.
        """
        drawn = generator(self._seed, _NOISE).standard_normal(self.moment.shape)
        upper = np.triu(drawn)
        noise = upper + np.triu(drawn, 1).T
        return np.asarray(self.moment + sigma / math.sqrt(self.setting.n) * noise)

    def error(self, measure: Measure, components: Matrix) -> float:
        """Return |U U^T - V V^T|_F of rows (k, d)."""
        _check(measure)
        return subspace_error(components, self.truth)

    def _model_moment(self) -> Matrix:
        """Draw W/n for W ~ Wishart(Sigma, n).

        Rows are not clipped to |x| <= 1: with these eigenvalues, |x|^2 has a mean of at most 1/5, and exceeds
        1 with probability about exp(-p).
        """
        setting, rng = self.setting, generator(self._seed, _RECORDS)
        n, d = setting.n, setting.dim
        if n * d <= _MOST_VALUES:
            rows = rng.standard_normal((n, d))
            white = rows.T @ rows / n
        else:
            factor = np.tril(rng.standard_normal((d, d)), -1)
            factor[np.diag_indices(d)] = np.sqrt(rng.chisquare(n - np.arange(d)))
            white = factor @ factor.T / n
        # Sigma^(1/2) = a V V^T + b (I - V V^T).
        low, high = math.sqrt(setting.floor), math.sqrt(setting.floor + setting.gap)
        root = low * np.eye(d) + (high - low) * self.truth.T @ self.truth
        return np.asarray(root @ white @ root)


def _check(measure: Measure) -> None:
    if measure != "subspace":
        raise ValueError(f"figures of the local model measure the subspace, not {measure!r}")


def _sparse_basis(setting: MomentSetting, rng: np.random.Generator) -> Matrix:
    """Draw V^T for a random V on ``sparsity`` features, chosen at random."""
    s = setting.sparsity or setting.dim
    rows = np.zeros((setting.k, setting.dim))
    features = rng.permutation(setting.dim)[:s]
    rows[:, features] = orthonormalise(rng.standard_normal((s, setting.k))).T
    return rows


@functools.lru_cache(maxsize=64)
def _truth_of(source: str, total: int, dim: int, k: int, sparsity: int) -> Matrix:
    moment = moment_of(source, total, dim)
    if sparsity:
        return sparse_subspace(moment, k, sparsity)
    return np.ascontiguousarray(ritz_pairs(moment, k)[1].T)


def sparse_subspace(moment: Matrix, k: int, sparsity: int) -> Matrix:
    """Find rows (k, d) on at most ``sparsity`` features with much of the variance.

    The paper takes the best of fifty runs of a non-private method. This function is similar. From each of
    fifty starts, it alternates between the components of the current features and the features that these
    components explain most, until the features do not change. The result is the visited set of features
    with the largest k eigenvalues.
    """
    rng = utility_generator(0)
    width = len(moment)
    best, found = -1.0, np.zeros((k, width))
    for start in range(_STARTS):
        if start == 0:
            support = np.argsort(-np.diagonal(moment), kind="stable")[:sparsity]
        else:
            support = rng.permutation(width)[:sparsity]
        for _ in range(_ROUNDS):
            support = np.sort(support)
            values, basis = ritz_pairs(moment[np.ix_(support, support)], k)
            if values.sum() > best:
                best = float(values.sum())
                found = np.zeros((k, width))
                found[:, support] = basis.T
            # |row i|^2 is the part of feature i's variance that these components explain.
            product = moment[:, support] @ basis / np.sqrt(np.maximum(values, 1e-300))
            chosen = np.argsort(-np.square(product).sum(axis=1), kind="stable")[:sparsity]
            if np.array_equal(np.sort(chosen), support):
                break
            support = chosen
    return found
