"""Error bounds and standard errors of a release, due to its noise.

Functions of mechanism outputs and noise scales: post-processing. The noise is taken as Gaussian; the
lattice's law differs from it by an amount that calibration charges to delta. Scales and exact sums (their
clip, their basis) may depend on earlier outputs, and all statements are conditional on these. Neither may
depend on the noise itself. Proofs: docs/explanation/proofs/errors.md.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

Matrix = NDArray[np.float64]

FAILURE = 0.05
"""Failure probability of an angle bound, over the noise."""

_SAYS_NOTHING = math.pi / 2
_BURIED = 3.0  # a variance, over the noise of the whole mean, below which its direction may be that noise
_QUARTER_ARC = math.sqrt(math.pi / 2) * (math.pi / 2 + math.sqrt(2)) / (2 * math.pi)
"""E sup <g, e> over the unit vectors e of a quadrant of the plane: by its hull's perimeter (Cauchy)."""


def angle_bound_of_covariance(values: Matrix, k: int, sigma_diagonal: float, *, other: float = 0.0) -> float:
    """Bound the angle between a symmetric matrix's leading subspaces with and without noise.

    Returns radians: the largest principal angle is at most this. pi/2 carries no information.

    Parameters
    ----------
    values : (d,), all eigenvalues of the noisy matrix A = M + N + E, decreasing.
    k : dimension of the subspaces.
    sigma_diagonal : N is symmetric, Gaussian, isotropic in Frobenius norm: standard deviation s on the
        diagonal and s/sqrt(2) off it. Units of ``values``.
    other : bound on |E|_2, or on half the nuclear norm, of any further perturbation E, random or not.

    Notes
    -----
    With g = a_k - a_{k+1}, the *noisy* gap, and

        r = sqrt(2) s (E|g_{d-k}| + E|g_k| + 0.6 + sqrt(2 ln(1/0.05))) + 2 |E|_2,

    g_m standard normal in R^m (so E|g_m| <= sqrt(m)): the bound is arcsin(r/g)/2 where g > r, and pi/2
    otherwise. Proof: docs/explanation/proofs/errors.md, after [DavisKahan1970] and [AdlerTaylor2007].
    """
    d = len(values)
    if k == d:
        return 0.0
    gap = float(values[k - 1]) - float(values[k])
    width = _length(d - k) + _length(k) + _QUARTER_ARC + _tail(FAILURE)
    reach = math.sqrt(2) * sigma_diagonal * width + 2 * other
    # The comparison is false for NaNs and after overflow: then the bound is pi/2.
    return math.asin(reach / gap) / 2 if reach < gap < math.inf else _SAYS_NOTHING


def angle_bound_of_block(
    singular_values: Matrix, k: int, dim: int, sigma: float, *, other: float = 0.0
) -> float:
    """Bound the angle between a block's leading column spaces with and without noise.

    Returns radians: the largest principal angle between the spans of the k leading left singular vectors of B
    and of M is at most this. pi/2 carries no information.

    Parameters
    ----------
    singular_values : (L,), singular values of the noisy block B = M + Z, (d, L) with k <= L <= d, decreasing.
    k, dim : dimension of the subspaces, and d.
    sigma : s. Z has independent Gaussian entries of this standard deviation, or is the projection of such a
        matrix on a linear space, such as {Z : Q^T Z symmetric}. Units of ``singular_values``.
    other : bound on |E|_2, of any further perturbation E of B, random or not.

    Notes
    -----
    With b_i the singular values of B, t = sqrt(2 ln(1/0.05)) and t' = sqrt(2 ln(2/0.05)):
    L = k: arcsin((s (E|g_{d-k}| + E|g_k| + t) + |E|_2)/b_k).
    L > k: arcsin of (s (E|g_d| + E|g_L| + t') + |E|_2)/(b_k - b_{k+1} - s (2 E|g_{k+1}| + t') - |E|_2).
    pi/2 where the quotient is not below 1.
    Proof: docs/explanation/proofs/errors.md, after [Wedin1972] and [Anderson1955].
    """
    columns = len(singular_values)
    if k == dim:
        return 0.0
    if columns == k:
        noise = sigma * (_length(dim - k) + _length(k) + _tail(FAILURE)) + other
        gap = float(singular_values[k - 1])
    else:
        tail = _tail(FAILURE / 2)
        noise = sigma * (_length(dim) + _length(columns) + tail) + other
        above = float(singular_values[k - 1]) - float(singular_values[k])
        gap = above - sigma * (2 * _length(k + 1) + tail) - other
    return math.asin(noise / gap) if noise < gap < math.inf else _SAYS_NOTHING


def mean_noise_along(variances: Matrix, dim: int, noise: float | None) -> Matrix:
    """Return the amount that the noise of the mean adds to variances.

    ``noise`` is its variance in each coordinate. Where it is large, the mean's error is a separate
    direction, possibly a released one.
    """
    noise = noise or 0.0
    return np.asarray(noise * np.where(variances < _BURIED * dim * noise, dim, math.sqrt(dim)))


def explained_ratio(explained_variance: Matrix, total_variance: float) -> Matrix | None:
    """Compute shares of the total variance, for positive semidefinite records.

    They are at least 0, with a sum of at most 1: noise can put the variances above the
    total, and then their own sum is the divisor. None where all is 0 or overflowed.
    """
    with np.errstate(all="ignore"):
        whole = max(total_variance, float(np.sum(explained_variance)))
    return explained_variance / whole if 0 < whole < math.inf else None


def _length(m: int) -> float:
    """Compute E|g| of a standard normal vector of m numbers: at most sqrt(m)."""
    return math.sqrt(2) * math.exp(math.lgamma((m + 1) / 2) - math.lgamma(m / 2))


def _tail(failure: float) -> float:
    """Return t of the tail bound exp(-t^2/2) = failure of a Gaussian supremum."""
    return math.sqrt(2 * math.log(1 / failure))


def noise_lift(apart: float, square: float) -> float:
    """Estimate the part that noise has added to v^T S v, v an eigenvector.

    A true t becomes t + s^2/t, while v^T Sigma v is t - s^2/t. If no t gives ``apart``, all of it is noise.
    It lowers eigenvalues below the others (``apart`` < 0) by as much. ``square`` is s^2, the expected square
    of the noise's product with v.
    """
    inside = apart * apart - 4 * square
    if inside <= 0:
        return apart
    true = (apart + math.copysign(math.sqrt(inside), apart)) / 2
    return apart - true + square / true
