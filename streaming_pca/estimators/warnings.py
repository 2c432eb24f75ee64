"""Warnings about a release, from its own numbers.

Functions of released numbers and public settings: post-processing, which costs no privacy. A release without
warnings is not proved good: many estimators have neither an angle bound nor standard errors.
"""

from __future__ import annotations

import math
from enum import StrEnum
from typing import TYPE_CHECKING

import numpy as np

from streaming_pca.data.records import RecordKind
from streaming_pca.estimators.common.error_bounds import angle_bound_of_covariance

if TYPE_CHECKING:
    from streaming_pca.data.preprocessing import Preprocessing
    from streaming_pca.data.release import Release
    from streaming_pca.estimators.base import Subspace

_RIGHT_ANGLE = math.pi / 2
_STANDARD_ERRORS = 2.0  # standard errors above 0 that distinguish a variance from noise
_NEARLY_ALL = 0.9
"""Share of the total that one component seldom exceeds, unless it is the direction of the mean."""

_NEAR_THE_END = 0.2
"""Share of the largest squared norm above which the mean of clipped norms implies many at the end."""


class DoubtfulResultWarning(UserWarning):
    """Warning that a fitted result is not reliable; the message gives reason and remedy."""


class ReleaseWarning(StrEnum):
    """Reason not to rely on a release: id, and explanation in one line.

    Ids are stable; new ones may be added. Remedies: :mod:`~streaming_pca.estimators.remedies`.
    """

    explanation: str
    """Reason in one line."""

    def __new__(cls, name: str, explanation: str = "") -> ReleaseWarning:
        member = str.__new__(cls, name)
        member._value_, member.explanation = name, explanation
        return member

    NO_RECORDS = "no-records", "no record has been read yet"
    NOT_RESOLVED = (
        "not-resolved",
        "noise alone could have produced the components (the angle bound is 90 degrees)",
    )
    # A variance is at most two of its standard errors; without a known error it is 0.
    VARIANCE_LOST = (
        "variance-lost",
        "an explained variance is indistinguishable from noise, and so is its component",
    )
    # The expected error of the mean, squared, is at least the variance of the last component.
    MEAN_SWAMPS = "mean-swamps", "the error of the mean is as large as a component's standard deviation"
    # Centering "auto" found no mean, and its error is not known; or centering is "none", and the first
    # component has more than 0.9 of the total variance beyond the noise.
    MEAN_UNKNOWN = (
        "mean-unknown",
        "the first component may be the direction of a mean that is unknown or inaccurate",
    )
    CLIPPED = "clipped", "clipped records may have turned the components by more than the angle bound"
    # And components are unresolved or clipped.
    DOMINATED = "dominated", "one feature has most of the squared norm of the largest records"
    UNSETTLED = (
        "unsettled",
        "the components are not settled: further steps may turn them, or means of batches vary as much",
    )
    # A restart dropped more than 2% of the records.
    RESTARTED = (
        "restarted",
        "the first batches had too few records to find mean or norms: results describe the later ones",
    )
    # More than 2% of the records, beyond the noise of their count.
    CLAMPED = (
        "clamped",
        "public bounds change values in many records: all results describe the changed values",
    )
    RANGE_ENDS = (
        "range-ends",
        "records are so large that they were clipped to the end of the public radius_range",
    )


def find_warnings(
    subspace: Subspace, preprocessing: Preprocessing, records: int, end: float = math.inf
) -> tuple[ReleaseWarning, ...]:
    """Find the reasons not to rely on a release, in the order of the enumeration.

    It uses nothing of the state that is not released. Before any record it returns only ``NO_RECORDS``; for a
    tensor nothing else, as its weights are not variances.

    ``records`` were delivered so far; ``end`` is the largest norm (|x|^2) of the public search range of the
    estimator's clip radius.
    """
    if not records:
        return (ReleaseWarning.NO_RECORDS,)
    if subspace.weights is not None:
        return ()
    # Numbers that overflowed, and NaNs, give no warning.
    with np.errstate(all="ignore"):
        found = {
            ReleaseWarning.NOT_RESOLVED: _is_right(subspace.angle_bound),
            ReleaseWarning.VARIANCE_LOST: _variance_is_lost(subspace),
            ReleaseWarning.MEAN_SWAMPS: subspace.mean_error is not None
            and subspace.mean_error**2 >= float(subspace.explained_variance[-1]),
            ReleaseWarning.MEAN_UNKNOWN: _mean_is_unknown(subspace, preprocessing),
            **{ReleaseWarning(name): True for name in subspace.known_warnings},
            ReleaseWarning.DOMINATED: subspace.dominant_feature is not None
            and (_is_right(subspace.angle_bound) or ReleaseWarning.CLIPPED in subspace.known_warnings),
            ReleaseWarning.RANGE_ENDS: _reaches(subspace, end),
        }
    return tuple(one for one in ReleaseWarning if found.get(one))


def _is_right(angle_bound: float | None) -> bool:
    return angle_bound is not None and angle_bound >= _RIGHT_ANGLE


def _variance_is_lost(subspace: Subspace) -> bool:
    errors = subspace.explained_variance_error
    least = 0.0 if errors is None else _STANDARD_ERRORS * errors
    return bool(np.any(subspace.explained_variance <= least))


def _mean_is_unknown(subspace: Subspace, preprocessing: Preprocessing) -> bool:
    if preprocessing.kind is not RecordKind.FACTOR:
        return False
    if preprocessing.centering == "auto":
        # If its error is known, a mean that was not found lies within it.
        return subspace.mean is None and subspace.mean_error is None
    return preprocessing.centering == "none" and _first_has_nearly_all(subspace)


def _reaches(subspace: Subspace, end: float) -> bool:
    """Return whether many records of this variance lie beyond a squared norm."""
    sizes = [float(np.sum(subspace.explained_variance)), subspace.total_variance or 0.0]
    return max(sizes) >= _NEAR_THE_END * end


def _first_has_nearly_all(subspace: Subspace) -> bool:
    """Return whether the first component has nearly all variance, beyond its noise."""
    total, errors = subspace.total_variance, subspace.explained_variance_error
    if not total or subspace.components.shape[1] == 1:
        return False
    first = float(subspace.explained_variance[0])
    # The part that clips cut off is uncertain in both alike.
    least = first - (0.0 if errors is None else _STANDARD_ERRORS * float(errors[0]))
    return first > _NEARLY_ALL * total and least > total / 2


def resolved_components(release: Subspace | Release) -> int | None:
    """Count the leading components that noise alone would not have made.

    It is None where too little is known, and k where the angle bound is below pi/2. For j < k it is an
    estimate: the largest j whose gap to the next variance
    :func:`~streaming_pca.estimators.common.error_bounds.angle_bound_of_covariance` finds
    large against the largest of the standard errors, which serves for every
    entry of the noise. For a covariance that is not centred the bound's proof applies.
    """
    if release.angle_bound is None:
        return None
    k, dim = len(release.components), len(release.components[0])
    if not _is_right(release.angle_bound):
        return k
    if release.explained_variance_error is None:
        return None
    values = np.zeros(dim)
    values[:k] = release.explained_variance
    with np.errstate(all="ignore"):
        sigma = float(np.max(release.explained_variance_error))
        resolved = (
            j for j in range(k - 1, 0, -1) if not _is_right(angle_bound_of_covariance(values, j, sigma))
        )
        return next(resolved, 0)
