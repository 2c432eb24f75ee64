"""Every mechanism: the only code that adds noise.

A mechanism takes exact integers on a lattice and returns noisy integers on the
same lattice (as float64 where a projection follows). What happens after is
post-processing. Adjacency is replace-one throughout: one record of the input
is replaced by another, or by the null record.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.privacy.randomness import noise_door

__all__ = ["gaussian_on_symmetric", "gaussian_on_symmetric_space", "gaussian_on_vector", "private_quantile"]


def gaussian_on_vector(total: NDArray[np.int64], sigma: float) -> NDArray[np.int64]:
    """Lattice Gaussian mechanism on an integer vector.

    Parameters
    ----------
    total : (n,) int64
        Exact sum, in lattice units.
    sigma : float
        Noise scale in lattice units.

    Returns
    -------
    (n,) int64

    Notes
    -----
    Released: every coordinate plus an independent discrete Gaussian. If
    neighbouring totals differ by at most D in L2, this is what
    :func:`calibration.lattice_sigma` promises for ``sensitivity = D`` and n
    coordinates, and D**2/(2 sigma**2)-zCDP (Canonne, Kamath, Steinke 2020).
    """
    return total + noise_door().discrete_gaussian(total.size, sigma).reshape(total.shape)


def gaussian_on_symmetric(total: NDArray[np.int64], sigma: float) -> NDArray[np.float64]:
    """Lattice Gaussian mechanism on a symmetric integer matrix, isotropic in Frobenius norm.

    Parameters
    ----------
    total : (d, d) int64, symmetric
    sigma : float
        Noise scale on the diagonal, in lattice units; sigma/sqrt(2) off it.

    Returns
    -------
    (d, d) float64, symmetric
        Integer values up to 2**63: float64 rounds them, after the noise.

    Notes
    -----
    Released: the upper triangle. Two neighbours with |D|_F <= D_F differ by
    D_ii on the diagonal and D_ij above it; the exponent of the likelihood ratio
    weighs them as sum D_ii^2/sigma^2 + sum_{i<j} D_ij^2/(sigma^2/2) =
    |D|_F^2/sigma^2. So it costs what a Gaussian of scale sigma on a vector of
    sensitivity D_F costs: rho = D_F^2/(2 sigma^2). For
    :func:`calibration.lattice_sigma`, the sum of (sigma/sigma_i)^2 is
    d + 2 d(d-1)/2 = d^2.
    """
    d = total.shape[0]
    noise = np.zeros((d, d), dtype=np.float64)
    door = noise_door()
    upper = np.triu_indices(d, 1)
    off = door.discrete_gaussian(upper[0].size, sigma / math.sqrt(2)) if d > 1 else np.zeros(0, np.int64)
    noisy = (total[upper] + off).astype(np.float64)
    noise[upper] = noisy
    noise.T[upper] = noisy
    np.fill_diagonal(noise, (np.diagonal(total) + door.discrete_gaussian(d, sigma)).astype(np.float64))
    return noise


def gaussian_on_symmetric_space(
    total: NDArray[np.int64], basis: NDArray[np.float64], sigma: float
) -> NDArray[np.float64]:
    """Lattice Gaussian mechanism for A Q, projected on S_Q = {Y : Q^T Y symmetric}.

    Parameters
    ----------
    total : (d, k) int64
        Exact sum, in lattice units.
    basis : (d, k) float64
        Q, orthonormal columns.
    sigma : float
        Noise scale of each of the d k integers, in lattice units.

    Returns
    -------
    (d, k) float64

    Notes
    -----
    Released: all d k integers, each plus an independent discrete Gaussian:
    S_Q is not a subspace of the lattice, so noise drawn inside it would leave
    float residue outside it bare. The projection is post-processing, and the
    projected noise is isotropic on S_Q: variance sigma^2 on the diagonal of
    Q^T Y and sigma^2/2 off it, half of what the papers' GOE has there, at the
    same privacy (the likelihood ratio only sees the distance of the sums).
    """
    noisy = gaussian_on_vector(total.ravel(), sigma).reshape(total.shape).astype(np.float64)
    inner = basis.T @ noisy
    return np.asarray(noisy - basis @ ((inner - inner.T) / 2))


def private_quantile(
    values: NDArray[np.float64],
    candidates: NDArray[np.float64],
    quantile: float,
    epsilon: float,
) -> float:
    """Exponential mechanism for a quantile, over fixed candidates.

    Parameters
    ----------
    values : (m,) float64
        One number a record, each a function of that record alone.
    candidates : (c,) float64, increasing, public
    quantile : float in (0, 1)
    epsilon : float

    Returns
    -------
    float
        One of the candidates.

    Notes
    -----
    Released: the candidate c whose score -|#{values <= c} - ceil(quantile m)|
    is largest after noise. Replacing one record moves every count by at most
    1 and m not at all, so each integer score has sensitivity 1, and
    permute-and-flip with exponential noise of scale 2/epsilon is epsilon-DP
    (McKenna and Sheldon 2020). Scores are integers and the sampler is OpenDP's,
    so floating point leaks nothing. NaN counts as above every candidate.
    """
    target = math.ceil(quantile * values.size)
    counts = np.searchsorted(np.sort(values), candidates, side="right").astype(np.int64)
    scores = -np.abs(counts - target)
    # A float epsilon may lie an ulp above the decimal that is charged.
    scale = 2 / epsilon * (1 + 1e-12)
    return float(candidates[noise_door().noisy_max(scores, scale)])
