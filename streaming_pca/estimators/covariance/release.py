"""Release from a noisy second moment: leading eigenvectors, variances and their errors."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.common.error_bounds import FAILURE, angle_bound_of_covariance, mean_noise_along
from streaming_pca.estimators.common.present import PresentShare
from streaming_pca.estimators.covariance.clipping import clip_angle, dominant_feature
from streaming_pca.estimators.covariance.radius_choice import leading_subspaces, symmetric_noise
from streaming_pca.estimators.covariance.state import CovarianceEstimate
from streaming_pca.estimators.covariance.variances import read_variances
from streaming_pca.linalg.subspace import ritz_pairs
from streaming_pca.privacy.randomness import utility_generator

Matrix = NDArray[np.float64]

_PAIRS, _GUARDS = 40, 4
"""Simulated pairs of an angle bound, and extra columns of the iteration: trade precision against time."""
_LOST = 1.4
"""Radians above which a simulated bound is replaced by pi/2."""


def covariance_subspace(
    estimate: CovarianceEstimate,
    preprocessing: Preprocessing,
    k: int,
    present: PresentShare,
    mean: Matrix | None = None,
    mean_noise: float | None = None,
) -> Subspace:
    """Compute the release, leading eigenvectors of the noisy covariance: post-processing.

    The sums were taken about the centre c; about the records' ``mean`` they are less by
    (mean - c)(mean - c)^T. ``mean_noise`` is the noise variance of each of its coordinates: the mean's
    error e adds e e^T. The error of the share of present records widens every variance's error.
    """
    moment, offset = estimate.released_moment(), None
    dim = len(moment)
    if mean is not None:
        scale = 1.0 if preprocessing.scale is None else np.asarray(preprocessing.scale)
        with np.errstate(all="ignore"):
            away = mean * scale - estimate.centre
            if math.isfinite(float(away @ away)):
                offset = away
                moment = moment - np.outer(offset, offset)
    values, vectors = ritz_pairs(moment, dim)
    components = vectors[:, :k].T
    if not estimate.records:
        return Subspace(components, np.maximum(values[:k], 0.0), None)
    sigma = math.sqrt(estimate.released_noise)
    if estimate.weighted:
        bound = _simulated_angle(moment, vectors, k, estimate, sigma, mean_noise or 0.0)
    else:
        # The norm of d standard normals exceeds this with probability at most e^-8.
        length = math.sqrt(dim) + 4
        bound = angle_bound_of_covariance(values, k, sigma, other=(mean_noise or 0.0) * length * length)
    with np.errstate(all="ignore"):
        dominant = dominant_feature(estimate) if preprocessing.kind is RecordKind.FACTOR else None
        turned = clip_angle(estimate, values, vectors, k, present.share, preprocessing.kind)
        found = read_variances(estimate, components, values, offset, present.share, preprocessing.kind)
    is_covered = bound + turned < math.pi / 2
    variances, total = found.along, found.total
    order = np.argsort(-variances, kind="stable")
    errors = np.hypot(found.errors, mean_noise_along(variances, dim, mean_noise))
    total_error = math.hypot(found.total_error, dim * (mean_noise or 0.0))
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
    moment: Matrix, vectors: Matrix, k: int, estimate: CovarianceEstimate, sigma: float, mean_noise: float
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
        error = math.sqrt(mean_noise) * rng.standard_normal(dim)
        noise += np.outer(error, error)
        pair = leading_subspaces(np.stack([moment + noise, moment - noise]), k, start)
        cosine = float(np.linalg.svd(pair[0].T @ pair[1], compute_uv=False)[-1])
        angles.append(math.acos(min(cosine, 1.0)))
    bound = float(np.quantile(angles, 1 - FAILURE, method="higher"))
    return bound if bound < _LOST else math.pi / 2
