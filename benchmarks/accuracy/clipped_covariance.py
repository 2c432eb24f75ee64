"""Covariance of clipped vectors, and symmetric Gaussian noise of a stated scale, in floats.

For the methods that the library is compared with. Neither is a private release: sums are floats and
noise is numpy's.
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

    Radii that were asked for are kept: methods and seeds that share records share most of them.

    Parameters
    ----------
    records : (n, d) float32
        Centred.
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
        """Second moment (d, d) of records scaled down to ``squared_radius`` where they exceed it."""
        if squared_radius >= self.largest:
            return self.exact
        if squared_radius not in self._kept:
            while len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            self._kept[squared_radius] = clipped_mean_square(self.records, squared_radius)
        return self._kept[squared_radius]

    def quantile(self, share: float) -> float:
        """Exact quantile of the squared norms."""
        return float(np.quantile(self.squared_norms, share))

    def excess(self, squared_radius: float) -> float:
        """Sum over records of max(|x|^2 - squared_radius, 0): the trace that clipping removes."""
        return float(np.maximum(self.squared_norms - squared_radius, 0.0).sum())


def clipped_mean_square(records: Records, squared_radius: float, factor: Matrix | None = None) -> Matrix:
    """Return the (d, d) mean of y y^T for y = factor x, |y|^2 clipped.

    Parameters
    ----------
    records : (n, d) float32
    squared_radius : float
    factor : (d, d) float64 or None
        The identity by default.
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
    """Symmetric Gaussian matrix, isotropic in Frobenius norm.

    Standard deviation ``scale`` on the diagonal and ``scale``/sqrt(2) off it. That is Gaussian
    noise of ``scale`` in every direction of the symmetric matrices, so a matrix of Frobenius
    sensitivity D needs ``scale`` = D z, where a vector of sensitivity D needs noise D z. An upper
    triangle of equal standard deviations, as papers print it, has sqrt(2) times as much off the
    diagonal for the same privacy.
    """
    upper = np.triu(rng.standard_normal((dim, dim)), 1) / np.sqrt(2.0)
    return np.asarray(scale * (upper + upper.T + np.diag(rng.standard_normal(dim))))


def _squared_norms(rows: Matrix) -> Matrix:
    return np.asarray(np.einsum("ij,ij->i", rows, rows))


def _blocks(n: int) -> list[slice]:
    return [slice(first, min(first + _BLOCK, n)) for first in range(0, n, _BLOCK)]
