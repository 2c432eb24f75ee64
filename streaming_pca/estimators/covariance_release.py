"""A release from a noisy second moment: leading eigenvectors, variances, and how far to trust them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.covariance_memory import CovarianceMemory
from streaming_pca.estimators.uncertainty import (
    angle_bound_of_centred_covariance,
    angle_bound_of_covariance,
    errors_of_centred_covariance,
    errors_of_covariance,
)
from streaming_pca.linalg.subspace import augmented_mean, ritz_pairs
from streaming_pca.preprocessing import Preprocessing
from streaming_pca.records import RecordKind

__all__ = ["covariance_subspace"]

Matrix = NDArray[np.float64]


def covariance_subspace(memory: CovarianceMemory, preprocessing: Preprocessing, k: int) -> Subspace:
    """Leading eigenvectors of the (centred) noisy covariance; post-processing.

    Parameters
    ----------
    memory : CovarianceMemory
    preprocessing : Preprocessing
    k : int
    """
    moment, sigma = memory.moment, math.sqrt(memory.noise)
    dim = len(moment)
    mean: Matrix | None = None
    kept = 0.0
    if preprocessing.centering == "augment":
        dim -= 1
        mean, kept = augmented_mean(moment[:, dim])
        moment = moment[:dim, :dim] / (kept or 1.0) - np.outer(mean, mean)
    values, vectors = ritz_pairs(moment, dim)
    # What clipping took from the total, every variance is given back alike.
    restored = (kept or 1.0) / memory.kept
    components = vectors[:, :k].T
    variances = np.maximum(values[:k], 0.0)
    if not memory.weight:
        return Subspace(components, variances, mean)
    total = max(float(np.trace(moment)), 0.0)
    if kept and mean is not None:
        errors = errors_of_centred_covariance(components, variances, total, sigma, mean, kept)
        bound = angle_bound_of_centred_covariance(values, k, sigma, mean, kept)
    else:
        errors = errors_of_covariance(k, dim, sigma)
        bound = angle_bound_of_covariance(values, k, sigma)
    # The trace of indefinite matrices is no variance.
    is_total = preprocessing.kind is RecordKind.FACTOR
    finite = math.isfinite(total) and math.isfinite(errors[1]) and bool(np.isfinite(errors[0]).all())
    return Subspace(
        components,
        variances * restored,
        mean,
        explained_variance_error=errors[0] * restored if finite else None,
        total_variance=total * restored if finite and is_total else None,
        total_variance_error=errors[1] * restored if finite and is_total else None,
        angle_bound=bound if finite else None,
    )
