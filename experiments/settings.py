"""Data of the papers on k-PCA: a setting describes records, a draw contains the records of a seed.

Memory: a draw stores one float32 row per record (4 n d bytes), and creates records of several rows when a
batch needs them (4 (k + 1) m d bytes for a batch of m). Therefore a fit needs at most 4 (k + 2) n d bytes,
below 0.7 GB in every experiment, in addition to the memory of its estimator.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.array_batch import ArrayBatch
from streaming_pca.linalg.subspace import orthonormalise, ritz_pairs, subspace_error
from streaming_pca.privacy.randomness import utility_generator

__all__ = [
    "MEASURES",
    "Draw",
    "Family",
    "Measure",
    "RowsDraw",
    "Setting",
    "generator",
]

Family = Literal["spiked", "gaussian", "coherent"]
Measure = Literal["subspace", "energy", "sine", "failure", "impurity"]

MEASURES: dict[Measure, str] = {
    "subspace": "error |UU$^T$ - VV$^T$|$_F$",
    "energy": "utility lost, 1 - ⟨UU$^T$, Σ⟩ / ⟨VV$^T$, Σ⟩",
    "sine": "sin$^2$ of the angle to $v_1$",
    "failure": "share of trials that fail",
    "impurity": "1 - purity of topics",
}
"""Errors in the figures, from [DunglerSanyal2026, appendix F.3], [DunglerSanyal2025, Definition 1],
[NguyenEneNguyen2026, Theorem 1.1], [WangAnandkumar2016, appendix A]; the last is ours."""

NO_CLIPPING = 0.01
"""Probability that the papers' radii clip anything: their zeta."""

_BLOCK = 2**13
# A seed has several generators, because truth, records and an estimator's start must be independent.
_TRUTH, _RECORDS, _START = range(3)


def generator(seed: int, use: int, number: int = 0) -> np.random.Generator:
    """Return the utility generator for one use of a seed; uses are independent."""
    return utility_generator((seed << 64) | (use << 32) | number)


@dataclass(frozen=True)
class Setting:
    """Point of a figure: data, epsilon and delta.

    Attributes
    ----------
    family : str
        "spiked": the papers' model ([DunglerSanyal2026, appendix F.1], [DunglerSanyal2025,
        appendix G.1]). For k = 1 vectors +-lambda_1 v + z; above, A_i = V L V^T + z z^T, as
        factors of k + 1 rows; z ~ N(0, sigma^2 I).
        "gaussian": vectors of N(0, V L V^T + sigma^2 I) ([DunglerSanyal2025, appendix G.2],
        [NguyenEneNguyen2026, Theorem 1.2]).
        "coherent": n fixed rows of length at most 1 ([NguyenEneNguyen2026, Theorem 1.1]):
        ``carriers`` of them are +-a v + e, the others e, |e| = sigma and e orthogonal to v.
        a^2 ``carriers`` = L_1 is constant, so that only the coherence max_i |U_i1| =
        ``carriers``**-0.5 moves.
    n, dim : int
        Numbers of records and features.
    eigenvalues : tuple
        L, decreasing; its length is k.
    sigma : float
    carriers : int
        Number of carriers of the "coherent" family.
    """

    family: Family
    n: int
    dim: int
    eigenvalues: tuple[float, ...]
    sigma: float
    epsilon: float = 1.0
    delta: float = 1e-2
    carriers: int = 0

    def __post_init__(self) -> None:
        if self.family == "coherent":
            longest = self.eigenvalues[0] / self.carriers + self.sigma**2
            if not (1 <= self.carriers <= self.n and longest <= 1 and self.k == 1):
                raise ValueError(f"{self.carriers} carriers of {self.n} rows do not fit into the unit ball")

    @property
    def k(self) -> int:
        """Rank of the target."""
        return len(self.eigenvalues)

    @property
    def rows(self) -> int:
        """Rows of a record."""
        return self.k + 1 if self.family == "spiked" and self.k > 1 else 1

    @property
    def bytes(self) -> int:
        """Peak memory of a draw and one batch of all records."""
        return 4 * self.n * self.dim * (1 + self.rows)

    @property
    def strengths(self) -> tuple[float, ...]:
        """Eigenvalues of E[A] without the noise's sigma^2."""
        if self.family == "coherent":
            return (self.eigenvalues[0] / self.n,)
        if self.family == "spiked" and self.k == 1:
            return (self.eigenvalues[0] ** 2,)
        return self.eigenvalues

    @property
    def top(self) -> float:
        """lambda_1 of the signal, which the papers' learning rates and radii know."""
        return self.strengths[0]

    @property
    def norm_bound(self) -> float:
        """beta: sqrt(trace A_i) exceeds it with probability 0.01 ("clipping is inactive").

        It is C sqrt(lambda_1) + sigma sqrt(d ln(n/zeta)) ([DunglerSanyal2026, appendix F.2]), with a C that
        fits the family: the papers do not give it.
        """
        if self.family == "coherent":
            return 1.0
        rare = self.rarity
        signal = math.sqrt(sum(self.strengths))
        if self.family == "gaussian":
            # chi^2 of k degrees exceeds k + 2 sqrt(k x) + 2 x with probability exp(-x) at most.
            signal = math.sqrt(self.top * (self.k + 2 * math.sqrt(self.k * rare) + 2 * rare))
        return signal + self.noise_bound

    @property
    def noise_bound(self) -> float:
        """sigma sqrt(d ln(n/zeta)), the noise's part of ``norm_bound``; sigma in the unit ball."""
        return self.sigma * (1.0 if self.family == "coherent" else math.sqrt(self.dim * self.rarity))

    @property
    def rarity(self) -> float:
        """ln(n/zeta): one of n events of probability exp(-this) occurs with probability zeta."""
        return math.log(self.n / NO_CLIPPING)

    def as_json(self) -> dict[str, Any]:
        """Return everything that determines the records, except the seed."""
        return asdict(self)

    def draw(self, seed: int) -> Draw:
        """Draw the records of a seed."""
        return Draw(self, seed)

    def random_error(self, measure: Measure) -> float:
        """Return the error of a uniformly random subspace; |U^T v|^2 has mean k/d for any v."""
        share = 1 - self.k / self.dim
        if measure == "subspace":
            return math.sqrt(2 * self.k * share)
        if measure == "sine":
            return share
        signal = sum(self.strengths)
        return share * signal / (signal + self.k * self.sigma**2)


class RowsDraw:
    """Records of a seed, with one row each, and a start for estimators."""

    _rows: NDArray[np.float32]
    _start = _START

    def __init__(self, setting: Any, seed: int) -> None:
        self.setting, self._seed = setting, seed

    def batch(self, first: int, count: int) -> ArrayBatch:
        """Return records ``first`` to ``first + count``, in order."""
        rows = self._rows[first : first + count]
        return ArrayBatch(rows, np.arange(len(rows) + 1, dtype=np.int64))

    def start(self) -> np.random.Generator:
        """Return an estimator's utility randomness, the same for all methods on this draw."""
        return generator(self._seed, self._start)


class Draw(RowsDraw):
    """Records of a setting for one seed.

    Attributes
    ----------
    truth : (k, d) float64
        Orthonormal rows: the leading subspace of the population, or of the records if "coherent".
    """

    def __init__(self, setting: Setting, seed: int) -> None:
        super().__init__(setting, seed)
        basis = generator(seed, _TRUTH).standard_normal((setting.dim, setting.k))
        self.truth = np.ascontiguousarray(orthonormalise(basis).T)
        self._signal = (np.sqrt(setting.strengths)[:, None] * self.truth).astype(np.float32)
        self._rows = np.empty((setting.n, setting.dim), np.float32)
        for number, first in enumerate(range(0, setting.n, _BLOCK)):
            last = min(first + _BLOCK, setting.n)
            self._rows[first:last] = self._block(number, first, last)
        if setting.family == "coherent":
            self.truth = self._exact()

    def batch(self, first: int, count: int) -> ArrayBatch:
        """Return records ``first`` to ``first + count``, in order."""
        r = self.setting.rows
        if r == 1:
            return super().batch(first, count)
        rows = self._rows[first : first + count]
        factors = np.empty((len(rows), r, self.setting.dim), np.float32)
        factors[:, :-1] = self._signal
        factors[:, -1] = rows
        return ArrayBatch(factors.reshape(len(rows) * r, -1), np.arange(len(rows) + 1, dtype=np.int64) * r)

    def error(self, measure: Measure, components: NDArray[np.float64]) -> float:
        """Return the distance of components (k, d) from the truth; 0 is best.

        For ``"energy"``, it is the lost share of <V V^T, Sigma>.
        """
        if measure == "subspace":
            return subspace_error(components, self.truth)
        residual = self.truth - (self.truth @ components.T) @ components
        lost = np.square(residual).sum(axis=1)
        if measure == "sine":
            return float(lost[0])
        strengths = np.asarray(self.setting.strengths)
        return float(lost @ strengths / (strengths.sum() + self.setting.k * self.setting.sigma**2))

    def _block(self, number: int, first: int, last: int) -> NDArray[np.float32]:
        setting, rng = self.setting, generator(self._seed, _RECORDS, number)
        rows = rng.standard_normal((last - first, setting.dim), dtype=np.float32)
        if setting.family == "coherent":
            return self._coherent(rows, rng, first, last)
        rows *= np.float32(setting.sigma)
        if setting.family == "gaussian":
            rows += rng.standard_normal((last - first, setting.k), dtype=np.float32) @ self._signal
        elif setting.k == 1:
            rows += _signs(rng, last - first) * self._signal
        return rows

    def _coherent(
        self, rows: NDArray[np.float32], rng: np.random.Generator, first: int, last: int
    ) -> NDArray[np.float32]:
        setting = self.setting
        v = self.truth[0].astype(np.float32)
        rows -= np.outer(rows @ v, v)
        # Slightly shorter, so that rounding does not make a row longer than 1.
        rows *= np.float32(setting.sigma * (1 - 1e-5)) / np.linalg.norm(rows, axis=1, keepdims=True)
        # Carriers are spread evenly over the stream.
        reached = np.arange(first, last + 1) * setting.carriers // setting.n
        height = np.diff(reached)[:, None] * math.sqrt(setting.eigenvalues[0] / setting.carriers)
        rows += (height * (1 - 1e-5)).astype(np.float32) * _signs(rng, last - first) * v
        return rows

    def _exact(self) -> NDArray[np.float64]:
        moment = np.zeros((self.setting.dim, self.setting.dim))
        for first in range(0, self.setting.n, _BLOCK):
            wide = self._rows[first : first + _BLOCK].astype(np.float64)
            moment += wide.T @ wide
        return np.ascontiguousarray(ritz_pairs(moment, 1)[1].T)


def _signs(rng: np.random.Generator, count: int) -> NDArray[np.float32]:
    return (2 * rng.integers(0, 2, (count, 1)) - 1).astype(np.float32)
