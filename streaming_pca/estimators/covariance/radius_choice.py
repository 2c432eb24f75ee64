"""Choice of the clip radius: noise and bias of the leading subspace at every radius.

All of it is post-processing of noisy second moments with noise of a known law. Errors are
squares of |U U^T - V V^T|_F. *Noise* is the disagreement of simulated pairs S_l + N, S_l - N.
*Bias* is the distance from the subspaces at larger radii, beyond a simulated null of noise
alone, and its extrapolation. The radius with the smallest sum is chosen
[GoldenshlugerLepski2011]. Formulas: docs/explanation/default-estimator.md ("The radius").
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import scipy
from numpy.typing import NDArray

from streaming_pca.linalg.subspace import fixed_signs
from streaming_pca.privacy.randomness import utility_generator

Matrix = NDArray[np.float64]

# Tuned on synthetic and public data (docs/explanation/default-estimator.md, "Constants").
READABLE = 0.35
"""Least agreement for a radius to judge smaller ones: trades visible bias against judging by noise."""
ONCE = 1.5
"""Standard deviations that count as bias for a single look: trades missed bias against false alarms."""
FALL = 1.5
"""Power of the excess in the fall of unseen bias from one radius to the next."""
_SAMPLE, _HEAVIEST = 2.0, 1.0
"""Factor of the first-order bias of a sample; largest value of E ((norm - R)+)^2 over the squared total.
With heavier tails a sample's own covariance is unreliable, and clipping removes its worst part."""
_APART = 8.0
"""Deviations of two subspaces' squared distance, beyond the effect of their noise, that count as bias."""
_PAYS = 0.97  # squared error after a change of radius, over the present one's, below which the change pays
_REPEATS, _FEW_REPEATS, _WIDE = 16, 8, 100
"""Simulated draws, draws above ``_WIDE`` features, and that dimension: trades precision against time."""
_STEPS, _GUARDS = 6, 4  # steps of the subspace iteration, and its columns beyond the rank
_WHOLE = 40  # largest dimension whose eigenvectors are all computed by one decomposition


@dataclass(frozen=True)
class Reading:
    """Noise, bias and denoised spectrum at each radius."""

    noise: Matrix  # (l,) expected squares of the error |U U^T - V V^T|_F from noise
    bias: Matrix  # (l,) expected squares of the error from clipping
    agreement: Matrix  # (l,) agreement, 0 to 1, of the leading subspaces of two estimates of twice the noise
    eigenvectors: Matrix  # (l, d, d) eigenvectors of the moments, leading first
    values: Matrix  # (l, d) eigenvalues less the noise's contribution; 0 where they do not rise above it
    level: Matrix  # (l,) median eigenvalue, the origin of values
    own: Matrix  # (l,) expected squares of the errors of these moments themselves

    @property
    def best(self) -> int:
        """Index of the radius with the smallest sum of noise and bias."""
        return int(np.argmin(self.noise + self.bias))

    def choice(self, present: int | None) -> int:
        """Return the best radius, or the present one where that is nearly as good."""
        both = self.noise + self.bias
        if present is not None and both[present] * _PAYS <= both[self.best]:
            return present
        return self.best

    @property
    def least(self) -> float:
        """Smallest sum of noise and bias."""
        return float((self.noise + self.bias).min())

    def apart(self, leading: Matrix, own: float, first: int) -> float:
        """Return the squared distance of a subspace from those at larger radii, beyond their noise.

        ``leading`` is (d, k) and has an expected squared error of ``own``, independent of these. Radii
        below ``first``, and unreadable radii, are not compared.
        """
        d, k = leading.shape
        allowed, beyond = 1 + _APART * math.sqrt(2 / max(k * (d - k), 1)), 0.0
        for m in np.flatnonzero((self.agreement >= READABLE) & self.resolved(k)):
            if m >= first:
                found = 2 * k - 2 * float(np.sum((self.eigenvectors[m][:, :k].T @ leading) ** 2))
                beyond = max(beyond, found - allowed * (own + float(self.own[m])))
        return beyond

    def resolved(self, k: int) -> NDArray[np.bool_]:
        """Return the mask of radii whose k-th eigenvalue rises above the noise."""
        return self.values[:, k - 1] > 0


def symmetric_noise(rng: np.random.Generator, count: int, dim: int) -> Matrix:
    """Draw (count, d, d) symmetric Gaussians. Variances: 1 on the diagonal, 1/2 off it."""
    drawn = rng.standard_normal((count, dim, dim))
    noise = (drawn + drawn.swapaxes(1, 2)) / 2
    diagonal = np.arange(dim)
    # The diagonal's mean of two equal draws has variance 1 already.
    noise[:, diagonal, diagonal] = drawn[:, diagonal, diagonal]
    return noise


def leading_subspaces(matrices: Matrix, k: int, starts: Matrix) -> Matrix:
    """Compute (m, d, k) leading eigenvectors of symmetric (m, d, d) matrices by subspace iteration.

    It starts from nearby orthonormal columns, (m, d, k + some).
    """
    d = matrices.shape[-1]
    if d <= _WHOLE:
        return np.asarray(np.linalg.eigh(matrices)[1][..., ::-1][..., :k])
    # With this shift the largest eigenvalues are the largest in absolute value too.
    shift = np.sqrt((matrices * matrices).sum(axis=(1, 2)) / d)[:, None, None]
    columns = starts
    for _ in range(_STEPS):
        columns = np.linalg.qr(matrices @ columns + shift * columns)[0]
    inner = columns.swapaxes(1, 2) @ (matrices @ columns)
    turn = np.linalg.eigh(inner)[1][..., ::-1][..., :k]
    return np.asarray(columns @ turn)


def read_radii(
    moments: Matrix,
    noise: Matrix,
    weights: Matrix,
    k: int,
    final_variance: Matrix,
    excess: Matrix,
    squared_excess: Matrix,
    count: float,
    deviations: float,
) -> Reading:
    """Estimate noise and bias at every radius.

    Parameters
    ----------
    moments : (l, d, d), noisy second moments, by increasing radius.
    noise : (l, l), covariance of the noise on their diagonals.
    weights : (d,), the noise of entry ij has sqrt(w_i w_j) times the deviation.
    final_variance : (l,), variance on the diagonal after all records to come.
    excess, squared_excess : (l,), E (norm - R)+ and E ((norm - R)+)^2.
    count : records, including records to come.
    deviations : standard deviations above the null that make a distance count as bias.
    """
    radii, d = len(moments), moments.shape[-1]
    pairs = [scipy.linalg.eigh(moment, check_finite=False) for moment in moments]
    # Later records are measured in these directions: other signs would make the same noise turn others.
    vectors = fixed_signs(np.stack([v[:, ::-1] for _, v in pairs]))
    raw = np.stack([w[::-1] for w, _ in pairs])
    level = np.median(raw, axis=1) if d > 4 else np.zeros(radii)
    spread = np.sqrt(np.diagonal(noise) / 2)
    along = np.einsum("lij,i->lj", vectors**2, weights)
    edges = 4 * spread[:, None] ** 2 * along * along.sum(axis=1, keepdims=True)
    apart = raw - level[:, None]
    inside = np.sqrt(np.maximum(apart**2 - edges, 0.0))
    values = np.where(apart**2 > edges, np.sign(apart) * (np.abs(apart) + inside) / 2, 0.0)
    random = 2 * k * (1 - k / d)
    if k >= d:
        nothing = np.zeros(radii)
        return Reading(nothing, nothing, np.ones(radii), vectors, values, level, nothing)
    simulated = _Simulation(moments, noise, weights, k, vectors, values)
    # Each direction has its own agreement, as losing one does not imply losing the others.
    lost = 1 - np.sqrt(np.clip(simulated.agreements, 1e-4, 1 - 1e-12))

    def squares(variances: Matrix) -> Matrix:
        ratios = lost / (1 - lost) * (variances / (2 * np.diagonal(noise)))[:, None]
        return np.asarray(2 * (1 - k / d) * (ratios / (1 + ratios)).sum(axis=1))

    expected = np.maximum.accumulate(squares(final_variance))
    agreement = np.clip(simulated.agreements.mean(axis=1), 0.0, 1.0)
    bias = simulated.bias(agreement >= READABLE, deviations, expected)
    bias = np.maximum(bias, _sample_bias(raw, values, squared_excess, k, count))
    for radius in range(1, radii):
        for smaller in range(radius):
            fallen = (excess[radius] / max(excess[smaller], 1e-300)) ** FALL
            x = bias[smaller] / max(1 - bias[smaller] / random, 0.1) * fallen
            bias[radius] = max(bias[radius], x / (1 + x / random))
    return Reading(expected, bias, agreement, vectors, values, level, squares(np.diagonal(noise)))


class _Simulation:
    """Draws of fresh noise: agreements of pairs, and distances under noise alone."""

    def __init__(
        self, moments: Matrix, noise: Matrix, weights: Matrix, k: int, vectors: Matrix, values: Matrix
    ) -> None:
        radii, d = len(moments), moments.shape[-1]
        rng = utility_generator(d)
        self.repeats = _REPEATS if d <= _WIDE else _FEW_REPEATS
        self.vectors, self.k = vectors, k
        scale = np.sqrt(np.outer(weights, weights))
        # The covariance is singular where two radii have the same noise, so no Cholesky root.
        variances, axes = np.linalg.eigh(noise)
        root = axes * np.sqrt(np.maximum(variances, 0.0))
        resolved = values[:, k - 1] > 0
        starts = vectors[:, :, : min(k + _GUARDS, d)]
        clean = (vectors * values[:, None, :]) @ vectors.swapaxes(1, 2)
        agreed = np.zeros((radii, k))
        self.pairs = [(m, s) for m in range(1, radii) if resolved[m] for s in range(m + 1)]
        larger = np.array([m for m, _ in self.pairs], dtype=int)
        smaller = np.array([s for _, s in self.pairs], dtype=int)
        self.distances = np.zeros((self.repeats, len(self.pairs)))
        for repeat in range(self.repeats):
            drawn = np.tensordot(root, symmetric_noise(rng, radii, d), axes=1) * scale
            up = leading_subspaces(moments + drawn, k, starts)
            down = leading_subspaces(moments - drawn, k, starts)
            agreed += np.linalg.svd(up.swapaxes(1, 2) @ down, compute_uv=False) ** 2
            if not self.pairs:
                continue
            null = leading_subspaces(clean[larger] + drawn[smaller], k, starts[larger])
            own = {m: null[i] for i, (m, s) in enumerate(self.pairs) if m == s}
            self.distances[repeat] = [
                2 * k - 2 * float(np.sum((null[i].T @ own[m]) ** 2)) for i, (m, _) in enumerate(self.pairs)
            ]
        self.agreements = (agreed / self.repeats - k / d) / (1 - k / d)

    def bias(self, readable: NDArray[np.bool_], least: float, noise: Matrix) -> Matrix:
        """Return each radius' largest distance from a readable larger radius, beyond the null.

        A false alarm at z deviations costs the larger radius' noise. So z is at least
        sqrt(ln(noise_m/noise_l)): the odds exp(-z^2/2) are at most the root of noise_l/noise_m.
        """
        bias = np.zeros(len(self.vectors))
        lead = self.vectors[:, :, : self.k]
        means, deviations = self.distances.mean(axis=0), self.distances.std(axis=0, ddof=1)
        for i, (m, s) in enumerate(self.pairs):
            if s == m or not readable[m]:
                continue
            found = 2 * self.k - 2 * float(np.sum((lead[s].T @ lead[m]) ** 2))
            ratio = noise[m] / max(noise[s], 1e-300)
            allowed = max(least, math.sqrt(math.log(max(ratio, 1.0))))
            bias[s] = max(bias[s], found - means[i] - allowed * deviations[i])
        return bias


def _sample_bias(raw: Matrix, values: Matrix, squared_excess: Matrix, k: int, count: float) -> Matrix:
    """Estimate the bias from clipping a sample, at the smallest radius that resolves k directions."""
    radii, d = values.shape
    shown = np.flatnonzero(values[:, k - 1] > 0)
    if not shown.size:
        return np.zeros(radii)
    at = values[shown[0]]
    seen = at > 0
    spread = max(float(raw[shown[0]].sum()) - float(at[seen].sum()), 0.0) / d
    variances = np.where(seen, at, spread)
    total = max(float(variances.sum()), 1e-300)
    gaps = np.maximum(at[:k, None] - at[None, k:], 1e-9 * total)
    turned = variances[:k, None] * variances[None, k:] / gaps**2 / total**2
    out = np.zeros(radii)
    for radius in range(radii):
        share = min(squared_excess[radius] / total**2, _HEAVIEST) * total**2
        x = (2 * np.minimum(turned * (share / count * _SAMPLE), 1e3)).sum(axis=1)
        out[radius] = float((x / (1 + x)).sum())
    return out
