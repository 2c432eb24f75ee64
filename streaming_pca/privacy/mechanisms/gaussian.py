"""Gaussian noise on exact integer sums, rounded to a grid (:mod:`~streaming_pca.privacy.noise`).

Rounding is post-processing, so the bounds of the continuous Gaussian mechanism hold
here. They rest on one number, D'^2, the sum over coordinates of (D_i/sigma_i)**2, D the
difference of two neighbouring sums: the privacy loss is normal with mean D'^2/2 and variance D'^2,
as of one Gaussian of multiplier 1/D' [BalleWang2018, Lemma 3]. Hence

- (epsilon, delta), by :func:`calibration.lattice_sigma`;
- rho-zCDP with rho = D'^2/2 [BunSteinke2016, Proposition 1.6].
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.errors import ParameterError, require_positive
from streaming_pca.privacy.randomness import noise_sampler


def require_integers(name: str, values: NDArray[np.int64]) -> None:
    """Refuse an array of anything but int64: the caller must round, and account for it."""
    if not isinstance(values, np.ndarray) or values.dtype != np.int64:
        kind = values.dtype if isinstance(values, np.ndarray) else type(values).__name__
        raise ParameterError(f"{name} must be an array of int64, not {kind}")


def gaussian_on_vector(total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
    """Add Gaussian noise to an integer vector.

    Parameters
    ----------
    total : int64 array of any shape, n values
        Exact sum, in lattice units.
    sigma : float
        Noise scale in lattice units, at most 2**57.

    Returns
    -------
    int64 array of the same shape, within 2**62 of 0
        Multiples of 2**:func:`~streaming_pca.privacy.noise.grid_exponent`, which is
        sigma 2**-26 or less where it is not 1.

    Notes
    -----
    Released: every coordinate plus an independent Gaussian, rounded. Adjacency:
    replace-one, under which neighbouring totals differ by at most D_2 in L2. All
    scales are sigma, so D' = D_2/sigma for every direction of the difference:
    (epsilon, delta) by :func:`calibration.lattice_sigma` for ``sensitivity =
    D_2``, and D_2**2/(2 sigma**2)-zCDP.

    Source: [BalleWang2018].
    """
    require_positive("sigma", sigma)
    require_integers("total", total)
    return noise_sampler().rounded_gaussian(total, sigma)


def gaussian_on_symmetric(total: NDArray[np.int64], sigma: float) -> NDArray[np.float64]:
    """Add Gaussian noise, isotropic in Frobenius norm, to a symmetric integer matrix.

    Parameters
    ----------
    total : (d, d) int64, symmetric
        Only the upper triangle is read.
    sigma : float
        Noise scale on the diagonal, in lattice units; sigma/sqrt(2) off it.

    Returns
    -------
    (d, d) float64, symmetric
        Integer values up to 2**62: float64 rounds them, after the noise.

    Notes
    -----
    Released: the d(d+1)/2 integers of the upper triangle, each plus an
    independent Gaussian, sigma_ii = sigma and sigma_ij = sigma/sqrt(2) (rounded
    up), and rounded. Adjacency: replace-one, under which neighbours differ by a
    symmetric D with |D|_F <= D_F.

    Noise N of these variances has density proportional to exp(-|N|_F^2/(2 sigma^2)), which is isotropic, so
    the privacy loss depends on |D|_F alone: D'^2 = sum D_ii^2/sigma^2 + sum_{i<j} 2 D_ij^2/sigma^2 =
    |D|_F^2/sigma^2. It costs as much as a vector of L2 sensitivity D_F: (epsilon, delta) by
    :func:`calibration.lattice_sigma` for ``sensitivity = D_F``, and rho = D_F^2/(2 sigma^2). Equal variances
    would spend the same and add up to twice the noise off the diagonal.

    Proof: docs/explanation/proofs/noise.md.

    Source: [DworkEtAl2014], with the variance off the diagonal corrected.
    """
    require_positive("sigma", sigma)
    require_integers("total", total)
    if total.ndim != 2 or total.shape[0] != total.shape[1] or not total.size:
        raise ParameterError(f"total must be a square matrix, not of shape {total.shape}")
    d = total.shape[0]
    upper = np.triu_indices(d, 1)
    off_scale = math.nextafter(sigma / math.sqrt(2), math.inf)
    noisy = np.zeros((d, d), dtype=np.float64)
    noisy[upper] = noise_sampler().rounded_gaussian(total[upper], off_scale)
    noisy.T[upper] = noisy[upper]
    np.fill_diagonal(noisy, noise_sampler().rounded_gaussian(np.diagonal(total), sigma))
    return noisy


def gaussian_on_symmetric_space(
    total: NDArray[np.int64], basis: NDArray[np.float64], sigma: float
) -> NDArray[np.float64]:
    """Add Gaussian noise to a product A Q and project on S_Q = {Y : Q^T Y symmetric}.

    Parameters
    ----------
    total : (d, k) int64
        Exact sum, in lattice units.
    basis : (d, k) float64
        Q, orthonormal columns; public, or an earlier output.
    sigma : float
        Noise scale of each of the d k integers, in lattice units.

    Returns
    -------
    (d, k) float64

    Notes
    -----
    Released: all d k integers, each plus an independent Gaussian of scale sigma,
    and rounded: S_Q is not a subspace of the lattice, so noise drawn inside it
    would leave float residue outside it without noise. Adjacency: replace-one, under
    which neighbours differ by at most D_F in Frobenius norm; all scales are
    equal, so D' = D_F/sigma in every direction, as for a vector: they cost
    (epsilon, delta) by :func:`calibration.lattice_sigma` for ``sensitivity =
    D_F``, and rho = D_F^2/(2 sigma^2). The
    projection is post-processing.

    After the projection the noise is isotropic on S_Q: variance sigma^2 along every unit direction, sigma^2/2
    off the diagonal of the Q-block. The papers' GOE has twice that there, at the same privacy.

    Proof: docs/explanation/proofs/noise.md.

    Source: [DunglerSanyal2026, Alg. 1], line 5, with the covariance corrected.
    """
    require_integers("total", total)
    if total.shape != basis.shape or total.ndim != 2:
        raise ParameterError(f"total {total.shape} and basis {basis.shape} must have one shape, (d, k)")
    noisy = gaussian_on_vector(total, sigma).astype(np.float64)
    inner = basis.T @ noisy
    return np.asarray(noisy - basis @ ((inner - inner.T) / 2))


# Messages about single records, in an order that stays secret: calibration.shuffling proves the gain.


def secret_permutation(places: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places in a uniformly random order, from the operating system's generator.

    The order is not an output: the caller must release only the messages sent in it, which
    :mod:`streaming_pca.privacy.calibration.shuffling` covers. Numbers that depend on the
    order in another way, exact or noisy, are not covered.
    """
    require_integers("places", places)
    if places.ndim != 1:
        raise ParameterError(f"places must be a vector, not of shape {places.shape}")
    return np.asarray(places[noise_sampler().permutation(places.size)])


def gaussian_on_message(contribution: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
    """Add Gaussian noise to one record's contribution (d,), in lattice units.

    Its norm is at most b. Released: every coordinate plus an independent Gaussian, rounded. Adjacency:
    replace-one; a record is in one message, and two contributions differ by at most 2 b
    in L2. A sequence of them about records in a secret uniform order, each contribution
    a function of its record and earlier messages, is (epsilon, delta)-private for
    ``sigma`` of :func:`~streaming_pca.privacy.calibration.shuffling.shuffled_sigma`. It is also
    (2 b)**2/(2 sigma**2)-zCDP, without the order's help: for each fixed order one message
    is of the differing record, and a mixture over orders has no larger Renyi divergence.
    """
    require_integers("contribution", contribution)
    return gaussian_on_vector(contribution, sigma)
