"""Number of components and fitted attributes of a model.

All are post-processing of releases, of the model or a stream, and of public numbers.
"""

from __future__ import annotations

import copy
import itertools
import json
import math
import os
import warnings
from collections.abc import Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.projection import total_centre
from streaming_pca.data.release import ACCURACY, Release
from streaming_pca.estimators.base import Estimator, State, Subspace
from streaming_pca.estimators.common.error_bounds import explained_ratio
from streaming_pca.estimators.covariance.state import MAX_COVARIANCE_DIM
from streaming_pca.estimators.covariance.update import rank_of_radius
from streaming_pca.estimators.factory import read_bounds, read_scale
from streaming_pca.privacy.parameters import Charge
from streaming_pca.text import one_line

_SPECTRAL: Mapping[str, Mapping[str, Any]] = {"adaptive": {"route": "covariance"}, "analyze-gauss": {}}
"""Estimators with a noisy spectrum of all features, and the options that guarantee it."""

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


def is_share(n_components: Any) -> bool:
    """Return whether the number is a share of the variance, in (0, 1)."""
    is_real = isinstance(n_components, Real) and not isinstance(n_components, Integral)
    return is_real and 0 < float(n_components) < 1


def configured_components(
    n_components: Any, estimator: Any, options: Any, dim: int, n_records: int | None
) -> tuple[Any, Any]:
    """Return the rank that the mechanisms are set up for, and the options.

    ``n_records`` are those of the first call, a public number. ValueError with one line for a malformed
    number of components, or if the estimator cannot choose by a share of the variance.
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


def chosen_release(estimator: Estimator[Any, Any], state: State, n_components: Any) -> Subspace:
    """Return the release, with all components or enough for a share of the noisy variance."""
    with np.errstate(all="ignore"):
        if n_components is None and _has_spectrum(
            estimator.info.id, estimator.options.model_dump(), estimator.dim
        ):
            most = min(estimator.dim, max(state.records, estimator.k))
            return with_rank(estimator, most).release(state)
        if not is_share(n_components):
            return estimator.release(state)
        whole = with_rank(estimator, estimator.dim).release(state)
        needed = float(n_components) * (whole.total_variance or 0.0)
        sums = itertools.accumulate(whole.explained_variance.tolist())
        rank = next((i + 1 for i, share in enumerate(sums) if share >= needed), estimator.dim)
        release = with_rank(estimator, rank).release(state)
        while (
            rank < estimator.dim
            and release.total_variance is not None
            and float(np.sum(release.explained_variance)) < n_components * release.total_variance
        ):
            # Its own variances may fall short: noise moves them with the rank.
            rank = min(rank + max(rank // 4, 1), estimator.dim)
            release = with_rank(estimator, rank).release(state)
        return release


def with_rank(estimator: Estimator[Any, Any], rank: int) -> Estimator[Any, Any]:
    """Copy an estimator that releases from a noisy covariance, with another rank of its release."""
    other = copy.copy(estimator)
    other.k = rank
    return other


def noise_variance(
    variances: NDArray[np.float64],
    dim: int,
    total: float | None,
    total_error: float | None,
    errors: NDArray[np.float64] | None = None,
) -> float | None:
    """Estimate the mean variance of the d - k directions outside the components.

    ``noise_variance_`` of a model; None without a total variance. Its floor is the noise of the sum of d - k
    variances, as far as errors show it. Most of the larger ``errors`` is a share of large variances, cut off
    by clips, which the rest does not have. Without an error the floor is 2**-52 of the largest variance.
    """
    left = dim - len(variances)
    if not left:
        return 0.0
    if total is None:
        return None
    with np.errstate(all="ignore"):
        rest = total - float(np.sum(variances))
        noise = math.inf if errors is None else math.sqrt(left) * float(np.min(errors))
        rounding = left * np.finfo(np.float64).eps * float(np.max(variances))
        least = max(min(total_error or 0.0, noise), rounding)
    return max(rest, least) / left


def fitted_attributes(
    release: Subspace, preprocessing: Preprocessing, records: int, doubts: Sequence[str]
) -> dict[str, Any]:
    """Return the known fitted attributes of :data:`ATTRIBUTES` by name.

    An unknown attribute is absent rather than None, as in scikit-learn (``feature_names_in_``, a forest's
    ``oob_score_``): ``hasattr`` is False, and its use is an AttributeError that names it.
    """
    variances, total = release.explained_variance, release.total_variance
    errors, total_error = release.explained_variance_error, release.total_variance_error
    with np.errstate(all="ignore"):
        singular = np.sqrt(records * np.maximum(variances, 0.0))
    values = (
        release.components,
        variances,
        errors,
        None if total is None else explained_ratio(variances, total),
        total,
        total_error,
        noise_variance(variances, preprocessing.dim, total, total_error, errors),
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


def read_release(given: Any, settings: Mapping[str, Any]) -> tuple[Release, Preprocessing]:
    """Read a release, and its stream's preprocessing of records.

    ``settings`` are ``centering``, ``scale`` and ``bounds``, None if not given: for digests, and for releases
    of earlier versions. Errors and warnings: :meth:`streaming_pca.PrivatePCA.from_release`.
    """
    release = given if isinstance(given, Release) else Release.from_bytes(_content(given))
    known = {name: value for name, value in settings.items() if value is not None}
    if "bounds" in known:
        known["bounds"] = read_bounds(known["bounds"], release.dim)
    if isinstance(known.get("scale"), str):
        known["scale"] = read_scale(known["scale"], known.get("bounds", release.bounds))
    if release.kind == "tensor":
        raise ValueError(
            "the release holds components of a tensor, not of a subspace: take a release of a subspace"
        )
    values: dict[str, Any] = {"centering": "none" if release.mean is None else "auto"}
    if release.centering is None:
        if not known:
            warnings.warn(
                f"a release of version {release.version} does not name scale and bounds: "
                "pass them to from_release if the stream has them",
                UserWarning,
                stacklevel=3,
            )
        # Check its numbers like those of a later release.
        release.model_copy(update={"centering": "none"}).projection()
        values |= known
    else:
        release = release.with_settings(**known)
        # Refuses settings without a projection, such as a digest.
        release.projection()
        values = {name: getattr(release, name) for name in settings}
    try:
        return release, Preprocessing(dim=release.dim, **values)
    except ValidationError as error:
        raise ValueError(one_line(error.errors()[0]["msg"].removeprefix("Value error, "))) from None


def _content(given: Any) -> bytes:
    if isinstance(given, (bytes, bytearray, memoryview)):
        return bytes(given)
    if isinstance(given, Mapping):
        return json.dumps(given).encode()
    if isinstance(given, (str, os.PathLike)):
        try:
            return Path(given).read_bytes()
        except OSError as error:
            raise ValueError(f"{os.fspath(given)!s}: {error.strerror or error}") from None
    raise ValueError(f"a release is a Release, its bytes, a dict or a path, not {type(given).__name__}")


def release_parameters(release: Release, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the parameters of a model that could have this release, apart from its options."""
    bounds: Any = preprocessing.bounds
    if bounds is not None:
        # Two tuples of two numbers could mean bounds of two features.
        bounds = tuple(list(each) if isinstance(each, tuple) else each for each in bounds)
    parameters = {
        "n_components": release.rank,
        "private": release.private,
        "estimator": release.estimator,
        "centering": preprocessing.centering,
        "bounds": bounds,
        "scale": preprocessing.scale,
    }
    guarantee = {"epsilon": release.epsilon, "delta": release.delta} if release.private else {}
    return parameters | guarantee


def release_attributes(release: Release, preprocessing: Preprocessing) -> dict[str, Any]:
    numbers = {
        name: None if (value := getattr(release, name)) is None else np.asarray(value, dtype=np.float64)
        for name in ("components", "explained_variance", "explained_variance_error", "mean")
    }
    others = {name: getattr(release, name) for name in ACCURACY if name not in numbers}
    subspace = Subspace(**numbers, **others)  # type: ignore[arg-type]
    attributes = fitted_attributes(subspace, preprocessing, release.records, release.doubts)
    if release.outcome is not None:
        attributes["outcome_"] = release.outcome
    return attributes


def release_charge(release: Release) -> Charge:
    """Return a unit of privacy's charge for all releases of the stream together."""
    if release.epsilon is None or release.delta is None:
        return Charge.unbounded()
    return Charge(epsilon=release.epsilon, delta=release.delta)
