"""Models from the releases of a stream, for its consumers."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from streaming_pca.api.fitted import fitted_attributes
from streaming_pca.data.preprocessing import Preprocessing
from streaming_pca.data.release import ACCURACY, Release
from streaming_pca.estimators.base import Subspace
from streaming_pca.privacy.parameters import Charge

Settings = Mapping[str, Any]


def read_release(given: Any, settings: Settings) -> tuple[Release, Preprocessing]:
    """Read a release, and its stream's preprocessing of records.

    Parameters
    ----------
    given : Release, bytes, dict, or path of a JSON file
    settings : mapping
        ``centering``, ``scale`` and ``bounds``, None if not given: for digests, and for releases
        of earlier versions.

    Raises
    ------
    ValueError
        One line: not a release, a tensor, or settings that are not the stream's.

    Warns
    -----
    UserWarning
        If the release is of a version without settings and none are given.
    """
    release = given if isinstance(given, Release) else Release.from_bytes(_content(given))
    known = {name: value for name, value in settings.items() if value is not None}
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
    if len(release.explained_variance) != release.rank or not np.isfinite(release.explained_variance).all():
        raise ValueError(f"not a release: explained_variance is not {release.rank} finite numbers")
    try:
        charge_of_release(release)
    except ValidationError:
        raise ValueError("not a release: epsilon or delta is not a valid privacy parameter") from None
    try:
        return release, Preprocessing(dim=release.dim, **values)
    except ValidationError as error:
        message = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ValueError(" ".join(message.split())) from None


def _content(given: Any) -> bytes:
    """Return the JSON of a release."""
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


def parameters_of_release(release: Release, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the parameters of a model that could have this release, apart from its options."""
    parameters = {
        "n_components": release.rank,
        "private": release.private,
        "estimator": release.estimator,
        "centering": preprocessing.centering,
        "bounds": preprocessing.bounds,
        "scale": preprocessing.scale,
    }
    guarantee = {"epsilon": release.epsilon, "delta": release.delta} if release.private else {}
    return parameters | guarantee


def attributes_of_release(release: Release, preprocessing: Preprocessing) -> dict[str, Any]:
    """Return the fitted attributes of a release."""
    numbers = {
        name: None if (value := getattr(release, name)) is None else np.asarray(value, dtype=np.float64)
        for name in ("components", "explained_variance", "explained_variance_error", "mean")
    }
    others = {name: getattr(release, name) for name in ACCURACY if name not in numbers}
    subspace = Subspace(**numbers, **others)  # type: ignore[arg-type]
    found = fitted_attributes(subspace, preprocessing, release.records, release.doubts)
    if release.outcome is not None:
        found["outcome_"] = release.outcome
    return found


def charge_of_release(release: Release) -> Charge:
    """Return a unit of privacy's charge for all releases of the stream together."""
    if release.epsilon is None or release.delta is None:
        return Charge.unbounded()
    return Charge(epsilon=release.epsilon, delta=release.delta)
