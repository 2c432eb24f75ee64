"""The data of 002's figures, as mean second moments: what reports of the local model add up to.

A report is x x^T with one Gaussian number added to each entry of its upper triangle, and the
estimators use reports by their mean alone. The mean of n such Gaussian numbers is one of
1/sqrt(n) times the deviation, so an experiment draws that one number: the same distribution, and
one draw an entry instead of n. For the same reason n may be any number here.
"""

from __future__ import annotations

import functools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streaming_pca.experiments.settings import Measure
from streaming_pca.experiments.stand_ins import STAND_INS, moment_of
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs, subspace_error
from streaming_pca.privacy.randomness import utility_generator

__all__ = ["MODEL", "MomentDraw", "MomentSetting", "sparse_subspace"]

Matrix = NDArray[np.float64]

MODEL = "model"
"""The paper's N(0, Sigma), as a source."""

_TRUTH, _RECORDS, _NOISE = range(3)
_MOST_VALUES = 2_000_000
"""Records up to here are drawn; a moment of more is drawn at once."""
_STARTS = 50
_ROUNDS = 60


@dataclass(frozen=True)
class MomentSetting:
    """A point of a figure of the local model.

    Attributes
    ----------
    source : str
        "model": N(0, strength/(5 p (strength + 1)) V V^T + I/(5 p (strength + 1))), with p = ``dim``
        (002, section 6.1). Or a key of :data:`~streaming_pca.experiments.stand_ins.STAND_INS`.
    n, dim, k : int
    epsilon, delta : float
        Of each report.
    sparsity : int
        Features that the target subspace lives on; 0: all.
    total : int
        Records of a data set that the target is of; of "model" it is the population's.
    strength : float
        Their lambda.
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
    def family(self) -> str:
        """The source: what tuning goes by."""
        return self.source

    @property
    def bytes(self) -> int:
        """The most that a draw takes: a few matrices, and the records that make one."""
        rows = _MOST_VALUES if self.source == MODEL else 2**11 * STAND_INS[self.source].dim
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
        """Everything that a moment depends on besides the seed."""
        return asdict(self)

    def draw(self, seed: int) -> MomentDraw:
        """One seed's moment and noise."""
        return MomentDraw(self, seed)

    def random_error(self, measure: Measure) -> float:
        """What a uniformly random subspace scores; sparse or not, the mean of |U^T v|^2 is k/d."""
        _check(measure)
        return math.sqrt(2 * self.k * (1 - self.k / self.dim))


class MomentDraw:
    """One seed's second moment of a setting.

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
            self.truth = _sparse_basis(setting, self._generator(_TRUTH))
            self.moment = self._model_moment()
        else:
            self.truth = _set_truth(setting)
            self.moment = moment_of(setting.source, setting.n, setting.dim)

    def noisy(self, sigma: float) -> Matrix:
        """The mean of n reports with deviation ``sigma`` in each entry of the upper triangle.

        The same standard numbers at any ``sigma``: methods on a draw differ in nothing else.
        """
        drawn = self._generator(_NOISE).standard_normal(self.moment.shape)
        upper = np.triu(drawn)
        noise = upper + np.triu(drawn, 1).T
        return np.asarray(self.moment + sigma / math.sqrt(self.setting.n) * noise)

    def error(self, measure: Measure, components: Matrix) -> float:
        """|U U^T - V V^T|_F of rows (k, d)."""
        _check(measure)
        return subspace_error(components, self.truth)

    def _generator(self, use: int) -> np.random.Generator:
        return utility_generator((self._seed << 64) | (use << 32))

    def _model_moment(self) -> Matrix:
        """W/n for W ~ Wishart(Sigma, n).

        |x| <= 1 is left alone: with these eigenvalues |x|^2 has a mean of at most 1/5, and exceeds 1
        with probability exp(-p) or so.
        """
        setting, rng = self.setting, self._generator(_RECORDS)
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
        raise ValueError(f"002 measures the subspace, not {measure!r}")


def _sparse_basis(setting: MomentSetting, rng: np.random.Generator) -> Matrix:
    """V^T for a random V on ``sparsity`` features, chosen at random."""
    s = setting.sparsity or setting.dim
    rows = np.zeros((setting.k, setting.dim))
    features = rng.permutation(setting.dim)[:s]
    rows[:, features] = orthonormalise(rng.standard_normal((s, setting.k))).T
    return rows


def _set_truth(setting: MomentSetting) -> Matrix:
    return _truth_of(setting.source, setting.total or setting.n, setting.dim, setting.k, setting.sparsity)


@functools.lru_cache(maxsize=64)
def _truth_of(source: str, total: int, dim: int, k: int, sparsity: int) -> Matrix:
    moment = moment_of(source, total, dim)
    if sparsity:
        return sparse_subspace(moment, k, sparsity)
    return np.ascontiguousarray(ritz_pairs(moment, k)[1].T)


def sparse_subspace(moment: Matrix, k: int, sparsity: int) -> Matrix:
    """Rows (k, d) that are not 0 on at most ``sparsity`` features and have much of the variance.

    002 takes the best of fifty runs of a non-private method. So does this: from fifty starts, the
    components of some features choose the features of which they explain most, until these stay the
    same; of all features met on the way, those with the largest k eigenvalues.
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
            # |row i|^2 is what these components explain of feature i's variance.
            image = moment[:, support] @ basis / np.sqrt(np.maximum(values, 1e-300))
            chosen = np.argsort(-np.square(image).sum(axis=1), kind="stable")[:sparsity]
            if np.array_equal(np.sort(chosen), support):
                break
            support = chosen
    return found
