"""Fitted attributes of a model, as functions of a release: post-processing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from streaming_pca.api.likelihood import noise_variance
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.projection import total_centre
from streaming_pca.estimators.base import Subspace
from streaming_pca.estimators.common.error_bounds import explained_ratio

ATTRIBUTES = (
    "components_",
    "explained_variance_",
    "explained_variance_error_",
    "explained_variance_ratio_",
    "total_variance_",
    "total_variance_error_",
    "noise_variance_",
    "singular_values_",
    "angle_bound_",
    "outcome_",
    "doubts_",
    "mean_",
    "n_components_",
    "n_records_seen_",
    "n_samples_seen_",
)


def fitted_attributes(
    release: Subspace, preprocessing: Preprocessing, records: int, doubts: Sequence[str]
) -> dict[str, Any]:
    """Return the known fitted attributes of :data:`ATTRIBUTES` by name.

    An unknown attribute is absent rather than None, as in scikit-learn
    (``feature_names_in_``, a forest's ``oob_score_``): ``hasattr`` is False, and its
    use is an AttributeError that names it.
    """
    variances, total = release.explained_variance, release.total_variance
    with np.errstate(all="ignore"):
        singular = np.sqrt(records * np.maximum(variances, 0.0))
    values = (
        release.components,
        variances,
        release.explained_variance_error,
        None if total is None else explained_ratio(variances, total),
        total,
        release.total_variance_error,
        noise_variance(variances, preprocessing.dim, total, release.total_variance_error),
        singular,
        release.angle_bound,
        None if release.outcome is None else release.outcome.value,
        tuple(doubts),
        total_centre(release.mean, preprocessing.centering, preprocessing.scale),
        len(release.components),
        records,
        records,
    )
    return {name: value for name, value in zip(ATTRIBUTES, values, strict=True) if value is not None}
