"""Published private methods for the covariance of vectors, and an oracle, at one (epsilon, delta).

They are implemented from their papers, with floats and numpy's noise: for comparison, not for release.
Neighbours differ by the replacement of one record. Then a mean of x x^T over n records with |x|^2 <= R
changes by at most sqrt(2) R/n in Frobenius norm, since |x x^T - y y^T|_F^2 = |x|^4 + |y|^4 - 2 (x.y)^2.

All choices favour these methods: they receive the exact largest norm as the public radius, the exact largest
eigenvalue if they need a Loewner bound, exactly isotropic noise on matrices
(:func:`benchmarks.accuracy.clipped_covariance.symmetric_noise`), and choices made in hindsight. Methods with
only Gaussian noise are composed exactly: k of them with shares s_i of mu^2, which sum to 1, are
(epsilon, delta)-private with mu = 1/z, where z is the analytic Gaussian mechanism's multiplier
[BalleWang2018; DongRothSu2022].

References
----------
[BiswasEtAl2020], CoinPress: practical private mean and covariance estimation.
[DongLiangYi2022], Differentially private covariance revisited.
[DworkEtAl2014], Analyze Gauss.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from benchmarks.accuracy.clipped_covariance import ClippedCovariance, clipped_mean_square, symmetric_noise
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.privacy.calibration.multipliers import gaussian_multiplier, greatest_rho

__all__ = [
    "COINPRESS_SHARES",
    "ORACLE",
    "ORACLE_QUANTILES",
    "PEERS",
    "adaptive_cov",
    "coinpress",
    "largest_norm",
    "oracle",
    "separate_cov",
]

Matrix = NDArray[np.float64]
Variants = dict[float | None, Matrix]

ORACLE_QUANTILES = (0.5, 0.9, 0.99, 0.997, 0.999, 0.9999)
"""Clip quantiles of |x|^2 for the oracle's choice in hindsight."""

COINPRESS_SHARES = {1: (1.0,), 2: (1 / 4, 3 / 4), 3: (1 / 8, 1 / 8, 3 / 4)}
"""Share of the privacy budget of each step, by the number of steps t, as in the authors' experiments."""

_COINPRESS_TAIL = 0.1
"""Probability that a standard Gaussian's norm exceeds the clip, as in the authors' experiments."""

_FAILURE = 0.1
"""AdaptiveCov's failure probability beta for its bounds on noise."""

_DEEPEST = 40
"""AdaptiveCov tries radii down to 2^-40 of the largest norm."""

_STREAM = 3


def largest_norm(covariance: ClippedCovariance, k: int, epsilon: float, delta: float, seed: int) -> Variants:
    """Return components of one noisy covariance, clipped at the exact largest norm."""
    multiplier = gaussian_multiplier(epsilon, delta)
    moment = _noisy(covariance, covariance.largest, multiplier, _generator(seed, 0))
    return {None: _leading(moment, k)}


def oracle(covariance: ClippedCovariance, k: int, epsilon: float, delta: float, seed: int) -> Variants:
    """Return components of one noisy covariance, for each clip quantile of the squared norms.

    This is not private: the exact radius costs no budget, and the reader chooses the best quantile. All
    quantiles have the same standard noise.
    """
    multiplier = gaussian_multiplier(epsilon, delta)
    return {
        share: _leading(_noisy(covariance, covariance.quantile(share), multiplier, _generator(seed, 1)), k)
        for share in ORACLE_QUANTILES
    }


def _noisy(
    covariance: ClippedCovariance, squared_radius: float, multiplier: float, rng: np.random.Generator
) -> Matrix:
    """Return the clipped second moment with noise of ``multiplier`` times its sensitivity."""
    scale = math.sqrt(2) * squared_radius / covariance.n * multiplier
    return covariance.at(squared_radius) + symmetric_noise(covariance.dim, scale, rng)


def coinpress(covariance: ClippedCovariance, k: int, epsilon: float, delta: float, seed: int) -> Variants:
    """Return components of CoinPress's covariance, for each number of steps t.

    Each step whitens by the known bound (initially: the covariance is below lambda_1 I), clips at a norm
    that few Gaussian records exceed, and releases the second moment. As in the authors' experiments, the
    bound for whitening omits the noise's spectral norm; the constants are also theirs. All steps are
    composed exactly.
    """
    return {
        float(t): _leading(_coinpress(covariance, shares, epsilon, delta, _generator(seed, 1 + t)), k)
        for t, shares in COINPRESS_SHARES.items()
    }


def _coinpress(
    covariance: ClippedCovariance,
    shares: tuple[float, ...],
    epsilon: float,
    delta: float,
    rng: np.random.Generator,
) -> Matrix:
    n, dim = covariance.n, covariance.dim
    multiplier = gaussian_multiplier(epsilon, delta)
    squared_clip = _gaussian_tail(dim, _COINPRESS_TAIL) ** 2
    ratio = math.sqrt(dim / n)
    sampling = 0.5 * (2 * ratio + ratio**2)
    known = covariance.largest_eigenvalue
    whiten = np.eye(dim) / math.sqrt(known)
    colour = np.eye(dim) * math.sqrt(known)
    for step, share in enumerate(shares):
        if step == 0:
            # Records are not whitened yet, only scaled: the clip is a plain radius.
            moment = covariance.at(squared_clip * known) / known
        else:
            moment = clipped_mean_square(covariance.records, squared_clip, whiten)
        scale = math.sqrt(2) * squared_clip / n * multiplier / math.sqrt(share)
        values, vectors = np.linalg.eigh(moment + symmetric_noise(dim, scale, rng))
        values = np.maximum(values, 0.0)
        if step == len(shares) - 1:
            break
        bound = np.sqrt(values + sampling)
        whiten = (vectors / bound) @ vectors.T @ whiten
        colour = colour @ (vectors * bound) @ vectors.T
    return np.asarray(colour @ (vectors * values) @ vectors.T @ colour.T)


def separate_cov(covariance: ClippedCovariance, k: int, epsilon: float, delta: float, seed: int) -> Variants:
    """Return components of SeparateCov: noisy eigenvectors, noisy eigenvalues, half of mu^2 each."""
    multiplier = gaussian_multiplier(epsilon, delta) * math.sqrt(2)
    moment = _separate(covariance, covariance.largest, multiplier, _generator(seed, 5))
    return {None: _leading(moment, k)}


def _separate(
    covariance: ClippedCovariance, squared_radius: float, multiplier: float, rng: np.random.Generator
) -> Matrix:
    """Combine a noisy second moment's eigenvectors with separately noisy eigenvalues.

    Sorted eigenvalues change by at most the matrix's change in Frobenius norm (Hoffman and Wielandt).
    """
    vectors = np.linalg.eigh(_noisy(covariance, squared_radius, multiplier, rng))[1]
    scale = math.sqrt(2) * squared_radius / covariance.n * multiplier
    values = np.linalg.eigvalsh(covariance.at(squared_radius)) + scale * rng.standard_normal(covariance.dim)
    return np.asarray((vectors * np.clip(values, 0.0, squared_radius)) @ vectors.T)


def adaptive_cov(covariance: ClippedCovariance, k: int, epsilon: float, delta: float, seed: int) -> Variants:
    """Return components of AdaptiveCov: sparse-vector search for a radius, then the better mechanism.

    The search halves the radius while the trace that clipping removes, at most the bias, is below the noise
    bound. It uses the exact trace, which the paper bounds by counts in dyadic shells. The noise bounds are
    those of isotropic noise: sharper, because the noise is smaller.
    """
    moment = _adaptive(covariance, greatest_rho(epsilon, delta), _generator(seed, 6))
    return {None: _leading(moment, k)}


def _adaptive(covariance: ClippedCovariance, rho: float, rng: np.random.Generator) -> Matrix:
    """Return a second moment under rho-zCDP.

    The trace and the search each cost an eighth of rho, the release the rest. The trace has sensitivity 1/n
    and noise 2/(n sqrt(rho)), so it costs rho/8; the search also does, with pure epsilon sqrt(rho)/2. Units
    are the largest norm, so that records are in the unit ball.
    """
    n, dim, largest = covariance.n, covariance.dim, covariance.largest
    trace = float(covariance.squared_norms.mean()) / largest
    trace += (2 * rng.standard_normal() + math.sqrt(8 * math.log(8 / _FAILURE))) / (math.sqrt(rho) * n)
    trace = min(max(trace, 1e-16), 1.0)
    rest = 0.75 * rho

    def bounds(squared_radius: float) -> tuple[float, float]:
        """Return high-probability Frobenius errors of one noisy covariance and of SeparateCov."""
        beta = 0.75 * _FAILURE
        sensitivity = math.sqrt(2) * squared_radius / n
        joint = sensitivity / math.sqrt(2 * rest) * _frobenius_tail(dim, beta)
        # Eigenvectors and eigenvalues each get half of the budget.
        spectral = sensitivity / math.sqrt(rest) * _spectral_tail(dim, beta / 2)
        values = sensitivity / math.sqrt(rest) * _gaussian_tail(dim, beta / 2)
        return joint, 2 * math.sqrt(trace * spectral) + values

    search = math.sqrt(rho) / 2
    threshold = rng.laplace(scale=2 / search)
    depth = 0
    while depth < _DEEPEST:
        smaller = 4.0 ** -(depth + 1)
        # Replacing one record changes the first term by at most 1; the second is already public.
        gap = covariance.excess(smaller * largest) / largest - n * min(bounds(smaller))
        if gap + rng.laplace(scale=4 / search) >= threshold:
            break
        depth += 1
    radius = 4.0**-depth
    joint, separate = bounds(radius)
    if joint <= separate:
        return _noisy(covariance, radius * largest, 1 / math.sqrt(2 * rest), rng)
    return _separate(covariance, radius * largest, 1 / math.sqrt(rest), rng)


def _gaussian_tail(dim: int, beta: float) -> float:
    """Return a norm that a standard Gaussian vector exceeds with probability at most beta.

    The bound is by Laurent and Massart.
    """
    log = math.log(1 / beta)
    return math.sqrt(dim + 2 * math.sqrt(dim * log) + 2 * log)


def _frobenius_tail(dim: int, beta: float) -> float:
    """Return the same bound for the Frobenius norm of :func:`symmetric_noise` of scale 1."""
    return _gaussian_tail(dim * (dim + 1) // 2, beta)


def _spectral_tail(dim: int, beta: float) -> float:
    """Return the same bound for its spectral norm.

    The mean of the spectral norm is at most sqrt(2 d), and it is 1-Lipschitz.
    """
    return math.sqrt(2 * dim) + math.sqrt(2 * math.log(1 / beta))


def _leading(moment: Matrix, k: int) -> Matrix:
    return np.ascontiguousarray(ritz_pairs(moment, k)[1].T)


def _generator(seed: int, method: int) -> np.random.Generator:
    """Return a method's noise generator.

    Its stream differs from those of the settings' records and of the library's basis.
    """
    return np.random.default_rng([seed, _STREAM, method])


Peer = Callable[[ClippedCovariance, int, float, float, int], Variants]

PEERS: dict[str, Peer] = {
    "coinpress": coinpress,
    "adaptive-cov": adaptive_cov,
    "separate-cov": separate_cov,
    "largest-norm": largest_norm,
}
"""Private methods by name; each returns components (k, d), by a parameter to choose in hindsight or None."""

ORACLE = "oracle"
"""Name of :func:`oracle`, which is not private."""
