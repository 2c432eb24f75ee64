"""Largest turn of the leading directions that clips may have caused: post-processing.

The covariance is S_c + M: S_c the moment clipped at the chosen radius, M the part that the clip cut off.
The layers above that radius show M, with their noise. The part beyond the largest radius is known from the
counts of norms alone, and assumed to have the directions of these layers. Formulas:
docs/explanation/default-estimator.md ("What clips may have turned").
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.covariance.state import CovarianceEstimate

Matrix = NDArray[np.float64]

_DEVIATIONS = 2.0
"""Deviations of the noise that are added to measured values."""
_SURE = 3.0
"""Deviations of a feature's part above one half."""
_LEAST_SHOWN = 1e-3
"""Share of the cut-off part above which the layers show its directions."""


def clip_angle(
    estimate: CovarianceEstimate, values: Matrix, vectors: Matrix, k: int, present: float, kind: RecordKind
) -> float:
    """Estimate the largest turn of the k leading directions that clips may have caused.

    ``values`` and ``vectors`` (columns) are the released moment's, decreasing; ``present`` is the share of
    the records that are not null. The part cut off from matrices has no sign: it may lower the leading
    directions, too.

    Returns
    -------
    float
        Radians; pi/2 where noise hides it; 0 where nothing was counted, as with a public radius.
    """
    if k == len(values) or not estimate.sizes.records:
        return 0.0
    used, last = estimate.used, estimate.used - 1
    tail = estimate.sizes.tail(estimate.radii[:used], estimate.excess[:used], present)
    chosen = estimate.chosen
    # A direction weighs at most as much in the records' own coordinates.
    most = float(estimate.weights.max())
    cut = (float(tail.excess[chosen]) + _DEVIATIONS * math.sqrt(tail.variance[chosen]) + tail.hidden) * most
    is_positive = kind is RecordKind.FACTOR
    most_across = 0.5 if is_positive else 1.0
    # Without a layer above the chosen radius, the uppermost one.
    first = min(chosen, last - 1)
    shown = float(tail.excess[first] - tail.excess[last]) if first >= 0 else 0.0
    if not shown > _LEAST_SHOWN * cut:
        return _angle(cut * most_across, float(values[k - 1] - values[k]) - (cut if is_positive else 2 * cut))
    turned = vectors.T @ estimate.basis
    above = estimate.moment(last) - estimate.moment(first)
    factor = float(chosen < last) + (float(tail.excess[last]) + tail.hidden) / shown
    above = factor * (turned @ above @ turned.T)
    # Noise of an entry ij off the diagonal has the variance along_i along_j / 2.
    along = factor * math.sqrt(float(estimate.noise[first + 1 : used].sum())) * (turned**2 @ estimate.weights)
    noise = np.outer(along[:k], along[k:]) / 2
    seen = max(float(np.sum(above[:k, k:] ** 2) - noise.sum()), 0.0)
    spread = math.sqrt(2 * float(np.sum(noise * noise)) + 4 * seen * float(noise.max()))
    across = min(math.sqrt(seen + _DEVIATIONS * spread), cut * most_across)
    # Leading directions may have gained nothing, others as much as the noise allows.
    led = np.linalg.eigvalsh(np.diag(values[:k]) + above[:k, :k])[0] - _DEVIATIONS * float(along[:k].max())
    rest = np.linalg.eigvalsh(np.diag(values[k:]) + above[k:, k:])
    middle = float(np.median(rest))
    highest = middle + _without_noise(
        float(rest[-1]) - middle, float(np.mean(along[k:]) ** 2) * len(rest) / 2
    )
    highest = min(highest + _DEVIATIONS * float(along[k:].max()) * math.sqrt(0.5), float(values[k]) + cut)
    if not is_positive:
        return _angle(across, max(float(led), float(values[k - 1]) - cut) - highest)
    gap = max(float(led), float(values[k - 1])) - max(highest, float(values[k]))
    return _angle(across, gap)


def dominant_feature(estimate: CovarianceEstimate) -> int | None:
    """Return the feature that dominates the largest records, if there is one.

    It has more than half of the layers' trace above the chosen radius, beyond their noise. Its values alone
    exceed the radius, so its unit decides which records are clipped, and how much noise all others get.
    """
    used, last = estimate.used, estimate.used - 1
    if used < 2:
        return None
    first = min(estimate.chosen, last - 1)
    above = estimate.moment(last) - estimate.moment(first)
    parts = np.einsum("ij,jl,il->i", estimate.basis, above, estimate.basis)
    feature = int(np.argmax(parts))
    squares, weights = estimate.basis[feature] ** 2, estimate.weights
    # <E, N> for E = e e' - I/2, of the feature's direction e, in coordinates of the noise N.
    noise = (squares @ weights) ** 2 - squares @ weights**2 + np.sum(weights**2) / 4
    deviation = math.sqrt(float(estimate.noise[first + 1 : used].sum()) * float(noise))
    beyond = float(parts[feature]) - float(parts.sum()) / 2
    return feature if beyond > _SURE * deviation else None


def _without_noise(apart: float, square: float) -> float:
    """Estimate an eigenvalue raised by noise; the size of noise alone if no eigenvalue is seen."""
    inside = apart * apart - 4 * square
    return (apart + math.sqrt(inside)) / 2 if inside > 0 else math.sqrt(square)


def _angle(turned: float, gap: float) -> float:
    return math.asin(turned / gap) if turned < gap < math.inf else math.pi / 2
