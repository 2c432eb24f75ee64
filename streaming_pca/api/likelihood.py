"""Gaussian model of probabilistic PCA, from released numbers alone."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from streaming_pca.data.projection import Projection

Matrix = NDArray[np.float64]


def noise_variance(
    variances: Matrix, dim: int, total: float | None, total_error: float | None
) -> float | None:
    """Estimate the mean variance of the d - k directions outside the components.

    It is 0 for k = d, and None without a total variance. Else it is (total - sum of variances)/(d - k), and
    at least total_error/(d - k), its own standard error: noise can make the rest smaller, even negative,
    and a density needs a variance above 0. Without an error the floor is 2**-52 of the largest variance.
    """
    left = dim - len(variances)
    if not left:
        return 0.0
    if total is None:
        return None
    with np.errstate(all="ignore"):
        rest = total - float(np.sum(variances))
        least = max(total_error or 0.0, left * np.finfo(np.float64).eps * float(np.max(variances)))
    return max(rest, least) / left


@dataclass(frozen=True, eq=False)
class GaussianModel:
    """Normal distribution of rows with a mean and the covariance of probabilistic PCA [TippingBishop1999].

    With D the factors of the features (``scale``), W the components, L their variances, each at
    least the noise variance s, the covariance of a row is D^-1 (W^T (L - s) W + s) D^-1.
    """

    projection: Projection
    """Its centre is the mean, 0 if None."""
    variances: Matrix
    """Explained variances, of the scaled features, (k,)."""
    noise: float
    """s: variance of every other direction; 0 for k = d."""

    @property
    def _along(self) -> Matrix:
        return np.maximum(self.variances, self.noise)

    @property
    def _factors(self) -> Matrix:
        scale: ArrayLike = 1.0 if self.projection.scale is None else self.projection.scale
        return np.broadcast_to(np.asarray(scale, dtype=np.float64), (self.projection.components.shape[1],))

    def covariance(self) -> Matrix:
        """Return the (d, d) covariance of rows, in their own units."""
        return self._about(self._along - self.noise, self.noise, 1 / self._factors)

    def precision(self) -> Matrix:
        """Return the (d, d) inverse of the covariance; ValueError if it is singular."""
        self._check()
        outside = 1 / self.noise if self.noise else 0.0
        return self._about(1 / self._along - outside, outside, self._factors)

    def log_likelihoods(self, rows: Matrix) -> Matrix:
        """Return the log-density in nats of each row (m, d), clamped to the bounds."""
        self._check()
        projection, along = self.projection, self._along
        k, d = projection.components.shape
        coordinates = projection.transform(rows)
        # Logarithms of a change of units: densities are those of rows, not of scaled rows.
        logarithms = np.log(along).sum() - 2 * np.log(self._factors).sum()
        with np.errstate(over="ignore", invalid="ignore"):
            squares = (coordinates**2 / along).sum(axis=1)
            if k < d:
                if projection.bounds is not None:
                    rows = np.clip(rows, *map(np.asarray, projection.bounds))
                rest = (rows - projection.inverse_transform(coordinates)) * self._factors
                squares += (rest**2).sum(axis=1) / self.noise
                logarithms += (d - k) * math.log(self.noise)
        return np.asarray(-0.5 * (squares + logarithms + d * math.log(2 * math.pi)))

    def _about(self, along: Matrix, outside: float, factors: Matrix) -> Matrix:
        components = self.projection.components
        matrix = (components.T * along) @ components
        matrix.flat[:: len(matrix) + 1] += outside
        return np.asarray(matrix * factors * factors[:, None])

    def _check(self) -> None:
        if not np.all(self._along > 0):
            count = int(np.count_nonzero(self._along > 0))
            raise ValueError(
                f"the covariance is singular: only {count} of its variances are above 0, "
                "the others are lost in the noise; fit fewer components, or with less noise"
            )
