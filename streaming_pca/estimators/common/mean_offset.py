"""Mean of a stream, away from the centres of its sums: corrections and their errors, by post-processing.

A batch's sum of (x-a)(x-a)^T, over n, exceeds its covariance by (m-a)(m-a)^T, m its mean. A centre near each
batch's own mean keeps records small, so that clips change little. With q = a-c and f = m-a,

    (m-c)(m-c)^T - (m-a)(m-a)^T = q q^T + q f^T + f q^T

carries it to one centre c for all batches. Their average exceeds the covariance about the mean of all by
w w^T, w = mean-c, if both have the same weights. Centres and means are noisy outputs. With errors e_t of the
means, of weights u_t, both steps together are off by sum u_t ((q_t-w) e_t^T + e_t (q_t-w)^T) and the outer
product of the mean's error. See docs/explanation/default-estimator.md ("Streams").

Means are of clipped records: their bias is b = E x(1-R/|x|)+, for x about the centre. So b b^T is at most
E (1-R/|x|)+^2 times E x x^T (Cauchy-Schwarz): this share of each variance is in the errors.

A centre is subtracted from each of a record's r rows, so that all of these products count r times.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.common.error_bounds import mean_noise_along

Vector = NDArray[np.float64]
Matrix = NDArray[np.float64]

_RARE = 4.0
"""Deviations beyond sqrt(d) that the norm of d standard normals exceeds with probability e^-8 at most."""
_SHARP = 1.5  # standard errors in the bound on a clip's bias, which one far cluster attains


def outer_product(vector: Vector, basis: Matrix) -> Matrix:
    """Return w w^T Q, for w and the columns of a (d, L) basis Q."""
    return np.outer(vector, vector @ basis)


@dataclass(frozen=True)
class MeanOffset:
    """Offset w of the mean from the centre of all sums, in scaled units."""

    vector: Vector  # (d,) w; zeros where no mean is known
    noise: float = 0.0  # variance of the mean's error in each coordinate
    spread: float = 0.0  # sum of u_t^2 v_t |q_t-w|^2, v_t the variance of each coordinate of e_t
    scatter: float = 0.0  # variance of the batches' means, all directions together
    radius: float = 0.0  # clip radius of the last mean; 0 without one

    def of_rows(self, rows: float) -> MeanOffset:
        """Return it for records of this number of rows."""
        root, sums = math.sqrt(rows), (rows * self.noise, rows**2 * self.spread, rows * self.scatter)
        return MeanOffset(root * self.vector, *sums, root * self.radius)

    @classmethod
    def between(
        cls, mean: Vector, centre: Vector, noise: float, paths: tuple[float, Vector | None] = (0.0, None)
    ) -> MeanOffset:
        """Return the offset of a mean from a centre; zeros after overflow.

        ``paths`` holds the sums of u_t^2 v_t |q_t|^2 and of u_t^2 v_t q_t; None for zeros.
        """
        with np.errstate(all="ignore"):
            vector = mean - centre
            square = float(vector @ vector)
            across = 0.0 if paths[1] is None else float(paths[1] @ vector)
            spread = max(paths[0] - 2 * across + square * noise, 0.0)
        if not (math.isfinite(square) and math.isfinite(spread)):
            return cls(np.zeros(len(centre)), noise)
        return cls(vector, noise, spread)

    def with_noise(self, noise: float) -> MeanOffset:
        """Return it with the errors of a mean of other weights, if these are larger."""
        if not noise > self.noise:
            return self
        spread = self.spread * noise / self.noise if self.noise else noise * self.square
        return replace(self, noise=noise, spread=spread)

    @property
    def square(self) -> float:
        """Squared length of w, the excess of the total."""
        return float(self.vector @ self.vector)

    def along(self, directions: Matrix) -> Vector:
        """Return (v^T w)^2 for each row v of (k, d)."""
        return np.asarray(directions @ self.vector) ** 2

    def errors(self, variances: Vector, cut: float) -> Vector:
        """Return the standard errors that the means' errors add to variances; ``cut`` bounds a part."""
        along = mean_noise_along(variances, len(self.vector), self.noise)
        return np.hypot(np.hypot(along, 2 * math.sqrt(self.spread)), cut * variances / _SHARP)

    def total_error(self, total: float, cut: float) -> float:
        """Return the standard error that the means' errors add to the total variance."""
        return math.hypot(len(self.vector) * self.noise, 2 * math.sqrt(self.spread), cut * total / _SHARP)

    @property
    def reach(self) -> float:
        """Bound on half the nuclear norm of the means' errors in the covariance.

        It fails with probability e^-8 at most if all q_t-w are parallel, else to first order.
        """
        length = math.sqrt(len(self.vector)) + _RARE
        return length * (math.sqrt(self.spread) + length * self.noise)

    def draw_error(self, rng: np.random.Generator) -> Matrix:
        """Draw the means' errors in the covariance, (d, d), all q_t-w in a random direction."""
        error, way = rng.standard_normal((2, len(self.vector)))
        across = np.outer(way, error) * math.sqrt(self.spread / max(float(way @ way), 1e-300))
        return self.noise * np.outer(error, error) + across + across.T


@dataclass(frozen=True)
class MeanShift:
    """Shift of a batch's sum to the centre of all sums, in scaled units."""

    moved: Vector
    """(d,) q, from c to the centre of this batch's sum; zeros where these are one, such as a public one."""
    step: Vector  # (d,) f, from there to this batch's mean, as measured
    before: Vector  # (d,) offset of the earlier batches' mean from c
    noise: float = 0.0  # variance of each coordinate of this batch's mean
    rows: float = 1.0
    """Number of rows of a record; vectors and radius have its root as a factor, the variance itself."""
    radius: float = 0.0  # clip radius of this batch's mean; 0 without one

    def of_rows(self, rows: float) -> MeanShift:
        """Return it for records of this number of rows."""
        moved, step, before = (math.sqrt(rows) * each for each in (self.moved, self.step, self.before))
        return MeanShift(moved, step, before, rows * self.noise, rows, math.sqrt(rows) * self.radius)

    def excess(self, basis: Matrix) -> Matrix:
        """Return the excess of the product with a (d, L) basis: (q q^T + q f^T + f q^T) Q."""
        both = self.moved + self.step
        return np.outer(self.moved, both @ basis) + np.outer(self.step, self.moved @ basis)

    def along(self, directions: Matrix) -> Vector:
        """Return the excess along each row of (k, d)."""
        moved = directions @ self.moved
        return np.asarray(moved * (moved + 2 * (directions @ self.step)))

    @property
    def total(self) -> float:
        """Excess of the total."""
        return float(self.moved @ (self.moved + 2 * self.step))

    def after(self, gain: float, before: Vector) -> Vector:
        """Return the mean's offset from c, ``before`` without this batch, with it at this weight."""
        return before + gain * (self.moved + self.step - before)


def turn_by_clip(cut: float, values: Vector, k: int) -> float:
    """Bound the turn of k leading directions by the bias of a clipped mean: radians.

    ``values`` are eigenvalues, decreasing. The bias b turns by at most |P b| |(1-P) b|, P their projection:
    at most ``cut`` sqrt(l_1 l_{k+1}), by b b^T <= cut E x x^T; over the gap it bounds the sine
    [DavisKahan1970]. The same holds for a clipped block, with the root of that share.
    """
    if not cut or k >= len(values):
        return 0.0
    across = cut * math.sqrt(max(float(values[0]), 0.0) * max(float(values[k]), 0.0))
    gap = float(values[k - 1] - values[k])
    return math.asin(across / gap) if across < gap < math.inf else math.pi / 2
