"""Synthetic records of known difficulty: decaying, spiked, contaminated, heavy-tailed, low-rank, counts.

Each seed draws new records and a rotated basis (except for counts); records are centred by their own mean.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.real_data import centred

__all__ = ["FAMILIES", "Family"]

Matrix = NDArray[np.float64]
Records = NDArray[np.float32]
Make = Callable[[int, int, np.random.Generator], Matrix]

_CONTAMINATED = 0.01
_OUTLIER = 100.0
_DEGREES = 3
_RANK = 10
_TOPICS = 8
_WORDS_A_TEXT = 100.0

# Different from the streams of other settings, of the library's basis and of the peers' noise.
_STREAM = 4


@dataclass(frozen=True)
class Family:
    """Distribution of records, with their number and the numbers of components to judge.

    Records with norm ``outlier_norm`` or more are contamination, and excluded from the reference subspace.
    """

    name: str
    n: int
    dim: int
    ranks: tuple[int, ...]
    make: Make
    outlier_norm: float = np.inf

    def draw(self, seed: int) -> Records:
        """Draw centred records (n, d)."""
        return centred(self.make(self.n, self.dim, np.random.default_rng([seed, _STREAM])))

    def clean(self, records: Records) -> Records:
        """Return the records that are not contamination."""
        return np.asarray(records[np.linalg.norm(records, axis=1) < self.outlier_norm])


def _gaussian(n: int, variances: Matrix, rng: np.random.Generator) -> Matrix:
    """Draw Gaussian records with these variances along random orthogonal directions."""
    dim = len(variances)
    basis = np.linalg.qr(rng.standard_normal((dim, dim)))[0]
    return np.asarray((rng.standard_normal((n, dim)) * np.sqrt(variances)) @ basis.T)


def _decaying(dim: int) -> Matrix:
    return np.asarray(0.8 ** np.arange(dim))


def _decay(n: int, dim: int, rng: np.random.Generator) -> Matrix:
    return _gaussian(n, _decaying(dim), rng)


def _spike(n: int, dim: int, rng: np.random.Generator) -> Matrix:
    return _gaussian(n, np.array([8.0, *[1.0] * (dim - 1)]), rng)


def _two_spikes(n: int, dim: int, rng: np.random.Generator) -> Matrix:
    return _gaussian(n, np.array([60.0, 40.0, *[1.0] * (dim - 2)]), rng)


def _contaminated(n: int, dim: int, rng: np.random.Generator) -> Matrix:
    """Draw decaying records, with 1% isotropic outliers of 100 root mean square norms."""
    records = _decay(n, dim, rng)
    wrong = rng.random(n) < _CONTAMINATED
    directions = rng.standard_normal((int(wrong.sum()), dim))
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    records[wrong] = _outlier_norm(dim) * directions
    return records


def _outlier_norm(dim: int) -> float:
    return float(_OUTLIER * np.sqrt(_decaying(dim).sum()))


def _student(n: int, dim: int, rng: np.random.Generator) -> Matrix:
    """Draw multivariate t records with 3 degrees of freedom and decaying scatter."""
    records = _decay(n, dim, rng)
    return np.asarray(records * np.sqrt(_DEGREES / rng.chisquare(_DEGREES, (n, 1))))


def _low_rank(n: int, dim: int, rng: np.random.Generator) -> Matrix:
    variances = np.zeros(dim)
    variances[:_RANK] = _decaying(_RANK)
    return _gaussian(n, variances, rng)


def _counts(n: int, dim: int, rng: np.random.Generator) -> Matrix:
    """Draw word counts of texts with log-normal lengths, each a mixture of eight topics."""
    topics = rng.dirichlet(np.full(dim, 0.1), _TOPICS)
    mixtures = rng.dirichlet(np.full(_TOPICS, 0.3), n)
    lengths = _WORDS_A_TEXT * np.exp(rng.standard_normal((n, 1)))
    return rng.poisson(lengths * (mixtures @ topics)).astype(np.float64)


_FAMILIES = (
    Family("decay.8-60-50k", 50_000, 60, (2, 10), _decay),
    Family("spike-10-2k", 2_000, 10, (1,), _spike),
    Family("contam-iso-40-50k", 50_000, 40, (2,), _contaminated, _outlier_norm(40) / 2),
    Family("t3-40-50k", 50_000, 40, (1, 5), _student),
    Family("rank10-100-20k", 20_000, 100, (2, 10), _low_rank),
    Family("spike-1000-40k", 40_000, 1_000, (2,), _two_spikes),
    Family("poisson-200-30k", 30_000, 200, (2, 5), _counts),
)

FAMILIES: dict[str, Family] = {family.name: family for family in _FAMILIES}
"""Families by name."""
