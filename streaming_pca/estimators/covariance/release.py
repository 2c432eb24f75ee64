"""Release from a noisy second moment: leading eigenvectors, variances, their errors, turns by clips.

The covariance is S_c + M: S_c the moment clipped at the chosen radius, M the part that the clip cut off.
The layers above that radius show M, with their noise. The part beyond the largest radius is known from the
counts of norms alone, and assumed to have the directions of these layers. Formulas:
docs/explanation/default-estimator.md ("What clips may have turned").
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.common.error_bounds import FAILURE, angle_bound_of_covariance
from streaming_pca.estimators.common.mean_offset import MeanOffset
from streaming_pca.estimators.common.present import PresentShare
from streaming_pca.estimators.covariance.radius_choice import leading_subspaces, symmetric_noise
from streaming_pca.estimators.covariance.state import CovarianceEstimate
from streaming_pca.estimators.covariance.variances import read_variances
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.privacy.randomness import utility_generator

Matrix = NDArray[np.float64]

_PAIRS, _GUARDS = 40, 4
"""Simulated pairs of an angle bound, and extra columns of the iteration: trade precision against time."""
_LOST = 1.4  # radians above which a simulated bound is replaced by pi/2


def covariance_subspace(
    estimate: CovarianceEstimate,
    preprocessing: Preprocessing,
    k: int,
    present: PresentShare,
    offset: MeanOffset,
) -> Subspace:
    """Compute the release, leading eigenvectors of the noisy covariance: post-processing.

    ``offset`` leads from the centre of the sums to the records' mean, which the covariance is about. The
    error of the share of present records widens every variance's error.
    """
    moment = estimate.released_moment() - np.outer(offset.vector, offset.vector)
    values, vectors = ritz_pairs(moment, len(moment))
    components = vectors[:, :k].T
    if not estimate.records:
        return Subspace(components, np.maximum(values[:k], 0.0), None)
    sigma = math.sqrt(estimate.released_noise)
    if estimate.weighted:
        bound = _simulated_angle(moment, vectors, k, estimate, sigma, offset)
    else:
        bound = angle_bound_of_covariance(values, k, sigma, other=offset.reach)
    with np.errstate(all="ignore"):
        if preprocessing.largest_squared_norm is not None:
            high = preprocessing.largest_squared_norm / float(estimate.weights.min())
            estimate = replace(estimate, sizes=estimate.sizes.within(high))
        dominant = dominant_feature(estimate) if preprocessing.kind is RecordKind.FACTOR else None
        turned = clip_angle(estimate, values, vectors, k, present.share, preprocessing.kind)
        found = read_variances(estimate, components, values, offset, present.share, preprocessing.kind)
    is_covered = bound + turned < math.pi / 2
    variances, total = found.along, found.total
    order = np.argsort(-variances, kind="stable")
    errors = np.hypot(found.errors, offset.errors(variances))
    total_error = math.hypot(found.total_error, offset.total_error)
    finite = math.isfinite(total) and math.isfinite(total_error) and bool(np.isfinite(errors).all())
    # The trace of indefinite matrices is not a variance.
    is_total = finite and preprocessing.kind is RecordKind.FACTOR
    return Subspace(
        components[order],
        variances[order],
        None,
        explained_variance_error=present.widened(errors, variances)[order] if finite else None,
        total_variance=total if is_total else None,
        total_variance_error=float(present.widened(total_error, total)) if is_total else None,
        angle_bound=(bound + turned if is_covered else bound) if finite else None,
        known_warnings=() if is_covered or bound >= math.pi / 2 else ("clipped",),
        dominant_feature=dominant,
    )


def _simulated_angle(
    moment: Matrix, vectors: Matrix, k: int, estimate: CovarianceEstimate, sigma: float, offset: MeanOffset
) -> float:
    """Estimate the angle bound under noise of direction-dependent scale, from simulated pairs.

    A + N and A - N, with N fresh noise of the release's law, differ by twice the noise of
    the release. To first order their angle is twice the release's angle to its exact
    sums, so the 0.95 quantile over the pairs is a conservative bound.
    """
    dim = len(moment)
    if k == dim:
        return 0.0
    rng = utility_generator(dim)
    root = estimate.basis * np.sqrt(estimate.weights)
    start = vectors[None, :, : min(k + _GUARDS, dim)]
    angles = []
    for _ in range(_PAIRS):
        noise = sigma * (root @ symmetric_noise(rng, 1, dim)[0] @ root.T)
        noise += offset.draw_error(rng)
        pair = leading_subspaces(np.stack([moment + noise, moment - noise]), k, start)
        cosine = float(np.linalg.svd(pair[0].T @ pair[1], compute_uv=False)[-1])
        angles.append(math.acos(min(cosine, 1.0)))
    bound = float(np.quantile(angles, 1 - FAILURE, method="higher"))
    return bound if bound < _LOST else math.pi / 2


_DEVIATIONS = 2.0  # deviations of the noise that are added to measured values
_SURE = 3.0  # deviations of a feature's part above one half
_LEAST_SHOWN = 1e-3  # share of the cut-off part above which the layers show its directions


def clip_angle(
    estimate: CovarianceEstimate, values: Matrix, vectors: Matrix, k: int, present: float, kind: RecordKind
) -> float:
    """Estimate the largest turn of the k leading directions that clips may have caused.

    ``values`` and ``vectors`` (columns) are the released moment's, decreasing; ``present`` is the share of
    the records that are not null. The part cut off from matrices has no sign: it may lower the leading
    directions, too.

    Returns radians; pi/2 where noise hides it, also in the counts; 0 where nothing was counted, as with a
    public radius.
    """
    if k == len(values) or not estimate.sizes.records:
        return 0.0
    used, last = estimate.used, estimate.used - 1
    tail = estimate.sizes.tail(estimate.radii[:used], estimate.excess[:used], present)
    if tail.is_coarse:
        return math.pi / 2
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
    return _angle(across, max(float(led), float(values[k - 1])) - max(highest, float(values[k])))


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
