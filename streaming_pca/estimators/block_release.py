"""A release from the block route: Ritz vectors of the basis, and how far to trust them."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.block_route import BlockMemory
from streaming_pca.estimators.total_variance import TotalVariance
from streaming_pca.estimators.uncertainty import angle_bound_of_block
from streaming_pca.linalg.subspace import ritz_pairs

__all__ = ["block_subspace", "centred_total"]

Matrix = NDArray[np.float64]


def centred_total(memory: BlockMemory, total: TotalVariance) -> float:
    """The total variance about the mean; at least 0."""
    if not memory.augmented:
        return max(total.value, 0.0)
    mean = memory.mean
    # The augmented records' traces have the constant's 1 besides.
    return max(total.value - 1.0 - float(mean @ mean), 0.0)


def block_subspace(memory: BlockMemory, total: TotalVariance, k: int) -> Subspace:
    """Leading Ritz vectors; post-processing.

    Parameters
    ----------
    memory : BlockMemory
    total : TotalVariance
    k : int
        At most the basis' columns.
    """
    basis, centred = memory.basis, memory.centred
    inner = basis.T @ centred
    values, turn = ritz_pairs(inner, k)
    components = (basis @ turn).T
    variances = np.maximum(values, 0.0)
    mean = memory.mean if memory.augmented else None
    noise = math.sqrt(memory.noise)
    known = bool(memory.spectrum.any()) and not memory.augmented and math.isfinite(noise)
    whole = centred_total(memory, total)
    told = total.weight > 0 and math.isfinite(whole)
    return Subspace(
        components,
        variances,
        mean,
        explained_variance_error=np.full(k, noise) if known else None,
        total_variance=whole if told else None,
        total_variance_error=total.standard_error if told else None,
        angle_bound=angle_bound_of_block(memory.spectrum, k, len(basis), noise) if known else None,
    )
