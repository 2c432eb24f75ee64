"""A release of a tensor's components."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streaming_pca.estimators.base import Subspace

__all__ = ["tensor_of"]


def tensor_of(weights: NDArray[np.float64], components: NDArray[np.float64]) -> Subspace:
    """Components by decreasing weight; post-processing.

    A weight below 0 is noise, and is released as 0: the components are those of
    positive weight. It is the ``explained_variance`` too, of the third moment.

    Parameters
    ----------
    weights : (k,) float64
        0 for what is not found yet.
    components : (k, d) float64
        Unit rows.
    """
    kept = np.maximum(weights, 0.0)
    # Stable: what is found comes before the fill, where both have weight 0.
    order = np.argsort(-kept, kind="stable")
    return Subspace(components[order], kept[order], None, weights=kept[order])
