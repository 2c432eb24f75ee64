"""Covariance of clipped vectors, and symmetric Gaussian noise of a given scale, in floats.

The methods that this library is compared with use them. Neither is a private release: sums are floats, and
the noise comes from numpy.
"""

from __future__ import annotations

import functools

import numpy as np
from numpy.typing import NDArray

__all__ = ["ClippedCovariance", "clipped_mean_square", "symmetric_noise"]

Matrix = NDArray[np.float64]
Records = NDArray[np.float32]

_BLOCK = 2**13
_KEPT = 64


class ClippedCovariance:
    """Second moment of records whose squared norms are clipped, at any radius.

    Results are cached by radius: methods and seeds that share records use mostly the same radii.

    Parameters
    ----------
    records : (n, d) float32
        Centred records.
    """

    def __init__(self, records: Records) -> None:
        self.records = records
        self.n, self.dim = records.shape
        self._kept: dict[float, Matrix] = {}

    @functools.cached_property
    def squared_norms(self) -> Matrix:
        """Squared norms (n,) of the records."""
        blocks = (self.records[rows].astype(np.float64) for rows in _blocks(self.n))
        return np.concatenate([_squared_norms(block) for block in blocks])

    @functools.cached_property
    def largest(self) -> float:
        """Largest squared norm."""
        return float(self.squared_norms.max())

    @functools.cached_property
    def exact(self) -> Matrix:
        """Second moment without clipping, (d, d)."""
        return clipped_mean_square(self.records, np.inf)

    @functools.cached_property
    def largest_eigenvalue(self) -> float:
        """Largest eigenvalue of the exact second moment."""
        return float(np.linalg.eigvalsh(self.exact)[-1])

    def at(self, squared_radius: float) -> Matrix:
        """Return the second moment (d, d) of records clipped to ``squared_radius``."""
        if squared_radius >= self.largest:
            return self.exact
        if squared_radius not in self._kept:
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[squared_radius] = clipped_mean_square(self.records, squared_radius)
        return self._kept[squared_radius]

    def quantile(self, share: float) -> float:
        """Return an exact quantile of the squared norms."""
        return float(np.quantile(self.squared_norms, share))

    def excess(self, squared_radius: float) -> float:
        """Return the trace that clipping removes: the sum of max(|x|^2 - squared_radius, 0)."""
        return float(np.maximum(self.squared_norms - squared_radius, 0.0).sum())


def clipped_mean_square(records: Records, squared_radius: float, factor: Matrix | None = None) -> Matrix:
    """Return the (d, d) mean of y y^T for y = factor x, |y|^2 clipped.

    Parameters
    ----------
    records : (n, d) float32
    squared_radius : float
    factor : (d, d) float64 or None
        None means the identity.
    """
    n, dim = records.shape
    total = np.zeros((dim, dim))
    for rows in _blocks(n):
        block = records[rows].astype(np.float64)
        if factor is not None:
            block = block @ factor.T
        if squared_radius < np.inf:
            norms = _squared_norms(block)
            large = norms > squared_radius
            block[large] *= np.sqrt(squared_radius / norms[large])[:, None]
        total += block.T @ block
    moment: Matrix = total / n
    return moment


def symmetric_noise(dim: int, scale: float, rng: np.random.Generator) -> Matrix:
    """Draw a symmetric Gaussian matrix, isotropic in Frobenius norm.

    The standard deviation is ``scale`` on the diagonal and ``scale``/sqrt(2) off it. This is Gaussian noise
    of ``scale`` in every direction of the space of symmetric matrices. Therefore a matrix of Frobenius
    sensitivity D needs ``scale`` = D z if a vector of sensitivity D needs noise D z. An upper triangle with
    equal standard deviations, as in papers, has sqrt(2) times as much noise off the diagonal for the same
    privacy.
    """
    upper = np.triu(rng.standard_normal((dim, dim)), 1) / np.sqrt(2.0)
    return np.asarray(scale * (upper + upper.T + np.diag(rng.standard_normal(dim))))


def _squared_norms(rows: Matrix) -> Matrix:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _blocks(n: int) -> list[slice]:
    return [slice(first, min(first + _BLOCK, n)) for first in range(0, n, _BLOCK)]
