"""Number of components: a count, all, or as many as explain a share of the variance."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Mapping
from numbers import Integral, Real
from typing import Any

import numpy as np

from streaming_pca.estimators.base import Estimator, State, Subspace
from streaming_pca.estimators.covariance.state import MAX_COVARIANCE_DIM
from streaming_pca.estimators.covariance.update import rank_of_radius

_SPECTRAL: Mapping[str, Mapping[str, Any]] = {"adaptive": {"route": "covariance"}, "analyze-gauss": {}}
"""Estimators with a noisy spectrum of all features, and the options that guarantee it."""


def is_share(n_components: Any) -> bool:
    """Return whether the number is a share of the variance, in (0, 1)."""
    is_real = isinstance(n_components, Real) and not isinstance(n_components, Integral)
    return is_real and 0 < float(n_components) < 1


def configured_components(
    n_components: Any, estimator: Any, options: Any, dim: int, n_records: int | None
) -> tuple[Any, Any]:
    """Return the rank that the mechanisms are set up for, and the options.

    Parameters
    ----------
    n_components : int, float in (0, 1), or None
    estimator : str
    options : dict or None
    dim : int
    n_records : int or None
        Records of the first call, public.

    Raises
    ------
    ValueError
        One line for any other value, or if the estimator cannot choose by a share of the variance.
    """
    if n_components is None:
        most = min(dim, n_records or dim)
        if not _has_spectrum(estimator, options, dim):
            return most, options
        return min(rank_of_radius(dim), most), {**(options or {}), **_SPECTRAL[estimator]}
    if isinstance(n_components, Integral):
        return n_components, options
    if not is_share(n_components):
        raise ValueError(
            "n_components must be a whole number of at least 1, a share of the variance in (0, 1), or None, "
            f"not {' '.join(repr(n_components).split()):.60}"
        )
    reason = f"n_components = {float(n_components)!r} needs the noisy variances of all features"
    if not isinstance(estimator, str):
        # Refused with the other parameters.
        return 1, options
    if estimator not in _SPECTRAL:
        names = " or ".join(f'"{name}"' for name in _SPECTRAL)
        raise ValueError(
            f"{reason}, which {estimator} does not release: take estimator {names}, or a whole number"
        )
    if dim > MAX_COVARIANCE_DIM:
        raise ValueError(f"{reason}, which are too many above {MAX_COVARIANCE_DIM}: take a whole number")
    needed = _SPECTRAL[estimator]
    if options is None or isinstance(options, Mapping):
        options = {**needed, **(options or {})}
        for name, value in needed.items():
            if options[name] not in (value, "auto"):
                raise ValueError(f'{reason}: set option {name} to "{value}", or take a whole number')
            options[name] = value
    return rank_of_radius(dim), options


def _has_spectrum(estimator: Any, options: Any, dim: int) -> bool:
    """Return whether these parameters allow a noisy spectrum of all features."""
    if not isinstance(estimator, str) or estimator not in _SPECTRAL or dim > MAX_COVARIANCE_DIM:
        return False
    if not isinstance(options, Mapping | None):
        # Refused with the other parameters.
        return False
    return all(
        (options or {}).get(name, value) in (value, "auto") for name, value in _SPECTRAL[estimator].items()
    )


def release_of(estimator: Estimator[Any, Any], state: State, n_components: Any) -> Subspace:
    """Return the release, with all components or enough for a share of the variance.

    The rank is a function of the noisy variances and the public number of records: post-processing,
    which costs nothing.
    """
    with np.errstate(all="ignore"):
        if n_components is None and _has_spectrum(
            estimator.info.id, estimator.options.model_dump(), estimator.dim
        ):
            most = min(estimator.dim, max(state.records, estimator.k))
            return of_rank(estimator, most).release(state)
        if not is_share(n_components):
            return estimator.release(state)
        whole = of_rank(estimator, estimator.dim).release(state)
        needed = float(n_components) * (whole.total_variance or 0.0)
        sums = itertools.accumulate(whole.explained_variance.tolist())
        rank = next((i + 1 for i, found in enumerate(sums) if found >= needed), estimator.dim)
        found = of_rank(estimator, rank).release(state)
        while rank < estimator.dim and not _has_share(found, float(n_components)):
            # Its own variances may fall short: noise moves them with the rank.
            rank = min(rank + max(rank // 4, 1), estimator.dim)
            found = of_rank(estimator, rank).release(state)
        return found


def _has_share(found: Subspace, share: float) -> bool:
    total = found.total_variance
    return total is None or float(np.sum(found.explained_variance)) >= share * total


def of_rank(estimator: Estimator[Any, Any], rank: int) -> Estimator[Any, Any]:
    """Copy an estimator that releases from a noisy covariance, with another rank of its release."""
    other = copy.copy(estimator)
    other.k = rank
    return other
